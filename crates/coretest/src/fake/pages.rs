//! The fake's page table: which pages are present or swapped out, and which the kernel may take back.

use super::model::Access;
use super::{Fake, HOST_PAGE, Swap, faults};
use crate::fake::swap::Swapped;
use core::ptr::{with_exposed_provenance, with_exposed_provenance_mut};
use neap_core::os::{Run, Touched};
use std::sync::{MutexGuard, PoisonError};

/// Limit on the OS pages of a run that is swapped out or reclaimed at once.
const RUN: u64 = 16;
/// Limit on the runs that are swapped out: each takes some mappings, of which a process may have 65,530.
const MOST_RUNS: usize = 1024;
/// Limit on the ranges that are recorded for [`Fake::reclaim`]; further ones are never taken.
const MOST_LAZY: usize = 4096;

/// The state of an OS page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Page {
    /// Holds no memory: reads as zero, if it can be read.
    Absent,
    /// Holds memory.
    Present,
    /// Is swapped out.
    Swapped,
}

/// Bytes of OS pages in all memory that may be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// In memory.
    pub present: usize,
    /// Swapped out.
    pub swapped: usize,
}

/// Runs of OS pages, built in order of address.
struct Runs {
    page: usize,
    list: Vec<(usize, usize)>,
}

impl Runs {
    fn new(page: usize) -> Self {
        Runs { page, list: Vec::new() }
    }

    /// Adds the OS pages that `[from, to)` lies in.
    fn push(&mut self, from: usize, to: usize) {
        let (from, to) = (from / self.page * self.page, to.next_multiple_of(self.page));
        match self.list.last_mut() {
            Some(last) if last.1 >= from => last.1 = last.1.max(to),
            _ => self.list.push((from, to)),
        }
    }
}

/// A stream of random numbers for a test's seed.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Random(faults::mix(seed))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(faults::STEP);
        faults::mix(self.0)
    }

    fn chance(&mut self, probability: f64) -> bool {
        (self.next() as f64) < probability * u64::MAX as f64
    }
}

