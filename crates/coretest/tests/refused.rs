//! Memory that the system refuses to take back because the program locked it: it stays, but keeps nothing else.

use neap_core::CHUNK;
use neap_core::policy::Purge;
use neap_coretest::calls::{self, Shared, fill, free, malloc, rest, settle, thread};
use neap_coretest::{Call, Config};

/// Bytes of blocks of one class.
const BYTES: usize = 8 << 20;
/// OS pages of tables and heaps that a program of this size has: five tables of a few pages, and some pages of heaps.
const TABLES: usize = 32;

fn system(page_size: usize) -> Box<Shared> {
    calls::system(Config { page_size, purger: true, ..Config::default() })
}

/// Locks the OS page of `p` in memory, like a program that forgets to unlock it. False where that is not permitted.
/// Uses the system call, because AddressSanitizer replaces mlock by a function that does nothing.
fn lock(p: *mut u8) -> bool {
    // SAFETY: the page is a block's.
    unsafe { libc::syscall(libc::SYS_mlock, p, 1usize) == 0 }
}

fn unlock(p: *mut u8) {
    // SAFETY: the page is the allocator's, and mapped.
    assert_eq!(unsafe { libc::syscall(libc::SYS_munlock, p, 1usize) }, 0);
}

/// Catches memory that stays because the system refused other memory of the same batch, and a purger that never ends
/// because of refused memory.
#[test]
fn locked_blocks_are_left_alone() {
    const SIZE: usize = 200_000;
    let a = &*system(4096);
    let own = thread(a);
    let blocks = fill(a, &own, SIZE, 200 * SIZE);
    // Never two neighbours: each run is one block.
    let (kept, gone): (Vec<_>, Vec<_>) = (0..blocks.len()).partition(|i| i % 2 == 0);
    let locked: Vec<_> = gone.iter().step_by(10).collect();
    if !locked.iter().all(|&&i| lock(blocks[i].wrapping_add(SIZE / 2))) {
        println!("SKIPPED: mlock is refused");
        return;
    }
    gone.iter().for_each(|&i| free(a, &own, blocks[i]));
    settle(a);
    let (held, live) = (a.os.usage().present, kept.len() * SIZE.next_multiple_of(4096));
    let most = live + locked.len() * SIZE.next_multiple_of(4096) + TABLES * 4096;
    assert!(held <= most, "{held} bytes held, {most} allowed");
    own.abandon(a);
}

/// Catches a range that counts as clean although the system refused it, and others that count as refused with it, in a
/// batch that is freed in several steps.
#[test]
fn what_was_refused_stays_dirty() {
    let size = 2 * CHUNK;
    for seed in 1..9 {
        let a = calls::system(Config { seed, ..Config::default() });
        let own = thread(&a);
        let blocks: Vec<_> = (0..24).map(|_| (fill(&a, &own, size, size)[0], malloc(&a, &own, size)).0).collect();
        blocks.iter().for_each(|&p| free(&a, &own, p));
        // Refuses a random one of the ranges.
        a.os.faults.fail_nth(Call::PurgeRuns, a.os.faults.count(Call::PurgeRuns) + 1);
        let went = a.purge();
        assert_eq!((went, a.free_bytes().0), (23 * size, size), "seed {seed}");
        assert_eq!((a.purge(), a.free_bytes().0), (size, 0), "seed {seed}");
    }
}

/// Catches ranges that were not tried because the system refused all before them, and that nothing gives back: they
/// wait as before and a purger is requested, even if they did not wait because they were purged lazily.
#[test]
fn what_was_not_tried_waits() {
    let size = 2 * CHUNK;
    for purge in [Purge::Decay, Purge::Lazy] {
        let a = system(4096);
        a.policy.set_purge(purge);
        let own = thread(&a);
        let blocks: Vec<_> = (0..24).map(|_| (fill(&a, &own, size, size)[0], malloc(&a, &own, size)).0).collect();
        blocks.iter().for_each(|&p| free(&a, &own, p));
        if purge == Purge::Lazy {
            while let Some(wait) = a.tick() {
                a.os.advance(wait.into());
            }
        }
        let asked = a.os.faults.count(Call::StartPurger);
        if !blocks.iter().all(|&p| lock(p)) {
            println!("SKIPPED: mlock is refused");
            return;
        }
        assert_eq!((a.purge(), a.free_bytes().0), (0, 24 * size));
        let again = a.os.faults.count(Call::StartPurger) - asked;
        assert_eq!(again, u64::from(purge == Purge::Lazy), "{purge:?}");
        blocks.iter().for_each(|&p| unlock(p));
        a.policy.set_purge(Purge::Decay);
        (0..10).for_each(|_| a.os.advance(a.tick().unwrap_or(100).into()));
        assert!(a.free_bytes().0 <= 9 * size, "{} bytes wait, {purge:?}", a.free_bytes().0);
    }
}

