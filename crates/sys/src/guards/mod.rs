//! Guarded blocks: some samples are alone on an OS page, at one of its ends, with an inaccessible OS page on each side.
//! When such a block is freed, its own page becomes inaccessible too, for a long time. So an overrun, and a use after
//! free, is a fault at the instruction that does it, and a second free finds the slot of the first.
//!
//! | word | meaning |
//! |---|---|
//! | slot | one OS page of the pool, and what is known of its block (`slot`) |
//! | guard | one of the OS pages between slots; it is always inaccessible |
//! | open, close | to make an OS page of the pool accessible; to take its memory and its access away (`pool`) |
//! | fault | a SIGSEGV at an address of the pool (`fault`) |
//!
//! **Where.** The pool is a mapping outside of all arenas. The page map has 0 there, so each call takes its slow path
//! for such a block, as for a foreign one, and there calls [`owns`], which is false while guards are off.
//!
//! **Concurrency.** The state of a slot changes by compare-exchange. The thread that changes it to `OPENING` or
//! `FREEING` owns the slot until the next change. No thread waits for another, so a signal handler may interrupt all of
//! this. A child of a fork has its parent's slots, except slots that another thread of the parent owned: these are lost
//! there. There is one exception: if the program goes on after a fault in a slot that another thread owns, the faulting
//! thread waits for that thread. After a while it takes the slot away; the other thread notices at its next change of
//! the state.
//!
//! **Memory.** Of the `pool::SLOTS` slots, as many are open at a time as fit into `pool::OPEN_BYTES`; beyond that a
//! sample is an ordinary block. Nothing here fails the program: a page that cannot be opened is not used, and one that
//! cannot be closed counts as open.
//!
//! | file | holds |
//! |---|---|
//! | `mod.rs` | allocation and free, options |
//! | `slot.rs` | what is known of a block |
//! | `pool.rs` | the OS pages |
//! | `report.rs` | the report of an error |
//! | `fault.rs` | the handler of SIGSEGV, and where it passes a fault on |

mod fault;
mod pool;
mod report;
mod slot;
#[cfg(test)]
mod tests;

use crate::system::random;
use neap_core::class::{MAX_SMALL, MIN_BLOCK};
use neap_core::misuse::Call;
use pool::{Page, Pool};
use report::Error;
use slot::{Slot, State};

pub use pool::{Mode, Settings};

/// The usual mean number of bytes between two guarded blocks.
pub const DEFAULT: u64 = 100 << 20;

/// What the rest of an open page holds, so that a write beside the block is found when it is freed.
const CANARY: u8 = 0xC5;

/// Starts guards. False if the system has no memory for them, or takes no handler.
pub fn start(settings: Settings) -> bool {
    Pool::make(settings, true).is_some_and(|pool| fault::install() && pool.publish())
}

/// How guards were started, if they were.
pub fn settings() -> Option<Settings> {
    pool::get().map(|pool| pool.settings)
}

/// Mean bytes between two guarded blocks; 0: guards are off.
pub fn interval() -> u64 {
    settings().map_or(0, |settings| settings.interval)
}

/// Whether the address lies in the pool.
#[inline]
pub fn owns(p: *const u8) -> bool {
    pool::get().is_some_and(|pool| pool.holds(p))
}

/// A guarded block of `size` bytes aligned to `align`, a power of two. `None` if there can be none: it is too long, the
/// pool is full, or the system refuses. `reported`: whether its free is to be reported as that of a sample.
pub fn allocate(size: usize, align: usize, reported: bool) -> Option<*mut u8> {
    let pool = pool::get()?;
    // At most as long as a small block, because realloc treats it as one (OS pages may be longer).
    if size > pool.page_size.min(MAX_SMALL) || align > pool.page_size {
        return None;
    }
    let (number, state) = pool.take()?;
    if !pool.open(Page::Slot(number)) {
        pool.give_up(number, state);
        return None;
    }
    let slot = pool.slot(number);
    let page = pool.address(Page::Slot(number));
    // Overruns are more frequent than underruns: three of four blocks lie at the end.
    let at_end = !random::RANDOM.next().is_multiple_of(4);
    let last = (pool.page_size - size.max(1)) & !(align.max(MIN_BLOCK) - 1);
    let offset = if at_end { last } else { 0 };
    // SAFETY: the page is open, and this thread's alone: it owns the slot.
    unsafe {
        page.write_bytes(CANARY, offset);
        page.add(offset).write_bytes(0, size);
        page.add(offset + size).write_bytes(CANARY, pool.page_size - offset - size);
    }
    let p = page.wrapping_add(offset);
    slot.begin(p, size, reported);
    // Fails if the slot was taken from this thread: see `Pool::open_for_good`.
    slot.change(State::OPENING, State::LIVE).then_some(p)
}

