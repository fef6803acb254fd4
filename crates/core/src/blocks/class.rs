//! Size classes: which block sizes exist, and which one serves a request.
//!
//! Sixteen-byte steps up to 128 bytes, then eight classes for each doubling up to [`MAX_SMALL`]. All sizes are
//! multiples of 16, so every block is aligned to 16 bytes. The waste inside a block is below 1/8 of the block for
//! every request above 128 bytes (test `waste_is_bounded` prints the table).
//!
//! Class 0 is not a class: the page map has it for every chunk that is not a slab.

use crate::CHUNK;
use crate::pages::layout;

/// Number of classes, class 0 included.
pub const CLASSES: usize = 73;
/// Bytes of the largest block in a slab; larger requests are large blocks.
pub const MAX_SMALL: usize = 32 * 1024;
/// Requests up to this size are looked up in [`SMALL_CLASS`].
pub const MAX_TABLE: usize = 1024;
/// The first class whose blocks are at least as long as an OS page of 4 KiB. Once a program asks for zeroed blocks of
/// such a class, its heap has no cache for that class: blocks go straight from and to their slabs. Tags and
/// links of a cache would touch OS pages that the program never touched.
pub const FIRST_PAGED: usize = of(4096);
/// The first class of which a slab has so few blocks that their bits lie in a table of their own (`layout.rs`).
pub const FIRST_FEW: usize = of(CHUNK / (64 * layout::FEW_WORDS));
/// Bytes of the smallest block: a free block holds a tag and a link.
pub const MIN_BLOCK: usize = layout::LEAST_BLOCK;

/// Block size of each class in bytes; 0 for class 0.
pub const SIZE: [u32; CLASSES] = sizes();
/// `ceil(2^32 / size)` of each class: `offset * RECIPROCAL` is the block index in its upper 32 bits, and its lower
/// 32 bits are below 2^16 exactly if the offset is a multiple of the size (for offsets below [`CHUNK`]).
pub const RECIPROCAL: [u32; CLASSES] = reciprocals();
/// Number of blocks in a slab of each class. A table, as a division would take as long as the rest of a free.
const CAPACITY: [u16; CLASSES] = capacities();
/// Class of each request up to [`MAX_TABLE`] bytes.
pub const SMALL_CLASS: [u8; MAX_TABLE + 1] = small_classes();

/// Returns [`SIZE`].
const fn sizes() -> [u32; CLASSES] {
    let mut t = [0; CLASSES];
    let mut i = 1;
    while i <= 8 {
        t[i] = i as u32 * 16;
        i += 1;
    }
    while i < CLASSES {
        let base = 128u32 << ((i - 9) / 8);
        t[i] = base + base / 8 * ((i - 9) % 8 + 1) as u32;
        i += 1;
    }
    t
}

/// Returns [`RECIPROCAL`].
const fn reciprocals() -> [u32; CLASSES] {
    let mut t = [0; CLASSES];
    let mut i = 1;
    while i < CLASSES {
        t[i] = ((1u64 << 32).div_ceil(SIZE[i] as u64)) as u32;
        i += 1;
    }
    t
}

/// Returns [`CAPACITY`].
const fn capacities() -> [u16; CLASSES] {
    let mut t = [0; CLASSES];
    let mut i = 1;
    while i < CLASSES {
        t[i] = (CHUNK as u32 / SIZE[i]) as u16;
        i += 1;
    }
    t
}

/// Returns [`SMALL_CLASS`].
const fn small_classes() -> [u8; MAX_TABLE + 1] {
    let mut t = [1; MAX_TABLE + 1];
    let mut size = 1;
    let mut class = 1;
    while size <= MAX_TABLE {
        if size > SIZE[class] as usize {
            class += 1;
        }
        t[size] = class as u8;
        size += 1;
    }
    t
}

/// Returns the class that serves `size` bytes (at most [`MAX_SMALL`]). Constant time.
#[inline]
pub const fn of(size: usize) -> usize {
    debug_assert!(size <= MAX_SMALL);
    if size <= 128 {
        let steps = size.div_ceil(16);
        return if steps == 0 { 1 } else { steps };
    }
    let s = size - 1;
    let log = s.ilog2() as usize;
    9 + (log - 7) * 8 + ((s >> (log - 3)) & 7)
}

