//! Walks the heaps of allocators other than neap in the memory of another process, to find which blocks are live and
//! what is free and kept.
//!
//! Nothing here does I/O: memory comes through [`Memory`], files through [`Files`], so a recording works as well as a
//! process. A process is not stopped while it is read, so what is read may be torn. If a walk finds something
//! impossible, it reads that again, then skips it and counts it as [`Split::unsure`]. It ends on any memory, even
//! hostile memory.
//!
//! [`find`] finds every allocator in a process, including several copies of one. The parts of a [`Heap`] whose
//! structures are walked have a [`Split`]; for others only the mappings are known.
#![forbid(unsafe_code)]

mod data;
mod foreign;
mod glibc;
mod google;
mod jemalloc;
mod memory;
mod mimalloc;
mod model;
mod musl;
mod radix;
mod tcmalloc;
mod window;

pub use foreign::{Foreign, exports_malloc, foreign};
pub use memory::find as find_text;
pub use memory::{Files, Mapping, Memory, NoFiles, Run, Unreadable};
pub use model::{Amount, Heap, Part, Pin, Split};

/// All heaps in a process, except those of neap. `mappings` are those of the process, by address.
pub fn find(memory: &dyn Memory, mappings: &[Mapping], files: &dyn Files) -> Vec<Heap> {
    let mut heaps = glibc::find(memory, mappings, files);
    heaps.extend(jemalloc::find(memory, mappings, files));
    heaps.extend(musl::find(memory, mappings, files));
    heaps.extend(tcmalloc::find(memory, mappings, files));
    heaps.extend(google::find(memory, mappings, files));
    heaps.extend(mimalloc::find(memory, mappings, files));
    heaps
}
