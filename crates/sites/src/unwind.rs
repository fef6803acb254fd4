//! From an instruction to its caller, through each object's exception tables (`.eh_frame_hdr`, `.eh_frame`), on the
//! processor of this build. So code without frame pointers is unwound exactly.
//!
//! A process unwinds its own stack with it, in the middle of malloc and of signal handlers: nothing here allocates,
//! takes a lock or panics, and everything is read through slices and a function.
//!
//! It knows only the rules of DWARF that describe nearly all code: a frame address that is the stack pointer or the
//! frame pointer plus a number, the return address below it (on Arm also in the link register), and the caller's frame
//! pointer unchanged or stored. For any other rule ([`Tables::row`] is `None`) the stack ends there.

/// The registers of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The instruction; for callers, the return address.
    pub ip: u64,
    /// The stack pointer.
    pub sp: u64,
    /// The frame pointer: rbp, x29.
    pub bp: u64,
    /// The link register x30 where a signal has interrupted the code; otherwise 0, as on processors without one.
    pub link: u64,
}

/// How to find the caller's frame at one instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Whether the frame address is the frame pointer plus the offset, instead of the stack pointer.
    by_bp: bool,
    offset: i32,
    /// The offset of the caller's saved frame pointer from the frame address; `None` if it is unchanged.
    saved_bp: Option<i32>,
    back: Back,
}

/// The place of the return address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Back {
    /// This number of words below the frame address.
    Below(u8),
    /// Next to the caller's saved frame pointer.
    BehindPointer,
    /// In the link register.
    InLink,
}

/// The byte for the place of the return address in a packed row, for the last two.
const BEHIND_POINTER: u8 = u8::MAX;
const IN_LINK: u8 = 0;

impl Row {
    /// A row in 64 bits, never 0.
    pub fn pack(self) -> u64 {
        let low = self.offset.cast_unsigned() as u64;
        let saved = self.saved_bp.map_or(0, |offset| (offset as i16).cast_unsigned() as u64);
        let back = match self.back {
            Back::Below(words) => words,
            Back::BehindPointer => BEHIND_POINTER,
            Back::InLink => IN_LINK,
        };
        let bits = 1 | u64::from(self.by_bp) << 1 | u64::from(self.saved_bp.is_some()) << 2;
        bits | saved << 8 | u64::from(back) << 24 | low << 32
    }

    /// The row of [`pack`](Self::pack).
    pub fn unpack(word: u64) -> Self {
        Self {
            by_bp: word & 2 != 0,
            offset: ((word >> 32) as u32).cast_signed(),
            saved_bp: (word & 4 != 0).then_some(i32::from(((word >> 8) as u16).cast_signed())),
            back: match (word >> 24) as u8 {
                IN_LINK => Back::InLink,
                BEHIND_POINTER => Back::BehindPointer,
                words => Back::Below(words),
            },
        }
    }

    /// The caller's frame; `read` reads a word of the stack. `None` where that fails, or the frame is implausible.
    pub fn caller(self, frame: Frame, read: &mut dyn FnMut(u64) -> Option<u64>) -> Option<Frame> {
        let base = if self.by_bp { frame.bp } else { frame.sp };
        let address = base.wrapping_add_signed(i64::from(self.offset));
        // Stacks grow down, which guarantees an end. Code that has stored nothing yet may have its caller's stack
        // pointer; only the innermost frame has a link register.
        if address < frame.sp || (address == frame.sp && self.back != Back::InLink) {
            return None;
        }
        let stored = |offset: i32| address.wrapping_add_signed(i64::from(offset));
        let bp = match self.saved_bp {
            Some(offset) => read(stored(offset))?,
            None => frame.bp,
        };
        let back = match self.back {
            Back::Below(words) => read(address.wrapping_sub(8 * u64::from(words)))?,
            Back::BehindPointer => read(stored(self.saved_bp? + 8))?,
            Back::InLink => frame.link,
        };
        Some(Frame { ip: back & ADDRESS, sp: address, bp, link: 0 })
    }
}

