//! Option `huge=hugetlb`: memory of arenas comes from a pool of huge pages, of which the system purges, moves and
//! protects no part.

use neap_core::pages::layout::HUGE_PAGE;
use neap_core::policy::{HugePages, Setting};
use neap_core::{CHUNK, misuse};
use neap_coretest::calls::{Shared, fill, free, malloc, system, thread, try_malloc, valid};
use neap_coretest::{Call, Config, Owner};

const MIB: usize = 1 << 20;

/// An allocator whose system has `pages` in the pool; `only`: with `hugetlb=strict`.
fn with_pool(pages: usize, only: bool) -> Box<Shared> {
    let a = system(Config { purger: true, pool: Some((pages, only)), ..Config::default() });
    a.policy.set_huge(HugePages::Pool);
    a.policy.set_word(Setting::PoolOnly, only.into());
    a
}

/// Writes all bytes of a block, or checks that they have this value.
fn bytes(p: *mut u8, size: usize, byte: u8, write: bool) {
    // SAFETY: the caller's block, of this size.
    let block = unsafe { core::slice::from_raw_parts_mut(p, size) };
    if write {
        block.fill(byte);
    }
    assert!(block.iter().all(|&b| b == byte), "{p:p} of {size}");
}

/// Allocates, frees, resizes, purges and allocates zeroed blocks, and checks every byte.
fn work(a: &Shared, t: &Owner) {
    let sizes = [100, 5000, 40_000, MIB, 3 * MIB];
    let mut blocks: Vec<_> = (0..80).map(|i| (malloc(a, t, sizes[i % 5]), sizes[i % 5], i as u8)).collect();
    for &(p, size, byte) in &blocks {
        bytes(p, size, byte, true);
    }
    for block in blocks.iter_mut().step_by(3) {
        free(a, t, block.0);
        *block = (t.with(a, |heap| a.calloc(heap, block.1)), block.1, 0);
    }
    t.with(a, |heap| a.purge_with(heap));
    valid(a);
    for (p, size, byte) in blocks {
        bytes(p, size, byte, false);
        // SAFETY: a block of the allocator.
        let q = t.with(a, |heap| unsafe {
            let old = a.usable_size(heap, misuse::Call::UsableSize, p).expect("a live block");
            a.realloc(heap, p, old, 2 * size)
        });
        bytes(q, size, byte, false);
        free(a, t, q);
    }
    t.with(a, |heap| a.purge_with(heap));
    valid(a);
}

/// Catches memory that is not from the pool, and bytes that are lost where the system refuses to purge, move or
/// protect.
#[test]
fn memory_comes_from_the_pool() {
    let a = &*with_pool(400, false);
    let t = thread(a);
    work(a, &t);
    let taken = 400 - a.os.left_in_pool();
    assert!(taken * HUGE_PAGE >= 60 * MIB, "{taken} pages");
    work(a, &t);
    assert!(400 - a.os.left_in_pool() <= taken + 16 * MIB / HUGE_PAGE, "memory of the pool is used again");
    t.abandon(a);
}

/// Catches a program that stops because the pool is empty or becomes so.
#[test]
fn the_pool_is_used_up() {
    for pages in [0, 1, 5, 20] {
        let a = &*with_pool(pages, false);
        let t = thread(a);
        work(a, &t);
        assert_eq!(a.os.left_in_pool(), 0);
        work(a, &t);
        t.abandon(a);
    }
}

/// Catches other memory where only the pool is allowed, pages that stay in the pool, and an allocator that does not go
/// on when memory is free again.
#[test]
fn only_the_pool() {
    for pages in [2, 5, 20] {
        let a = &*with_pool(pages, true);
        let t = thread(a);
        let mut blocks = Vec::new();
        loop {
            let p = try_malloc(a, &t, MIB);
            if p.is_null() {
                break;
            }
            bytes(p, MIB, 7, true);
            blocks.push(p);
        }
        assert_eq!(a.os.left_in_pool(), 0);
        assert!(blocks.len() + 2 >= 2 * pages, "{} blocks of {pages} pages", blocks.len());
        assert!(try_malloc(a, &t, 64 * MIB).is_null() && try_malloc(a, &t, 1 << 40).is_null(), "no huge block");
        valid(a);
        free(a, &t, blocks.pop().expect("a block"));
        let p = malloc(a, &t, MIB - CHUNK);
        blocks.iter().for_each(|&p| bytes(p, MIB, 7, false));
        blocks.push(p);
        blocks.into_iter().for_each(|p| free(a, &t, p));
        valid(a);
        t.abandon(a);
    }
}

/// Catches lost addresses that are used, although other code may have mapped something there.
#[test]
fn lost_addresses_are_left() {
    for nth in [1, 2, 3] {
        let a = &*with_pool(400, false);
        a.os.faults.fail_nth(Call::TakeFromPool, nth);
        let t = thread(a);
        work(a, &t);
        assert!(a.os.faults.failed() == 1 && a.os.left_in_pool() < 400);
        let blocks = fill(a, &t, 1000, 4 * MIB);
        blocks.into_iter().for_each(|p| free(a, &t, p));
        work(a, &t);
        t.abandon(a);
    }
}
