//! The properties of a fake system, which a test chooses.

use super::Call;
use neap_core::os::Memory;
use std::ops::Range;

/// The properties of a fake system.
#[derive(Clone, Debug)]
pub struct Config {
    /// Size of an OS page: 4, 16 or 64 KiB.
    pub page_size: usize,
    /// Limit on the bytes of address space that are taken, if any.
    pub address_limit: Option<usize>,
    /// Limit on the reservations at a chosen address, if any: blocks that do not fit these become huge.
    pub reservations: Option<u64>,
    /// Result of [`neap_core::Os::places`], if not the default.
    pub places: Option<Range<usize>>,
    /// Features that this system lacks: these calls always fail. With [`Call::Reserve`] among them, it never grants a
    /// chosen address; with [`Call::ReserveZeros`], there is no page map.
    pub missing: Vec<Call>,
    /// Limit on the runs that one call of [`neap_core::Os::touched`] reports, beside the length of the caller's array.
    pub touched_runs: Option<usize>,
    /// Initial result of [`neap_core::Os::memory`].
    pub memory: Option<Memory>,
    /// Result of [`neap_core::sync::Threads::start_helper`]: true if the test calls `tick` from then on, false if it
    /// does not.
    pub purger: bool,
    /// Result of [`neap_core::Os::has_huge_pages`].
    pub huge: bool,
    /// True if the system also gives huge pages where they were not requested.
    pub unasked_huge: bool,
    /// Number of 2 MiB pages in the pool ([`neap_core::Os::pool_page`]), and whether all memory must come from it.
    pub pool: Option<(usize, bool)>,
    /// Seed of [`neap_core::Os::random`] and of random faults.
    pub seed: u64,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            page_size: 4096,
            address_limit: None,
            reservations: None,
            places: None,
            missing: Vec::new(),
            touched_runs: None,
            memory: None,
            purger: false,
            huge: false,
            unasked_huge: false,
            pool: None,
            seed: 1,
        }
    }
}
