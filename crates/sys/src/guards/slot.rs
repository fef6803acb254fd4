//! What is known about the block of a slot. Everything is atomic: a handler may read a slot that another thread
//! changes, and then shows a mixture of old and new.
//!
//! ```text
//! NEW --> OPENING --> LIVE --> FREEING --> FREED --> OPENING ...
//!                                              \
//!                                               +--> RETIRED
//! ```
//!
//! The page is accessible in `LIVE` and `RETIRED`, and may be in `OPENING` and `FREEING`. `RETIRED` is for a program
//! that goes on after a report. A slot keeps what is known about its block until it gets the next block.

use crate::observe::stack;
use crate::system::{call, filter};
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Limit of frames of a stack that is kept.
pub const FRAMES: usize = 24;

/// State of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State(u32);

impl State {
    /// There was no block yet.
    pub const NEW: State = State(0);
    /// A thread makes a block.
    pub const OPENING: State = State(1);
    /// The block is live.
    pub const LIVE: State = State(2);
    /// A thread frees the block.
    pub const FREEING: State = State(3);
    /// The block was freed.
    pub const FREED: State = State(4);
    /// The block was freed, and there will be no other.
    pub const RETIRED: State = State(5);
}

/// Flag: the free is to be reported as that of a sample.
pub const REPORTED: u32 = 1;
/// Flag: the program changed how the page is mapped. The next block would inherit that, so there is none.
pub const CHANGED: u32 = 2;
/// Flag: the page could not be closed. It is counted as open.
pub const STAYS_OPEN: u32 = 4;
/// Flag: the page was closed by mprotect.
pub const PROTECTED: u32 = 8;
/// Flag: a use of the block after its free was reported.
pub const USE_REPORTED: u32 = 16;

/// Flags of a slot.
#[derive(Debug)]
pub struct Flags(AtomicU32);

// Relaxed: flags are written by the owner of the slot, or stand for themselves.
impl Flags {
    /// Whether it is set.
    pub fn has(&self, flag: u32) -> bool {
        self.0.load(Ordering::Relaxed) & flag != 0
    }

    /// Sets it; returns whether it was set.
    pub fn add(&self, flag: u32) -> bool {
        self.0.fetch_or(flag, Ordering::Relaxed) & flag != 0
    }

    /// Clears it; returns whether it was set.
    pub fn remove(&self, flag: u32) -> bool {
        self.0.fetch_and(!flag, Ordering::Relaxed) & flag != 0
    }
}

/// A stack, and the thread that had it. Relaxed: it is only shown to people.
#[derive(Debug)]
pub struct Trace {
    thread: AtomicU32,
    count: AtomicU32,
    frames: [AtomicU64; FRAMES],
}

impl Trace {
    /// Takes the stack of the present call.
    fn take(&self) {
        self.count.store(0, Ordering::Relaxed);
        self.thread.store(thread(), Ordering::Relaxed);
        let mut count = 0;
        stack::callers(&mut |at| {
            let Some(place) = self.frames.get(count) else { return false };
            place.store(at, Ordering::Relaxed);
            count += 1;
            count < FRAMES
        });
        self.count.store(count as u32, Ordering::Relaxed);
    }

    /// The thread; 0: not known.
    pub fn thread(&self) -> u32 {
        self.thread.load(Ordering::Relaxed)
    }

    /// Return addresses, innermost first.
    pub fn frames(&self) -> impl Iterator<Item = u64> {
        let count = self.count.load(Ordering::Relaxed) as usize;
        self.frames.iter().take(count).map(|frame| frame.load(Ordering::Relaxed))
    }
}

/// The system's number of the calling thread; 0 if a filter may end the process for the system call.
pub fn thread() -> u32 {
    let _asking = filter::Asking::begin();
    if filter::is_forbidden() { 0 } else { call::thread() }
}

/// A slot. All bytes zero: a new one.
#[derive(Debug)]
pub struct Slot {
    state: AtomicU32,
    pub(crate) flags: Flags,
    start: AtomicUsize,
    size: AtomicUsize,
    /// Number of faults at the page while it should have been accessible.
    pub(crate) retries: AtomicU32,
    /// Where the block was allocated.
    pub(crate) allocated: Trace,
    /// Where it was freed; nothing while it lives.
    pub(crate) freed: Trace,
}

impl Slot {
    /// The state.
    pub fn state(&self) -> State {
        State(self.state.load(Ordering::Acquire))
    }

    /// Changes the state, if it is `from`. Acquire: the caller sees what the last owner wrote; Release: the next one
    /// sees what the caller wrote.
    pub fn change(&self, from: State, to: State) -> bool {
        self.state.compare_exchange(from.0, to.0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Sets the state, by an owner from which no other thread takes the slot. Release pairs with the Acquire of the two
    /// above.
    pub fn set(&self, state: State) {
        self.state.store(state.0, Ordering::Release);
    }

    /// Address of the block.
    pub fn start(&self) -> usize {
        // Relaxed, here and below: ordered by the state.
        self.start.load(Ordering::Relaxed)
    }

    /// Bytes of the block.
    pub fn size(&self) -> usize {
        self.size.load(Ordering::Relaxed)
    }

    /// Begins a block, by the owner.
    pub fn begin(&self, p: *const u8, size: usize, reported: bool) {
        self.start.store(p.addr(), Ordering::Relaxed);
        self.size.store(size, Ordering::Relaxed);
        self.flags.remove(REPORTED | USE_REPORTED);
        self.retries.store(0, Ordering::Relaxed);
        if reported {
            self.flags.add(REPORTED);
        }
        self.freed.count.store(0, Ordering::Relaxed);
        self.freed.thread.store(0, Ordering::Relaxed);
        self.allocated.take();
    }

    /// Notes where the block is freed, by the owner.
    pub fn end(&self) {
        self.freed.take();
    }
}
