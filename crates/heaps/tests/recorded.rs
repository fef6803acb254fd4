//! Recorded heaps, each with what the process reported about its heap at the same moment. `tests/heaps/record.sh`
//! records them again.

mod support;

use std::path::PathBuf;
use support::info::Info;
use support::recording::Recording;

fn recording(name: &str) -> Recording {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/{name}.heap"));
    Recording::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn glibc(version: &str) {
    let recording = recording(&format!("glibc-{version}"));
    let heaps = neap_heaps::find(&recording, &recording.mappings, &recording);
    let [heap] = &heaps[..] else { panic!("one heap, not {heaps:#?}") };
    assert_eq!(heap.allocator, format!("glibc {version}"));
    assert!(heap.library.is_some());
    assert_eq!(heap.doubts, Vec::<String>::new());
    let info = Info::parse(&recording.truth);
    assert!(info.live.0 > 100 && info.mmapped.0 > 0 && heap.parts.len() >= 3, "a poor recording: {info:?}");
    assert_eq!(info.check(heap), Ok(()));
}

/// Catches structures of 2.31 (no safe-linking, short heap headers) that are read wrong.
#[test]
fn glibc_2_31() {
    glibc("2.31");
}

/// Catches structures of 2.36 (safe-linking, long heap headers) that are read wrong.
#[test]
fn glibc_2_36() {
    glibc("2.36");
}

/// Catches structures of 2.41 that are read wrong.
#[test]
fn glibc_2_41() {
    glibc("2.41");
}

/// Catches structures of 2.43 (no fastbins, new caches of threads, sizes of mmapped blocks) that are read wrong.
#[test]
fn glibc_2_43() {
    glibc("2.43");
}

/// Checks a heap of another allocator whose program reports its number of blocks: if blocks are counted at all, the
/// live ones are those and at most `more`. Parts add up.
fn other(name: &str, allocator: &str, more: Option<u64>) -> neap_heaps::Heap {
    let recording = recording(name);
    let mut heaps = neap_heaps::find(&recording, &recording.mappings, &recording);
    assert_eq!(heaps.len(), 1, "{heaps:#?}");
    let heap = heaps.remove(0);
    assert_eq!(heap.allocator, allocator);
    let said = Info::parse(&recording.truth).live;
    let (mut live, mut resident) = (0, 0);
    for part in &heap.parts {
        let split = part.split.as_ref().expect("a split");
        let total = split.total();
        assert_eq!((total.bytes, total.resident), (part.bytes, part.resident_bytes), "{part:?}");
        let held: u64 = part.ranges.iter().map(|range| range.end - range.start).sum();
        assert!(part.bytes <= held, "{part:?}");
        live += split.live.blocks;
        resident += split.live.resident;
        assert!(split.kept_bytes <= split.free.resident, "{part:?}");
    }
    // The program wrote each of its blocks; those with own mappings completely.
    assert!(resident >= said.1, "{resident} resident, the program wrote {said:?}");
    if let Some(more) = more {
        assert!((said.0..=said.0 + more).contains(&live), "{live} live blocks, the program has {said:?}");
    }
    heap
}

/// Catches records of jemalloc's extents that are read wrong. The program ran without caches of threads.
#[test]
fn jemalloc_5_3() {
    let heap = other("jemalloc-5.3", "jemalloc 5.3", Some(64));
    assert!(heap.parts.iter().any(|part| part.name == "metadata" && part.resident_bytes > 0), "{heap:?}");
}

/// Catches a tree of three levels that is not found (57 bits of addresses, as in Debian 13's library), and blocks in
/// caches of threads that count as live.
#[test]
fn jemalloc_5_3_with_57_bits() {
    let heap = other("jemalloc-5.3-57", "jemalloc 5.3", Some(16));
    assert!(heap.doubts.is_empty(), "{:?}", heap.doubts);
    let cached: u64 = heap.parts.iter().filter_map(|part| part.split.as_ref()).map(|split| split.cached.blocks).sum();
    assert!(cached > 100, "{cached} blocks in caches: {heap:?}");
}

/// Catches the same of version 5.2, whose elements and bins differ, and whose bins of large classes are apart.
#[test]
fn jemalloc_5_2_with_57_bits() {
    let heap = other("jemalloc-5.2-57", "jemalloc 5.2", Some(8));
    assert!(heap.doubts.is_empty(), "{:?}", heap.doubts);
}

/// Catches records of 5.2 that are read as those of 5.3: live slabs would be free extents.
#[test]
fn jemalloc_5_2() {
    let heap = other("jemalloc-5.2", "jemalloc 5.2", Some(64));
    assert!(heap.doubts.len() == 1, "{:?}", heap.doubts);
}

/// Catches version 5.1 that is reported as 5.2, which has the same records.
#[test]
fn jemalloc_5_1() {
    let heap = other("jemalloc-5.1", "jemalloc 5.1", Some(64));
    assert!(heap.doubts.len() == 1 && heap.settings.is_none(), "{heap:?}");
}

/// Files with one text.
struct Text(&'static [u8]);

impl neap_heaps::Files for Text {
    fn read(&self, _: &neap_heaps::Mapping, offset: u64, into: &mut [u8]) -> usize {
        let rest = self.0.get(offset as usize..).unwrap_or_default();
        let length = rest.len().min(into.len());
        into[..length].copy_from_slice(&rest[..length]);
        length
    }
}

/// Catches version 5.1 that is reported as 5.2, which has one more setting, and variables of prefixed copies.
#[test]
fn jemalloc_by_its_texts() {
    let of = |name: &str, text: &'static [u8]| {
        let recording = recording(name);
        let heaps = neap_heaps::find(&recording, &recording.mappings, &Text(text));
        let heap = heaps.into_iter().find(|heap| heap.allocator.starts_with("jemalloc")).expect("it is found");
        (heap.allocator, heap.settings)
    };
    assert_eq!(of("jemalloc-5.2", b"<jemalloc>: \0MALLOC_CONF\0"), ("jemalloc 5.1".into(), None));
    assert_eq!(of("jemalloc-5.2", b"<jemalloc>: \0bin_shards\0"), ("jemalloc 5.2".into(), None));
    let inside = of("jemalloc-5.3", b"<jemalloc>: variable MALLOC_CONF\0_RJEM_MALLOC_CONF\0");
    assert_eq!(inside, ("jemalloc 5.3".into(), Some("_RJEM_MALLOC_CONF".into())));
    assert_eq!(of("jemalloc-5.3", b"<jemalloc>: \0not a name_MALLOC_CONF\0").1, None);
}

/// Catches mimalloc inside a library or a program of another name.
#[test]
fn mimalloc_inside_another_library() {
    let mut recording = recording("mimalloc-2.3");
    for mapping in recording.mappings.iter_mut().filter(|of| of.file().is_some()) {
        mapping.name = Some("/lib/library.so".into());
    }
    let of = |text: &'static [u8]| {
        let heaps = neap_heaps::find(&recording, &recording.mappings, &Text(text));
        heaps.into_iter().find(|heap| heap.allocator == "mimalloc 2")
    };
    let heap = of(b"\x7fELF mimalloc: warning: \0").expect("it is found");
    assert!(heap.library.as_deref() == Some("/lib/library.so") && heap.parts[0].split.is_some(), "{heap:?}");
    assert_eq!(of(b"\x7fELF mimalloc"), None);
}

