//! The pattern that tests write into blocks: each word depends on the block and on the offset.
//!
//! Short blocks are written whole; in long ones both ends and a few bytes in every 64 KiB, so that a block of gigabytes
//! costs little.

use neap_core::heap::Block;

/// Blocks up to this size are written whole.
const WHOLE: usize = 64 * 1024;
/// Bytes at both ends of longer blocks.
const END: usize = 1024;
/// Bytes in every `WHOLE` of longer blocks.
const SPOT: usize = 64;
/// Limit on the spots of one block.
const SPOTS: usize = 1024;

fn word(id: u64, offset: usize) -> u64 {
    // Every eighth block starts with the tag of free blocks, as the data of a program may do by chance.
    if offset == 0 && id.is_multiple_of(8) {
        return u64::from(Block::TAG) | (id << 32);
    }
    (id ^ 0x005E_ED0F_7E57).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ offset as u64
}

/// Calls `visit` with the offset of each word of the pattern in a block of `len` bytes, until it returns false. Whole
/// words only.
fn for_each_word(len: usize, mut visit: impl FnMut(usize) -> bool) -> bool {
    let mut part = |from: usize, to: usize| (from..to).step_by(8).all(|offset| offset + 8 > to || visit(offset));
    if len <= WHOLE {
        return part(0, len / 8 * 8);
    }
    let step = (len / SPOTS).next_multiple_of(WHOLE);
    part(0, END)
        && (step..len - END).step_by(step).all(|at| part(at, at + SPOT))
        && part(len / 8 * 8 - END, len / 8 * 8)
}

/// Writes the pattern of block `id` over `len` bytes at `p`.
///
/// # Safety
/// `p` must be valid for writes of `len` bytes, and aligned to 8.
pub unsafe fn write(p: *mut u8, len: usize, id: u64) {
    for_each_word(len, |offset| {
        // SAFETY: the word lies in the block.
        unsafe { p.wrapping_add(offset).cast::<u64>().write(word(id, offset)) };
        true
    });
}

/// Offset of the first wrong word in `len` bytes at `p`, where the pattern of block `id` was written over `written`
/// bytes; `None` if all are right.
///
/// # Safety
/// `p` must be valid for reads of `len` bytes, and aligned to 8.
pub unsafe fn first_wrong(p: *const u8, len: usize, written: usize, id: u64) -> Option<usize> {
    let mut wrong = None;
    for_each_word(written, |offset| {
        // SAFETY: the word lies in the first `len` bytes.
        let right = offset + 8 > len || unsafe { p.wrapping_add(offset).cast::<u64>().read() } == word(id, offset);
        if !right {
            wrong = Some(offset);
        }
        right
    });
    wrong
}
