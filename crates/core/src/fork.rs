//! fork: how the child gets consistent structures (invariant 28), although neap never blocks the C library's own fork.
//!
//! After all fork handlers have run, the C library takes its own locks, and a thread that holds one of those may call
//! malloc. So from the handler before fork to the handler after it, no thread may wait for neap. During that time all
//! calls of other threads are *reentrant* (`blocks/reentrant.rs`): they use no heap and no lock.
//!
//! 1. `Forks::word` is set. From now on no handshake and no batch begins (`Back::with_batch`), and no call that borrows
//!    a heap (`Back::fly`).
//! 2. The heap in each thread's slot is replaced by [`FORKED`], as in a handshake (`handshake.rs`), and a barrier makes
//!    all threads see that. A call that finds [`FORKED`] is reentrant. It does not wait.
//! 3. Calls that began before go on. The fork waits a moment for their end (`LOOKS`). Heaps of threads that remain in
//!    the middle of a call (without a processor, stopped, or in a handler) are lost in the child, because they may be
//!    half changed.
//! 4. The three locks are taken. Only the threads of step 3 and the purger can need them. Such a thread waits for a
//!    bounded time, because the C library's fork may wait for this thread. After that time (`Allocator::lease`) it
//!    takes the lock away from the fork (`lock.rs`).
//!
//! The child checks whether it still has the locks. If so, what they guard is consistent. Otherwise it is *stranded*,
//! like the child of a fork in a reentrant call: all its calls are reentrant.
//!
//! All waits are bounded, because the awaited thread may be in a handler that waits for the C library. If a wait times
//! out, the fork goes on as one in a reentrant call does ([`Begin::Refused`]).
//!
//! Forks of several threads at the same time share the state: the first one prepares it, the last one ends it. The next
//! fork waits a while for that end (`JOIN`) before it joins, so that threads get their heaps back in a program that
//! forks all the time.
//!
//! The parent gives no thread its heap back: each takes its own at its next call ([`Allocator::take_back`]). To write
//! to the slots of thousands of threads right after a fork would cost a page fault and a copied OS page each. So the
//! heap of a thread that made no call since the last fork is parked already when the next one begins, and costs that
//! one nothing (`Heap::whole`).

use crate::back::Back;
use crate::back::forks::CHANGES;
pub use crate::back::forks::Flight;
use crate::blocks::heap::{FORKED, ThreadSlot};
use crate::blocks::registry::{LEFT, LOST, OWNED, Registry};
use crate::pages::notes::SHARED;
use crate::system::lock::Lock;
use crate::system::sync::Ordering;
use crate::{Allocator, Heap, Os};

/// Number of times that a fork checks whether the calls in progress have ended. Most end by then if their threads have
/// a processor. Threads without one are not waited for: where many threads share a processor, each sleep takes
/// milliseconds.
const LOOKS: u32 = 10;
/// Microseconds between two checks.
const LOOK_EVERY: u32 = 4;
/// Microseconds that a fork waits for another one to end before it joins that one.
const JOIN: u32 = 20_000;
/// Microseconds that a fork waits for a lock, or for another fork to begin or to end. Only a thread that is stopped in
/// the middle of a call holds a lock for so long.
const LOCK: u32 = 2_000_000;
/// Minimum milliseconds before a waiting thread takes a lock away from a fork. A process that has used up its processor
/// time (cgroup's `cpu.max`) is stopped for up to 100, and the thread that forks may be the last one to run again.
const LEASE: u32 = 500;
/// Bytes for each of which it waits a millisecond more: fork copies the page tables of some ten times as many bytes in
/// that time.
const LEASE_BYTES: usize = 4 << 20;
/// Maximum milliseconds before a waiting thread takes a lock away from a fork.
const LONGEST_LEASE: u32 = 5_000;
/// Microseconds that a call waits for a fork to end if it could do nothing otherwise: the end of a thread, a control.
pub const CALL: u32 = 20_000;
/// Microseconds that replace a barrier where the system has none: a processor's stores are seen by others long before.
const SEEN: u32 = 20;

/// A bounded series of waits.
#[derive(Debug)]
pub struct Patience {
    waited: u32,
    most: u32,
    step: u32,
}

impl Patience {
    /// Waits of `microseconds` in all, in growing steps.
    pub const fn new(microseconds: u32) -> Self {
        Patience { waited: 0, most: microseconds, step: 100 }
    }

