//! The settings that users choose: when memory goes back to the system, what calloc clears, and so on.
//!
//! Each setting is one atomic word, so that it can be read anywhere and set at any time. The options table
//! (`crates/options`) has its name, and the words that users write for its values.

use crate::system::sync::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// The settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// [`Policy::purge`], by its number.
    Purge,
    /// [`Policy::delay`].
    Delay,
    /// [`Policy::bytes`]; the largest number stands for `None`.
    Bytes,
    /// [`Policy::zero_always`]: 0 or 1.
    ZeroAlways,
    /// [`Policy::mmap_threshold`].
    MmapThreshold,
    /// [`Policy::limit`]: 0 stands for none, the largest number for `Auto`.
    Limit,
    /// [`Policy::foreign_abort`]: 0 or 1.
    ForeignAbort,
    /// [`Policy::harden`]: 0 or 1.
    Harden,
    /// [`Policy::huge`], by its number.
    Huge,
    /// [`Policy::pool_only`]: 0 or 1.
    PoolOnly,
}

/// When free memory goes back to the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Purge {
    /// Once it has been unused for [`Policy::delay`].
    Decay = 0,
    /// At once, by the thread that frees it.
    Eager = 1,
    /// As `Decay`, but the system takes the memory only when it needs it (MADV_FREE).
    Lazy = 2,
    /// Only when the program asks.
    Never = 3,
}

impl Purge {
    /// All values, each at the index of its number.
    pub const ALL: [Purge; 4] = [Purge::Decay, Purge::Eager, Purge::Lazy, Purge::Never];
}

/// Which memory gets huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum HugePages {
    /// None.
    Off = 0,
    /// That of programs which keep growing, or grow again, see `huge_area.rs`.
    Adaptive = 1,
    /// As `Adaptive`; and where the system gives huge pages to all memory, the process gets only those that it
    /// requests.
    Advised = 2,
    /// Large blocks, from a huge page on, see `dense.rs`.
    Thp = 3,
    /// All memory of arenas.
    Always = 4,
    /// Memory of arenas comes from the system's pool of huge pages (hugetlb), as long as that has some.
    Pool = 5,
}

impl HugePages {
    /// All values, each at the index of its number.
    pub const ALL: [HugePages; 6] =
        [HugePages::Off, HugePages::Adaptive, HugePages::Advised, HugePages::Thp, HugePages::Always, HugePages::Pool];
}

/// The memory limit that applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// No limit.
    Off,
    /// The limit of the container, or the memory of the machine. Never makes an allocation fail.
    Auto,
    /// This many bytes for this process: allocations beyond fail.
    Bytes(usize),
}

/// Default of [`Policy::delay`].
pub const DELAY_MS: u32 = 500;

/// The settings, each with its default.
#[derive(Debug)]
pub struct Policy {
    /// One word for each [`Setting`].
    words: [AtomicUsize; SETTINGS],
    /// 1: an error of the program ends it without a message.
    quiet: AtomicU32,
    /// Three bits for each option: where its value comes from.
    origins: AtomicU64,
}

const SETTINGS: usize = Setting::PoolOnly as usize + 1;
const AUTO: usize = usize::MAX;
const OFF: usize = 0;

impl Policy {
    /// The defaults: those of the options table, as a test of that crate checks.
    pub const fn new() -> Self {
        let mut words = [const { AtomicUsize::new(0) }; SETTINGS];
        words[Setting::Delay as usize] = AtomicUsize::new(DELAY_MS as usize);
        words[Setting::Huge as usize] = AtomicUsize::new(HugePages::Adaptive as usize);
        words[Setting::Bytes as usize] = AtomicUsize::new(AUTO);
        words[Setting::MmapThreshold as usize] = AtomicUsize::new(usize::MAX);
        words[Setting::Limit as usize] = AtomicUsize::new(AUTO);
        Policy { words, quiet: AtomicU32::new(0), origins: AtomicU64::new(0) }
    }

    /// Returns the word of a setting.
    #[inline]
    pub fn word(&self, setting: Setting) -> usize {
        // Relaxed, here and below: each word is used on its own and orders nothing else.
        self.words[setting as usize].load(Ordering::Relaxed)
    }

    /// Sets the word of a setting, as [`Setting`] describes it.
    pub fn set_word(&self, setting: Setting, word: usize) {
        self.words[setting as usize].store(word, Ordering::Relaxed);
    }

    /// When free memory goes back to the system.
    #[inline]
    pub fn purge(&self) -> Purge {
        match self.word(Setting::Purge) {
            1 => Purge::Eager,
            2 => Purge::Lazy,
            3 => Purge::Never,
            _ => Purge::Decay,
        }
    }

    /// Sets when free memory goes back to the system.
    pub fn set_purge(&self, purge: Purge) {
        self.set_word(Setting::Purge, purge as usize);
    }

    /// Which memory gets huge pages.
    pub fn huge(&self) -> HugePages {
        HugePages::ALL.get(self.word(Setting::Huge)).copied().unwrap_or(HugePages::Off)
    }

    /// Sets which memory gets huge pages.
    pub fn set_huge(&self, huge: HugePages) {
        self.set_word(Setting::Huge, huge as usize);
    }

    /// Whether memory comes from the pool of huge pages, and allocations fail when that is used up.
    pub fn pool_only(&self) -> bool {
        self.huge() == HugePages::Pool && self.word(Setting::PoolOnly) != 0
    }

    /// Milliseconds that free memory waits for its next use.
    pub fn delay(&self) -> u32 {
        self.word(Setting::Delay) as u32
    }

