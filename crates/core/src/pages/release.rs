//! Gives memory back to the system: the only file that makes the system's purge calls. Callers decide when; this file
//! counts the bytes.

use crate::pages::owned::Owned;
use crate::pages::{Pages, age};
use crate::system::os::Run;
use crate::system::policy::Purge;
use crate::{CHUNK, Os};

/// Limit on the runs of a call of [`Pages::release_runs`].
pub(crate) const MOST_RUNS: usize = 128;
/// Number of refused runs after which a purge ends, if no run went: the system cannot purge, or the program locked all
/// its memory.
const REFUSALS: u32 = if cfg!(neap_sim) { 2 } else { 8 };

/// Length in bytes from which a range goes back at once if it is sparse: at most one part in `SPARSE` of it holds
/// memory, in at most `SPARSE_RUNS` runs. The simulation has little memory.
const LONG: usize = if cfg!(neap_sim) { 4 * CHUNK } else { 64 << 20 };
const SPARSE: usize = 16;
const SPARSE_RUNS: usize = 16;
/// Number of OS pages that are looked at first.
const SAMPLES: usize = 4;

/// The result of a purge of up to [`MOST_RUNS`] runs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sent {
    /// Number of runs that were tried.
    pub(crate) tried: usize,
    /// A bit for each run that the system refused.
    refused: u128,
    /// Bytes that went back.
    pub(crate) bytes: usize,
}

impl Sent {
    /// Whether to try the next run.
    pub(crate) fn goes_on(&self) -> bool {
        self.bytes > 0 || self.refused.count_ones() < REFUSALS
    }

    /// Records that the runs `went` were purged, and that the run behind them was refused if `refused`.
    pub(crate) fn add(&mut self, went: &[Run], refused: bool) {
        self.bytes += went.iter().map(|run| run.len).sum::<usize>();
        self.tried += went.len();
        if refused {
            self.refused |= 1 << self.tried;
            self.tried += 1;
        }
    }

    /// Whether run `i` was refused.
    pub(crate) fn was_refused(&self, i: usize) -> bool {
        self.refused >> i & 1 != 0
    }

    /// Whether run `i` went back.
    pub(crate) fn went(&self, i: usize) -> bool {
        i < self.tried && !self.was_refused(i)
    }

    /// Whether all of so many runs went back.
    pub(crate) fn is_complete(&self, runs: usize) -> bool {
        self.tried == runs && self.refused == 0
    }

    /// Whether runs were refused and none went back.
    pub(crate) fn is_in_vain(&self) -> bool {
        self.bytes == 0 && self.refused != 0
    }
}

impl<O: Os> Pages<O> {
    /// Gives memory back: it reads as zero afterwards. False if the system refuses.
    pub(crate) fn release(&self, memory: Owned) -> bool {
        // SAFETY: `Owned` proves that the memory is committed and that only the holder uses it, who does not need its
        // contents.
        let done = unsafe { self.os.purge(memory.start(), memory.len()) };
        if done {
            self.notes.count_purged(memory.len());
        }
        done
    }

    /// [`Pages::release`] of memory that was counted when it was freed, or that is not counted at all.
    ///
    /// # Safety
    /// The range must be mapped, and its contents not needed.
    pub(crate) unsafe fn release_uncounted(&self, p: *mut u8, len: usize) -> bool {
        // SAFETY: the caller passes a mapped range whose contents are not needed, as `Os::purge` demands.
        unsafe { self.os.purge(p, len) }
    }

    /// Makes memory read as zero: gives it back, or clears it where the system refuses.
    pub(crate) fn release_or_clear(&self, memory: Owned) {
        if !self.release(memory) {
            memory.clear();
        }
    }

