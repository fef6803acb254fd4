//! CPython's own allocator (obmalloc): arenas of 256 KiB or 1 MiB, cut into pools of 4 or 16 KiB, each with blocks of
//! one size. A pool is recognised by its header:
//!
//! ```c
//! struct pool_header {
//!     uint count; block *freeblock; struct pool_header *nextpool, *prevpool;
//!     uint arenaindex, szidx, nextoffset, maxnextoffset;
//! };                                         /* Objects/obmalloc.c; 48 bytes */
//! ```
//!
//! A pool of size class `i` has blocks of `16 * (i + 1)` bytes (CPython 3.7 and newer on 64 bits), and `maxnextoffset
//! == pool - block`, which distinguishes pools from other memory.

/// Bytes of a pool's header.
pub const HEADER: usize = 48;
/// The sizes of pools: in CPython 3.10 and newer, and in older versions.
pub const POOLS: [u64; 2] = [16 << 10, 4 << 10];

/// A pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Bytes of live blocks.
    pub live: u64,
    /// Bytes of blocks that are free.
    pub free: u64,
}

/// The pool of `size` bytes at `address`, whose header is `front`; `None` if it is not a pool.
pub fn pool(address: u64, size: u64, front: &[u8; HEADER]) -> Option<Pool> {
    let word = |at: usize| u32::from_ne_bytes([front[at], front[at + 1], front[at + 2], front[at + 3]]);
    let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
    let (count, free, class, next, most) =
        (u64::from(word(0)), long(8), word(36), u64::from(word(40)), u64::from(word(44)));
    let block = 16 * (u64::from(class) + 1);
    let capacity = (size - HEADER as u64) / block;
    let first = address + HEADER as u64;
    let inside = free == 0 || ((first..address + size).contains(&free) && (free - first).is_multiple_of(block));
    let linked = long(16) != 0 && long(24) != 0;
    let valid =
        class < 32 && most + block == size && count <= capacity && next >= HEADER as u64 && next <= size + block;
    (valid && inside && (linked || count == capacity))
        .then(|| Pool { live: count * block, free: (capacity - count) * block })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn front(address: u64, count: u32, class: u32, size: u32) -> [u8; HEADER] {
        let mut front = [0; HEADER];
        front[..4].copy_from_slice(&count.to_ne_bytes());
        front[8..16].copy_from_slice(&(address + 48).to_ne_bytes());
        front[16..24].copy_from_slice(&address.to_ne_bytes());
        front[24..32].copy_from_slice(&address.to_ne_bytes());
        front[36..40].copy_from_slice(&class.to_ne_bytes());
        front[40..44].copy_from_slice(&1000u32.to_ne_bytes());
        front[44..48].copy_from_slice(&(size - 16 * (class + 1)).to_ne_bytes());
        front
    }

    /// Catches pools that are not recognised, miscounted blocks, and other memory that is taken for pools.
    #[test]
    fn pools_are_known() {
        let at = 0x7f00_0000_4000;
        let found = pool(at, 16 << 10, &front(at, 3, 1, 16 << 10)).expect("a pool");
        assert_eq!((found.live, found.free), (96, (16336 / 32 - 3) * 32));
        assert!(pool(at, 4 << 10, &front(at, 3, 1, 4 << 10)).is_some());
        assert!(pool(at, 16 << 10, &front(at, 3, 1, 4 << 10)).is_none());
        assert!(pool(at + 0x4000, 16 << 10, &front(at, 3, 1, 16 << 10)).is_none());
        assert!(pool(at, 16 << 10, &front(at, 600, 1, 16 << 10)).is_none());
        assert!(pool(at, 16 << 10, &[0; HEADER]).is_none() && pool(at, 16 << 10, &[0x41; HEADER]).is_none());
    }
}
