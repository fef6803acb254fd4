//! The mappings of a process, and access to its memory.

use crate::{Error, Fuel};
use neap_process::file::Identity;
use neap_process::maps::{MapsLine, parse_maps};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// The front of a file that is mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Front {
    /// Its addresses.
    pub range: Range<u64>,
    /// The path of the file.
    pub path: String,
    /// The file's identity.
    pub identity: Identity,
}

/// The fronts of all files that a process has mapped, those named after neap first.
pub fn fronts(pid: u32) -> Result<Vec<Front>, Error> {
    let maps = neap_process::maps(pid)?;
    let mut all: Vec<Front> = parse_maps(&maps).filter_map(|line| front(&line)).collect();
    all.sort_by_key(|front| !front.path.contains("neap"));
    Ok(all)
}

/// The front in a line of /proc/PID/maps.
fn front(line: &MapsLine<'_>) -> Option<Front> {
    let file = line.path.starts_with(b"/") && !line.path.starts_with(b"/dev/");
    (line.flags.starts_with(b"r") && line.offset == 0 && file).then(|| Front {
        range: line.range(),
        path: line.name(),
        identity: line.identity(),
    })
}

/// The memory of a process. When the process executes another program, this one can no longer be read.
#[derive(Debug)]
pub struct Memory {
    file: Arc<File>,
    /// What reads may cost, where that is limited.
    pub fuel: Option<Arc<Fuel>>,
}

impl Memory {
    /// Opens it for reading and writing.
    pub fn open(pid: u32) -> Result<Self, Error> {
        let file = File::options().read(true).write(true).open(format!("/proc/{pid}/mem"))?;
        Ok(Memory { file: Arc::new(file), fuel: None })
    }

    /// The same memory with a limit on reads.
    pub fn limited(&self, fuel: Arc<Fuel>) -> Self {
        Memory { file: Arc::clone(&self.file), fuel: Some(fuel) }
    }

    /// Reads bytes.
    pub fn read(&self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        if self.fuel.as_ref().is_some_and(|fuel| !fuel.take(bytes.len() as u64)) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.file.read_exact_at(bytes, at)
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
        self.file.write_all_at(bytes, at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches fronts that are not found, and other mappings that count as fronts.
    #[test]
    fn fronts_are_found() {
        let line = "7f1c0a7ff000-7f1c0a800000 r--p 00000000 08:01 1037                       /lib/a b.so";
        let front = |line: &str| parse_maps(line.as_bytes()).next().and_then(|line| front(&line));
        assert_eq!(
            front(line),
            Some(Front {
                range: 0x7f1c_0a7f_f000..0x7f1c_0a80_0000,
                path: "/lib/a b.so".into(),
                identity: Identity { device: (8, 1), inode: 1037 }
            })
        );
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
