//! Records where blocks are allocated, for a reader outside (layout: crates/sites; option `sites`).
//!
//! While this is on, every malloc takes its slow path (`Reason::Sites`), which comes here with the new block. Records
//! go into a ring in a shared mapping. One addition claims a slot, so there is no lock and nothing is allocated; a
//! handler may interrupt this anywhere and record its own blocks. The memory of the file is taken in steps by
//! MADV_POPULATE_WRITE. That fails where a store would raise SIGBUS, and it is no page fault in a trace.
//!
//! **Fork.** The mapping is not copied (MADV_DONTFORK), and [`Ring`] lies in memory that the kernel wipes: the child
//! makes a file of its own when it allocates.

use crate::observe::files::{Directory, map};
use crate::observe::once::Made;
use crate::observe::stack::{self, callers};
use crate::system::filter::{self, Asking};
use crate::system::{call, clock, random};
use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use neap_core::sample::by_chance;
use neap_sites::{CAPACITY, ENTRY_BYTES, Entry, FILE_BYTES, HEADER_BYTES, Header, MAGIC, VERSION};
use rustix::fd::OwnedFd;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use rustix::mm;

/// Number of slots whose memory is taken in one step.
const STEP: u64 = CAPACITY / 64;
const STEP_BYTES: usize = STEP as usize * ENTRY_BYTES;

/// Bytes between two recorded allocations on average; 0: nothing is recorded.
static INTERVAL: AtomicU64 = AtomicU64::new(0);
/// The directory of the files. In a section apart from the data that each start writes, because it is long.
#[unsafe(link_section = ".sbss.neap")]
static DIRECTORY: Directory = Directory::new();

/// The file of this process; all zero where it has none yet. It is never unmapped, and all its fields are atomic.
#[derive(Debug)]
pub struct Ring {
    /// The mapped file.
    file: Made<Header>,
    /// The system has refused more memory for it.
    is_full: AtomicBool,
    /// A bit for each step of it whose memory was taken.
    steps: AtomicU64,
    /// Allocations that were not recorded before there was a file.
    lost: AtomicU64,
}

/// Begins to record, in a new file in `directory`, allocations that are `interval` bytes apart on average. False if
/// there can be no file.
///
/// # Safety
/// To be called once, while the process has one thread.
pub unsafe fn start(ring: &Ring, directory: &CStr, interval: u64) -> bool {
    // SAFETY: as the caller promises.
    if !stack::start() || !unsafe { DIRECTORY.set(directory) } {
        return false;
    }
    // Relaxed: the process has one thread.
    INTERVAL.store(interval.max(1), Ordering::Relaxed);
    let started = ring.file(|| false).is_some();
    if !started {
        INTERVAL.store(0, Ordering::Relaxed);
    }
    started
}

/// Bytes between two recorded allocations on average; 0: nothing is recorded.
#[inline]
pub fn interval() -> u64 {
    INTERVAL.load(Ordering::Relaxed)
}

/// The directory of the files; empty where nothing is recorded.
pub fn directory() -> &'static [u8] {
    if interval() == 0 { b"" } else { DIRECTORY.bytes() }
}

impl Ring {
    /// A ring without a file.
    pub(crate) const fn new() -> Ring {
        Ring { file: Made::new(), is_full: AtomicBool::new(false), steps: AtomicU64::new(0), lost: AtomicU64::new(0) }
    }

