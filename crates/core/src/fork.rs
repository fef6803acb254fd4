//! fork: how the child gets whole structures although nothing of ours is in the way of the C library's own fork.
//!
//! The C library takes locks of its own after all fork handlers, and a thread that has one of those may call malloc. So
//! from the handler before fork to the one behind it no thread may wait for us. Instead the other threads' calls are
//! *reentrant* ones meanwhile (`reentrant.rs`), which use no heap and no lock:
//!
//! 1. `Forks::word` is set. From now on no visit and no batch begins (`Allocator::with_batch`), and no call without a
//!    heap of the thread's own (`Back::fly`).
//! 2. The heap in each thread's slot is swapped for [`FORKED`], as a visitor does it (`handshake.rs`), and all threads see that
//!    (barrier). A call that finds [`FORKED`] is reentrant. It does not wait.
//! 3. Calls that had begun before go on and end; the fork waits for them, for a moment (`LOOKS`). Heaps of threads that
//!    stay in the middle of a call (without a processor, stopped, or in a handler) are lost in the child, as they may be half
//!    changed.
//! 4. The three locks are taken. Only the threads of 3. and the purger can want them. Such a thread waits, but not for
//!    ever: it may be the one that the C library's fork waits for. After a while (`Allocator::lease`) it takes the lock
//!    away (`sync.rs`).
//!
//! The child looks whether it still has the locks. If so, what they guard is whole. Else it is *stranded*, as the child of a
//! fork in a reentrant call.
//!
//! All waits have a bound: a thread that is waited for may be in a handler that waits for the C library. Where one
//! passes, the fork goes on as one in a reentrant call does ([`Begin::Refused`]).
//!
//! Forks of several threads at the same time share the state: the first one prepares, the last one ends it. The next one
//! waits for that, for a while (`JOIN`), so that heaps come back in a program that forks all the time.

use crate::back::Back;
use crate::back::forks::CHANGES;
pub use crate::back::forks::Flight;
use crate::blocks::heap::{FORKED, ThreadSlot};
use crate::blocks::registry::{LEFT, LOST, OWNED, Registry};
use crate::system::lock::Lock;
use crate::system::sync::Ordering;
use crate::{Allocator, Heap, Os};

/// How often a fork looks whether calls that are under way have ended. Most end meanwhile if their threads have a processor.
/// Those that have none are not waited for: where many threads share a processor, each sleep takes milliseconds.
const LOOKS: u32 = 10;
/// Microseconds between two looks.
const LOOK_EVERY: u32 = 4;
/// Microseconds that a fork waits for another one to end before it joins that.
const JOIN: u32 = 20_000;
/// Microseconds that a fork waits for a lock, or for another one to begin or to end. Only a thread that is stopped in the
/// middle of a call has a lock for so long.
const LOCK: u32 = 2_000_000;
/// Milliseconds that a thread leaves a lock to a fork, at least.
const LEASE: u32 = 100;
/// Bytes for which it waits a millisecond more: a fork copies the page tables of some ten times as many.
const LEASE_BYTES: usize = 4 << 20;
/// Milliseconds that it waits at most.
const LONGEST_LEASE: u32 = 5_000;
/// Microseconds that a call waits for a fork to end where it would else do nothing: the end of a thread, a control.
pub const CALL: u32 = 20_000;
/// Microseconds that stand for a barrier where the system has none: a processor's stores are seen by others long before.
const SEEN: u32 = 20;

/// Waits that end.
#[derive(Debug)]
pub struct Patience {
    waited: u32,
    most: u32,
    step: u32,
}

impl Patience {
    /// So many microseconds in all, in steps that grow.
    pub const fn new(microseconds: u32) -> Self {
        Patience { waited: 0, most: microseconds, step: 100 }
    }

    /// Waits a step; false, at once, if the time is over.
    pub fn wait<O: Os>(&mut self, os: &O) -> bool {
        if self.waited >= self.most {
            return false;
        }
        os.pause(self.step);
        self.waited += self.step;
        self.step = (self.step * 4).min(1000);
        true
    }
}

/// How a fork begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// The child will find all whole that can be: [`Allocator::fork_parent`] and [`Allocator::fork_child`] end it.
    Ready,
    /// Another one is under way: wait outside of calls, and try again.
    Later,
    /// A lock does not come free: fork as a reentrant call does.
    Refused,
}

