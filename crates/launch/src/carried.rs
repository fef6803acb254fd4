//! Finds programs that contain an allocator: jemalloc in Redis as its authors build it, mimalloc or jemalloc as the
//! global allocator of a Rust program. What such a program allocates there is not neap's, even under `libneap.so`.
//!
//! Their files are stripped, so there are no symbols. But each allocator's messages are in its code, and begin alike in
//! all versions. `crates/heaps` finds a heap in use; this module also works for a program that has ended.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use crate::target;

/// An allocator, and a text that every program with this allocator contains.
const MARKS: &[(&str, &[u8])] =
    &[("jemalloc", b"<jemalloc>: "), ("mimalloc", b"mimalloc: warning: "), ("tcmalloc", b"src/tcmalloc.cc")];

/// Bytes that are read at a time.
const PIECE: usize = 1 << 20;
/// The length of the longest mark, minus one.
const OVERLAP: usize = 31;

/// The allocator in the program at `path`, which may be a script; `None` if none is found, or the file cannot be read.
pub fn allocator(path: &Path) -> Option<&'static str> {
    find(target::program_of(path)?).ok().flatten()
}

fn find(mut file: File) -> io::Result<Option<&'static str>> {
    let mut piece = vec![0; OVERLAP + PIECE];
    let mut kept = 0;
    loop {
        let read = file.read(&mut piece[kept..])?;
        if read == 0 {
            return Ok(None);
        }
        let text = &piece[..kept + read];
        if let Some(&(name, _)) = MARKS.iter().find(|(_, mark)| has(text, mark)) {
            return Ok(Some(name));
        }
        let (end, rest) = (kept + read, OVERLAP.min(kept + read));
        piece.copy_within(end - rest..end, 0);
        kept = rest;
    }
}

fn has(text: &[u8], mark: &[u8]) -> bool {
    let (first, rest) = (mark[0], &mark[1..]);
    let mut places = text.iter().enumerate().filter(|&(_, &byte)| byte == first);
    places.any(|(at, _)| text[at + 1..].starts_with(rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// Catches a mark that is missed at some place of a file, also across two reads, or that is longer than the
    /// overlap.
    #[test]
    fn marks_at_any_place() {
        assert!(MARKS.iter().all(|(_, mark)| mark.len() <= OVERLAP + 1));
        let dir = std::env::temp_dir().join(format!("neap-carried-{}", std::process::id()));
        for before in [0, 1, PIECE - 5, OVERLAP + PIECE - 3, OVERLAP + PIECE, 2 * PIECE + 7] {
            for (name, mark) in MARKS {
                let mut file = File::create(&dir).unwrap();
                file.write_all(&vec![b'<'; before]).unwrap();
                file.write_all(mark).unwrap();
                assert_eq!(find(File::open(&dir).unwrap()).unwrap(), Some(*name), "{before}");
            }
        }
        std::fs::write(&dir, "<jemalloc> mimalloc: error").unwrap();
        assert_eq!(find(File::open(&dir).unwrap()).unwrap(), None);
        std::fs::remove_file(&dir).unwrap();
    }

    /// Catches marks that the allocators do not contain, for those that are installed here.
    #[test]
    fn marks_of_real_ones() {
        let mut found = 0;
        for (name, library) in [
            ("jemalloc", "libjemalloc.so.2"),
            ("mimalloc", "libmimalloc.so.2"),
            ("tcmalloc", "libtcmalloc_minimal.so.4"),
        ] {
            let Ok(file) = File::open(Path::new("/usr/lib/x86_64-linux-gnu").join(library)) else { continue };
            assert_eq!(find(file).unwrap(), Some(name));
            found += 1;
        }
        println!("{found} allocators are installed here");
    }
}
