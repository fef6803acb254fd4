//! Faults in few bytes: most are close to the one before, so a fault takes some 15 bytes instead of 100. Ten million
//! faults fit in memory, and more in a file.
//!
//! A chunk is unpacked by itself. Every number is a difference from the fault before, in LEB128: 7 bits a byte, lowest
//! first. The fields that symbols fill in later (code, data) are not kept.

use crate::{Access, BlockId, Fault, Id, Kind, MappingId, Mode, StackId, Subject, ThreadId};

/// Limit on the bytes of one fault.
pub const MAX_SIZE: usize = 2 + 9 * 10;

/// The values that differences are taken from.
#[derive(Clone, Copy, Debug, Default)]
struct Previous {
    number: u64,
    time: u64,
    address: u64,
    ip: u64,
    thread: u64,
    mapping: u64,
    stack: u64,
    block: u64,
}

/// Packs faults, and begins a chunk when asked.
#[derive(Debug, Default)]
pub struct Packer(Previous);

/// Unpacks one chunk.
#[derive(Debug, Default)]
pub struct Unpacker(Previous);

const ACCESSES: [Access; 4] = [Access::Unknown, Access::Read, Access::Write, Access::Execute];

impl Packer {
    /// Appends a fault.
    pub fn pack(&mut self, fault: &Fault, out: &mut Vec<u8>) {
        let kind = Kind::ALL.iter().position(|&kind| kind == fault.kind).unwrap_or(Kind::ALL.len() - 1) as u8;
        let access = ACCESSES.iter().position(|&access| access == fault.access).unwrap_or(0) as u8;
        out.push(kind << 4 | access << 2 | u8::from(fault.guessed) << 1 | u8::from(fault.mode == Mode::Kernel));
        out.push(fault.page_shift.map_or(0, |shift| shift + 1) << 1 | u8::from(fault.subject == Subject::Data));
        let now = Previous {
            number: fault.number,
            time: fault.time,
            address: fault.address,
            ip: fault.ip,
            thread: fault.thread.index() as u64,
            mapping: fault.mapping.map_or(0, |id| id.index() as u64 + 1),
            stack: fault.stack.map_or(0, |id| id.index() as u64 + 1),
            block: fault.block.map_or(0, |id| id.index() as u64 + 1),
        };
        let before = std::mem::replace(&mut self.0, now);
        put(out, fault.service.map_or(0, |service| u64::from(service) + 1));
        for (now, before) in now.fields().into_iter().zip(before.fields()) {
            put_difference(out, now, before);
        }
    }

    /// Begins another chunk.
    pub fn restart(&mut self) {
        self.0 = Previous::default();
    }
}

impl Unpacker {
    /// Takes a fault off the front; `None` at the end, or where a packer did not write the bytes.
    pub fn next(&mut self, bytes: &mut &[u8]) -> Option<Fault> {
        let (&[first, second], rest) = bytes.split_first_chunk()?;
        *bytes = rest;
        let service = take(bytes)?;
        let before = self.0.fields();
        let mut fields = [0; 8];
        for (field, before) in fields.iter_mut().zip(before) {
            *field = take_difference(bytes, before)?;
        }
        let [number, time, address, ip, thread, mapping, stack, block] = fields;
        self.0 = Previous { number, time, address, ip, thread, mapping, stack, block };
        let row = |field: u64| field.checked_sub(1).map(|index| index as usize);
        Some(Fault {
            time,
            service: service.checked_sub(1).and_then(|service| u32::try_from(service).ok()),
            page_shift: (second >> 1).checked_sub(1),
            subject: if second & 1 == 0 { Subject::Code } else { Subject::Data },
            access: ACCESSES[usize::from(first >> 2 & 3)],
            kind: *Kind::ALL.get(usize::from(first >> 4))?,
            guessed: first & 2 != 0,
            mode: if first & 1 == 0 { Mode::User } else { Mode::Kernel },
            mapping: row(mapping).map(MappingId::from_index),
            block: row(block).map(BlockId::from_index),
            stack: row(stack).map(StackId::from_index),
            ..Fault::new(number, ThreadId::from_index(usize::try_from(thread).ok()?), address, ip)
        })
    }
}

impl Previous {
    fn fields(&self) -> [u64; 8] {
        [self.number, self.time, self.address, self.ip, self.thread, self.mapping, self.stack, self.block]
    }
}

/// Seven bits a byte, lowest first; the top bit says that more follow.
fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn take(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

/// The difference, with its sign in the lowest bit, so that small ones of either sign are short.
fn put_difference(out: &mut Vec<u8>, now: u64, before: u64) {
    let difference = now.wrapping_sub(before) as i64;
    put(out, (difference << 1 ^ difference >> 63) as u64);
}

fn take_difference(bytes: &mut &[u8], before: u64) -> Option<u64> {
    let value = take(bytes)?;
    Some(before.wrapping_add(value >> 1 ^ (value & 1).wrapping_neg()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(number: u64) -> Fault {
        Fault {
            time: number * 1000,
            service: Some(700),
            page_shift: Some(12),
            kind: Kind::Anonymous,
            mapping: Some(MappingId::from_index(5)),
            ..Fault::new(
                number,
                ThreadId::from_index(0),
                0x7000_0000_0000 + number.wrapping_mul(4096),
                0x5555_0000_1234,
            )
        }
    }

    /// Catches a field that is not kept, extreme values that change, and faults that exceed the limit.
    #[test]
    fn what_goes_in_comes_out() {
        let strange = Fault {
            number: u64::MAX,
            time: 0,
            service: None,
            address: u64::MAX,
            ip: 0,
            page_shift: Some(63),
            subject: Subject::Code,
            access: Access::Execute,
            kind: Kind::Unknown,
            guessed: false,
            mode: Mode::Kernel,
            mapping: None,
            stack: Some(StackId::from_index(9)),
            block: Some(BlockId::from_index(3)),
            thread: ThreadId::from_index(77),
            ..fault(0)
        };
        let faults = [fault(1), fault(2), strange, Fault { page_shift: None, service: Some(u32::MAX), ..fault(3) }];
        let (mut packer, mut bytes) = (Packer::default(), Vec::new());
        for fault in &faults {
            let before = bytes.len();
            packer.pack(fault, &mut bytes);
            assert!(bytes.len() - before <= MAX_SIZE);
        }
        let (mut unpacker, mut rest) = (Unpacker::default(), &bytes[..]);
        for fault in &faults {
            assert_eq!(unpacker.next(&mut rest), Some(*fault));
        }
        assert_eq!(unpacker.next(&mut rest), None);
        // Bytes that are cut anywhere.
        for end in 0..bytes.len() {
            let (mut unpacker, mut rest) = (Unpacker::default(), &bytes[..end]);
            while unpacker.next(&mut rest).is_some() {}
        }
    }

    /// Catches a layout that lets ten million faults no longer fit in 500 MiB.
    #[test]
    fn ordinary_faults_are_short() {
        let (mut packer, mut bytes) = (Packer::default(), Vec::new());
        (1..=1000).for_each(|number| packer.pack(&fault(number), &mut bytes));
        assert!(bytes.len() < 16 * 1000, "{}", bytes.len());
    }
}
