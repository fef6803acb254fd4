//! Blocks apart: large blocks that may be mapped unlike their neighbours. The next owner must not get such mappings
//! (invariant 33). So they are mapped again when they are freed, and so is the end that is cut off when they shrink.
//! Two causes:
//!
//! - neap moved OS pages there (realloc). Mappings apart from their neighbours would stay as long as the process lives,
//!   and a process may have only 65,530.
//! - The program changed them. OS pages that it made inaccessible would end the next owner by SIGSEGV, those that it
//!   keeps from children would be missing in a child, and those that it locked would not go back. With glibc such a
//!   block is unmapped.
//!
//! A small block shares its OS pages with others. Changes to the mapping of those stay, as with glibc.

use crate::blocks::Blocks;
use crate::blocks::given::Given;
use crate::blocks::large_record::Large;
use crate::pages::chunk::Kind;
use crate::pages::owned::Owned;
use crate::system::os::Moved;
use crate::system::sync::Ordering;
use crate::{CHUNK, Os};

/// Result of mapping memory again.
pub(crate) enum Renewed {
    /// It was not apart, and is unchanged.
    Usable,
    /// It was mapped again, and reads as zero.
    Clean,
    /// The system refused: it must not be handed out again.
    Lost,
}

impl<O: Os> Blocks<O> {
    /// Notes that the program is about to change how the OS page at `p` is mapped. Takes no lock, so it may be called
    /// anywhere. Does nothing if `p` lies in no large block of the caller's.
    pub fn note_changed(&self, p: *const u8) {
        let Some(mut c) = self.arenas.record(p) else { return };
        // Inside a block, records have no kind and do not change as long as the caller has the block. Elsewhere they
        // may change, but they are always records.
        while c.kind() == Kind::NONE {
            c = c.before(1);
            if !self.arenas.contains(c.start()) {
                return;
            }
        }
        if matches!(c.kind(), Kind::LARGE | Kind::REENTRANT) {
            // SAFETY: the caller's block; only its atomic fields are used.
            let block = unsafe { Large::of(c) };
            if !block.is_apart() {
                self.set_apart(block);
            }
        }
    }

    /// Whether the memory of the block at `p` stays mapped as it is when the block is freed. False for a huge block,
    /// and for a large one that is apart: the program may have made parts of those inaccessible.
    ///
    /// # Safety
    /// `p` must be a live block of the caller's.
    pub unsafe fn stays_mapped(&self, p: *mut u8) -> bool {
        // SAFETY: the caller passes a live block of its own, as `Given` demands.
        let given = unsafe { Given::of(p) };
        self.arenas.record(p).is_some_and(|c| given.large(c).is_none_or(|block| !block.is_apart()))
    }

    /// Marks a large block as apart.
    pub(crate) fn set_apart(&self, block: Large) {
        // Atomic: several threads of the program may change the same block.
        if !block.set_apart(true) {
            // Relaxed, here and below: only a count.
            self.apart.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Maps a large block, whose contents are not needed, again before others get it, if it is apart.
    pub(crate) fn renew_apart(&self, block: Large) -> Renewed {
        let renewed = self.renew_end(block, 0, block.len());
        self.unset_apart(block);
        renewed
    }

    /// Marks a large block that is about to be free, or lost, as not apart.
    pub(crate) fn unset_apart(&self, block: Large) {
        if block.is_apart() && block.set_apart(false) {
            self.apart.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Makes the rest of the last chunk after the first `bytes` of a large block accessible, if the block is apart: the
    /// block keeps it, and may grow into it again. False if the system refuses.
    pub(crate) fn open_end(&self, block: Large, bytes: usize) -> bool {
        let last = bytes.next_multiple_of(CHUNK);
        let end = block.memory(last).part(bytes, last);
        // SAFETY: the memory is the block's.
        end.len() == 0 || !block.is_apart() || unsafe { self.os.commit(end.start(), end.len()) }
    }

    /// Gives the memory of a large block, which is not handed out again, back to the system.
    pub(crate) fn discard(&self, block: Large) {
        let memory = block.memory(block.bytes());
        if block.is_apart() {
            // Not `release`, which may write to the memory: the program may have made it inaccessible (invariant 33).
            let _ = self.renew(memory);
        } else {
            let _ = self.release(memory);
        }
    }

    /// Maps memory, whose contents are not needed, again.
    pub(crate) fn renew(&self, memory: Owned) -> Moved {
        self.unmark(memory);
        // SAFETY: the memory is the holder's.
        unsafe { self.os.renew(memory.start(), memory.len()) }
    }

    /// Maps the chunks `from..to` of a large block, whose contents are not needed, again, if it is apart.
    pub(crate) fn renew_end(&self, block: Large, from: usize, to: usize) -> Renewed {
        if !block.is_apart() {
            return Renewed::Usable;
        }
        match self.renew(block.memory(to * CHUNK).part(from * CHUNK, to * CHUNK)) {
            Moved::Done => {
                self.notes.count_purged(block.carved().min(to).saturating_sub(from) * CHUNK);
                Renewed::Clean
            }
            Moved::Not | Moved::Lost => Renewed::Lost,
        }
    }
}
