//! The OS pages of guarded blocks: guard, slot, guard, slot, ..., guard.
//!
//! If the kernel has MADV_GUARD_INSTALL (6.13), the pool is one accessible mapping, and a closed page has a marker in
//! the page table. Otherwise it is a mapping without access, and mprotect opens and closes pages, which costs mappings.
//! A page that gets no marker (the program locked its memory, or has a filter) is closed by mprotect as well.

use crate::guards::slot::{self, Slot, State};
use crate::system::call::READ_WRITE;
use crate::system::filter::Asking;
use crate::system::map::{commit, map, unmap};
use crate::system::probe::GUARD;
use crate::system::space::count;
use crate::system::{call, purge, wait};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use neap_counters::Syscall;
use rustix::mm::{self, MprotectFlags, ProtFlags};

/// Number of slots. A freed block stays closed until that many blocks, less the live ones, were guarded after it.
pub const SLOTS: usize = 256;
/// Limit of the memory of open pages.
pub const OPEN_BYTES: usize = 256 << 10;

const _: () = assert!(
    OPEN_BYTES + size_of::<Pool>() + (64 << 10) <= 512 << 10,
    "open pages, the slots, page tables and kept rows of tables for stacks take at most 512 KiB: see docs/guards.md"
);

/// What happens when an error is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The process ends, after a report.
    Abort,
    /// The process goes on, after a report.
    Report,
}

/// Milliseconds after which the owner of a slot is presumed gone.
const PATIENCE: u32 = 100;

/// How guards are started.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// What happens when an error is found.
    pub mode: Mode,
    /// Mean bytes between two guarded blocks.
    pub interval: u64,
    /// Whether the user wants no reports.
    pub is_quiet: fn() -> bool,
}

/// A place in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Page {
    /// The page of a slot.
    Slot(usize),
    /// The guard in front of the slot of this number.
    Guard(usize),
}

/// The pool. It is never unmapped.
#[derive(Debug)]
pub struct Pool {
    base: *mut u8,
    pub(crate) page_size: usize,
    pub(crate) settings: Settings,
    /// Whether markers are used.
    by_marker: bool,
    /// Number of open pages.
    pub(crate) open: AtomicU32,
    /// Where the search for a slot goes on. Slots are taken in turn, so a freed one stays closed for as long as
    /// possible.
    next: AtomicU32,
    /// Guards that a report has opened, for good.
    opened: [AtomicBool; SLOTS + 1],
    slots: [Slot; SLOTS],
}

// SAFETY: `base` is an address that does not change; all that does is atomic.
unsafe impl Sync for Pool {}

static POOL: AtomicPtr<Pool> = AtomicPtr::new(core::ptr::null_mut());

/// The pool, if guards are on.
#[inline]
pub fn get() -> Option<&'static Pool> {
    // Acquire pairs with the Release of `publish`.
    // SAFETY: a pool is never unmapped.
    unsafe { POOL.load(Ordering::Acquire).as_ref() }
}

/// Advice by which a page gets the marker (Linux 6.13), and by which it loses it.
const INSTALL: usize = 102;
const REMOVE: usize = 103;

/// Installs markers, or removes them.
///
/// # Safety
/// The range must lie in the pool, and hold nothing that is needed.
unsafe fn mark(p: *mut u8, len: usize, advice: usize) -> bool {
    count(Syscall::Madvise);
    let arguments = [p.expose_provenance(), len, advice, 0, 0, 0];
    // SAFETY: as the caller promises; the kernel changes only that range.
    unsafe { crate::arch::syscall(libc::SYS_madvise as usize, arguments) == 0 }
}

