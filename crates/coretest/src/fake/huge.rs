//! Huge pages: the ranges that may have them, and the pool. Only recorded: the memory has the host's pages.

use neap_core::os::Run;
use neap_core::pages::layout::HUGE_PAGE;
use std::collections::BTreeSet;

#[derive(Debug)]
pub(super) struct Huge {
    /// Start and length of the ranges that may have huge pages.
    pub(super) allowed: Vec<(usize, usize)>,
    /// Start and length of the ranges for which they were forbidden.
    pub(super) forbidden: Vec<(usize, usize)>,
    /// Addresses that were promoted.
    pub(super) promoted: Vec<usize>,
    /// Number of pages that the pool has left.
    left: usize,
    /// Addresses that have a page of the pool.
    taken: Vec<usize>,
    /// Number of purged runs longer than a huge page that end inside one.
    pub(super) cut: usize,
    /// Maximum number of huge pages of which one call purged a part.
    pub(super) cut_at_once: usize,
}

impl Huge {
    /// A pool of this many pages.
    pub(super) fn new(pool: usize) -> Self {
        Huge {
            allowed: Vec::new(),
            forbidden: Vec::new(),
            promoted: Vec::new(),
            left: pool,
            taken: Vec::new(),
            cut: 0,
            cut_at_once: 0,
        }
    }

    /// Counts the huge pages of which a call purges a part.
    pub(super) fn note_purge(&mut self, runs: &[Run]) {
        let ends = |run: &Run| [run.start.addr(), run.start.addr() + run.len];
        let cut = |at: &usize| !at.is_multiple_of(HUGE_PAGE);
        self.cut += runs.iter().filter(|run| run.len > HUGE_PAGE && cut(&ends(run)[1])).count();
        let pages: BTreeSet<_> = runs.iter().flat_map(ends).filter(cut).map(|at| at / HUGE_PAGE).collect();
        self.cut_at_once = self.cut_at_once.max(pages.len());
    }

    /// Takes pages of the pool for a range, where it has none yet; false once there are none left.
    pub(super) fn take(&mut self, start: usize, len: usize) -> bool {
        for page in (start..start + len).step_by(HUGE_PAGE) {
            if self.taken.contains(&page) {
                continue;
            }
            if self.left == 0 {
                return false;
            }
            self.left -= 1;
            self.taken.push(page);
        }
        true
    }

    /// Number of pages that the pool has left.
    pub(super) fn left(&self) -> usize {
        self.left
    }

    /// Whether a part of a range has pages of the pool.
    pub(super) fn has(&self, start: usize, len: usize) -> bool {
        self.taken.iter().any(|&page| start < page + HUGE_PAGE && page < start + len)
    }
}
