//! Misuse and correct use are told apart: each misuse ends the process with its message, and nothing else does.

use neap_core::heap::{Block, Mine};
use neap_core::{Allocator, CHUNK, Heap, class};
use neap_coretest::calls::{fill, free, hardened, malloc, settle, system, thread};
use neap_coretest::{Call, Config, Fake, slot};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// An allocator and two heaps of it.
struct Two {
    a: Box<Allocator<Fake>>,
    own: Mine<'static>,
    other: Mine<'static>,
}

/// Runs `test` with and without caches, with and without a page map.
fn each(test: impl Fn(Two)) {
    for cached in [true, false] {
        for missing in [vec![], vec![Call::ReserveZeros]] {
            let a = Box::new(Allocator::new(Fake::new(Config { missing, ..Config::default() })));
            let (own, other) =
                (a.acquire(cached).expect("memory for a heap"), a.acquire(cached).expect("memory for a heap"));
            test(Two { a, own, other });
        }
    }
}

impl Two {
    fn malloc(&self, size: usize) -> *mut u8 {
        slot::malloc(&self.a, self.own, size)
    }

    fn free(&self, heap: Mine<'static>, p: *mut u8) {
        // SAFETY: the heap is this test's; a wrong pointer is what the test is about.
        unsafe {
            assert_eq!(slot::free(&self.a, heap, p), Ok(()), "{p:p} is foreign");
        }
    }

    /// The message with which freeing `p` ends.
    fn line(&self, heap: Mine<'static>, p: *mut u8) -> String {
        let end = catch_unwind(AssertUnwindSafe(|| self.free(heap, p))).expect_err("the misuse is seen");
        *end.downcast::<String>().expect("a line")
    }
}

/// Catches an undetected double free: by the owner, by another thread, after other frees.
#[test]
fn double_free() {
    each(|t| {
        for size in [1, 100, 1024, 5000, 32768] {
            for (first, second) in [(t.own, t.own), (t.other, t.other), (t.own, t.other), (t.other, t.own)] {
                // Neither the first block of a slab nor the only one.
                let [_, p, later, last] = [(); 4].map(|()| t.malloc(size));
                t.free(first, p);
                // It is not the newest one in a cache.
                t.free(first, later);
                t.free(first, last);
                let line = t.line(second, p);
                assert!(line.starts_with(&format!("neap: double free of {p:p}")), "{line}");
            }
        }
    });
}

/// Catches the same for large blocks.
#[test]
fn double_free_of_a_large_block() {
    each(|t| {
        let p = t.malloc(100_000);
        t.free(t.own, p);
        let line = t.line(t.own, p);
        assert!(line.starts_with(&format!("neap: double free of {p:p} (102400-byte block")), "{line}");
    });
}

/// Catches a message that names a block where none was, or the wrong call, for a pointer into a free large block.
#[test]
fn free_memory() {
    each(|t| {
        let p = t.malloc(200_000);
        t.free(t.own, p);
        let p = p.wrapping_add(65_536);
        let line = t.line(t.own, p);
        let wanted = format!("neap: double free of {p:p}, or never allocated: it lies in free memory (by thread ");
        assert!(line.starts_with(&wanted), "{line}");
        // SAFETY: a wrong pointer is what the test is about.
        let ask = || unsafe { t.a.usable_size(t.own, neap_core::misuse::Call::UsableSize, p) };
        let end = catch_unwind(AssertUnwindSafe(ask)).expect_err("the misuse is seen");
        let line = *end.downcast::<String>().expect("a line");
        let wanted = format!("neap: malloc_usable_size of {p:p}, which lies in free memory (by thread ");
        assert!(line.starts_with(&wanted), "{line}");
    });
}

