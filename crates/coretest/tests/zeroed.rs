//! What calloc clears of memory that was used: what was touched, and no more.

use neap_core::policy::Purge;
use neap_core::{CHUNK, Os};
use neap_coretest::calls::{Shared, free, malloc, system, thread};
use neap_coretest::{Call, Config, Owner};

const MIB: usize = 1 << 20;

fn with_thread(config: Config) -> (Box<Shared>, Owner) {
    let a = system(config);
    let t = thread(&a);
    (a, t)
}

/// Allocates a zeroed block and checks it; returns it, the bytes cleared for it, and the bytes skipped.
fn calloc(a: &Shared, t: &Owner, size: usize) -> (*mut u8, u64, u64) {
    let before = a.figures().totals;
    let p = t.with(a, |heap| a.malloc_aligned(heap, size, 16, true));
    assert!(!p.is_null());
    let after = a.figures().totals;
    // SAFETY: the block is that long.
    assert_eq!(unsafe { a.os.first_nonzero(p, size) }, None);
    (p, after.cleared - before.cleared, after.skipped - before.skipped)
}

/// Writes the first `touched` OS pages of each `of`.
fn write(p: *mut u8, len: usize, touched: usize, of: usize) {
    for page in (0..len / 4096).filter(|page| page % of < touched) {
        // SAFETY: the block is that long.
        unsafe { p.add(page * 4096).write_bytes(0xFF, 4096) };
    }
}

/// Catches clean memory that is cleared, or that counts as skipped although the program did not ask for zeros.
#[test]
fn clean_memory_is_not_cleared() {
    let (a, t) = with_thread(Config::default());
    let before = a.figures().totals;
    malloc(&a, &t, 5 * MIB);
    malloc(&a, &t, 40_000);
    assert_eq!(a.figures().totals, before);
    let (_, cleared, skipped) = calloc(&a, &t, 5 * MIB);
    assert_eq!((cleared, skipped), (0, 5 << 20));
    a.policy.set_zero_always(true);
    let (_, cleared, _) = calloc(&a, &t, 5 * MIB);
    assert_eq!(cleared, 5 << 20, "the user wants it");
    let before = a.figures().totals;
    malloc(&a, &t, 5 * MIB);
    assert_eq!(a.figures().totals, before);
}

/// Catches untouched memory that is cleared, and system calls each time for memory that was fully written.
#[test]
fn what_was_not_touched_is_not_cleared() {
    let size = 6 * MIB;
    // 3 and 4 of 10: more than a quarter in all is no reason to clear all, where no half of a look is dense.
    for touched in [1, 3, 4] {
        let (a, t) = with_thread(Config::default());
        let p = malloc(&a, &t, size);
        // In runs of 64 KiB.
        write(p, size, touched * 16, 160);
        free(&a, &t, p);
        let (p, cleared, skipped) = calloc(&a, &t, size);
        let written = (size / 4096 / 160 * touched * 16 + (size / 4096 % 160).min(touched * 16)) * 4096;
        assert_eq!((cleared, skipped), (written as u64, (size - written) as u64), "{touched} of 10");
        free(&a, &t, p);
    }
    let (a, t) = with_thread(Config::default());
    let asked = || a.os.faults.count(Call::Touched);
    let p = malloc(&a, &t, size);
    write(p, size, 1, 1);
    free(&a, &t, p);
    for round in 0..6 {
        let before = asked();
        let (p, cleared, skipped) = calloc(&a, &t, size);
        assert_eq!((cleared, skipped), (size as u64, 0), "round {round}");
        assert_eq!(asked() > before, round == 0, "in round {round}, where all was written before");
        write(p, size, 1, 1);
        free(&a, &t, p);
    }
}

