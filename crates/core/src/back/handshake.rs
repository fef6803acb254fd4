//! Visits: how the purger uses another thread's heap while that thread does something else.
//!
//! No lock guards a heap; its thread would pay for it at each call. Instead the visitor pays: it swaps the heap in the
//! thread's slot for [`PARKED`], waits until every thread has seen that ([`Os::barrier`]), and looks whether the
//! thread is in the middle of a call. If it is, the visitor leaves. If it is not, its next call finds [`PARKED`] and
//! waits in [`Back::wait_parked`]. A visit lasts microseconds: nothing in it is a system call but locks.
//!
//! One thread at a time visits: it holds the purger's batch lock. A heap is parked under the lock of the registry,
//! where it is still somebody's; its thread cannot give it up before the visit ends.

use crate::back::Back;
use crate::back::batch::{Punch, Work};
use crate::blocks::heap::{Mine, PARKED, ThreadSlot};
use crate::blocks::registry::{LOST, ORPHAN, OWNED, Registry};
use crate::blocks::slab_record::{clean_pages, slab_age};
use crate::blocks::{holes, slab};
use crate::pages::age::{self, DELAY_TICKS};
use crate::pages::chunk::Record;
use crate::system::os::Thread;
use crate::system::sync::{AtomicU32, Ordering};
use crate::{Heap, Os};

/// Ticks that a heap's caches must have been left alone before they are emptied.
const QUIET_TICKS: u8 = 2;
/// Ticks after which nobody waits any more for a heap that is quiet and still cannot be visited: the system has no
/// barrier, or the thread stands still in the middle of a call.
const TRIED_TICKS: u8 = 20;

/// The word of a thread slot that a futex can wait on.
fn futex(slot: *mut ThreadSlot) -> *const AtomicU32 {
    // The lower half comes first on the processors that neap knows, all little-endian. No heap has the same lower half as
    // PARKED (`Back::new_heap`), nor has another name, which lies in the same library: so a waiter never takes what a
    // visitor put back for PARKED.
    slot.cast::<AtomicU32>().cast_const()
}

impl<O: Os> Back<O> {
    /// Tells visitors where the thread of `heap` keeps it. The thread slot must last until `Allocator::abandon`.
    ///
    /// # Safety
    /// `slot` must be the place that all calls of the heap's thread, the caller, load it from.
    pub(crate) unsafe fn set_slot_of(&self, heap: &Heap, slot: *mut ThreadSlot) {
        self.set_thread(heap);
        // Release pairs with the Acquire of `slot_of`.
        heap.slot.store(slot, Ordering::Release);
    }

    /// Notes that the calling thread has `heap`: at first, and in the child of a fork, where its number is another.
    pub(crate) fn set_thread(&self, heap: &Heap) {
        let (number, place) = self.os.thread_to_ask_for().map_or((0, 0), |thread| (thread.number, thread.place));
        // Relaxed: at first the store of the thread slot publishes all; the child of a fork has one thread.
        heap.thread.store(number, Ordering::Relaxed);
        heap.place.store(place, Ordering::Relaxed);
        heap.process.store(self.os.process().unwrap_or(0), Ordering::Relaxed);
    }

    /// Whether the thread of an owned heap has surely ended. Not where its number is one of another process: in a child that
    /// was made without fork handlers.
    fn has_ended(&self, heap: &Heap) -> bool {
        // Relaxed: the load of the thread slot orders it, or the heap is parked.
        let (number, place) = (heap.thread.load(Ordering::Relaxed), heap.place.load(Ordering::Relaxed));
        // Whose number it is comes last: mostly the thread lives.
        number != 0
            && self.os.has_ended(Thread { number, place })
            && self.os.process() == Some(heap.process.load(Ordering::Relaxed))
    }

    /// Waits until the heap of `slot`, which was found parked, is back.
    ///
    /// # Safety
    /// `slot` must be the calling thread's, and not busy.
    pub unsafe fn wait_parked(&self, slot: *mut ThreadSlot) {
        // SAFETY: the thread slot is the caller's.
        let parked = || unsafe { (*slot).heap.load(Ordering::Acquire) } == PARKED.heap();
        while parked() {
            // SAFETY: as above.
            self.os.futex_wait(unsafe { &*futex(slot) }, PARKED.heap().addr() as u32);
        }
    }

