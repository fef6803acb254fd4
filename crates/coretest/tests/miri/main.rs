//! Short histories of calls under Miri, which detects accesses to memory that is invalid or uninitialised, data races,
//! and values that weak memory allows: `cargo xtask miri`. A native build has no tests here: arenas would need memory
//! of their own.
//!
//! Miri's schedule and the values of racing loads follow its seed, so each test runs with many seeds.
#![cfg(miri)]

mod os;

use neap_core::Allocator;
use neap_coretest::{Owner, slot};
use os::Plain;
use std::sync::Barrier;
use std::sync::mpsc::channel;

type Shared = Allocator<Plain>;

/// A live block on its way between threads.
#[derive(Clone, Copy)]
struct Block {
    p: *mut u8,
    size: usize,
    id: u64,
}

// SAFETY: the holder of the value owns the block.
unsafe impl Send for Block {}

fn allocator(os: Plain) -> Box<Shared> {
    Box::new(Allocator::new(os))
}

/// The offsets at which a block is written and checked: its ends, and some between. Whole blocks would take most of the
/// time.
fn places(size: usize) -> impl Iterator<Item = usize> {
    (0..size).step_by(1021).chain([size - 1])
}

/// The byte of block `id` at this offset.
fn byte(id: u64, place: usize) -> u8 {
    (id as usize * 31 + place * 7) as u8 | 1
}

fn write(b: Block) {
    // SAFETY: the block is this thread's.
    places(b.size).for_each(|i| unsafe { b.p.add(i).write(byte(b.id, i)) });
}

fn check(b: Block) {
    // SAFETY: the block is this thread's.
    let same = |i: usize| unsafe { b.p.add(i).read() } == byte(b.id, i);
    assert!(places(b.size).all(same), "contents changed");
}

fn malloc(a: &Shared, own: &Owner, size: usize, id: u64) -> Block {
    let p = own.with(a, |heap| slot::malloc(a, heap, size));
    assert!(!p.is_null());
    let b = Block { p, size, id };
    write(b);
    b
}

fn free(a: &Shared, own: &Owner, b: Block) {
    check(b);
    // SAFETY: the block is this thread's, and the heap is lent by it.
    assert_eq!(own.with(a, |heap| unsafe { slot::free(a, heap, b.p) }), Ok(()));
}

/// Catches reads of uninitialised memory, pointers beyond their memory, and aliased references in the calls of one
/// thread: small, large and huge blocks, zeroed, resized, aligned, and freed.
#[test]
fn one_thread() {
    let a = allocator(Plain::new(true));
    let own = Owner::new(&a, true, true).expect("a heap");
    let mut blocks = Vec::new();
    for (id, size) in [1, 16, 48, 200, 1024, 5000, 20_000, 40_000, 70_000, 1, 48].into_iter().enumerate() {
        blocks.push(malloc(&a, &own, size, id as u64));
    }
    // SAFETY: the heap is lent by this thread; blocks are new or its own.
    unsafe {
        for size in [64, 3000, 9000, 100_000] {
            let p = own.with(&a, |heap| a.calloc(heap, size));
            assert!(places(size).all(|i| p.add(i).read() == 0));
            blocks.push(Block { p, size, id: 7 });
            write(blocks[blocks.len() - 1]);
        }
        let p = own.with(&a, |heap| a.malloc_aligned(heap, 100, 4096, false));
        assert_eq!(p.addr() % 4096, 0);
        blocks.push(Block { p, size: 100, id: 9 });
        write(blocks[blocks.len() - 1]);
        for b in blocks.iter_mut().filter(|b| b.size < 50_000) {
            let old =
                a.usable_size(neap_core::heap::Mine::none(), neap_core::misuse::Call::UsableSize, b.p).expect("known");
            b.p = own.with(&a, |heap| a.realloc(heap, b.p, old, b.size + 100));
            check(*b);
        }
    }
    for b in blocks {
        free(&a, &own, b);
    }
    own.abandon(&a);
    a.purge();
    // SAFETY: no thread uses it.
    unsafe { a.validate(neap_core::valid::Depth::Bits) }.expect("valid");
}

/// Catches a block whose contents are stale for the thread that receives it, and a remote free whose memory the owner
/// reuses too early.
#[test]
fn blocks_change_hands() {
    let a = allocator(Plain::new(false));
    let (to, from) = channel::<Block>();
    std::thread::scope(|scope| {
        let a = &*a;
        scope.spawn(move || {
            let own = Owner::new(a, true, true).expect("a heap");
            for id in 0..12 {
                to.send(malloc(a, &own, 8192, id)).expect("there is a receiver");
            }
            // Meanwhile collects what the other thread freed.
            for id in 0..6 {
                let b = malloc(a, &own, 8192, 100 + id);
                free(a, &own, b);
            }
            drop(to);
            own.abandon(a);
        });
        scope.spawn(move || {
            // No caches: each free goes to the slab.
            let own = Owner::new(a, false, true).expect("a heap");
            from.iter().for_each(|b| free(a, &own, b));
            own.abandon(a);
        });
    });
    // SAFETY: all threads have ended.
    unsafe { a.validate(neap_core::valid::Depth::Bits) }.expect("valid");
}

/// Catches an orphan that two threads use, and one whose last writes its adopter does not see.
#[test]
fn threads_end() {
    let a = allocator(Plain::new(false));
    let start = Barrier::new(2);
    std::thread::scope(|scope| {
        let (a, start) = (&*a, &start);
        for n in 0..2 {
            scope.spawn(move || {
                start.wait();
                for round in 0..3 {
                    let own = Owner::new(a, round % 2 == 0, true).expect("a heap");
                    let b = malloc(a, &own, 20_000 + n, n as u64);
                    let c = malloc(a, &own, 64, n as u64);
                    own.abandon(a);
                    // Frees into the heap that is an orphan now, or into another thread's.
                    let own = Owner::new(a, false, true).expect("a heap");
                    free(a, &own, b);
                    free(a, &own, c);
                    own.abandon(a);
                }
            });
        }
    });
    // SAFETY: all threads have ended.
    unsafe { a.validate(neap_core::valid::Depth::Bits) }.expect("valid");
}