/// Catches a block that was written once and then left alone, and for which the program pays each time; and one that
/// goes back to the system although the policy is to keep it.
#[test]
fn what_is_left_alone_goes_back() {
    for (purge, purger) in [(Purge::Decay, false), (Purge::Decay, true), (Purge::Never, false)] {
        let (a, t) = with_thread(Config { purger, ..Config::default() });
        a.policy.set_purge(purge);
        let size = 6 * MIB;
        let mut p = malloc(&a, &t, size);
        write(p, size, 1, 1);
        let mut last = 0;
        for _ in 0..4 {
            free(&a, &t, p);
            (p, last, _) = calloc(&a, &t, size);
        }
        assert_eq!(last == 0, purge == Purge::Decay, "{last} bytes are cleared each time");
        assert_eq!(a.figures().totals.purged > 0 || purger, purge == Purge::Decay);
        free(&a, &t, p);
    }
}

/// Catches memory that is put aside although no helper will purge it.
#[test]
fn what_is_left_alone_goes_at_once() {
    for (purger, size, aside) in [(false, 6 * MIB, 0), (true, 6 * MIB, 6 * MIB)] {
        let (a, t) = with_thread(Config { purger, ..Config::default() });
        // Requests a helper; the second block keeps the place.
        let helped = malloc(&a, &t, 20 * MIB);
        free(&a, &t, helped);
        malloc(&a, &t, 20 * MIB);
        let p = malloc(&a, &t, size);
        write(p, size, 1, 1);
        free(&a, &t, p);
        let before = a.figures().dirty;
        // Cleared, left alone, and so dropped.
        for _ in 0..2 {
            let (p, ..) = calloc(&a, &t, size);
            free(&a, &t, p);
        }
        calloc(&a, &t, size);
        assert_eq!((before, a.figures().dirty), (size as u64, aside as u64), "{size} bytes, a helper: {purger}");
    }
}

/// Catches a clean replacement block that lost the alignment, where a helper gives the original back.
#[test]
fn blocks_keep_their_alignment() {
    let (a, t) = with_thread(Config { purger: true, ..Config::default() });
    let (size, align) = (3 * MIB, 4 * MIB);
    // So that clean chunks do not begin at a multiple of the alignment.
    malloc(&a, &t, 5 * CHUNK);
    // Long enough for the alignment, wherever it begins.
    let p = malloc(&a, &t, size + align);
    write(p, size + align, 1, 1);
    free(&a, &t, p);
    let mut places = Vec::new();
    for round in 0..6 {
        let p = t.with(&a, |heap| a.malloc_aligned(heap, size, align, true));
        assert!(!p.is_null() && p.addr().is_multiple_of(align), "{p:p} in round {round}");
        if round == 0 {
            write(p, size, 1, 1);
        }
        if !places.contains(&p) {
            places.push(p);
        }
        free(&a, &t, p);
    }
    assert!(places.len() > 1, "a clean block took the place of one that was left alone");
}

/// Catches a program that writes its block fully each time and pays four times for it, because the block was taken for
/// one that is left alone.
#[test]
fn a_drop_that_was_wrong_is_not_repeated() {
    let (a, t) = with_thread(Config::default());
    let size = 6 * MIB;
    let asked = || a.os.faults.count(Call::Touched);
    let p = malloc(&a, &t, size);
    write(p, size, 1, 1);
    free(&a, &t, p);
    // Was it written, and does the system have to be asked about it?
    for (round, (written, asks)) in [(false, true), (true, false), (false, true), (true, true)].into_iter().enumerate()
    {
        let before = asked();
        let (p, ..) = calloc(&a, &t, size);
        assert_eq!(asked() > before, asks, "round {round}");
        if written {
            write(p, size, 1, 1);
        }
        free(&a, &t, p);
    }
}

/// Catches memory that goes back instead of being cleared although the policy is to keep it.
#[test]
fn what_is_left_alone_stays_where_the_user_wants_it() {
    let (a, t) = with_thread(Config::default());
    a.policy.set_purge(Purge::Never);
    let size = 6 * MIB;
    let mut p = malloc(&a, &t, size);
    write(p, size, 16, 160);
    for _ in 0..3 {
        free(&a, &t, p);
        (p, ..) = calloc(&a, &t, size);
        assert_eq!(a.figures().totals.purged, 0);
    }
}

