//! Aligned blocks that come and go: how much memory is held, against what is live.

use neap_coretest::calls::{Shared, free, system, thread, valid};
use neap_coretest::{Config, Owner};

const PAGE: usize = 4096;
/// OS pages of tables and heaps, for blocks that lie together. A block far from all others has up to four of records.
const TABLES: usize = 64;
const LIVE: usize = 40;
const REPLACED: usize = 300;

/// Allocates a block and writes to each of its OS pages, but to at most `touch` bytes; returns it and the bytes that it
/// holds.
fn take(a: &Shared, t: &Owner, size: usize, align: usize, touch: usize) -> (*mut u8, usize) {
    let p = t.with(a, |heap| a.malloc_aligned(heap, size, align, false));
    assert!(!p.is_null() && p.addr().is_multiple_of(align), "{p:?} is not aligned to {align}");
    let held = size.min(touch);
    // SAFETY: the block has `size` bytes.
    (0..held).step_by(PAGE).for_each(|i| unsafe { p.add(i).write(1) });
    (p, held.next_multiple_of(PAGE))
}

/// Replaces blocks of random lengths up to `most` by others; returns the maximum of the memory that was held, and that
/// of the memory of live blocks.
fn replace(align: usize, least: usize, most: usize, touch: usize) -> (usize, usize) {
    let a = system(Config { purger: true, ..Config::default() });
    let t = thread(&a);
    let mut random = 0x2545_F491_4F6C_DD1D_u64;
    let mut below = |n: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % n
    };
    let mut blocks = Vec::new();
    let (mut held, mut live) = (0, 0);
    for i in 0..LIVE + REPLACED {
        if i >= LIVE {
            let (p, _) = blocks.swap_remove(below(LIVE));
            free(&a, &t, p);
        }
        blocks.push(take(&a, &t, least + below(most - least + 1), align, touch));
        if i % 4 == 0 {
            held = held.max(a.os.usage().present);
        }
        live = live.max(blocks.iter().map(|block| block.1).sum());
    }
    valid(&a);
    (held, live)
}

/// Catches the place of an aligned block that no later one of its length gets: memory would grow with each
/// replacement.
#[test]
fn places_of_one_length_are_used_again() {
    let cases = [
        (2 << 20, 2 << 20, usize::MAX),
        (128 << 10, 192 << 10, usize::MAX),
        (512 << 10, 768 << 10, usize::MAX),
        (2 << 20, 3 << 20, usize::MAX),
        (2 << 20, 64, usize::MAX),
        (1 << 30, 64, usize::MAX),
        (64 << 20, 96 << 20, 64 << 10),
    ];
    for (align, size, touch) in cases {
        let (held, live) = replace(align, size, size, touch);
        let most = live + live / 20 + (TABLES + 4 * LIVE) * PAGE;
        assert!(held <= most, "blocks of {size} aligned to {align}: {held} bytes held, {live} live");
    }
}

/// Catches holes of blocks of other lengths that are not used: alone, or with the clean chunks beside them.
#[test]
fn places_of_many_lengths_are_used_again() {
    for align in [128 << 10, 512 << 10, 2 << 20] {
        let (held, live) = replace(align, 64, 4 * align, usize::MAX);
        assert!(held <= live * 3 / 2, "aligned to {align}: {held} bytes held, {live} live");
    }
}
