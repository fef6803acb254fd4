//! The text of `/proc/PID/maps`.

use crate::FileId;

/// One line of it: `55cef134c000-55cef1372000 r--p 00000000 fe:00 247493    /usr/bin/ls`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapsLine<'t> {
    /// The first address.
    pub start: u64,
    /// The address behind the last one.
    pub end: u64,
    /// `rwxp`, as printed.
    pub flags: &'t [u8],
    /// Position in the file.
    pub offset: u64,
    /// The device of the file, as (major, minor).
    pub device: (u32, u32),
    /// The inode, 0 without a file.
    pub inode: u64,
    /// The path or name; empty for anonymous memory.
    pub path: &'t [u8],
}

impl MapsLine<'_> {
    /// The file that is mapped, if there is one.
    pub fn file(&self) -> Option<FileId> {
        let (major, minor) = self.device;
        (self.inode != 0).then_some(FileId { major, minor, inode: self.inode })
    }
}

/// The valid lines; others are skipped.
pub fn parse_maps(text: &[u8]) -> impl Iterator<Item = MapsLine<'_>> {
    text.split(|&byte| byte == b'\n').filter_map(parse_line)
}

fn parse_line(line: &[u8]) -> Option<MapsLine<'_>> {
    let mut rest = line;
    let range = word(&mut rest)?;
    let dash = range.iter().position(|&byte| byte == b'-')?;
    let flags = word(&mut rest).filter(|flags| flags.len() >= 4)?;
    let offset = number(word(&mut rest)?, 16)?;
    let device = word(&mut rest)?;
    let colon = device.iter().position(|&byte| byte == b':')?;
    let half = |digits| number(digits, 16).and_then(|number| u32::try_from(number).ok());
    let device = (half(&device[..colon])?, half(&device[colon + 1..])?);
    let inode = number(word(&mut rest)?, 10)?;
    let start = rest.iter().position(|&byte| byte != b' ').unwrap_or(rest.len());
    let (start_address, end_address) = (number(&range[..dash], 16)?, number(&range[dash + 1..], 16)?);
    (start_address < end_address).then_some(MapsLine {
        start: start_address,
        end: end_address,
        flags,
        offset,
        device,
        inode,
        path: &rest[start..],
    })
}

fn word<'t>(rest: &mut &'t [u8]) -> Option<&'t [u8]> {
    let end = rest.iter().position(|&byte| byte == b' ').unwrap_or(rest.len());
    let (word, after) = rest.split_at(end);
    *rest = after.get(1..).unwrap_or_default();
    (!word.is_empty()).then_some(word)
}

fn number(digits: &[u8], radix: u32) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, radix).ok()
}