/// Catches pages up to version 2.1.6, whose records do not say where they begin.
#[test]
fn mimalloc_2_0() {
    other("mimalloc-2.0", "mimalloc 2", Some(16));
}

/// Catches pages of version 2 that are not found in segments.
#[test]
fn mimalloc_2_3() {
    other("mimalloc-2.3", "mimalloc 2", Some(16));
}

/// Catches pages of version 3 that are not found in arenas.
#[test]
fn mimalloc_3_3() {
    other("mimalloc-3.3", "mimalloc 3", Some(16));
}

/// Catches arenas and pages of other versions of 3 that are not found: 3.0 at addresses as the kernel gives them, with
/// records at the fronts of pages; 3.4 with records that have distances; 3.6 with both. Threads freed blocks of others,
/// which must not count as live.
#[test]
fn mimalloc_3_0_3_4_3_6() {
    for name in ["mimalloc-3.0", "mimalloc-3.4", "mimalloc-3.6"] {
        let heap = other(name, "mimalloc 3", Some(8));
        assert_eq!((heap.parts.len(), heap.parts[0].name.as_str()), (1, "arenas"), "{heap:?}");
    }
}

/// Catches old records of free pages that are taken for those of their slices, which have other pages now; and a block that
/// is too large for an arena and has no owner.
#[test]
fn mimalloc_3_6_old_records() {
    let heap = other("mimalloc-3.6-old", "mimalloc 3", Some(8));
    assert!(heap.parts[0].split.as_ref().is_some_and(|split| split.live.bytes > 256 << 20), "{heap:?}");
}

