//! The system that the allocator runs on, as one trait. `neap-sys` implements it for Linux, `neap-coretest` as a fake.

use crate::system::figures::Figures;
use crate::system::helper::Helper;
use crate::system::sync::Threads;
use core::ops::Range;

/// Neighbouring OS pages. Laid out as the system's `struct iovec`, so that an array of runs can be passed to it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Address of the first byte.
    pub start: *mut u8,
    /// Length in bytes, a multiple of the OS page size.
    pub len: usize,
}

impl Run {
    /// An empty run.
    pub const EMPTY: Run = Run { start: core::ptr::null_mut(), len: 0 };
}

/// The result of [`Os::touched`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touched {
    /// Number of runs that were stored in the array.
    pub runs: usize,
    /// Number of bytes, from the start, that were examined: all of them, unless the array of runs is full.
    pub looked: usize,
}

/// The result of [`Os::move_pages`] or [`Os::renew`]. There is no fourth case: a move is never done in part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// The call did its work.
    Done,
    /// The call failed: the memory to move is where it was, byte for byte. The other range is still committed, and may
    /// hold anything.
    Not,
    /// The call failed: the memory to move is where it was, byte for byte, but the other range is unmapped, or another
    /// thread has mapped something there. That range must never be used again, nor passed to any call of this trait but
    /// [`Os::touched`] and [`Os::is_dense`], which may say anything of it.
    Lost,
}

/// What the helper does next, see [`Os::onward`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Onward {
    /// It goes on.
    Go,
    /// It gives back all memory that waits, and ends: the process has other rights than the helper.
    Finish,
    /// It ends.
    End,
}

/// A thread. The system may give its number to a later thread, which has another place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thread {
    /// The system's number of the thread, not 0.
    pub number: u32,
    /// An address in the thread's own storage.
    pub place: usize,
}

/// Limit and use of the memory that this process shares with others: of the nearest container that has a limit, or of
/// the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Bytes that may be used.
    pub limit: usize,
    /// Bytes that are used, without those that the system can take back at once (cached files).
    pub used: usize,
    /// True if the system reports that threads wait for memory.
    pub stalled: bool,
}

/// The calls that the allocator makes to the system.
///
/// Lengths and addresses are multiples of [`Os::page_size`] unless stated otherwise. No call allocates. A call that
/// fails changes nothing, unless stated otherwise.
///
/// # Safety
/// An implementation must hand out only memory that is not in use, and must do to the given ranges what each method
/// says and nothing else.
pub unsafe trait Os: Threads {
    /// Size of an OS page in bytes: a power of two from 4 KiB to 64 KiB.
    fn page_size(&self) -> usize;

    /// The address range in which arenas are placed, if it has room. By default from 1 TiB up to the addresses where
    /// Linux loads position-independent programs.
    fn places(&self) -> Range<usize> {
        1 << 40..0x5400_0000_0000
    }

    /// Reserves `len` bytes at exactly `at`, without access and without memory. `None` if anything is mapped there
    /// already or the system refuses.
    fn reserve(&self, at: usize, len: usize) -> Option<*mut u8>;

    /// Gives back a part of a reservation, so that it no longer counts as address space of the process. False if the
    /// system refuses, or cannot do it; then the part may still count.
    ///
    /// # Safety
    /// The range must lie in a reservation of this `Os`, hold nothing that is needed, and never be used again: other
    /// code may map something there.
    unsafe fn unreserve(&self, _p: *mut u8, _len: usize) -> bool {
        false
    }

    /// Reserves `len` bytes at any address. They read as zero and cannot be written until they are committed.
    fn reserve_zeros(&self, len: usize) -> Option<*mut u8>;

    /// Makes reserved memory readable and writable; it reads as zero until written. False if the system refuses.
    ///
    /// # Safety
    /// The range must lie in a reservation of this `Os`.
    unsafe fn commit(&self, p: *mut u8, len: usize) -> bool;

    /// Called before memory that was committed, and was never in use, comes into use. Until then it is no part of what
    /// the system writes for debuggers (core dumps), and is not locked. From then on it is, if the process locks all
    /// its future memory (mlockall); false if the system refuses to lock it. `map`: the part of the page map, which is
    /// never written to core dumps. The same memory may come into use twice. Parts may be empty.
    ///
    /// # Safety
    /// The parts must be committed.
    unsafe fn begin_use(&self, _parts: &[Run], _map: Run) -> bool {
        true
    }

    /// Makes committed memory inaccessible until it is committed again. False if the system refuses.
    ///
    /// # Safety
    /// The range must be committed and hold nothing that is needed.
    unsafe fn guard(&self, p: *mut u8, len: usize) -> bool;

    /// Makes committed memory, which reads as zero, reserved memory again: as [`Os::guard`], for good unless it is
    /// committed again. False if the system refuses.
    ///
    /// # Safety
    /// The range must be committed and hold nothing that is needed.
    unsafe fn uncommit(&self, p: *mut u8, len: usize) -> bool {
        // SAFETY: as the caller promises.
        unsafe { self.guard(p, len) }
    }

