//! Reads the files in which processes on neap record their allocations, while they are written (crates/sites).

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;

use neap_sites::{Cursor, ENTRY_BYTES, HEADER_BYTES, Head, Header, Ring};
use neap_trace::track::{Allocation, HistoryId, Tracker};

use super::sys;

/// The files of all processes that run.
pub struct Sites {
    files: Vec<SiteFile>,
    /// Allocations that are missing from files that were read to their end.
    lost: u64,
    interval: u64,
    /// The clock when the round before this one began.
    before: u64,
    /// The same of this one.
    began: u64,
}

/// The file of a process.
struct SiteFile {
    history: HistoryId,
    path: PathBuf,
    file: Open,
    cursor: Cursor,
    /// What the writer says that it lost.
    lost: u64,
}

struct Open(File);

impl Ring for Open {
    fn head(&mut self) -> Option<Head> {
        let mut bytes = [0; size_of::<Header>()];
        self.0.read_exact_at(&mut bytes, 0).ok()?;
        Head::parse(&bytes).ok()
    }

    fn slots(&mut self, first: u64, bytes: &mut [u8]) -> bool {
        self.0.read_exact_at(bytes, HEADER_BYTES as u64 + first * ENTRY_BYTES as u64).is_ok()
    }
}

impl Sites {
    /// Nothing yet; one allocation in `interval` bytes will be recorded.
    pub fn new(interval: u64) -> Self {
        let now = sys::monotonic();
        Self { files: Vec::new(), lost: 0, interval, before: now, began: now }
    }

    /// A round begins: nothing was read of it.
    pub fn begin_round(&mut self) {
        self.before = std::mem::replace(&mut self.began, sys::monotonic());
    }

    /// Reads what is new. Called when the records of the round are read: what was allocated before them is there.
    pub fn read(&mut self, tracker: &mut Tracker) {
        let lost = &mut self.lost;
        let mut missing = 0;
        self.files.retain_mut(|file| {
            let over = tracker.is_over(file.history);
            file.read(over, tracker);
            let of_file = file.lost + file.cursor.lost();
            if over {
                *lost += of_file;
                // The memory is wanted back: there may be many processes.
                let _ = fs::remove_file(&file.path);
            } else {
                missing += of_file;
            }
            !over
        });
        tracker.note_sites(self.lost + missing, self.interval);
    }

    /// The records of the round before were taken: looks for new files.
    pub fn end_round(&mut self, tracker: &mut Tracker) {
        self.open(tracker);
        tracker.settle_sites(self.before);
    }

    /// Everything has happened.
    pub fn finish(&mut self, tracker: &mut Tracker) {
        self.open(tracker);
        self.read(tracker);
        let lost = self.files.iter().map(|file| file.lost + file.cursor.lost() + file.cursor.missing()).sum::<u64>();
        tracker.note_sites(self.lost + lost, self.interval);
    }

    fn open(&mut self, tracker: &mut Tracker) {
        for (history, path) in tracker.take_site_files() {
            let path = PathBuf::from(OsStr::from_bytes(&path));
            // In the directory of this user; what is no such file is not read as one.
            let opened = File::options().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW).open(&path);
            if let Ok(file) = opened {
                let mut file = SiteFile { history, path, file: Open(file), cursor: Cursor::default(), lost: 0 };
                file.read(false, tracker);
                self.files.push(file);
            }
        }
    }
}

impl SiteFile {
    fn read(&mut self, last: bool, tracker: &mut Tracker) {
        let history = self.history;
        self.cursor.read(&mut self.file, last, &mut |entry| {
            let (time, address, size) = (entry.time, entry.address, entry.size);
            tracker.allocation(history, Allocation { time, address, size, frames: entry.frames().to_vec() });
        });
        self.lost = self.file.head().map_or(self.lost, |head| head.lost);
    }
}
