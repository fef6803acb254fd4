//! Memory limits: measures how near the process is to one, and gives memory back early if it is near.
//!
//! The limit is read by the purger at each tick, and by threads that took or freed much since it was last read
//! (`pages/notes.rs`). Reading it means reading files, some 25 us. If memory is short, no free memory waits: the thread
//! that frees or takes memory gives back its share at once.

use crate::back::Back;
use crate::back::batch::Walk;
use crate::blocks::heap::Mine;
use crate::pages::age::DELAY_TICKS;
use crate::pages::notes::{FAR, FRESH_CHUNKS, GROWN};
use crate::system::os::Memory;
use crate::system::policy::Limit;
use crate::system::sync::Ordering;
use crate::system::time::passed;
use crate::{CHUNK, Os};

/// While nearly no memory is left, the helper purges holes of any age. These sweeps take at most a twentieth of a
/// processor, also where a program frees and allocates blocks all over its slabs. Minimum milliseconds between two
/// sweeps, and minimum pause as a multiple of the time that the last sweep took.
const SWEEP_MS: u64 = 500;
const SWEEP_SHARE: u64 = 20;

/// Maximum waiting bytes if the threads that free memory are the purger, unless the user sets a maximum. If these
/// threads stop freeing, what waits then stays.
const INLINE_MOST: usize = 32 << 20;

/// Whether memory is short: threads wait for it, or what is left is less than twice what waits here.
fn is_short(memory: &Memory, waiting: usize) -> bool {
    memory.stalled || memory.limit.saturating_sub(memory.used) < 2 * waiting
}

/// Whether less than a sixteenth of the limit is left.
fn is_near(memory: &Memory) -> bool {
    memory.limit.saturating_sub(memory.used) < memory.limit / 16
}

/// Whether less than a sixteenth of the limit is left, or so little that it may be used up before the limit is next
/// read.
fn is_nearly_used_up(memory: &Memory) -> bool {
    is_near(memory) || memory.limit.saturating_sub(memory.used) < FRESH_CHUNKS * CHUNK
}

/// Whether so little is left that blocks must not hold memory that they do not need: less than a quarter of the limit,
/// and less than all programs under it may take until it is next read.
fn is_tight(memory: &Memory) -> bool {
    memory.limit.saturating_sub(memory.used) < (memory.limit / 4).min(FAR)
}

impl<O: Os> Back<O> {
    /// To be called when the program has set a limit on writable memory (RLIMIT_DATA): takes back what is committed and
    /// was never used.
    pub fn data_limit_set(&self) {
        self.with_batch(|_| self.follow_data_limit());
    }

    /// Number of ticks that free memory may wait at present: 0 if memory is short, or if more waits than may.
    #[cold]
    pub(crate) fn urgency(&self) -> u8 {
        let waiting = self.ranges.with(&self.os, |r| r.waiting()) * CHUNK;
        let may_sweep = self.may_sweep();
        if waiting == 0 && !may_sweep {
            return DELAY_TICKS;
        }
        let memory = self.memory();
        let short =
            memory.is_some_and(|m| (waiting > 0 && is_short(&m, waiting)) || (may_sweep && is_nearly_used_up(&m)));
        let most = self.policy.bytes().unwrap_or_else(|| {
            let share = memory.map_or(usize::MAX, |m| m.limit / 4);
            if self.has_helper() { share } else { share.min(INLINE_MOST) }
        });
        self.notes.most.store(most, Ordering::Relaxed);
        if short || waiting > most { 0 } else { DELAY_TICKS }
    }

    /// Whether the helper may purge holes in slabs before their time. Only the helper: a thread in a call cannot make a
    /// handshake with its own heap. Not if the limit is the process's own, which counts chunks.
    fn may_sweep(&self) -> bool {
        // Relaxed, here and below: a number that stands for itself.
        self.has_helper()
            && !self.policy.has_own_limit()
            && passed(self.os.clock(), self.purger.swept.load(Ordering::Relaxed))
                >= self.purger.sweep_pause.load(Ordering::Relaxed)
    }

