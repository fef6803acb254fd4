//! Slabs that are populated as a whole: only where growth is proven, and never more than the proof allows.

use neap_core::grow::PROVEN;
use neap_core::os::Memory;
use neap_core::valid::Depth;
use neap_core::{Allocator, CHUNK, class};
use neap_coretest::calls::settle;
use neap_coretest::{Call, Config, Fake, Owner};

type Shared = Allocator<Fake>;

/// More than a program takes before neap reads the memory limit.
const LOOKED: usize = 17 << 20;

fn system(config: Config) -> Box<Shared> {
    Box::new(Allocator::new(Fake::new(Config { purger: true, ..config })))
}

/// A thread that has taken enough for the memory limit to be read.
fn thread(a: &Shared) -> Owner {
    let thread = Owner::new(a, true, true).expect("memory for a heap");
    take(a, &thread, LOOKED);
    thread
}

fn take(a: &Shared, thread: &Owner, size: usize) -> *mut u8 {
    let p = thread.with(a, |heap| a.malloc(heap, size));
    assert!(!p.is_null(), "no block of {size} bytes");
    p
}

fn free(a: &Shared, thread: &Owner, p: *mut u8) {
    // SAFETY: the heap is lent by its thread; the block is this test's.
    thread.with(a, |heap| unsafe { a.free(heap, p) }).expect("a block");
}

fn populated(a: &Shared) -> u64 {
    a.os.faults.count(Call::Populate)
}

/// Takes blocks of `size` bytes that need this many slabs and one block more.
fn grow(a: &Shared, thread: &Owner, size: usize, slabs: u32) -> Vec<*mut u8> {
    let blocks = class::capacity(class::of(size)) * slabs + 1;
    (0..blocks).map(|_| take(a, thread, size)).collect()
}

/// Panics unless every structure is valid and all clean memory is zero.
fn check(a: &Shared) {
    // SAFETY: no other thread uses the allocator.
    unsafe {
        a.validate(Depth::Bits).expect("valid");
        a.for_each_clean(|p, len| assert_eq!(a.os.first_nonzero(p, len), None, "known zero, but is not"));
    }
}

/// A step of xorshift64.
fn step(state: &mut u64) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 16) as usize
}

/// Catches a slab that is populated before growth is proven, and growth that goes unnoticed.
#[test]
fn only_proven_growth() {
    for size in [16, 512, 3072] {
        let a = &*system(Config::default());
        let own = thread(a);
        let mut blocks = grow(a, &own, size, PROVEN - 1);
        assert_eq!(populated(a), 0, "{size}-byte blocks");
        blocks.extend(grow(a, &own, size, 8));
        assert_eq!(populated(a), 8, "{size}-byte blocks");
        check(a);
        blocks.into_iter().for_each(|p| free(a, &own, p));
        own.with(a, |heap| a.purge_with(heap));
        check(a);
        grow(a, &own, size, PROVEN - 1);
        assert_eq!(populated(a), 8, "what was proven once is proven no more");
        own.abandon(a);
    }
}

/// Catches slabs that are populated where that does not pay, or where memory may be short.
#[test]
fn not_everywhere() {
    let near = Memory { limit: 64 << 20, used: 60 << 20, stalled: false };
    let grown = |config: Config, size, harden: bool| {
        let a = system(config);
        if harden {
            a.harden();
        }
        let own = thread(&a);
        grow(&a, &own, size, 2 * PROVEN);
        check(&a);
        own.abandon(&a);
        populated(&a)
    };
    assert_eq!(grown(Config::default(), 512, false), u64::from(PROVEN) + 1);
    assert_eq!(grown(Config { page_size: 16384, ..Config::default() }, 512, false), u64::from(PROVEN) + 1);
    assert_eq!(grown(Config { page_size: 65536, ..Config::default() }, 512, false), 0);
    assert_eq!(grown(Config { memory: Some(near), ..Config::default() }, 512, false), 0);
    let plenty = Memory { limit: 1 << 30, used: 0, stalled: false };
    assert_eq!(grown(Config { memory: Some(plenty), ..Config::default() }, 512, false), u64::from(PROVEN) + 1);
    assert_eq!(grown(Config::default(), 4096, false), 0, "a program may leave OS pages of such blocks alone");
    assert_eq!(grown(Config::default(), 512, true), 0, "hardened blocks are handed out at random");
    let a = system(Config::default());
    let own = Owner::new(&a, true, true).expect("memory for a heap");
    grow(&a, &own, 512, 2 * PROVEN);
    assert_eq!(populated(&a), 0, "the memory limit has not been checked yet");
    own.abandon(&a);
}

