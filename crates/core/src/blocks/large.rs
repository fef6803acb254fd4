//! Large blocks: ranges of chunks from an arena, in whole OS pages. Between a block's last OS page and the end of its
//! chunks there is only address space. malloc and free take constant time apart from clearing, and one lock.

use crate::blocks::Blocks;
use crate::blocks::apart::Renewed;
use crate::blocks::large_record::Large;
use crate::blocks::misuse::{self, Call};
use crate::pages::chunk::{Kind, State};
use crate::pages::held::Use;
use crate::pages::layout::HUGE_PAGE;
use crate::pages::range::Taken;
use crate::pages::{Part, age, layout};
use crate::{CHUNK, Os};

/// Maximum size of a large block in bytes; a longer block is a huge one.
pub const MAX_LARGE: usize = layout::longest() * CHUNK;

/// Maximum number of chunks that a thread that drops them always purges itself: a megabyte, which takes some 50 us.
const DROP_HERE: usize = if cfg!(neap_sim) { 1 } else { (1 << 20) / CHUNK };

/// Returns the two parts of a large block that is freed: the chunks behind those that it ever used, with the age
/// `behind` unless they are clean, and those that it used, with the age `since`.
pub(crate) fn parts(block: Large, behind: u8, since: u8) -> [Part; 2] {
    let (c, used) = (block.chunk(), block.carved());
    let behind = if block.behind() == State::Clean { age::NONE } else { behind };
    [(c.after(used), block.len() - used, behind), (c, used, since)]
}

impl<O: Os> Blocks<O> {
    /// Returns a large block of at least `size` bytes, aligned to `align`, with address space for at least `room` bytes
    /// so that it can grow. `None` if there is no memory, or if it would be too long.
    pub(crate) fn malloc_large(&self, size: usize, align: usize, room: usize, zero: bool) -> Option<Large> {
        // `MAX_LARGE` is whole OS pages, so a size up to it does not exceed it when it is rounded up.
        if size > MAX_LARGE || room > MAX_LARGE {
            return None;
        }
        let bytes = size.max(1).next_multiple_of(self.page_size());
        let guard = if self.policy.harden() { self.page_size() } else { 0 };
        let len = (bytes.max(room) + guard).div_ceil(CHUNK);
        let what = Use::Large { bytes, zero: zero && !self.policy.zero_always() };
        let taken = self.take_chunks(len, align, what)?;
        let mut block = Self::make_large(taken, len, bytes);
        if self.is_tight() {
            // What an earlier, longer block has left behind this one.
            let rest = block.memory(len * CHUNK).part(bytes.max(taken.dirty.0 * CHUNK), taken.dirty.1 * CHUNK);
            if rest.len() > 0 {
                self.release(rest);
            }
        }
        self.mark_large(block.memory(bytes));
        if zero && !self.habits.clear_large(self, block.memory(bytes), taken) {
            block = Self::make_large(self.drop_large(block, align), len, bytes);
        }
        if guard > 0 {
            // The chunks have room for one more OS page: the guard.
            block.set_guarded(self.guards.guard(self, block.memory(bytes + guard).part(bytes, bytes + guard)));
        }
        Some(block)
    }

    /// [`Blocks::malloc_large`] of a block that starts at the same place within a huge page as `other`, so that the
    /// system can move huge pages, and tables of pages, as a whole from there. `None` also where address space is
    /// short.
    pub(crate) fn malloc_large_like(&self, other: Large, size: usize, room: usize) -> Option<Large> {
        let front = (other.start().addr() & (HUGE_PAGE - 1)) / CHUNK;
        if size.max(room) > MAX_LARGE || self.policy.harden() {
            return None;
        }
        let bytes = size.next_multiple_of(self.page_size());
        let len = bytes.max(room).div_ceil(CHUNK);
        if self.ranges.with(&self.os, |r| self.arenas.is_limited(r.lock())) {
            return None;
        }
        let taken = self.take_chunks(front + len, HUGE_PAGE, Use::Large { bytes, zero: false })?;
        let (first, [from, to]) = (taken.first.after(front), taken.dirty.into());
        if front > 0 {
            // What lies before it goes back.
            let since = if from < front.min(to) { self.epoch() } else { age::NONE };
            self.ranges.with(&self.os, |r| {
                taken.first.set_kind(Kind::NONE);
                first.set_kind(Kind::LARGE);
                // Stranded: as in `take_or_step`. The chunks are lost then.
                if !self.is_stranded() {
                    r.give(&self.arenas, taken.first, front, since);
                }
            });
        }
        let dirty = (from.saturating_sub(front), to.saturating_sub(front));
        let block = Self::make_large(Taken { first, dirty }, len, bytes);
        self.mark_large(block.memory(bytes));
        Some(block)
    }

    /// Makes the caller's chunks a large block.
    fn make_large(taken: Taken, len: usize, bytes: usize) -> Large {
        let used = bytes.div_ceil(CHUNK);
        let behind = if taken.dirty.1 > used { State::Dirty } else { State::Clean };
        Large::set_up(taken.first, len, used, bytes, behind)
    }

    /// Drops the memory of a new block, which is resident, zero and not needed. If it is long, takes clean chunks
    /// instead and leaves the others to the helper, as purging them takes long. Otherwise purges it at once.
    fn drop_large(&self, block: Large, align: usize) -> Taken {
        let len = block.len();
        let clean = (len > DROP_HERE && self.has_helper()).then(|| {
            self.ranges.with(&self.os, |r| {
                if self.is_stranded() {
                    // As in `take_or_step`.
                    return None;
                }
                let clean = r.take_clean(self, len, (align / CHUNK).max(1))?;
                clean.first.set_kind(Kind::LARGE);
                r.drop_chunks(block.chunk(), len);
                // The helper may have ended since `has_helper`.
                self.note_waiting(r.waiting());
                Some(clean)
            })
        });
        if let Some(Some(clean)) = clean {
            // Otherwise the memory would wait for the next tick.
            self.wake_helper();
            return clean;
        }
        self.purge_large(block);
        Taken { first: block.chunk(), dirty: (0, 0) }
    }

