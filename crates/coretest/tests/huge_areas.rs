//! Option `huge`: areas only where growth is proven, and never more than a proof allows; large blocks; all memory.

use neap_core::common::CROWD;
use neap_core::os::{Memory, Run};
use neap_core::pages::layout::HUGE_PAGE;
use neap_core::policy::{HugePages, Purge};
use neap_core::{CHUNK, Os, class};
use neap_coretest::calls::{Shared, fill, free, malloc, settle, system, thread, valid};
use neap_coretest::{Call, Config, Owner};

const MIB: usize = 1 << 20;
/// Bytes that a program must hold before it gets areas.
const PROVEN: usize = 96 * MIB;

fn huge() -> Box<Shared> {
    adaptive(Config { huge: true, ..Config::default() })
}

/// An allocator with `huge=adaptive`.
fn adaptive(config: Config) -> Box<Shared> {
    with(HugePages::Adaptive, config)
}

/// An allocator with this value of `huge`.
fn with(huge: HugePages, config: Config) -> Box<Shared> {
    let a = system(Config { purger: true, ..config });
    a.policy.set_huge(huge);
    a
}

/// Number of areas that the system was asked to fill.
fn areas(a: &Shared) -> u64 {
    a.os.faults.count(Call::PopulateHuge)
}

/// Bytes in free ranges that may hold memory.
fn dirty(a: &Shared) -> usize {
    a.figures().dirty as usize
}

/// Peak of the bytes in use.
fn peak(a: &Shared) -> usize {
    a.figures().peak as usize
}

/// Frees blocks, and gives all free memory back.
fn drop_all(a: &Shared, t: &Owner, blocks: Vec<*mut u8>) {
    blocks.into_iter().for_each(|p| free(a, t, p));
    t.with(a, |heap| a.purge_with(heap));
    valid(a);
}

/// Catches areas before growth is proven, too few from then on, and more memory than growth needs.
#[test]
fn growth_is_proven_by_samples() {
    let a = &*huge();
    let t = thread(a);
    let mut blocks = fill(a, &t, 500, PROVEN - MIB);
    assert_eq!(areas(a), 0);
    blocks.extend(fill(a, &t, 1000, 56 * MIB));
    let filled = areas(a) as usize * HUGE_PAGE;
    // Proofs are good for 12 to 16 areas; between them lie samples of one.
    assert!((44 * MIB..=54 * MIB).contains(&filled), "{filled} bytes in areas");
    assert!(dirty(a) <= HUGE_PAGE, "an area is used before the next is filled");
    drop_all(a, &t, blocks);
    assert!(dirty(a) < MIB, "areas go back like all free memory");
    t.abandon(a);
}

/// Catches missing areas where a program grows again, and more memory than it had before.
#[test]
fn growth_again_is_proven() {
    let a = &*huge();
    let t = thread(a);
    let blocks = fill(a, &t, 500, 2 * PROVEN);
    let (before, first) = (peak(a), areas(a));
    drop_all(a, &t, blocks);
    let blocks = fill(a, &t, 500, 2 * PROVEN);
    let again = areas(a) - first;
    assert!(again > first && again as usize * HUGE_PAGE >= 160 * MIB, "{first}, then {again}");
    assert!(peak(a) <= before + HUGE_PAGE, "at most an area beyond the peak");
    drop_all(a, &t, blocks);
    t.abandon(a);
}

/// Catches areas for a program that does not touch what it allocates, and for one that grows so slowly that an area
/// would go back before it is used.
#[test]
fn growth_must_be_dense_and_quick() {
    let a = &*huge();
    let t = thread(a);
    let mut blocks: Vec<_> = (0..(PROVEN + 20 * MIB) / (4 * CHUNK)).map(|_| malloc(a, &t, 4 * CHUNK)).collect();
    assert_eq!(areas(a), 0, "nothing is touched");
    for _ in 0..40 {
        blocks.extend(fill(a, &t, 500, MIB));
        a.os.advance(300);
    }
    assert_eq!(areas(a), 0, "2 MiB take longer than free memory waits");
    blocks.extend(fill(a, &t, 500, 20 * MIB));
    assert!(areas(a) >= 4);
    drop_all(a, &t, blocks);
    t.abandon(a);
}