/// Catches an allocation that fails because its slab could not be populated, in part or at all.
#[test]
fn failures_are_ignored() {
    for n in 1..8 {
        let a = &*system(Config { seed: n, ..Config::default() });
        a.os.faults.fail_nth(Call::Populate, n);
        let own = thread(a);
        grow(a, &own, 512, PROVEN + 8);
        assert_eq!(populated(a), 9);
        check(a);
        own.abandon(a);
    }
}

/// Catches populated memory that counts as used by the program.
#[test]
fn populated_memory_is_zero() {
    let a = &*system(Config::default());
    let own = thread(a);
    grow(a, &own, 512, PROVEN);
    for _ in 0..1000 {
        // SAFETY: the heap is lent by its thread; the block has 512 bytes.
        let dirty = own.with(a, |heap| unsafe {
            let p = a.calloc(heap, 512);
            a.os.first_nonzero(p, 512)
        });
        assert_eq!(dirty, None);
    }
    own.abandon(a);
}

/// Catches growth that at any time costs more than the allowed share, whatever its classes.
#[test]
fn growth_costs_little() {
    for seed in 1..4 {
        let [with, without] =
            [vec![], vec![Call::Populate]].map(|missing| system(Config { missing, ..Config::default() }));
        let both = [&*with, &*without].map(|a| (a, thread(a)));
        let mut random = seed;
        for i in 0..200_000 {
            let size = 64 + step(&mut random) % 449;
            for (a, own) in &both {
                take(a, own, size);
            }
            if i % 1000 == 0 {
                let [held, needed] = both.each_ref().map(|(a, _)| a.os.usage().present);
                let most = needed + needed / PROVEN as usize;
                assert!(held <= most, "seed {seed}, block {i}: {held} bytes held, {needed} needed");
            }
        }
        assert!(populated(&with) > 50);
        for (a, own) in both {
            own.abandon(a);
        }
    }
}

/// Catches memory that is populated over and over while a program frees and allocates: at most one unneeded slab of
/// each class may be held.
#[test]
fn waste_is_bounded() {
    const SIZES: [usize; 5] = [48, 64, 256, 512, 2048];
    for seed in 1..4 {
        let [with, without] =
            [vec![], vec![Call::Populate]].map(|missing| system(Config { missing, ..Config::default() }));
        let both = [&*with, &*without].map(|a| (a, thread(a)));
        let mut live: Vec<[*mut u8; 2]> = Vec::new();
        let (mut random, mut target) = (seed, 0);
        for i in 0..300_000 {
            if i % 20_000 == 0 {
                target = 2_000 + step(&mut random) % 60_000;
            }
            if live.len() < target {
                let size = SIZES[step(&mut random) % SIZES.len()];
                live.push(both.each_ref().map(|(a, own)| take(a, own, size)));
            } else {
                let blocks = live.swap_remove(step(&mut random) % live.len());
                both.iter().zip(blocks).for_each(|((a, own), p)| free(a, own, p));
            }
            if i % 1000 == 0 {
                let [held, needed] = both.each_ref().map(|(a, _)| a.os.usage().present);
                let most = needed + SIZES.len() * CHUNK;
                assert!(held <= most, "seed {seed}, step {i}: {held} bytes held, {needed} needed");
            }
        }
        assert!(populated(&with) > 50);
        both.iter().for_each(|(a, _)| check(a));
        for (a, own) in both {
            own.abandon(a);
        }
    }
}

/// Catches populated OS pages that were not needed and stay: the one block that is left lies on a slab of which no
/// other block was ever freed.
#[test]
fn what_is_left_behind_goes_back() {
    for size in [16, 512, 3072] {
        let [held, needed] = [vec![], vec![Call::Populate]].map(|missing| {
            let a = &*system(Config { missing, ..Config::default() });
            let own = thread(a);
            let mut blocks = grow(a, &own, size, 2 * PROVEN);
            blocks.pop();
            blocks.into_iter().for_each(|p| free(a, &own, p));
            settle(a);
            check(a);
            let present = a.os.usage().present;
            own.abandon(a);
            present
        });
        // Giving those OS pages back touches an OS page of the remote bits.
        assert!(held <= needed + 4096, "{size}-byte blocks: {held} bytes stay, {needed} where nothing is populated");
    }
}