    /// Purges the memory of a large block, which holds nothing that is needed; clears it where the system refuses.
    pub(crate) fn purge_large(&self, block: Large) {
        self.release_or_clear(block.memory(block.len() * CHUNK));
        block.set_behind(State::Clean);
    }

    /// Frees a large block.
    pub(crate) fn free_large(&self, block: Large) {
        if block.chunk().kind() == Kind::REENTRANT {
            return self.free_large_reentrant(block);
        }
        self.release_large(block, State::Dirty);
    }

    /// Frees a large block; the OS pages that it used are in `state`.
    pub(crate) fn release_large(&self, block: Large, mut state: State) {
        let used = block.memory(block.carved() * CHUNK);
        if !self.soften_large(block) {
            self.discard(block);
            return self.lose_large(block);
        }
        match self.renew_apart(block) {
            Renewed::Usable => {}
            Renewed::Clean => {
                if self.waits(block.bytes()) {
                    self.returned.add(block.carved(), self.epoch());
                }
                state = State::Clean;
                block.set_behind(state);
            }
            Renewed::Lost => return self.lose_large(block),
        }
        if state == State::Dirty && self.policy.harden() {
            if self.release(used) {
                state = State::Clean;
            } else {
                used.clear();
            }
        }
        if state == State::Dirty && self.release_sparse(used) {
            state = State::Clean;
        }
        let since = if state == State::Clean { age::NONE } else { self.age_of_freed(used) };
        let what = Use::Large { bytes: block.bytes(), zero: false };
        // The kind is read again under the lock (invariant 22): of two threads that free the block, the second finds it
        // free.
        let ours = self.give_chunks(what, |_| {
            if block.chunk().kind() != Kind::LARGE {
                return None;
            }
            block.set_kind(Kind::NONE);
            Some(parts(block, self.epoch(), since))
        });
        if !ours {
            misuse::not_a_block(self, Call::Free, block.start());
        }
    }

    /// Gives up the chunks of a large block: they are never handed out again.
    pub(crate) fn lose_large(&self, block: Large) {
        self.unset_apart(block);
        self.lose_chunks(block.chunk(), block.len(), Use::Large { bytes: block.bytes(), zero: false });
    }

    /// Makes the guard behind a large block accessible again. False if the system refuses: then the caller must give up
    /// the block.
    fn soften_large(&self, block: Large) -> bool {
        let guard = block.memory(block.len() * CHUNK).part(block.bytes(), block.bytes() + self.page_size());
        let lost = block.is_guarded() && !self.guards.unguard(self, guard);
        block.set_guarded(false);
        !lost
    }

    /// Resizes a large block in place; false if that is not possible.
    pub(crate) fn resize_large(&self, block: Large, size: usize) -> bool {
        // The chunks behind a block of the reentrant reserve do not belong to the free ranges.
        if size > MAX_LARGE || block.chunk().kind() == Kind::REENTRANT {
            return false;
        }
        let bytes = size.next_multiple_of(self.page_size());
        // A guard stays where it is.
        if block.is_guarded() && bytes != block.bytes() {
            return false;
        }
        if bytes < block.bytes() && !self.open_end(block, bytes) {
            return false;
        }
        let need = bytes.div_ceil(CHUNK);
        let since = self.cut_large(block, need);
        let done = self.ranges.with(&self.os, |r| {
            if self.is_stranded() {
                // As in `take_or_step`.
                return false;
            }
            let (c, len) = (block.chunk(), block.len());
            if need > len {
                // The program may have made its OS pages unreadable (`apart.rs`), so it cannot be copied.
                let copied = if block.is_apart() { usize::MAX } else { len };
                // Clean or dirty does not matter: all chunks of the block count as used from now on.
                if !self.is_allowed(r, need - len, false) || !r.extend(self, c.after(len), need - len, copied) {
                    return false;
                }
                block.set_len(need);
            } else if need < len {
                // Give the chunks behind it back.
                let used = block.carved().max(need);
                let behind = if block.behind() == State::Clean { age::NONE } else { self.epoch() };
                self.give_parts(r, [(c.after(used), len - used, behind)]);
                if used > need {
                    match since {
                        Some(since) => r.give(&self.arenas, c.after(need), used - need, since),
                        None => self.mark_lost(r.lock(), c.after(need), used - need),
                    }
                }
                block.set_len(need);
                block.set_carved(need);
                self.note_waiting(r.waiting());
            }
            block.set_carved(block.carved().max(need));
            r.held.resize(block.bytes(), bytes);
            block.set_bytes(bytes);
            self.note_news(r);
            true
        });
        if done {
            self.mark_large(block.memory(bytes));
        }
        done
    }

    /// Prepares the chunks that a large block used behind the first `need`, and that hold nothing that is needed,
    /// before they become a free range. Returns their age, or `None` if they are lost. Purges them at once where the
    /// policy says so.
    fn cut_large(&self, block: Large, need: usize) -> Option<u8> {
        let used = block.carved();
        if used <= need || self.is_stranded() {
            return Some(age::NONE);
        }
        match self.renew_end(block, need, used) {
            Renewed::Clean => Some(age::NONE),
            Renewed::Usable => Some(self.age_of_freed(block.memory(used * CHUNK).part(need * CHUNK, used * CHUNK))),
            Renewed::Lost => None,
        }
    }
}
