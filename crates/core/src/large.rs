//! Large blocks: ranges of chunks from an arena, in whole OS pages. The memory behind the last OS page in use is
//! address space only. Constant time apart from clearing; one lock.

use crate::arena::Arenas;
use crate::chunk::{Chunk, Kind, State};
use crate::misuse::{self, Call};
use crate::sync::Ordering;
use crate::{Allocator, CHUNK, Os};

/// Most bytes of a large block; beyond, a huge block.
pub const MAX_LARGE: usize = Arenas::longest() * CHUNK;

impl<O: Os> Allocator<O> {
    /// A large block of at least `size` bytes, aligned to `align`, with address space for `room` bytes to grow into.
    /// Null if there is no memory.
    pub(crate) fn malloc_large(&self, size: usize, align: usize, room: usize, zero: bool) -> *mut u8 {
        // `MAX_LARGE` is whole OS pages, so what is not beyond it stays so when it is rounded up.
        if size > MAX_LARGE || room > MAX_LARGE {
            return core::ptr::null_mut();
        }
        let bytes = size.max(1).next_multiple_of(self.page_size());
        let len = bytes.max(room).div_ceil(CHUNK);
        // SAFETY: `with` holds the lock of the ranges.
        let taken = self.ranges.with(&self.os, |r| unsafe {
            let (c, state) = r.take(&self.os, &self.arenas, &self.map, len, align)?;
            (*c).kind = Kind::LARGE;
            (*c).state = state;
            (*c).moved = false;
            (*c).len = len as u32;
            (*c).carved = bytes.div_ceil(CHUNK) as u32;
            (*c).set_bytes(bytes);
            Some((c, state))
        });
        let Some((c, state)) = taken else {
            return core::ptr::null_mut();
        };
        let p = Arenas::chunk(c);
        if zero && state == State::Dirty {
            // SAFETY: the block is new and `bytes` long.
            unsafe { p.write_bytes(0, bytes) };
        }
        p
    }

    /// Frees the large block at `p`, or says what is wrong with it. `p` must lie in an arena.
    ///
    /// # Safety
    /// If `p` is a large block, it must be the caller's.
    pub(crate) unsafe fn free_large(&self, p: *mut u8) {
        // SAFETY: as the caller promises.
        unsafe { self.release_large(p, State::Dirty) }
    }

    /// [`Allocator::free_large`], where the pages that the block used are left in `state`.
    ///
    /// # Safety
    /// As that; `state` must be true of them.
    pub(crate) unsafe fn release_large(&self, p: *mut u8, mut state: State) {
        let c = self.large_record(Call::Free, p);
        // SAFETY: the block is the caller's.
        unsafe {
            if (*c).moved {
                (*c).moved = false;
                self.moved.fetch_sub(1, Ordering::Relaxed);
                if self.os.renew(p, (*c).len as usize * CHUNK) {
                    (state, (*c).state) = (State::Clean, State::Clean);
                }
            }
        }
        // SAFETY: `with` holds the lock of the ranges; the record says that this is the start of a large block.
        let ours = self.ranges.with(&self.os, |r| unsafe {
            if (*c).kind != Kind::LARGE {
                return false;
            }
            let (len, used) = ((*c).len as usize, (*c).carved as usize);
            (*c).kind = Kind::NONE;
            if len > used {
                r.give(&self.arenas, c.add(used), len - used, (*c).state);
            }
            r.give(&self.arenas, c, used, state);
            true
        });
        if !ours {
            misuse::not_a_block(self, Call::Free, p);
        }
    }

    /// The record of the large block at `p`, which lies in an arena; does not return if there is none.
    pub(crate) fn large_record(&self, call: Call, p: *mut u8) -> *mut Chunk {
        let c = Arenas::record(p);
        // SAFETY: records of committed chunks are readable. A block that is the caller's keeps its kind.
        if p.addr() & (CHUNK - 1) != 0 || unsafe { (*c).kind } != Kind::LARGE {
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
        if size > MAX_LARGE {
            return false;
        }
        let bytes = size.next_multiple_of(self.page_size());
        let need = bytes.div_ceil(CHUNK);
        // SAFETY: `with` holds the lock of the ranges; the block is the caller's.
        self.ranges.with(&self.os, |r| unsafe {
            let len = (*c).len as usize;
            if need > len {
                let Some(state) = r.extend(&self.os, &self.arenas, &self.map, c.add(len), need - len) else {
                    return false;
                };
                if state == State::Dirty {
                    (*c).state = State::Dirty;
                }
                (*c).len = need as u32;
            } else if need < len {
                // Give back what is behind; what was used of it is dirty.
                let used = ((*c).carved as usize).max(need);
                if len > used {
                    r.give(&self.arenas, c.add(used), len - used, (*c).state);
                }
                if used > need {
                    r.give(&self.arenas, c.add(need), used - need, State::Dirty);
                }
                (*c).len = need as u32;
                (*c).carved = need as u32;
            }
            (*c).carved = (*c).carved.max(need as u32);
            (*c).set_bytes(bytes);
            true
        })
    }
}