/// Catches memory that goes back while a thread uses it: handshakes empty caches and purge holes while the heap's
/// thread allocates and frees.
#[test]
fn handshakes_beside_calls() {
    let a = allocator(Plain::new(true));
    let start = Barrier::new(2);
    std::thread::scope(|scope| {
        let (a, start) = (&*a, &start);
        scope.spawn(move || {
            let own = Owner::new(a, true, true).expect("a heap");
            start.wait();
            for round in 0..4 {
                let blocks: Vec<Block> = (0..4).map(|id| malloc(a, &own, 16_384, round * 10 + id)).collect();
                blocks.into_iter().for_each(|b| free(a, &own, b));
            }
            own.abandon(a);
        });
        scope.spawn(move || {
            start.wait();
            for _ in 0..3 {
                a.os.advance(100);
                a.purge();
            }
        });
    });
    // SAFETY: all threads have ended.
    unsafe { a.validate(neap_core::valid::Depth::Bits) }.expect("valid");
}

/// Catches an access to another thread's heap, slabs or blocks that is neither atomic nor made by `sync::peek`: figures
/// and a census are taken while a thread allocates and frees small and large blocks, some of which stay in its caches.
#[test]
fn figures_are_taken() {
    let a = allocator(Plain::new(false));
    let start = Barrier::new(2);
    std::thread::scope(|scope| {
        let (a, start) = (&*a, &start);
        scope.spawn(move || {
            let own = Owner::new(a, true, true).expect("a heap");
            start.wait();
            for round in 0..3 {
                let blocks = [48, 9000, 40_000, 70_000].map(|size| malloc(a, &own, size, round));
                blocks.into_iter().for_each(|b| free(a, &own, b));
            }
            own.abandon(a);
        });
        scope.spawn(move || {
            start.wait();
            for _ in 0..2 {
                assert!(a.figures().heaps <= 1);
                assert!(a.live().0 < 1000);
                assert!(a.held() < 16 << 20);
            }
        });
    });
    let (live, figures) = (a.live(), a.figures());
    assert_eq!((live, figures.live_blocks, figures.cached_blocks), ((0, 0), 0, 0));
}

/// Catches a reentrant call that uses what another thread is changing, or passes a block on before its last use: one
/// thread makes only reentrant calls, the other ordinary ones, and each frees the other's blocks.
#[test]
fn calls_are_reentrant() {
    let a = allocator(Plain::new(false));
    let ((to_reentrant, ordinary), (to_ordinary, reentrant)) = (channel::<Block>(), channel::<Block>());
    // The reentrant reserve exists from the first heap on.
    let own = Owner::new(&a, true, true).expect("a heap");
    std::thread::scope(|scope| {
        let a = &*a;
        scope.spawn(move || {
            for id in 0..6 {
                let size = [48, 8192, 40_000][id % 3];
                let b = Block { p: a.malloc_reentrant(size, 16, false), size, id: id as u64 };
                assert!(!b.p.is_null());
                write(b);
                to_ordinary.send(b).expect("there is a receiver");
                let b = ordinary.recv().expect("as many blocks");
                check(b);
                // SAFETY: the block is this thread's.
                assert_eq!(unsafe { a.free_reentrant(b.p) }, Ok(()));
            }
        });
        for id in 0..6 {
            let b = malloc(a, &own, [8192, 70_000, 48][id % 3], 50 + id as u64);
            to_reentrant.send(b).expect("there is a receiver");
            free(a, &own, reentrant.recv().expect("as many blocks"));
        }
    });
    own.abandon(&a);
    a.purge();
    // SAFETY: all threads have ended.
    let census = unsafe { a.validate(neap_core::valid::Depth::Bits) }.expect("valid");
    assert_eq!((census.small, census.large, census.deferred), (0, 0, 0));
}

/// Catches a heap that a thread uses although a fork took it away, or gets back with stale contents: one thread forks
/// over and over, as seen by the parent, while another allocates.
#[test]
fn forks_begin_and_end() {
    let a = allocator(Plain::new(true));
    let start = Barrier::new(2);
    std::thread::scope(|scope| {
        let (a, start) = (&*a, &start);
        scope.spawn(move || {
            let own = Owner::new(a, true, true).expect("a heap");
            start.wait();
            for id in 0..12 {
                let size = [48, 16_384][id % 2];
                let p = own.try_with(a, |heap| slot::malloc(a, heap, size));
                let b = Block { p: p.unwrap_or_else(|| a.malloc_reentrant(size, 16, false)), size, id: id as u64 };
                write(b);
                check(b);
                // SAFETY: the heap is lent by this thread, and the block its own.
                let freed = own.try_with(a, |heap| unsafe { slot::free(a, heap, b.p) });
                // SAFETY: as above.
                assert_eq!(freed.unwrap_or_else(|| unsafe { a.free_reentrant(b.p) }), Ok(()));
            }
            own.abandon(a);
        });
        scope.spawn(move || {
            let own = Owner::new(a, true, true).expect("a heap");
            start.wait();
            for _ in 0..3 {
                if own.fork_begin(a) == neap_core::fork::Begin::Ready {
                    own.fork_parent(a);
                }
            }
            own.abandon(a);
        });
    });
    a.purge();
    // SAFETY: all threads have ended.
    unsafe { a.validate(neap_core::valid::Depth::Bits) }.expect("valid");
}
