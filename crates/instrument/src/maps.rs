//! Finds the target in `/proc/self/maps`, which is read in pieces.

use core::ffi::c_int;

use crate::record::Header;
use crate::sys::call;

/// The target's code.
#[derive(Clone, Copy)]
pub struct Mapping {
    pub start: usize,
    pub end: usize,
    /// File offset of the first byte.
    pub offset: u64,
}

/// The result of a search.
#[derive(Clone, Copy, Default)]
pub struct Found {
    /// From the first to the last mapping of its code.
    pub target: Option<Mapping>,
    /// The mapping of the address, if it is not the target's.
    pub other: Option<(usize, usize)>,
}

/// Bytes of a line that are examined, so only the beginning of a long path. Signal handlers have small stacks.
const LINE: usize = 1024;

/// Looks for the target, and for the mapping of an address.
pub fn find(header: &Header, address: Option<usize>) -> Result<Found, c_int> {
    let at = libc::AT_FDCWD as usize;
    let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as usize;
    let file = call(libc::SYS_openat, [at, c"/proc/self/maps".as_ptr().expose_provenance(), flags])?;
    let mut found = Found::default();
    let (mut buffer, mut filled, mut rest_of_line) = ([0u8; LINE], 0, false);
    let result = loop {
        let free = &mut buffer[filled..];
        match call(libc::SYS_read, [file, free.as_mut_ptr().expose_provenance(), free.len()]) {
            Ok(0) => break Ok(found),
            Ok(read) => filled += read,
            Err(libc::EINTR) => continue,
            Err(error) => break Err(error),
        }
        let mut done = 0;
        while let Some(length) = buffer[done..filled].iter().position(|&byte| byte == b'\n') {
            if !core::mem::take(&mut rest_of_line) {
                take(&buffer[done..done + length], header, address, &mut found);
            }
            done += length + 1;
        }
        if done == 0 && filled == LINE {
            if !core::mem::replace(&mut rest_of_line, true) {
                take(&buffer, header, address, &mut found);
            }
            done = LINE;
        }
        buffer.copy_within(done..filled, 0);
        filled -= done;
    };
    let _ = call(libc::SYS_close, [file]);
    result
}

fn take(line: &[u8], header: &Header, address: Option<usize>, found: &mut Found) {
    let Some(line) = Line::parse(line) else { return };
    let (start, end, offset) = (line.start, line.end, line.offset);
    if line.code && line.is(header) {
        found.target.get_or_insert(Mapping { start, end, offset }).end = end;
    } else if address.is_some_and(|address| (start..end).contains(&address)) {
        found.other = Some((start, end));
    }
}

/// `7f0-7f8 r-xp 1000 fe:01 123   /path`, with hexadecimal numbers except for the inode.
struct Line<'l> {
    start: usize,
    end: usize,
    code: bool,
    offset: u64,
    device: [u32; 2],
    inode: u64,
    path: &'l [u8],
}

impl<'l> Line<'l> {
    fn parse(line: &'l [u8]) -> Option<Self> {
        let mut rest = line;
        let mut field = |end: u8| {
            let length = rest.iter().position(|&byte| byte == end).unwrap_or(rest.len());
            let field = &rest[..length];
            rest = rest.get(length + 1..).unwrap_or_default();
            field
        };
        let start = number(field(b'-'), 16)? as usize;
        let end = number(field(b' '), 16)? as usize;
        let code = field(b' ').get(2) == Some(&b'x');
        let offset = number(field(b' '), 16)?;
        let device = [number(field(b':'), 16)? as u32, number(field(b' '), 16)? as u32];
        let inode = number(field(b' '), 10)?;
        let path = rest.iter().position(|&byte| byte != b' ').map_or(&[][..], |spaces| &rest[spaces..]);
        Some(Self { start, end, code, offset, device, inode, path })
    }

    /// Some file systems report another device here than in `stat`: then the path decides.
    fn is(&self, header: &Header) -> bool {
        let path = header.path.get(..header.path_length as usize);
        self.inode == header.inode && (self.device == header.device || Some(self.path) == path)
    }
}

fn number(digits: &[u8], radix: u32) -> Option<u64> {
    u64::from_str_radix(core::str::from_utf8(digits).ok()?, radix).ok()
}