/// Catches a zeroed block from a cache of large blocks that is not zero, is cleared where it was not touched, or is
/// purged without need.
#[test]
fn blocks_from_a_large_cache_are_cleared() {
    let (a, t) = with_thread(Config::default());
    let size = 8 * CHUNK;
    let p = malloc(&a, &t, size);
    write(p, 3 * 4096, 1, 1);
    free(&a, &t, p);
    assert_eq!(a.figures().cached, size as u64, "it is in the cache");
    let (q, cleared, skipped) = calloc(&a, &t, size);
    assert_eq!((q, cleared, skipped), (p, 3 * 4096, (size - 3 * 4096) as u64));
    assert_eq!(a.figures().totals.purged, 0);
}

/// Catches a block that is cleared as a whole although less than a quarter of it was touched, or in parts although more
/// was, where the touched OS pages lie close together at its start.
#[test]
fn what_counts_as_dense() {
    let size = 6 * MIB;
    let quarter = size / 4096 / 4;
    // The system reports 16 runs at a time: a long one and 15 single OS pages.
    for (first, whole) in [(64, false), (quarter - 15, false), (quarter - 14, true)] {
        let (a, t) = with_thread(Config::default());
        let p = malloc(&a, &t, size);
        write(p, first * 4096, 1, 1);
        write(p.wrapping_add((first + 1) * 4096), 32 * 4096, 1, 2);
        free(&a, &t, p);
        let (q, cleared, _) = calloc(&a, &t, size);
        assert_eq!((q, cleared), (p, if whole { size } else { (first + 16) * 4096 } as u64), "{first} OS pages first");
    }
}

/// Catches parts of a block that count as both cleared and skipped, or as neither, where it was touched here and there
/// at its start and fully behind that; and one that is cleared as a whole although only a half was touched.
#[test]
fn all_bytes_are_counted() {
    let (a, t) = with_thread(Config::default());
    let size = 6 * MIB;
    let p = malloc(&a, &t, size);
    write(p, 32 * 4096, 1, 2);
    write(p.wrapping_add(64 * 4096), size - 64 * 4096, 1, 1);
    free(&a, &t, p);
    let (_, cleared, skipped) = calloc(&a, &t, size);
    assert!(skipped >= 16 * 4096 && cleared + skipped == size as u64, "{cleared} and {skipped} bytes of {size}");
    let (a, t) = with_thread(Config::default());
    let size = 5 * MIB;
    let p = malloc(&a, &t, size);
    write(p, size, 80, 160);
    free(&a, &t, p);
    let (_, cleared, skipped) = calloc(&a, &t, size);
    assert_eq!((cleared, skipped), (size as u64 / 2, size as u64 / 2));
    // A block of a slab.
    let p = malloc(&a, &t, 20_480);
    write(p, 20_480, 2, 5);
    free(&a, &t, p);
    let (q, cleared, skipped) = calloc(&a, &t, 20_480);
    assert_eq!((q, cleared, skipped), (p, 2 * 4096, 3 * 4096));
    // One that begins in the middle of an OS page.
    let [first, second] = [(); 2].map(|()| malloc(&a, &t, 10_240));
    let p = if first.addr().is_multiple_of(4096) { second } else { first };
    assert_eq!(p.addr() % 4096, 2048);
    // SAFETY: the block is that long.
    unsafe { p.write_bytes(0xFF, 100) };
    free(&a, &t, p);
    let (q, cleared, skipped) = calloc(&a, &t, 10_240);
    assert_eq!((q, cleared, skipped), (p, 2048, 8192));
}

