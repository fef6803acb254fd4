//! Handshake: how the purger, or any thread that holds the batch lock, uses another thread's heap while that thread is
//! in no call.
//!
//! No lock guards a heap, because its thread would pay for the lock in each call. Instead the thread that makes the
//! handshake pays. It replaces the heap in the other thread's slot by [`PARKED`], waits until every thread has seen
//! that ([`Os::barrier`]), and checks whether the other thread is in a call. If so, it puts the heap back without using
//! it. If not, it uses the heap: the other thread's next call finds [`PARKED`] and waits in [`Back::wait_parked`], for
//! some milliseconds at most. A handshake takes microseconds: while the heap is parked, system calls are made only for
//! the barrier, for locks, to check that the thread exists, and if a policy requires that a released slab changes at
//! once (`harden.rs`, [`Purge::Eager`](crate::system::policy::Purge::Eager)).
//!
//! One thread at a time makes handshakes: it holds the batch lock. A heap is parked under the lock of the registry,
//! while it still has an owner; the owner cannot abandon it before the handshake ends. See invariants 18 and 19.

use crate::back::Back;
use crate::back::batch::{Punch, Work};
use crate::back::measure::Held;
use crate::blocks::heap::{FORKED, Mine, PARKED, ThreadSlot};
use crate::blocks::registry::{COMMON, LOST, ORPHAN, OWNED, Registry};
use crate::blocks::slab_record::{clean_pages, slab_age};
use crate::blocks::{holes, slab};
use crate::pages::age::{self, DELAY_TICKS};
use crate::pages::chunk::Record;
use crate::system::os::Thread;
use crate::system::sync::{AtomicU32, Ordering};
use crate::{Heap, Os};

/// Number of ticks that a heap's caches must be unchanged before they are emptied.
const QUIET_TICKS: u8 = 2;
/// Number of ticks after which the purger stops waiting for a heap that is quiet but cannot be used: the system has no
/// barrier, or the thread is stopped in the middle of a call.
const TRIED_TICKS: u8 = 20;
/// Milliseconds that a thread waits for its parked heap, once for each handshake. A handshake takes microseconds, unless
/// the thread that makes it loses its processor meanwhile.
const PARKED_MS: u32 = 4;

/// Returns the word of a thread slot that a futex can wait on.
fn futex(slot: *mut ThreadSlot) -> *const AtomicU32 {
    // The lower half comes first on the processors that neap supports, all little-endian. No heap has the same lower
    // half as PARKED (`Blocks::new_heap`), nor has another name, which lies in the same library. So a waiting thread
    // never takes a heap that was put back for PARKED.
    slot.cast::<AtomicU32>().cast_const()
}

impl<O: Os> Back<O> {
    /// Stores where the thread of `heap` keeps it, for handshakes. The thread slot must last until
    /// `Blocks::abandon_heap`.
    ///
    /// # Safety
    /// `slot` must be the place that all calls of the heap's thread, the caller, load it from.
    pub unsafe fn set_slot(&self, heap: Mine<'_>, slot: *mut ThreadSlot) {
        self.set_thread(&heap);
        // SAFETY: the slot is the calling thread's. Relaxed: only this thread reads it.
        unsafe { (*slot).own.store(heap.id(), Ordering::Relaxed) };
        // Release pairs with the Acquire of `slot_of`.
        heap.slot.store(slot, Ordering::Release);
    }

    /// Stores the identity of the calling thread in `heap`: when it gets the heap, and in the child of a fork, where
    /// its number is another.
    pub(crate) fn set_thread(&self, heap: &Heap) {
        let (number, place) = self.os.thread_to_ask_for().map_or((0, 0), |thread| (thread.number, thread.place));
        // Relaxed: when the thread gets the heap, the store of the thread slot publishes all three; the child of a fork
        // has one thread.
        heap.thread.store(number, Ordering::Relaxed);
        heap.place.store(place, Ordering::Relaxed);
        heap.process.store(self.os.process().unwrap_or(0), Ordering::Relaxed);
    }

