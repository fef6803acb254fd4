//! What an observer in another process reads of a heap from copies of its structures; here copies of this process.

use neap_core::class;
use neap_core::observe::outside::{Kind, RECORD_BYTES, Seen, SeenArena, SeenHeap, SeenHuge, SeenLarge, SeenSlab};
use neap_core::{Allocator, CHUNK, Os};
use neap_coretest::Config;
use neap_coretest::calls::{free, malloc, system, thread};

/// Copies memory of this process, as `/proc/PID/mem` would.
fn copy(at: usize, length: usize) -> Vec<u8> {
    // SAFETY: the tests pass addresses of structures and blocks that are there, and no other thread runs.
    unsafe { core::slice::from_raw_parts(core::ptr::with_exposed_provenance(at), length) }.to_vec()
}

fn word(at: usize) -> u64 {
    usize::from_ne_bytes(copy(at, size_of::<usize>()).try_into().expect("a word")) as u64
}

/// The address of the allocator, and the places of its structures.
fn places<O: Os>(a: &Allocator<O>) -> (usize, neap_core::observe::outside::Places) {
    ((&raw const *a).expose_provenance(), Allocator::<O>::PLACES)
}

fn record(arena: &SeenArena, address: usize) -> [u8; RECORD_BYTES] {
    let chunk = (address - arena.base as usize) / CHUNK;
    assert!((arena.first..arena.frontier).contains(&(chunk as u64)), "chunk {chunk} of {arena:?}");
    copy(arena.base as usize + chunk * RECORD_BYTES, RECORD_BYTES).try_into().expect("a record")
}

/// Catches a structure that is read at the wrong place: arenas, records, bits, caches.
#[test]
#[cfg_attr(miri, ignore = "copies of whole structures have bytes that were never written")]
fn structures_are_where_an_observer_looks() {
    let a = system(Config::default());
    let t = thread(&a);
    let (start, places) = places(&*a);
    let blocks: Vec<*mut u8> = (0..300).map(|_| malloc(&a, &t, 100)).collect();
    let large = malloc(&a, &t, 100_000);
    let arenas: Vec<SeenArena> = SeenArena::all(&copy(start + places.arenas, SeenArena::BYTES)).collect();
    let [arena] = arenas[..] else { panic!("{arenas:?}") };
    assert!(
        arena.first < arena.frontier
            && arena.frontier <= arena.committed
            && arena.committed <= arena.reserve
            && arena.reserve <= arena.chunks
    );
    let seen = Seen::from(&record(&arena, large.addr()));
    assert_eq!((seen.kind, seen.bytes), (Kind::LARGE, 102_400));
    assert_eq!(SeenLarge::from(&record(&arena, large.addr())), SeenLarge { sample: false, place: 0 });
    // Frees some blocks: into the cache, and from there to their slab.
    let (freed, kept) = blocks.split_at(200);
    freed.iter().for_each(|&p| free(&a, &t, p));
    let heap = SeenHeap::of(&copy(word(start + places.heaps) as usize, SeenHeap::BYTES));
    assert_eq!(heap.next, 0, "one heap");
    let (mut cached, mut at) = (Vec::new(), heap.first[class::of(100)] as usize);
    while let Some(next) = SeenHeap::behind(&copy(at, SeenHeap::BLOCK_BYTES)) {
        cached.push(at);
        at = next as usize;
    }
    assert!(!cached.is_empty() && cached.iter().all(|at| !kept.iter().any(|p| p.addr() == *at)), "{cached:x?}");
    for &p in &blocks {
        let bytes = record(&arena, p.addr());
        let (class, index) = (usize::from(Seen::from(&bytes).class), class::index(p, class::of(100)));
        assert_eq!((Seen::from(&bytes).kind, class), (Kind::SLAB, class::of(100)));
        let slab = SeenSlab::of(&bytes, class);
        let bit = |at: u64| word((arena.base + at) as usize + 8 * (index as usize / 64)) >> (index % 64) & 1 != 0;
        let is_free = bit(slab.free_bits) || bit(slab.remote_bits);
        assert_eq!(is_free || cached.contains(&p.addr()), freed.contains(&p), "{p:?}");
        assert!(index < slab.carved && slab.carved <= class::capacity(class) && slab.words == 10);
    }
    kept.iter().chain([&large]).for_each(|&p| free(&a, &t, p));
}

