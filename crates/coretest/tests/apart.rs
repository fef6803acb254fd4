//! Large blocks whose mappings differ from their neighbours': their memory is mapped again before another block gets
//! it.

use neap_core::CHUNK;
use neap_coretest::calls::{Shared, free, free_reentrant, hardened, malloc, system, thread, valid};
use neap_coretest::{Call, Config};

/// Size of the blocks here: more than one chunk, and short enough for the cache of large blocks.
const LONG: usize = 4 * CHUNK;

fn renewed(a: &Shared) -> u64 {
    a.os.faults.count(Call::Renew)
}

/// Catches a moved block that gets shorter and whose rest remains a mapping of its own, or is used although the system
/// did not map it again.
#[test]
fn what_a_moved_block_leaves_is_mapped_anew() {
    const LONG: usize = 2 << 20;
    for refused in 0..16 {
        let a = system(Config { seed: refused + 1, ..Config::default() });
        let t = thread(&a);
        // SAFETY: the heap is lent by its thread; the block is this test's, and has `old` bytes.
        let realloc = |p, old, size| t.with(&a, |heap| unsafe { a.realloc(heap, p, old, size) });
        let (p, behind) = (malloc(&a, &t, LONG / 2), malloc(&a, &t, CHUNK));
        // SAFETY: the block is that long.
        unsafe { p.write_bytes(7, LONG / 2) };
        let q = realloc(p, LONG / 2, LONG);
        let before = renewed(&a);
        if refused > 0 {
            a.os.faults.fail_nth(Call::Renew, before + 1);
        }
        assert!(q != p && realloc(q, LONG, LONG / 4) == q);
        assert_eq!(renewed(&a), before + 1);
        // SAFETY: the block is this test's.
        assert!(unsafe { core::slice::from_raw_parts(q, LONG / 4) }.iter().all(|&byte| byte == 7));
        valid(&a);
        // At its old place, and behind it.
        let blocks: Vec<_> = (0..8).map(|_| malloc(&a, &t, LONG / 4)).collect();
        // SAFETY: the blocks are that long.
        blocks.iter().for_each(|p| unsafe { p.write_bytes(1, LONG / 4) });
        blocks.into_iter().chain([q, behind]).for_each(|p| free(&a, &t, p));
        valid(&a);
    }
}

/// Catches a block in which the program changed an OS page (the first, the last or one between) and which the next
/// owner gets unrestored, from the cache or from the ranges; and a mapping that is renewed without need.
#[test]
fn what_a_program_changed_is_mapped_anew() {
    let a = system(Config::default());
    let t = thread(&a);
    let first = malloc(&a, &t, LONG);
    free(&a, &t, first);
    assert_eq!(renewed(&a), 0, "it was not changed");
    for at in [0, CHUNK - 1, CHUNK, 2 * CHUNK + 5000, LONG - 1] {
        let (p, before) = (malloc(&a, &t, LONG), renewed(&a));
        a.note_changed(p.wrapping_add(at));
        a.note_changed(p);
        valid(&a);
        free(&a, &t, p);
        assert_eq!(renewed(&a), before + 1, "changed at {at}");
        let p = malloc(&a, &t, LONG);
        free(&a, &t, p);
        assert_eq!(renewed(&a), before + 1, "the next owner changed nothing");
    }
    valid(&a);
}

/// Catches memory that the system does not map again and that another block gets as the program left it, or that stays
/// resident.
#[test]
fn what_cannot_be_mapped_anew_is_lost() {
    for seed in 1..16 {
        let a = system(Config { seed, ..Config::default() });
        let t = thread(&a);
        let p = malloc(&a, &t, LONG);
        // SAFETY: the block is that long.
        unsafe { p.write_bytes(7, LONG) };
        a.note_changed(p);
        a.os.faults.fail_nth(Call::Renew, renewed(&a) + 1);
        free(&a, &t, p);
        valid(&a);
        for _ in 0..64 {
            let q = malloc(&a, &t, LONG);
            assert!(q.is_null() || q.addr() >= p.addr() + LONG || q.addr() + LONG <= p.addr());
        }
    }
}