    /// Swaps the heap in its thread's slot for `name`; false if it has no thread, one that is somewhere else, or one
    /// that has ended.
    ///
    /// The thread slot lies in thread storage, which ends with the thread. A thread that ends gives its heap up first, unless
    /// its first calls came when the C library was past the place where it would have (`crates/sys/src/thread.rs`). So
    /// the system is asked whether the thread still exists, before each use of the thread slot. What remains is a thread that did
    /// all of this: it made more calls after its last destructor than are called early there; none before; it exists when
    /// the system is asked; and its storage is unmapped before the next instructions of the visitor. A thread that is past
    /// its destructors does no work of the program's any more, so it does not stand still there either: the visits of heaps
    /// that were left alone do not find it, only visits on request (trims) could.
    pub(crate) fn park(&self, _: &Registry, heap: &Heap, name: *mut Heap) -> bool {
        // A thread slot lasts as long as the heap is owned, which the lock keeps so.
        heap.state.load(Ordering::Acquire) == OWNED
            && self.slot_of(heap).is_some_and(|slot| {
                // SeqCst pairs with the thread's store of `busy` and load of `heap`, through the barrier behind this.
                slot.heap.compare_exchange(heap.id(), name, Ordering::SeqCst, Ordering::Relaxed).is_ok()
            })
    }

    /// The thread slot of an owned heap, unless its thread has ended. The lock of the registry must be held, or the heap be parked.
    pub(crate) fn slot_of(&self, heap: &Heap) -> Option<&ThreadSlot> {
        // Acquire pairs with the Release of `set_slot_of`.
        let slot = heap.slot.load(Ordering::Acquire);
        // SAFETY: the thread slot is there as long as the heap is owned and its thread lives.
        (!slot.is_null() && !self.has_ended(heap)).then(|| unsafe { &*slot })
    }

    /// Whether the thread of a heap that has a thread slot, and that the caller parked, is in the middle of a call; after the barrier.
    pub(crate) fn is_busy(slot: &ThreadSlot) -> bool {
        // Acquire pairs with the Release when the thread leaves: what it did to the heap is seen.
        slot.busy.load(Ordering::Acquire) != ThreadSlot::IDLE
    }

    /// Gives a parked heap back to its thread, unless that has ended: then the heap has no thread slot from now on, see `park`.
    fn unpark(&self, heap: &Heap) {
        let Some(slot) = self.parked_slot(heap) else { return };
        let futex = futex(core::ptr::from_ref(slot).cast_mut());
        // Release pairs with the Acquire in `wait_parked` and with the load of the thread's next call. Behind it the thread slot may
        // not be there any more: the wake takes only its address.
        slot.heap.store(heap.id(), Ordering::Release);
        self.os.futex_wake(futex);
    }

    /// The thread slot of a parked heap, unless its thread has ended, so that the thread slot may not be there any more.
    fn parked_slot(&self, heap: &Heap) -> Option<&ThreadSlot> {
        let slot = self.slot_of(heap);
        if slot.is_none() {
            // Relaxed: the heap is parked, so it stays.
            heap.slot.store(core::ptr::null_mut(), Ordering::Relaxed);
        }
        slot
    }

