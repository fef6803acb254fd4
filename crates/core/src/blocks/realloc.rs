//! realloc: resizes a block in place where possible, moves its OS pages where that is cheaper than copying, or copies.
//!
//! A move costs no copy and no second block. But the old place is clean then, and so is the whole block when it is
//! freed (`apart.rs`): the next block that grows pays for all of it in page faults, some four times what copying costs.
//! So a block is copied if a long enough dirty range waits. It is also copied if moved blocks went back to the system
//! not long ago: if they had been copied, their memory would wait now.

use crate::blocks::large_record::Large;
use crate::blocks::{Blocks, class};
use crate::pages::chunk::{Kind, State};
use crate::pages::layout::HUGE_PAGE;
use crate::pages::range::MOST_COPIED;
use crate::system::os::Moved;
use crate::system::sync::Ordering;
use crate::{CHUNK, Os};

/// Size in bytes from which a large block moves its OS pages instead of copying.
const MOVE_PAGES: usize = 512 << 10;
/// Maximum number of live blocks whose OS pages were moved: each may cost two mappings, of which a process may have
/// 65,530.
const MOST_MOVED: usize = 8192;

/// Whether a small block of `old` bytes can stay where it is for `size` bytes: it is long enough, and at most half of
/// it would be wasted.
#[inline]
pub fn small_fits(old: usize, size: usize) -> bool {
    size <= old && (size >= old / 2 || old == class::MIN_BLOCK)
}

impl<O: Os> Blocks<O> {
    /// Whether a block of `old` usable bytes stays as it is for `size` bytes.
    pub fn fits_in_place(&self, old: usize, size: usize) -> bool {
        if old > class::MAX_SMALL {
            let bytes = size.max(1).checked_next_multiple_of(self.page_size());
            return size > class::MAX_SMALL && bytes == Some(old);
        }
        small_fits(old, size)
    }

    /// Whether a large block of `old` bytes that grows to `size` bytes is to be copied even if its OS pages could be
    /// moved.
    fn is_copied(&self, block: Large, old: usize, size: usize) -> bool {
        let chunks = size.div_ceil(CHUNK);
        let cheaper = || {
            // Stranded: as in `take_or_step`.
            self.ranges.with(&self.os, |r| !self.is_stranded() && r.has_for_copy(chunks))
                || (chunks <= MOST_COPIED && self.returned.take(block.carved(), self.epoch()))
        };
        // The program may have made OS pages of a block that is apart unreadable.
        old < MOVE_PAGES || (!block.is_apart() && cheaper())
    }

    /// Moves a large block that cannot grow in place; `None` if there is no memory. A block whose OS pages are to be
    /// moved gets twice the address space it needs now (not memory), as it will likely grow again; one that is copied
    /// takes a dirty range that just fits, which is cheaper. From a huge page on, a block moves to the same place
    /// within huge pages: elsewhere the system would have to divide them. `size` must be more than `old`, the usable
    /// bytes of the block.
    pub(crate) fn move_large(&self, block: Large, old: usize, size: usize) -> Option<*mut u8> {
        let copied = self.is_copied(block, old, size);
        let room = if copied { 0 } else { size.saturating_add(size) };
        let like = if copied || old < HUGE_PAGE { None } else { self.malloc_large_like(block, size, room) };
        let new = like.or_else(|| self.malloc_large(size, CHUNK, room, false));
        let new = new.or_else(|| self.malloc_large(size, CHUNK, 0, false))?;
        // All chunks that the old block ever used, also beyond its end, so that these are clean afterwards.
        let bytes = block.carved() * CHUNK;
        // Relaxed: several threads may exceed the limit by a few.
        let few = self.apart.load(Ordering::Relaxed) < MOST_MOVED;
        let movable = !copied && bytes >= MOVE_PAGES && few && !self.policy.harden();
        // SAFETY: `Large` proves that both blocks are the caller's. They are committed and do not overlap (invariants
        // 4, 16), and the new one has more bytes than the chunks that the old one used.
        match if movable { unsafe { self.os.move_pages(block.start(), new.start(), bytes) } } else { Moved::Not } {
            Moved::Done => {
                self.set_apart(new);
                // The OS pages brought their mapping with them.
                self.unmark(new.memory(bytes));
                self.mark_large(new.memory(size));
                match block.chunk().kind() {
                    Kind::REENTRANT => self.free_large_reentrant(block),
                    _ => self.release_large(block, State::Clean),
                }
            }
            Moved::Not => {
                // SAFETY: `Large` proves that both blocks are the caller's; they do not overlap (invariant 4), `block`
                // has `old` bytes, and `new` at least `size`.
                unsafe { new.start().copy_from_nonoverlapping(block.start(), old.min(size)) };
                self.free_large(block);
            }
            Moved::Lost => {
                self.lose_large(new);
                return None;
            }
        }
        Some(new.start())
    }
}