    /// Maps `len` bytes of zeroed memory for a huge block, aligned to `align` (a power of two, at least an OS page).
    fn map(&self, len: usize, align: usize) -> Option<*mut u8>;

    /// Unmaps a mapping of [`Os::map`], or the tail of one. False if the system refuses; then its memory goes back all
    /// the same, if the system takes it.
    ///
    /// # Safety
    /// The range must be such a mapping or its tail, and must not be used afterwards.
    unsafe fn unmap(&self, p: *mut u8, len: usize) -> bool;

    /// Resizes a mapping of [`Os::map`] from `old` to `new` bytes, and moves it where needed. Contents are kept, new
    /// bytes are zero.
    ///
    /// # Safety
    /// The range must be such a mapping; on success the old address must no longer be used.
    unsafe fn remap(&self, p: *mut u8, old: usize, new: usize) -> Option<*mut u8>;

    /// Moves the memory of `len` committed bytes from `from` to `to`, without copying: all of it or nothing, see
    /// [`Moved`]. On success `from` is committed and reads as zero.
    ///
    /// # Safety
    /// Both ranges must be committed and must not overlap; `to` must hold nothing that is needed.
    unsafe fn move_pages(&self, from: *mut u8, to: *mut u8, len: usize) -> Moved;

    /// Replaces a committed range by fresh memory that reads as zero and forms one mapping with its neighbours again:
    /// for ranges whose mapping differs from theirs. It stays a mapping of its own where the process has reached its
    /// limit on mappings. "The other range" of [`Moved`] is this one; where the call fails, its memory goes back all
    /// the same, if the system takes it.
    ///
    /// # Safety
    /// The range must be committed and hold nothing that is needed.
    unsafe fn renew(&self, p: *mut u8, len: usize) -> Moved;

    /// Gives the memory of a committed range, or of a mapping, back to the system; the range reads as zero afterwards.
    /// False if the system refuses.
    ///
    /// # Safety
    /// The range must be committed or mapped, and hold nothing that is needed.
    unsafe fn purge(&self, p: *mut u8, len: usize) -> bool;

    /// Gives the memory of many committed runs back, as [`Os::purge`] does for one, with few system calls. Returns the
    /// number of runs, from the first on, that now read as zero.
    ///
    /// # Safety
    /// As [`Os::purge`], for each run.
    unsafe fn purge_runs(&self, runs: &[Run]) -> usize;

    /// Lets the system take the memory of a committed range whenever it needs memory. Until the range is written again,
    /// each of its OS pages reads as before or as zero. False if the system cannot do that.
    ///
    /// # Safety
    /// As [`Os::purge`].
    unsafe fn purge_lazily(&self, p: *mut u8, len: usize) -> bool;

    /// Allows huge pages for the next faults in a committed range, which is not touched. False if the system cannot do
    /// that.
    ///
    /// # Safety
    /// The range must be committed.
    unsafe fn allow_huge(&self, p: *mut u8, len: usize) -> bool;

    /// Whether the system has huge pages to give; if `asked`: whether it has, and gives them only on request. Makes no
    /// system call.
    fn has_huge_pages(&self, _asked: bool) -> bool {
        false
    }

    /// Whether the system gives huge pages only on request, and nearly all OS pages of a range, which is as long as a
    /// huge page, hold memory and are not part of a huge page. Other threads may use the range meanwhile.
    ///
    /// # Safety
    /// The range must lie in a reservation of this `Os`; parts of it may be lost ([`Moved::Lost`]).
    unsafe fn is_dense(&self, _p: *mut u8, _len: usize) -> bool {
        false
    }

    /// Gives a committed range, as long as a huge page and aligned to that, its memory as one. False if the system has
    /// none for it, or would take too long; a part of the range may be populated then. The range reads as zero.
    ///
    /// # Safety
    /// The range must be committed and read as zero, and no other thread may use it.
    unsafe fn populate_huge(&self, _p: *mut u8, _len: usize) -> bool {
        false
    }

    /// Allows huge pages in a reservation, or forbids them but for those of [`Os::populate_huge`] and
    /// [`Os::allow_huge`], also where memory is committed later. Best effort.
    ///
    /// # Safety
    /// The range must lie in a reservation of this `Os`.
    unsafe fn set_huge(&self, _p: *mut u8, _len: usize, _allow: bool) {}

    /// Puts the memory of a committed range, as long as a huge page and aligned to that, into one, if nearly all of its
    /// OS pages hold memory. Other threads may use it meanwhile: no contents change. Returns the microseconds of
    /// processor time that it took, also where it did nothing; `None` if the system cannot do it now.
    ///
    /// # Safety
    /// The range must be committed.
    unsafe fn promote(&self, _p: *mut u8, _len: usize) -> Option<u32> {
        None
    }

    /// Microseconds of processor time that [`Os::promote`] may take for now: a small part of what the process has used.
    fn promotion_time(&self) -> u32 {
        u32::MAX
    }

    /// Length in bytes of the pages of the pool that memory of arenas comes from (option `huge=hugetlb`); `None`:
    /// the option is not set, or the pool has no more; never the latter with `hugetlb=strict`.
    fn pool_page(&self) -> Option<usize> {
        None
    }

