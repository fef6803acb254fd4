//! Large blocks: ranges of chunks from an arena, in whole OS pages. The memory behind the last OS page in use is
//! address space only. Constant time apart from clearing; one lock.

use crate::blocks::Blocks;
use crate::blocks::apart::Renewed;
use crate::blocks::misuse::{self, Call};
use crate::pages::age;
use crate::pages::chunk::{Chunk, Kind, State};
use crate::pages::held::Use;
use crate::pages::layout;
use crate::pages::range::Taken;
use crate::{CHUNK, Os};

/// Most bytes of a large block; beyond, a huge block.
pub const MAX_LARGE: usize = layout::longest() * CHUNK;

/// Chunks that are purged at once when they are dropped: a megabyte, some 50 us.
const DROP_HERE: usize = if cfg!(neap_sim) { 1 } else { (1 << 20) / CHUNK };

impl<O: Os> Blocks<O> {
    /// A large block of at least `size` bytes, aligned to `align`, with address space for `room` bytes to grow into.
    /// Null if there is no memory.
    pub(crate) fn malloc_large(&self, size: usize, align: usize, room: usize, zero: bool) -> *mut u8 {
        // `MAX_LARGE` is whole OS pages, so what is not beyond it stays so when it is rounded up.
        if size > MAX_LARGE || room > MAX_LARGE {
            return core::ptr::null_mut();
        }
        let bytes = size.max(1).next_multiple_of(self.page_size());
        let guard = if self.policy.harden() { self.page_size() } else { 0 };
        let len = (bytes.max(room) + guard).div_ceil(CHUNK);
        let what = Use::Large { bytes, zero: zero && !self.policy.zero_always() };
        let Some(mut taken) = self.take_chunks(len, align, what) else {
            return core::ptr::null_mut();
        };
        // SAFETY: the block is new, and the caller's alone until it is handed out.
        unsafe {
            self.make_large(taken, len, bytes);
            if zero && !self.habits.clear_large(self, layout::chunk(taken.first), bytes, taken) {
                taken = self.drop_large(taken, len, align);
                self.make_large(taken, len, bytes);
            }
        }
        let p = layout::chunk(taken.first);
        if guard > 0 {
            // SAFETY: the block is ours, and has an OS page more than it needs.
            unsafe { (*taken.first).zeroed = self.guards.guard(self, p.add(bytes)) };
        }
        p
    }

    /// Makes the chunks a large block.
    unsafe fn make_large(&self, taken: Taken, len: usize, bytes: usize) {
        // SAFETY: the chunks are the caller's.
        unsafe {
            let (c, used) = (taken.first, bytes.div_ceil(CHUNK));
            (*c).state = if taken.dirty.1 > used { State::Dirty } else { State::Clean };
            // The class of an earlier slab: `misuse.rs` takes it for the size of what was here last.
            (*c).class = 0;
            Chunk::set_apart(c, false);
            (*c).listed = false;
            (*c).zeroed = false;
            (*c).len = len as u32;
            (*c).carved = used as u32;
            Chunk::set_bytes(c, bytes);
        }
    }

    /// Lets go of memory that is resident, zero and not needed: takes clean chunks instead, and leaves the others to the
    /// helper, as much memory takes long to purge. Else purges it here and now.
    unsafe fn drop_large(&self, taken: Taken, len: usize, align: usize) -> Taken {
        // SAFETY: the chunks are the caller's; `with` holds the lock.
        unsafe {
            let clean = (len > DROP_HERE && self.has_helper()).then(|| {
                self.ranges.with(&self.os, |r| {
                    if self.is_stranded() {
                        // As in `take_chunks`.
                        return None;
                    }
                    let clean = r.take_clean(self, len, (align / CHUNK).max(1))?;
                    (*clean.first).kind.set(Kind::LARGE);
                    r.drop_chunks(taken.first, len);
                    // The helper may have ended since it was looked for.
                    self.note_waiting(r.waiting());
                    Some(clean)
                })
            });
            if let Some(Some(clean)) = clean {
                // It shall not wait for the next tick.
                self.wake_helper();
                return clean;
            }
            self.purge_large(taken.first);
            Taken { first: taken.first, dirty: (0, 0) }
        }
    }

