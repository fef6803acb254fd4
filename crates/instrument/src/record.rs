//! The file that a traced program and neap share: a header of two OS pages, then a table of calls. No I/O.
//!
//! The library in the program writes it; `crates/order` makes and reads it. Both compile this source file:
//! `crates/order` has a link to it, because its package must contain the file too.
//!
//! Addresses are offsets from the beginning of the target's first mapping of code, so that they are the same in each
//! process and after each exec. Everything is native-endian.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::AtomicU64;

/// The first word of the file.
pub const MAGIC: u64 = u64::from_le_bytes(*b"neapord1");
/// The variable with the file's path.
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
    /// How many calls there is room for, a power of two.
    pub slots: u64,
    /// The target's inode.
    pub inode: u64,
    /// Its device.
    pub device: [u32; 2],
    /// Whether all processes that have the target are recorded, rather than the first.
    pub follow: u32,
    /// The bytes of `path`.
    pub path_length: u32,
    /// The process that is recorded, or the first of them; 0 before.
    pub owner: AtomicU32,
    /// Errno of what the library could not do in a process that has the target; 0 for none.
    pub failed: AtomicU32,
    /// When the owner began, in nanoseconds of `CLOCK_MONOTONIC`.
    pub began: AtomicU64,
    /// Where the target's first mapping of code lies in the file.
    pub offset: AtomicU64,
    /// How many slots are in use; the next one's number in the order of first entries.
    pub used: AtomicU64,
    /// Calls that found no room.
    pub dropped: AtomicU64,
    /// The target, without links.
    pub path: [u8; PATH],
}

/// Calls of a function from one place.
#[repr(C)]
pub struct Slot {
    /// 0 for none. In the upper half where the call of the library returns to, which is behind the first byte of the
    /// function that was entered; in the lower half who called that, 0 for code outside of the target.
    pub key: AtomicU64,
    /// How many. Threads that count at the same moment may lose some.
    pub count: AtomicU64,
    /// When the first was, in nanoseconds of `CLOCK_MONOTONIC`.
    pub first: AtomicU64,
    /// Its place among the slots, from 1 on; 0 if the program was killed before it was written.
    pub order: AtomicU32,
    /// The function that the compiler names.
    pub function: AtomicU32,
}

const _: () = assert!(size_of::<Header>() <= TABLE_AT && size_of::<Slot>() == 32);

/// The size of a file in bytes.
pub const fn size(slots: u64) -> u64 {
    TABLE_AT as u64 + slots * size_of::<Slot>() as u64
}
