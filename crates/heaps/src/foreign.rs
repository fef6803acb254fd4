//! Allocators whose structures are not known here: who else serves malloc in a process, so that memory that belongs to
//! no heap is not called something else.

use crate::{Files, Mapping};
use std::cell::RefCell;

/// Texts in programs and libraries with an allocator: in its messages, or in its symbols.
const TEXTS: [(&str, &[u8]); 6] = [
    ("jemalloc", b"<jemalloc>: "),
    ("mimalloc", b"mimalloc: warning: "),
    ("snmalloc", b"8snmalloc"),
    ("rpmalloc", b"rpmalloc_"),
    ("scudo", b"Scudo ERROR"),
    ("PartitionAlloc", b"PartitionAlloc"),
];

/// An allocator of which no heap was walked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Foreign {
    /// Its name: `snmalloc`, or that of the file.
    pub name: String,
    /// The file with its code.
    pub file: String,
    /// Whether the file exports malloc, so that it serves the whole process.
    pub is_malloc: bool,
}

/// The allocators in a process that are none of `walked`: names of heaps, and the files with their code. Files are
/// searched for a symbol, the program and files that export malloc also for texts.
pub fn foreign(mappings: &[Mapping], files: &dyn Files, walked: &[(String, Option<String>)]) -> Vec<Foreign> {
    let mut all: Vec<Foreign> = Vec::new();
    let code = mappings.iter().filter(|of| of.offset == 0 && of.private);
    for (number, mapping) in code.filter(|of| of.file().is_some()).enumerate() {
        let file = mapping.file().unwrap_or_default();
        let short = file.rsplit('/').next().unwrap_or_default();
        let is_libc = ["libc.so.", "libc-2.", "ld-linux", "ld-2.", "ld-musl", "libneap", "libc_malloc_debug"];
        let is_known = walked.iter().any(|(_, library)| library.as_deref() == Some(file));
        if is_libc.iter().any(|start| short.starts_with(start)) || is_known || all.iter().any(|of| of.file == file) {
            continue;
        }
        let is_malloc = exports_malloc(files, mapping);
        if !is_malloc && number > 0 {
            continue;
        }
        let is_walked = |name: &str| walked.iter().any(|(heap, _)| heap.starts_with(name));
        let text =
            TEXTS.iter().find(|(name, text)| !is_walked(name) && matches!(files.find(mapping, text), Ok(Some(_))));
        if text.is_some() || is_malloc {
            let name = text.map_or(short, |(name, _)| name).to_owned();
            all.push(Foreign { name, file: file.to_owned(), is_malloc });
        }
    }
    all
}

/// A file that is read in pieces.
struct Image<'a> {
    files: &'a dyn Files,
    mapping: &'a Mapping,
    piece: RefCell<(u64, Vec<u8>)>,
}

impl Image<'_> {
    const PIECE: usize = 16 << 10;

    fn bytes<const N: usize>(&self, at: u64) -> Option<[u8; N]> {
        let mut piece = self.piece.borrow_mut();
        let has = at >= piece.0 && at.checked_add(N as u64)? <= piece.0 + piece.1.len() as u64;
        if !has {
            let mut bytes = vec![0; Self::PIECE];
            let got = self.files.read(self.mapping, at, &mut bytes).min(Self::PIECE);
            bytes.truncate(got);
            *piece = (at, bytes);
        }
        piece.1.get((at - piece.0) as usize..)?.first_chunk().copied()
    }

    fn half(&self, at: u64) -> Option<u64> {
        self.bytes(at).map(|bytes| u64::from(u32::from_le_bytes(bytes)))
    }

    fn word(&self, at: u64) -> Option<u64> {
        self.bytes(at).map(u64::from_le_bytes)
    }
}

/// Whether the file behind a mapping exports malloc, so that it serves the whole process.
pub fn exports_malloc(files: &dyn Files, mapping: &Mapping) -> bool {
    exports(files, mapping, b"malloc\0")
}

/// Whether the file behind a mapping, an ELF object, exports a symbol; `name` ends with a zero.
fn exports(files: &dyn Files, mapping: &Mapping, name: &[u8; 7]) -> bool {
    symbol(&Image { files, mapping, piece: RefCell::default() }, name).is_some()
}

