//! The system below the allocator, as one trait. `neap-sys` implements it for Linux, `neap-coretest` as a fake.

use crate::system::figures::Figures;
use crate::system::helper::Helper;
use crate::system::sync::Threads;
use core::ops::Range;

/// Neighbouring OS pages. Laid out as the system's `struct iovec`, so that runs are handed to it as they are.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// First byte.
    pub start: *mut u8,
    /// Bytes: whole OS pages.
    pub len: usize,
}

impl Run {
    /// No page.
    pub const EMPTY: Run = Run { start: core::ptr::null_mut(), len: 0 };
}

/// What [`Os::touched`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touched {
    /// How many runs were written.
    pub runs: usize,
    /// How many bytes from the start were looked at: all of them, unless the room for runs was used up.
    pub looked: usize,
}

/// What became of [`Os::move_pages`] or [`Os::renew`]. There is no fourth case: a move is never done in part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// It was done.
    Done,
    /// It was not done. What was to be moved is where it was, byte for byte. The other range is still committed, and may
    /// hold anything.
    Not,
    /// It was not done, and what was to be moved is where it was, byte for byte. The other range is not mapped any more,
    /// or another thread has mapped something there: it must never be used again, nor passed to any call of this trait.
    Lost,
}

/// What the helper does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Onward {
    /// It goes on.
    Go,
    /// It gives back all that waits and ends: the process has other rights than the helper.
    Finish,
    /// It ends.
    End,
}

/// A thread. The system gives its number to a later thread, whose place is another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thread {
    /// Not 0.
    pub number: u32,
    /// An address in the thread's own storage.
    pub place: usize,
}

/// Memory that this process may use together with others, and how much of it is used: of the nearest container that
/// has a limit, or of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Bytes that may be used.
    pub limit: usize,
    /// Bytes that are used, without what the system can take back at once (files that it caches).
    pub used: usize,
    /// The system reports that threads wait for memory.
    pub stalled: bool,
}

/// What the allocator needs of the system.
///
/// Lengths and addresses are multiples of [`Os::page_size`] unless stated. No call allocates. A call that fails
/// changes nothing, unless stated; the allocator then returns NULL to its caller.
///
/// # Safety
/// An implementation must hand out only memory that nobody else uses, and must do to the given ranges what each
/// method says and nothing else.
pub unsafe trait Os: Threads {
    /// Bytes of an OS page: a power of two from 4 KiB to 64 KiB.
    fn page_size(&self) -> usize;

    /// The addresses among which arenas should be, if there is room. By default from 1 TiB up to where Linux puts programs
    /// that may lie anywhere.
    fn places(&self) -> Range<usize> {
        1 << 40..0x5400_0000_0000
    }

    /// Reserves `len` bytes at exactly `at`: no access, no memory. `None` if anything lies there already or the
    /// system refuses.
    fn reserve(&self, at: usize, len: usize) -> Option<*mut u8>;

    /// Gives back a part of a reservation, so that it does not count any more. False if the system refuses, or cannot; then
    /// it may count.
    ///
    /// # Safety
    /// The range must lie in a reservation of this `Os`, hold nothing that is needed, and never be used again: others may
    /// map something there.
    unsafe fn unreserve(&self, _p: *mut u8, _len: usize) -> bool {
        false
    }

    /// Reserves `len` bytes anywhere that read as zero and cannot be written until committed.
    fn reserve_zeros(&self, len: usize) -> Option<*mut u8>;

    /// Makes reserved memory readable and writable; it reads as zero until written. False if the system refuses.
    ///
    /// # Safety
    /// The range must lie in a reservation of this `Os`.
    unsafe fn commit(&self, p: *mut u8, len: usize) -> bool;

    /// Makes committed memory inaccessible until it is committed again. False if the system refuses.
    ///
    /// # Safety
    /// The range must be committed and hold nothing that is needed.
    unsafe fn guard(&self, p: *mut u8, len: usize) -> bool;

    /// Maps `len` bytes of zeroed memory for a huge block, aligned to `align` (a power of two, at least an OS page).
    fn map(&self, len: usize, align: usize) -> Option<*mut u8>;

    /// Unmaps a mapping of [`Os::map`], or a part at its end. False if the system refuses.
    ///
    /// # Safety
    /// The range must be such a mapping or its tail, and unused from now on.
    unsafe fn unmap(&self, p: *mut u8, len: usize) -> bool;

    /// Resizes a mapping of [`Os::map`] from `old` to `new` bytes, moving it where needed; contents are kept, new
    /// bytes are zero.
    ///
    /// # Safety
    /// The range must be such a mapping; on success the old address is gone.
    unsafe fn remap(&self, p: *mut u8, old: usize, new: usize) -> Option<*mut u8>;

    /// Moves the memory of `len` committed bytes from `from` to `to`, without copying: all of it or nothing, see
    /// [`Moved`]. If it was done, `from` is committed and reads as zero.
    ///
    /// # Safety
    /// Both ranges must be committed and must not overlap; what `to` holds must not be needed.
    unsafe fn move_pages(&self, from: *mut u8, to: *mut u8, len: usize) -> Moved;

