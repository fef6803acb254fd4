//! Reads fields out of copies of another process's structures, which were taken without stopping it. A copy may be
//! torn, so any bytes are valid; fields beyond the end of a copy read as 0.

/// Returns the `N` bytes at offset `at` of a copy.
pub(crate) fn bytes<const N: usize>(copy: &[u8], at: usize) -> [u8; N] {
    copy.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
}

/// Returns the word at offset `at` of a copy: a number, or an address.
pub(crate) fn word(copy: &[u8], at: usize) -> u64 {
    usize::from_ne_bytes(bytes(copy, at)) as u64
}

/// Returns a hash of `numbers`, which depends on their order.
pub(crate) const fn sum(numbers: &[usize]) -> u64 {
    let (mut sum, mut i) = (0x9E37_79B9_7F4A_7C15, 0);
    while i < numbers.len() {
        sum = (sum ^ numbers[i] as u64).wrapping_mul(0xD6E8_FEB8_6659_FD93).rotate_left(29);
        i += 1;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a read past the end of a copy, and layouts that are taken for each other.
    #[test]
    fn copies_and_sums() {
        let copy = 7u64.to_ne_bytes();
        assert_eq!((word(&copy, 0), word(&copy, 1), word(&copy, 99)), (7, 0, 0));
        assert!(sum(&[1, 2]) != sum(&[2, 1]) && sum(&[0]) != sum(&[0, 0]) && sum(&[8]) != sum(&[16]));
    }
}
