//! Large blocks that are mapped unlike their neighbours, so that the next owner must not get their mappings: they are
//! mapped anew when they are freed, and so is the end that a shorter one leaves.
//!
//! - Pages were moved there: mappings apart from their neighbours would stay as long as the process lives, which may have
//!   65,530.
//! - The program changed them: what it made inaccessible would end the next owner by SIGSEGV, what it keeps from children
//!   would be missing in a child, and what it locked would not go back. With glibc such a block is unmapped.
//!
//! A small block shares its OS pages with others. What a program changes of those stays, as with glibc.

use crate::blocks::Blocks;
use crate::pages::chunk::{Chunk, Kind};
use crate::pages::layout;
use crate::system::os::Moved;
use crate::system::sync::Ordering;
use crate::{CHUNK, Os};

/// What became of memory that may be apart.
pub(crate) enum Renewed {
    /// It was not apart, and is as it was.
    Usable,
    /// It was mapped anew, and reads as zero.
    Clean,
    /// The system refuses: it must not be handed out any more.
    Lost,
}

impl<O: Os> Blocks<O> {
    /// Takes note that the program is about to change how the OS page at `p` is mapped. Takes no lock, so it may be called
    /// anywhere; does nothing where `p` lies in no large block of the caller's.
    pub fn note_changed(&self, p: *const u8) {
        if !self.arenas.contains(p) {
            return;
        }
        let mut c = layout::record(p);
        // SAFETY: records of committed chunks are readable. Inside a block they have no kind, and stay as they are as long as
        // the caller has the block; elsewhere they may change, but are records all the same.
        unsafe {
            while (*c).kind.get() == Kind::NONE {
                c = c.sub(1);
                if !self.arenas.contains(layout::chunk(c)) {
                    return;
                }
            }
            if matches!((*c).kind.get(), Kind::LARGE | Kind::NESTED) && !Chunk::is_apart(c) {
                self.set_apart(c);
            }
        }
    }

    /// Whether the memory of the block at `p` stays as it is when the block is freed: not that of a huge block, nor of a
    /// large one that is apart. Of these two the program may have made parts inaccessible.
    ///
    /// # Safety
    /// `p` must be a live block of the caller's.
    pub unsafe fn stays_mapped(&self, p: *const u8) -> bool {
        // SAFETY: the block is the caller's, so its record stays as it is.
        self.arenas.contains(p) && (self.map.class(p) != 0 || !unsafe { Chunk::is_apart(layout::record(p)) })
    }

    /// Marks a large block as apart.
    ///
    /// # Safety
    /// The block must be the caller's.
    pub(crate) unsafe fn set_apart(&self, c: *mut Chunk) {
        // Several threads of the program may change the same block.
        // SAFETY: as the caller promises.
        if unsafe { Chunk::mark_apart(c) } {
            // Relaxed, here and below: a count.
            self.apart.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Maps a large block anew before others get it, if it is apart.
    ///
    /// # Safety
    /// The block must be the caller's, and hold nothing that is needed.
    pub(crate) unsafe fn renew_apart(&self, c: *mut Chunk) -> Renewed {
        // SAFETY: as the caller promises.
        unsafe {
            let renewed = self.renew_end(c, 0, (*c).len as usize);
            self.unset_apart(c);
            renewed
        }
    }

    /// A large block that is about to be free, or lost, is apart no longer.
    ///
    /// # Safety
    /// The block must be the caller's.
    pub(crate) unsafe fn unset_apart(&self, c: *mut Chunk) {
        // SAFETY: as the caller promises.
        unsafe {
            if Chunk::is_apart(c) {
                Chunk::set_apart(c, false);
                self.apart.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    /// Makes what a large block has behind its first `bytes` in their last chunk accessible, if it is apart: it stays the
    /// block's, which may grow into it again. False if the system refuses.
    ///
    /// # Safety
    /// The block must be the caller's, as long, and hold nothing behind `bytes` that is needed.
    pub(crate) unsafe fn open_end(&self, c: *mut Chunk, bytes: usize) -> bool {
        let len = bytes.next_multiple_of(CHUNK) - bytes;
        // SAFETY: as the caller promises; the chunks that the block ever used are committed.
        unsafe { len == 0 || !Chunk::is_apart(c) || self.os.commit(layout::chunk(c).add(bytes), len) }
    }

    /// Maps the chunks `from..to` of a large block anew, if it is apart.
    ///
    /// # Safety
    /// The block must be the caller's, and these chunks hold nothing that is needed.
    pub(crate) unsafe fn renew_end(&self, c: *mut Chunk, from: usize, to: usize) -> Renewed {
        // SAFETY: as the caller promises.
        unsafe {
            if !Chunk::is_apart(c) {
                return Renewed::Usable;
            }
            let (p, len) = (layout::chunk(c.add(from)), (to - from) * CHUNK);
            match self.os.renew(p, len) {
                Moved::Done => {
                    self.notes.count_purged(((*c).carved as usize).min(to).saturating_sub(from) * CHUNK);
                    Renewed::Clean
                }
                Moved::Not | Moved::Lost => Renewed::Lost,
            }
        }
    }
}
