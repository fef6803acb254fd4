//! Keeps the sampled blocks for a profile: which stacks allocated them, and which are live (layout: crates/samples).
//!
//! The slow paths come here with each sample, in no call and under no lock. The file is a shared mapping: in a
//! directory, where option `profile` names one, so that it outlives the process; else a memory file without a name in
//! any directory, or plain memory where a seccomp filter might end the process for that. It has all its memory from the
//! start, so no store to it brings SIGBUS. Writers take places by one compare-exchange, so there is no lock and nothing
//! is allocated; a handler may interrupt this anywhere and record its own samples.
//!
//! **Requests.** Another process may ask for samples at any time (`neap_samples::control`). A request has a lease:
//! sampling ends by itself if the asker goes away.
//!
//! **Fork.** The mapping is not copied (MADV_DONTFORK), and [`Kept`] lies in memory that the kernel wipes: the child
//! makes a file of its own at its first sample, and has none of its parent's. A sample of the parent's that the child
//! frees is counted as a stranger.

use crate::allocator::NEAP;
use crate::observe::files::{Directory, map, memory_file};
use crate::observe::once::Made;
use crate::observe::stack::{self, callers, with_module};
use crate::system::filter::Asking;
use crate::system::space::{self, Space};
use crate::system::{call, clock, filter};
use crate::watch;
use core::ffi::CStr;
use core::sync::atomic::{AtomicU64, Ordering};
use neap_samples::{EXACT_SHIFT, FRAMES, HEADER_WORDS, LIVE_SHIFT, MODULE_SHIFT, PATH_BYTES, Table, Word, words};
use rustix::fd::OwnedFd;
use rustix::fs::{CWD, FallocateFlags};

/// The usual mean number of bytes between two samples.
pub const DEFAULT: u64 = 512 << 10;

/// The name of a memory file of samples.
const NAME: &CStr = c"neap-samples";

/// Mean bytes between two samples; 0: nothing is kept.
static INTERVAL: AtomicU64 = AtomicU64::new(0);
/// When the lease of the last request ends, in nanoseconds; 0: never.
static UNTIL: AtomicU64 = AtomicU64::new(0);
/// The directory of the files. Apart from the data that each start writes, as it is long.
#[unsafe(link_section = ".neap.late")]
static DIRECTORY: Directory = Directory::new();

/// What a file begins with.
#[repr(transparent)]
#[derive(Debug)]
pub struct Header([AtomicU64; HEADER_WORDS]);

/// The file of this process; all zero where it has none yet. It is never unmapped, and all its words are atomic.
#[derive(Debug)]
pub struct Kept {
    file: Made<Header>,
    /// Words of the file.
    length: AtomicU64,
    /// Samples that were not recorded before there was a file.
    lost: AtomicU64,
}

/// Mean bytes between two samples that are kept; 1: each block; 0: none is kept.
#[inline]
pub fn interval() -> u64 {
    // Relaxed, as all uses: the value stands for itself.
    INTERVAL.load(Ordering::Relaxed)
}

/// The directory of the files; empty where there is none.
pub fn directory() -> &'static [u8] {
    DIRECTORY.bytes()
}

/// Begins to keep samples, as [`start`], in files that are made in `directory`. False if there can be no file.
///
/// # Safety
/// To be called once, while the process has one thread.
pub unsafe fn start_in(directory: &CStr, interval: u64) -> bool {
    // SAFETY: as the caller promises.
    if !unsafe { DIRECTORY.set(directory) } {
        return false;
    }
    INTERVAL.store(interval, Ordering::Relaxed);
    let made = make_file();
    if made {
        start(interval)
    } else {
        INTERVAL.store(0, Ordering::Relaxed)
    }
    made
}

/// Begins to keep samples that are `interval` bytes apart on average, or each block (1). Not in a call.
pub fn start(interval: u64) {
    NEAP.control.lease.store(0, Ordering::Relaxed);
    choose(interval, 0);
    watch::apply();
}

/// Ends that. The file stays, and frees of samples are noted in it.
pub fn stop() {
    choose(0, 0);
    watch::apply();
}

fn choose(interval: u64, until: u64) {
    UNTIL.store(until, Ordering::Relaxed);
    INTERVAL.store(interval, Ordering::Relaxed);
    NEAP.control.state.store(interval, Ordering::Relaxed);
    watch::choose_samples();
}

fn now() -> u64 {
    clock::read(libc::CLOCK_MONOTONIC).map_or(0, |now| now.as_nanos() as u64)
}

/// Does what another process has asked for. See `Os::requested`.
#[cold]
pub fn requested() -> bool {
    let control = &NEAP.control;
    let number = control.request.load(Ordering::Acquire);
    if number == 0 || number == control.answer.load(Ordering::Relaxed) {
        return true;
    }
    let lease = control.lease.load(Ordering::Relaxed);
    let until = if lease == 0 { 0 } else { now().saturating_add(lease.saturating_mul(1_000_000)) };
    choose(control.interval.load(Ordering::Relaxed), until);
    control.process.store(u64::from(filter::known_process().unwrap_or(0)), Ordering::Relaxed);
    if let Some(kept) = space::space().map(|space| &space.profile)
        && kept.length.load(Ordering::Relaxed) == 0
    {
        // The copy of a parent's.
        control.file.store(0, Ordering::Relaxed);
    }
    // Release: an asker that sees the answer sees the rest.
    control.answer.store(number, Ordering::Release);
    true
}

