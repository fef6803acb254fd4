//! The batches of the purger, and its threads: see `back/purge.rs`, `back/helping.rs`, `help.rs`, `pages/mod.rs`
//! (`give_chunks`) and `fork.rs` (`prepare`) of the core. Change both together. The locks are the core's own.

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

/// A lock, and the kernel's queue of the threads that wait for it.
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

    /// Takes the lock for a fork.
    pub fn take(&self) {
        assert!(self.lock.take_for_fork(&self.os, u32::MAX, 5_000));
    }

    /// Releases the lock after a fork.
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
    /// In use, or on its way to the system.
    Taken,
}

/// One chunk, and the locks around it.
#[derive(Debug)]
pub struct Memory {
    batch: Sleeping,
    ranges: Sleeping,
    place: UnsafeCell<Place>,
    /// Whether the chunk is on its way to the system; only the purger uses this.
    away: UnsafeCell<bool>,
    /// The contents of the chunk. Loom reports an access during a purge.
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

    /// Allocates the chunk zeroed, uses it, and frees it; false if the chunk was not free.
    pub fn use_once(&self) -> bool {
        let place = self.ranges.with(|| self.replace(Place::Taken));
        if place == Place::Taken {
            return false;
        }
        // SAFETY: the chunk was taken by this thread; loom checks it.
        self.contents.with_mut(|c| unsafe {
            assert!(place == Place::Dirty || *c == 0, "clean memory is zero");
            *c = 7;
        });
        self.ranges.with(|| self.replace(Place::Dirty));
        true
    }

    /// Purges a batch: `purge_due` and `send` of the core.
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
                // SAFETY: the chunk is on its way; loom checks that no other thread uses it.
                self.contents.with_mut(|c| unsafe { *c = 0 });
                self.ranges.with(|| {
                    self.replace(Place::Clean);
                    // SAFETY: the batch lock is held.
                    self.away.with_mut(|a| unsafe { *a = false });
                });
            }
        });
    }

    /// Forks: takes all locks, checks what the child gets, and releases the locks in the parent.
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

/// Memory that waits, and its purger: what `back/helping.rs` and `help.rs` do with the core's own `Helper`.
#[derive(Debug)]
pub struct Purger {
    helper: Helper,
    wanted: AtomicBool,
    ranges: Sleeping,
    waiting: UnsafeCell<u32>,
    /// The stack of the helper: loom reports two threads on it, and a helper during a call that excludes it.
    stack: UnsafeCell<u32>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// The kernel's queue for the state of the helper.
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
        unreachable!("the locks have queues of their own");
    }

    fn futex_wake(&self, word: *const AtomicU32) {
        if core::ptr::eq(word, self.0.helper.state()) {
            self.0.queue.wake_all();
        }
    }

    /// Waits without a time limit: loom reports a wait that does not end.
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
    /// Memory that waits, and a helper.
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

    /// Frees memory: `give_chunks`, `note_waiting`, `settle` and `poke` of the core.
    pub fn free(this: &Arc<Self>) {
        this.ranges.with(|| {
            // SAFETY: the lock is held.
            this.waiting.with_mut(|w| unsafe { *w += 1 });
            if this.helper.who() != Who::Helper {
                // Release pairs with the Acquire below: the thread that takes the note sees a state of the helper at
                // least as new as this thread saw.
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

    /// Runs a helper thread, including its last step.
    fn live(&self) {
        loop {
            let leave = self.help();
            if self.helper.take_leave(&leave) {
                self.queue.wake_all();
                return;
            }
        }
    }

    /// Purges until nothing waits: `help` and `rest_between_ticks` of the core.
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

    /// Makes a call that excludes the helper: `keep_away` of the core.
    pub fn without_helper(this: &Arc<Self>) {
        let stop = this.helper.keep_away(&Port(this), 1000);
        // SAFETY: there is no helper now; loom checks it.
        this.stack.with(|s| unsafe { *s });
        if this.helper.end_stop(stop) {
            Self::ask(this);
        }
    }

    /// Waits until all helpers have ended; returns how much memory waits then.
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
