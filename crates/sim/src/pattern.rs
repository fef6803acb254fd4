//! The contents of blocks: words that identify the block and the offset. Short blocks are written whole; of long ones
//! both ends, and some in every 4 KiB. Block 0 stands for those that are zeroed and never written.

use neap_core::heap::Block;

/// Blocks up to this size are written whole.
const WHOLE: usize = 1024;
const PAGE: usize = 4096;

fn word(id: u64, offset: usize) -> u64 {
    if id == 0 {
        return 0;
    }
    // Every eighth block starts with the tag of free blocks, which a program may write by chance.
    if offset == 0 && id.is_multiple_of(8) {
        return u64::from(Block::TAG) | (id << 32);
    }
    (id ^ 0x005E_ED0F_7E57).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ offset as u64
}

/// Calls `f` with the offsets of the pattern's words, until it returns false.
fn all(len: usize, mut f: impl FnMut(usize) -> bool) -> bool {
    let len = len / 8 * 8;
    if len <= WHOLE {
        return (0..len).step_by(8).all(f);
    }
    let mut ends = |at: usize| (at..at + 16).step_by(8).all(&mut f);
    let mut parts = (PAGE..len).step_by(PAGE).filter(|&at| at + 32 <= len);
    ends(0) && ends(len - 16) && parts.all(|at| ends(at - 16) && ends(at))
}

/// Writes the pattern of block `id` over `len` bytes.
///
/// # Safety
/// `p` must be valid for writes of `len` bytes, and aligned to 16.
pub unsafe fn write(p: *mut u8, len: usize, id: u64) {
    all(len, |offset| {
        // SAFETY: the word lies in the block.
        unsafe { p.wrapping_add(offset).cast::<u64>().write(word(id, offset)) };
        true
    });
}

/// Offset of the first word in `len` bytes at `p` that is not that of block `id`, which had `written` bytes. The block
/// may have moved by a multiple of 16.
///
/// # Safety
/// `p` must be valid for reads of `len` bytes, and aligned to 16.
pub unsafe fn first_wrong(p: *const u8, len: usize, written: usize, id: u64) -> Option<usize> {
    let mut wrong = None;
    all(written, |offset| {
        // SAFETY: the word lies in the first `len` bytes.
        let right = offset + 8 > len || unsafe { p.wrapping_add(offset).cast::<u64>().read() } == word(id, offset);
        if !right {
            wrong = Some(offset);
        }
        right
    });
    wrong
}
