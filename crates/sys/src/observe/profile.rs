//! Keeps the sampled blocks for a profile: which stacks allocated them, and which are live (layout: crates/samples).
//!
//! The slow paths come here with each sample, in no call and under no lock. The file is a shared mapping: in a
//! directory, where option `profile` names one, so that it outlives the process; else a memory file without a name in
//! any directory, or plain memory where a seccomp filter might end the process for that. A file has all its memory from
//! the start, so no store to it raises SIGBUS. Writers take places by one compare-exchange, so there is no lock and
//! nothing is allocated; a handler may interrupt this anywhere and record its own samples.
//!
//! **Requests.** Another process may request samples at any time (`neap_samples::control`). A request has a lease:
//! sampling ends by itself if the requester goes away.
//!
//! **Fork.** The mapping is not copied (MADV_DONTFORK), and [`Kept`] lies in memory that the kernel wipes: the child
//! makes a file of its own at its first sample, and has none of its parent's. A sample of the parent's that the child
//! frees is counted as a stranger.

use crate::observe::files::{Directory, map, memory_file};
use crate::observe::once::Made;
use crate::observe::stack::{self, callers, with_module};
use crate::system::filter::Asking;
use crate::system::{call, clock, wait};
use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use neap_samples::control::Control;
use neap_samples::{EXACT_SHIFT, FRAMES, HEADER_WORDS, LIVE_SHIFT, MODULE_SHIFT, PATH_BYTES, Table, Word, words};
use rustix::fd::OwnedFd;
use rustix::fs::{CWD, FallocateFlags};

/// The usual mean number of bytes between two samples.
pub const DEFAULT: u64 = 512 << 10;

/// Milliseconds that a thread waits for another one that makes the file.
const PATIENCE: u32 = 2000;

/// The name of a memory file of samples.
const NAME: &CStr = c"neap-samples";

/// Mean bytes between two samples; 0: nothing is kept.
static INTERVAL: AtomicU64 = AtomicU64::new(0);
/// When the lease of the last request ends, in nanoseconds; 0: never.
static UNTIL: AtomicU64 = AtomicU64::new(0);
/// The interval that the program itself has chosen; 0: none, so requests decide.
static OWN: AtomicU64 = AtomicU64::new(0);
/// The file has blocks from a time when every block was kept, and their frees are no longer noted.
static PAST: AtomicBool = AtomicBool::new(false);
/// The directory of the files. In a section apart from the data that each start writes, because it is long.
#[unsafe(link_section = ".sbss.neap")]
static DIRECTORY: Directory = Directory::new();

/// What a file begins with.
#[repr(transparent)]
#[derive(Debug)]
pub struct Header([AtomicU64; HEADER_WORDS]);

/// The file of this process; all zero where it has none yet. It is never unmapped, and all its words are atomic.
#[derive(Debug)]
pub struct Kept {
    file: Made<Header>,
    /// Length of the file in words.
    length: AtomicU64,
    /// Samples that were not recorded before there was a file.
    lost: AtomicU64,
}

/// Mean bytes between two samples that are kept; 1: every block; 0: none.
#[inline]
pub fn interval() -> u64 {
    // Relaxed, as all uses: the value stands for itself.
    INTERVAL.load(Ordering::Relaxed)
}

/// The place of the files.
pub fn place() -> &'static Directory {
    &DIRECTORY
}

/// The directory of the files; empty where there is none.
pub fn directory() -> &'static [u8] {
    DIRECTORY.bytes()
}

/// Has the files made in `directory`. False if its path is too long.
///
/// # Safety
/// To be called once, while the process has one thread.
pub unsafe fn set_directory(directory: &CStr) -> bool {
    // SAFETY: as the caller promises.
    unsafe { DIRECTORY.set(directory) }
}

/// Sets the mean bytes between two samples, and when the lease for them ends (in nanoseconds; 0: never).
pub fn set(control: &Control, interval: u64, until: u64) {
    UNTIL.store(until, Ordering::Relaxed);
    INTERVAL.store(interval, Ordering::Relaxed);
    control.state.store(interval, Ordering::Relaxed);
}

/// Sets what the program itself chooses, which requests do not change; 0: they do.
pub fn choose(interval: u64) {
    OWN.store(interval, Ordering::Relaxed);
}

/// What the program itself has chosen; 0: nothing.
pub fn chosen() -> u64 {
    OWN.load(Ordering::Relaxed)
}

/// Notes that from now on not every block is kept.
pub fn end_exact() {
    PAST.store(true, Ordering::Relaxed);
}

