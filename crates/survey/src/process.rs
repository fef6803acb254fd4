//! What a process has mapped, and how its memory is read and written.

use crate::Error;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;

/// The front of a file that is mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Front {
    /// Its address.
    pub start: u64,
    /// The path of the file.
    pub path: String,
}

/// The fronts of all files that a process has mapped, those that are named after neap first.
pub fn fronts(pid: u32) -> Result<Vec<Front>, Error> {
    // A path need not be UTF-8.
    let maps = fs::read(format!("/proc/{pid}/maps"))?;
    let mut all: Vec<Front> = String::from_utf8_lossy(&maps).lines().filter_map(front).collect();
    all.sort_by_key(|front| !front.path.contains("neap"));
    Ok(all)
}

/// The front in a line of /proc/PID/maps.
fn front(line: &str) -> Option<Front> {
    let mut fields = line.splitn(6, ' ');
    let (range, access, offset) = (fields.next()?, fields.next()?, fields.next()?);
    let path = fields.nth(2)?.trim_start();
    let start = u64::from_str_radix(range.split_once('-')?.0, 16).ok()?;
    let file = path.starts_with('/') && !path.starts_with("/dev/");
    (access.starts_with('r') && u64::from_str_radix(offset, 16) == Ok(0) && file)
        .then(|| Front { start, path: path.to_owned() })
}

/// The memory of a process. It is another one, which is not readable, when the process executes another program.
#[derive(Debug)]
pub struct Memory(File);

impl Memory {
    /// To read and write.
    pub fn open(pid: u32) -> Result<Self, Error> {
        Ok(Memory(File::options().read(true).write(true).open(format!("/proc/{pid}/mem"))?))
    }

    /// Reads bytes.
    pub fn read(&self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(bytes, at)
    }

    /// Reads words.
    pub fn words(&self, at: u64, count: usize) -> io::Result<Vec<u64>> {
        let mut bytes = vec![0; count * 8];
        self.read(at, &mut bytes)?;
        Ok(bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect())
    }

    /// Reads one word.
    pub fn word(&self, at: u64) -> io::Result<u64> {
        Ok(self.words(at, 1)?[0])
    }

    /// Writes bytes.
    pub fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches fronts that are not found, and mappings that are taken for some.
    #[test]
    fn fronts_are_found() {
        let line = "7f1c0a7ff000-7f1c0a800000 r--p 00000000 08:01 1037                       /lib/a b.so";
        assert_eq!(front(line), Some(Front { start: 0x7f1c_0a7f_f000, path: "/lib/a b.so".into() }));
        for other in [
            "",
            "7f1c0a7ff000-7f1c0a800000 r--p 00001000 08:01 1037                       /lib/a.so",
            "7f1c0a7ff000-7f1c0a800000 ---p 00000000 08:01 1037                       /lib/a.so",
            "7f1c0a7ff000-7f1c0a800000 rw-p 00000000 00:00 0",
            "7f1c0a7ff000-7f1c0a800000 rw-p 00000000 00:00 0                          [heap]",
            "7f1c0a7ff000-7f1c0a800000 rw-s 00000000 00:06 9                          /dev/dri/card0",
        ] {
            assert_eq!(front(other), None, "{other}");
        }
    }
}
