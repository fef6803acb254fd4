//! The mappings of this process: where they are and how large their pages are (PROCMAP_QUERY, Linux 6.11, else
//! /proc/self/smaps).

use crate::kernel;
use neap_sys::lines::{self, Lines};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;

/// A mapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: usize,
    /// Address behind the last one.
    pub end: usize,
    /// Bytes of a page; more than an OS page only for hugetlb (and device memory).
    pub page_size: usize,
    /// Bytes mapped by huge entries, except hugetlb; `None` if the source does not say.
    pub huge: Option<usize>,
}

/// Calls `each` for the mappings that have a part of `start..end`, in order.
///
/// # Errors
/// Neither source can be read.
pub fn each(start: usize, end: usize, mut each: impl FnMut(Mapping)) -> Result<(), Errno> {
    let mut at = start;
    let maps = open(c"/proc/self/maps")?;
    while at < end {
        match query(&maps, at) {
            Ok(Some(mapping)) if mapping.start < end => {
                each(mapping);
                at = mapping.end;
            }
            Ok(_) => return Ok(()),
            Err(_) if at == start => return read(start, end, each),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Bytes of a page of the mapping at an address; `None` if there is none, or the kernel does not say.
pub fn page_size_at(address: *const u8) -> Option<usize> {
    let mut found = None;
    each(address.addr(), address.addr() + 1, |mapping| found = Some(mapping.page_size)).ok()?;
    found
}

fn open(path: &core::ffi::CStr) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// struct procmap_query of include/uapi/linux/fs.h.
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    vma_flags: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    device: [u32; 2],
    name_size: u32,
    build_id_size: u32,
    name: u64,
    build_id: u64,
}

/// `_IOWR('f', 17, struct procmap_query)`.
const PROCMAP_QUERY: usize = 3 << 30 | size_of::<Query>() << 16 | (b'f' as usize) << 8 | 17;
const COVERING_OR_NEXT: u64 = 0x10;

/// The mapping at `address` or the next one.
fn query(maps: &OwnedFd, address: usize) -> Result<Option<Mapping>, Errno> {
    let mut query =
        Query { size: size_of::<Query>() as u64, flags: COVERING_OR_NEXT, address: address as u64, ..Query::default() };
    let arguments = [maps.as_raw_fd() as usize, PROCMAP_QUERY, (&raw mut query).expose_provenance(), 0, 0, 0];
    // SAFETY: the argument is as the call wants it, without buffers of its own.
    match unsafe { kernel::syscall(libc::SYS_ioctl, arguments) } {
        Ok(_) => Ok(Some(Mapping {
            start: query.start as usize,
            end: query.end as usize,
            page_size: query.page_size as usize,
            huge: None,
        })),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// [`each`] by /proc/self/smaps.
///
/// # Errors
/// It cannot be read.
pub fn read(start: usize, end: usize, each: impl FnMut(Mapping)) -> Result<(), Errno> {
    let file = open(c"/proc/self/smaps")?;
    parse(|buffer| rustix::io::retry_on_intr(|| rustix::io::read(&file, &mut *buffer)).unwrap_or(0), start, end, each);
    Ok(())
}

/// [`read`] of a text.
fn parse(source: impl FnMut(&mut [u8]) -> usize, start: usize, end: usize, mut each: impl FnMut(Mapping)) {
    let mut buffer = [0u8; 512];
    let mut lines = Lines::new(&mut buffer, source);
    let mut now: Option<Mapping> = None;
    let mut report = |mapping: Option<Mapping>| {
        if let Some(mapping) = mapping.filter(|mapping| mapping.end > start && mapping.start < end) {
            each(mapping);
        }
    };
    while let Some(line) = lines.next() {
        if let Some((from, to)) = addresses(line) {
            report(now.take());
            if from >= end {
                return;
            }
            now = Some(Mapping { start: from, end: to, page_size: kernel::page_size(), huge: Some(0) });
            continue;
        }
        let Some(mapping) = &mut now else { continue };
        let kib = |name: &[u8]| {
            let number = lines::number(line.strip_prefix(name)?.trim_ascii_start())?;
            usize::try_from(number << 10).ok()
        };
        if let Some(size) = kib(b"KernelPageSize:") {
            mapping.page_size = size;
        }
        for name in [&b"AnonHugePages:"[..], b"ShmemPmdMapped:", b"FilePmdMapped:"] {
            if let (Some(more), Some(huge)) = (kib(name), &mut mapping.huge) {
                *huge += more;
            }
        }
    }
    report(now);
}

/// The addresses with which the first line of a mapping begins.
fn addresses(line: &[u8]) -> Option<(usize, usize)> {
    let range = line.split(|&b| b == b' ').next()?;
    let dash = range.iter().position(|&b| b == b'-')?;
    let hex = |digits: &[u8]| usize::from_str_radix(core::str::from_utf8(digits).ok()?, 16).ok();
    Some((hex(&range[..dash])?, hex(&range[dash + 1..])?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    const SMAPS: &[u8] = b"7f0000000000-7f0000400000 rw-p 00000000 00:00 0 \n\
        Size:               4096 kB\nKernelPageSize:        4 kB\nMMUPageSize:           4 kB\n\
        AnonHugePages:      2048 kB\nShmemPmdMapped:        0 kB\nFilePmdMapped:         0 kB\n\
        VmFlags: rd wr mr mw me ac sd \n\
        7f0000400000-7f0000800000 rw-p 00000000 00:10 4711                       /anon_hugepage (deleted)\n\
        KernelPageSize:     2048 kB\nAnonHugePages:         0 kB\n\
        7f0001000000-7f0001001000 r--p 00000000 00:10 4711                       /a\nKernelPageSize:        4 kB\n";

    /// Catches a mapping that is left out, doubled, or has a neighbour's pages.
    #[test]
    fn smaps() {
        let all = |start, end| {
            let (mut left, mut found) = (SMAPS, Vec::new());
            let read = |buffer: &mut [u8]| {
                let n = left.len().min(buffer.len()).min(100);
                buffer[..n].copy_from_slice(&left[..n]);
                left = &left[n..];
                n
            };
            parse(read, start, end, |mapping| found.push((mapping.start, mapping.page_size, mapping.huge)));
            found
        };
        let first = (0x7f00_0000_0000, 4096, Some(2 << 20));
        let second = (0x7f00_0040_0000, 2 << 20, Some(0));
        let third = (0x7f00_0100_0000, 4096, Some(0));
        assert_eq!(all(0, usize::MAX), [first, second, third]);
        assert_eq!(all(0x7f00_003f_f000, 0x7f00_0040_1000), [first, second]);
        assert_eq!(all(0x7f00_0080_0000, 0x7f00_0100_0000), []);
    }

    /// Catches the two sources disagreeing about a mapping of this process.
    #[test]
    fn both_sources_agree() {
        let place = 0u8;
        let at = (&raw const place).addr();
        let (mut one, mut other) = (None, None);
        each(at, at + 1, |mapping| one = Some(mapping)).unwrap();
        read(at, at + 1, |mapping| other = Some(mapping)).unwrap();
        let key = |mapping: Option<Mapping>| mapping.map(|m| (m.end, m.page_size));
        assert_eq!(key(one), key(other));
        assert_eq!(one.unwrap().page_size, kernel::page_size());
    }
}