/// The caller's frame in code with frame pointers.
pub fn by_frame_pointer(frame: Frame, read: &mut dyn FnMut(u64) -> Option<u64>) -> Option<Frame> {
    Row { by_bp: true, offset: 16, saved_bp: Some(-16), back: Back::Below(1) }.caller(frame, read)
}

/// The tables of one object.
#[derive(Clone, Copy, Debug)]
pub struct Tables<'a> {
    /// The address of `bytes`.
    pub start: u64,
    /// The mapping with the tables: at least `.eh_frame_hdr` and `.eh_frame`.
    pub bytes: &'a [u8],
    /// The address of `.eh_frame_hdr`.
    pub header: u64,
}

/// `DW_EH_PE_pcrel | DW_EH_PE_sdata4`
const PCREL_SDATA4: u8 = 0x1b;
/// `DW_EH_PE_udata4`
const UDATA4: u8 = 0x03;
/// `DW_EH_PE_datarel | DW_EH_PE_sdata4`
const DATAREL_SDATA4: u8 = 0x3b;

impl<'a> Tables<'a> {
    fn at(&self, address: u64) -> Option<Bytes<'a>> {
        let start = usize::try_from(address.checked_sub(self.start)?).ok()?;
        Some(Bytes { bytes: self.bytes.get(start..)? })
    }

    /// How to find the caller of the code at `ip`.
    pub fn row(&self, ip: u64) -> Option<Row> {
        let (first, description) = self.search(ip)?;
        let mut entry = self.at(description)?;
        let length = entry.u32()?;
        // 0 ends the tables; the largest value announces a longer length.
        if length == 0 || length == u32::MAX {
            return None;
        }
        let mut entry = Bytes { bytes: entry.bytes.get(..length as usize)? };
        let back = entry.u32()?;
        let common = Common::read(self.at(description.checked_add(4)?.checked_sub(u64::from(back))?)?)?;
        entry.skip(common.pointer_bytes)?;
        let range = entry.pointer(common.pointer_bytes)?;
        if ip.wrapping_sub(first) >= range {
            return None;
        }
        if common.augmented {
            let bytes = entry.uleb()?;
            entry.skip(usize::try_from(bytes).ok()?)?;
        }
        let mut state = State { location: first, ..State::default() };
        // The common rules apply at each instruction.
        state.run(common.instructions, &common, u64::MAX)?;
        state.initial = state.now;
        state.location = first;
        state.run(entry, &common, ip)?;
        state.now.row()
    }

    /// The function that contains `ip`: its first address and its entry in `.eh_frame`, by binary search.
    fn search(&self, ip: u64) -> Option<(u64, u64)> {
        let mut header = self.at(self.header)?;
        let [version, pointer, count, table] = header.array()?;
        if (version, pointer, count, table) != (1, PCREL_SDATA4, UDATA4, DATAREL_SDATA4) {
            return None;
        }
        header.skip(4)?;
        let count = header.u32()? as usize;
        let rows = header.bytes.get(..count.checked_mul(8)?)?.as_chunks::<8>().0;
        let address = |bytes: &[u8]| {
            let offset = i32::from_ne_bytes(*bytes.first_chunk()?);
            Some(self.header.wrapping_add_signed(i64::from(offset)))
        };
        let behind = rows.partition_point(|row| address(row).is_some_and(|first| first <= ip));
        let row = rows.get(behind.checked_sub(1)?)?;
        Some((address(row)?, address(&row[4..])?))
    }
}

/// The common part of the entries of several functions (a CIE).
struct Common<'a> {
    code_factor: u64,
    data_factor: i64,
    pointer_bytes: usize,
    augmented: bool,
    instructions: Bytes<'a>,
}

