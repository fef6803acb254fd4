//! Reads the files in which processes on neap record their allocations, while they are being written (crates/sites).

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;

use neap_sites::{Cursor, ENTRY_BYTES, HEADER_BYTES, Head, Header, Ring};
use neap_trace::track::{Allocation, HistoryId, Tracker};

use super::sys;

/// The files of all running processes.
pub struct Sites {
    files: Vec<SiteFile>,
    /// Allocations that are missing from files that were read to their end.
    lost: u64,
    interval: u64,
    /// The clock when the previous round began.
    before: u64,
    /// The clock when this round began.
    began: u64,
}

/// The file of a process.
struct SiteFile {
    history: HistoryId,
    path: PathBuf,
    file: Open,
    cursor: Cursor,
    /// Losses that the writer reports.
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
    /// Starts without files; one allocation in `interval` bytes will be recorded.
    pub fn new(interval: u64) -> Self {
        let now = sys::monotonic();
        Self { files: Vec::new(), lost: 0, interval, before: now, began: now }
    }

    /// Begins a round, before anything of it is read.
    pub fn begin_round(&mut self) {
        self.before = std::mem::replace(&mut self.began, sys::monotonic());
    }

    /// Reads what is new. Called after the records of the round were read: earlier allocations are in the files then.
    pub fn read(&mut self, tracker: &mut Tracker) {
        let lost = &mut self.lost;
        let mut missing = 0;
        self.files.retain_mut(|file| {
            let over = tracker.is_over(file.history);
            file.read(over, tracker);
            let of_file = file.lost + file.cursor.lost();
            if over {
                *lost += of_file;
                // Frees the memory: there may be many processes.
                let _ = fs::remove_file(&file.path);
            } else {
                missing += of_file;
            }
            !over
        });
        tracker.note_sites(self.lost + missing, self.interval);
    }

    /// Call after the records of the round were processed: looks for new files.
    pub fn end_round(&mut self, tracker: &mut Tracker) {
        self.open(tracker);
        tracker.settle_sites(self.before);
    }

    /// Reads the rest at the end.
    pub fn finish(&mut self, tracker: &mut Tracker) {
        self.open(tracker);
        self.read(tracker);
        let lost = self.files.iter().map(|file| file.lost + file.cursor.lost() + file.cursor.missing()).sum::<u64>();
        tracker.note_sites(self.lost + lost, self.interval);
    }

    fn open(&mut self, tracker: &mut Tracker) {
        for (history, path) in tracker.take_site_files() {
            let path = PathBuf::from(OsStr::from_bytes(&path));
            // The directory is this user's; other kinds of files are not read as sites.
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
