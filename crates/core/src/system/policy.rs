//! What users may choose: when memory goes back to the system, and what calloc clears.
//!
//! Each value is one atomic word, so that it can be read anywhere and set at any time. The names and defaults that
//! users see stand in the options table (`crates/options`).

use crate::system::sync::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// When free memory goes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Purge {
    /// When it was not used again for [`Policy::delay`].
    Decay = 0,
    /// At once, by the thread that frees.
    Eager = 1,
    /// As `Decay`, but the system takes the memory only when it wants to (MADV_FREE).
    Lazy = 2,
    /// Only when the program asks.
    Never = 3,
}

impl Purge {
    /// All of them, each at the place of its number.
    pub const ALL: [Purge; 4] = [Purge::Decay, Purge::Eager, Purge::Lazy, Purge::Never];

    /// What users call it.
    pub const fn name(self) -> &'static str {
        match self {
            Purge::Decay => "decay",
            Purge::Eager => "eager",
            Purge::Lazy => "lazy",
            Purge::Never => "never",
        }
    }
}

/// Which memory limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// None.
    Off,
    /// That of the container, or of the machine. Never makes an allocation fail.
    Auto,
    /// So many bytes for this process: allocations beyond fail.
    Bytes(usize),
}

/// Default of [`Policy::delay`].
pub const DELAY_MS: u32 = 500;

/// The choices, each with its default.
#[derive(Debug)]
pub struct Policy {
    purge: AtomicU32,
    delay: AtomicU32,
    bytes: AtomicUsize,
    zero_always: AtomicU32,
    mmap_threshold: AtomicUsize,
    limit: AtomicUsize,
    foreign_abort: AtomicU32,
    harden: AtomicU32,
    quiet: AtomicU32,
    /// Four bits for each option: who chose its value.
    origins: AtomicU64,
}

impl Default for Policy {
    fn default() -> Self {
        Self::new()
    }
}

const AUTO: usize = usize::MAX;
const OFF: usize = 0;

impl Policy {
    /// The defaults.
    pub const fn new() -> Self {
        Policy {
            purge: AtomicU32::new(Purge::Decay as u32),
            delay: AtomicU32::new(DELAY_MS),
            bytes: AtomicUsize::new(AUTO),
            zero_always: AtomicU32::new(0),
            mmap_threshold: AtomicUsize::new(AUTO),
            limit: AtomicUsize::new(AUTO),
            foreign_abort: AtomicU32::new(0),
            harden: AtomicU32::new(0),
            quiet: AtomicU32::new(0),
            origins: AtomicU64::new(0),
        }
    }

    /// When free memory goes back.
    #[inline]
    pub fn purge(&self) -> Purge {
        // Relaxed, here and below: a value stands for itself.
        match self.purge.load(Ordering::Relaxed) {
            1 => Purge::Eager,
            2 => Purge::Lazy,
            3 => Purge::Never,
            _ => Purge::Decay,
        }
    }

    /// Sets when free memory goes back.
    pub fn set_purge(&self, purge: Purge) {
        self.purge.store(purge as u32, Ordering::Relaxed);
    }

    /// Milliseconds that free memory waits for its next use.
    pub fn delay(&self) -> u32 {
        self.delay.load(Ordering::Relaxed)
    }

    /// Sets how long free memory waits.
    pub fn set_delay(&self, milliseconds: u32) {
        self.delay.store(milliseconds, Ordering::Relaxed);
    }

    /// Most bytes of free memory that wait; more goes back before its time. `None`: a quarter of the limit.
    pub fn bytes(&self) -> Option<usize> {
        let bytes = self.bytes.load(Ordering::Relaxed);
        (bytes != AUTO).then_some(bytes)
    }

    /// Sets how much free memory waits.
    pub fn set_bytes(&self, bytes: Option<usize>) {
        // The largest number stands for `None`.
        self.bytes.store(bytes.map_or(AUTO, |bytes| bytes.min(AUTO - 1)), Ordering::Relaxed);
    }

    /// Whether new memory is hardened, see `harden.rs`.
    #[inline]
    pub fn harden(&self) -> bool {
        self.harden.load(Ordering::Relaxed) != 0
    }

    /// Sets whether new memory is hardened. Heaps keep their caches until `Allocator::harden`.
    pub fn set_harden(&self, harden: bool) {
        self.harden.store(harden.into(), Ordering::Relaxed);
    }

    /// Whether a mistake of the program ends it without a line that says which.
    pub fn is_quiet(&self) -> bool {
        self.quiet.load(Ordering::Relaxed) != 0
    }

    /// Sets whether a mistake ends the program without a word.
    pub fn set_quiet(&self, quiet: bool) {
        self.quiet.store(quiet.into(), Ordering::Relaxed);
    }

