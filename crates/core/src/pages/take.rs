//! Takes chunks, after the steps of growth that are due (`huge_area.rs`), which are made outside of the lock.

use crate::pages::Pages;
use crate::pages::held::Use;
use crate::pages::huge_area::Step;
use crate::pages::range::{Ranges, Taken};
use crate::{CHUNK, Os};

impl<O: Os> Pages<O> {
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
