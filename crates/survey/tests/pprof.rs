//! What a process writes of itself (`neap_samples::pprof`) beside what is made of the same samples from outside.

use neap_samples::pprof::{self, Kind, Time};
use neap_samples::{LIVE_SHIFT, Module, Table, View, Word, words};
use std::sync::atomic::AtomicU64;

const MAIN: Module<'static> =
    Module { start: 0x1000, end: 0x9000, bias: 0x1000, code: [0x3000, 0x5000, 0x2000], build: &[0xab; 20], path: b"" };
const OTHER: Module<'static> =
    Module { start: 0x1_0000, end: 0x9_0000, bias: 0x1_0000, code: [0; 3], build: &[], path: b"/lib/other.so" };

/// A profile of samples, and the bytes of it.
fn written(kind: Kind, fill: impl Fn(&Table<'_>)) -> (neap_profile::Profile, Vec<u8>) {
    let all: Vec<AtomicU64> = (0..words(LIVE_SHIFT)).map(|_| AtomicU64::new(0)).collect();
    let values = [(Word::LiveShift, LIVE_SHIFT.into()), (Word::Interval, 512 << 10), (Word::Started, 1000)];
    let table = Table::set_up(&all, &values, b"/bin/program").unwrap();
    fill(&table);
    let mut copy = vec![0; words(0)];
    table.copy(&mut copy);
    let view = View::of(&copy).unwrap();
    let mut set = vec![0; pprof::scratch(view.header(Word::Frames))];
    let mut bytes = Vec::new();
    let time = Time { now: 5000, date: 7 };
    assert!(pprof::write(&view, kind, time, &mut set, &mut |piece| {
        bytes.extend_from_slice(piece);
        true
    }));
    (neap_profile::pprof::read(&bytes).unwrap(), bytes)
}

/// Catches a field, a value, a mapping or a text at the wrong place.
#[test]
fn everything_is_there() {
    let (profile, _) = written(Kind::Allocs, |table| {
        let (a, b) = (table.frame(0x3010, &MAIN), table.frame(0x1_2340, &OTHER));
        let (first, second) = (table.stack(&[a, b]), table.stack(&[b, 0x77]));
        table.allocated(0x10_0000, 100, 1000, first, 5);
        table.allocated(0x20_0000, 100, 3000, first, 5);
        table.allocated(0x30_0000, 50, 5000, second, 5);
        assert!(table.freed(0x10_0000));
    });
    let types: Vec<_> = profile.types.iter().map(|of| (of.name.as_ref(), of.unit.name())).collect();
    let wanted = ["alloc_objects", "alloc_space", "inuse_objects", "inuse_space"];
    assert_eq!(types, wanted.map(|name| (name, if name.ends_with("objects") { "count" } else { "bytes" })));
    assert_eq!((profile.shown, profile.time, profile.duration), (1, 7, 4000));
    assert_eq!(profile.period.as_ref().map(|period| period.value), Some(512 << 10));
    let mut values: Vec<_> = profile.samples.iter().map(|sample| sample.values.clone()).collect();
    values.sort();
    assert_eq!(values, [vec![40, 4000, 30, 3000], vec![100, 5000, 100, 5000]]);
    let mappings: Vec<_> = profile.mappings.iter().map(|(_, m)| (m.start, m.end, m.offset, m.file.as_str())).collect();
    assert_eq!(mappings, [(0x3000, 0x5000, 0x2000, "/bin/program"), (0x1_0000, 0x9_0000, 0, "/lib/other.so")]);
    let build = profile.mappings.iter().find_map(|(_, mapping)| mapping.build_id.clone());
    assert_eq!(build.as_deref(), Some(&[0xab; 20][..]));
    let mut addresses: Vec<_> = profile.locations.iter().map(|(_, location)| location.address).collect();
    addresses.sort_unstable();
    assert_eq!(addresses, [0x76, 0x300f, 0x1_233f], "each frame once");
}

/// Catches texts that move where notes on losses are added, and totals that are lost with the stacks.
#[test]
fn losses_are_said() {
    let (profile, bytes) = written(Kind::Heap, |table| {
        for i in 1..=20_000 {
            // 24 frames, most of which other stacks have too.
            let frames: Vec<u64> = (0..24).map(|depth| table.frame(1 + (i >> depth), &MAIN)).collect();
            table.allocated(i << 16, 16, 100, table.stack(&frames), i);
        }
    });
    let column = profile.column("alloc_space").unwrap();
    assert_eq!(profile.total(column), 2_000_000);
    // Each stack's blocks are rounded.
    let blocks = profile.total(profile.column("alloc_objects").unwrap());
    assert!((115_000..135_000).contains(&blocks), "{blocks}");
    assert!(
        profile
            .notes
            .iter()
            .any(|note| note.ends_with(" samples are without their stack, as there was no room for more stacks.")),
        "{:?}",
        profile.notes
    );
    assert!(bytes.len() < 1 << 20, "{}", bytes.len());
    assert_eq!(profile.shown, 3);
}

/// Catches a writer that goes on after a refusal, or says that all was written.
#[test]
fn a_refusal_ends_it() {
    let all: Vec<AtomicU64> = (0..words(LIVE_SHIFT)).map(|_| AtomicU64::new(0)).collect();
    let table = Table::set_up(&all, &[(Word::LiveShift, LIVE_SHIFT.into())], b"").unwrap();
    for i in 1..1000 {
        table.allocated(i << 16, 16, 100, table.stack(&[i, i + 1]), i);
    }
    let mut copy = vec![0; words(0)];
    table.copy(&mut copy);
    let view = View::of(&copy).unwrap();
    let mut pieces = 0;
    let done = pprof::write(&view, Kind::Heap, Time::default(), &mut vec![0; pprof::scratch(5000)], &mut |_| {
        pieces += 1;
        pieces < 3
    });
    assert!(!done && pieces == 3);
}
