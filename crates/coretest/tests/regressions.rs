//! Histories that once failed, in their shortest form.

use neap_core::Allocator;
use neap_core::policy::{Limit, Purge};
use neap_coretest::history::Choices;
use neap_coretest::{Call, Config, Fake, Model, Op, Owner, Setup};

fn plain() -> Setup {
    Setup::default()
}

/// A large block that moved left the unused end of its last chunk dirty, in a range that counted as clean.
#[test]
fn moved_block_leaves_clean_chunks() {
    let ops = [
        Op::Malloc { heap: 0, size: 256 << 10 },
        Op::Malloc { heap: 0, size: 64 << 10 },
        Op::Free { heap: 0, block: 0 },
        // Uses the dirty range that the first one left, and is shorter.
        Op::Malloc { heap: 0, size: 200 << 10 },
        Op::Realloc { heap: 0, block: 1, size: 400 << 10 },
    ];
    Model::run(&plain(), &ops);
}

/// A short block began with the tag of free blocks, followed by an old link: it counted as free.
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

/// A block of 0 bytes with an alignment that no arena has became a mapping of 0 bytes: no block at all.
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

/// A large block that shrank, or that was freed while a heap collected remote frees, left its memory without a purger:
/// it waited until another call freed something.
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

/// The purger waited for ever to empty the caches of threads that a fork had left behind.
#[test]
fn purger_of_a_child_ends() {
    let a = Allocator::new(Fake::new(Config { purger: true, ..Config::default() }));
    let [mine, lost] = [(); 2].map(|()| Owner::new(&a, true, true).expect("memory for a heap"));
    lost.with(&a, |heap| {
        // SAFETY: the heap is lent by its thread.
        unsafe { a.free(heap, a.malloc(heap, 100)) }.expect("its own block");
        // In the middle of a call: otherwise its heap would be abandoned.
        assert_eq!(mine.fork_begin(&a), neap_core::fork::Begin::Ready);
        mine.fork_child(&a);
    });
    let ends = (0..100).any(|_| {
        a.tick().is_none_or(|wait| {
            a.os.advance(wait.into());
            false
        })
    });
    assert!(ends, "the purger has nothing to do and goes on");
    mine.abandon(&a);
}

/// The purger waited for ever to empty the caches of idle threads where the system has no barrier.
#[test]
fn purger_ends_without_barrier() {
    let mut setup = plain();
    setup.config.missing.push(Call::Barrier);
    let mut model = Model::new(&setup);
    model.step(Op::Malloc { heap: 0, size: 40 });
    model.settle();
    model.finish();
}

/// A slab with fewer than sixteen OS pages never counted as clean after its untouched OS pages were purged.
#[test]
fn slab_of_few_os_pages_is_clean() {
    for page_size in [16384, 65536] {
        let mut setup = plain();
        setup.config.page_size = page_size;
        let mut ops =
            vec![Op::Fill { heap: 0, size: 2048, count: 9 }, Op::Drain { heap: 0, block: 0, count: 8, step: 1 }];
        ops.extend([Op::Purge, Op::Free { heap: 0, block: 0 }, Op::Purge]);
        Model::run(&setup, &ops);
    }
}

/// Under the lazy policy, chunks that were purged already went on waiting, and holes in the slabs of an orphan were
/// purged again and again.
#[test]
fn lazy_purger_ends() {
    let mut setup = plain();
    setup.choices.purge = Purge::Lazy;
    for end in [Op::DropCaches { heap: 0 }, Op::Abandon { heap: 0 }] {
        let mut model = Model::new(&setup);
        let ops = [
            Op::Malloc { heap: 0, size: 1 << 20 },
            Op::Fill { heap: 0, size: 2048, count: 32 },
            Op::Drain { heap: 0, block: 0, count: 30, step: 1 },
            end,
        ];
        ops.into_iter().for_each(|op| model.step(op));
        model.settle();
        model.finish();
    }
}

/// An empty slab that a heap kept as the last of its class moved behind another one in the bin, and stayed when the
/// thread ended.
#[test]
fn kept_slab_behind_another() {
    let choices = Choices { zero_always: true, mmap_threshold: usize::MAX, ..Choices::default() };
    let setup = Setup { cached: false, slots: false, choices, ..plain() };
    let malloc = |heap, size| Op::Malloc { heap, size };
    let free = |block| Op::Free { heap: 0, block };
    let fill = |count| Op::Fill { heap: 0, size: 0, count };
    let ops = [
        vec![malloc(0, 0); 6],
        vec![fill(332)],
        vec![malloc(0, 0); 5],
        vec![free(0), malloc(0, 0), Op::Acquire { cached: true }],
        vec![malloc(0, 0); 3],
        vec![free(0), malloc(7, 30721), malloc(0, 0)],
        vec![Op::Acquire { cached: false }; 2],
        vec![malloc(0, 0), free(0), malloc(0, 0), malloc(0, 0)],
        vec![Op::Calloc { heap: 109, size: 30976 }, free(512), malloc(105, 30976)],
        vec![fill(348), Op::Abandon { heap: 10 }],
    ];
    Model::run(&setup, &ops.concat());
}

/// Without a helper, what a tick took out of the caches of idle threads waited without a purger.
#[test]
fn tick_without_a_helper() {
    let limit = Limit::Bytes(16 << 20);
    let choices = Choices { zero_always: true, mmap_threshold: 131_072, limit, harden: true, ..Choices::default() };
    let config = Config { reservations: Some(2), purger: false, seed: 12529, ..Config::default() };
    let mut ops = vec![Op::Malloc { heap: 0, size: 0 }; 3];
    ops.extend([
        Op::Malloc { heap: 0, size: 14_680_064 },
        Op::Malloc { heap: 0, size: 0 },
        Op::Fill { heap: 0, size: 2048, count: 872 },
        Op::Drain { heap: 127, block: 0, count: 133, step: 3 },
        Op::Free { heap: 0, block: 0 },
        Op::Drain { heap: 0, block: 0, count: 512, step: 1 },
        Op::Free { heap: 0, block: 0 },
        Op::Tick,
    ]);
    Model::run(&Setup { cached: false, config, choices, ..plain() }, &ops);
}

/// The guard behind a large block counted as clean memory, which must be readable.
#[test]
fn guard_is_not_clean() {
    let choices = Choices { harden: true, ..Choices::default() };
    let ops = [Op::Malloc { heap: 0, size: 128 << 10 }, Op::Purge];
    Model::run(&Setup { choices, ..plain() }, &ops);
}