    /// Gives a long range back at once if little of it holds memory. If it waited, its ages, and its records when it is
    /// purged, could take more memory than it holds, and a later block that gets a part of it would hold what is left
    /// there. True if it reads as zero now.
    pub(crate) fn release_sparse(&self, memory: Owned) -> bool {
        if memory.len() < LONG || self.policy.purge() == Purge::Never {
            return false;
        }
        let mut runs = [Run::EMPTY; SPARSE_RUNS];
        // Samples first, as the question about all of a dense range takes long.
        let (page, pages) = (self.page_size(), memory.len() / self.page_size());
        let samples = (1..=SAMPLES).map(|i| pages * i / SAMPLES * page);
        for sample in samples.map(|end| memory.part(end - page, end)) {
            if self.touched_runs(sample, &mut runs).is_none_or(|runs| !runs.is_empty()) {
                return false;
            }
        }
        let Some(runs) = self.touched_runs(memory, &mut runs) else { return false };
        let touched: usize = runs.iter().map(|run| run.len).sum();
        touched <= memory.len() / SPARSE && runs.iter().all(|&run| self.release(memory.run(run)))
    }

    /// Returns the runs of `memory` that hold memory; `None` if `room` is full, or if the system cannot find out.
    pub(crate) fn touched_runs<'a>(&self, memory: Owned, room: &'a mut [Run]) -> Option<&'a [Run]> {
        // SAFETY: `Owned` proves that the memory is committed and that only the holder uses it.
        let found = unsafe { self.os.touched(memory.start(), memory.len(), room) }?;
        (found.looked == memory.len()).then(|| &room[..found.runs])
    }

    /// Whether `len` bytes that are freed now wait for their next use.
    pub(crate) fn waits(&self, len: usize) -> bool {
        self.policy.purge() != Purge::Eager && len < self.policy.mmap_threshold()
    }

    /// Returns the age of memory that is freed now. Where the policy says so, gives it back first: then it is clean.
    pub(crate) fn age_of_freed(&self, memory: Owned) -> u8 {
        if self.waits(memory.len()) {
            return self.epoch();
        }
        self.mark_if_dense(memory);
        if self.release(memory) { age::NONE } else { self.epoch() }
    }

    /// Gives runs back, also those behind one that the system refuses, unless it refuses all. `lazily`: the system may
    /// take them at any time (MADV_FREE).
    ///
    /// # Safety
    /// Each run must be committed memory that no other thread uses and whose contents are not needed; there may be at
    /// most [`MOST_RUNS`] of them.
    pub(crate) unsafe fn release_runs(&self, runs: &[Run], lazily: bool) -> Sent {
        let mut sent = Sent::default();
        while sent.tried < runs.len() && sent.goes_on() {
            let left = &runs[sent.tried..];
            // SAFETY: the caller passes committed runs that no other thread uses and whose contents are not needed.
            let done = unsafe {
                if lazily {
                    left.iter().take_while(|r| self.os.purge_lazily(r.start, r.len)).count()
                } else {
                    self.os.purge_runs(left)
                }
            };
            self.unmark_cut(&left[..done]);
            sent.add(&left[..done], done < left.len());
        }
        self.notes.count_purged(sent.bytes);
        sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a purge that goes on although the system refuses each run, and one that ends because it refused some.
    #[test]
    fn refusals_end_what_is_in_vain() {
        let refuse = |mut sent: Sent| {
            for _ in 0..REFUSALS {
                assert!(sent.goes_on());
                sent.add(&[], true);
            }
            sent.goes_on()
        };
        assert!(!refuse(Sent::default()));
        let mut sent = Sent::default();
        sent.add(&[Run { len: 4096, ..Run::EMPTY }], false);
        assert!(refuse(sent) && !sent.is_in_vain());
        sent.add(&[], true);
        assert!(!sent.is_in_vain() && sent.went(0) && sent.was_refused(1) && !sent.went(1));
        let mut sent = Sent::default();
        assert!(!sent.is_in_vain(), "nothing was tried");
        sent.add(&[], true);
        assert!(sent.is_in_vain());
    }
}