    /// Records a new block of `size` bytes, if it is chosen. Called in slow paths, also of handlers. `is_guest`:
    /// whether the calling process is a guest of the owner of this file.
    #[cold]
    #[inline(never)]
    pub fn record(&self, is_guest: impl Fn() -> bool, p: *mut u8, size: usize) {
        let interval = interval();
        if !by_chance(size, interval, if interval <= 1 { 0 } else { random::RANDOM.next() }) {
            return;
        }
        let Some(header) = self.file(is_guest) else {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let number = header.head.fetch_add(1, Ordering::Relaxed);
        let slot = number % CAPACITY;
        if !self.ensure_memory(header, slot) {
            header.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let nanoseconds = clock::read(libc::CLOCK_MONOTONIC).map_or(0, |now| now.as_nanos() as u64);
        let mut entry = Entry::new(nanoseconds, p.addr() as u64, size as u64);
        callers(&mut |frame| entry.push(frame));
        let (words, used) = entry.encode(number);
        let base = core::ptr::from_ref(header).cast::<u8>();
        for (i, &word) in words[..used].iter().enumerate() {
            // SAFETY: the slot is within the file, whose mapping is never unmapped, and it has memory.
            let place = unsafe { &*base.add(HEADER_BYTES + slot as usize * ENTRY_BYTES + i * 8).cast::<AtomicU64>() };
            // Relaxed: a reader finds out by the check whether all words are there.
            place.store(word, Ordering::Relaxed);
        }
    }

    /// The process's own file, which is made where there is none yet. If two threads do so at the same time, the
    /// allocation of one is not recorded.
    fn file(&self, is_guest: impl Fn() -> bool) -> Option<&'static Header> {
        self.file.get_or_make(|| !is_guest(), |filtered| self.new_file(filtered))
    }

    fn new_file(&self, filtered: bool) -> Option<&'static Header> {
        // A filter might end the process for such calls, and for querying the limit.
        if filtered || call::is_too_long(FILE_BYTES) {
            return None;
        }
        let p = DIRECTORY.create(|file| self.map(file))?;
        stack::populate_rows();
        // SAFETY: zeroed, shared, longer than a header and never unmapped; all fields are atomic.
        let header = unsafe { &*p.cast::<Header>() };
        header.version.store(VERSION, Ordering::Relaxed);
        header.pid.store(call::process(), Ordering::Relaxed);
        header.interval.store(interval(), Ordering::Relaxed);
        header.lost.store(self.lost.load(Ordering::Relaxed), Ordering::Relaxed);
        // Release: a reader that sees the magic sees the rest.
        header.magic.store(MAGIC, Ordering::Release);
        Some(header)
    }

    /// Maps a new file, with memory for its first slots.
    fn map(&self, file: &OwnedFd) -> Option<*mut u8> {
        rustix::fs::ftruncate(file, FILE_BYTES as u64).ok()?;
        let p = map(Some(file), FILE_BYTES, true)?;
        let (mut taken, mut steps) = (call::populate(p, HEADER_BYTES + STEP_BYTES), 1);
        // Before Linux 5.14: all of it at once.
        if taken == Err(Errno::INVAL) {
            taken = rustix::fs::fallocate(file, FallocateFlags::empty(), 0, FILE_BYTES as u64);
            steps = u64::MAX;
        }
        self.steps.store(steps, Ordering::Relaxed);
        if taken.is_err() {
            // SAFETY: no other thread has seen the mapping.
            let _ = unsafe { mm::munmap(p.cast(), FILE_BYTES) };
            return None;
        }
        Some(p)
    }

    /// Takes memory for a slot where it has none; false if the system refuses.
    fn ensure_memory(&self, header: &'static Header, slot: u64) -> bool {
        let step = slot / STEP;
        // Relaxed: memory that was taken stays.
        if self.steps.load(Ordering::Relaxed) & 1 << step != 0 {
            return true;
        }
        let _asking = Asking::begin();
        if self.is_full.load(Ordering::Relaxed) || filter::is_forbidden() {
            return false;
        }
        let base = core::ptr::from_ref(header).cast_mut().cast::<u8>();
        let start = base.wrapping_add(HEADER_BYTES + step as usize * STEP_BYTES);
        // The slots begin at a border of 4 KiB, which may lie inside of a longer OS page.
        let aligned = start.map_addr(|address| address & !(call::page_size() - 1));
        if call::populate(aligned, STEP_BYTES + (start.addr() - aligned.addr())).is_err() {
            self.is_full.store(true, Ordering::Relaxed);
            return false;
        }
        self.steps.fetch_or(1 << step, Ordering::Relaxed);
        true
    }
}
