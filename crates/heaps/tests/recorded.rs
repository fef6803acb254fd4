//! Recorded heaps, each with what the process said of its heap at the same moment. `tests/heaps/record.sh` makes them anew.

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

/// Checks a heap of another allocator, whose program says how many blocks it has: the live blocks are those and at most
/// `more`, where blocks are counted at all. Parts add up.
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
    // The program wrote each of its blocks, those with own mappings apart in full.
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

/// Catches a page map that is not found, or spans that are read wrong.
#[test]
fn tcmalloc_2_10() {
    // Caches of threads count as live.
    let heap = other("tcmalloc-2.10", "tcmalloc", Some(352));
    assert!(heap.parts.iter().any(|part| part.split.as_ref().is_some_and(|split| split.free.resident > 0)), "{heap:?}");
}

/// Catches groups of musl that are read wrong, or slots that hold groups and count as live.
#[test]
fn musl_1_2_3() {
    other("musl-1.2.3", "musl", Some(16));
}

/// Catches heaps that are only found with the help of files.
#[test]
fn without_files() {
    let recording = recording("glibc-2.41");
    let heaps = neap_heaps::find(&recording, &recording.mappings, &neap_heaps::NoFiles);
    let [heap] = &heaps[..] else { panic!("one heap, not {heaps:#?}") };
    assert_eq!(heap.allocator, "glibc");
    assert_eq!(Info::parse(&recording.truth).check(heap), Ok(()));
}