/// Looks a symbol up in the GNU hash table, as the dynamic linker does (`elf(5)`).
fn symbol(image: &Image, name: &[u8; 7]) -> Option<()> {
    const HEADERS: u64 = 64;
    const ENTRIES: u64 = 256;
    if image.bytes::<6>(0)? != *b"\x7fELF\x02\x01" {
        return None;
    }
    let (table, count) = (image.word(32)?, u64::from(u16::from_le_bytes(image.bytes(56)?)));
    let (mut loads, mut dynamic) = (Vec::new(), None);
    for header in (0..count.min(HEADERS)).map(|number| table.checked_add(56 * number)) {
        let header = header?;
        let [offset, address, bytes] = [8, 16, 32].map(|field| image.word(header.saturating_add(field)));
        match image.half(header)? {
            1 => loads.push((offset?, address?, bytes?)),
            2 => dynamic = offset,
            _ => {}
        }
    }
    // Of addresses, the places in the file.
    let place = |address: u64| {
        let load = loads.iter().find(|(_, start, bytes)| address.checked_sub(*start).is_some_and(|from| from < *bytes));
        load.and_then(|(offset, start, _)| offset.checked_add(address - start))
    };
    let (mut strings, mut symbols, mut hash) = (None, None, None);
    for number in 0..ENTRIES {
        let entry = dynamic?.checked_add(16 * number)?;
        let value = image.word(entry.checked_add(8)?)?;
        match image.word(entry)? {
            0 => break,
            5 => strings = place(value),
            6 => symbols = place(value),
            0x6fff_fef5 => hash = place(value),
            _ => {}
        }
    }
    let (strings, symbols, hash) = (strings?, symbols?, hash?);
    let (buckets, first, words) = (image.half(hash)?, image.half(hash + 4)?, image.half(hash + 8)?);
    let wanted = name[..6].iter().fold(5381u32, |sum, byte| sum.wrapping_mul(33).wrapping_add(u32::from(*byte)));
    let chains = (hash + 16).checked_add(8 * words)?;
    let start = image.half(chains.checked_add(4 * u64::from(wanted).checked_rem(buckets)?)?)?;
    for number in start..start + 1000 {
        let at = number.checked_sub(first)?;
        let here = image.half(chains.checked_add(4 * (buckets + at))?)? as u32;
        if here | 1 == wanted | 1 {
            let symbol = symbols.checked_add(24 * number)?;
            let (text, section) = (image.half(symbol)?, u16::from_le_bytes(image.bytes(symbol + 6)?));
            if section != 0 && image.bytes::<7>(strings.checked_add(text)?)? == *name {
                return Some(());
            }
        }
        if here & 1 == 1 {
            return None;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::tests::File;

    /// The files of this machine.
    struct Disk;

    impl Files for Disk {
        fn read(&self, mapping: &Mapping, offset: u64, into: &mut [u8]) -> usize {
            use std::os::unix::fs::FileExt;
            let file = mapping.file().and_then(|path| std::fs::File::open(path).ok());
            file.and_then(|file| file.read_at(into, offset).ok()).unwrap_or(0)
        }
    }

    /// Catches a library that exports malloc and is not found, one that only calls it, and damaged files that are read
    /// without end.
    #[test]
    fn exporters_of_malloc_are_found() {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
        let libc =
            maps.lines().filter_map(|line| line.split_whitespace().nth(5)).find(|path| path.contains("/libc.so"));
        let libc = libc.expect("the C library of a test program");
        let mapping = Mapping { name: Some(libc.to_owned()), private: true, ..Mapping::default() };
        assert!(exports(&Disk, &mapping, b"malloc\0") && !exports(&Disk, &mapping, b"mallow\0"));
        let own = std::env::current_exe().expect("a program");
        let own = Mapping { name: own.to_str().map(str::to_owned), ..mapping.clone() };
        assert!(!exports(&Disk, &own, b"malloc\0"));
        let bytes = std::fs::read(libc).expect("a file");
        let mut state = 1u64;
        for _ in 0..200 {
            let mut damaged = bytes[..bytes.len().min(256 << 10)].to_vec();
            for _ in 0..100 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let at = (state >> 33) as usize % if state >> 63 == 0 { 1024 } else { damaged.len() };
                damaged[at] = (state >> 20) as u8;
            }
            exports(&File(damaged), &mapping, b"malloc\0");
        }
        // Only the C library: it is no other allocator. Under another name it is.
        assert_eq!(foreign(std::slice::from_ref(&mapping), &Disk, &[]), []);
        let renamed = std::env::temp_dir().join(format!("libother-{}.so", std::process::id()));
        std::fs::copy(libc, &renamed).expect("a copy");
        let path = renamed.to_str().expect("UTF-8").to_owned();
        let other = Mapping { name: Some(path.clone()), ..mapping };
        let found = foreign(std::slice::from_ref(&other), &Disk, &[]);
        let walked = foreign(&[other], &Disk, &[("x".into(), Some(path.clone()))]);
        std::fs::remove_file(&renamed).expect("a file");
        assert!(matches!(&found[..], [of] if of.is_malloc && of.file == path && path.ends_with(&of.name)), "{found:?}");
        assert_eq!(walked, []);
    }
}