/// Catches memory that stays for ever because it was locked when it was freed.
#[test]
fn what_was_locked_goes_back_later() {
    const SIZE: usize = 200_000;
    let a = &*system(4096);
    let own = thread(a);
    let (blocks, others) = (fill(a, &own, SIZE, 100 * SIZE), fill(a, &own, SIZE, 12 * SIZE));
    if !blocks.iter().all(|&p| lock(p)) {
        println!("SKIPPED: mlock is refused");
        return;
    }
    blocks.iter().for_each(|&p| free(a, &own, p));
    settle(a);
    assert!(a.os.usage().present > 50 * SIZE, "nothing was locked");
    blocks.iter().for_each(|&p| unlock(p));
    // Another free starts the next helper.
    others.into_iter().for_each(|p| free(a, &own, p));
    settle(a);
    let held = a.os.usage().present;
    assert!(held <= TABLES * 4096, "{held} bytes held");
    own.abandon(a);
}

/// Catches the same for holes in slabs.
#[test]
fn locked_holes_are_left_alone() {
    const SIZE: usize = 512;
    let a = &*system(4096);
    let own = thread(a);
    let blocks = fill(a, &own, SIZE, BYTES);
    let locked: Vec<_> = blocks.iter().skip(64).step_by(1280).copied().collect();
    if !locked.iter().all(|&p| lock(p)) {
        println!("SKIPPED: mlock is refused");
        return;
    }
    let (kept, gone): (Vec<_>, Vec<_>) = (0..blocks.len()).partition(|i| i % 128 == 0);
    gone.iter().for_each(|&i| free(a, &own, blocks[i]));
    settle(a);
    // A locked OS page keeps the pages of its slab.
    let (held, most) = (a.os.usage().present, kept.len() * 4096 + locked.len() * 65536 + TABLES * 4096);
    assert!(held <= most, "{held} bytes held, {most} allowed");
    own.abandon(a);
}

/// Catches holes that stay because the system refused others: in the same tick, or to an earlier helper.
#[test]
fn refused_holes_keep_no_others() {
    for earlier in [false, true] {
        let a = &*system(4096);
        let own = thread(a);
        let large = fill(a, &own, 20 << 20, 20 << 20)[0];
        let blocks = fill(a, &own, 512, 40 * CHUNK);
        let slabs: Vec<_> = blocks.chunks(CHUNK / 512).collect();
        assert!(slabs.iter().all(|slab| slab[0].addr().is_multiple_of(CHUNK)));
        // Locks all holes of the first batch.
        if !slabs[..16].iter().all(|slab| lock(slab[64])) {
            println!("SKIPPED: mlock is refused");
            return;
        }
        let free_holes = |slabs: &[&[*mut u8]]| {
            slabs.iter().for_each(|slab| slab[8..].iter().for_each(|&p| free(a, &own, p)));
            rest(a, &own);
        };
        let tick = || a.tick().map(|wait| a.os.advance(wait.into())).is_some();
        if !earlier {
            free(a, &own, large);
            while a.free_bytes().0 > 0 {
                assert!(tick());
            }
        }
        let before = a.os.usage().present;
        let wanted = if earlier {
            free_holes(&slabs[..16]);
            while tick() {}
            assert!(before - a.os.usage().present < 16 * 15 * 4096, "nothing was locked");
            slabs[..16].iter().for_each(|slab| unlock(slab[64]));
            // Starts the next helper.
            free(a, &own, large);
            (20 << 20) + 16 * 14 * 4096
        } else {
            free_holes(&slabs[..32]);
            (0..2).for_each(|_| assert!(tick()));
            free_holes(&slabs[32..]);
            24 * 15 * 4096
        };
        (0..8).for_each(|_| assert!(tick()));
        let went = before - a.os.usage().present;
        assert!(went >= wanted, "{went} of {wanted} bytes, an earlier helper: {earlier}");
        own.abandon(a);
    }
}