/// Catches a change outside of large blocks that counts as one inside: in small blocks, in free memory, in memory that
/// is not neap's.
#[test]
fn changes_elsewhere_count_for_nothing() {
    let a = system(Config::default());
    let t = thread(&a);
    let (large, small, mine) = (malloc(&a, &t, 16 * LONG), malloc(&a, &t, 3000), 0_u8);
    free(&a, &t, large);
    for at in (0..16 * LONG).step_by(CHUNK) {
        a.note_changed(large.wrapping_add(at));
    }
    a.note_changed(small);
    a.note_changed(&raw const mine);
    a.note_changed(core::ptr::null());
    a.note_changed(core::ptr::without_provenance(usize::MAX));
    valid(&a);
    let again = malloc(&a, &t, LONG);
    free(&a, &t, again);
    free(&a, &t, small);
    assert_eq!(renewed(&a), 0);
    valid(&a);
}

/// Catches a block that shrinks within a chunk and grows again over OS pages that the program had made inaccessible;
/// and one that is only partly accessible because the system refused the rest.
#[test]
fn a_changed_block_may_grow_again() {
    let a = system(Config::default());
    let t = thread(&a);
    // SAFETY: the heap is lent by its thread; the block is this test's, and has `old` bytes.
    let realloc = |p, old, size| t.with(&a, |heap| unsafe { a.realloc(heap, p, old, size) });
    let commits = || a.os.faults.count(Call::Commit);
    let page = a.page_size();
    for (changed, refused) in [(false, false), (true, false), (true, true)] {
        let p = malloc(&a, &t, LONG);
        // SAFETY: the block is that long.
        unsafe { p.write_bytes(7, LONG) };
        if changed {
            a.note_changed(p.wrapping_add(LONG - page));
        }
        let before = commits();
        if refused {
            a.os.faults.fail_nth(Call::Commit, before + 1);
        }
        let q = realloc(p, LONG, LONG - page);
        assert_eq!((q == p, commits() > before), (!refused, changed), "{changed} {refused}");
        // SAFETY: the block is that long.
        assert!(unsafe { core::slice::from_raw_parts(q, LONG - page) }.iter().all(|&byte| byte == 7));
        valid(&a);
        free(&a, &t, q);
        valid(&a);
    }
}

/// Catches a hardened block that is lost because of its guard, and is written although the program may have made it
/// inaccessible, or that is handed out again.
#[test]
fn a_changed_block_is_lost_with_its_guard() {
    for changed in [false, true] {
        let (a, t) = hardened(Config::default());
        let p = malloc(&a, &t, LONG);
        if changed {
            a.note_changed(p);
        }
        let counts = || [Call::Purge, Call::Renew].map(|call| a.os.faults.count(call));
        let before = counts();
        a.os.faults.fail_nth(Call::Commit, a.os.faults.count(Call::Commit) + 1);
        free(&a, &t, p);
        let [purged, renewed] = [0, 1].map(|i| counts()[i] - before[i]);
        assert_eq!((purged, renewed), if changed { (0, 1) } else { (1, 0) });
        valid(&a);
        let q = malloc(&a, &t, LONG);
        assert!(q.addr() >= p.addr() + LONG || q.addr() + LONG <= p.addr());
        free(&a, &t, q);
        valid(&a);
    }
}

/// Catches a freed block that is filled although the program may have made parts inaccessible, and one that is not
/// filled although no part can be.
#[test]
fn what_stays_mapped() {
    let a = system(Config::default());
    let t = thread(&a);
    let [small, large, changed, huge] = [3000, LONG, LONG, 64 << 30].map(|size| malloc(&a, &t, size));
    a.note_changed(small);
    a.note_changed(changed);
    // SAFETY: the blocks are this test's.
    let stay = [small, large, changed, huge].map(|p| unsafe { a.stays_mapped(p) });
    assert_eq!(stay, [true, true, false, false]);
    [small, large, changed, huge].into_iter().for_each(|p| free(&a, &t, p));
}

/// Catches a block of the reentrant reserve that the system does not map again and that counts as used for ever, or is
/// handed out again.
#[test]
fn what_a_handler_cannot_map_anew_is_lost() {
    for seed in 1..16 {
        let a = system(Config { seed, ..Config::default() });
        let t = thread(&a);
        let p = a.malloc_reentrant(LONG, 16, false);
        a.note_changed(p);
        a.os.faults.fail_nth(Call::Renew, renewed(&a) + 1);
        free_reentrant(&a, p);
        valid(&a);
        let q = a.malloc_reentrant(LONG, 16, false);
        assert_ne!(q, p, "seed {seed}");
        free_reentrant(&a, q);
        valid(&a);
        t.abandon(&a);
    }
}