    /// Replaces a committed range by fresh memory that reads as zero and is one mapping with its neighbours again (unless
    /// the process has as many mappings as it may): for ranges that are mapped unlike these. "The other range" of [`Moved`]
    /// is this one; where it was not done its memory goes back all the same, if the system gives it back.
    ///
    /// # Safety
    /// The range must be committed and hold nothing that is needed.
    unsafe fn renew(&self, p: *mut u8, len: usize) -> Moved;

    /// Gives the memory of a committed range, or of a mapping, back; it reads as zero afterwards. False if the system
    /// refuses.
    ///
    /// # Safety
    /// The range must be committed or mapped, and hold nothing that is needed.
    unsafe fn purge(&self, p: *mut u8, len: usize) -> bool;

    /// Gives the memory of many committed runs back, as [`Os::purge`] does for one, at the price of few calls. Returns
    /// how many runs, from the first on, read as zero now.
    ///
    /// # Safety
    /// As [`Os::purge`], for each run.
    unsafe fn purge_runs(&self, runs: &[Run]) -> usize;

    /// Tells the system that it may take the memory of a committed range when it wants to; until the range is written
    /// again it reads as it was or as zero. False if the system cannot.
    ///
    /// # Safety
    /// As [`Os::purge`].
    unsafe fn purge_lazily(&self, p: *mut u8, len: usize) -> bool;

    /// Lets a committed range have huge pages from its next faults on. False if the system cannot.
    ///
    /// # Safety
    /// The range must be committed.
    unsafe fn allow_huge(&self, p: *mut u8, len: usize) -> bool;

    /// Gives every OS page of a committed range its memory, as a write to it would; what the range reads as stays. A
    /// wish: where memory is short only some may get theirs. False if none did, as the system cannot.
    ///
    /// # Safety
    /// The range must be committed, and the caller's.
    unsafe fn populate(&self, p: *mut u8, len: usize) -> bool;

    /// Finds what may be other than zero in a range: writes runs of OS pages that hold memory or are
    /// swapped out into `runs`, in order, until the range ends or `runs` is full. What lies between them reads as
    /// zero. `None` if the system cannot tell.
    ///
    /// # Safety
    /// The range must lie in a reservation or a mapping of this `Os`. What the answer is about must be the caller's:
    /// else it may be wrong by now.
    unsafe fn touched(&self, p: *mut u8, len: usize, runs: &mut [Run]) -> Option<Touched>;

    /// Makes sure that [`Os::barrier`] is quick from now on: the first call can take milliseconds. False if there is none.
    fn prepare_barrier(&self) -> bool;

    /// When it returns true, every other thread of the process has passed a full memory barrier since it was called.
    /// False if the system cannot do that.
    fn barrier(&self) -> bool;

    /// Whether [`Os::barrier`] works already, without the time that its preparation takes.
    fn has_barrier(&self) -> bool {
        self.prepare_barrier()
    }

    /// Waits for about so many microseconds; some 20 without giving the processor up. Signals do not make it shorter.
    fn pause(&self, _microseconds: u32) {}

    /// Milliseconds of a clock that never goes back.
    fn clock(&self) -> u64;

    /// Microseconds that the threads of this process but the calling one have run so far, or `None` if that is not known.
    fn run_time(&self) -> Option<u64>;

    /// The memory that this process shares with others, or `None` if that is not known.
    fn memory(&self) -> Option<Memory>;

    /// The words of the helper, see `helper.rs`. They belong to the address space: in the child of a fork, however it
    /// was made, they are zero, where the system can do that. Before [`Os::settle_helper`] they are zero as well.
    fn helper(&self) -> &Helper;

    /// [`Os::helper`], for a caller who is about to write to them: from now on they stay where they are.
    fn settle_helper(&self) -> &Helper {
        self.helper()
    }

    /// In the child of a fork that was made with the C library's handlers: has the words of the helper say so.
    fn forked(&self) {
        self.helper().forked(self.process());
    }

    /// Asked by the helper, ten times a second or more: whether it may go on.
    fn onward(&self) -> Onward {
        Onward::Go
    }

    /// Shows the figures to observers, if there can be any. Called under no lock, by any number of threads at a time.
    fn publish(&self, _: &Figures) {}

    /// Bytes of address space that the process may still take, where a limit is set (RLIMIT_AS), else `None`.
    fn address_limit(&self) -> Option<usize>;

    /// Whether [`Os::address_limit`] may be asked each time that memory is committed.
    fn looks_for_limits(&self) -> bool {
        true
    }

    /// A number that an outsider cannot guess.
    fn random(&self) -> u64;

    /// The number of the calling thread, as tools show it.
    fn thread_id(&self) -> u32;

    /// What the system knows the calling thread by, for [`Os::has_ended`]; `None` if that must not be asked.
    fn thread_to_ask_for(&self) -> Option<Thread> {
        None
    }

    /// Whether this thread, of [`Os::thread_to_ask_for`], has surely ended, so that its thread storage may not be there any
    /// more. False where the system cannot tell.
    fn has_ended(&self, _thread: Thread) -> bool {
        false
    }

    /// Writes one line, which may be empty, to standard error and ends the process with SIGABRT.
    fn die(&self, line: &[u8]) -> !;
}