/// Catches a sample whose recorded place is not that which its block would have had, also with an empty cache, and
/// blocks that are lost by looking for it.
#[test]
#[cfg_attr(miri, ignore = "as above")]
fn samples_say_where_they_would_lie() {
    let a = system(Config::default());
    let t = thread(&a);
    let (start, places) = places(&*a);
    for size in [0, 1, 100, 3000, 32_768, 40_000] {
        for _ in 0..50 {
            let p = t.with(&a, |heap| a.malloc_sample(heap, size, 1, false));
            let arena = SeenArena::all(&copy(start + places.arenas, SeenArena::BYTES)).next().expect("an arena");
            let seen = SeenLarge::from(&record(&arena, p.addr()));
            assert!(seen.sample);
            let next = malloc(&a, &t, size);
            assert_eq!(seen.place, if size <= class::MAX_SMALL { next.addr() as u64 } else { 0 }, "{size}");
        }
    }
    neap_coretest::calls::valid(&a);
}

/// Catches a cached block that keeps the place of an earlier sample: the next sample at that address, made by realloc,
/// would count at the old place.
#[test]
#[cfg_attr(miri, ignore = "as above")]
fn a_cached_block_forgets_its_place() {
    let a = system(Config::default());
    let t = thread(&a);
    let (start, places) = places(&*a);
    // SAFETY: the heap is lent by its thread; each block is live when it is passed, and freed once.
    unsafe {
        let p = t.with(&a, |heap| a.malloc_sample(heap, 100, 1, false));
        assert!(a.take_mark(p));
        free(&a, &t, p);
        let next = malloc(&a, &t, 40_000);
        assert_eq!(next, p, "from the cache");
        assert!(a.mark(next, 40_000));
        let arena = SeenArena::all(&copy(start + places.arenas, SeenArena::BYTES)).next().expect("an arena");
        assert_eq!(SeenLarge::from(&record(&arena, next.addr())), SeenLarge { sample: true, place: 0 });
        free(&a, &t, next);
    }
}

/// Catches huge blocks that are not found, in the library's own slots and in further tables.
#[test]
#[cfg_attr(miri, ignore = "as above")]
fn huge_blocks_are_found() {
    let a = system(Config::default());
    let t = thread(&a);
    let (start, places) = places(&*a);
    let seen = || {
        let copied = copy(start + places.huge, SeenHuge::BYTES);
        let first = SeenHuge::first(&copied);
        let (mut all, mut next): (Vec<_>, _) = (first.blocks().collect(), first.next);
        while next != 0 {
            let table = copy(next as usize, SeenHuge::TABLE_BYTES);
            let table = SeenHuge::table(&table);
            all.extend(table.blocks());
            next = table.next;
        }
        all
    };
    assert_eq!(seen(), []);
    let blocks: Vec<*mut u8> = (0..40).map(|_| malloc(&a, &t, 65 << 30)).filter(|p| !p.is_null()).collect();
    let mut found: Vec<u64> = seen().into_iter().filter(|(_, bytes)| *bytes >= 65 << 30).map(|(at, _)| at).collect();
    found.sort_unstable();
    let mut wanted: Vec<u64> = blocks.iter().map(|p| p.addr() as u64).collect();
    wanted.sort_unstable();
    assert!(!wanted.is_empty());
    assert_eq!(found, wanted);
    blocks.into_iter().for_each(|p| free(&a, &t, p));
    assert_eq!(seen(), []);
}
