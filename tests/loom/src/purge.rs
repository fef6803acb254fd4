//! The purger's batches and who the purger is: what `crates/core/src/purge.rs`, `alloc.rs` (`give_chunks`) and `life.rs`
//! (`fork_prepare`) do. Change both together. The locks are the core's own.

use crate::os::Futex;
use crate::sync::{AtomicU32, Lock, Ordering};
use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicBool;

/// A lock and the kernel's queue for it.
#[derive(Debug, Default)]
pub struct Sleeping {
    lock: Lock,
    os: Futex,
}

impl Sleeping {
    /// Runs `f` under the lock.
    pub fn with<R>(&self, f: impl FnOnce() -> R) -> R {
        let _guard = self.lock.lock(&self.os);
        f()
    }

    /// For fork.
    pub fn take(&self) {
        self.lock.take(&self.os);
    }

    /// For fork.
    pub fn release(&self) {
        self.lock.release(&self.os);
    }
}

/// Where the one chunk of the model is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In a free range, clean.
    Clean,
    /// In a free range, dirty.
    Dirty,
    /// Somebody's.
    Taken,
}

/// One chunk, and the locks around it.
#[derive(Debug)]
pub struct Memory {
    batch: Sleeping,
    ranges: Sleeping,
    place: UnsafeCell<Place>,
    /// Whether it is on its way to the system: known to the purger alone.
    away: UnsafeCell<bool>,
    /// What the chunk holds. Loom reports an access while the system takes it.
    contents: UnsafeCell<u32>,
}

// SAFETY: loom checks every access to the cells.
unsafe impl Sync for Memory {}
// SAFETY: as above.
unsafe impl Send for Memory {}

impl Default for Memory {
    /// A dirty free chunk.
    fn default() -> Self {
        Memory {
            batch: Sleeping::default(),
            ranges: Sleeping::default(),
            place: UnsafeCell::new(Place::Dirty),
            away: UnsafeCell::new(false),
            contents: UnsafeCell::new(7),
        }
    }
}

impl Memory {
    fn replace(&self, place: Place) -> Place {
        // SAFETY: the lock of the ranges is held; loom checks it.
        self.place.with_mut(|p| unsafe { core::mem::replace(&mut *p, place) })
    }

    /// calloc, a use, and free; false if the chunk was not free.
    pub fn use_once(&self) -> bool {
        let place = self.ranges.with(|| self.replace(Place::Taken));
        if place == Place::Taken {
            return false;
        }
        // SAFETY: the chunk is ours; loom checks it.
        self.contents.with_mut(|c| unsafe {
            assert!(place == Place::Dirty || *c == 0, "clean memory is zero");
            *c = 7;
        });
        self.ranges.with(|| self.replace(Place::Dirty));
        true
    }

    /// A batch of the purger: `purge_due` and `send` of the core.
    pub fn purge(&self) {
        self.batch.with(|| {
            let due = self.ranges.with(|| {
                // SAFETY: the lock is held.
                let due = self.place.with(|p| unsafe { *p == Place::Dirty });
                if due {
                    self.replace(Place::Taken);
                    // SAFETY: the batch lock is held.
                    self.away.with_mut(|a| unsafe { *a = true });
                }
                due
            });
            if due {
                // SAFETY: the chunk is on its way; loom checks that it is nobody's.
                self.contents.with_mut(|c| unsafe { *c = 0 });
                self.ranges.with(|| {
                    self.replace(Place::Clean);
                    // SAFETY: the batch lock is held.
                    self.away.with_mut(|a| unsafe { *a = false });
                });
            }
        });
    }

    /// fork: all locks, then a look at what the child gets, then the parent goes on.
    pub fn fork(&self) {
        self.batch.take();
        self.ranges.take();
        // SAFETY: the locks are held.
        let away = self.away.with(|a| unsafe { *a });
        assert!(!away, "memory on its way is lost in the child");
        self.ranges.release();
        self.batch.release();
    }
}

const NOBODY: u32 = 0;
const HELPER: u32 = 1;

/// Memory that waits, and who sees to it.
#[derive(Debug)]
pub struct Purger {
    who: AtomicU32,
    wanted: AtomicBool,
    ranges: Sleeping,
    waiting: UnsafeCell<u32>,
    /// Helpers that were started, and that have ended.
    pub started: AtomicU32,
    ended: AtomicU32,
}

// SAFETY: loom checks every access to the cell.
unsafe impl Sync for Purger {}
// SAFETY: as above.
unsafe impl Send for Purger {}

impl Purger {
    /// With a helper, which is about to look.
    pub fn with_helper() -> Self {
        Purger {
            who: AtomicU32::new(HELPER),
            wanted: AtomicBool::new(false),
            ranges: Sleeping::default(),
            waiting: UnsafeCell::new(0),
            started: AtomicU32::new(1),
            ended: AtomicU32::new(0),
        }
    }

    /// Memory is freed: `give_chunks`, `note_waiting`, `settle` and `poke` of the core.
    pub fn free(&self) {
        self.ranges.with(|| {
            // SAFETY: the lock is held.
            self.waiting.with_mut(|w| unsafe { *w += 1 });
            // SeqCst: see `resign`.
            if self.who.load(Ordering::SeqCst) != HELPER {
                // Release pairs with the Acquire below: whoever takes the note sees who the purger is at least as late.
                self.wanted.store(true, Ordering::Release);
            }
        });
        if self.wanted.load(Ordering::Relaxed) && self.wanted.swap(false, Ordering::Acquire) {
            self.poke();
        }
    }

    fn poke(&self) {
        // SeqCst: see `resign`.
        if self.who.load(Ordering::SeqCst) == NOBODY
            && self.who.compare_exchange(NOBODY, HELPER, Ordering::SeqCst, Ordering::Relaxed).is_ok()
        {
            self.started.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The helper gives back what waits, finds nothing more, and ends unless there is more after all.
    pub fn help(&self) {
        loop {
            // SAFETY: the lock is held.
            self.ranges.with(|| self.waiting.with_mut(|w| unsafe { *w = 0 }));
            if self.resign() {
                self.ended.fetch_add(1, Ordering::Relaxed);
                return;
            }
        }
    }

    fn resign(&self) -> bool {
        self.who.store(NOBODY, Ordering::SeqCst);
        // SAFETY: the lock is held.
        if self.ranges.with(|| self.waiting.with(|w| unsafe { *w })) == 0 {
            return true;
        }
        self.who.compare_exchange(NOBODY, HELPER, Ordering::SeqCst, Ordering::Relaxed).is_err()
    }

    /// When all threads are done but the helpers that were started meanwhile: those that have not ended.
    pub fn helpers(&self) -> u32 {
        self.started.load(Ordering::SeqCst) - self.ended.load(Ordering::SeqCst)
    }

    /// Memory that waits; when all threads are done.
    pub fn waiting(&self) -> u32 {
        // SAFETY: no other thread is left.
        self.ranges.with(|| self.waiting.with(|w| unsafe { *w }))
    }
}
