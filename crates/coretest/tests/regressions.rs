//! Histories that once failed, shortest form first.

use neap_coretest::{Config, Model, Op, Setup};

fn plain() -> Setup {
    Setup { config: Config::default(), cached: true, fault: 0.0 }
}

/// A large block that moved left the unused end of its last chunk dirty, in a range that was called clean.
#[test]
fn moved_block_leaves_clean_chunks() {
    let ops = [
        Op::Malloc { heap: 0, size: 256 << 10 },
        Op::Malloc { heap: 0, size: 64 << 10 },
        Op::Free { heap: 0, block: 0 },
        // In the dirty range that the first one left, and shorter.
        Op::Malloc { heap: 0, size: 200 << 10 },
        Op::Realloc { heap: 0, block: 1, size: 400 << 10 },
    ];
    Model::run(&plain(), &ops);
}

/// A short block began with the tag of free blocks, and behind it was still a link: it was called free.
#[test]
fn data_like_a_tag() {
    let mut ops = vec![Op::Malloc { heap: 0, size: 0 }; 6];
    ops.extend([
        Op::Drain { heap: 0, block: 0, count: 6, step: 1 },
        Op::Malloc { heap: 0, size: 0 },
        // The eighth block, whose pattern starts with the tag.
        Op::Malloc { heap: 0, size: 256 },
        Op::Realloc { heap: 0, block: 1, size: 5 },
    ]);
    Model::run(&plain(), &ops);
}

/// A block of no bytes with an alignment that no arena has was a mapping of no bytes: no block at all.
#[test]
fn empty_block_with_a_huge_alignment() {
    let ops = [
        Op::Aligned { heap: 0, size: 0, align: 1 << 37, zero: false },
        Op::Aligned { heap: 0, size: 0, align: 1 << 36, zero: true },
    ];
    Model::run(&plain(), &ops);
}

/// A size beyond PTRDIFF_MAX overflowed to 0 bytes when a large block was resized.
#[test]
fn realloc_to_a_size_that_no_system_has() {
    for size in [usize::MAX, usize::MAX - 4096, usize::MAX / 2 + 1] {
        let ops = [Op::Malloc { heap: 0, size: 100_000 }, Op::Realloc { heap: 0, block: 0, size }];
        Model::run(&plain(), &ops);
    }
}

/// A large block that shrank, or that came back where a heap takes in what others freed, left its memory to nobody: it
/// waited until another call freed something.
#[test]
fn memory_that_waits_has_a_purger() {
    let ops = [
        Op::Malloc { heap: 0, size: 8 << 20 },
        Op::Realloc { heap: 0, block: 0, size: 100 << 10 },
        Op::Fill { heap: 0, size: 4096, count: 1000 },
        Op::Drain { heap: 7, block: 0, count: 1001, step: 1 },
        Op::Fill { heap: 0, size: 4096, count: 100 },
    ];
    Model::run(&plain(), &ops);
}
