//! Takes chunks, after the steps of growth that are due (`huge_area.rs`), which are made outside of the lock.

use crate::pages::Pages;
use crate::pages::commit;
use crate::pages::held::Use;
use crate::pages::huge_area::Step;
use crate::pages::owned::Owned;
use crate::pages::range::{Ranges, Taken};
use crate::system::sync::Ordering;
use crate::{CHUNK, Os};

impl Taken {
    /// The memory of its first `len` chunks, before any of it is in use.
    pub(crate) fn memory(&self, len: usize) -> Owned {
        // SAFETY: chunks that were taken are committed, and the caller's.
        unsafe { Owned::of(self.first.start(), len * CHUNK) }
    }
}

impl<O: Os> Pages<O> {
    /// Whether little is left below the memory limit: then no OS page that holds memory goes with a block that does not
    /// need it. A hint.
    #[inline]
    pub(crate) fn is_tight(&self) -> bool {
        // Relaxed: a hint.
        self.notes.tight.load(Ordering::Relaxed)
    }

    /// Takes back what is committed at the end of arenas and not used, where the system limits how much may be. The
    /// caller holds the batch lock.
    pub(crate) fn retract(&self) {
        if self.arenas.is_scarce() {
            self.ranges.with(&self.os, |r| (0..self.arenas.count()).for_each(|i| self.retract_arena(r, i)));
        }
    }

    /// Takes back what is committed and was never used, as writable memory is limited. But if more than the limit is
    /// committed, that is all that later blocks could get. The batch lock must be held.
    pub(crate) fn follow_data_limit(&self) {
        let committed = self.arenas.usable_bytes();
        let Some(limit) = commit::data_limit(&self.os).filter(|&limit| limit >= committed) else { return };
        self.ranges.with(&self.os, |r| {
            self.arenas.note_data_limit(&self.os, r.lock(), limit);
            (0..self.arenas.count()).for_each(|i| self.retract_arena(r, i));
        });
    }

    /// [`Pages::retract`] of arena `i`: the clean range at its frontier, and what is committed behind.
    fn retract_arena(&self, r: &mut Ranges, i: usize) {
        let Some(last) = self.arenas.last_used(r.lock(), i) else { return };
        let (c, len) = r.take_clean_before(&self.arenas, last).unwrap_or((last.after(1), 0));
        // SAFETY: the range is clean, and was just taken out of its list. What is behind was never used.
        if !unsafe { self.arenas.retract(&self.os, r.lock(), i, c) } {
            if len > 0 {
                r.put_back_clean(&self.arenas, c, len);
            }
            return;
        }
        // It may lie there.
        r.growth.last = None;
    }

    /// Takes `len` chunks, aligned to `align` bytes, for the use `what`, and sets the kind of the first.
    pub(crate) fn take_chunks(&self, len: usize, align: usize, what: Use) -> Option<Taken> {
        // At most two steps: a question, then an area.
        for _ in 0..2 {
            match self.ranges.with(&self.os, |r| self.take_or_step(r, len, align, what)) {
                Ok(taken) => return taken,
                Err(step) => self.make(step),
            }
        }
        self.ranges.with(&self.os, |r| self.take_allowed(r, len, align, what))
    }

    /// [`Pages::take_chunks`] under the lock, or what has to be done before, without the lock.
    #[inline]
    fn take_or_step(&self, r: &mut Ranges, len: usize, align: usize, what: Use) -> Result<Option<Taken>, Step> {
        // In a stranded process the ranges may be half changed. This is the call that a handler interrupted with its
        // fork: it gets a block of the reentrant reserve instead (`malloc_stranded`).
        if self.is_stranded() {
            return Ok(None);
        }
        match self.next_step(r, len, align, what) {
            Some(step) => Err(step),
            None => Ok(self.take_allowed(r, len, align, what)),
        }
    }

    /// Takes chunks as far as the limit for this process allows.
    #[inline]
    fn take_allowed(&self, r: &mut Ranges, len: usize, align: usize, what: Use) -> Option<Taken> {
        // Stranded: see `take_or_step`.
        if self.is_stranded() || !self.is_allowed(r, len, false) {
            return None;
        }
        let taken = r.take(&self.space, len, align)?;
        taken.first.set_kind(what.kind());
        r.held.take(what, (taken.dirty.1 - taken.dirty.0) * CHUNK);
        self.note_news(r);
        if self.notes.note_fresh(r.fresh_chunks, r.waiting()) {
            r.fresh_chunks = 0;
            self.note_growth();
        }
        Some(taken)
    }
}