    /// Whether the thread of an owned heap has certainly ended. False if its number is one of another process: in a
    /// child made without fork handlers.
    fn has_ended(&self, heap: &Heap) -> bool {
        // Relaxed: the load of the thread slot orders it, or the heap is parked.
        let (number, place) = (heap.thread.load(Ordering::Relaxed), heap.place.load(Ordering::Relaxed));
        // The process is checked last: in most cases the thread still exists.
        number != 0
            && self.os.has_ended(Thread { number, place })
            && self.os.process() == Some(heap.process.load(Ordering::Relaxed))
    }

    /// Waits until the heap of `slot`, which was found parked, is back. False if it still is not after a while: the
    /// thread that makes the handshake may have lost its processor. Then the call has to be a reentrant one, and so have
    /// those that follow, without another wait, until the heap is back.
    ///
    /// # Safety
    /// `slot` must be the calling thread's, and not busy.
    #[must_use]
    pub unsafe fn wait_parked(&self, slot: *mut ThreadSlot) -> bool {
        // SAFETY: the slot is the calling thread's, so it is valid while the thread runs.
        let (own, word) = unsafe { (&*slot, &*futex(slot)) };
        let is_parked = || own.heap.load(Ordering::Acquire) == PARKED.heap();
        // Relaxed, here and in `unpark`: at worst the thread does not wait for the next handshake either.
        if is_parked() && own.waited.load(Ordering::Relaxed) == 0 {
            self.os.futex_wait_for(word, PARKED.heap().addr() as u32, PARKED_MS);
            own.waited.store(is_parked().into(), Ordering::Relaxed);
        }
        !is_parked()
    }

    /// The same for a call that can do nothing without its heap: waits until it is back.
    ///
    /// # Safety
    /// As [`Back::wait_parked`].
    pub unsafe fn wait_for_heap(&self, slot: *mut ThreadSlot) {
        // SAFETY: the slot is the calling thread's, so it is valid while the thread runs.
        let (own, word) = unsafe { (&*slot, &*futex(slot)) };
        while own.heap.load(Ordering::Acquire) == PARKED.heap() {
            self.os.futex_wait(word, PARKED.heap().addr() as u32);
        }
    }

    /// Swaps the heap in its thread's slot for `name`, also where a fork that has ended left [`FORKED`] in its place.
    /// False if the heap has no thread, if the slot holds another value, or if the thread has ended.
    ///
    /// The thread slot lies in thread storage, which is unmapped when the thread ends. A thread that ends abandons its
    /// heap first, unless it made its first calls after the point at which the C library would have run its destructor
    /// (`crates/sys/src/thread/`). So before each use of the thread slot, the system is asked whether the thread still
    /// exists. One case remains: a thread makes its first calls after its last destructor has run, and more of them
    /// than `crates/sys` serves without a heap of the thread's own; it still exists when the system is asked, but its
    /// storage is unmapped before the next instructions here. Such a thread runs no more code of the program, so it
    /// soon ends. The purger uses only heaps that were left alone for some ticks, so only a trim could find the thread.
    pub(crate) fn park(&self, _: &Registry, heap: &Heap, name: *mut Heap) -> bool {
        // The thread slot lasts as long as the heap is owned, and the lock keeps it owned.
        heap.state.load(Ordering::Acquire) == OWNED
            && self.slot_of(heap).is_some_and(|slot| {
                // SeqCst pairs with the thread's store of `busy` and load of `heap`, through the barrier that follows.
                let swap = |held| slot.heap.compare_exchange(held, name, Ordering::SeqCst, Ordering::Relaxed).is_ok();
                let parked = swap(heap.id()) || swap(FORKED.heap());
                if parked {
                    heap.whole.set(false);
                }
                parked
            })
    }

    /// Returns the thread slot of an owned heap, unless its thread has ended. The lock of the registry must be held, or
    /// the heap be parked.
    pub(crate) fn slot_of(&self, heap: &Heap) -> Option<&ThreadSlot> {
        // Acquire pairs with the Release of `set_slot`.
        let slot = heap.slot.load(Ordering::Acquire);
        // SAFETY: the thread slot exists as long as the heap is owned and its thread lives.
        (!slot.is_null() && !self.has_ended(heap)).then(|| unsafe { &*slot })
    }

    /// Whether the thread of `slot`, whose heap the caller parked, is in a call. Valid after the barrier.
    pub(crate) fn is_busy(slot: &ThreadSlot) -> bool {
        // Acquire pairs with the Release store at the end of the thread's call: what the call did to the heap is seen.
        slot.busy.load(Ordering::Acquire) != ThreadSlot::IDLE
    }