    /// Puts pages of the pool in the place of a committed range, which is as long as some of them and aligned to them.
    /// `Done`: the range is committed and reads as zero. `Not`: the same, but some of it has ordinary memory. "The
    /// other range" of [`Moved`] is this one. From then on other calls of this trait may be refused where they concern
    /// a part of such a page; memory goes back to the pool in [`Os::renew`] only.
    ///
    /// # Safety
    /// The range must be committed; it was never used, or only passed to this call.
    unsafe fn take_from_pool(&self, _p: *mut u8, _len: usize) -> Moved {
        Moved::Not
    }

    /// Populates every OS page of a committed range, as a write to it would, without changing what it reads as. Best
    /// effort: under memory pressure only part may be populated. False if none was, as the system cannot do that.
    ///
    /// # Safety
    /// The range must be committed, and no other thread may use it.
    unsafe fn populate(&self, p: *mut u8, len: usize) -> bool;

    /// Finds the OS pages of a range that may be other than zero: writes the runs of those that hold memory or are
    /// swapped out into `runs`, in order, until the range ends or `runs` is full. OS pages between the runs read as
    /// zero. `None` if the system cannot find out.
    ///
    /// # Safety
    /// The range must lie in a reservation or a mapping of this `Os`. The result holds only for OS pages that no other
    /// thread uses.
    unsafe fn touched(&self, p: *mut u8, len: usize, runs: &mut [Run]) -> Option<Touched>;

    /// Prepares [`Os::barrier`], whose first call could otherwise take milliseconds. False if the system has no
    /// barrier.
    fn prepare_barrier(&self) -> bool;

    /// Makes every other thread of the process pass a full memory barrier between the call and its return. False if the
    /// system cannot do that.
    fn barrier(&self) -> bool;

    /// Whether [`Os::barrier`] works already, without the time that its preparation takes.
    fn has_barrier(&self) -> bool {
        self.prepare_barrier()
    }

    /// Waits for about this many microseconds, up to some 20 without giving the processor up. Signals do not shorten
    /// it.
    fn pause(&self, _microseconds: u32) {}

    /// Time of a monotonic clock, in milliseconds.
    fn clock(&self) -> u64;

    /// Processor time of all threads of this process except the calling one, in microseconds; `None` if it is not
    /// known.
    fn run_time(&self) -> Option<u64>;

    /// Limit and use of the memory that this process shares with others; `None` if they are not known.
    fn memory(&self) -> Option<Memory>;

    /// The state of the helper, see `helper.rs`. It belongs to the address space: in the child of a fork, however it
    /// was made, it is zero, where the system can do that. Before [`Os::settle_helper`] it is zero as well.
    fn helper(&self) -> &Helper;

    /// [`Os::helper`], for a caller that is about to write to the state: from now on its address does not change.
    fn settle_helper(&self) -> &Helper {
        self.helper()
    }

    /// Resets the state of the helper in the child of a fork in which the C library's fork handlers ran.
    fn forked(&self) {
        self.helper().forked(self.process());
    }

    /// What the helper does next. The helper asks at least ten times a second, or once a second while nothing waits.
    fn onward(&self) -> Onward {
        Onward::Go
    }

    /// Shows the figures to observers, if there can be any. The caller holds no lock; several threads may call it at
    /// the same time.
    fn publish(&self, _: &Figures) {}

    /// Called at the end of a slow path, under no lock, in a call: another process has made a request (`request`; see
    /// `Allocator::REQUEST_AT`), or reads a probe (`Allocator::READERS_AT`). Returns true if the watch mode has
    /// changed, so that heaps have to adopt it.
    fn requested(&self, _request: bool) -> bool {
        false
    }

    /// Bytes of address space that the process may still take; `None` if there is no limit (RLIMIT_AS).
    fn address_limit(&self) -> Option<usize>;

    /// Bytes of private writable memory that the process may have, whether used or not (RLIMIT_DATA); `None` if there
    /// is no limit, or it is not known.
    fn data_limit(&self) -> Option<usize> {
        None
    }

    /// Whether the allocator may call [`Os::address_limit`] and [`Os::data_limit`] each time that it commits memory.
    fn looks_for_limits(&self) -> bool {
        true
    }

    /// Returns a number that an attacker cannot predict.
    fn random(&self) -> u64;

    /// The system's number of the calling thread.
    fn thread_id(&self) -> u32;

    /// Identifies the calling thread for [`Os::has_ended`]; `None` if that call must not be made.
    fn thread_to_ask_for(&self) -> Option<Thread> {
        None
    }

    /// Whether this thread, from [`Os::thread_to_ask_for`], has certainly ended, so that its thread storage may be
    /// unmapped. False where the system cannot find out.
    fn has_ended(&self, _thread: Thread) -> bool {
        false
    }

    /// Writes one line to standard error, then what the system can tell about the call and about the block at `block`
    /// (null: about none), and ends the process with SIGABRT. Without a line nothing is written.
    fn die(&self, line: &[u8], block: *const u8) -> !;
}