impl<'a> Common<'a> {
    fn read(mut bytes: Bytes<'a>) -> Option<Self> {
        let length = bytes.u32()?;
        if length == u32::MAX {
            return None;
        }
        let mut bytes = Bytes { bytes: bytes.bytes.get(..length as usize)? };
        if bytes.u32()? != 0 {
            return None;
        }
        let version = bytes.u8()?;
        let end = bytes.bytes.iter().position(|&byte| byte == 0)?;
        let augmentation = bytes.bytes.get(..end)?;
        bytes.skip(end + 1)?;
        let code_factor = bytes.uleb()?;
        let data_factor = bytes.sleb()?;
        let return_register = if version == 1 { u64::from(bytes.u8()?) } else { bytes.uleb()? };
        if return_register != u64::from(RETURN_ADDRESS) || !matches!(version, 1 | 3) {
            return None;
        }
        let mut pointer = 0;
        let augmented = augmentation.first() == Some(&b'z');
        if augmented {
            let length = usize::try_from(bytes.uleb()?).ok()?;
            let mut data = Bytes { bytes: bytes.bytes.get(..length)? };
            bytes.skip(length)?;
            for letter in &augmentation[1..] {
                match letter {
                    b'R' => pointer = data.u8()?,
                    b'L' => data.skip(1)?,
                    b'P' => {
                        let encoding = data.u8()?;
                        data.skip(pointer_bytes(encoding)?)?;
                    }
                    b'S' | b'B' => {}
                    _ => return None,
                }
            }
        } else if !augmentation.is_empty() {
            return None;
        }
        let pointer_bytes = pointer_bytes(pointer)?;
        Some(Self { code_factor, data_factor, pointer_bytes, augmented, instructions: bytes })
    }
}

/// The size of a pointer in an encoding of DWARF's exception tables.
fn pointer_bytes(encoding: u8) -> Option<usize> {
    match encoding & 0x0f {
        0x00 | 0x04 | 0x0c => Some(8),
        0x03 | 0x0b => Some(4),
        0x02 | 0x0a => Some(2),
        _ => None,
    }
}

/// DWARF's numbers of the frame pointer, the stack pointer and the return address, and the bits of an address.
#[cfg(not(target_arch = "aarch64"))]
const REGISTERS: (u64, u64, u8, u64) = (6, 7, 16, u64::MAX);
/// Return addresses may be signed in the higher bits.
#[cfg(target_arch = "aarch64")]
const REGISTERS: (u64, u64, u8, u64) = (29, 31, 30, (1 << 48) - 1);

const POINTER: u64 = REGISTERS.0;
const STACK: u64 = REGISTERS.1;
const RETURN_ADDRESS: u8 = REGISTERS.2;
const ADDRESS: u64 = REGISTERS.3;
/// Whether a call leaves the return address in a register.
const HAS_LINK: bool = cfg!(target_arch = "aarch64");

/// The current rules.
#[derive(Clone, Copy, Default)]
struct Rules {
    /// The register and the offset of the frame address; `None` for any other rule.
    address: Option<(u64, i64)>,
    bp: Saved,
    /// The rule for the return address.
    back: Saved,
}

/// The rule for a register of the caller.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Saved {
    #[default]
    Unchanged,
    /// Saved at this offset from the frame address.
    At(i64),
    /// Another rule.
    Otherwise,
}

impl Rules {
    fn row(&self) -> Option<Row> {
        let (register, offset) = self.address?;
        let saved_bp = match self.bp {
            Saved::Unchanged => None,
            Saved::At(offset) => Some(i32::from(i16::try_from(offset).ok()?)),
            Saved::Otherwise => return None,
        };
        let back = match self.back {
            Saved::Unchanged if HAS_LINK => Back::InLink,
            Saved::At(offset) if offset % 8 == 0 && (1..i64::from(BEHIND_POINTER)).contains(&(offset / -8)) => {
                Back::Below((offset / -8) as u8)
            }
            Saved::At(offset) if saved_bp.is_some_and(|bp| offset == i64::from(bp) + 8) => Back::BehindPointer,
            _ => return None,
        };
        matches!(register, POINTER | STACK).then_some(())?;
        Some(Row { by_bp: register == POINTER, offset: i32::try_from(offset).ok()?, saved_bp, back })
    }

