//! What files say is remembered: processes share their libraries, and a process that is looked at again has the same ones.

use crate::files::Files;
use neap_heaps::{Mapping, Unreadable};
use std::collections::HashMap;
use std::fs;
use std::hash::Hash;
use std::os::unix::fs::MetadataExt;
use std::sync::{LazyLock, Mutex, PoisonError};

/// Answers that are remembered; then all are forgotten.
const MOST: usize = 8192;

/// A file as it is now: another content has another time of change.
type File = (u64, u64, u64, i64, i64);

/// A question of a text: the file, the text, how many bytes.
type Text = (File, Vec<u8>, usize);

/// A question of a symbol: the file, the name, which part of the file is mapped, and how.
type Symbol = (File, String, u64, bool, bool);

/// Answers of all files.
#[derive(Default)]
struct Answers {
    texts: HashMap<Text, Option<Vec<u8>>>,
    /// How far behind the start of the mapping.
    symbols: HashMap<Symbol, Option<u64>>,
}

static ANSWERS: LazyLock<Mutex<Answers>> = LazyLock::new(Mutex::default);

/// The files of a process, with what is remembered of them.
pub struct Known {
    pid: u32,
    files: Files,
}

impl Known {
    /// Those of process `pid`.
    pub fn new(pid: u32) -> Self {
        Known { pid, files: Files::new(pid) }
    }

    /// Which file is behind a mapping.
    fn file(&self, mapping: &Mapping) -> Option<File> {
        mapping.file()?;
        let (pid, range) = (self.pid, &mapping.range);
        // The very file, whatever has its path now. Where that is denied nothing is remembered.
        let of = fs::metadata(format!("/proc/{pid}/map_files/{:x}-{:x}", range.start, range.end)).ok()?;
        Some((of.dev(), of.ino(), of.size(), of.ctime(), of.ctime_nsec()))
    }
}

/// The answer that is remembered, or a new one.
fn answer<K: Eq + Hash, V: Clone>(
    map: impl Fn(&mut Answers) -> &mut HashMap<K, V>,
    key: K,
    make: impl FnOnce() -> Option<V>,
) -> Option<V> {
    let lock = || ANSWERS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = map(&mut lock()).get(&key) {
        return Some(known.clone());
    }
    // Not under the lock: it reads files.
    let made = make()?;
    let mut answers = lock();
    let map = map(&mut answers);
    if map.len() >= MOST {
        map.clear();
    }
    map.insert(key, made.clone());
    Some(made)
}

impl neap_heaps::Files for Known {
    fn read(&self, mapping: &Mapping, offset: u64, into: &mut [u8]) -> usize {
        self.files.read(mapping, offset, into)
    }

    fn find(&self, mapping: &Mapping, text: &[u8], length: usize) -> Result<Option<Vec<u8>>, Unreadable> {
        let Some(file) = self.file(mapping) else { return self.files.find(mapping, text, length) };
        // What cannot be read now may be read later.
        let make = || self.files.find(mapping, text, length).ok();
        answer(|answers| &mut answers.texts, (file, text.to_vec(), length), make).ok_or(Unreadable)
    }

    fn symbol(&self, mapping: &Mapping, name: &str) -> Option<u64> {
        let start = mapping.range.start;
        let Some(file) = self.file(mapping) else { return self.files.symbol(mapping, name) };
        let key = (file, name.to_owned(), mapping.offset, mapping.writable, mapping.executable);
        let make = || Some(self.files.symbol(mapping, name).map(|at| at.wrapping_sub(start)));
        answer(|answers| &mut answers.symbols, key, make).flatten().map(|behind| start.wrapping_add(behind))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use neap_heaps::Files as _;

    /// The mapping of this program's code.
    fn own() -> Mapping {
        let maps = fs::read_to_string("/proc/self/maps").expect("maps");
        let line = maps.lines().find(|line| line.contains(" r-xp ") && line.contains('/')).expect("code");
        let (range, name) = (line.split(' ').next().expect("a range"), &line[line.find('/').expect("a path")..]);
        let (start, end) = range.split_once('-').expect("a range");
        let hex = |text: &str| u64::from_str_radix(text, 16).expect("an address");
        let offset = hex(line.split(' ').nth(2).expect("an offset"));
        let (range, name) = (hex(start)..hex(end), Some(name.to_owned()));
        Mapping { range, name, readable: true, executable: true, private: true, offset, ..Mapping::default() }
    }

    /// Catches answers that are not those of the file, and symbols that are not moved with the mapping.
    #[test]
    fn answers_are_those_of_the_file() {
        let (known, files, mapping) = (Known::new(std::process::id()), Files::new(std::process::id()), own());
        for _ in 0..2 {
            for text in [&b"ELF"[..], b"a text that is in no file, but for \0 this"] {
                assert_eq!(known.find(&mapping, text, 4), files.find(&mapping, text, 4), "{text:?}");
            }
            assert_eq!(known.symbol(&mapping, "main"), files.symbol(&mapping, "main"));
            assert_eq!(known.symbol(&mapping, "no such name"), None);
        }
        let mut other = mapping.clone();
        other.name = Some("/no/such".into());
        other.range = 0x1000..0x2000;
        assert_eq!((known.find(&other, b"x", 0), known.symbol(&other, "main")), (Err(Unreadable), None));
    }
}
