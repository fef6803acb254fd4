//! Faults as bytes, and bytes as base64, which the page's script decodes.
//!
//! A fault is a row of numbers in LEB128: 7 bits a byte, lowest first, the top bit set if more follow. Signed numbers
//! have the sign in the lowest bit. None is above 2^53, the limit of JavaScript's exact numbers.
//!
//! | number | |
//! |---|---|
//! | flags | bits 0 to 3 the kind, 4 guessed, 5 data, 6 kernel mode |
//! | number | less that of the fault before, and 1 |
//! | time | signed, less that of the fault before, ns |
//! | service | and 1; 0 for none |
//! | page | signed, less that of the fault before, in 4 KiB |
//! | address | in its page |
//! | page size | the power of two, and 1; 0 for none |
//! | thread, mapping, code, data, callers | positions, and 1; 0 for none |

use std::io::{self, Write};

use crate::{Fault, Id, Kind, Mode, Subject};

/// Limit on unsigned numbers: JavaScript's limit of exact numbers, halved because a sign takes a bit.
const MOST: u64 = (1 << 52) - 1;

/// Packs faults.
#[derive(Default)]
pub struct Packer {
    bytes: Vec<u8>,
    number: u64,
    time: u64,
    page: u64,
}

impl Packer {
    /// Adds a fault, with the positions of its instruction, its variable and its innermost caller.
    pub fn push(&mut self, fault: &Fault, code: usize, data: Option<usize>, callers: Option<usize>) {
        let kind = Kind::ALL.iter().position(|&kind| kind == fault.kind).unwrap_or(Kind::ALL.len() - 1) as u64;
        let data_flag = u64::from(fault.subject == Subject::Data);
        let kernel = u64::from(fault.mode == Mode::Kernel);
        let (time, page) = (fault.time.min(MOST), fault.address >> 12);
        let number = fault.number.clamp(self.number + 1, MOST + self.number + 1);
        self.put(kind | u64::from(fault.guessed) << 4 | data_flag << 5 | kernel << 6);
        self.put(number - self.number - 1);
        self.put_signed(time, self.time);
        self.put(fault.service.map_or(0, |service| u64::from(service) + 1));
        self.put_signed(page, self.page);
        self.put(fault.address & 0xfff);
        self.put(fault.page_shift.map_or(0, |shift| u64::from(shift) + 1));
        self.put(fault.thread.index() as u64 + 1);
        self.put(fault.mapping.map_or(0, |id| id.index() as u64 + 1));
        self.put(code as u64 + 1);
        self.put(data.map_or(0, |position| position as u64 + 1));
        self.put(callers.map_or(0, |position| position as u64 + 1));
        (self.number, self.time, self.page) = (number, time, page);
    }

    fn put(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }

    /// Both are below 2^52.
    fn put_signed(&mut self, now: u64, before: u64) {
        self.put(if now >= before { (now - before) << 1 } else { (before - now) << 1 | 1 });
    }

    /// Writes the bytes as base64 (RFC 4648).
    pub fn write_base64(&self, out: &mut dyn Write) -> io::Result<()> {
        const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        for three in self.bytes.chunks(3) {
            let mut word = [0; 4];
            word[1..=three.len()].copy_from_slice(three);
            let word = u32::from_be_bytes(word);
            let mut digits = [18, 12, 6, 0].map(|shift| DIGITS[(word >> shift & 63) as usize]);
            digits[three.len() + 1..].fill(b'=');
            out.write_all(&digits)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a wrong alphabet and wrong padding: the examples of RFC 4648.
    #[test]
    fn base64() {
        for (bytes, text) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg=="), ("fooba", "Zm9vYmE=")]
        {
            let packer = Packer { bytes: bytes.into(), ..Packer::default() };
            let mut out = Vec::new();
            packer.write_base64(&mut out).expect("memory takes everything");
            assert_eq!(String::from_utf8(out).expect("ASCII"), text);
        }
    }

    /// Catches signs and long numbers that the script would read differently.
    #[test]
    fn numbers() {
        let mut packer = Packer::default();
        packer.put(0);
        packer.put(300);
        packer.put_signed(5, 3);
        packer.put_signed(3, 5);
        packer.put_signed(0, MOST);
        assert_eq!(packer.bytes[..5], [0, 0xac, 0x02, 4, 5]);
        assert_eq!(packer.bytes[5..], [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x0f]);
    }
}
