//! Amounts for people, as reports write them: bytes in binary units, counts in groups of three digits.

use core::fmt::{Display, Formatter, Result};

/// `512 B`, `1.5 KiB`, `34.2 MiB`.
#[derive(Clone, Copy, Debug)]
pub struct Bytes(pub u64);

/// `1,234,567`.
#[derive(Clone, Copy, Debug)]
pub struct Count(pub u64);

impl Display for Bytes {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        if self.0 < 1024 {
            return write!(f, "{} B", self.0);
        }
        // No table of names: each start of a program would write it (relocations).
        let mut shift = 0;
        for unit in "KMGTPE".chars() {
            shift += 10;
            let (whole, rest) = (self.0 >> shift, self.0 & ((1 << shift) - 1));
            // The nearest tenth; ten of them are the next whole.
            let tenths = (rest * 10 + (1 << (shift - 1))) >> shift;
            let (whole, tenths) = (whole + tenths / 10, tenths % 10);
            if whole < 1024 || unit == 'E' {
                return write!(f, "{whole}.{tenths} {unit}iB");
            }
        }
        Ok(())
    }
}

impl Display for Count {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        if self.0 < 1000 {
            return write!(f, "{}", self.0);
        }
        // At most six deep.
        write!(f, "{},{:03}", Count(self.0 / 1000), self.0 % 1000)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::ToString;

    /// Catches a wrong unit at the boundaries, `1024.0 KiB`, and a product that wraps around.
    #[test]
    fn bytes_choose_the_unit() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            (1024 * 1024 - 1, "1.0 MiB"),
            (100 << 20, "100.0 MiB"),
            ((1023 << 20) + (972 << 10), "1023.9 MiB"),
            ((1023 << 20) + (973 << 10), "1.0 GiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
    }

    /// Catches misplaced separators, and zeros that are lost.
    #[test]
    fn counts_are_grouped() {
        for (count, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (1_002_003, "1,002,003"),
            (u64::MAX, "18,446,744,073,709,551,615"),
        ] {
            assert_eq!(Count(count).to_string(), text);
        }
    }
}