/// Catches a pointer into a block that passes as a block.
#[test]
fn interior_pointer() {
    each(|t| {
        for (size, inside) in [(16, 8), (100, 16), (1024, 512), (100_000, 4096), (200_000, 65536)] {
            let p = t.malloc(size).wrapping_add(inside);
            let line = t.line(t.own, p);
            assert!(line.starts_with(&format!("neap: free of {p:p}, which is not the start of a block")), "{line}");
            assert!(line.contains(&format!(", {inside} bytes inside)")), "{line}");
        }
    });
}

/// Catches a check that takes program data for a free block: a list whose nodes begin with the value of the tag, freed
/// from its end, by the owner or by another thread.
#[test]
fn data_like_a_free_block() {
    each(|t| {
        for (first, second) in [(t.own, t.own), (t.other, t.own), (t.own, t.other), (t.other, t.other)] {
            let (node, end) = (t.malloc(16), t.malloc(16));
            t.free(first, end);
            // SAFETY: the node is live.
            unsafe {
                node.cast::<u64>().write(u64::from(Block::TAG));
                node.cast::<*mut u8>().add(1).write(end);
            }
            t.free(second, node);
        }
    });
}

/// Catches a heap that hands out a block that was written after its free.
#[test]
fn write_after_free() {
    let t = Two { a: Box::new(Allocator::new(Fake::new(Config::default()))), own: Mine::none(), other: Mine::none() };
    let t = Two { own: t.a.acquire(true).expect("memory for a heap"), ..t };
    let p = t.malloc(64);
    t.free(t.own, p);
    // SAFETY: the memory is there; that the block is free is what the test is about.
    unsafe { p.cast::<u64>().write(7) };
    let end = catch_unwind(AssertUnwindSafe(|| t.malloc(64))).expect_err("the write was not seen");
    let line = *end.downcast::<String>().expect("a line");
    assert!(line.starts_with(&format!("neap: corrupted free block {p:p} (64-byte block)")), "{line}");
}

/// Catches the same on an OS page that went back to the system after the free.
#[test]
fn write_after_free_and_purge() {
    let a = system(Config { purger: true, ..Config::default() });
    let t = thread(&a);
    let (_kept, gone): (Vec<_>, Vec<_>) = fill(&a, &t, 2048, 1 << 20).into_iter().partition(|p| p.addr() & 4096 == 0);
    gone.iter().for_each(|&p| free(&a, &t, p));
    settle(&a);
    // SAFETY: the memory is there; that the blocks are free is what the test is about.
    gone.iter().for_each(|p| unsafe { p.cast::<u64>().write(7) });
    let end = catch_unwind(AssertUnwindSafe(|| malloc(&a, &t, 2048))).expect_err("the write was not seen");
    let line = *end.downcast::<String>().expect("a line");
    assert!(line.starts_with("neap: corrupted free block ") && line.contains(" (2048-byte block)"), "{line}");
}

/// Catches an allocator that accepts a foreign pointer as its own.
#[test]
fn foreign_pointer() {
    each(|t| {
        let mut mine = [0u64; 32];
        let _keep = t.malloc(100);
        let p = mine.as_mut_ptr().cast();
        // SAFETY: a foreign pointer is allowed.
        unsafe {
            assert!(!Heap::free(t.own.id(), &t.a.map, p));
            assert!(t.a.free_after_miss(t.own, p).is_err());
            // Nor is NULL a misuse.
            assert!(!Heap::free(t.own.id(), &t.a.map, core::ptr::null_mut()));
            assert_eq!(t.a.free_after_miss(t.own, core::ptr::null_mut()), Ok(()));
        }
    });
}

/// Catches a message that calls neap's own memory, or the memory behind a handler's block, part of a block.
#[test]
fn memory_that_is_no_blocks() {
    each(|t| {
        let p = t.own.id().cast::<u8>();
        let line = t.line(t.own, p);
        assert!(line.starts_with(&format!("neap: free of {p:p}, which neap did not allocate")), "{line}");
        let long = t.a.malloc_reentrant(250_000, 16, false);
        t.free(t.own, long);
        let short = t.a.malloc_reentrant(100_000, 16, false);
        assert_eq!(short, long, "the first of these chunks");
        for chunks in [2, 3] {
            let p = short.wrapping_add(chunks << 16);
            let line = t.line(t.own, p);
            assert!(line.starts_with(&format!("neap: double free of {p:p}, or never allocated")), "{line}");
        }
    });
}

