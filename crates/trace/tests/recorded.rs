//! Decoders and tracker on what a kernel wrote (Linux 6.18, x86-64, two processors).
//!
//! `fixtures/forks.ring` is the contents of both rings, one read after another, as `Ring::read` of `neap pagein` handed
//! them out, for the program `fixtures/forks.c`. The numbers of its events are below.

use neap_trace::perf::attr::{Counter, sample};
use neap_trace::perf::order::Order;
use neap_trace::perf::record::Decoder;
use neap_trace::track::{Tracker, World};
use neap_trace::{Kind, MappingKind, Mode, Recorded, Subject};

const FORKS: &[u8] = include_bytes!("fixtures/forks.ring");

/// There is no process to ask: only the kernel's records of mappings.
struct NoProcess;

impl World for NoProcess {
    fn maps(&mut self, _pid: u32) -> Option<Vec<u8>> {
        None
    }
}

fn decoder() -> Decoder {
    let base = sample::IDENTIFIER | sample::IP | sample::TID | sample::TIME | sample::ADDR;
    let mut decoder = Decoder::default();
    // Four events on each processor, in the order in which they were opened.
    for first in [8469, 8473] {
        decoder.add(first, Counter::Dummy, base, 0);
        for (id, counter) in (first + 1..).zip([Counter::Faults, Counter::MinorFaults, Counter::MajorFaults]) {
            decoder.add(id, counter, base | sample::DATA_PAGE_SIZE, 0);
        }
    }
    decoder
}

fn trace() -> Recorded {
    let (trace, counts) = trace_of(&decoder(), FORKS);
    assert_eq!(counts, [0, 0, 0]);
    trace
}

/// The trace of a ring, and three counts: faults without an end, faults of processes that were not waited for, and late
/// records.
fn trace_of(decoder: &Decoder, ring: &[u8]) -> (Recorded, [u64; 3]) {
    let (mut order, mut tracker) = (Order::default(), Tracker::default());
    let (mut rest, mut faults) = (ring, Vec::new());
    while let Some(record) = decoder.next(&mut rest) {
        order.push(record.expect("a kernel's record"));
    }
    order.finish(|record| tracker.record(&record, &mut NoProcess, &mut |fault| faults.push(fault)));
    tracker.finish(&mut |fault| faults.push(fault));
    let counts = [tracker.not_completed(), tracker.not_waited_for(), order.late()];
    (Recorded { tables: tracker.into_tables().0, faults }, counts)
}

/// Catches faults that are lost on the way, or lose their end or their mapping.
#[test]
fn every_fault_is_whole() {
    let trace = trace();
    assert_eq!(trace.faults.len(), 44);
    for (fault, number) in trace.faults.iter().zip(1..) {
        assert_eq!(fault.number, number);
        assert!(fault.service.is_some_and(|service| (500..100_000).contains(&service)), "{fault:?}");
        assert!(fault.mapping.is_some() && fault.page_shift == Some(12), "{fault:x?}");
        assert_eq!(fault.mode == Mode::Kernel, fault.ip >> 63 == 1);
    }
    assert!(trace.faults.windows(2).all(|pair| pair[0].time <= pair[1].time));
    assert_eq!(trace.faults[2].subject, Subject::Code);
}

/// Catches kinds and processes that are mixed up, in the program's own faults, whose causes are known.
#[test]
fn causes_of_the_programs_own_faults() {
    let trace = trace();
    let of = |number: usize| {
        let fault = &trace.faults[number - 1];
        (fault.address & 0xfff_f000, fault.kind, fault.guessed, trace.tables.process_of(fault).pid)
    };
    // p[0] is read, then written; p[1] is written. Which of the first and the third was a read, records do not tell.
    assert_eq!(of(27), (0x87e_a000, Kind::Anonymous, true, 13556));
    assert_eq!(of(28), (0x87e_a000, Kind::CopyOnWrite, false, 13556));
    assert_eq!(of(29), (0x87e_b000, Kind::Anonymous, true, 13556));
    // The child: p[2] is its own, p[0] it shares with its parent.
    assert_eq!(of(38), (0x87e_c000, Kind::Anonymous, true, 13558));
    assert_eq!(of(39), (0x87e_a000, Kind::CopyOnWrite, false, 13558));
    let child = trace.tables.process_of(&trace.faults[38]);
    let parent = &trace.tables.processes[child.parent.expect("forked")];
    assert_eq!((parent.pid, parent.path.as_deref(), parent.end.is_some()), (13556, Some("/tmp/fixture"), true));
}

/// Catches mappings without a name: heap, stack, bss and the program's file.
#[test]
fn mappings_of_the_program() {
    let trace = trace();
    let kind = |number: usize| {
        let mapping = trace.faults[number - 1].mapping.map(|id| &trace.tables.mappings[id]);
        let mapping = mapping.expect("known");
        (mapping.kind.clone(), mapping.describe(&trace.tables))
    };
    assert_eq!(kind(3), (MappingKind::File, "/tmp/fixture".to_owned()));
    assert_eq!(kind(4), (MappingKind::Anonymous, "/tmp/fixture".to_owned()), "bss");
    assert_eq!(kind(16).0, MappingKind::Heap);
    assert_eq!(kind(20).0, MappingKind::Stack);
    assert_eq!(kind(27), (MappingKind::Anonymous, "[anon]".to_owned()));
}

/// Catches fuzzing seeds that the targets reject: the ring above, with the numbers of events that the target `records`
/// knows, whole and cut; the mappings of `texts`; and the kept files that are the seeds of `traces`.
#[test]
fn seeds_of_the_fuzzer() {
    let decoder = || {
        let base = sample::IDENTIFIER | sample::IP | sample::TID | sample::TIME | sample::ADDR;
        let mut decoder = Decoder::default();
        for (id, counter) in (1..).zip([Counter::Faults, Counter::MinorFaults, Counter::MajorFaults]) {
            decoder.add(id, counter, base | sample::DATA_PAGE_SIZE, 0);
        }
        decoder
    };
    let seed = |name: &str| {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(name);
        std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    let ring = seed("records/forks");
    assert_eq!(trace_of(&decoder(), &ring).0.faults.len(), 44);
    let begins = seed("records/begins");
    assert!(ring.starts_with(&begins) && begins.len() % 16 == 8);
    assert_eq!(trace_of(&decoder(), &begins).0.faults.len(), 44);
    assert_eq!(neap_process::maps::parse_maps(&seed("texts/maps")).count(), 8);
    for kept in ["small.json", "small.csv"] {
        let bytes = seed(&format!("../../crates/trace/tests/snapshots/{kept}"));
        assert!(neap_trace::diff::read(&mut &bytes[..]).is_ok_and(|totals| totals.faults == 6), "{kept}");
    }
}

/// Catches a panic, or an endless loop, on rings that are cut or damaged.
#[test]
fn damaged_rings() {
    for position in 0..FORKS.len() {
        let mut damaged = FORKS.to_vec();
        damaged[position] ^= 0x41;
        for bytes in [&damaged[..], &FORKS[..position]] {
            let (decoder, mut order, mut tracker, mut rest) = (decoder(), Order::default(), Tracker::default(), bytes);
            while let Some(record) = decoder.next(&mut rest) {
                record.into_iter().for_each(|record| order.push(record));
            }
            let mut count = 0;
            order.finish(|record| tracker.record(&record, &mut NoProcess, &mut |_| count += 1));
            tracker.finish(&mut |_| count += 1);
            assert!(count <= 88);
        }
    }
}