/// Catches parts of a block that stay for ever although they were written only once, and system calls for short parts,
/// each of which costs more than clearing.
#[test]
fn long_parts_that_are_left_alone_go_back() {
    let size = 5 * MIB;
    for (pages, gone) in [(16, 8 * 16 * 4096), (15, 0)] {
        let (a, t) = with_thread(Config::default());
        let p = malloc(&a, &t, size);
        write(p, size, pages, 160);
        for purged in [0, gone] {
            free(&a, &t, p);
            assert_eq!(calloc(&a, &t, size).0, p);
            assert_eq!(a.figures().totals.purged, purged, "{pages} of each 160 OS pages");
        }
    }
}

/// Catches small blocks that are scanned instead of cleared although the option says to clear all.
#[test]
fn all_blocks_are_cleared_where_the_user_wants_it() {
    for (always, wanted) in [(true, 20_480), (false, 0)] {
        let (a, t) = with_thread(Config::default());
        a.policy.set_zero_always(always);
        // Twice: the second block was used before, and reads as zero.
        let cleared: Vec<_> = (0..2)
            .map(|_| {
                let (p, cleared, _) = calloc(&a, &t, 20_480);
                free(&a, &t, p);
                cleared
            })
            .collect();
        assert_eq!(cleared[1], wanted, "{cleared:?}");
    }
}

/// Catches memory that was put aside for the helper and stays, counts as free, or goes although free ranges are to
/// stay; and a batch of it that is too long.
#[test]
fn what_is_put_aside_goes_back() {
    let (a, t) = with_thread(Config { purger: true, ..Config::default() });
    let sizes = [3 * MIB, 7 * MIB / 2];
    let blocks = sizes.map(|size| {
        let p = malloc(&a, &t, size);
        write(p, size, 1, 1);
        p
    });
    blocks.into_iter().for_each(|p| free(&a, &t, p));
    a.tick();
    let woken = a.os.helper().woken();
    // Written and cleared, left alone, and so put aside.
    let blocks = sizes.map(|size| {
        let (p, ..) = calloc(&a, &t, size);
        free(&a, &t, p);
        calloc(&a, &t, size).0
    });
    let aside = sizes.iter().sum::<usize>();
    assert_eq!(a.os.helper().woken() - woken, 1, "it shall not wait for the next tick, and is woken once");
    assert_eq!(a.figures().dirty, aside as u64);
    assert_eq!(a.trim(aside, || true).bytes, 0, "this much is to stay");
    let (calls, present) = (a.os.faults.count(Call::PurgeRuns), a.os.usage().present);
    a.tick();
    assert_eq!((a.figures().dirty, a.os.faults.count(Call::PurgeRuns) - calls), (0, 2), "4 MiB and the rest");
    assert_eq!(present - a.os.usage().present, aside);
    blocks.into_iter().for_each(|p| free(&a, &t, p));
}

/// Catches small blocks that are scanned each time although they come back written, and blocks that are cleared each
/// time although the program now leaves them untouched, after a few were scanned.
#[test]
fn a_class_that_comes_back_written_is_cleared_at_once() {
    for size in [8 << 10, 16 << 10, 32 << 10] {
        let (a, t) = with_thread(Config::default());
        let (mut p, ..) = calloc(&a, &t, size);
        let mut round = |written: bool| {
            if written {
                write(p, size, 1, 1);
            }
            free(&a, &t, p);
            let (q, cleared, skipped) = calloc(&a, &t, size);
            assert_eq!((q, cleared + skipped), (p, size as u64), "the same block");
            p = q;
            cleared > 0
        };
        // Scans this one, finds it untouched, and goes on to scan.
        assert!(!round(false));
        assert!((0..10).all(|_| round(true)));
        assert!(round(false), "it is not looked at");
        let untouched = (0..100).filter(|_| round(false)).count();
        assert!(untouched <= 31, "{untouched} of 100 were cleared");
        assert!(!round(false) && round(true) && round(true));
    }
}
