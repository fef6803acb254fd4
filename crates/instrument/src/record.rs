//! The file that a traced program and neap share: a header of two OS pages, then a table of calls. No I/O.
//!
//! The library in the program writes it; `crates/order` makes and reads it. Both compile this source file:
//! `crates/order` has a link to it, because its package must contain the file too.
//!
//! Addresses are offsets from the beginning of the target's first mapping of code, so they are the same in each process
//! and after each exec. Everything is native-endian.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::AtomicU64;

/// The first word of the file.
pub const MAGIC: u64 = u64::from_le_bytes(*b"neapord1");
/// The variable that names the file.
pub const VARIABLE: &str = "NEAP_ORDER_RECORD";
/// The bytes in front of the table.
pub const TABLE_AT: usize = 8192;
/// Room for the target's path.
pub const PATH: usize = 4096;

/// The beginning of the file.
#[repr(C)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: u64,
    /// Number of slots, a power of two.
    pub slots: u64,
    /// The target's inode.
    pub inode: u64,
    /// Its device.
    pub device: [u32; 2],
    /// Whether all processes that have the target are recorded, not only the first.
    pub follow: u32,
    /// The length of `path` in bytes.
    pub path_length: u32,
    /// The process that is recorded, or the first of them; 0 before.
    pub owner: AtomicU32,
    /// The errno of a failure of the library in a process that has the target; 0 for none.
    pub failed: AtomicU32,
    /// When the owner began, in nanoseconds of `CLOCK_MONOTONIC`.
    pub began: AtomicU64,
    /// The file offset of the target's first mapping of code.
    pub offset: AtomicU64,
    /// Number of slots in use; also the index of the next one in the order of first entries.
    pub used: AtomicU64,
    /// Calls that found no slot.
    pub dropped: AtomicU64,
    /// The target, without symbolic links.
    pub path: [u8; PATH],
}

/// Calls of a function from one place.
#[repr(C)]
pub struct Slot {
    /// 0 for an empty slot. The upper half: the return address of the call of the library, which is inside the function
    /// that was entered. The lower half: the caller of that function, 0 for code outside of the target.
    pub key: AtomicU64,
    /// Number of calls. Threads that count at the same moment may lose some.
    pub count: AtomicU64,
    /// Time of the first call, in nanoseconds of `CLOCK_MONOTONIC`.
    pub first: AtomicU64,
    /// Its rank among the slots, from 1 on; 0 if the program was killed before it was written.
    pub order: AtomicU32,
    /// The function that the compiler names.
    pub function: AtomicU32,
}

const _: () = assert!(size_of::<Header>() <= TABLE_AT && size_of::<Slot>() == 32);

/// The size of a file in bytes.
pub const fn size(slots: u64) -> u64 {
    TABLE_AT as u64 + slots * size_of::<Slot>() as u64
}