    /// Waits one step. Returns false at once if the time is used up.
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

/// Result of [`Allocator::fork_begin`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// The child will find structures as consistent as can be. [`Allocator::fork_parent`] and [`Allocator::fork_child`]
    /// end the fork.
    Ready,
    /// Another fork is in progress: leave the call, wait, and try again.
    Later,
    /// A lock did not become free: fork as a reentrant call does.
    Refused,
}

impl<O: Os> Allocator<O> {
    /// Prepares a fork, in a call of the forking thread, which has `slot`. `inner`: the thread is in the middle of a
    /// fork already, and a handler forks. If the result is [`Begin::Later`], the thread leaves the call, waits with
    /// `patience`, and tries again.
    pub fn fork_begin(&self, slot: *const ThreadSlot, inner: bool, patience: &mut Patience) -> Begin {
        let word = &self.forks.word;
        // SeqCst: see `fly`.
        if let Err(n) = word.compare_exchange(0, CHANGES, Ordering::SeqCst, Ordering::Relaxed) {
            // Acquire pairs with the Release below: what the fork that is joined has prepared is seen.
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
            // Release pairs with the Acquire of a fork that joins.
            word.store(1, Ordering::Release);
            return Begin::Ready;
        }
        word.store(0, Ordering::Release);
        Begin::Refused
    }

    /// Maximum time that a fork waits for another one.
    pub fn fork_patience(&self) -> Patience {
        Patience::new(2 * LOCK)
    }

    /// The locks, in their order.
    pub(crate) fn locks(&self) -> [&Lock; 3] {
        [self.purger.batch.raw(), self.registry.raw(), self.ranges.raw()]
    }

    /// Milliseconds before a waiting thread takes a lock away from a fork. A thread that the C library's fork waits for
    /// is blocked for that long. If the kernel needs longer to copy the page tables, the child may be stranded without
    /// need.
    fn lease(&self) -> u32 {
        let bytes = self.arenas.usable_bytes() + self.huge_bytes.load(Ordering::Relaxed);
        LEASE.saturating_add((bytes / LEASE_BYTES) as u32).min(LONGEST_LEASE)
    }

    /// Runs `f` under a lock. False if the lock does not become free. As `f` does not wait for the C library, the lock
    /// is an ordinary one meanwhile: no thread can take it away while `f` uses what it guards.
    fn pass(&self, lock: &Lock, f: impl FnOnce()) -> bool {
        let taken = lock.take_for_fork(&self.os, LOCK / 1000, LEASE) && lock.keep();
        if taken {
            f();
            lock.release(&self.os);
        }
        taken
    }