/// Catches areas for threads that hold little each: their slabs are sparse, however much the process holds or held.
#[test]
fn idle_threads_prove_nothing() {
    let a = &*huge();
    for _ in 0..2 {
        let threads: Vec<_> = (0..200).map(|_| thread(a)).collect();
        // 1.6 MiB each, in 25 full slabs of each of two classes, and one block of each of 70 classes.
        let hold = |t: &Owner| {
            let mut blocks = fill(a, t, 500, 25 * CHUNK);
            blocks.extend(fill(a, t, 1000, 25 * CHUNK));
            blocks.extend((0..70).map(|i| malloc(a, t, 400 * (i + 1))));
            blocks
        };
        let blocks: Vec<_> = threads.iter().map(hold).collect();
        assert!(peak(a) > 4 * PROVEN);
        assert_eq!(areas(a), 0);
        for (t, blocks) in threads.into_iter().zip(blocks) {
            drop_all(a, &t, blocks);
            t.abandon(a);
        }
    }
}

/// Catches areas for the slabs that threads of a crowd share: they would be filled under the lock of the registry, for
/// which forks and new threads wait.
#[test]
fn shared_slabs_get_no_area() {
    let a = &*huge();
    let t = thread(a);
    let mut blocks = fill(a, &t, 500, PROVEN + MIB);
    let before = areas(a);
    let crowd: Vec<_> = (0..CROWD + 400).map(|_| thread(a)).collect();
    let slabs = valid(a).slabs;
    for t in &crowd {
        for &size in class::SIZE[1..].iter().filter(|&&size| size < 4096) {
            blocks.extend(fill(a, t, size as usize, 2 * size as usize));
        }
    }
    let shared = valid(a).slabs - slabs;
    assert!((10 * HUGE_PAGE..crowd.len() * 5 * CHUNK).contains(&(shared * CHUNK)), "{shared} slabs");
    assert_eq!(areas(a), before);
    drop_all(a, &t, blocks);
    crowd.into_iter().for_each(|t| t.abandon(a));
    t.abandon(a);
}

/// Catches areas for blocks longer than half an area and for zeroed blocks: the parts that the program leaves untouched
/// would become resident. Also catches missing areas for shorter blocks.
#[test]
fn large_blocks_up_to_half_an_area() {
    for (size, zero, has) in [(5 * CHUNK, false, true), (5 * CHUNK, true, false), (17 * CHUNK, false, false)] {
        let a = &*huge();
        let t = thread(a);
        let calloc = |_| {
            let p = t.with(a, |heap| a.calloc(heap, size));
            // SAFETY: a block of the test's, that long.
            unsafe { p.write_bytes(1, size) };
            p
        };
        let bytes = PROVEN + 40 * MIB;
        let blocks = if zero { (0..bytes / size).map(calloc).collect() } else { fill(a, &t, size, bytes) };
        assert_eq!(areas(a) > 8, has, "{size}, {zero}: {}", areas(a));
        drop_all(a, &t, blocks);
        t.abandon(a);
    }
}

/// Catches areas for blocks that fit into none because their alignment is larger: the areas would stay unused.
#[test]
fn blocks_that_fit_into_no_area() {
    let a = &*huge();
    let t = thread(a);
    let mut blocks = fill(a, &t, 500, PROVEN);
    // A proof is good for several areas now. When one is used up, the next is filled if a block can use it.
    for _ in 0..3 {
        let before = areas(a);
        while areas(a) == before || dirty(a) >= 5 * CHUNK {
            blocks.extend(fill(a, &t, 500, CHUNK));
        }
        let before = areas(a);
        blocks.push(t.with(a, |heap| a.malloc_aligned(heap, 5 * CHUNK, 2 * HUGE_PAGE, false)));
        assert_eq!(areas(a), before);
    }
    drop_all(a, &t, blocks);
    t.abandon(a);
}

/// Catches a query of addresses that were lost: other code may have mapped something there.
#[test]
fn lost_memory_in_a_sample() {
    let a = &*huge();
    let t = thread(a);
    let mut blocks = fill(a, &t, 4000, PROVEN);
    for _ in 0..80 {
        blocks.extend(fill(a, &t, 4000, 6 * CHUNK));
        let p = malloc(a, &t, CHUNK);
        a.note_changed(p);
        a.os.faults.fail_nth(Call::Renew, a.os.faults.count(Call::Renew) + 1);
        free(a, &t, p);
    }
    valid(a);
    drop_all(a, &t, blocks);
    t.abandon(a);
}

/// Frees a block, which then waits to go back.
fn drop_later(a: &Shared, t: &Owner, size: usize) {
    free(a, t, malloc(a, t, size));
    t.with(a, |heap| a.rest(heap));
}

