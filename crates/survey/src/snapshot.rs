//! A copy of the file of samples of a process.

use crate::Error;
use crate::process::Memory;
use neap_samples::{Unreadable, View, Word};
use std::fs;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Instant;

/// Words that are read at once.
const PIECE: usize = 1 << 16;
/// Limit on the length of a file, in words.
const MOST: usize = 1 << 28;

/// A copy of a file.
#[derive(Clone, Debug)]
pub struct Snapshot {
    words: Vec<u64>,
    /// CLOCK_MONOTONIC when it was made, in nanoseconds; 0: the process has ended.
    pub time: u64,
}

/// The time of CLOCK_MONOTONIC in nanoseconds: the boot clock in /proc has a resolution of 10 ms.
fn monotonic() -> u64 {
    // `Instant` is CLOCK_MONOTONIC, but shows its value only in its debug form.
    let text = format!("{:?}", Instant::now());
    let part = |name: &str| -> Option<u64> {
        let rest = &text[text.find(name)? + name.len()..];
        rest[..rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len())].parse().ok()
    };
    part("tv_sec: ").unwrap_or(0) * 1_000_000_000 + part("tv_nsec: ").unwrap_or(0)
}

impl Snapshot {
    /// Copies the file at an address of a process.
    pub(crate) fn from_memory(memory: &Memory, at: u64) -> Result<Self, Error> {
        let gone = |_: io::Error| Error::Gone;
        let header = memory.words(at, Word::COUNT).map_err(gone)?;
        let length = View::length(&header).map_err(unreadable)?.min(MOST);
        let mut words = Vec::with_capacity(length);
        while words.len() < length {
            let piece = (length - words.len()).min(PIECE);
            words.extend(memory.words(at + 8 * words.len() as u64, piece).map_err(gone)?);
        }
        View::of(&words).map_err(unreadable)?;
        Ok(Snapshot { words, time: monotonic() })
    }

    /// Reads a file of a process that has ended.
    pub fn from_file(path: &Path) -> Result<Self, Error> {
        /// `O_NONBLOCK`, so that a pipe does not block.
        const NONBLOCK: i32 = 0o4000;
        let file = fs::File::options().read(true).custom_flags(NONBLOCK).open(path)?;
        if file.metadata()?.len() > 8 * MOST as u64 {
            return Err(unreadable(Unreadable::Foreign));
        }
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut &file, &mut bytes)?;
        let words: Vec<u64> = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
        View::of(&words).map_err(unreadable)?;
        Ok(Snapshot { words, time: 0 })
    }

    /// The contents.
    pub fn view(&self) -> View<'_> {
        View::of(&self.words).expect("it was checked when it was made")
    }

    /// The process, by its own number for itself; 0: unknown.
    pub fn process(&self) -> u32 {
        self.view().header(Word::Process) as u32
    }
}

fn unreadable(why: Unreadable) -> Error {
    match why {
        Unreadable::Version(version) => Error::Version(version),
        other => Error::Io(io::Error::new(io::ErrorKind::InvalidData, other.to_string())),
    }
}

/// The files of samples in a directory named by option `profile`, one for each process, in the order of their
/// beginnings. Profiles that processes wrote at a signal (`.pb`) are skipped.
pub fn in_directory(directory: &Path) -> Result<Vec<Snapshot>, Error> {
    let mut all = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.extension().is_none_or(|ending| ending != "pb") {
            all.push(Snapshot::from_file(&path)?);
        }
    }
    all.sort_by_key(|snapshot| snapshot.view().header(Word::Started));
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a clock that is another one, or stands still.
    #[test]
    fn the_clock_is_that_of_samples() {
        let uptime: f64 = fs::read_to_string("/proc/uptime").unwrap().split(' ').next().unwrap().parse().unwrap();
        let now = monotonic();
        // Only one of the two includes time in suspension.
        assert!(now > 0 && (now as f64) < uptime * 1e9 + 1e9, "{now} {uptime}");
        assert!(monotonic() > now);
    }
}