    /// Gives a parked heap back to its thread. If the thread has ended, the heap has no thread slot from now on, see
    /// `park`.
    fn unpark(&self, heap: &Heap) {
        let Some(slot) = self.parked_slot(heap) else { return };
        let futex = futex(core::ptr::from_ref(slot).cast_mut());
        slot.waited.store(0, Ordering::Relaxed);
        // Release pairs with the Acquire in `wait_parked` and with the load of the thread's next call. After the store
        // the thread slot may no longer exist: the wake uses only its address.
        slot.heap.store(heap.id(), Ordering::Release);
        self.os.futex_wake(futex);
    }

    /// Returns the thread slot of a parked heap. `None` if its thread has ended, as the thread slot may no longer
    /// exist; then the heap has no slot from now on.
    fn parked_slot(&self, heap: &Heap) -> Option<&ThreadSlot> {
        let slot = self.slot_of(heap);
        if slot.is_none() {
            // Relaxed: the heap is parked, so no other thread uses the field.
            heap.slot.store(core::ptr::null_mut(), Ordering::Relaxed);
        }
        slot
    }

    /// Runs `f` with each of `heaps` whose thread is in no call now. The batch lock must be held. `mine` is the heap
    /// that the calling thread's own call uses, which needs no handshake, or [`Mine::none`].
    #[cold]
    pub(crate) fn handshake(
        &self,
        mine: Mine<'_>,
        heaps: &mut [Option<&'static Heap>],
        mut f: impl FnMut(Mine<'static>),
    ) {
        for heap in heaps.iter_mut() {
            if let Some(own) = heap.take_if(|heap| heap.id() == mine.id()) {
                // SAFETY: the calling thread's own heap, in a call.
                f(unsafe { Mine::of_ref(own) });
            }
        }
        // First of all, as this may take milliseconds: no heap is parked yet, so no thread waits.
        if heaps.iter().all(Option::is_none) || !self.os.prepare_barrier() {
            return;
        }
        self.registry.with(&self.os, |r| {
            for heap in heaps.iter_mut() {
                let _ = heap.take_if(|heap| !self.park(r, heap, PARKED.heap()));
            }
        });
        if heaps.iter().all(Option::is_none) {
            return;
        }
        let seen = self.os.barrier();
        for &heap in heaps.iter().flatten() {
            if seen && self.parked_slot(heap).is_some_and(|slot| !Self::is_busy(slot)) {
                // SAFETY: the heap is parked, and its thread is in no call; its next call waits.
                f(unsafe { Mine::of_ref(heap) });
            }
            self.unpark(heap);
        }
    }

    /// Gives the holes of the slabs in `work.batch` back to the system. Returns the bytes, and adds those that held
    /// memory to `held`. `mine` as in [`Back::handshake`].
    #[cold]
    pub(crate) fn punch(&self, mine: Mine<'_>, work: &mut Work, held: Option<&mut usize>) -> usize {
        let Punch { holes, count, owners, .. } = &mut work.punch;
        *count = 0;
        // A bit for each slab that was done. A heap may become an orphan right after its handshake, and be found once
        // more.
        let mut done = 0u32;
        let due = &work.batch.slabs[..work.batch.slab_count];
        let mut take = |i: usize, c: Record, owner: Mine<'_>| {
            // If the slab still belongs to the heap, it is the caller's now.
            if done >> i & 1 != 0 {
                return;
            }
            done |= 1 << i;
            let Some(slab) = owner.slab(c) else { return };
            slab.set_age(age::NONE);
            if holes::take(slab, self.page_size(), &mut holes[*count]) {
                owner.unlist_if_full(slab);
                *count += 1;
            }
        };
        owners.fill(None);
        for (i, &(c, owner)) in due.iter().enumerate().filter_map(|(i, due)| Some((i, due.as_ref()?))) {
            let listed = owners.iter().flatten().any(|heap| heap.id() == owner.id());
            match owner.state.load(Ordering::Acquire) {
                OWNED if !listed => owners[i] = Some(owner),
                // A lost heap's memory stays as it is, see `fork.rs`.
                LOST => slab_age(c).store(age::NONE, Ordering::Relaxed),
                _ => {}
            }
        }
        let slabs = || due.iter().enumerate().filter_map(|(i, due)| due.map(|(c, owner)| (i, c, owner)));
        self.handshake(mine, owners, |heap| {
            slabs().filter(|(.., owner)| owner.id() == heap.id()).for_each(|(i, c, _)| take(i, c, heap));
        });
        self.registry.with(&self.os, |_| {
            // In a stranded process, another thread of the parent may have left orphans half changed.
            for (i, c, owner) in slabs().filter(|_| !self.is_stranded()) {
                if matches!(owner.state.load(Ordering::Acquire), ORPHAN | COMMON) {
                    // SAFETY: the lock of the registry is held, which guards orphans and the common heap.
                    take(i, c, unsafe { Mine::of_ref(owner) });
                }
            }
        });
        self.send_holes(work, held)
    }

    /// Gives the OS pages of holes back, and frees their blocks. Returns the bytes. Never lazily, whatever the policy:
    /// a slab has no state for OS pages that were purged lazily, so they would be purged again at the next opportunity.
    #[cold]
    fn send_holes(&self, work: &mut Work, held: Option<&mut usize>) -> usize {
        let Punch { holes, count, runs, ends, .. } = &mut work.punch;
        let holes = &holes[..*count];
        let mut count = 0;
        for (hole, end) in holes.iter().zip(&mut *ends) {
            count += hole.runs(self.page_size(), &mut runs[count..]);
            *end = count;
        }
        let held = held.map(|bytes| Held { bytes, room: &mut work.touched });
        // SAFETY: `Hole` proves that all blocks on these OS pages are taken by this thread, so nothing there is needed.
        // They pin their slabs until they are freed below (invariant 11).
        let sent = unsafe { self.release_held(&runs[..count], false, held) };
        if sent.is_in_vain() {
            self.purger.set_refused(true);
        }
        let mut first = 0;
        for (hole, &end) in holes.iter().zip(&*ends) {
            let mut own = core::mem::replace(&mut first, end)..end;
            let Some((c, class, blocks)) = hole.blocks() else { continue };
            if own.all(|i| sent.went(i)) {
                // Relaxed: the blocks are freed after this, which orders it.
                clean_pages(c).fetch_or(hole.pages, Ordering::Relaxed);
            }
            for (word, &mask) in blocks.iter().enumerate().filter(|(_, mask)| **mask != 0) {
                self.give_remote(c, class, slab::Batch { word, mask });
            }
        }
        sent.bytes
    }

    /// Empties the caches of heaps that were left alone, or of `all` heaps, and collects what other threads freed into
    /// them. If the caches of all threads may hold much, empty caches are also reduced to their initial size: otherwise
    /// what is freed there later would wait unnoticed. Returns true if a heap that could not be used now has to be
    /// tried again, or if `go_on`, which is called after each handshake, returned false. The batch lock must be held.
    /// `mine` as in [`Back::handshake`].
    #[cold]
    pub(crate) fn empty_caches(&self, all: bool, mine: Mine<'_>, go_on: &mut dyn FnMut() -> bool) -> bool {
        let mut waits = false;
        let much = self.notes.came().cached;
        for heap in self.all_heaps() {
            // Approximate, as the thread may change its caches meanwhile.
            let (look, cached) = heap.look();
            let full = cached || !heap.pending.is_empty() || (much && heap.is_grown());
            heap.quiet.set(if look == heap.look.get() { heap.quiet.get().saturating_add(1) } else { 0 });
            heap.look.set(look);
            if full && (all || heap.quiet.get() >= QUIET_TICKS) {
                self.handshake(mine, &mut [Some(heap)], |heap| self.empty_heap(heap));
                heap.look.set(heap.look().0);
                if !go_on() {
                    return true;
                }
            } else if heap.large.is_due(self.epoch(), DELAY_TICKS) {
                self.handshake(mine, &mut [Some(heap)], |heap| self.clear_cached_large(heap, DELAY_TICKS));
            }
            waits |= full && heap.quiet.get() < TRIED_TICKS && !heap.slot.load(Ordering::Relaxed).is_null();
        }
        self.collect_common();
        waits
    }
}
