//! Huge pages where they are proven to pay: in ranges that were found densely touched.
//!
//! A huge page is 512 faults in one, but 2 MiB of memory for the first byte that is touched. So a range may have huge
//! pages only after a block there was found touched all over when it was freed. Where memory goes back at once
//! (`purge=eager`), this is most of what such a block costs; under other policies memory is reused before it faults
//! again, and nothing is marked.
//!
//! Each mark may be a mapping of its own: there are at most [`MOST_MARKS`], and neighbouring ones are one.

use crate::os::Run;
use crate::{Allocator, Os};

/// Bytes of a huge page where OS pages have 4 KiB.
pub(crate) const HUGE_PAGE: usize = 2 << 20;
/// Ranges that may be marked in the life of a process.
const MOST_MARKS: usize = 4096;
/// A range is dense if all but one OS page in so many is touched.
const DENSE: usize = 16;

impl<O: Os> Allocator<O> {
    /// Lets the range have huge pages if it is densely touched.
    ///
    /// # Safety
    /// The range must be committed and the caller's, and hold nothing that is needed.
    #[cold]
    pub(crate) unsafe fn mark_if_dense(&self, p: *mut u8, len: usize) {
        let from = p.addr().next_multiple_of(HUGE_PAGE);
        let to = (p.addr() + len) & !(HUGE_PAGE - 1);
        if from >= to || self.page_size() != 4096 || self.arenas.is_huge(from, to) {
            return;
        }
        let mut runs = [Run::EMPTY; 16];
        // SAFETY: as the caller promises.
        unsafe {
            let Some(found) = self.os.touched(p, len, &mut runs) else { return };
            let touched: usize = runs[..found.runs].iter().map(|r| r.len).sum();
            if found.looked == len && touched >= len - len / DENSE {
                let start = p.wrapping_add(from - p.addr());
                let marked = self.ranges.with(&self.os, |r| {
                    r.marks += 1;
                    r.marks <= MOST_MARKS && self.arenas.set_huge(from, to)
                });
                if marked {
                    self.os.allow_huge(start, to - from);
                }
            }
        }
    }
}