    /// Records that the helper looked for holes of any age from the time `begun` until now.
    pub(crate) fn note_sweep(&self, begun: u64) {
        let now = self.os.clock();
        let pause = (now.saturating_sub(begun) * SWEEP_SHARE).max(SWEEP_MS);
        self.purger.swept.store(now, Ordering::Relaxed);
        self.purger.sweep_pause.store(pause, Ordering::Relaxed);
    }

    /// Reads the limit, so that a new helper is woken when more waits than may.
    pub fn look_at_limit(&self) {
        self.urgency();
    }

    /// Reads the limit that applies, and how much of it is used.
    #[cold]
    fn memory(&self) -> Option<Memory> {
        let memory = match self.policy.limit() {
            Limit::Off => None,
            Limit::Auto => self.os.memory(),
            Limit::Bytes(limit) => {
                let used = self.ranges.with(&self.os, |r| r.footprint()) * CHUNK;
                Some(Memory { limit, used, stalled: false })
            }
        };
        let room = memory.map_or(usize::MAX, |m| m.limit.saturating_sub(m.used));
        self.notes.room.store(room, Ordering::Relaxed);
        // The process's own limit counts chunks, of which a part cannot go back.
        let tight = !self.policy.has_own_limit() && memory.is_some_and(|m| is_tight(&m));
        self.notes.tight.store(tight, Ordering::Relaxed);
        let (limit, used) = memory.map_or((0, 0), |m| (m.limit as u64, m.used as u64));
        self.purger.limit.store(limit, Ordering::Relaxed);
        self.purger.used.store(used, Ordering::Relaxed);
        memory
    }

    /// Gives waiting memory back if memory is short. If nearly nothing is left, or if there is no helper, this thread
    /// gives back all of it at once. Otherwise it wakes the helper, and itself gives back as much of the free ranges as
    /// may be freed between two reads of the limit, as the helper may not get a processor before others need the
    /// memory. The helper is also woken if nearly nothing is left and only holes in slabs may wait.
    #[cold]
    pub(crate) fn check_limit(&self) {
        let waiting = self.ranges.with(&self.os, |r| r.waiting()) * CHUNK;
        let memory = self.memory();
        if memory.is_some_and(|m| is_nearly_used_up(&m)) && self.may_sweep() {
            self.wake_helper();
        }
        let Some(memory) = memory.filter(|m| waiting > 0 && is_short(m, waiting)) else {
            return;
        };
        if is_near(&memory) || !self.has_helper() {
            self.purge_all(Mine::none(), &mut || true);
            // So that new figures are published.
            self.notes.leave(GROWN);
        } else {
            self.wake_helper();
            // Without holes in slabs, which take longer.
            self.purge_due(Mine::none(), self.due(0, FRESH_CHUNKS * CHUNK), &mut Walk::new(), &mut || false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches memory that counts as short although twice what waits is left, or as plentiful although a byte less is.
    #[test]
    fn what_is_short() {
        let memory = Memory { limit: 1000, used: 900, stalled: false };
        assert!(!is_short(&memory, 50) && is_short(&memory, 51));
        assert!(is_short(&Memory { used: 901, ..memory }, 50));
        assert!(is_short(&Memory { used: 0, stalled: true, ..memory }, 0), "threads wait for memory");
        assert!(is_short(&Memory { used: 2000, ..memory }, 1), "more is used than may be");
    }

    /// Catches memory that counts as tight on a large machine of which a gigabyte is free, or as plentiful in a small
    /// container of which less than a quarter is.
    #[test]
    fn what_is_tight() {
        for (limit, left) in [(200 << 20, 50 << 20), (64 << 30, 256 << 20)] {
            let memory = |left| Memory { limit, used: limit - left, stalled: false };
            assert!(!is_tight(&memory(left)) && is_tight(&memory(left - 1)), "{left} of {limit}");
        }
    }

    /// Catches a limit that counts as nearly used up while 16 MiB are left, or a sixteenth, whichever is more, or as
    /// not used up although a byte less is left.
    #[test]
    fn what_is_nearly_used_up() {
        for (limit, left) in [(64 << 20, 16 << 20), (1 << 30, 64 << 20)] {
            let memory = |left| Memory { limit, used: limit - left, stalled: false };
            assert!(!is_nearly_used_up(&memory(left)) && is_nearly_used_up(&memory(left - 1)), "{left} of {limit}");
        }
    }
}