/// Keeps a new block of `size` requested bytes that stands for `weight` bytes. Called in slow paths, in no call.
#[cold]
#[inline(never)]
pub fn allocated(p: *mut u8, size: usize, weight: u64) {
    let Some(space) = space::space() else { return };
    let Some(table) = space.profile.table(space) else {
        space.profile.lost.fetch_add(1, Ordering::Relaxed);
        return;
    };
    if space.profile.lost.load(Ordering::Relaxed) != 0 {
        let lost = space.profile.lost.swap(0, Ordering::Relaxed);
        table.header(Word::Lost).fetch_add(lost, Ordering::Relaxed);
    }
    let time = now();
    let until = UNTIL.load(Ordering::Relaxed);
    if until != 0 && time > until {
        // The asker has gone away. Heaps follow at their next slow path, which is their next call.
        choose(0, 0);
    }
    let (mut frames, mut count) = ([0; FRAMES], 0);
    callers(&mut |frame| {
        frames[count] = frame;
        count += 1;
        count < FRAMES
    });
    // The last object: neighbouring frames are often of the same.
    let mut last = (0, 0, 0);
    for frame in &mut frames[..count] {
        let at = frame.wrapping_sub(1);
        if !(last.0..last.1).contains(&at) {
            last = with_module(at, |module| (module.start, module.end, table.frame(0, module))).unwrap_or((0, 0, 0));
        }
        *frame = *frame & ((1 << MODULE_SHIFT) - 1) | last.2;
    }
    let stack = table.stack(&frames[..count]);
    table.allocated(p.addr() as u64, size as u64, weight, stack, time);
}

/// Notes that the sampled block at `p` is about to be freed. The block must be the caller's.
#[cold]
#[inline(never)]
pub fn freed(p: *mut u8) {
    let Some(space) = space::space() else { return };
    // No file is made for this.
    let Some(table) = space.profile.existing() else { return };
    if !table.freed(p.addr() as u64) {
        table.stranger_freed();
    }
}

impl Kept {
    /// No file.
    pub(crate) const fn new() -> Self {
        Kept { file: Made::new(), length: AtomicU64::new(0), lost: AtomicU64::new(0) }
    }

    /// The file, which is made where there is none yet.
    fn table(&self, space: &Space) -> Option<Table<'static>> {
        if interval() == 0 {
            return self.existing();
        }
        let header = self.file.get_or_make(|| !space.is_guest(), |filtered| self.new_file(filtered))?;
        self.of(header)
    }

    fn existing(&self) -> Option<Table<'static>> {
        self.of(self.file.get()?)
    }

    fn of(&self, header: &'static Header) -> Option<Table<'static>> {
        // Relaxed: it was stored before the file was published.
        let length = self.length.load(Ordering::Relaxed) as usize;
        // SAFETY: the mapping has as many words, is never unmapped, and is used by atomic operations only.
        Table::of(unsafe { core::slice::from_raw_parts((&raw const header.0).cast::<AtomicU64>(), length) })
    }

    fn new_file(&self, filtered: bool) -> Option<&'static Header> {
        let shift = if interval() == 1 { EXACT_SHIFT } else { LIVE_SHIFT };
        let bytes = (words(shift) * 8).next_multiple_of(call::page_size());
        let p = if directory().is_empty() {
            let file = if filtered { None } else { memory_file(NAME, bytes) };
            file.and_then(|file| map(Some(&file), bytes, true)).or_else(|| map(None, bytes, true))?
        } else {
            // A filter might end the process for such calls, also for the question of the limit.
            if filtered || call::is_too_long(bytes) {
                return None;
            }
            DIRECTORY.create(|file| in_file(file, bytes))?
        };
        stack::populate_rows();
        let mut path = [0; PATH_BYTES];
        let program = if filtered { None } else { rustix::fs::readlinkat_raw(CWD, c"/proc/self/exe", &mut path).ok() };
        let program = program.and_then(|length| path.get(..length)).unwrap_or(&[]);
        let date = clock::read(libc::CLOCK_REALTIME).map_or(0, |now| now.as_nanos() as u64);
        let process = if filtered { 0 } else { u64::from(call::process()) };
        // SAFETY: zeroed, as long, never unmapped; used by atomic operations only.
        let all = unsafe { core::slice::from_raw_parts(p.cast::<AtomicU64>(), words(shift)) };
        let values = [
            (Word::LiveShift, u64::from(shift)),
            (Word::Process, process),
            (Word::Interval, interval()),
            (Word::Started, now()),
            (Word::Date, date),
        ];
        Table::set_up(all, &values, program)?;
        self.length.store(words(shift) as u64, Ordering::Relaxed);
        let control = &NEAP.control;
        control.process.store(process, Ordering::Relaxed);
        // Release: an asker that sees the address sees the rest.
        control.file.store(p.expose_provenance() as u64, Ordering::Release);
        // SAFETY: as above.
        Some(unsafe { &*p.cast::<Header>() })
    }
}

/// Maps a new file of a directory, which gets all its memory.
fn in_file(file: &OwnedFd, bytes: usize) -> Option<*mut u8> {
    call::without_signals(|| rustix::fs::fallocate(file, FallocateFlags::empty(), 0, bytes as u64)).ok()?;
    map(Some(file), bytes, true)
}

/// Makes the file, so that it is there also in a process without a sample.
fn make_file() -> bool {
    let _asking = Asking::begin();
    space::space().is_some_and(|space| space.profile.table(space).is_some())
}
