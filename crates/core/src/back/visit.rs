//! Visits: how the purger uses another thread's heap while that thread does something else.
//!
//! No lock guards a heap; its thread would pay for it at each call. Instead the visitor pays: it swaps the heap in the
//! thread's seat for [`PARKED`], waits until every thread has seen that ([`Os::barrier`]), and looks whether the
//! thread is in the middle of a call. If it is, the visitor leaves. If it is not, its next call finds [`PARKED`] and
//! waits in [`Back::wait_parked`]. A visit lasts microseconds: nothing in it is a system call but locks.
//!
//! One thread at a time visits: it holds the purger's batch lock. A heap is parked under the lock of the registry,
//! where it is still somebody's; its thread cannot give it up before the visit ends.

use crate::back::Back;
use crate::back::batch::{Punch, Work};
use crate::blocks::class::CLASSES;
use crate::blocks::heap::{PARKED, Seat};
use crate::blocks::large_cache::Shelf;
use crate::blocks::registry::{LOST, ORPHAN, OWNED};
use crate::blocks::{holes, record, slab};
use crate::pages::age::{self, DELAY_TICKS};
use crate::pages::chunk::Kind;
use crate::system::os::Thread;
use crate::system::sync::{AtomicU32, Ordering};
use crate::{Heap, Os};

/// Ticks that a heap's caches must have been left alone before they are emptied.
const QUIET_TICKS: u8 = 2;
/// Ticks after which nobody waits any more for a heap that is quiet and still cannot be visited: the system has no
/// barrier, or the thread stands still in the middle of a call.
const TRIED_TICKS: u8 = 20;

/// The word of a seat that a futex can wait on.
fn futex(seat: *mut Seat) -> *const AtomicU32 {
    // The lower half comes first on the processors that neap knows, all little-endian. No heap has the same lower half as
    // PARKED (`Back::new_heap`), nor has another name, which lies in the same library: so a waiter never takes what a
    // visitor put back for PARKED.
    seat.cast::<AtomicU32>().cast_const()
}

impl<O: Os> Back<O> {
    /// Tells visitors where the thread of `heap` keeps it. The seat must last until `Allocator::abandon`.
    ///
    /// # Safety
    /// `heap` must be the caller's, and `seat` the place that all its calls load it from.
    pub unsafe fn set_seat(&self, heap: *mut Heap, seat: *mut Seat) {
        // SAFETY: heaps are never unmapped; as the caller promises.
        unsafe {
            self.set_thread(heap);
            // Release pairs with the Acquire of `park`.
            (*heap).seat.store(seat, Ordering::Release);
        }
    }

    /// Notes which thread has `heap`: at first, and in the child of a fork, where the number is another.
    ///
    /// # Safety
    /// `heap` must be the caller's.
    pub(crate) unsafe fn set_thread(&self, heap: *mut Heap) {
        let (number, place) = self.os.thread_to_ask_for().map_or((0, 0), |thread| (thread.number, thread.place));
        // Relaxed: at first the store of the seat publishes all; the child of a fork has one thread.
        // SAFETY: heaps are never unmapped.
        unsafe {
            (*heap).thread.store(number, Ordering::Relaxed);
            (*heap).place.store(place, Ordering::Relaxed);
            (*heap).process.store(self.os.process().unwrap_or(0), Ordering::Relaxed);
        }
    }

    /// Whether the thread of an owned heap has surely ended. Not where its number is one of another process: in a child that
    /// was made without fork handlers.
    unsafe fn has_ended(&self, heap: *mut Heap) -> bool {
        // SAFETY: heaps are never unmapped. Relaxed: the load of the seat orders it, or the heap is parked.
        let (number, place, process) = unsafe {
            let number = (*heap).thread.load(Ordering::Relaxed);
            (number, (*heap).place.load(Ordering::Relaxed), (*heap).process.load(Ordering::Relaxed))
        };
        // Whose number it is comes last: mostly the thread lives.
        number != 0 && self.os.has_ended(Thread { number, place }) && self.os.process() == Some(process)
    }

    /// Waits until the heap of `seat`, which was found parked, is back.
    ///
    /// # Safety
    /// `seat` must be the calling thread's, and not busy.
    pub unsafe fn wait_parked(&self, seat: *mut Seat) {
        // SAFETY: the seat is the caller's.
        unsafe {
            while (*seat).heap.load(Ordering::Acquire) == PARKED.heap() {
                self.os.futex_wait(&*futex(seat), PARKED.heap().addr() as u32);
            }
        }
    }