/// Whether the caller must call [`Kept::forget_exact`], because samples begin again.
pub fn take_past() -> bool {
    PAST.load(Ordering::Relaxed) && PAST.swap(false, Ordering::Relaxed)
}

/// When the lease of the last request ends, in nanoseconds; 0: never.
pub fn until() -> u64 {
    UNTIL.load(Ordering::Relaxed)
}

fn now() -> u64 {
    clock::read(libc::CLOCK_MONOTONIC).map_or(0, |now| now.as_nanos() as u64)
}

/// Adopts what another process has requested in `control`, and returns the number of the request, for [`answer`];
/// `None` if that was done before. Where the program itself has chosen to keep samples, a request changes nothing.
/// `process`: the number of this process, or 0.
#[cold]
pub fn follow_request(control: &Control, kept: Option<&Kept>, process: u32) -> Option<u64> {
    // Acquire pairs with the Release of the requester: its other words are seen.
    let number = control.request.load(Ordering::Acquire);
    if number == 0 || number == control.answer.load(Ordering::Relaxed) {
        return None;
    }
    if chosen() == 0 {
        let lease = control.lease.load(Ordering::Relaxed);
        let until = if lease == 0 { 0 } else { now().saturating_add(lease.saturating_mul(1_000_000)) };
        set(control, control.interval.load(Ordering::Relaxed), until);
    } else {
        control.lease.store(0, Ordering::Relaxed);
    }
    control.process.store(process.into(), Ordering::Relaxed);
    if let Some(kept) = kept.filter(|kept| kept.length.load(Ordering::Relaxed) == 0) {
        // A copy of the parent's address.
        control.file.store(0, Ordering::Relaxed);
        kept.file.allow_again();
    }
    if interval() != 0
        && let Some(table) = kept.and_then(Kept::existing)
    {
        // The file may be that of an earlier request.
        table.header(Word::Interval).store(interval(), Ordering::Relaxed);
    }
    Some(number)
}

/// Answers the request of this number, which was followed. Another one may have come meanwhile.
pub fn answer(control: &Control, number: u64) {
    // Release: a requester that sees the answer sees the rest.
    control.answer.store(number, Ordering::Release);
}

/// To be called in the child of a fork, which has a copy of its parent's block and no file yet.
pub fn forked(control: &Control) {
    if control.file.load(Ordering::Relaxed) != 0 {
        control.file.store(0, Ordering::Relaxed);
    }
}

/// Whether the lease has ended: the requester has gone away.
pub fn is_over() -> bool {
    let until = until();
    until != 0 && now() > until
}

impl Kept {
    /// No file.
    pub(crate) const fn new() -> Self {
        Kept { file: Made::new(), length: AtomicU64::new(0), lost: AtomicU64::new(0) }
    }

    /// Keeps a new block of `size` requested bytes that stands for `weight` bytes; `None`: every block is kept, and
    /// stands for itself. Must not be called within a call of malloc or free. `is_guest`: whether the calling process
    /// is a guest of the owner of this file.
    #[cold]
    #[inline(never)]
    pub fn allocated(
        &self,
        control: &Control,
        is_guest: impl Fn() -> bool,
        p: *mut u8,
        size: usize,
        weight: Option<u64>,
    ) {
        let Some(table) = self.table(control, is_guest) else {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return;
        };
        if self.lost.load(Ordering::Relaxed) != 0 {
            table.header(Word::Lost).fetch_add(self.lost.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        }
        let time = now();
        let (mut frames, mut count) = ([0; FRAMES], 0);
        callers(&mut |frame| {
            let Some(place) = frames.get_mut(count) else { return false };
            *place = frame;
            count += 1;
            count < FRAMES
        });
        // The last object: neighbouring frames are often of the same.
        let mut last = (0, 0, 0);
        for frame in frames.iter_mut().take(count) {
            let at = frame.wrapping_sub(1);
            if !(last.0..last.1).contains(&at) {
                let found = with_module(at, |module| (module.start, module.end, table.frame(0, module)));
                last = found.unwrap_or((0, 0, 0));
            }
            *frame = *frame & ((1 << MODULE_SHIFT) - 1) | last.2;
        }
        let stack = table.stack(frames.get(..count).unwrap_or(&[]));
        let (address, size) = (p.addr() as u64, size as u64);
        match weight {
            Some(weight) => table.allocated(address, size, weight, stack, time),
            None => table.allocated_exact(address, size, stack, time),
        }
    }

    /// Notes that the sampled block at `p` is about to be freed. The block must be the caller's. No file is made for
    /// this.
    #[cold]
    #[inline(never)]
    pub fn freed(&self, p: *mut u8) {
        let Some(table) = self.existing() else { return };
        if !table.freed(p.addr() as u64) {
            table.stranger_freed();
        }
    }

    /// Counts as freed all live blocks from the time when every block was kept: their frees have not been noted since,
    /// and new blocks may have their addresses.
    #[cold]
    pub fn forget_exact(&self) {
        if let Some(table) = self.existing() {
            table.forget_exact();
        }
    }

    /// Passes the frames of the stack that allocated the block at `p` to `f`, if it is a sample and live.
    pub fn with_stack_of(&self, p: *const u8, f: impl FnOnce(&mut dyn Iterator<Item = u64>)) {
        let Some(table) = self.existing() else { return };
        if let Some(frames) = table.stack_of(p.addr() as u64) {
            f(&mut frames.map(|frame| frame & ((1 << MODULE_SHIFT) - 1)));
        }
    }

    /// Makes the file, so that it is there also in a process without a sample. Where another thread makes it just now,
    /// waits for that.
    pub fn make(&self, control: &Control) -> bool {
        let is_there = || {
            let _asking = Asking::begin();
            self.table(control, || false).is_some()
        };
        self.file.allow_again();
        for _ in 0..PATIENCE {
            if is_there() {
                return true;
            }
            if !self.file.is_being_made() {
                break;
            }
            wait::pause(1000);
        }
        // The other thread may have finished between the two checks.
        is_there()
    }

    /// The file, which is made where there is none yet.
    fn table(&self, control: &Control, is_guest: impl Fn() -> bool) -> Option<Table<'static>> {
        if interval() == 0 {
            return self.existing();
        }
        let header = self.file.get_or_make(|| !is_guest(), |filtered| self.new_file(control, filtered))?;
        self.of(header)
    }