    /// Whether zeroed blocks are always cleared whole.
    #[inline]
    pub fn zero_always(&self) -> bool {
        self.zero_always.load(Ordering::Relaxed) != 0
    }

    /// Sets whether zeroed blocks are always cleared whole.
    pub fn set_zero_always(&self, always: bool) {
        self.zero_always.store(always.into(), Ordering::Relaxed);
    }

    /// Blocks of at least so many bytes go back as soon as they are freed; `usize::MAX`: none.
    #[inline]
    pub fn mmap_threshold(&self) -> usize {
        self.mmap_threshold.load(Ordering::Relaxed)
    }

    /// Sets from which size on blocks go back as soon as they are freed.
    pub fn set_mmap_threshold(&self, bytes: usize) {
        self.mmap_threshold.store(bytes, Ordering::Relaxed);
    }

    /// Whether the limit is a size for this process.
    #[inline]
    pub fn has_own_limit(&self) -> bool {
        matches!(self.limit(), Limit::Bytes(_))
    }

    /// Which memory limit counts.
    #[inline]
    pub fn limit(&self) -> Limit {
        match self.limit.load(Ordering::Relaxed) {
            OFF => Limit::Off,
            AUTO => Limit::Auto,
            bytes => Limit::Bytes(bytes),
        }
    }

    /// Sets which memory limit counts.
    pub fn set_limit(&self, limit: Limit) {
        let word = match limit {
            Limit::Off => OFF,
            Limit::Auto => AUTO,
            Limit::Bytes(bytes) => bytes.clamp(OFF + 1, AUTO - 1),
        };
        self.limit.store(word, Ordering::Relaxed);
    }

    /// Whether the process ends when a block of another allocator is freed, whatever it looks like.
    pub fn foreign_abort(&self) -> bool {
        self.foreign_abort.load(Ordering::Relaxed) != 0
    }

    /// Sets whether the process ends when a block of another allocator is freed.
    pub fn set_foreign_abort(&self, abort: bool) {
        self.foreign_abort.store(abort.into(), Ordering::Relaxed);
    }

    /// Who chose the values, four bits for each option in the order of the options table.
    pub fn origins(&self) -> u64 {
        self.origins.load(Ordering::Relaxed)
    }

    /// Notes that `by` (below 16) chose the value of the option at `place` (below 16) of the table.
    pub fn set_origin(&self, place: usize, by: u8) {
        let shift = place % 16 * 4;
        let noted = |old| old & !(0xF << shift) | u64::from(by & 0xF) << shift;
        // Never fails, as `noted` returns a value each time.
        let _ = self.origins.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |old| Some(noted(old)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a value that is read back as another.
    #[test]
    fn values_come_back() {
        let p = Policy::new();
        for (number, purge) in Purge::ALL.into_iter().enumerate().rev() {
            p.set_purge(purge);
            assert_eq!((p.purge(), purge as usize), (purge, number));
        }
        for limit in [Limit::Off, Limit::Bytes(4096), Limit::Auto] {
            p.set_limit(limit);
            assert_eq!(p.limit(), limit);
            assert_eq!(p.has_own_limit(), limit == Limit::Bytes(4096));
        }
        for (bytes, limit) in [(0, OFF + 1), (usize::MAX, AUTO - 1)] {
            p.set_limit(Limit::Bytes(bytes));
            assert_eq!(p.limit(), Limit::Bytes(limit), "not taken for another choice");
        }
        assert_eq!((p.delay(), p.bytes(), p.zero_always()), (DELAY_MS, None, false));
        p.set_bytes(Some(0));
        p.set_zero_always(true);
        assert_eq!((p.bytes(), p.zero_always()), (Some(0), true));
        p.set_bytes(Some(usize::MAX));
        assert_eq!(p.bytes(), Some(usize::MAX - 1), "not taken for the default");
        assert!(!p.is_quiet());
        p.set_quiet(true);
        assert!(p.is_quiet());
        p.set_quiet(false);
        assert!(!p.is_quiet() && !p.foreign_abort());
        p.set_foreign_abort(true);
        assert!(p.foreign_abort());
        p.set_foreign_abort(false);
        assert!(!p.foreign_abort() && !p.harden());
        p.set_harden(true);
        assert!(p.harden());
        p.set_harden(false);
        assert!(!p.harden());
        p.set_mmap_threshold(1 << 20);
        assert_eq!(p.mmap_threshold(), 1 << 20);
        p.set_origin(0, 3);
        p.set_origin(7, 15);
        p.set_origin(15, 1);
        p.set_origin(7, 6);
        assert_eq!(p.origins(), 0x1000_0000_6000_0003);
    }
}
