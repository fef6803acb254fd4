//! The changes that neap must undo, in files: `/run/neap-huge/PID-START`, one for each process with a reservation. If a
//! neap was killed, the next one reads them. The folder is also the lock under which pools are changed.
//!
//! ```text
//! size /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages 10
//! less /sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages 512
//! ```

use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::PathBuf;

use crate::pool::Place;
use crate::refused::Refused;
use crate::root::Root;

/// The folder: it is gone after a restart of the system, as the pools are.
pub const FOLDER: &str = "/run/neap-huge";

/// One change to undo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Undo {
    /// Sets the pool at this place to that size. Only until the change is complete: the lock is held from before it,
    /// and the next owner of the lock undoes it first, so no other reservation is lost.
    Size(Place, u64),
    /// Takes that many pages away from the pool at this place.
    Less(Place, u64),
}

impl Undo {
    /// Undoes the change; returns the number of pages that were gone already.
    pub fn carry_out(&self, root: &Root) -> io::Result<u64> {
        match self {
            Undo::Size(place, pages) => place.resize(root, *pages).map(|()| 0),
            Undo::Less(place, pages) => {
                let size = place.counts(root)?.size();
                place.resize(root, size.saturating_sub(*pages))?;
                Ok(pages.saturating_sub(size))
            }
        }
    }

    fn line(&self) -> String {
        let (word, place, pages) = match self {
            Undo::Size(place, pages) => ("size", place, pages),
            Undo::Less(place, pages) => ("less", place, pages),
        };
        format!("{word} {} {pages}\n", place.0)
    }

    fn parse(line: &str) -> Option<Undo> {
        let mut words = line.split(' ');
        let (word, place, pages) = (words.next()?, Place(words.next()?.to_owned()), words.next()?.parse().ok()?);
        match word {
            "size" => Some(Undo::Size(place, pages)),
            "less" => Some(Undo::Less(place, pages)),
            _ => None,
        }
    }
}

/// The lock under which pools are changed and journals are read.
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "the lock ends when the file is closed")] File);

impl Lock {
    /// Waits for the lock.
    pub fn take(root: &Root) -> Result<Lock, Refused> {
        let folder = root.path(FOLDER);
        let refused = |error: &io::Error| {
            Refused::new(
                format!("cannot lock {}: {error}", folder.display()),
                "/run must be a folder that root may write to, on a file system in memory",
            )
        };
        match DirBuilder::new().mode(0o700).create(&folder) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(refused(&error)),
            _ => {}
        }
        let about = fs::symlink_metadata(&folder).map_err(|error| refused(&error))?;
        // SAFETY: geteuid takes nothing and cannot fail.
        if !about.is_dir() || about.uid() != unsafe { libc::geteuid() } || about.mode() & 0o022 != 0 {
            return Err(refused(&io::Error::other("others could write to it")));
        }
        let file = File::open(&folder).map_err(|error| refused(&error))?;
        // SAFETY: flock takes numbers.
        while unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) } != 0 {
            let error = io::Error::last_os_error();
            if error.kind() != ErrorKind::Interrupted {
                return Err(refused(&error));
            }
        }
        Ok(Lock(file))
    }
}

/// The journal of one process. A process may have several, one after the other.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
}

impl Journal {
    /// The journal of this process, not written yet. Refused if other processes could not see that this one is alive.
    pub fn own(root: &Root, _: &Lock) -> Result<Journal, Refused> {
        let pid = std::process::id();
        let start = start(root, pid).ok_or_else(|| {
            Refused::new("/proc does not show this process, so others would take its pages away", "mount proc at /proc")
        })?;
        let mut number = 0;
        loop {
            let name = format!("{FOLDER}/{pid}-{start}-{number}");
            let path = root.path(&name);
            if !path.exists() {
                return Ok(Journal { path });
            }
            number += 1;
        }
    }

    /// Writes it completely or not at all.
    pub fn write(&self, steps: &[Undo]) -> io::Result<()> {
        let text: String = steps.iter().map(Undo::line).collect();
        let part = self.path.with_extension("new");
        fs::write(&part, text)?;
        fs::rename(&part, &self.path)
    }

    /// Nothing has to be undone any longer.
    pub fn remove(&self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// A reservation in a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The process.
    pub pid: u32,
    /// Whether it still runs; otherwise it was killed, and the next reservation gives the pages back.
    pub alive: bool,
    /// The changes to undo.
    steps: Vec<Undo>,
}

impl Held {
    /// The size and the number of its pages; `None` before the end of a change.
    pub fn pages(&self) -> Option<(u64, u64)> {
        let mut pages = None;
        for step in &self.steps {
            let Undo::Less(place, number) = step else { return None };
            pages = Some((place.bytes()?, pages.map_or(0, |(_, sum)| sum) + number));
        }
        pages
    }
}

/// All reservations in journals; empty if there is no folder, or it may not be read.
pub fn held(root: &Root) -> Vec<Held> {
    entries(root).into_iter().map(|(_, held)| held).collect()
}

/// Undoes the changes that killed processes left.
pub fn restore_leftovers(root: &Root, _: &Lock) {
    for (path, held) in entries(root) {
        if !held.alive {
            for step in held.steps.iter().rev() {
                // If the kernel refuses this now, it would refuse it later, too.
                let _ = step.carry_out(root);
            }
            let _ = fs::remove_file(path);
        }
    }
}

fn entries(root: &Root) -> Vec<(PathBuf, Held)> {
    let names = root.names(FOLDER, "").unwrap_or_default();
    let entry = |name: String| {
        let mut parts = name.split('-');
        let (pid, started): (u32, u64) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        let path = root.path(&format!("{FOLDER}/{name}"));
        // An incomplete one (`.new`) belongs to a change that was not begun.
        let steps = match name.ends_with(".new") {
            true => Vec::new(),
            false => fs::read_to_string(&path).ok()?.lines().filter_map(Undo::parse).collect(),
        };
        Some((path, Held { pid, alive: start(root, pid) == Some(started), steps }))
    };
    names.into_iter().filter_map(entry).collect()
}

/// The start time of a process, in ticks, which distinguishes processes with the same number. The 22nd field of its
/// stat.
fn start(root: &Root, pid: u32) -> Option<u64> {
    let text = root.read(&format!("/proc/{pid}/stat")).ok()?;
    // The name may contain blanks and parentheses.
    text.rsplit_once(')')?.1.split_whitespace().nth(22 - 3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a journal that changes when it is read back.
    #[test]
    fn lines_come_back() {
        for step in [Undo::Size(Place::machine(2 << 20), 10), Undo::Less(Place::node(1, 1 << 30), 3)] {
            assert_eq!(Undo::parse(step.line().trim_end()), Some(step));
        }
        for bad in ["", "less", "less /x", "less /x y", "more /x 1"] {
            assert_eq!(Undo::parse(bad), None, "{bad}");
        }
    }

    /// Catches a reused process number that counts as the owner.
    #[test]
    fn a_process_is_known_by_its_start() {
        let root = Root::system();
        let own = start(&root, std::process::id()).expect("this process");
        assert!(own > 0 && start(&root, 0).is_none());
    }
}