/// Returns the smallest class of at least `size` bytes whose blocks are all aligned to `align` (a power of two), or
/// `None` if only a large block can serve it. At most eight steps.
#[inline]
pub fn of_aligned(size: usize, align: usize) -> Option<usize> {
    if size > MAX_SMALL || align > MAX_SMALL {
        return None;
    }
    let mut class = of(size.max(align));
    while class < CLASSES {
        if SIZE[class] as usize & (align - 1) == 0 {
            return Some(class);
        }
        class += 1;
    }
    None
}

/// Whether `offset` in a slab of `class` is the start of a block.
#[inline]
pub fn is_start(offset: usize, class: usize) -> bool {
    (offset as u32).wrapping_mul(RECIPROCAL[class]) >> 16 == 0
}

/// Returns the index of the block at `p` in its slab of `class`.
#[inline(always)]
pub fn index(p: *const u8, class: usize) -> u32 {
    let offset = (p.addr() & (CHUNK - 1)) as u64;
    ((offset * u64::from(RECIPROCAL[class])) >> 32) as u32
}

/// Number of blocks in a slab of this class.
#[inline]
pub const fn capacity(class: usize) -> u32 {
    CAPACITY[class] as u32
}

// `is_start` needs `RECIPROCAL * r >= 2^16` for every remainder r, which is true for sizes below 2^16.
const _: () = assert!(SIZE[CLASSES - 1] as usize == MAX_SMALL, "CLASSES must end at MAX_SMALL");
const _: () = assert!(MAX_SMALL < CHUNK, "a slab must hold a block of the largest class");

#[cfg(test)]
mod tests {
    use super::*;
    use std::println;

    /// Catches a class whose block is smaller than the request, or not the smallest that fits.
    #[test]
    #[cfg_attr(miri, ignore = "arithmetic without pointers, in loops that are long to Miri")]
    fn smallest_fitting_class() {
        for size in 0..=MAX_SMALL {
            let c = of(size);
            assert!(SIZE[c] as usize >= size);
            assert!(c == 1 || (SIZE[c - 1] as usize) < size, "size {size} class {c}");
            if let Some(&entry) = SMALL_CLASS.get(size) {
                assert_eq!(entry as usize, c);
            }
        }
    }

    /// Catches a table that wastes more than the documented eighth above 128 bytes.
    #[test]
    fn waste_is_bounded() {
        for c in 1..CLASSES {
            let smallest = SIZE[c - 1] as usize + 1;
            let waste = SIZE[c] as usize - smallest;
            let share = waste as f64 / SIZE[c] as f64;
            println!("class {c:2}: {:5} bytes, worst waste {waste:4} ({:4.1} %)", SIZE[c], share * 100.0);
            assert!(SIZE[c] <= 128 || share < 0.125);
        }
    }

    /// Catches a reciprocal for which `free` would take an interior pointer for a block, or the other way round.
    #[test]
    #[cfg_attr(miri, ignore = "arithmetic without pointers, in loops that are long to Miri")]
    fn reciprocal_is_exact() {
        for c in 1..CLASSES {
            for off in 0..CHUNK as u32 {
                let product = off as u64 * RECIPROCAL[c] as u64;
                assert_eq!((product >> 32) as u32, off / SIZE[c]);
                assert_eq!((product as u32) >> 16 == 0, off % SIZE[c] == 0, "class {c} offset {off}");
            }
        }
    }

    /// Catches an aligned request that gets a class with unaligned blocks.
    #[test]
    #[cfg_attr(miri, ignore = "arithmetic without pointers, in loops that are long to Miri")]
    fn aligned_classes() {
        for shift in 0..=15 {
            let align = 1usize << shift;
            for size in (0..=MAX_SMALL).step_by(7) {
                if let Some(c) = of_aligned(size, align) {
                    assert!(SIZE[c] as usize >= size && (SIZE[c] as usize).is_multiple_of(align));
                } else {
                    panic!("size {size} align {align} must be small");
                }
            }
        }
    }

    /// Catches an aligned request that gets a larger class than it needs, or none, at both ends of the table.
    #[test]
    fn aligned_classes_are_the_smallest() {
        for size in [0, 1, 16, 17, 100, 128, 129, 1000, 1025, 5000, MAX_SMALL - 1, MAX_SMALL] {
            for align in (0..=15).map(|shift| 1usize << shift) {
                let fits = |&c: &usize| SIZE[c] as usize >= size && (SIZE[c] as usize).is_multiple_of(align);
                assert_eq!(of_aligned(size, align), (1..CLASSES).find(fits), "{size} aligned to {align}");
            }
        }
        assert_eq!([of_aligned(MAX_SMALL + 1, 16), of_aligned(1, 2 * MAX_SMALL)], [None, None]);
    }
}