/// Catches a double free that is undetected in every second slab: by another thread, of a block in its owner's cache.
#[test]
fn double_free_in_each_slab() {
    each(|t| {
        let blocks: Vec<_> = (0..2000).map(|_| t.malloc(112)).collect();
        let some: Vec<_> = blocks.into_iter().skip(100).step_by(600).collect();
        some.iter().for_each(|&p| t.free(t.own, p));
        for p in some {
            let line = t.line(t.other, p);
            assert!(line.starts_with(&format!("neap: double free of {p:p}")), "{line}");
        }
    });
}

/// Catches a double free by another thread that is undetected for one block of a slab: the one before a block of the
/// slab's last OS page in its owner's cache.
#[test]
fn double_free_of_each_block() {
    each(|t| {
        let blocks: Vec<_> = (0..2 * CHUNK / 2048).map(|_| t.malloc(2048)).collect();
        blocks.iter().for_each(|&p| t.free(t.own, p));
        for p in blocks {
            let line = t.line(t.other, p);
            assert!(line.starts_with(&format!("neap: double free of {p:p}")), "{line}");
        }
    });
}

/// Catches a reentrant free or size query of a block that is free in its slab.
#[test]
fn reentrant_calls_with_a_free_block() {
    let a = Box::new(Allocator::new(Fake::new(Config::default())));
    let t = Two { own: a.acquire(false).expect("memory for a heap"), other: Mine::none(), a };
    let [p, _kept] = [(); 2].map(|()| t.malloc(64));
    t.free(t.own, p);
    // SAFETY: a wrong pointer is what the test is about, here and below.
    let free = || unsafe { t.a.free_reentrant(p).is_ok() };
    // SAFETY: as above.
    let ask = || unsafe { t.a.usable_size_reentrant(neap_core::misuse::Call::UsableSize, p).is_some() };
    for (end, start) in [
        (catch_unwind(AssertUnwindSafe(free)), format!("neap: double free of {p:p}")),
        (catch_unwind(AssertUnwindSafe(ask)), format!("neap: malloc_usable_size of {p:p}")),
    ] {
        let line = *end.expect_err("the misuse is seen").downcast::<String>().expect("a line");
        assert!(line.starts_with(&start), "{line}");
    }
}

/// Catches a message that calls memory beyond all that was ever handed out free memory.
#[test]
fn memory_that_was_never_used() {
    each(|t| {
        let p = t.malloc(100_000);
        for chunks in 2..64 {
            let p = p.wrapping_add(chunks * CHUNK);
            // SAFETY: a wrong pointer is what the test is about.
            let end = catch_unwind(AssertUnwindSafe(|| unsafe { t.a.free(t.own, p) }));
            let line = match end {
                // Beyond all committed memory; the port reports it.
                Ok(freed) => {
                    assert!(freed.is_err(), "{p:p} is foreign");
                    continue;
                }
                Err(end) => *end.downcast::<String>().expect("a line"),
            };
            assert!(line.starts_with(&format!("neap: free of {p:p}, which neap did not allocate")), "{line}");
        }
    });
}

/// Catches a double free that is undetected because the program wrote behind the tag of the block.
#[test]
fn double_free_of_a_block_that_was_written() {
    for newer in 0..3 {
        let a = Box::new(Allocator::new(Fake::new(Config::default())));
        let t = Two { own: a.acquire(true).expect("memory for a heap"), other: Mine::none(), a };
        let [p, later, last] = [(); 3].map(|()| t.malloc(64));
        t.free(t.own, p);
        [later, last][..newer.min(2)].iter().for_each(|&q| t.free(t.own, q));
        // SAFETY: the memory is there; that the block is free is what the test is about.
        unsafe { p.cast::<usize>().add(1).write(7) };
        let line = t.line(t.own, p);
        assert!(line.starts_with(&format!("neap: double free of {p:p}")), "{line}");
    }
}