    fn set(&mut self, register: u64, saved: Saved) {
        if register == POINTER {
            self.bp = saved;
        } else if register == u64::from(RETURN_ADDRESS) {
            self.back = saved;
        }
    }

    fn of(&self, register: u64) -> Saved {
        if register == POINTER { self.bp } else { self.back }
    }
}

/// Limit on the rules that are remembered at a time.
const REMEMBERED: usize = 8;

/// The state of a program of rules.
#[derive(Default)]
struct State {
    location: u64,
    now: Rules,
    initial: Rules,
    remembered: [Rules; REMEMBERED],
    depth: usize,
}

impl State {
    /// Runs instructions up to the first one that is for code behind `ip`. `None` for an unknown instruction.
    fn run(&mut self, mut program: Bytes<'_>, common: &Common<'_>, ip: u64) -> Option<()> {
        while let Some(instruction) = program.u8() {
            let low = u64::from(instruction & 0x3f);
            let advance = match instruction >> 6 {
                1 => Some(low),
                2 => {
                    let offset = scaled(program.uleb()?, common)?;
                    self.now.set(low, Saved::At(offset));
                    None
                }
                3 => {
                    self.now.set(low, self.initial.of(low));
                    None
                }
                _ => self.extended(instruction, &mut program, common)?,
            };
            if let Some(advance) = advance {
                let location = self.location.wrapping_add(advance.wrapping_mul(common.code_factor));
                if location > ip {
                    return Some(());
                }
                self.location = location;
            }
        }
        Some(())
    }

    /// An instruction that takes a whole byte; returns how far the location advances.
    fn extended(&mut self, instruction: u8, program: &mut Bytes<'_>, common: &Common<'_>) -> Option<Option<u64>> {
        match instruction {
            0x00 => {}
            0x02 => return Some(Some(u64::from(program.u8()?))),
            0x03 => return Some(Some(u64::from(u16::from_ne_bytes(program.array()?)))),
            0x04 => return Some(Some(u64::from(program.u32()?))),
            // offset_extended, and with a signed factor
            0x05 | 0x11 => {
                let register = program.uleb()?;
                let offset = if instruction == 0x05 {
                    scaled(program.uleb()?, common)?
                } else {
                    program.sleb()?.checked_mul(common.data_factor)?
                };
                self.now.set(register, Saved::At(offset));
            }
            // restore_extended, undefined, same_value
            0x06 => {
                let register = program.uleb()?;
                self.now.set(register, self.initial.of(register));
            }
            0x07 => self.now.set(program.uleb()?, Saved::Otherwise),
            0x08 => self.now.set(program.uleb()?, Saved::Unchanged),
            // register, val_offset, val_offset_sf
            0x09 | 0x14 | 0x15 => {
                self.now.set(program.uleb()?, Saved::Otherwise);
                program.uleb()?;
            }
            // remember_state, restore_state
            0x0a => {
                *self.remembered.get_mut(self.depth)? = self.now;
                self.depth += 1;
            }
            0x0b => {
                self.depth = self.depth.checked_sub(1)?;
                self.now = *self.remembered.get(self.depth)?;
            }
            // def_cfa, and with a signed factor
            0x0c => self.now.address = Some((program.uleb()?, i64::try_from(program.uleb()?).ok()?)),
            0x12 => {
                self.now.address = Some((program.uleb()?, program.sleb()?.checked_mul(common.data_factor)?));
            }
            // def_cfa_register, def_cfa_offset, and with a signed factor
            0x0d => self.now.address = Some((program.uleb()?, self.now.address?.1)),
            0x0e => self.now.address = Some((self.now.address?.0, i64::try_from(program.uleb()?).ok()?)),
            0x13 => {
                let offset = program.sleb()?.checked_mul(common.data_factor)?;
                self.now.address = Some((self.now.address?.0, offset));
            }
            // def_cfa_expression
            0x0f => {
                program.block()?;
                self.now.address = None;
            }
            // expression, val_expression
            0x10 | 0x16 => {
                self.now.set(program.uleb()?, Saved::Otherwise);
                program.block()?;
            }
            // AARCH64_negate_ra_state: signed return addresses
            0x2d if HAS_LINK => {}
            // GNU_args_size
            0x2e => {
                program.uleb()?;
            }
            _ => return None,
        }
        Some(None)
    }
}