impl<O: Os> Allocator<O> {
    /// Before fork, in a call of the forking thread, which has `slot`. `inner`: it is in the middle of a fork already, and a
    /// handler forks. Where the answer is [`Begin::Later`], the thread leaves the call, waits with `patience`, and tries
    /// again.
    pub fn fork_begin(&self, slot: *const ThreadSlot, inner: bool, patience: &mut Patience) -> Begin {
        let word = &self.forks.word;
        // SeqCst: see `fly`.
        if let Err(n) = word.compare_exchange(0, CHANGES, Ordering::SeqCst, Ordering::Relaxed) {
            // Acquire: what the fork that is joined has prepared.
            let join = || word.compare_exchange(n, n + 1, Ordering::Acquire, Ordering::Relaxed).is_ok();
            return if n & CHANGES == 0 && (inner || patience.waited >= JOIN) && join() {
                Begin::Ready
            } else if patience.waited < patience.most {
                Begin::Later
            } else {
                Begin::Refused
            };
        }
        if self.prepare(slot) {
            // Release pairs with the Acquire of one that joins.
            word.store(1, Ordering::Release);
            return Begin::Ready;
        }
        word.store(0, Ordering::Release);
        Begin::Refused
    }

    /// How long a fork waits for another one.
    pub fn fork_patience(&self) -> Patience {
        Patience::new(2 * LOCK)
    }

    /// The locks, in their order.
    pub(crate) fn locks(&self) -> [&Lock; 3] {
        [self.purger.batch.raw(), self.registry.raw(), self.ranges.raw()]
    }

    /// Milliseconds that a thread leaves a lock to a fork. A thread that the C library's fork waits for stands still for so
    /// long; where the kernel needs longer to copy the page tables, the child may be stranded without need.
    fn lease(&self) -> u32 {
        let bytes = self.arenas.usable_bytes() + self.huge_bytes.load(Ordering::Relaxed);
        LEASE.saturating_add((bytes / LEASE_BYTES) as u32).min(LONGEST_LEASE)
    }

    /// Runs `f` under a lock. False if it does not come free. As `f` does not wait for the C library, the lock is an
    /// ordinary one meanwhile: it cannot be taken away while `f` uses what it guards.
    fn pass(&self, lock: &Lock, f: impl FnOnce()) -> bool {
        let taken = lock.take_for_fork(&self.os, LOCK / 1000, LEASE) && lock.keep();
        if taken {
            f();
            lock.release(&self.os);
        }
        taken
    }

    /// Makes all other threads' calls reentrant, and takes the locks. False if one does not come free.
    fn prepare(&self, slot: *const ThreadSlot) -> bool {
        let [batch, registry, _] = self.locks();
        let mut others = false;
        let mut park = |r: &Registry| {
            for heap in r.heaps() {
                let parked = self.park(r, heap, FORKED.heap());
                let mine = heap.slot.load(Ordering::Relaxed).cast_const() == slot;
                heap.whole.set(parked && mine);
                others |= parked && !mine;
            }
        };
        // The holder of the first one ends a visit, or brings memory back that is on its way. The next holder sees the fork.
        if !self.pass(batch, || ()) || !self.pass(registry, || park(self.registry_in_fork())) {
            return false;
        }
        if others && !(self.os.has_barrier() && self.os.barrier()) {
            self.os.pause(SEEN);
        }
        let mut looks = LOOKS;
        while self.is_any_busy() && looks > 0 {
            self.os.pause(LOOK_EVERY);
            looks -= 1;
        }
        let lease = self.lease();
        for (n, lock) in self.locks().into_iter().enumerate() {
            if !lock.take_for_fork(&self.os, LOCK / 1000, lease) {
                self.locks()[..n].iter().for_each(|lock| lock.release_for_fork(&self.os));
                self.unpark_all();
                return false;
            }
        }
        true
    }

    /// The registry, for a fork that has its lock, or in a process of one thread.
    fn registry_in_fork(&self) -> &Registry {
        // SAFETY: as said; a fork only reads what the lock guards.
        unsafe { &*self.registry.value() }
    }

    /// All threads have their heaps again.
    fn unpark_all(&self) {
        self.registry.with(&self.os, |r| r.heaps().for_each(|heap| self.back(heap)));
    }

    /// Whether a call is under way that began before the fork; notes which heaps are whole.
    fn is_any_busy(&self) -> bool {
        // SeqCst: see `fly`; it also pairs with the Release of a flight that ends.
        let mut busy = self.forks.flights.load(Ordering::SeqCst) != 0;
        let look = || {
            for heap in self.registry_in_fork().heaps().filter(|heap| !heap.whole.get()) {
                if let Some(slot) = self.forked_slot(heap) {
                    heap.whole.set(!Back::<O>::is_busy(slot));
                    busy |= !heap.whole.get();
                }
            }
        };
        self.pass(self.registry.raw(), look) && busy
    }