/// Catches a batch for which the system has to split many huge pages: a fork waits for its end.
#[test]
fn batches_cut_few_huge_pages() {
    for (huge, purger) in [(true, true), (true, false), (false, true)] {
        let a = &*system(Config { huge, purger, ..Config::default() });
        a.policy.set_huge(HugePages::Always);
        let t = thread(a);
        // One chunk of each huge page goes back.
        let blocks: Vec<_> = (0..100 * HUGE_PAGE / CHUNK).map(|_| malloc(a, &t, CHUNK)).collect();
        let (gone, kept): (Vec<_>, Vec<_>) = blocks.into_iter().enumerate().partition(|(i, _)| i % 32 == 16);
        for (_, p) in gone {
            free(a, &t, p);
        }
        t.with(a, |heap| a.rest(heap));
        if purger {
            settle(a);
        }
        for _ in 0..10 {
            a.os.advance(100);
            drop_later(a, &t, 20 * CHUNK);
        }
        let most = a.os.cut_at_once();
        match (huge, purger) {
            (true, true) => assert!((10..=17).contains(&most), "{most}"),
            (true, false) => assert!((1..=5).contains(&most), "{most}"),
            _ => assert!(most > 50, "{most}"),
        }
        drop_all(a, &t, kept.into_iter().map(|(_, p)| p).collect());
        t.abandon(a);
    }
}

/// Catches areas where they do not pay, or where memory may be short.
#[test]
fn not_everywhere() {
    let near = Memory { limit: 2 * PROVEN, used: 2 * PROVEN - 8 * MIB, stalled: false };
    let grown = |config: Config, change: fn(&Shared)| {
        let a = adaptive(config);
        change(&a);
        let t = thread(&a);
        let blocks = fill(&a, &t, 500, PROVEN + 20 * MIB);
        valid(&a);
        drop_all(&a, &t, blocks);
        t.abandon(&a);
        areas(&a) > 0
    };
    let config = || Config { huge: true, ..Config::default() };
    assert!(grown(config(), |_| ()));
    assert!(!grown(Config::default(), |_| ()), "the system has none");
    assert!(grown(config(), |a| a.policy.set_huge(HugePages::Advised)));
    assert!(!grown(Config { unasked_huge: true, ..config() }, |_| ()), "the system gives them unasked");
    assert!(!grown(config(), |a| a.policy.set_huge(HugePages::Off)));
    assert!(!grown(config(), |a| a.policy.set_huge(HugePages::Thp)));
    assert!(!grown(config(), |a| a.policy.set_huge(HugePages::Always)));
    assert!(!grown(config(), |a| a.policy.set_purge(Purge::Eager)));
    assert!(!grown(config(), |a| a.harden()));
    assert!(!grown(Config { memory: Some(near), ..config() }, |_| ()));
    assert!(!grown(Config { page_size: 16384, ..config() }, |_| ()), "huge pages have another size");
    assert!(!grown(Config { address_limit: Some(1 << 30), ..config() }, |_| ()), "parts of the arena may go back");
}

/// Catches a system that is asked again and again for what it does not have, and memory that is lost where it refuses.
#[test]
fn refusals_make_pauses() {
    let a = &*adaptive(Config { huge: true, missing: vec![Call::PopulateHuge], ..Config::default() });
    let t = thread(a);
    let blocks = fill(a, &t, 500, PROVEN + 40 * MIB);
    let asked = areas(a);
    assert!((2..=5).contains(&asked), "{asked} requests");
    drop_all(a, &t, blocks);
    assert!(dirty(a) < MIB);
    t.abandon(a);
}

/// The part of a block that is whole huge pages: start and length.
fn within(p: *mut u8, len: usize) -> (usize, usize) {
    let (from, to) = (p.addr().next_multiple_of(HUGE_PAGE), (p.addr() + len) & !(HUGE_PAGE - 1));
    (from, to - from)
}