    /// Sets how long free memory waits.
    pub fn set_delay(&self, milliseconds: u32) {
        self.set_word(Setting::Delay, milliseconds as usize);
    }

    /// Limit on the bytes of free memory that wait; what exceeds it goes back before its time. `None`: a quarter of the
    /// memory limit.
    pub fn bytes(&self) -> Option<usize> {
        Some(self.word(Setting::Bytes)).filter(|bytes| *bytes != AUTO)
    }

    /// Sets the limit on free memory that waits.
    pub fn set_bytes(&self, bytes: Option<usize>) {
        self.set_word(Setting::Bytes, bytes.map_or(AUTO, |bytes| bytes.min(AUTO - 1)));
    }

    /// Whether new memory is hardened, see `harden.rs`.
    #[inline]
    pub fn harden(&self) -> bool {
        self.word(Setting::Harden) != 0
    }

    /// Sets whether new memory is hardened. Heaps keep their caches until `Allocator::harden`.
    pub fn set_harden(&self, harden: bool) {
        self.set_word(Setting::Harden, harden.into());
    }

    /// Whether an error of the program ends it without a message.
    pub fn is_quiet(&self) -> bool {
        self.quiet.load(Ordering::Relaxed) != 0
    }

    /// Sets whether an error of the program ends it without a message.
    pub fn set_quiet(&self, quiet: bool) {
        self.quiet.store(quiet.into(), Ordering::Relaxed);
    }

    /// Whether zeroed blocks are always cleared as a whole.
    #[inline]
    pub fn zero_always(&self) -> bool {
        self.word(Setting::ZeroAlways) != 0
    }

    /// Sets whether zeroed blocks are always cleared as a whole.
    pub fn set_zero_always(&self, always: bool) {
        self.set_word(Setting::ZeroAlways, always.into());
    }

    /// Size from which on blocks go back to the system as soon as they are freed; `usize::MAX`: none do.
    #[inline]
    pub fn mmap_threshold(&self) -> usize {
        self.word(Setting::MmapThreshold)
    }

    /// Sets the size from which on blocks go back as soon as they are freed.
    pub fn set_mmap_threshold(&self, bytes: usize) {
        self.set_word(Setting::MmapThreshold, bytes);
    }

    /// Whether the limit is a number of bytes for this process.
    #[inline]
    pub fn has_own_limit(&self) -> bool {
        matches!(self.limit(), Limit::Bytes(_))
    }

    /// The memory limit that applies.
    #[inline]
    pub fn limit(&self) -> Limit {
        match self.word(Setting::Limit) {
            OFF => Limit::Off,
            AUTO => Limit::Auto,
            bytes => Limit::Bytes(bytes),
        }
    }

    /// Sets the memory limit that applies.
    pub fn set_limit(&self, limit: Limit) {
        let word = match limit {
            Limit::Off => OFF,
            Limit::Auto => AUTO,
            Limit::Bytes(bytes) => bytes.clamp(OFF + 1, AUTO - 1),
        };
        self.set_word(Setting::Limit, word);
    }

    /// Whether the process ends when it frees an address that is no block of this allocator.
    pub fn foreign_abort(&self) -> bool {
        self.word(Setting::ForeignAbort) != 0
    }

    /// Where the values come from, three bits for each option in the order of the options table.
    pub fn origins(&self) -> u64 {
        self.origins.load(Ordering::Relaxed)
    }

    /// Limit of options whose origins are kept.
    pub const ORIGINS: usize = 21;

    /// Notes that the value of the option at `place` in the table (below [`Policy::ORIGINS`]) comes from `by` (below
    /// 8).
    pub fn set_origin(&self, place: usize, by: u8) {
        let shift = place % Self::ORIGINS * 3;
        let noted = |old| old & !(7 << shift) | u64::from(by & 7) << shift;
        // Never fails, as `noted` returns a value each time.
        let _ = self.origins.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |old| Some(noted(old)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a setting that reads back as another value than was set.
    #[test]
    fn values_come_back() {
        let p = Policy::new();
        for (number, purge) in Purge::ALL.into_iter().enumerate().rev() {
            p.set_purge(purge);
            assert_eq!((p.purge(), purge as usize), (purge, number));
        }
        for (number, huge) in HugePages::ALL.into_iter().enumerate().rev() {
            p.set_huge(huge);
            assert_eq!((p.huge(), huge as usize), (huge, number));
        }
        for limit in [Limit::Off, Limit::Bytes(4096), Limit::Auto] {
            p.set_limit(limit);
            assert_eq!(p.limit(), limit);
            assert_eq!(p.has_own_limit(), limit == Limit::Bytes(4096));
        }
        for (bytes, limit) in [(0, OFF + 1), (usize::MAX, AUTO - 1)] {
            p.set_limit(Limit::Bytes(bytes));
            assert_eq!(p.limit(), Limit::Bytes(limit), "not taken for `Off` or `Auto`");
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
        p.set_word(Setting::ForeignAbort, 1);
        assert!(p.foreign_abort() && !p.harden());
        p.set_word(Setting::ForeignAbort, 0);
        p.set_harden(true);
        assert!(p.harden() && !p.foreign_abort());
        p.set_mmap_threshold(1 << 20);
        assert_eq!(p.mmap_threshold(), 1 << 20);
        p.set_origin(0, 3);
        p.set_origin(7, 7);
        p.set_origin(20, 1);
        p.set_origin(7, 6);
        assert_eq!(p.origins(), 3 | 6 << 21 | 1 << 60);
    }
}
