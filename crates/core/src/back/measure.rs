//! Measures how much memory goes back, for trims: an OS page that was never touched holds none, and what the system
//! refuses stays.

use crate::Os;
use crate::back::Back;
use crate::pages::owned::Owned;
use crate::pages::release::Sent;
use crate::system::os::Run;

/// Counts how much of what goes back held memory.
#[derive(Debug)]
pub(crate) struct Held<'a> {
    pub(crate) bytes: &'a mut usize,
    /// A buffer for the system's answer.
    pub(crate) room: &'a mut [Run],
}

impl<O: Os> Back<O> {
    /// `release_runs` of the pages. Adds to `held`, if it is given, how much of what went back held memory.
    ///
    /// # Safety
    /// As that function.
    pub(crate) unsafe fn release_held(&self, runs: &[Run], lazily: bool, held: Option<Held<'_>>) -> Sent {
        let Some(Held { bytes: held, room }) = held else {
            // SAFETY: as the caller promises.
            return unsafe { self.release_runs(runs, lazily) };
        };
        let mut sum = || {
            // SAFETY: as the caller promises: committed memory that no other thread uses.
            let memory = runs.iter().map(|run| unsafe { Owned::of(run.start, run.len) });
            memory.map(|memory| self.held_by(memory, room)).sum::<usize>()
        };
        let before = sum();
        // SAFETY: as the caller promises.
        let sent = unsafe { self.release_runs(runs, lazily) };
        // What the system refuses is still held.
        *held += before - if sent.is_complete(runs.len()) { 0 } else { sum().min(before) };
        sent
    }

    /// Returns how much of `memory` holds memory or is swapped out. `runs` is a buffer for the system's answer.
    pub(crate) fn held_by(&self, memory: Owned, runs: &mut [Run]) -> usize {
        let (mut held, mut from) = (0, 0);
        while from < memory.len() {
            let rest = memory.part(from, memory.len());
            // SAFETY: the memory is the holder's.
            let touched = unsafe { self.os.touched(rest.start(), rest.len(), runs) };
            let Some(touched) = touched.filter(|t| t.looked > 0) else { return memory.len() };
            held += runs[..touched.runs].iter().map(|r| r.len).sum::<usize>();
            from += touched.looked;
        }
        held
    }
}
