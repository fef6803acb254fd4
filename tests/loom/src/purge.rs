//! The purger's batches and who the purger is: what `crates/core/src/purge.rs`, `alloc.rs` (`give_chunks`) and `fork.rs`
//! (`prepare`) do. Change both together. The locks are the core's own.

use crate::system::helper::{Helper, Leave, Who};
use crate::system::lock::Lock;
use crate::system::os::Futex;
use crate::system::sync::Threads;
use crate::system::sync::{AtomicU32, Ordering};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::AtomicBool;
use loom::thread::JoinHandle;
use std::sync::Mutex;

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
        assert!(self.lock.take_for_fork(&self.os, u32::MAX, 5_000));
    }

    /// For fork.
    pub fn release(&self) {
        self.lock.release_for_fork(&self.os);
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

/// Memory that waits, and who sees to it: what `crates/core/src/helping.rs` does with the core's own `Helper`.
#[derive(Debug)]
pub struct Purger {
    helper: Helper,
    wanted: AtomicBool,
    ranges: Sleeping,
    waiting: UnsafeCell<u32>,
    /// The stack of the helper: loom reports two threads on it, and a helper where there is to be none.
    stack: UnsafeCell<u32>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Of the helper's state.
    queue: Futex,
}

// SAFETY: loom checks every access to the cells.
unsafe impl Sync for Purger {}
// SAFETY: as above.
unsafe impl Send for Purger {}

/// The system: it can start threads.
struct Port<'a>(&'a Arc<Purger>);

impl Threads for Port<'_> {
    fn futex_wait(&self, _: &AtomicU32, _: u32) {
        unreachable!("the locks have their own");
    }

    fn futex_wake(&self, word: *const AtomicU32) {
        if core::ptr::eq(word, self.0.helper.state()) {
            self.0.queue.wake_all();
        }
    }

    /// Without a limit: loom reports a wait that does not end.
    fn futex_wait_for(&self, word: &AtomicU32, value: u32, _: u32) {
        self.0.queue.futex_wait(word, value);
    }

    fn start_helper(&self) -> bool {
        let shared = self.0.clone();
        let thread = loom::thread::spawn(move || shared.live());
        self.0.threads.lock().unwrap().push(thread);
        true
    }
}

impl Purger {
    /// Memory waits, and there is a helper.
    pub fn with_helper() -> Arc<Self> {
        let purger = Arc::new(Purger {
            helper: Helper::default(),
            wanted: AtomicBool::new(false),
            ranges: Sleeping::default(),
            waiting: UnsafeCell::new(1),
            stack: UnsafeCell::new(0),
            threads: Mutex::default(),
            queue: Futex::default(),
        });
        Self::ask(&purger);
        purger
    }

    /// Memory is freed: `give_chunks`, `note_waiting`, `settle` and `poke` of the core.
    pub fn free(this: &Arc<Self>) {
        this.ranges.with(|| {
            // SAFETY: the lock is held.
            this.waiting.with_mut(|w| unsafe { *w += 1 });
            if this.helper.who() != Who::Helper {
                // Release pairs with the Acquire below: the thread that takes the note sees who the purger is at least
                // as late.
                this.wanted.store(true, Ordering::Release);
            }
        });
        if this.wanted.load(Ordering::Relaxed) && this.wanted.swap(false, Ordering::Acquire) {
            match this.helper.who() {
                Who::Helper => {}
                Who::None => Self::ask(this),
                Who::Inline => this.purge(),
            }
        }
    }

    fn ask(this: &Arc<Self>) {
        let _ = this.helper.ask(&Port(this), false);
    }

    fn purge(&self) {
        // SAFETY: the lock is held.
        self.ranges.with(|| self.waiting.with_mut(|w| unsafe { *w = 0 }));
    }

    /// The life of a helper thread, last steps included.
    fn live(&self) {
        loop {
            let leave = self.help();
            if self.helper.take_leave(&leave) {
                self.queue.wake_all();
                return;
            }
        }
    }

    /// `help` and `rest_between_ticks` of the core.
    fn help(&self) -> Leave {
        self.helper.begin();
        loop {
            // SAFETY: one helper at a time; loom checks it.
            self.stack.with_mut(|s| unsafe { *s += 1 });
            if self.helper.is_unwanted() {
                self.helper.resign();
                if self.helper.is_unwanted() {
                    return self.helper.leave(true);
                }
                self.helper.stay();
            }
            self.purge();
            self.helper.resign();
            // SAFETY: the lock is held.
            if self.ranges.with(|| self.waiting.with(|w| unsafe { *w })) == 0 {
                return self.helper.leave(false);
            }
            self.helper.stay();
        }
    }

    /// A call that wants no helper: `keep_away` of the core.
    pub fn without_helper(this: &Arc<Self>) {
        let stop = this.helper.keep_away(&Port(this), 1000);
        // SAFETY: there is no helper now; loom checks it.
        this.stack.with(|s| unsafe { *s });
        if this.helper.end_stop(stop) {
            Self::ask(this);
        }
    }

    /// Waits for all helpers; returns what waits then.
    pub fn end(&self) -> u32 {
        loop {
            let thread = self.threads.lock().unwrap().pop();
            let Some(thread) = thread else { break };
            thread.join().unwrap();
        }
        assert_eq!(self.helper.who(), Who::None, "all helpers have ended");
        // SAFETY: no other thread is left.
        self.ranges.with(|| self.waiting.with(|w| unsafe { *w }))
    }
}