    /// Runs `f` with each of `heaps` that can be visited now. The batch lock must be held. `mine` is the heap that a call of
    /// the calling thread uses, which needs no visit, or [`Heap::none`].
    #[cold]
    pub(crate) fn visit(&self, mine: *mut Heap, heaps: &mut [Option<&'static Heap>], mut f: impl FnMut(Mine<'static>)) {
        for heap in heaps.iter_mut() {
            if let Some(own) = heap.take_if(|heap| heap.id() == mine) {
                // SAFETY: the calling thread's own heap, in a call.
                f(unsafe { Mine::of_ref(own) });
            }
        }
        // Before a thread could wait for it.
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
                // SAFETY: parked, and its thread is in no call: it waits when it begins one.
                f(unsafe { Mine::of_ref(heap) });
            }
            self.unpark(heap);
        }
    }

    /// Gives the holes of the slabs in `work.batch` back to the system; returns the bytes, and adds those that held memory
    /// to `held`. `mine` as in [`Back::visit`].
    #[cold]
    pub(crate) fn punch(&self, mine: *mut Heap, work: &mut Work, held: Option<&mut usize>) -> usize {
        let Punch { holes, count, owners, .. } = &mut work.punch;
        *count = 0;
        // A bit for each slab that was looked at. A heap that is visited may be an orphan a moment later, and come once more.
        let mut done = 0u32;
        let due = &work.batch.slabs[..work.batch.slab_count];
        let mut take = |i: usize, c: Record, owner: Mine<'_>| {
            // If the slab still is its own, it is ours.
            if done >> i & 1 != 0 {
                return;
            }
            done |= 1 << i;
            let Some(slab) = owner.slab(c) else { return };
            slab_age(c).store(age::NONE, Ordering::Relaxed);
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
                // The memory of threads that a fork left behind stays as it is.
                LOST => slab_age(c).store(age::NONE, Ordering::Relaxed),
                _ => {}
            }
        }
        let slabs = || due.iter().enumerate().filter_map(|(i, due)| due.map(|(c, owner)| (i, c, owner)));
        self.visit(mine, owners, |heap| {
            slabs().filter(|(.., owner)| owner.id() == heap.id()).for_each(|(i, c, _)| take(i, c, heap));
        });
        self.registry.with(&self.os, |_| {
            // Where the process is stranded, another thread may have left orphans half changed.
            for (i, c, owner) in slabs().filter(|_| !self.is_stranded()) {
                if owner.state.load(Ordering::Acquire) == ORPHAN {
                    // SAFETY: the lock guards orphans.
                    take(i, c, unsafe { Mine::of_ref(owner) });
                }
            }
        });
        self.send_holes(work, held)
    }

    /// Gives the OS pages of holes back, and frees their blocks; returns the bytes. Not lazily, whatever the policy:
    /// nothing would tell the next look at the slab that the system knows of them.
    #[cold]
    fn send_holes(&self, work: &mut Work, held: Option<&mut usize>) -> usize {
        let Punch { holes, count, runs, ends, .. } = &mut work.punch;
        let holes = &holes[..*count];
        let mut count = 0;
        for (hole, end) in holes.iter().zip(&mut *ends) {
            count += hole.runs(self.page_size(), &mut runs[count..]);
            *end = count;
        }
        if let Some(held) = held {
            // SAFETY: as below.
            *held += runs[..count].iter().map(|&run| unsafe { self.held_by(run, &mut work.touched) }).sum::<usize>();
        }
        // SAFETY: all blocks on these OS pages are ours, so no thread uses them, and they pin their slabs until they are
        // given back below.
        let sent = unsafe { self.release_runs(&runs[..count], false) };
        if sent.is_in_vain() {
            self.purger.set_refused(true);
        }
        let mut first = 0;
        for (hole, &end) in holes.iter().zip(&*ends) {
            let mut own = core::mem::replace(&mut first, end)..end;
            let Some((c, class, blocks)) = hole.blocks() else { continue };
            if own.all(|i| sent.went(i)) {
                // Relaxed: the blocks come back behind it, which orders it.
                clean_pages(c).fetch_or(hole.pages, Ordering::Relaxed);
            }
            for (word, &mask) in blocks.iter().enumerate().filter(|(_, mask)| **mask != 0) {
                self.give_remote(c, class, slab::Batch { word, mask });
            }
        }
        sent.bytes
    }

    /// Empties the caches of heaps that were left alone, or of `all`, and takes in what others freed into them. Where all
    /// caches may hold much, empty ones become small again too: else what is freed there later would wait unseen. True if
    /// that may have to be done later. The batch lock must be held. `mine` is the calling thread's heap, which its call
    /// uses, or [`Heap::none`].
    #[cold]
    pub(crate) fn empty_caches(&self, all: bool, mine: *mut Heap) -> bool {
        let mut waits = false;
        let (_, much) = self.notes.came();
        for heap in self.all_heaps() {
            // What the thread changes meanwhile makes the look at its caches a guess.
            let (look, cached) = heap.look();
            let full = cached || !heap.pending.is_empty() || (much && heap.is_grown());
            heap.quiet.set(if look == heap.look.get() { heap.quiet.get().saturating_add(1) } else { 0 });
            heap.look.set(look);
            if full && (all || heap.quiet.get() >= QUIET_TICKS) {
                self.visit(mine, &mut [Some(heap)], |heap| self.empty_heap(heap));
                heap.look.set(heap.look().0);
            } else if heap.large.is_due(self.epoch(), DELAY_TICKS) {
                self.visit(mine, &mut [Some(heap)], |heap| self.clear_cached_large(heap, DELAY_TICKS));
            }
            waits |= full && heap.quiet.get() < TRIED_TICKS && !heap.slot.load(Ordering::Relaxed).is_null();
        }
        waits
    }
}
