//! How an x86 instruction accesses its memory operand.

use iced_x86::{Decoder, DecoderOptions, InstructionInfoFactory, OpAccess};

/// A kind of access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It is only read.
    Read,
    /// It is written, and perhaps read: the page must be writable.
    Write,
}

/// The mode of the processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bits {
    /// A 32-bit program.
    Bits32,
    /// A 64-bit program.
    Bits64,
}

impl Bits {
    /// The decoder's value.
    pub(crate) const fn number(self) -> u32 {
        match self {
            Self::Bits32 => 32,
            Self::Bits64 => 64,
        }
    }
}

/// The access of the instruction at the start of `code`; `None` if it accesses no memory, reads one operand and writes
/// another, or cannot be decoded.
pub fn access(code: &[u8], bits: Bits) -> Option<Access> {
    let mut decoder = Decoder::new(bits.number(), code, DecoderOptions::NONE);
    let instruction = decoder.decode();
    if instruction.is_invalid() {
        return None;
    }
    let mut factory = InstructionInfoFactory::new();
    let mut result = None;
    for memory in factory.info(&instruction).used_memory() {
        let one = match memory.access() {
            OpAccess::Read | OpAccess::CondRead => Access::Read,
            OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite => Access::Write,
            _ => continue,
        };
        if result.is_some_and(|result| result != one) {
            return None;
        }
        result = Some(one);
    }
    result
}
