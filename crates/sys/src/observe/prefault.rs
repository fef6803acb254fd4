//! Option `prefault`: its text, and what it did when the program started, for the counters page.

use crate::observe::once::AtStart;
use core::sync::atomic::{AtomicU64, Ordering};
use neap_core::text::Text;

/// What was made resident, and what it cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prefaulted {
    /// Bytes that are resident now.
    pub bytes: u64,
    /// Page faults that the kernel counted for it.
    pub faults: u64,
    /// The time that it took.
    pub microseconds: u64,
}

/// A copy, because a program may overwrite its environment. In a section apart from the data that each start writes,
/// because it is long.
#[unsafe(link_section = ".sbss.neap")]
static TEXT: AtStart<Text<4096>> = AtStart::new(Text::new());

/// Notes the option's text; false if it is too long.
///
/// # Safety
/// To be called once, while the process has one thread.
pub unsafe fn set_text(text: &[u8]) -> bool {
    // SAFETY: as the caller promises.
    unsafe { TEXT.change(|copy| copy.append(text)) }
}

/// The option's text; empty: it is not set.
pub fn text() -> &'static [u8] {
    TEXT.get().bytes()
}

/// What was done at the start; all zero in the child of a fork, which did nothing (`space.rs`).
#[derive(Debug)]
pub struct Done([AtomicU64; 3]);

impl Done {
    /// Nothing was done.
    pub const fn new() -> Done {
        Done([const { AtomicU64::new(0) }; 3])
    }

    /// Notes what was done.
    pub fn note(&self, done: Prefaulted) {
        // Relaxed: the numbers stand for themselves.
        self.0
            .iter()
            .zip([done.bytes, done.faults, done.microseconds])
            .for_each(|(to, from)| to.store(from, Ordering::Relaxed));
    }

    /// What was noted.
    pub fn noted(&self) -> Prefaulted {
        let [bytes, faults, microseconds] = self.0.each_ref().map(|number| number.load(Ordering::Relaxed));
        Prefaulted { bytes, faults, microseconds }
    }
}