/// Catches large blocks that are not aligned or not advised, that are advised twice, or whose memory is touched.
#[test]
fn large_blocks_are_advised_when_they_are_made() {
    for unasked_huge in [false, true] {
        let a = &*with(HugePages::Thp, Config { huge: true, unasked_huge, ..Config::default() });
        let t = thread(a);
        let short = malloc(a, &t, HUGE_PAGE - CHUNK);
        assert_eq!(a.os.huge(), [], "no huge page lies in it");
        let len = 3 * HUGE_PAGE + CHUNK;
        let [p, q] = [(); 2].map(|()| malloc(a, &t, len));
        assert_eq!((p.addr() % HUGE_PAGE, q.addr() % HUGE_PAGE), (0, 0));
        assert_eq!(a.os.huge(), [within(p, len), within(q, len)]);
        assert_eq!(a.os.faults.count(Call::Populate) + areas(a), 0);
        // SAFETY: a block of the test's.
        let touched = unsafe { a.os.touched(p, len, &mut [Run::EMPTY]) };
        assert_eq!(touched.map(|touched| touched.runs), Some(0), "nothing is touched");
        // The free chunks in front of an aligned block are used by others.
        let third = malloc(a, &t, HUGE_PAGE - 2 * CHUNK);
        assert!(third > short && third < q);
        free(a, &t, p);
        assert_eq!(malloc(a, &t, len), p);
        assert_eq!(a.os.huge().len(), 2, "it is advised already");
        // SAFETY: a block of the test's, that long.
        let longer = t.with(a, |heap| unsafe { a.realloc(heap, q, len, 2 * len) });
        assert_eq!(longer, q, "nothing lies behind it");
        assert_eq!(a.os.huge()[2..], [within(q, 2 * len)]);
        valid(a);
        drop_all(a, &t, vec![short, p, q, third]);
        t.abandon(a);
    }
}

/// Catches clean memory that is taken for the sake of alignment while free memory waits.
#[test]
fn alignment_costs_no_memory() {
    let a = &*with(HugePages::Thp, Config { huge: true, ..Config::default() });
    let t = thread(a);
    let blocks = fill(a, &t, 500, 12 * MIB);
    blocks.into_iter().for_each(|p| free(a, &t, p));
    t.with(a, |heap| a.rest(heap));
    let before = a.figures().peak;
    let p = malloc(a, &t, 8 * MIB);
    assert_eq!(a.figures().peak, before);
    assert_eq!(a.os.huge(), [within(p, 8 * MIB)], "advised in any case");
    drop_all(a, &t, vec![p]);
    t.abandon(a);
}

/// Catches huge pages that the system may fill again after a part of them went back, and a limit on the number of
/// ranges that is used up by ranges that no longer exist.
#[test]
fn what_is_cut_is_forbidden() {
    let a = &*with(HugePages::Thp, Config { huge: true, ..Config::default() });
    let t = thread(a);
    for _ in 0..5000 {
        let p = malloc(a, &t, HUGE_PAGE);
        let (allowed, forbidden) = (a.os.huge(), a.os.forbidden());
        assert_eq!(allowed.last(), Some(&(p.addr(), HUGE_PAGE)));
        free(a, &t, p);
        let part = malloc(a, &t, 5 * CHUNK);
        assert_eq!(part, p);
        t.with(a, |heap| a.purge_with(heap));
        assert_eq!(a.os.forbidden()[forbidden.len()..], [(p.addr(), HUGE_PAGE)]);
        free(a, &t, part);
        t.with(a, |heap| a.purge_with(heap));
        assert_eq!(a.os.forbidden().len(), forbidden.len() + 1, "it went back whole");
    }
    valid(a);
    t.abandon(a);
}

/// Catches advice or alignment where there are no huge pages, or where address space is short.
#[test]
fn large_blocks_where_they_cannot_be_huge() {
    for (config, huge) in [
        (Config::default(), HugePages::Thp),
        (Config { huge: true, page_size: 16384, ..Config::default() }, HugePages::Thp),
        (Config { huge: true, address_limit: Some(1 << 30), ..Config::default() }, HugePages::Thp),
        (Config { huge: true, ..Config::default() }, HugePages::Off),
        (Config { huge: true, ..Config::default() }, HugePages::Adaptive),
        (Config::default(), HugePages::Always),
    ] {
        let a = &*with(huge, config);
        let t = thread(a);
        let blocks = (0..3).map(|_| malloc(a, &t, 5 * HUGE_PAGE + CHUNK)).collect();
        assert_eq!(a.os.huge(), [], "{huge:?}");
        drop_all(a, &t, blocks);
        t.abandon(a);
    }
}

/// Catches a mark that remains where memory was mapped again, so that the next block there is not advised.
#[test]
fn advice_ends_with_the_mapping() {
    let a = &*with(HugePages::Thp, Config { huge: true, ..Config::default() });
    let t = thread(a);
    let p = malloc(a, &t, 2 * HUGE_PAGE);
    a.note_changed(p);
    free(a, &t, p);
    assert_eq!(malloc(a, &t, 2 * HUGE_PAGE), p);
    assert_eq!(a.os.huge(), [within(p, 2 * HUGE_PAGE); 2]);
    drop_all(a, &t, vec![p]);
    t.abandon(a);
}

