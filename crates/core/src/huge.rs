//! Huge blocks: a mapping of its own for each. Used where no arena can hold the block: beyond
//! [`crate::large::MAX_LARGE`], or where address space is limited.
//!
//! Their addresses and lengths stand in a table without order, searched from its end: linear in the number of huge
//! blocks, of which there are few.

use crate::arena::Arenas;
use crate::sync::Ordering;
use crate::{Allocator, CHUNK, Os};

/// Shortest huge block: below, no mapping is tried when arenas are exhausted.
const MIN_HUGE: usize = 1 << 20;

/// One huge block.
#[derive(Clone, Copy, Debug)]
struct Entry {
    p: *mut u8,
    bytes: usize,
}

/// All huge blocks. Used under its lock.
#[derive(Debug)]
pub struct Huge {
    /// A large block that holds the table.
    table: *mut Entry,
    room: usize,
    count: usize,
    /// Most blocks at one time so far, and most bytes.
    pub(crate) most: (usize, usize),
}

// SAFETY: the table is reached under its lock.
unsafe impl Send for Huge {}

impl Default for Huge {
    fn default() -> Self {
        Self::new()
    }
}

impl Huge {
    /// No huge block.
    pub const fn new() -> Self {
        Huge { table: core::ptr::null_mut(), room: 0, count: 0, most: (0, 0) }
    }

    fn find(&mut self, p: *mut u8) -> Option<&mut Entry> {
        if self.count == 0 {
            return None;
        }
        // SAFETY: the first `count` entries are set.
        let entries = unsafe { core::slice::from_raw_parts_mut(self.table, self.count) };
        entries.iter_mut().rev().find(|e| e.p == p)
    }

    /// Checks the table: every entry is a block, and none is there twice. For tests. Quadratic.
    pub(crate) fn is_valid(&self) -> bool {
        if self.count > self.room || (self.room > 0) == self.table.is_null() {
            return false;
        }
        if self.count == 0 {
            return true;
        }
        // SAFETY: the first `count` entries are set.
        let entries = unsafe { core::slice::from_raw_parts(self.table, self.count) };
        let apart = |(i, a): (usize, &Entry)| {
            let end = a.p.addr() + a.bytes;
            a.bytes > 0 && entries[..i].iter().all(|b| end <= b.p.addr() || b.p.addr() + b.bytes <= a.p.addr())
        };
        entries.iter().enumerate().all(apart)
    }

    /// Huge blocks at present.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Huge blocks, and the bytes of the large block that holds the table.
    pub(crate) fn sums(&self) -> (usize, usize) {
        // SAFETY: the table is a large block of ours.
        let table = if self.table.is_null() { 0 } else { unsafe { (*Arenas::record(self.table.cast())).bytes() } };
        (self.count, table)
    }

    /// Whether there is a table: one large block that nobody asked for.
    pub(crate) fn has_table(&self) -> bool {
        !self.table.is_null()
    }

    /// Makes room for one more entry.
    fn reserve<O: Os>(&mut self, a: &Allocator<O>) -> bool {
        if self.count < self.room {
            return true;
        }
        let room = (self.room * 2).max(CHUNK / size_of::<Entry>());
        let table = a.malloc_large(room * size_of::<Entry>(), CHUNK, 0, false).cast::<Entry>();
        if table.is_null() {
            return false;
        }
        if !self.table.is_null() {
            // SAFETY: the new table is longer; the old one is ours.
            unsafe {
                table.copy_from_nonoverlapping(self.table, self.count);
                a.free_large(self.table.cast());
            }
        }
        (self.table, self.room) = (table, room);
        true
    }
}

impl<O: Os> Allocator<O> {
    /// A huge block, zeroed, or null if there is no memory.
    pub(crate) fn malloc_huge(&self, size: usize, align: usize) -> *mut u8 {
        if size < MIN_HUGE && align <= CHUNK {
            return core::ptr::null_mut();
        }
        let Some(bytes) = size.max(1).checked_next_multiple_of(self.page_size()) else {
            return core::ptr::null_mut();
        };
        self.huge.with(&self.os, |h| {
            if !h.reserve(self) {
                return core::ptr::null_mut();
            }
            if !self.ranges.with(&self.os, |r| self.is_allowed(r, bytes.div_ceil(CHUNK), false)) {
                return core::ptr::null_mut();
            }
            let Some(p) = self.os.map(bytes, align.max(self.page_size())) else {
                return core::ptr::null_mut();
            };
            // SAFETY: `reserve` made room.
            unsafe { h.table.add(h.count).write(Entry { p, bytes }) };
            h.count += 1;
            let all = self.huge_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
            h.most = (h.most.0.max(h.count), h.most.1.max(all));
            p
        })
    }

    /// Usable bytes of the huge block at `p`, if there is one.
    pub(crate) fn huge_bytes(&self, p: *mut u8) -> Option<usize> {
        self.huge.with(&self.os, |h| h.find(p).map(|e| e.bytes))
    }

    /// Frees the huge block at `p`; false if there is none.
    ///
    /// # Safety
    /// If there is one, it must be the caller's.
    pub(crate) unsafe fn free_huge(&self, p: *mut u8) -> bool {
        let entry = self.huge.with(&self.os, |h| {
            let entry = *h.find(p)?;
            h.count -= 1;
            self.huge_bytes.fetch_sub(entry.bytes, Ordering::Relaxed);
            // SAFETY: the last entry is set; it takes the place of the one that goes.
            let last = unsafe { h.table.add(h.count).read() };
            if last.p != p {
                *h.find(p)? = last;
            }
            Some(entry)
        });
        // SAFETY: the mapping is out of the table, so it is ours alone.
        entry.is_some_and(|e| unsafe {
            self.os.unmap(e.p, e.bytes);
            true
        })
    }

    /// Resizes the huge block at `p`, moving its pages where needed. Null if that cannot be done; then it is as it
    /// was.
    ///
    /// # Safety
    /// `p` must be a huge block of the caller's.
    pub(crate) unsafe fn resize_huge(&self, p: *mut u8, size: usize) -> *mut u8 {
        let Some(bytes) = size.checked_next_multiple_of(self.page_size()) else {
            return core::ptr::null_mut();
        };
        if bytes < MIN_HUGE {
            return core::ptr::null_mut();
        }
        self.huge.with(&self.os, |h| {
            let Some(e) = h.find(p) else {
                return core::ptr::null_mut();
            };
            let more = bytes.saturating_sub(e.bytes).div_ceil(CHUNK);
            if !self.ranges.with(&self.os, |r| self.is_allowed(r, more, false)) {
                return core::ptr::null_mut();
            }
            // SAFETY: the entry is a mapping of ours.
            match unsafe { self.os.remap(e.p, e.bytes, bytes) } {
                Some(moved) => {
                    // Relaxed, as all uses: a count. Wraps around where the block shrinks.
                    let more = bytes.wrapping_sub(e.bytes);
                    let all = self.huge_bytes.fetch_add(more, Ordering::Relaxed).wrapping_add(more);
                    *e = Entry { p: moved, bytes };
                    h.most.1 = h.most.1.max(all);
                    moved
                }
                None => core::ptr::null_mut(),
            }
        })
    }
}
