//! The result: a process has heaps, one for each copy of an allocator; a heap has parts.
//!
//! - **Part**: an arena, or the blocks with their own mappings. Parts of all heaps never overlap.
//! - **Split**: each byte of a part counts once. For all bytes, and separately for the resident ones: `live + cached +
//!   free + top + metadata + unsure` = the part's.
//! - **Kept**: resident OS pages without a live block or a header, which could be given back. Cached blocks do not
//!   count, so kept bytes are never more than those of `free` and `top`.
//! - **Fragmentation**: the other resident free bytes, which share their OS page with a live block or a header.

use std::ops::Range;

/// One copy of an allocator in a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heap {
    /// Its name: `glibc 2.36`, `jemalloc 5.3`, `mimalloc 2`, `mimalloc 3`, `tcmalloc`, `musl`.
    pub allocator: String,
    /// The file whose code it is, as in the list of mappings; none if that is not known.
    pub library: Option<String>,
    /// What it consists of, the largest first. A heap that was found but never used has none.
    pub parts: Vec<Part>,
    /// The environment variable with its settings, if that is not the usual one.
    pub settings: Option<String>,
    /// What is not known, in words for the user.
    pub doubts: Vec<String>,
}

/// A part of a heap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// `main arena`, `arena 3`, `mmapped blocks`, `segments`.
    pub name: String,
    /// Where: whole OS pages in order, not overlapping. What is only reserved (not readable) is left out.
    pub ranges: Vec<Range<u64>>,
    /// Bytes of `ranges`.
    pub bytes: u64,
    /// Bytes that are only reserved, in addition.
    pub reserved_bytes: u64,
    /// Bytes of `ranges` that are resident.
    pub resident_bytes: u64,
    /// Bytes of `ranges` that are swapped out.
    pub swapped_bytes: u64,
    /// The use of its bytes; none if the allocator's structures were not walked.
    pub split: Option<Split>,
}

/// A number of blocks and their bytes, headers and rounding included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// How many blocks.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// How many of the bytes are resident.
    pub resident: u64,
}

/// The use of the bytes of a part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Split {
    /// Blocks that the program has.
    pub live: Amount,
    /// Free blocks in caches of threads and in fastbins: the allocator itself counts them as used.
    pub cached: Amount,
    /// Free blocks, except the last one of the part.
    pub free: Amount,
    /// The free end of the part (glibc's top chunk).
    pub top: Amount,
    /// The allocator's own structures.
    pub metadata: Amount,
    /// Bytes that could not be read, or that changed faster than they could be read.
    pub unsure: Amount,
    /// Kept bytes: resident OS pages that are entirely in free blocks or the top; cached blocks in them are not
    /// counted.
    pub kept_bytes: u64,
    /// Bytes that the allocator's own trim (`malloc_trim(0)`) would give back.
    pub trimmable_bytes: u64,
    /// The largest free block except the top.
    pub largest_free_bytes: u64,
    /// The block that pins the memory below the top.
    pub pin: Option<Pin>,
}

/// The last live block below the top: free memory below it cannot go back when the top shrinks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pin {
    /// Where the block is (what malloc returned).
    pub address: u64,
    /// Its bytes.
    pub bytes: u64,
    /// All free bytes of the part below it.
    pub free_below: u64,
}

impl Amount {
    /// Adds `other`.
    pub fn add(&mut self, other: &Amount) {
        self.blocks = self.blocks.saturating_add(other.blocks);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.resident = self.resident.saturating_add(other.resident);
    }
}

impl Split {
    /// Resident free bytes that are not kept, because their OS pages hold other data too.
    pub fn fragmentation_bytes(&self) -> u64 {
        (self.free.resident + self.top.resident).saturating_sub(self.kept_bytes)
    }

    /// The sum of its amounts.
    pub fn total(&self) -> Amount {
        let mut total = Amount::default();
        for amount in [&self.live, &self.cached, &self.free, &self.top, &self.metadata, &self.unsure] {
            total.add(amount);
        }
        total
    }
}