    /// The thread slot of `heap` if it holds [`FORKED`]; the lock of the registry must be held.
    fn forked_slot(&self, heap: &Heap) -> Option<&ThreadSlot> {
        let owned = heap.state.load(Ordering::Acquire) == OWNED;
        let slot = if owned { self.slot_of(heap) } else { None };
        // SAFETY: the lock keeps the thread slot of an owned one where it is.
        slot.filter(|slot| slot.heap.load(Ordering::Relaxed) == FORKED.heap())
    }

    /// Puts the heap back into a thread slot that holds [`FORKED`]; the lock of the registry must be held, or this be the only
    /// thread.
    fn back(&self, heap: &Heap) {
        heap.whole.set(false);
        // It may have been given up meanwhile.
        if heap.state.load(Ordering::Acquire) == OWNED
            && let Some(slot) = self.slot_of(heap)
        {
            // Release pairs with the load of the thread's next call.
            let _ = slot.heap.compare_exchange(FORKED.heap(), heap.id(), Ordering::Release, Ordering::Relaxed);
        }
    }

    /// The heap whose thread has this thread slot.
    fn heap_of(r: &Registry, slot: *const ThreadSlot) -> Option<&'static Heap> {
        let has = |heap: &&Heap| {
            heap.state.load(Ordering::Acquire) == OWNED && heap.slot.load(Ordering::Relaxed).cast_const() == slot
        };
        r.heaps().find(has)
    }

    /// After fork, in the parent, in a call of the forking thread: where no other fork is under way, all threads have their
    /// heaps again, and what their reentrant calls left is done.
    pub fn fork_parent(&self) {
        let word = &self.forks.word;
        let mut n = word.load(Ordering::Relaxed);
        loop {
            // `CHANGES` is not set, as this fork is counted. 0: a child of a fork in a handler, where it is not.
            let next = match n {
                0 => return,
                1 => CHANGES,
                _ => n - 1,
            };
            // Relaxed: the registry's lock orders what follows.
            match word.compare_exchange(n, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(1) => break,
                Ok(_) => return,
                Err(now) => n = now,
            }
        }
        self.locks().iter().rev().for_each(|lock| lock.release_for_fork(&self.os));
        self.unpark_all();
        // SeqCst: see `fly`.
        word.store(0, Ordering::SeqCst);
        self.settle();
    }

    /// After fork, in the child, whose only thread has `slot`; `inner` other forks of it are under way. Heaps of the
    /// threads that stayed behind are whole where they were in no call: the child's next slow path abandons them, as if the
    /// threads had ended. The others may be half changed, so what they hold stays as it is.
    ///
    /// What a child sees of the parent's memory is a cut through the time of each thread: the kernel takes the right to
    /// write from all pages, and who then writes waits until all are copied. So where the fork still has a lock, all that
    /// was written under it before is there, and nothing that was written under it later.
    pub fn fork_child(&self, slot: *const ThreadSlot, inner: u32) {
        let whole = self.locks().iter().all(|lock| lock.is_forked());
        self.locks().iter().for_each(|lock| lock.release(&self.os));
        let mine = self.end_in_child(slot, inner);
        // Relaxed: one thread.
        let purged = self.purger.asked.swap(false, Ordering::Relaxed);
        // The child of a stranded process is one too.
        if !whole || self.is_stranded() {
            self.stranded.store(true, Ordering::Relaxed);
            return;
        }
        self.forget_totals();
        let mut left = false;
        for heap in self.registry_in_fork().heaps() {
            if !is(mine, heap) && heap.state.load(Ordering::Relaxed) == OWNED {
                heap.state.store(if heap.whole.get() { LEFT } else { LOST }, Ordering::SeqCst);
                // So that the purger does not wait for a visit. Relaxed: one thread.
                heap.slot.store(core::ptr::null_mut(), Ordering::Relaxed);
            }
            left |= heap.state.load(Ordering::Relaxed) == LEFT;
        }
        if left {
            self.left.store(true, Ordering::Relaxed);
            self.note_deferred();
        }
        if inner > 0 {
            if purged {
                // Not yet: a helper would want the locks.
                self.want();
            }
            // The only thread takes them at once.
            self.locks().iter().for_each(|lock| assert!(lock.take_for_fork(&self.os, 0, LEASE)));
        } else if purged {
            self.purge_in_child();
        }
    }

    /// In a child: of the forks under way only the `inner` ones of its thread are left. Returns the thread's heap, which is
    /// back in its thread slot where none is. Before there can be a helper: it would take the thread for one that ends with the
    /// parent's, whose number the heap has.
    fn end_in_child(&self, slot: *const ThreadSlot, inner: u32) -> Option<&'static Heap> {
        // Relaxed: one thread.
        self.forks.word.store(inner, Ordering::Relaxed);
        let flights = self.forks.flights.load(Ordering::Relaxed);
        self.forks.flights.store(flights.min(Back::<O>::is_flying(slot)), Ordering::Relaxed);
        let mine = Self::heap_of(self.registry_in_fork(), slot);
        if inner == 0
            && let Some(mine) = mine
        {
            mine.whole.set(false);
            // SAFETY: the only thread's own thread slot. Its number is still that of the parent's thread, so the system is not asked
            // whether it exists.
            let slot = unsafe { &(*slot).heap };
            let _ = slot.compare_exchange(FORKED.heap(), mine.id(), Ordering::Relaxed, Ordering::Relaxed);
        }
        self.os.forked();
        if let Some(mine) = mine {
            self.set_thread(mine);
        }
        mine
    }

    /// The thread of `slot`, which holds [`FORKED`], ends: waits for the fork, for a while. False if it goes on; then
    /// [`Allocator::leave_to_others`] is next.
    ///
    /// # Safety
    /// `slot` must be the calling thread's, outside of calls.
    pub unsafe fn wait_for_fork(&self, slot: *mut ThreadSlot) -> bool {
        let mut patience = Patience::new(CALL);
        // SAFETY: the thread slot is the caller's.
        while unsafe { (*slot).heap.load(Ordering::Relaxed) } == FORKED.heap() {
            if !patience.wait(&self.os) {
                return false;
            }
        }
        true
    }

    /// The thread of `slot`, which holds [`FORKED`], ends: `gone` takes the place of its heap, which is abandoned by the
    /// next slow path of another thread. False if the heap has come back meanwhile.
    ///
    /// # Safety
    /// `slot` must be the calling thread's, in a call that is not reentrant, as this takes a lock; the thread slot is never used again
    /// with a heap but `gone`.
    pub unsafe fn leave_to_others(&self, slot: *mut ThreadSlot, gone: *mut Heap) -> bool {
        self.registry.with(&self.os, |r| {
            // SAFETY: the thread slot is the caller's.
            let set_slot_of = unsafe { &(*slot).heap };
            // Acquire: what a fork did to the thread slot before is over. The lock keeps the next one away.
            if set_slot_of.compare_exchange(FORKED.heap(), gone, Ordering::Acquire, Ordering::Relaxed).is_err() {
                return false;
            }
            if let Some(heap) = Self::heap_of(r, slot) {
                heap.slot.store(core::ptr::null_mut(), Ordering::Relaxed);
                // SeqCst: see `abandon`, which comes later.
                heap.state.store(LEFT, Ordering::SeqCst);
                self.left.store(true, Ordering::Relaxed);
                self.note_deferred();
            }
            true
        })
    }

    /// After a fork in a reentrant call, in the child, whose only thread has `slot`; `inner` other forks of it are under way;
    /// `alone`: the parent had no helper either. The interrupted call goes on when the handler returns, so the locks that
    /// it holds must stay good, and nobody else holds one any more: all are released, and released again by their holder,
    /// which does no harm in a process of one thread. Where there were other threads, what they held may be half changed.
    pub fn fork_child_reentrant(&self, slot: *const ThreadSlot, inner: u32, alone: bool) {
        self.locks().iter().for_each(|lock| lock.release(&self.os));
        let mut others = !alone || self.others_fly(slot);
        let mine = self.end_in_child(slot, inner);
        for heap in self.registry_in_fork().heaps() {
            if !is(mine, heap) && heap.state.load(Ordering::Relaxed) == OWNED {
                others = true;
                // Its thread slot stays: the interrupted call may be in the middle of a visit.
                heap.state.store(LOST, Ordering::SeqCst);
            }
        }
        if others {
            self.stranded.store(true, Ordering::Relaxed);
        }
    }
}

/// Whether `heap` is the one that was found.
fn is(found: Option<&Heap>, heap: &Heap) -> bool {
    found.is_some_and(|found| found.id() == heap.id())
}
