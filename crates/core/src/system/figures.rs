//! The figures that observers see: how much memory is where. `observe/publish.rs` computes them, the port shows them.

/// Counts since the process began, or since the fork that made it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Bytes given back to the system, including those that it may take later (`purge=lazy`).
    pub purged: u64,
    /// Bytes of zeroed blocks that the allocator cleared.
    pub cleared: u64,
    /// Bytes of zeroed blocks that it did not clear, as they were known to be zero.
    pub skipped: u64,
}

/// How much memory is where. Bytes unless said otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Clock of these figures, in milliseconds.
    pub clock: u64,
    /// Number of ticks of the purger.
    pub ticks: u64,
    /// The purger: 0 none, 1 a helper thread, 2 the threads that free memory (see `helper::Who`).
    pub purger: u32,
    /// Number of live blocks.
    pub live_blocks: u64,
    /// Usable bytes of live blocks.
    pub live: u64,
    /// Number of blocks in caches.
    pub cached_blocks: u64,
    /// Bytes of blocks in caches.
    pub cached: u64,
    /// Free ranges that wait to be purged.
    pub dirty: u64,
    /// Free ranges that the system may take at any time (MADV_FREE), or refused to take.
    pub lazy: u64,
    /// Free ranges that hold no memory.
    pub clean: u64,
    /// Chunks that are slabs.
    pub slabs: u64,
    /// Free parts of slabs: free blocks, and what is no block: what was never carved, and the rest after the last
    /// block. They may hold memory or not.
    pub slab_free: u64,
    /// Number of large blocks.
    pub large_blocks: u64,
    /// Usable bytes of large blocks.
    pub large: u64,
    /// Number of huge blocks.
    pub huge_blocks: u64,
    /// Usable bytes of huge blocks.
    pub huge: u64,
    /// Number of heaps, including orphans: heaps whose thread has ended.
    pub heaps: u64,
    /// Counts over time.
    pub totals: Totals,
    /// The memory limit when it was last read; 0 if there was none.
    pub memory_limit: u64,
    /// Bytes used of it at that time.
    pub memory_used: u64,
    /// Peak of the bytes of arenas that were taken or dirty.
    pub peak: u64,
    /// Limit up to which waiting memory is kept for the program, see `pages/demand.rs`; less may wait.
    pub held: u64,
}