/// Catches blocks that other threads have freed and that count as live in version 2: those of the page's list, and the
/// one of each page that is on a list of the heap.
#[test]
fn mimalloc_2_0_freed_by_others() {
    other("mimalloc-2.0-cross", "mimalloc 2", Some(8));
}

/// Catches pages of an unknown version that are given a name and a split.
#[test]
fn mimalloc_of_an_unknown_version() {
    let mut recording = recording("mimalloc-2.0-cross");
    for (_, bytes) in recording.runs.iter_mut() {
        bytes.fill(0);
    }
    let heaps = neap_heaps::find(&recording, &recording.mappings, &recording);
    let heap = heaps.iter().find(|heap| heap.allocator == "mimalloc").expect("it is found");
    assert!(heap.parts[0].split.is_none() && heap.doubts[0].contains("not found"), "{heap:?}");
}

/// Catches a page map that is not found, spans that are read wrong, and blocks in caches of threads or in the batches
/// between them that count as live.
#[test]
fn tcmalloc_2_10() {
    let heap = other("tcmalloc-2.10", "tcmalloc", Some(16));
    assert!(heap.doubts.is_empty(), "{:?}", heap.doubts);
    assert!(heap.parts.iter().any(|part| part.split.as_ref().is_some_and(|split| split.free.resident > 0)), "{heap:?}");
}

/// Catches regions of Google's tcmalloc that belong to no allocator, or that are not all found.
#[test]
fn tcmalloc_of_google() {
    let recording = recording("tcmalloc-google");
    let heaps = neap_heaps::find(&recording, &recording.mappings, &recording);
    let heap = heaps.iter().find(|heap| heap.allocator == "tcmalloc (Google's)").expect("it is found");
    let live: u64 = recording.truth.split_whitespace().last().and_then(|bytes| bytes.parse().ok()).expect("a number");
    let resident = |name: &str| heap.parts.iter().find(|part| part.name == name).map_or(0, |part| part.resident_bytes);
    // It had more before, and uses huge pages.
    assert!((live..live + (8 << 20)).contains(&resident("regions")), "{live}: {heap:?}");
    assert!(resident("metadata") > 0 && heap.library.is_some() && heap.doubts.len() == 1, "{heap:?}");
    let blind = neap_heaps::find(&recording, &recording.mappings, &neap_heaps::NoFiles);
    assert!(blind.iter().all(|of| of.allocator != heap.allocator), "{blind:?}");
}

/// Catches groups of musl that are read wrong, and slots that hold groups but count as live.
#[test]
fn musl_1_2_3() {
    other("musl-1.2.3", "musl", Some(16));
}

/// Catches heaps that are found only with files.
#[test]
fn without_files() {
    let recording = recording("glibc-2.41");
    let heaps = neap_heaps::find(&recording, &recording.mappings, &neap_heaps::NoFiles);
    let [heap] = &heaps[..] else { panic!("one heap, not {heaps:#?}") };
    assert_eq!(heap.allocator, "glibc");
    assert_eq!(Info::parse(&recording.truth).check(heap), Ok(()));
}

/// Catches an arena of a thread that is taken for a copy of glibc because it follows the data of a library.
#[test]
fn an_arena_behind_a_library() {
    let mut recording = recording("glibc-2.36");
    let is_arena = |of: &neap_heaps::Mapping| of.name.is_none() && of.range.start.is_multiple_of(64 << 20);
    let at = recording.mappings.iter().position(is_arena).expect("an arena");
    let start = recording.mappings[at].range.start;
    recording.mappings.insert(at, support::writable(start - 4096..start, Some("/lib/library.so")));
    let heaps = neap_heaps::find(&recording, &recording.mappings, &recording);
    let [heap] = &heaps[..] else { panic!("one heap, not {heaps:#?}") };
    assert_eq!(Info::parse(&recording.truth).check(heap), Ok(()));
}

/// A process whose main arena changes: the first reads of its state see a list that is half changed.
struct Changing<'r> {
    recording: &'r Recording,
    state: std::ops::Range<u64>,
    left: std::sync::atomic::AtomicUsize,
}

impl neap_heaps::Memory for Changing<'_> {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), neap_heaps::Unreadable> {
        use std::sync::atomic::Ordering::Relaxed;
        self.recording.read(address, into)?;
        let end = address + into.len() as u64;
        let has_state = address <= self.state.start && self.state.end <= end;
        if has_state && self.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok() {
            into[(self.state.start - address) as usize..][..8].fill(0xff);
        }
        Ok(())
    }

    fn resident(&self, range: std::ops::Range<u64>, into: &mut Vec<neap_heaps::Run>) {
        self.recording.resident(range, into);
    }
}