    /// Swaps the heap in its thread's seat for `name`; false if it has no thread, one that is somewhere else, or one
    /// that has ended. The lock of the registry must be held.
    ///
    /// The seat lies in thread storage, which ends with the thread. A thread that ends gives its heap up first, unless
    /// its first calls came when the C library was past the place where it would have (`crates/sys/src/thread.rs`). So
    /// the system is asked whether the thread still exists, before each use of the seat. What remains is a thread that did
    /// all of this: it made more calls after its last destructor than are called early there; none before; it exists when
    /// the system is asked; and its storage is unmapped before the next instructions of the visitor. A thread that is past
    /// its destructors does no work of the program's any more, so it does not stand still there either: the visits of heaps
    /// that were left alone do not find it, only visits on request (trims) could.
    pub(crate) unsafe fn park(&self, heap: *mut Heap, name: *mut Heap) -> bool {
        // SAFETY: heaps are never unmapped; a seat lasts as long as the heap is owned, which the lock keeps so.
        unsafe {
            if (*heap).state.load(Ordering::Acquire) != OWNED {
                return false;
            }
            let Some(seat) = self.seat_of(heap) else { return false };
            // SeqCst pairs with the thread's store of `busy` and load of `heap`, through the barrier behind this.
            (*seat).heap.compare_exchange(heap, name, Ordering::SeqCst, Ordering::Relaxed).is_ok()
        }
    }

    /// The seat of an owned heap, unless its thread has ended. The lock of the registry must be held.
    pub(crate) unsafe fn seat_of(&self, heap: *mut Heap) -> Option<*mut Seat> {
        // SAFETY: heaps are never unmapped.
        unsafe {
            // Acquire pairs with the Release of `set_seat`.
            let seat = (*heap).seat.load(Ordering::Acquire);
            (!seat.is_null() && !self.has_ended(heap)).then_some(seat)
        }
    }

    /// Whether the thread of a parked heap is in the middle of a call; after the barrier.
    pub(crate) unsafe fn is_busy(heap: *mut Heap) -> bool {
        // SAFETY: the heap is parked, so its seat is there.
        // Acquire pairs with the Release when the thread leaves: what it did to the heap is seen.
        unsafe { (*(*heap).seat.load(Ordering::Relaxed)).busy.load(Ordering::Acquire) != Seat::IDLE }
    }

    /// Gives a parked heap back to its thread.
    unsafe fn unpark(&self, heap: *mut Heap) {
        // SAFETY: the heap is parked, so its seat is there until the store; the wake takes only its address.
        unsafe {
            let seat = (*heap).seat.load(Ordering::Relaxed);
            // Release pairs with the Acquire in `wait_parked` and with the load of the thread's next call.
            (*seat).heap.store(heap, Ordering::Release);
            self.os.futex_wake(futex(seat));
        }
    }

    /// Whether the thread of a parked heap has ended, so that its seat may not be there any more; then the heap has none
    /// from now on. See [`Back::park`].
    unsafe fn forget_ended(&self, heap: *mut Heap) -> bool {
        // SAFETY: heaps are never unmapped.
        unsafe {
            // Relaxed, here and below: the heap is parked, so it stays.
            let ended = (*heap).seat.load(Ordering::Relaxed).is_null() || self.has_ended(heap);
            if ended {
                (*heap).seat.store(core::ptr::null_mut(), Ordering::Relaxed);
            }
            ended
        }
    }

