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
use crate::blocks::large_record::Large;
use crate::pages::chunk::{Kind, Record};
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
        let Some(mut c) = self.arenas.record(p) else { return };
        // Inside a block records have no kind, and stay as they are as long as the caller has the block; elsewhere they may
        // change, but are records all the same.
        while c.kind() == Kind::NONE {
            c = c.before(1);
            if !self.arenas.contains(c.start()) {
                return;
            }
        }
        if matches!(c.kind(), Kind::LARGE | Kind::REENTRANT) {
            // SAFETY: the caller's block, of which this uses only what is atomic.
            let block = unsafe { Large::of(c) };
            if !block.is_apart() {
                self.set_apart(block);
            }
        }
    }

    /// Whether the memory of the block at `p` stays as it is when the block is freed: not that of a huge block, nor of a
    /// large one that is apart. Of these two the program may have made parts inaccessible.
    ///
    /// # Safety
    /// `p` must be a live block of the caller's.
    pub unsafe fn stays_mapped(&self, p: *const u8) -> bool {
        // SAFETY: the block is the caller's.
        self.arenas.contains(p) && (self.map.class(p) != 0 || !unsafe { Large::of(Record::at(p)) }.is_apart())
    }

    /// Marks a large block as apart.
    pub(crate) fn set_apart(&self, block: Large) {
        // Several threads of the program may change the same block.
        if !block.set_apart(true) {
            // Relaxed, here and below: a count.
            self.apart.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Maps a large block anew before others get it, if it is apart; it holds nothing that is needed.
    pub(crate) fn renew_apart(&self, block: Large) -> Renewed {
        let renewed = self.renew_end(block, 0, block.len());
        self.unset_apart(block);
        renewed
    }

    /// A large block that is about to be free, or lost, is apart no longer.
    pub(crate) fn unset_apart(&self, block: Large) {
        if block.is_apart() && block.set_apart(false) {
            self.apart.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Makes what a large block has behind its first `bytes` in their last chunk accessible, if it is apart: it stays the
    /// block's, which may grow into it again. False if the system refuses.
    pub(crate) fn open_end(&self, block: Large, bytes: usize) -> bool {
        let len = bytes.next_multiple_of(CHUNK) - bytes;
        let end = block.start().wrapping_add(bytes);
        // SAFETY: the chunks that the block ever used are committed.
        len == 0 || !block.is_apart() || unsafe { self.os.commit(end, len) }
    }

    /// Maps the chunks `from..to` of a large block, which hold nothing that is needed, anew, if it is apart.
    pub(crate) fn renew_end(&self, block: Large, from: usize, to: usize) -> Renewed {
        if !block.is_apart() {
            return Renewed::Usable;
        }
        // SAFETY: these chunks are the block's.
        match unsafe { self.os.renew(block.chunk().after(from).start(), (to - from) * CHUNK) } {
            Moved::Done => {
                self.notes.count_purged(block.carved().min(to).saturating_sub(from) * CHUNK);
                Renewed::Clean
            }
            Moved::Not | Moved::Lost => Renewed::Lost,
        }
    }
}