/// A link of a list of the main arena.
fn links(recording: &Recording) -> std::ops::Range<u64> {
    // 127 lists of which most are empty: two words with the address 16 bytes before them, twice in a row.
    let words = support::damaged::words(recording);
    let is_empty = |at: usize| words[at].1.wrapping_add(16) == words[at].0 && words[at + 1].1 == words[at].1;
    let at = (0..words.len() - 4).find(|at| is_empty(*at) && is_empty(at + 2)).expect("empty lists");
    words[at].0..words[at].0 + 8
}

/// Catches a main arena that is not found because it has grown since the list of mappings was made, or changes while it
/// is read.
#[test]
fn a_main_arena_that_changes() {
    use neap_heaps::Memory;
    for version in ["2.31", "2.36", "2.41", "2.43"] {
        let mut recording = recording(&format!("glibc-{version}"));
        let main = |memory: &dyn Memory, recording: &Recording| {
            let heaps = neap_heaps::find(memory, &recording.mappings, recording);
            let parts = heaps.into_iter().flat_map(|heap| heap.parts);
            parts.into_iter().find(|part| part.name == "main arena").and_then(|part| part.split)
        };
        let whole = main(&recording, &recording).expect("it is there");
        let changing = |times: usize| Changing { recording: &recording, state: links(&recording), left: times.into() };
        let seen = main(&changing(3), &recording).expect("it is found");
        assert_eq!((seen.live.bytes, seen.free.bytes), (whole.live.bytes, whole.free.bytes), "{version}");
        assert!(main(&changing(usize::MAX), &recording).is_none(), "{version}: the damage is none");
        let heap = recording.mappings.iter_mut().find(|mapping| mapping.name.as_deref() == Some("[heap]"));
        let range = &mut heap.expect("it is there").range;
        range.end = range.start + 4096;
        let grown = main(&recording, &recording).expect("it has grown");
        assert_eq!((grown.live.bytes, grown.free.bytes), (whole.live.bytes, whole.free.bytes), "{version}");
    }
}

/// The address and value of the size of the top of the main arena, which ends where `[heap]` does.
fn top(recording: &Recording) -> (u64, u64) {
    let heap = recording.mappings.iter().find(|mapping| mapping.name.as_deref() == Some("[heap]"));
    let range = heap.expect("it is there").range.clone();
    let is_top = |&(at, word): &(u64, u64)| range.contains(&at) && (at - 8).checked_add(word & !7) == Some(range.end);
    support::damaged::words(recording).into_iter().rfind(is_top).expect("a top")
}

/// Catches an overwritten size of the top that is used: brk never gave that much.
#[test]
fn a_top_that_is_too_large() {
    let mut recording = recording("glibc-2.36");
    let (at, size) = top(&recording);
    let (run, bytes) = recording.runs.iter_mut().find(|(run, _)| run.range.contains(&at)).expect("it is resident");
    bytes[(at - run.range.start) as usize..][..8].copy_from_slice(&(size + (1 << 40)).to_le_bytes());
    for heap in neap_heaps::find(&recording, &recording.mappings, &recording) {
        assert!(heap.parts.iter().all(|part| part.bytes < 1 << 30), "{heap:?}");
    }
}

/// A process whose top cannot be read at first.
struct Trimmed<'r> {
    recording: &'r Recording,
    top: u64,
    left: std::sync::atomic::AtomicUsize,
}

impl neap_heaps::Memory for Trimmed<'_> {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), neap_heaps::Unreadable> {
        use std::sync::atomic::Ordering::Relaxed;
        let is_top = address == self.top && into.len() == 8;
        if is_top && self.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok() {
            return Err(neap_heaps::Unreadable);
        }
        self.recording.read(address, into)
    }

    fn resident(&self, range: std::ops::Range<u64>, into: &mut Vec<neap_heaps::Run>) {
        self.recording.resident(range, into);
    }
}

/// Catches a copy of glibc that counts several times because it was read several times.
#[test]
fn a_copy_is_found_once() {
    let recording = recording("glibc-2.36");
    for times in [0, 3, usize::MAX] {
        let trimmed = Trimmed { recording: &recording, top: top(&recording).0, left: times.into() };
        let heaps = neap_heaps::find(&trimmed, &recording.mappings, &recording);
        let [heap] = &heaps[..] else { panic!("{times}: one heap, not {heaps:#?}") };
        let has_main = heap.parts.iter().any(|part| part.name == "main arena");
        assert_eq!(has_main, times < usize::MAX, "{times}: {heap:#?}");
    }
}