    /// Gives the memory of a large block back, at once; else clears it.
    ///
    /// # Safety
    /// The block must be the caller's, and hold nothing that is needed.
    pub(crate) unsafe fn purge_large(&self, c: *mut Chunk) {
        // SAFETY: as the caller promises.
        unsafe {
            let (p, len) = (layout::chunk(c), (*c).len as usize * CHUNK);
            self.release_or_clear(p, len);
            (*c).state = State::Clean;
        }
    }

    /// Frees the large block at `p`, or says what is wrong with it. `p` must lie in an arena.
    ///
    /// # Safety
    /// If `p` is a large block, it must be the caller's.
    pub(crate) unsafe fn free_large(&self, p: *mut u8) {
        // SAFETY: as the caller promises.
        unsafe { self.release_large(p, State::Dirty) }
    }

    /// [`Blocks::free_large`], where the OS pages that the block used are left in `state`.
    ///
    /// # Safety
    /// As that; `state` must be true of them.
    pub(crate) unsafe fn release_large(&self, p: *mut u8, mut state: State) {
        let c = self.large_record(Call::Free, p);
        // SAFETY: the block is the caller's.
        unsafe {
            if (*c).kind.get() == Kind::NESTED {
                return self.free_annexed(p);
            }
            if !self.soften_large(c) {
                let bytes = Chunk::bytes(c);
                if Chunk::is_apart(c) {
                    // Not `release`, which may write to memory: the program may have made it inaccessible.
                    let _ = self.os.renew(p, bytes);
                } else {
                    let _ = self.release(p, bytes);
                }
                return self.lose_large(c);
            }
            match self.renew_apart(c) {
                Renewed::Usable => {}
                Renewed::Clean => (state, (*c).state) = (State::Clean, State::Clean),
                Renewed::Lost => return self.lose_large(c),
            }
            if state == State::Dirty && self.policy.harden() {
                let used = (*c).carved as usize * CHUNK;
                if self.release(p, used) {
                    state = State::Clean;
                } else {
                    p.write_bytes(0, used);
                }
            }
        }
        // SAFETY: the record says that this is the start of a large block; it is looked at again under the lock, where
        // of two threads that free it one comes second.
        let ours = unsafe {
            let used = (*c).carved as usize;
            let since = if state == State::Clean { age::NONE } else { self.age_of_freed(p, used * CHUNK) };
            let what = Use::Large { bytes: Chunk::bytes(c), zero: false };
            self.give_chunks(what, || {
                if (*c).kind.get() != Kind::LARGE {
                    return None;
                }
                (*c).kind.set(Kind::NONE);
                let behind = if (*c).state == State::Clean { age::NONE } else { self.epoch() };
                Some([(c.add(used), (*c).len as usize - used, behind), (c, used, since)])
            })
        };
        if !ours {
            misuse::not_a_block(self, Call::Free, p);
        }
    }

    /// The chunks of a large block are never handed out again.
    ///
    /// # Safety
    /// The block must be the caller's.
    pub(crate) unsafe fn lose_large(&self, c: *mut Chunk) {
        // SAFETY: as the caller promises.
        unsafe {
            self.unset_apart(c);
            self.lose_chunks(c, (*c).len as usize, Use::Large { bytes: Chunk::bytes(c), zero: false });
        }
    }

    /// Makes the guard behind a large block accessible again. False if the system refuses: then the block is lost.
    unsafe fn soften_large(&self, c: *mut Chunk) -> bool {
        // SAFETY: the block is the caller's, and its guard lies in its chunks.
        unsafe {
            let lost = (*c).zeroed && !self.guards.unguard(self, layout::chunk(c).add(Chunk::bytes(c)));
            (*c).zeroed = false;
            !lost
        }
    }