    /// Makes all other threads' calls reentrant, and takes the locks. False if one does not become free.
    fn prepare(&self, slot: *const ThreadSlot) -> bool {
        let [batch, registry, _] = self.locks();
        let mut others = false;
        let mut park = |r: &Registry| {
            // The others are parked since an earlier fork.
            for heap in r.heaps().filter(|heap| !heap.whole.get()) {
                let parked = self.park(r, heap, FORKED.heap());
                let mine = heap.slot.load(Ordering::Relaxed).cast_const() == slot;
                if parked && mine {
                    heap.whole.set(true);
                }
                others |= parked && !mine;
            }
        };
        // The present holder of the batch lock ends its handshake, or returns the memory that is on its way. The next
        // holder sees the fork.
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
                return false;
            }
        }
        true
    }

    /// Returns the registry, for a fork that has its lock, or in a process of one thread.
    fn registry_in_fork(&self) -> &Registry {
        // SAFETY: the lock is held, or there is one thread; a fork only reads what the lock guards.
        unsafe { &*self.registry.value() }
    }

    /// Whether a call that began before the fork is still in progress. Also notes which heaps are whole.
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

    /// Returns the thread slot of `heap` if it holds [`FORKED`]. The lock of the registry must be held.
    fn forked_slot(&self, heap: &Heap) -> Option<&ThreadSlot> {
        let owned = heap.state.load(Ordering::Acquire) == OWNED;
        let slot = if owned { self.slot_of(heap) } else { None };
        // The lock keeps the heap owned, and so its thread slot valid.
        slot.filter(|slot| slot.heap.load(Ordering::Relaxed) == FORKED.heap())
    }

    /// Puts the heap of the calling thread back into its `slot`, which holds [`FORKED`]. False while a fork is in
    /// progress, and if the lock does not become free at once: the call must be a reentrant one, or be tried again.
    ///
    /// # Safety
    /// `slot` must be the calling thread's, in a call.
    pub unsafe fn take_back(&self, slot: *const ThreadSlot) -> bool {
        let lock = self.registry.raw();
        // No wait: if a fork begins right now, this thread must not wait for it.
        if self.is_forking() || !lock.try_take_soon() {
            return false;
        }
        // Relaxed: a fork parks heaps under the lock, after it has set the word. If it did so already, this sees the
        // word; otherwise the fork will find the heap in the slot.
        let may = self.forks.word.load(Ordering::Relaxed) == 0;
        if may {
            // SAFETY: the slot is the calling thread's, so it is valid while the thread runs.
            let slot = unsafe { &*slot };
            let own = slot.own.load(Ordering::Relaxed);
            // Relaxed: the lock orders what handshakes did with the heap before the fork. It fails in a stranded child,
            // and during a handshake.
            let back = slot.heap.compare_exchange(FORKED.heap(), own, Ordering::Relaxed, Ordering::Relaxed);
            // SAFETY: heaps are never unmapped (invariant 3).
            if let Some(heap) = unsafe { Heap::at(own) }.filter(|_| back.is_ok()) {
                heap.whole.set(false);
            }
        }
        lock.release(&self.os);
        may
    }

    /// Returns the heap of the calling thread, which has `slot`: the heap that has the slot's address, or that the slot
    /// holds, if the heap does not have the address yet.
    fn heap_of(r: &Registry, slot: *const ThreadSlot) -> Option<&'static Heap> {
        // SAFETY: the calling thread's own slot, or null. Relaxed: the thread stored its heap there, or another one a
        // name.
        let held = unsafe { slot.as_ref() }.map(|slot| slot.heap.load(Ordering::Relaxed));
        let has = |heap: &&Heap| {
            let knows = heap.slot.load(Ordering::Relaxed).cast_const() == slot;
            heap.state.load(Ordering::Acquire) == OWNED && !slot.is_null() && (knows || held == Some(heap.id()))
        };
        r.heaps().find(has)
    }

    /// Ends a fork in the parent, in a call of the forking thread. If no other fork is in progress, threads may take
    /// their heaps back, and this does what their reentrant calls left to do.
    pub fn fork_parent(&self) {
        let word = &self.forks.word;
        let mut n = word.load(Ordering::Relaxed);
        loop {
            // `CHANGES` is not set, as this fork is counted. 0: the child of a fork in a handler, where this fork is
            // not counted.
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
        // SeqCst: see `fly`.
        word.store(0, Ordering::SeqCst);
        self.settle();
    }

    /// Ends a fork in the child, whose only thread has `slot`; `inner` other forks of that thread are in progress.
    /// Heaps of the parent's other threads are whole if those were in no call: the child's next slow path abandons
    /// them, as if the threads had ended. Other heaps may be half changed, so what they hold stays as it is.
    ///
    /// For each thread of the parent, the child sees its memory as of one moment: the kernel write-protects all OS
    /// pages, and a thread that then writes waits until all page tables are copied. So if the fork still has a lock,
    /// the child sees all that was written under it before the fork took it, and nothing that was written under it
    /// later.
    pub fn fork_child(&self, slot: *const ThreadSlot, inner: u32) {
        let whole = self.locks().iter().all(|lock| lock.is_forked());
        self.locks().iter().for_each(|lock| lock.release(&self.os));
        let mine = self.end_in_child(slot, inner);
        // Relaxed: one thread.
        let purged = self.purger.asked.swap(false, Ordering::Relaxed);
        // The child of a stranded process is stranded too.
        if !whole || self.is_stranded() {
            self.stranded.store(true, Ordering::Relaxed);
            return;
        }
        self.forget_totals();
        let mut left = false;
        for heap in self.registry_in_fork().heaps() {
            if !is_same(mine, heap) && heap.state.load(Ordering::Relaxed) == OWNED {
                heap.state.store(if heap.whole.replace(false) { LEFT } else { LOST }, Ordering::SeqCst);
                // So that the purger does not wait for a handshake. Relaxed: one thread.
                heap.slot.store(core::ptr::null_mut(), Ordering::Relaxed);
            }
            left |= heap.state.load(Ordering::Relaxed) == LEFT;
        }
        if left {
            self.left.store(true, Ordering::Relaxed);
            self.note_deferred();
        }
        if self.registry_in_fork().common().is_some() {
            // Another thread of the parent may have been about to leave it.
            self.notes.leave(SHARED);
        }
        if inner > 0 {
            if purged {
                // Not yet: a helper would need the locks.
                self.want();
            }
            // The only thread takes them at once.
            self.locks().iter().for_each(|lock| assert!(lock.take_for_fork(&self.os, 0, LEASE)));
        } else if purged {
            self.purge_in_child();
        }
    }

    /// In a child: ends all forks in progress but the `inner` ones of its thread. Returns the thread's heap, which is
    /// back in its thread slot if `inner` is 0. To be called before there can be a helper: a helper would take the
    /// thread for one that has ended, as the heap still has the number of the parent's thread.
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
            // SAFETY: the only thread's own slot. The heap still has the number of the parent's thread, so this must
            // not check whether the thread exists.
            let held = unsafe { &(*slot).heap };
            let _ = held.compare_exchange(FORKED.heap(), mine.id(), Ordering::Relaxed, Ordering::Relaxed);
        }
        self.os.forked();
        if let Some(mine) = mine {
            self.set_thread(mine);
        }
        mine
    }

    /// For the thread of `slot`, which ends and got no heap in a call: waits a while for the fork. False if the fork is
    /// still in progress; then [`Allocator::leave_to_others`] is next.
    ///
    /// # Safety
    /// `slot` must be the calling thread's, outside of calls.
    pub unsafe fn wait_for_fork(&self, slot: *mut ThreadSlot) -> bool {
        let mut patience = Patience::new(CALL);
        // SAFETY: the slot is the calling thread's, so it is valid while the thread runs.
        while unsafe { (*slot).heap.load(Ordering::Relaxed) } == FORKED.heap() && self.is_forking() {
            if !patience.wait(&self.os) {
                return false;
            }
        }
        true
    }

    /// For the thread of `slot`, which holds [`FORKED`] and ends: stores `gone` in the slot in place of the heap, which
    /// the next slow path of another thread abandons. False if the heap has come back meanwhile.
    ///
    /// # Safety
    /// `slot` must be the calling thread's, in a call that is not reentrant, as this takes a lock. The slot is never
    /// used again with a heap other than `gone`.
    pub unsafe fn leave_to_others(&self, slot: *mut ThreadSlot, gone: *mut Heap) -> bool {
        self.registry.with(&self.os, |r| {
            // SAFETY: the slot is the calling thread's, so it is valid while the thread runs.
            let held = unsafe { &(*slot).heap };
            // Relaxed: the lock orders what forks did to the slot, and keeps the next one away.
            if held.compare_exchange(FORKED.heap(), gone, Ordering::Relaxed, Ordering::Relaxed).is_err() {
                return false;
            }
            if let Some(heap) = Self::heap_of(r, slot) {
                heap.slot.store(core::ptr::null_mut(), Ordering::Relaxed);
                // From now on other threads use the heap, also before the fork has the locks.
                heap.whole.set(false);
                // SeqCst: see `abandon_heap`, which comes later.
                heap.state.store(LEFT, Ordering::SeqCst);
                self.left.store(true, Ordering::Relaxed);
                self.note_deferred();
            }
            true
        })
    }

    /// Ends a fork of a reentrant call, in the child, whose only thread has `slot`; `inner` other forks of that thread
    /// are in progress; `alone`: the parent had no helper either. The interrupted call goes on when the handler
    /// returns. All locks are released here: no other thread is left that could hold one, and if the interrupted call
    /// holds one it releases it once more, which does no harm in a process of one thread. If the parent had other
    /// threads, what they held may be half changed.
    pub fn fork_child_reentrant(&self, slot: *const ThreadSlot, inner: u32, alone: bool) {
        self.locks().iter().for_each(|lock| lock.release(&self.os));
        let mut others = !alone || self.others_fly(slot);
        let mine = self.end_in_child(slot, inner);
        for heap in self.registry_in_fork().heaps() {
            if !is_same(mine, heap) && heap.state.load(Ordering::Relaxed) == OWNED {
                others = true;
                // Its slot stays: the interrupted call may be in the middle of a handshake.
                heap.state.store(LOST, Ordering::SeqCst);
            }
        }
        if others {
            self.stranded.store(true, Ordering::Relaxed);
        }
    }
}

/// Whether both are the same heap.
fn is_same(other: Option<&Heap>, heap: &Heap) -> bool {
    other.is_some_and(|other| other.id() == heap.id())
}
