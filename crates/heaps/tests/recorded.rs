//! Recorded heaps, each with what the process said of its heap at the same moment. `cargo xtask heaps` makes them anew.

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