    /// The record of the large block at `p`, which lies in an arena; does not return if there is none.
    pub(crate) fn large_record(&self, call: Call, p: *mut u8) -> *mut Chunk {
        let c = layout::record(p);
        // SAFETY: records of committed chunks are readable. A block that is the caller's keeps its kind.
        let kind = unsafe { (*c).kind.get() };
        if p.addr() & (CHUNK - 1) != 0 || (kind != Kind::LARGE && kind != Kind::NESTED) {
            misuse::not_a_block(self, call, p);
        }
        c
    }

    /// Resizes the large block at `p` where it is; false if that cannot be done.
    ///
    /// # Safety
    /// `p` must be a large block of the caller's.
    pub(crate) unsafe fn resize_large(&self, p: *mut u8, size: usize) -> bool {
        let c = self.large_record(Call::Realloc, p);
        // What lies behind a block of the annex is not the ranges'.
        // SAFETY: the block is the caller's, so its record stays as it is.
        if size > MAX_LARGE || unsafe { (*c).kind.get() } == Kind::NESTED {
            return false;
        }
        let bytes = size.next_multiple_of(self.page_size());
        let need = bytes.div_ceil(CHUNK);
        // SAFETY: the block is the caller's. Its guard stays where it is.
        if unsafe { (*c).zeroed && bytes != Chunk::bytes(c) } {
            return false;
        }
        // SAFETY: the block is the caller's, and behind its new end it holds nothing that is needed.
        let since = unsafe {
            if bytes < Chunk::bytes(c) && !self.open_end(c, bytes) {
                return false;
            }
            self.cut_large(c, need)
        };
        // SAFETY: `with` holds the lock of the ranges; the block is the caller's.
        self.ranges.with(&self.os, |r| unsafe {
            let len = (*c).len as usize;
            if self.is_stranded() {
                // As in `take_chunks`.
                return false;
            }
            if need > len {
                if !self.is_allowed(r, need - len, false) {
                    return false;
                }
                // Whether they hold anything does not matter: all chunks of the block count as used from now on.
                if r.extend(self, c.add(len), need - len).is_none() {
                    return false;
                }
                (*c).len = need as u32;
            } else if need < len {
                // Give back what is behind.
                let used = ((*c).carved as usize).max(need);
                let behind = if (*c).state == State::Clean { age::NONE } else { self.epoch() };
                if len > used {
                    r.give(&self.arenas, c.add(used), len - used, behind);
                }
                if used > need {
                    match since {
                        Some(since) => r.give(&self.arenas, c.add(need), used - need, since),
                        None => self.mark_lost(c.add(need), used - need),
                    }
                }
                (*c).len = need as u32;
                (*c).carved = need as u32;
                self.note_waiting(r.waiting());
            }
            (*c).carved = (*c).carved.max(need as u32);
            r.held.resize(Chunk::bytes(c), bytes);
            Chunk::set_bytes(c, bytes);
            self.note_news(r);
            true
        })
    }

    /// Prepares the chunks that the large block of `c` used behind the first `need` for others, before they can have them;
    /// returns the age of these chunks, or `None` if they are lost. They go back at once where the policy says so.
    ///
    /// # Safety
    /// The block must be the caller's, and hold nothing behind `need` chunks that is needed.
    unsafe fn cut_large(&self, c: *mut Chunk, need: usize) -> Option<u8> {
        // SAFETY: as the caller promises.
        unsafe {
            let used = (*c).carved as usize;
            if used <= need || self.is_stranded() {
                return Some(age::NONE);
            }
            match self.renew_end(c, need, used) {
                Renewed::Clean => Some(age::NONE),
                Renewed::Usable => Some(self.age_of_freed(layout::chunk(c.add(need)), (used - need) * CHUNK)),
                Renewed::Lost => None,
            }
        }
    }
}