    /// Runs `f` with each of `heaps` that can be visited now. Null entries are left out. The batch lock must be held. `mine`
    /// is the heap that a call of the calling thread uses, which needs no visit, or [`Heap::none`].
    #[cold]
    pub(crate) fn visit(&self, mine: *mut Heap, heaps: &mut [*mut Heap], mut f: impl FnMut(*mut Heap)) {
        for heap in heaps.iter_mut().filter(|heap| **heap == mine) {
            f(mine);
            *heap = core::ptr::null_mut();
        }
        if heaps.iter().all(|heap| heap.is_null()) {
            return;
        }
        // Before a thread could wait for it.
        if !self.os.prepare_barrier() {
            return;
        }
        // SAFETY: the lock is held while heaps are parked; a parked heap stays its thread's.
        unsafe {
            self.registry.with(&self.os, |_| {
                for heap in heaps.iter_mut() {
                    if !heap.is_null() && !self.park(*heap, PARKED.heap()) {
                        *heap = core::ptr::null_mut();
                    }
                }
            });
            let parked = || heaps.iter().filter(|h| !h.is_null());
            if parked().next().is_none() {
                return;
            }
            let seen = self.os.barrier();
            for &heap in parked() {
                if !self.forget_ended(heap) && seen && !Self::is_busy(heap) {
                    f(heap);
                }
                if !self.forget_ended(heap) {
                    self.unpark(heap);
                }
            }
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
        let mut take = |i: usize| {
            let (c, owner) = due[i];
            if done >> i & 1 != 0 {
                return;
            }
            done |= 1 << i;
            // SAFETY: the owner's heap is visited, or its orphan guarded; if the slab still is its own, it is ours.
            unsafe {
                if (*c).kind.get() != Kind::SLAB || record::owner(c) != owner {
                    return;
                }
                record::slab_age(c).store(age::NONE, Ordering::Relaxed);
                if holes::take(c, self.page_size(), &mut holes[*count]) {
                    debug_assert!(slab::is_valid(c));
                    Heap::unlist_if_full(owner, c);
                    *count += 1;
                }
            }
        };
        owners.fill(core::ptr::null_mut());
        for (i, &(c, owner)) in due.iter().enumerate() {
            // SAFETY: heaps are never unmapped.
            match unsafe { (*owner).state.load(Ordering::Acquire) } {
                OWNED if !owners.contains(&owner) => owners[i] = owner,
                // The memory of threads that a fork left behind stays as it is.
                // SAFETY: the record is a slab's for ever.
                LOST => unsafe { record::slab_age(c).store(age::NONE, Ordering::Relaxed) },
                _ => {}
            }
        }
        let of = |heap| (0..due.len()).filter(move |&i| due[i].1 == heap);
        self.visit(mine, owners, |heap| of(heap).for_each(&mut take));
        self.registry.with(&self.os, |_| {
            // SAFETY: as above; the lock guards orphans.
            let is_orphan = |i: usize| unsafe { (*due[i].1).state.load(Ordering::Acquire) == ORPHAN };
            // Where the process is stranded, another thread may have left orphans half changed.
            (0..due.len()).filter(|&i| !self.is_stranded() && is_orphan(i)).for_each(&mut take);
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
            // SAFETY: the slab has used blocks, ours, so it stays one until the last of them is given back.
            let blocks = unsafe {
                if own.all(|i| sent.went(i)) {
                    // Relaxed: the blocks come back behind it, which orders it.
                    (*hole.slab).clean.fetch_or(hole.pages, Ordering::Relaxed);
                }
                hole.blocks()
            };
            for (word, &mask) in blocks.iter().enumerate().filter(|(_, mask)| **mask != 0) {
                // SAFETY: the blocks are ours.
                unsafe { Heap::give_remote(self, hole.slab, slab::Batch { word, mask }) };
            }
        }
        sent.bytes
    }

    /// Empties the caches of a heap, and takes in what others freed into it.
    ///
    /// # Safety
    /// `heap` must be the caller's.
    #[cold]
    pub(crate) unsafe fn empty_heap(&self, heap: *mut Heap) {
        // SAFETY: the heap is the caller's.
        unsafe {
            if Heap::is_cached(heap) {
                (1..CLASSES).for_each(|class| Heap::flush(heap, self, class, 0));
                self.clear_shelf(heap, 0);
                Heap::shrink_caps(heap, self);
            }
            Heap::collect(heap, self);
        }
    }

    /// Empties the caches of heaps that were left alone, or of `all`, and takes in what others freed into them. Where all
    /// caches may hold much, empty ones become small again too: else what is freed there later would wait unseen. True if
    /// that may have to be done later. The batch lock must be held. `mine` is the calling thread's heap, which its call
    /// uses, or [`Heap::none`].
    #[cold]
    pub(crate) fn empty_caches(&self, all: bool, mine: *mut Heap) -> bool {
        let mut waits = false;
        let (_, much) = self.notes.came();
        let mut heap = self.registry.with(&self.os, |r| r.all);
        while !heap.is_null() {
            // SAFETY: heaps are never unmapped, and `next` never changes. What the thread changes meanwhile makes the
            // look at its caches a guess; `look` and `quiet` are the visitor's.
            unsafe {
                let (look, cached) = Heap::look(heap);
                let full = cached || !(*heap).pending.is_empty() || (much && Heap::is_grown(heap));
                let quiet = look == (*heap).look;
                (*heap).quiet = if quiet { (*heap).quiet.saturating_add(1) } else { 0 };
                (*heap).look = look;
                if full && (all || (*heap).quiet >= QUIET_TICKS) {
                    self.visit(mine, &mut [heap], |heap| self.empty_heap(heap));
                    (*heap).look = Heap::look(heap).0;
                } else if Shelf::is_due(&raw const (*heap).shelf, self.epoch(), DELAY_TICKS) {
                    self.visit(mine, &mut [heap], |heap| self.clear_shelf(heap, DELAY_TICKS));
                }
                waits |= full && (*heap).quiet < TRIED_TICKS && !(*heap).seat.load(Ordering::Relaxed).is_null();
                heap = (*heap).next;
            }
        }
        waits
    }
}