/// Usable bytes of the block at `p`, those that were requested; `None` if the pool does not hold it. `call` is the
/// program's call. An error is reported; if the program goes on after that, the result is what the slot says.
pub fn usable_size(p: *mut u8, call: Call) -> Option<usize> {
    let pool = pool::get().filter(|pool| pool.holds(p))?;
    match find(pool, p) {
        Ok((slot, State::LIVE)) => Some(slot.size()),
        Ok((slot, _)) => {
            report::misuse(pool, Error::Freed(call), p, Some(slot));
            Some(slot.size())
        }
        Err(slot) => {
            report::misuse(pool, Error::NoBlock(call), p, slot);
            Some(0)
        }
    }
}

/// The slot whose block starts at `p`, and its state; else the slot whose page it is, if it ever had a block.
fn find(pool: &Pool, p: *const u8) -> Result<(&Slot, State), Option<&Slot>> {
    let Page::Slot(number) = pool.page(p) else { return Err(None) };
    let slot = pool.slot(number);
    match slot.state() {
        State::NEW => Err(None),
        state if slot.start() == p.addr() => Ok((slot, state)),
        _ => Err(Some(slot)),
    }
}

/// A guarded block whose life ends.
#[derive(Debug)]
pub struct Ending {
    pool: &'static Pool,
    number: usize,
}

/// Begins the free of the block at `p`, which the pool holds. `None` after an error was reported.
pub fn begin_free(p: *mut u8) -> Option<Ending> {
    let pool = pool::get()?;
    match find(pool, p) {
        // Acquire pairs with the Release of the change to `LIVE` in `allocate`: this thread sees what that one wrote to
        // the slot.
        Ok((slot, _)) if slot.change(State::LIVE, State::FREEING) => {
            let Page::Slot(number) = pool.page(p) else { return None };
            return Some(Ending { pool, number });
        }
        Ok((slot, _)) => report::misuse(pool, Error::Freed(Call::Free), p, Some(slot)),
        Err(slot) => report::misuse(pool, Error::NoBlock(Call::Free), p, slot),
    }
    None
}

impl Ending {
    fn slot(&self) -> &'static Slot {
        self.pool.slot(self.number)
    }

    /// Bytes that were requested.
    pub fn size(&self) -> usize {
        self.slot().size()
    }

    /// Whether the free is to be reported as that of a sample.
    pub fn is_reported(&self) -> bool {
        self.slot().flags.has(slot::REPORTED)
    }

    /// The nearest bytes before and behind the block that were written.
    fn written(&self) -> [Option<*const u8>; 2] {
        let (pool, slot) = (self.pool, self.slot());
        if slot.flags.has(slot::CHANGED) {
            // The program may have taken access away.
            return [None, None];
        }
        let page = pool.address(Page::Slot(self.number));
        let offset = slot.start() - page.addr();
        let end = offset + slot.size();
        // SAFETY: the page is open: this thread owns the slot of a block that was live.
        let is_written = |&at: &usize| unsafe { page.add(at).read() } != CANARY;
        let before = (0..offset).rev().find(is_written);
        let behind = (end..pool.page_size).find(is_written);
        [before, behind].map(|at| at.map(|at| page.wrapping_add(at).cast_const()))
    }

    /// Ends the block's life: its page is closed.
    pub fn finish(self) {
        let (pool, slot) = (self.pool, self.slot());
        slot.end();
        for at in self.written().into_iter().flatten() {
            report::misuse(pool, Error::Written, at, Some(slot));
        }
        pool.end_life(self.number);
    }
}

/// Notes that the program changes how the OS page at `p` is mapped: if it is that of a slot, no other block gets it.
pub fn note_changed(p: *const u8) {
    if let Some(pool) = pool::get().filter(|pool| pool.holds(p))
        && let Page::Slot(number) = pool.page(p)
    {
        pool.slot(number).flags.add(slot::CHANGED);
    }
}