/// Catches a message that names a block where none was, or no block where one was, in memory that was a slab.
#[test]
fn free_memory_of_a_slab() {
    for missing in [vec![], vec![Call::ReserveZeros]] {
        let a = Box::new(Allocator::new(Fake::new(Config { missing, ..Config::default() })));
        let t = Two { own: a.acquire(false).expect("memory for a heap"), other: Mine::none(), a };
        let p = t.malloc(5000);
        assert!(p.addr().is_multiple_of(CHUNK), "the first block of a slab");
        t.free(t.own, p);
        let class = class::of(5000);
        let (size, blocks) = (class::SIZE[class] as usize, class::capacity(class) as usize);
        assert!(blocks * size < CHUNK, "there is room behind the last block");
        for i in [0, blocks - 1] {
            let p = p.wrapping_add(i * size);
            let line = t.line(t.own, p);
            assert!(line.starts_with(&format!("neap: double free of {p:p} ({size}-byte block, by")), "{line}");
        }
        for inside in [16, size - 16, blocks * size] {
            let p = p.wrapping_add(inside);
            let line = t.line(t.own, p);
            assert!(line.starts_with(&format!("neap: double free of {p:p}, or never allocated")), "{line}");
        }
    }
}

/// Catches a live block that counts as free because a cached block was written after its free and links to it:
/// directly, or through a block of another size, of a former slab, or of memory that no allocator handed out.
#[test]
fn what_written_free_blocks_point_to() {
    // SAFETY: the memory is there; that some of it is free is what the test is about.
    let write = |p: *mut u8, tag: u32, link: *mut u8| unsafe {
        p.cast::<u64>().write(tag.into());
        p.cast::<*mut u8>().add(1).write(link);
    };
    for way in 0..4 {
        let a = Box::new(Allocator::new(Fake::new(Config::default())));
        let t = Two {
            own: a.acquire(true).expect("memory for a heap"),
            other: a.acquire(true).expect("memory for a heap"),
            a,
        };
        let ([live, free, written], other_size) = ([(); 3].map(|()| t.malloc(16)), t.malloc(64));
        t.free(t.own, free);
        t.free(t.other, written);
        // A heap without caches releases the slab with its only block.
        let uncached = t.a.acquire(false).expect("memory for a heap");
        let released = t.a.malloc(uncached, 16);
        write(released, Block::TAG, live);
        t.free(uncached, released);
        write(other_size, Block::TAG, live);
        write(live, Block::TAG, free);
        match way {
            0 => write(written, 7, live),
            1 => write(written, Block::TAG, other_size),
            2 => write(written, Block::TAG, released),
            _ => write(written, Block::TAG, core::ptr::without_provenance_mut(CHUNK)),
        }
        t.free(t.own, live);
    }
}

/// Catches a free that crashes: the data of a live block looks like the tag and a link to a block that a hardened slab
/// withholds because it reaches into the guard.
#[test]
fn data_that_point_into_a_guard() {
    let (a, t) = hardened(Config::default());
    let class = class::of(48);
    let size = class::SIZE[class] as usize;
    let first = (CHUNK - a.page_size()).next_multiple_of(size);
    for offset in [first, first + size] {
        let p = malloc(&a, &t, 48);
        // SAFETY: the block is this test's.
        unsafe {
            p.cast::<u64>().write(Block::TAG.into());
            p.cast::<*mut u8>().add(1).write(p.map_addr(|at| (at & !(CHUNK - 1)) + offset));
        }
        free(&a, &t, p);
    }
}
