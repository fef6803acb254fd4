//! A snapshot of the figures: how much memory is where.

use neap_core::figures::Figures;
use neap_sys::{global::NEAP, thread};

macro_rules! stats {
    ($($(#[doc = $doc:literal])* $name:ident: $($from:ident).+,)*) => {
        /// How much memory is where; bytes, unless the name says otherwise. Exact where no other thread allocates or
        /// frees at the time. Fields are added at the end only, and `size` says how many bytes there are.
        #[repr(C)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Stats {
            /// Bytes of this structure that are filled in.
            pub size: usize,
            /// [`VERSION`] of the library that filled it in.
            pub version: u64,
            $($(#[doc = $doc])* pub $name: u64,)*
        }

        impl From<Figures> for Stats {
            fn from(f: Figures) -> Stats {
                Stats {
                    size: size_of::<Stats>(),
                    version: VERSION,
                    $($name: f.$($from).+,)*
                }
            }
        }
    };
}

/// Version of the meaning of [`Stats`]. It grows if a field's meaning changes.
pub const VERSION: u64 = 1;

stats! {
    /// Blocks that the program holds.
    live_blocks: live_blocks,
    /// Their usable bytes.
    live_bytes: live,
    /// Free blocks in the caches of threads.
    cached_blocks: cached_blocks,
    /// Their bytes.
    cached_bytes: cached,
    /// Free ranges that wait to go back to the system.
    dirty_bytes: dirty,
    /// Free ranges that the system may take at any time.
    lazy_bytes: lazy,
    /// Free ranges that hold no memory: addresses.
    clean_bytes: clean,
    /// Chunks that are slabs: small blocks, live, cached and free.
    slab_bytes: slabs,
    /// Bytes of slabs that are neither live nor cached. Part of them holds memory; part never did, or was given back.
    slab_free_bytes: slab_free,
    /// Large blocks, which count as live too.
    large_blocks: large_blocks,
    /// Their usable bytes.
    large_bytes: large,
    /// Huge blocks (mappings of their own), which count as live too.
    huge_blocks: huge_blocks,
    /// Their usable bytes.
    huge_bytes: huge,
    /// Heaps: the greatest number of threads that allocated at one time.
    heaps: heaps,
    /// Address space given back to the system, since the process began or was forked.
    purged_bytes: totals.purged,
    /// Bytes that calloc cleared, since the same time.
    cleared_bytes: totals.cleared,
    /// Bytes that calloc did not need to clear.
    skipped_bytes: totals.skipped,
    /// The memory limit that was last read; 0: none.
    memory_limit: memory_limit,
    /// Bytes of that limit that were used, by all processes that share it.
    memory_used: memory_used,
    /// Most bytes of arenas that were in use or dirty at one time.
    peak_bytes: peak,
}

/// The current figures. Allocates nothing, and takes at most some 100 ns for each heap. All are 0 in a signal handler
/// that interrupted malloc or free.
pub fn read() -> Stats {
    thread::in_call(|_| NEAP.figures()).unwrap_or_default().into()
}
