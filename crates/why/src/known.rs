//! Caches what files contain, because processes share libraries, and a process that is read again has the same ones.

use crate::files::Files;
use neap_heaps::{Mapping, Unreadable};
use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::{LazyLock, Mutex, PoisonError};

/// Limit on cached answers; when it is reached, all are dropped.
const MOST: usize = 8192;

/// A file in its present state: if its content changes, its time of change does too.
type File = (u64, u64, u64, i64, i64);

/// Where a text is in a file.
type Answers = HashMap<(File, Vec<u8>), Option<u64>>;

static ANSWERS: LazyLock<Mutex<Answers>> = LazyLock::new(Mutex::default);

/// The files of a process, with the cache.
pub struct Known {
    pid: u32,
    files: Files,
}

impl Known {
    /// The files `files` of process `pid`.
    pub fn new(pid: u32, files: Files) -> Self {
        Known { pid, files }
    }

    /// The file behind a mapping.
    fn file(&self, mapping: &Mapping) -> Option<File> {
        mapping.file()?;
        let (pid, range) = (self.pid, &mapping.range);
        // The mapped file itself; its path may lead to another one now. Without permission, nothing is cached.
        let of = fs::metadata(neap_process::file::map_file(pid, range)).ok()?;
        Some((of.dev(), of.ino(), of.size(), of.ctime(), of.ctime_nsec()))
    }
}

impl neap_heaps::Files for Known {
    fn read(&self, mapping: &Mapping, offset: u64, into: &mut [u8]) -> usize {
        self.files.read(mapping, offset, into)
    }

    fn find(&self, mapping: &Mapping, text: &[u8]) -> Result<Option<u64>, Unreadable> {
        let Some(file) = self.file(mapping) else { return self.files.find(mapping, text) };
        let (key, lock) = ((file, text.to_vec()), || ANSWERS.lock().unwrap_or_else(PoisonError::into_inner));
        if let Some(known) = lock().get(&key) {
            return Ok(*known);
        }
        // Not under the lock, because it reads files. An error is not cached: the file may be readable later.
        let found = self.files.find(mapping, text)?;
        let mut answers = lock();
        if answers.len() >= MOST {
            answers.clear();
        }
        answers.insert(key, found);
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use neap_account::seen;
    use neap_heaps::Files as _;
    use neap_survey::Fuel;
    use std::sync::Arc;
    use std::time::Duration;

    /// Catches answers of another file.
    #[test]
    fn answers_are_those_of_the_file() {
        let pid = std::process::id();
        let maps = fs::read_to_string("/proc/self/maps").expect("maps");
        let maps = neap_account::parse::smaps(&maps);
        let own = maps.iter().find(|mapping| mapping.execute && mapping.inode != 0).expect("code");
        let fuel = Arc::new(Fuel::new(Duration::from_secs(100), u64::MAX));
        let files = || Files::new(pid, &maps, &fuel);
        let (known, files, mapping) = (Known::new(pid, files()), files(), crate::heaps::listed(own));
        for _ in 0..2 {
            for text in [&b"ELF"[..], b"a text that is in no file, but for \0 this"] {
                assert_eq!(known.find(&mapping, text), files.find(&mapping, text), "{text:?}");
            }
        }
        let mut other = mapping.clone();
        other.name = Some("/no/such".into());
        other.range = 0x1000..0x2000;
        assert_eq!(known.find(&other, b"x"), Err(Unreadable));
    }

    /// Catches data files that are searched, and texts that count as missing because the time was over.
    #[test]
    fn data_is_not_searched() {
        let path = std::env::temp_dir().join(format!("neap-known-{}", std::process::id()));
        let code = std::env::current_exe().expect("a program");
        for (bytes, found) in [(b"data with ELF".to_vec(), Ok(None)), (fs::read(code).expect("it"), Ok(Some(1)))] {
            fs::write(&path, bytes).expect("a file");
            let metadata = fs::metadata(&path).expect("a file");
            let mapping = seen::Mapping {
                range: 0x1000..0x2000,
                inode: metadata.ino(),
                name: path.to_str().expect("UTF-8").to_owned(),
                ..seen::Mapping::default()
            };
            let find = |time: u64, text: &[u8]| {
                let fuel = Arc::new(Fuel::new(Duration::from_secs(time), u64::MAX));
                let files = Files::new(std::process::id(), std::slice::from_ref(&mapping), &fuel);
                files.find(&crate::heaps::listed(&mapping), text)
            };
            assert_eq!(find(100, b"ELF"), found);
            assert_eq!(find(0, b"\0 is nowhere else \0"), Err(Unreadable));
        }
        fs::remove_file(&path).expect("a file");
    }
}