fn scaled(offset: u64, common: &Common<'_>) -> Option<i64> {
    i64::try_from(offset).ok()?.checked_mul(common.data_factor)
}

/// Bytes that are read from the front.
#[derive(Clone, Copy)]
struct Bytes<'a> {
    bytes: &'a [u8],
}

impl Bytes<'_> {
    fn skip(&mut self, count: usize) -> Option<()> {
        self.bytes = self.bytes.get(count..)?;
        Some(())
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.bytes.split_first_chunk()?;
        self.bytes = rest;
        Some(*first)
    }

    fn u8(&mut self) -> Option<u8> {
        self.array().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_ne_bytes)
    }

    /// The bytes of a pointer, as a number.
    fn pointer(&mut self, bytes: usize) -> Option<u64> {
        match bytes {
            8 => self.array().map(u64::from_ne_bytes),
            4 => self.u32().map(u64::from),
            _ => self.array().map(|bytes| u64::from(u16::from_ne_bytes(bytes))),
        }
    }

    fn uleb(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn sleb(&mut self) -> Option<i64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                let unused = 64u32.saturating_sub(shift + 7);
                return Some((value << unused).cast_signed() >> unused);
            }
        }
        None
    }

    /// Skips a length and as many bytes.
    fn block(&mut self) -> Option<()> {
        let length = self.uleb()?;
        self.skip(usize::try_from(length).ok()?)
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use std::vec;
    use std::vec::Vec;

    /// A table of two functions at 0x1000 (`push rbp; mov rbp, rsp` at its second and fifth byte, and back at 0x20) and
    /// 0x1100 (whose frame address is an expression), at 0x2000.
    fn table() -> Vec<u8> {
        let mut bytes = vec![1, PCREL_SDATA4, UDATA4, DATAREL_SDATA4, 0, 0, 0, 0];
        let start = 0x2000i32;
        let common_at = 0x2040i32;
        let common: &[u8] = &[0, 0, 0, 0, 1, b'z', b'R', 0, 1, 0x78, 16, 1, PCREL_SDATA4, 0x0c, 7, 8, 0x90, 1, 0, 0];
        let functions: [(i32, &[u8]); 2] = [
            (0x1000, &[0x41, 0x0e, 16, 0x86, 2, 0x43, 0x0d, 6, 0x02, 0x1c, 0x0c, 7, 8, 0xc6]),
            (0x1100, &[0x0f, 2, 0x77, 8]),
        ];
        bytes.extend(2u32.to_ne_bytes());
        let mut entries = Vec::new();
        entries.extend((common.len() as u32).to_ne_bytes());
        entries.extend(common);
        for (first, program) in functions {
            let at = common_at + entries.len() as i32;
            bytes.extend((first - start).to_ne_bytes());
            bytes.extend((at - start).to_ne_bytes());
            entries.extend((13 + program.len() as u32).to_ne_bytes());
            entries.extend((at + 4 - common_at).to_ne_bytes());
            entries.extend((first - (at + 8)).to_ne_bytes());
            entries.extend(0x80u32.to_ne_bytes());
            entries.push(0);
            entries.extend(program);
        }
        bytes.resize((common_at - start) as usize, 0);
        bytes.extend(entries);
        bytes
    }

    fn row(bytes: &[u8], ip: u64) -> Option<Row> {
        Tables { start: 0x2000, bytes, header: 0x2000 }.row(ip)
    }

    /// Catches rules that apply an instruction too early or too late, and functions that are confused with their
    /// neighbours.
    #[test]
    fn rows() {
        let bytes = table();
        let sp = |offset, saved_bp| Some(Row { by_bp: false, offset, saved_bp, back: Back::Below(1) });
        assert_eq!(row(&bytes, 0x1000), sp(8, None));
        assert_eq!(row(&bytes, 0x1001), sp(16, Some(-16)));
        assert_eq!(
            row(&bytes, 0x1004),
            Some(Row { by_bp: true, offset: 16, saved_bp: Some(-16), back: Back::Below(1) })
        );
        assert_eq!(
            row(&bytes, 0x101f),
            Some(Row { by_bp: true, offset: 16, saved_bp: Some(-16), back: Back::Below(1) })
        );
        assert_eq!(row(&bytes, 0x1020), sp(8, None));
        assert_eq!(row(&bytes, 0x107f), sp(8, None));
        for elsewhere in [0, 0xfff, 0x1080, 0x1100, 0x1180, u64::MAX] {
            assert_eq!(row(&bytes, elsewhere), None, "{elsewhere:#x}");
        }
    }

    /// Catches a panic, or an endless loop, on bytes that are no table.
    #[test]
    fn garbage() {
        let bytes = table();
        for end in 0..bytes.len() {
            let _ = row(&bytes[..end], 0x1004);
        }
        for at in 0..bytes.len() {
            for value in [0, 1, 0x0b, 0x7f, 0x80, 0xff] {
                let mut changed = bytes.clone();
                changed[at] = value;
                for ip in [0x1000, 0x1004, 0x1030, 0x1100] {
                    let _ = row(&changed, ip);
                }
            }
        }
    }

    /// Catches a row that changes when it is packed, callers that are not found, and loops.
    #[test]
    fn callers() {
        for by_bp in [true, false] {
            for offset in [8, 16, i32::MAX, -8] {
                for saved_bp in [None, Some(-16), Some(0), Some(-32768), Some(32767)] {
                    for back in [Back::Below(1), Back::Below(254), Back::BehindPointer, Back::InLink] {
                        let row = Row { by_bp, offset, saved_bp, back };
                        assert_eq!(Row::unpack(row.pack()), row);
                    }
                }
            }
        }
        let stack = |address: u64| (0x7000..0x8000).contains(&address).then_some(address + 1);
        let frame = Frame { ip: 1, sp: 0x7000, bp: 0x7100, link: 0 };
        let row = Row { by_bp: false, offset: 32, saved_bp: Some(-16), back: Back::Below(1) };
        assert_eq!(row.caller(frame, &mut { stack }), Some(Frame { ip: 0x7019, sp: 0x7020, bp: 0x7011, link: 0 }));
        assert_eq!(
            by_frame_pointer(frame, &mut { stack }),
            Some(Frame { ip: 0x7109, sp: 0x7110, bp: 0x7101, link: 0 })
        );
        let link = Row { offset: 0, saved_bp: None, back: Back::InLink, ..row };
        let leaf = Frame { link: 0x1234, ..frame };
        assert_eq!(link.caller(leaf, &mut { stack }), Some(Frame { ip: 0x1234, link: 0, ..leaf }));
        let behind = Row { saved_bp: Some(-32), back: Back::BehindPointer, ..row };
        assert_eq!(behind.caller(frame, &mut { stack }).map(|caller| (caller.bp, caller.ip)), Some((0x7001, 0x7009)));
        for bp in [0, 0x6fe8, 0x6ff0, 0x8000, u64::MAX] {
            assert_eq!(by_frame_pointer(Frame { bp, ..frame }, &mut { stack }), None, "{bp:#x}");
        }
    }
}
