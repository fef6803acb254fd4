//! Tests of the tracker, with records like the kernel's.

mod mappings;

use super::*;
use crate::perf::record::{Callers, Mmap};
use crate::{FileId, Kind, MappingKind, Recorded};

struct Maps(Option<&'static str>);

impl World for Maps {
    fn maps(&mut self, _pid: u32) -> Option<Vec<u8>> {
        self.0.map(|text| text.as_bytes().to_vec())
    }
}

fn at(time: u64, event: Happened) -> Record {
    Record { time, event }
}

fn sample(counter: Counter, tid: u32, address: u64, page_size: u64, physical: Option<u64>) -> Happened {
    Happened::Sample(Box::new(Sample {
        counter,
        ip: 0x40_1000,
        pid: 10,
        tid,
        address,
        kernel: false,
        page_size: Some(page_size),
        physical,
        callers: None,
    }))
}

fn mmap(start: u64, length: u64, protection: u32, flags: u32, path: &str) -> Happened {
    let file = path.starts_with('/') && path != "//anon";
    Happened::Mmap(Box::new(Mmap {
        pid: 10,
        tid: 10,
        start,
        length,
        offset: 0,
        file: file.then_some(FileId { major: 8, minor: 1, inode: 99 }),
        protection,
        flags,
        path: path.into(),
    }))
}

fn exec() -> Happened {
    Happened::Comm { pid: 10, tid: 10, exec: true, name: b"prog".to_vec() }
}

fn run(records: &[Record], maps: Option<&'static str>) -> Recorded {
    let (mut tracker, mut faults) = (Tracker::default(), Vec::new());
    for record in records {
        tracker.record(record, &mut Maps(maps), &mut |fault| faults.push(fault));
    }
    tracker.finish(&mut |fault| faults.push(fault));
    assert!(faults.iter().enumerate().all(|(i, fault)| fault.number == i as u64 + 1), "in order, none missing");
    Recorded { tables: tracker.into_tables().0, faults }
}

/// Catches false callers: where frame pointers lead in code that uses the register for something else.
#[test]
fn callers_lie_in_mappings() {
    let chain = vec![0x40_1000, 0x40_1800, 0x40_2000, 0x632e_6e69, 0x40_1900];
    let Happened::Sample(mut sample) = sample(Counter::Faults, 10, 0x7000, 4096, None) else { unreachable!() };
    sample.callers = Some(Box::new(Callers { chain, ..Callers::default() }));
    let records = [
        at(1, exec()),
        at(2, mmap(0x40_0000, 0x2000, 5, 2, "/bin/prog")),
        at(3, Happened::Sample(sample.clone())),
        // Nothing is known of where this one's code lies.
        at(4, Happened::Sample(Box::new(Sample { pid: 11, ..*sample }))),
    ];
    let Recorded { tables, faults } = run(&records, None);
    let stack = |number: usize| {
        let node = |id: StackId| &tables.stacks[id];
        std::iter::successors(faults[number].stack, |&id| node(id).parent)
            .map(|id| node(id).address)
            .collect::<Vec<_>>()
    };
    // The end of a mapping is the return address of a call at its end.
    assert_eq!(stack(0), [0x40_1000, 0x40_17ff, 0x40_1fff]);
    assert_eq!(stack(1), [0x40_1000]);
}

/// A fault: its beginning, and its end 100 ns later.
fn fault(time: u64, address: u64, before: u64, after: u64, physical: Option<u64>, major: bool) -> [Record; 2] {
    let end = if major { Counter::MajorFaults } else { Counter::MinorFaults };
    [
        at(time, sample(Counter::Faults, 10, address, before, physical.map(|_| 0))),
        at(time + 100, sample(end, 10, address, after, physical)),
    ]
}

/// Catches a kind that differs from docs/pagein.md.
#[test]
fn kinds() {
    const RW: u32 = 3;
    const PRIVATE: u32 = 2;
    const SHARED: u32 = 1;
    let mut records = vec![
        at(1, exec()),
        at(2, mmap(0x40_0000, 0x4000, 5, PRIVATE, "/bin/prog")),
        at(3, mmap(0x40_4000, 0x4000, RW, PRIVATE, "/bin/prog")),
        at(4, mmap(0x7000_0000, 0x40_0000, RW, PRIVATE, "//anon")),
        at(5, mmap(0x8000_0000, 0x4000, RW, SHARED, "/tmp/shared")),
    ];
    let cases = [
        ((0x40_1000, 0, 0x1000, None, true), Kind::FileMajor, false),
        ((0x40_2000, 0, 0x1000, None, false), Kind::FileMinor, false),
        ((0x40_4000, 0, 0x1000, None, false), Kind::FileMinor, true),
        ((0x40_5000, 0x1000, 0x1000, None, false), Kind::CopyOnWrite, false),
        ((0x7000_0000, 0, 0x1000, None, false), Kind::Anonymous, true),
        ((0x7000_1000, 0, 0x1000, Some(0x5000), false), Kind::Anonymous, false),
        ((0x7000_2000, 0, 0x1000, Some(0), false), Kind::ZeroPage, false),
        ((0x7000_3000, 0, 0x1000, None, true), Kind::SwapIn, false),
        ((0x7020_0000, 0, 0x20_0000, None, false), Kind::Huge, false),
        ((0x8000_0000, 0, 0x1000, None, false), Kind::FileMinor, false),
        ((0x8000_0000, 0x1000, 0x1000, None, false), Kind::FileMinor, false),
    ];
    for (i, ((address, before, after, physical, major), ..)) in cases.iter().enumerate() {
        records.extend(fault(1000 * (i as u64 + 1), *address, *before, *after, *physical, *major));
    }
    let trace = run(&records, None);
    for (fault, (_, kind, guessed)) in trace.faults.iter().zip(cases) {
        assert_eq!((fault.kind, fault.guessed), (kind, guessed), "{fault:x?}");
        assert_eq!(fault.service, Some(100));
    }
    let first = &trace.faults[0];
    assert_eq!((first.time, first.subject, first.access), (0, Subject::Code, Access::Execute));
    assert_eq!(trace.faults[1].subject, Subject::Data);
    assert_eq!((trace.faults[8].page_shift, trace.faults[8].page()), (Some(21), 0x7020_0000));
}

/// Catches a fault without an end that takes the next one's end, and one whose beginning was lost and that is dropped.
#[test]
fn beginnings_and_ends_that_do_not_match() {
    let begin = |time, tid, address| at(time, sample(Counter::Faults, tid, address, 0, None));
    let end = |time, tid, address| at(time, sample(Counter::MinorFaults, tid, address, 0x1000, None));
    let records = [
        at(1, exec()),
        at(2, mmap(0x7000_0000, 0x1_0000, 3, 2, "//anon")),
        begin(10, 10, 0xdead_0000), // SIGSEGV
        begin(20, 11, 0x7000_0000), // another thread, slow
        begin(30, 10, 0x7000_1000),
        end(40, 10, 0x7000_1000),
        end(50, 11, 0x7000_0000),
        end(60, 10, 0x7000_2000), // its beginning was lost
        begin(70, 10, 0x7000_3000),
        at(80, Happened::Exit { pid: 10, tid: 10 }),
    ];
    let trace = run(&records, None);
    let seen: Vec<_> = trace.faults.iter().map(|f| (f.address, f.service, f.kind)).collect();
    assert_eq!(
        seen,
        [
            (0xdead_0000, None, Kind::Refused),
            (0x7000_0000, Some(30), Kind::Anonymous),
            (0x7000_1000, Some(10), Kind::Anonymous),
            (0x7000_2000, None, Kind::Anonymous),
            (0x7000_3000, None, Kind::Refused),
        ]
    );
}

/// Catches mappings that fork does not inherit, or that survive exec, and images of one pid that are mixed up.
#[test]
fn fork_and_exec() {
    let mut other = fault(100, 0x7000_0000, 0, 0x1000, None, false);
    for record in &mut other {
        if let Happened::Sample(sample) = &mut record.event {
            (sample.pid, sample.tid) = (20, 20);
        }
    }
    let mut records = vec![
        at(1, exec()),
        at(2, mmap(0x7000_0000, 0x1_0000, 3, 2, "//anon")),
        at(3, Happened::Fork { pid: 20, tid: 20, parent_pid: 10, parent_tid: 10 }),
    ];
    records.extend(other);
    records.push(at(300, exec()));
    records.extend(fault(400, 0x7000_0000, 0, 0x1000, None, false));
    let trace = run(&records, None);
    let [first, second] = &trace.faults[..] else { panic!("{:?}", trace.faults) };
    assert!(first.mapping.is_some() && second.mapping.is_none());
    let process = trace.tables.process_of(second);
    assert_eq!((process.pid, process.image, process.name.as_str()), (10, 1, "prog"));
    assert_eq!(trace.tables.process_of(first).parent.map(Id::index), Some(0));
}

/// Catches a trace that does not report late records, or that the kernel does not report page sizes.
#[test]
fn what_is_missing_is_reported() {
    let lines = |sizes: bool, begins: bool, late: u64| {
        let mut tracker = Tracker::default();
        if begins {
            tracker.only_begins();
        }
        let mut event = sample(Counter::MinorFaults, 10, 0x1000, 0x1000, None);
        if let Happened::Sample(sample) = &mut event {
            sample.page_size = sample.page_size.filter(|_| sizes);
        }
        tracker.record(&at(1, event), &mut Maps(None), &mut |_| {});
        tracker.note_late(late);
        tracker.finish(&mut |_| {});
        tracker.into_tables().0.summary.missing
    };
    assert!(lines(true, false, 0).is_empty() && lines(false, true, 0).is_empty());
    assert!(lines(false, false, 0)[0].starts_with("sizes of pages"));
    assert!(lines(true, true, 3)[0].starts_with("the order of 3 records"));
}

/// Catches faults without ends that count as refused where ends are not recorded.
#[test]
fn beginnings_only() {
    let (mut tracker, mut faults) = (Tracker::default(), Vec::new());
    tracker.only_begins();
    let records = [
        at(1, exec()),
        at(2, mmap(0x1000, 0x1000, 3, 2, "//anon")),
        at(3, sample(Counter::Faults, 10, 0x1000, 0, None)),
        at(4, sample(Counter::Faults, 10, 0x1000, 0, None)),
        at(5, sample(Counter::MajorFaults, 10, 0x1000, 4096, None)),
    ];
    for record in &records {
        tracker.record(record, &mut Maps(None), &mut |fault| faults.push(fault));
    }
    tracker.note_lost(3);
    tracker.finish(&mut |fault| faults.push(fault));
    assert_eq!(faults.iter().map(|fault| fault.kind).collect::<Vec<_>>(), [Kind::Anonymous, Kind::SwapIn]);
    assert!(faults[0].guessed && faults[0].service.is_none() && faults[1].service == Some(1));
    assert_eq!((tracker.not_completed(), tracker.into_tables().0.summary.lost), (0, 3));
}

/// A world in which everything is one block.
struct OneBlock;

impl World for OneBlock {
    fn maps(&mut self, _pid: u32) -> Option<Vec<u8>> {
        None
    }

    fn block(&mut self, _pid: u32, _address: u64) -> Option<HeapBlock> {
        Some(HeapBlock { address: ARENA + 0x10_0000, size: 64 << 10 })
    }
}

const ARENA: u64 = 3 << 36;

/// Catches blocks outside of arenas or in processes that do not run on neap, and a row for each fault of a block.
#[test]
fn blocks_of_arenas() {
    let arena = at(2, mmap(ARENA, 1 << 36, 3, 2, "//anon"));
    let library = at(3, mmap(0x7000_0000_0000, 0x1000, 5, 2, "/cache/libneap.so"));
    let other = at(4, mmap(0x5000, 0x1000, 3, 2, "//anon"));
    let faults = [ARENA + 0x10_1000, ARENA + 0x10_2000, 0x5000]
        .map(|address| at(5, sample(Counter::MinorFaults, 10, address, 4096, None)));
    for neap in [true, false] {
        let (mut tracker, mut seen) = (Tracker::default(), Vec::new());
        let before = [at(1, exec()), arena.clone(), other.clone()];
        for record in before.iter().chain(neap.then_some(&library)).chain(&faults) {
            tracker.record(record, &mut OneBlock, &mut |fault| seen.push(fault));
        }
        tracker.finish(&mut |fault| seen.push(fault));
        assert_eq!(tracker.wants_blocks(), neap);
        assert_eq!(seen.iter().map(|fault| fault.block.is_some()).collect::<Vec<_>>(), [neap, neap, false]);
        assert_eq!(tracker.into_tables().0.blocks.len(), usize::from(neap));
    }
}