/// Catches an arena that is not advised as a whole, or is advised more than once.
#[test]
fn all_memory_is_advised() {
    for unasked_huge in [false, true] {
        let a = &*with(HugePages::Always, Config { huge: true, unasked_huge, ..Config::default() });
        let t = thread(a);
        let mut blocks = fill(a, &t, 500, 8 * MIB);
        blocks.push(malloc(a, &t, 40 * MIB));
        let [(start, len)] = a.os.huge()[..] else { panic!("{:?}", a.os.huge()) };
        assert!(blocks.iter().all(|p| (start..start + len).contains(&p.addr())));
        assert!(len > 32 << 30, "what is committed later as well");
        drop_all(a, &t, blocks);
        assert!(dirty(a) < MIB, "free memory goes back");
        t.abandon(a);
    }
}

/// Number of times that the system was asked to promote.
fn promotions(a: &Shared) -> usize {
    a.os.faults.count(Call::Promote) as usize
}

/// Lets `milliseconds` pass, with a purger.
fn pass(a: &Shared, milliseconds: u64) {
    let end = a.os.clock() + milliseconds;
    while a.os.clock() < end {
        a.os.advance(a.tick().unwrap_or(100).into());
    }
}

/// Catches a long block that remains in small pages, passes without end, and a pass that takes long.
#[test]
fn long_blocks_are_promoted() {
    let a = &*huge();
    let t = thread(a);
    let p = malloc(a, &t, 60 * MIB);
    pass(a, 900);
    assert_eq!(promotions(a), 0, "the program had no time to use it");
    pass(a, 300);
    assert!((4..=8).contains(&promotions(a)), "a slice is 4 ms: {}", promotions(a));
    pass(a, 1200);
    let all = 60 * MIB / HUGE_PAGE;
    assert!((all - 3..=all + 3).contains(&promotions(a)), "{}", promotions(a));
    settle(a);
    let ended = promotions(a);
    assert!((3 * all..=5 * all).contains(&ended), "{ended}");
    pass(a, 20_000);
    assert_eq!(promotions(a), ended);
    free(a, &t, p);
    valid(a);
    t.abandon(a);
}

/// Catches memory that is promoted while it waits to go back.
#[test]
fn what_waits_is_not_promoted() {
    let a = &*huge();
    a.policy.set_delay(10_000);
    let t = thread(a);
    let [first, freed, last] = [20, 30, 20].map(|mib| malloc(a, &t, mib * MIB));
    free(a, &t, freed);
    t.with(a, |heap| a.rest(heap));
    pass(a, 9_900);
    let promoted = a.os.promoted();
    let inside =
        |p: *mut u8, mib: usize| promoted.iter().filter(|&&at| p.addr() <= at && at < p.addr() + mib * MIB).count();
    assert_eq!(inside(freed, 29), 0);
    assert!(inside(first, 20) >= 8 && inside(last, 20) >= 5, "{promoted:x?}");
    [first, last].into_iter().for_each(|p| free(a, &t, p));
    t.abandon(a);
}

/// Catches promotion for small programs, with other values of the option, and where the system cannot promote.
#[test]
fn nothing_else_is_promoted() {
    let quiet = |a: &Shared, bytes: usize| {
        let t = thread(a);
        let p = malloc(a, &t, bytes);
        pass(a, 3000);
        assert_eq!(promotions(a), 0);
        free(a, &t, p);
        t.abandon(a);
    };
    quiet(&huge(), 12 * MIB);
    quiet(&adaptive(Config::default()), 40 * MIB);
    quiet(&adaptive(Config { huge: true, unasked_huge: true, ..Config::default() }), 40 * MIB);
    for other in [HugePages::Off, HugePages::Thp, HugePages::Always] {
        quiet(&with(other, Config { huge: true, ..Config::default() }), 40 * MIB);
    }
    for purge in [Purge::Eager, Purge::Never] {
        let a = huge();
        a.policy.set_purge(purge);
        quiet(&a, 40 * MIB);
    }
}

/// Catches a pass that goes on after the system has refused.
#[test]
fn a_refusal_ends_a_pass() {
    let a = &*huge();
    let t = thread(a);
    a.os.faults.fail_nth(Call::Promote, 2);
    let p = malloc(a, &t, 40 * MIB);
    pass(a, 1500);
    assert_eq!(promotions(a), 2);
    pass(a, 2500);
    assert!(promotions(a) > 12, "the next pass tries again");
    free(a, &t, p);
    t.abandon(a);
}
