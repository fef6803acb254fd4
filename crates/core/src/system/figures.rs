//! What observers are shown: how much memory is where. `observe/publish.rs` takes the sums, the port shows them.

/// What only grows, since the process began or its last fork.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Bytes given back to the system, those included that it was only told of (`purge=lazy`).
    pub purged: u64,
    /// Bytes of zeroed blocks that were cleared.
    pub cleared: u64,
    /// Bytes of zeroed blocks that were known to be zero.
    pub skipped: u64,
}

/// How much memory is where. Bytes unless said otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Clock of these figures, in milliseconds.
    pub clock: u64,
    /// Ticks of the purger so far.
    pub ticks: u64,
    /// Who is the purger: 0 nobody, 1 a helper thread, 2 the threads that free memory.
    pub purger: u32,
    /// Live blocks, a number.
    pub live_blocks: u64,
    /// Usable bytes of live blocks.
    pub live: u64,
    /// Blocks in caches, a number.
    pub cached_blocks: u64,
    /// Bytes of blocks in caches.
    pub cached: u64,
    /// Free ranges that wait to go back.
    pub dirty: u64,
    /// Free ranges that the system was told of, and takes when it wants to, or refused to take.
    pub lazy: u64,
    /// Free ranges that hold no memory.
    pub clean: u64,
    /// Chunks that are slabs.
    pub slabs: u64,
    /// What is free in slabs: free blocks, and what was never carved. Memory may lie there or not.
    pub slab_free: u64,
    /// Large blocks, a number, and their usable bytes.
    pub large_blocks: u64,
    /// Usable bytes of large blocks.
    pub large: u64,
    /// Huge blocks, a number.
    pub huge_blocks: u64,
    /// Usable bytes of huge blocks.
    pub huge: u64,
    /// Heaps: threads that use neap at present or did, a number.
    pub heaps: u64,
    /// Sums over time.
    pub totals: Totals,
    /// The memory limit that was last looked at, and how much was used of it; 0: none was.
    pub memory_limit: u64,
    /// What was used of it.
    pub memory_used: u64,
    /// Most bytes of arenas that were taken or dirty at one time.
    pub peak: u64,
    /// So much of what waits is held for the program, see `pages/demand.rs`; it may be more than waits.
    pub held: u64,
}