impl Fake {
    fn swapped(&self) -> Option<Swapped<'_>> {
        Some(self.swap.get()?.as_ref()?.lock())
    }

    /// Swaps in the pages of the range that are swapped out.
    pub(super) fn swap_in(&self, from: usize, len: usize) {
        if let Some(mut swapped) = self.swapped() {
            swapped.bring_in(from, from + len);
        }
    }

    /// Drops the pages of the range that are swapped out.
    pub(super) fn forget_swapped(&self, from: usize, len: usize) {
        if let Some(mut swapped) = self.swapped() {
            swapped.forget(from, from + len);
        }
    }

    /// Gives the memory of the range back; it reads as zero afterwards. False if the kernel refuses.
    ///
    /// # Safety
    /// The range must be whole pages of the fake that hold nothing that is needed.
    pub(super) unsafe fn drop_pages(&self, p: *mut u8, len: usize) -> bool {
        self.forget_swapped(p.addr(), len);
        // SAFETY: the caller's promise.
        unsafe { libc::madvise(p.cast(), len, libc::MADV_DONTNEED) == 0 }
    }

    /// Lets the kernel take the memory of the range (MADV_FREE). False if the kernel refuses.
    ///
    /// # Safety
    /// As [`Fake::drop_pages`].
    pub(super) unsafe fn free_pages(&self, p: *mut u8, len: usize) -> bool {
        self.forget_swapped(p.addr(), len);
        // SAFETY: the caller's promise.
        let done = unsafe { libc::madvise(p.cast(), len, libc::MADV_FREE) == 0 };
        let mut lazy = self.lazy();
        if done && lazy.len() < MOST_LAZY {
            lazy.push((p.expose_provenance(), p.addr() + len));
        }
        done
    }

    fn lazy(&self) -> MutexGuard<'_, Vec<(usize, usize)>> {
        self.lazy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Simulates a system that is short of memory: takes back random pages that were purged lazily and not written
    /// since. Returns their bytes.
    ///
    /// The kernel decides (MADV_PAGEOUT after MADV_FREE), so a page that was written since is never lost.
    pub fn reclaim(&self, seed: u64) -> usize {
        let _model = self.model();
        let mut random = Random::new(seed);
        let (mut kept, mut taken) = (Vec::new(), 0);
        for (from, to) in core::mem::take(&mut *self.lazy()) {
            let mut at = from;
            while at < to {
                let end = to.min(at + (random.next() % RUN + 1) as usize * self.config.page_size);
                if random.chance(0.5) {
                    let before = self.present(at, end);
                    // SAFETY: committed memory stays mapped; the advice keeps contents.
                    unsafe { libc::madvise(with_exposed_provenance_mut(at), end - at, libc::MADV_PAGEOUT) };
                    taken += before.saturating_sub(self.present(at, end));
                } else {
                    kept.push((at, end));
                }
                at = end;
            }
        }
        kept.truncate(MOST_LAZY);
        self.lazy().extend(kept);
        taken
    }

    /// Number of bytes of the range for which the kernel holds memory.
    fn present(&self, from: usize, to: usize) -> usize {
        let mut bytes = 0;
        self.pagemap.held(from, to, |a, b| {
            bytes += b - a;
            true
        });
        bytes
    }

    /// Swaps out random OS pages that are present, about `fraction` of them. An access to one brings it back unchanged.
    /// Returns their bytes; 0 where the process may not use userfaultfd, see [`Fake::can_swap`].
    pub fn swap_out(&self, fraction: f64, seed: u64) -> usize {
        let model = self.model();
        if !self.can_swap() {
            return 0;
        }
        let Some(mut swapped) = self.swapped() else { return 0 };
        let mut random = Random::new(seed);
        let mut runs = Runs::new(self.config.page_size);
        for (from, to) in model.writable() {
            self.pagemap.held(from, to, |a, b| {
                runs.push(a, b);
                true
            });
        }
        // Start at a random run, so that the limit does not always spare the same ones.
        let first = random.next() as usize % runs.list.len().max(1);
        runs.list.rotate_left(first);
        let mut bytes = 0;
        for (from, to) in runs.list {
            let mut at = from;
            while at < to && swapped.count() < MOST_RUNS {
                let end = to.min(at + (random.next() % RUN + 1) as usize * self.config.page_size);
                // SAFETY: these pages are present and may be written, so they are not swapped out.
                if random.chance(fraction) && unsafe { swapped.move_out(at, end) } {
                    bytes += end - at;
                }
                at = end;
            }
        }
        bytes
    }

    /// Whether [`Fake::swap_out`] works here.
    pub fn can_swap(&self) -> bool {
        self.swap.get_or_init(Swap::start).is_some()
    }

    /// The first `most` runs of OS pages in the range that are present or swapped out, and one more if there is one.
    fn held(&self, from: usize, to: usize, most: usize) -> Vec<(usize, usize)> {
        let swapped = self.swapped();
        let mut away = Vec::new();
        if let Some(swapped) = &swapped {
            swapped.each(from, to, |a, b, _| away.push((a, b)));
        }
        let mut away = away.into_iter().peekable();
        let mut runs = Runs::new(self.config.page_size);
        self.pagemap.held(from, to, |a, b| {
            while let Some((a, b)) = away.next_if(|&(start, _)| start < a) {
                runs.push(a, b);
            }
            runs.push(a, b);
            runs.list.len() <= most
        });
        if runs.list.len() <= most {
            away.for_each(|(a, b)| runs.push(a, b));
        }
        runs.list.truncate(most + 1);
        runs.list
    }

    /// Does [`neap_core::Os::touched`], after its preconditions were checked. If `runs` is full, `looked` is a random
    /// place between the end of the last run and the start of the next one.
    pub(super) fn find_touched(&self, p: *mut u8, len: usize, runs: &mut [Run]) -> Touched {
        let end = p.addr() + len;
        let room = runs.len().min(self.config.touched_runs.unwrap_or(usize::MAX));
        let held = self.held(p.addr(), end, room);
        for (run, &(a, b)) in runs.iter_mut().zip(&held).take(room) {
            *run = Run { start: p.wrapping_add(a - p.addr()), len: b - a };
        }
        if held.len() < room {
            return Touched { runs: held.len(), looked: len };
        }
        let (last, next) = (held[room - 1].1, held.get(room).map_or(end, |run| run.0));
        let pages = (next - last) / self.config.page_size;
        let looked = last + self.faults.below(pages + 1) * self.config.page_size;
        Touched { runs: room, looked: looked - p.addr() }
    }

    /// The state of the OS page at `address`.
    pub fn page(&self, address: usize) -> Page {
        let from = address / self.config.page_size * self.config.page_size;
        let to = from + self.config.page_size;
        let mut page = Page::Absent;
        if let Some(swapped) = self.swapped() {
            swapped.each(from, to, |_, _, _| page = Page::Swapped);
        }
        if self.present(from, to) > 0 { Page::Present } else { page }
    }

    /// Address of the first OS page of the range that is present or swapped out.
    pub fn first_held(&self, from: usize, to: usize) -> Option<usize> {
        if from < to { self.held(from, to, 1).first().map(|run| run.0) } else { None }
    }

    /// Number of bytes of OS pages that hold memory or are swapped out, of all memory that may be written.
    pub fn usage(&self) -> Usage {
        let model = self.model();
        let mut usage = Usage::default();
        for (from, to) in model.writable() {
            let all: usize = self.held(from, to, usize::MAX - 1).iter().map(|(a, b)| b - a).sum();
            let mut away = 0;
            if let Some(swapped) = self.swapped() {
                swapped.each(from, to, |a, b, _| away += b - a);
            }
            usage.swapped += away;
            usage.present += all - away;
        }
        usage
    }

    /// Offset of the first byte of the range that does not read as zero. OS pages for which the kernel holds no memory
    /// are known to be zero, and are not touched; pages that are swapped out are read where they lie, and stay there.
    /// Panics if part of the range cannot be read.
    ///
    /// # Safety
    /// No thread may write to the range meanwhile.
    pub unsafe fn first_nonzero(&self, p: *const u8, len: usize) -> Option<usize> {
        self.model().require("first_nonzero", p.addr(), len, &[Access::Committed, Access::Mapped]);
        let (start, end) = (p.expose_provenance(), p.addr() + len);
        let swapped = self.swapped();
        let mut found = None;
        // Notes the offset from `p` of the first byte of `[from, to)` that is not zero; the contents lie at `at`.
        let mut look = |from: usize, to: usize, at: usize| {
            let (a, b) = (from.max(start), to.min(end));
            // SAFETY: readable: the model has just confirmed that, or it is the place of swapped pages. No page is
            // swapped while the device is locked.
            let bytes = unsafe { core::slice::from_raw_parts(with_exposed_provenance::<u8>(at + (a - from)), b - a) };
            if let Some(i) = bytes.iter().position(|&byte| byte != 0) {
                found = Some(found.unwrap_or(usize::MAX).min(a - start + i));
            }
            found.is_none()
        };
        self.pagemap.held(start, end, |a, b| look(a, b, a));
        if let Some(swapped) = &swapped {
            swapped.each(start / HOST_PAGE * HOST_PAGE, end, |a, b, aside| {
                look(a, b, aside);
            });
        }
        found
    }
}