    /// The file, if there is one.
    pub fn existing(&self) -> Option<Table<'static>> {
        self.of(self.file.get()?)
    }

    fn of(&self, header: &'static Header) -> Option<Table<'static>> {
        // Relaxed: it was stored before the file was published.
        let length = self.length.load(Ordering::Relaxed) as usize;
        // SAFETY: the mapping has as many words, is never unmapped, and is used by atomic operations only.
        Table::of(unsafe { core::slice::from_raw_parts((&raw const header.0).cast::<AtomicU64>(), length) })
    }

    fn new_file(&self, control: &Control, filtered: bool) -> Option<&'static Header> {
        let shift = if interval() == 1 { EXACT_SHIFT } else { LIVE_SHIFT };
        let bytes = (words(shift) * 8).next_multiple_of(call::page_size());
        let p = if directory().is_empty() {
            let file = if filtered { None } else { memory_file(NAME, bytes) };
            file.and_then(|file| map(Some(&file), bytes, true)).or_else(|| map(None, bytes, true))?
        } else {
            // A filter might end the process for such calls, and for querying the limit.
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
        // SAFETY: the mapping has as many words, is zeroed and never unmapped, and is used by atomic operations only.
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
        control.process.store(process, Ordering::Relaxed);
        // Release: a requester that sees the address sees the rest.
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

#[cfg(test)]
mod tests {
    use super::*;
    use neap_samples::control::HeapPlaces;

    fn control() -> Control {
        Control::new(0, HeapPlaces { layout: 0, arenas: 0, heaps: 0, huge: 0 })
    }

    fn ask(control: &Control, number: u64, interval: u64) {
        control.interval.store(interval, Ordering::Relaxed);
        control.lease.store(5000, Ordering::Relaxed);
        control.request.store(number, Ordering::Release);
    }

    /// Catches a request that is answered and never followed, because it came while another one was; and the program's
    /// own choice that a request takes away.
    #[test]
    fn requests() {
        let asked = control();
        assert_eq!(follow_request(&asked, None, 7), None);
        ask(&asked, 10, 1000);
        let first = follow_request(&asked, None, 7).expect("a request");
        assert!(interval() == 1000 && until() != 0);
        ask(&asked, 11, 2000);
        answer(&asked, first);
        assert_eq!(asked.answer.load(Ordering::Relaxed), 10);
        let second = follow_request(&asked, None, 7).expect("the other one");
        assert_eq!((second, interval()), (11, 2000));
        answer(&asked, second);
        assert_eq!(follow_request(&asked, None, 7), None);
        choose(3000);
        set(&asked, 3000, 0);
        for (number, wanted) in [(12, 500), (13, 0)] {
            ask(&asked, number, wanted);
            let followed = follow_request(&asked, None, 7).expect("a request");
            answer(&asked, followed);
            assert_eq!((interval(), until(), asked.lease.load(Ordering::Relaxed)), (3000, 0, 0));
        }
        choose(0);
        set(&asked, 0, 0);
    }
}