impl Pool {
    /// Maps a pool whose pages are all closed, by markers where that is wanted and the kernel has them. `None` if there
    /// is no memory.
    pub fn make(settings: Settings, markers: bool) -> Option<&'static Pool> {
        let page_size = call::page_size();
        let place = map(0, size_of::<Pool>().next_multiple_of(page_size), READ_WRITE)?.cast::<Pool>();
        let len = (2 * SLOTS + 1) * page_size;
        let marked = if markers { Self::map_marked(len) } else { None };
        let Some(base) = marked.or_else(|| map(0, len, ProtFlags::empty())) else {
            // SAFETY: the mapping was just made.
            unsafe { unmap(place.cast(), size_of::<Pool>().next_multiple_of(page_size)) };
            return None;
        };
        // SAFETY: the mapping is new, long enough and zeroed: slots, guards and numbers are atomics, of which zeroes
        // are valid. It is never unmapped from here on.
        unsafe {
            (&raw mut (*place).base).write(base);
            (&raw mut (*place).page_size).write(page_size);
            (&raw mut (*place).settings).write(settings);
            (&raw mut (*place).by_marker).write(marked.is_some());
            Some(&*place)
        }
    }

    /// An accessible mapping whose pages all have the marker; `None` where the kernel has none.
    fn map_marked(len: usize) -> Option<*mut u8> {
        let _asking = Asking::begin();
        if !GUARD.is_usable() {
            return None;
        }
        let p = map(0, len, READ_WRITE)?;
        // SAFETY: the mapping is new.
        unsafe {
            // qemu's user mode accepts all advice, and does nothing.
            let works = mark(p, len, INSTALL) && !call::is_readable(p.expose_provenance() as u64);
            GUARD.note(works);
            if !works {
                unmap(p, len);
            }
            works.then_some(p)
        }
    }

    /// Has all calls use the pool.
    pub fn publish(&'static self) -> bool {
        // Release pairs with the Acquire of `get`: a thread that finds the pool sees all of it.
        POOL.store(core::ptr::from_ref(self).cast_mut(), Ordering::Release);
        true
    }

    /// Whether the address lies in the pool.
    #[inline]
    pub fn holds(&self, p: *const u8) -> bool {
        p.addr().wrapping_sub(self.base.addr()) < (2 * SLOTS + 1) * self.page_size
    }

    /// The page of an address of the pool.
    pub fn page(&self, p: *const u8) -> Page {
        let number = (p.addr().wrapping_sub(self.base.addr()) / self.page_size).min(2 * SLOTS);
        if number.is_multiple_of(2) { Page::Guard(number / 2) } else { Page::Slot(number / 2) }
    }

    /// Where a page begins.
    pub fn address(&self, page: Page) -> *mut u8 {
        let number = match page {
            Page::Slot(number) => 2 * number + 1,
            Page::Guard(number) => 2 * number,
        };
        self.base.wrapping_add(number * self.page_size)
    }

    /// The slot of this number, which is below [`SLOTS`].
    pub fn slot(&self, number: usize) -> &Slot {
        &self.slots[number % SLOTS]
    }

    /// Takes a slot for a new block, and counts it as open; returns its number and the state that it had. `None` if no
    /// more may be open, or no slot is free.
    pub fn take(&self) -> Option<(usize, State)> {
        let most = (OPEN_BYTES / self.page_size).max(1) as u32;
        let more = |open| (open < most).then_some(open + 1);
        // Relaxed, as all numbers of the pool: they stand for themselves.
        self.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        for _ in 0..SLOTS {
            let number = self.next.fetch_add(1, Ordering::Relaxed) as usize % SLOTS;
            let slot = self.slot(number);
            let state = slot.state();
            let is_free = (state == State::NEW || state == State::FREED) && !slot.flags.has(slot::CHANGED);
            if is_free && slot.change(state, State::OPENING) {
                if slot.flags.remove(slot::STAYS_OPEN) {
                    // It was counted before.
                    self.open.fetch_sub(1, Ordering::Relaxed);
                }
                return Some((number, state));
            }
        }
        self.open.fetch_sub(1, Ordering::Relaxed);
        None
    }

    /// Gives a slot back that was taken and could not be opened.
    pub fn give_up(&self, number: usize, state: State) {
        if self.slot(number).change(State::OPENING, state) {
            self.open.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Ends the life of the block of a slot whose free this thread has begun: the page is closed.
    pub fn end_life(&self, number: usize) {
        let slot = self.slot(number);
        let closed = self.close(number);
        if !closed {
            slot.flags.add(slot::STAYS_OPEN);
        }
        if !slot.change(State::FREEING, State::FREED) {
            // Another thread has opened the page for good, and it counts as open.
            slot.flags.remove(slot::STAYS_OPEN);
            self.open(Page::Slot(number));
        } else if closed {
            self.open.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Makes a page accessible, of which the calling thread owns the slot; or a guard. False if the system refuses.
    pub fn open(&self, page: Page) -> bool {
        let protected = match page {
            // Where markers are used, a guard is never closed by mprotect.
            Page::Guard(_) => !self.by_marker,
            Page::Slot(number) => !self.by_marker || self.slot(number).flags.has(slot::PROTECTED),
        };
        let p = self.address(page);
        let _asking = Asking::begin();
        // SAFETY: a page of the pool that holds nothing.
        unsafe {
            if self.by_marker && !(GUARD.works() && mark(p, self.page_size, REMOVE)) {
                return false;
            }
            if protected && !commit(p, self.page_size) {
                return false;
            }
        }
        if let Page::Slot(number) = page {
            self.slot(number).flags.remove(slot::PROTECTED);
        }
        true
    }

    /// Takes away the memory of a slot's page, and access to it. False if the system refuses either.
    pub fn close(&self, number: usize) -> bool {
        let p = self.address(Page::Slot(number));
        let _asking = Asking::begin();
        // SAFETY: a page of the pool whose block was freed.
        unsafe {
            if self.by_marker && GUARD.works() && mark(p, self.page_size, INSTALL) {
                return true;
            }
            count(Syscall::Mprotect);
            let closed = mm::mprotect(p.cast(), self.page_size, MprotectFlags::empty()).is_ok();
            purge::count_call();
            let empty = mm::madvise(p.cast(), self.page_size, mm::Advice::LinuxDontNeed).is_ok();
            if closed {
                self.slot(number).flags.add(slot::PROTECTED);
            }
            empty && closed
        }
    }

    /// Whether a guard was opened for good.
    pub fn is_opened(&self, guard: usize) -> bool {
        self.opened.get(guard).is_some_and(|opened| opened.load(Ordering::Relaxed))
    }

    /// Opens the page of a freed block, or a guard, for good, so that the program can go on. False if that is not
    /// possible. A slot that another thread owns is waited for a moment; then it is taken from its owner, which may be
    /// gone, as in the child of a fork.
    pub fn open_for_good(&self, page: Page) -> bool {
        match page {
            Page::Guard(number) => {
                let Some(opened) = self.opened.get(number) else { return false };
                let done = opened.load(Ordering::Relaxed) || self.open(page);
                if done && !opened.swap(true, Ordering::Relaxed) {
                    self.open.fetch_add(1, Ordering::Relaxed);
                }
                done
            }
            Page::Slot(number) => {
                let (slot, mut waited) = (self.slot(number), 0);
                loop {
                    match slot.state() {
                        State::FREED if slot.change(State::FREED, State::OPENING) => break,
                        State::OPENING | State::FREEING if waited < PATIENCE => wait::pause(1000),
                        // It counts as open.
                        state @ (State::OPENING | State::FREEING) if slot.change(state, State::RETIRED) => {
                            return self.open(page);
                        }
                        State::NEW => return false,
                        State::LIVE | State::RETIRED => return true,
                        _ => {}
                    }
                    waited += 1;
                }
                let done = self.open(page);
                if done && !slot.flags.remove(slot::STAYS_OPEN) {
                    self.open.fetch_add(1, Ordering::Relaxed);
                }
                slot.set(if done { State::RETIRED } else { State::FREED });
                done
            }
        }
    }
}
