//! Tests of the tracker, with records as the kernel sends them.

use super::*;
use crate::perf::record::Mmap;
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

/// A fault: its beginning, and its end 100 ns later.
fn fault(time: u64, address: u64, before: u64, after: u64, physical: Option<u64>, major: bool) -> [Record; 2] {
    let end = if major { Counter::MajorFaults } else { Counter::MinorFaults };
    [
        at(time, sample(Counter::Faults, 10, address, before, physical.map(|_| 0))),
        at(time + 100, sample(end, 10, address, after, physical)),
    ]
}

/// Catches a kind that is decided otherwise than docs/pagein.md says.
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

/// Catches a fault without an end that takes the next one's, and one whose beginning was lost that is dropped.
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

/// Catches mappings that are not inherited by fork, or that survive exec, and images under one pid that are mixed up.
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

/// Catches heap, bss, stack and remapped memory that are not recognised.
#[test]
fn mappings_that_records_do_not_name() {
    let mut records = vec![
        at(1, exec()),
        at(2, mmap(0x40_0000, 0x4000, 3, 2, "/bin/prog")),
        at(3, mmap(0x40_4000, 0x1000, 3, 2, "//anon")),
        at(3, mmap(0x6000_0000, 0x4000, 1, 2, "/bin/prog")),
        at(4, mmap(0x1000_0000, 0x1000, 3, 2, "//anon")),
        at(5, mmap(0x1000_0000, 0x3000, 3, 2, "//anon")),
        at(6, mmap(0x7fff_0000, 0x1000, 3, 2, "[stack]")),
    ];
    for (i, address) in [0x40_4000, 0x1000_2000, 0x7ffe_0000, 0x7100_0000].into_iter().enumerate() {
        records.extend(fault(20_000_000 * (i as u64 + 1), address, 0, 0x1000, None, false));
    }
    let trace = run(&records, Some("71000000-71002000 rw-p 00000000 00:00 0 \n"));
    let mapping = |i: usize| &trace.tables.mappings[trace.faults[i].mapping.expect("known")];
    assert_eq!(mapping(0).describe(&trace.tables), "/bin/prog");
    assert_eq!((mapping(0).offset, &mapping(0).kind), (0x4000, &MappingKind::Anonymous));
    assert_eq!((mapping(1).kind.name(), mapping(1).end), ("heap", 0x1000_3000));
    assert_eq!(mapping(2).kind, MappingKind::Stack);
    assert_eq!(mapping(3).start, 0x7100_0000);
    assert_eq!(trace.tables.mappings.len(), 6, "the heap grew, it was not added again");
}

/// Catches a copy of all mappings at each one that is made, and rows that are looked for one after another.
#[test]
fn many_mappings() {
    const COUNT: u64 = 50_000;
    let mut tracker = Tracker::default();
    let mut take = |record: &Record, own: bool| {
        tracker.record(record, &mut Maps(None), &mut |_| {});
        let alone = tracker.processes.get(&10).is_some_and(|process| process.space.is_own() && process.code.is_own());
        assert!(alone || !own, "the next mapping would copy all others");
    };
    take(&at(1, exec()), true);
    for i in 0..COUNT {
        let protection = if i % 2 == 0 { 3 } else { 5 };
        take(&at(2 + i, mmap(0x7000_0000 + i * 0x2000, 0x1000, protection, 2, "//anon")), true);
    }
    // A child shares them, until one of both has a mapping more; and then they are both alone again.
    take(&at(COUNT + 3, Happened::Fork { pid: 20, tid: 20, parent_pid: 10, parent_tid: 10 }), false);
    take(&at(COUNT + 4, mmap(0x1000, 0x1000, 3, 2, "//anon")), true);
    assert_eq!(tracker.tables().mappings.len() as u64, COUNT + 1);
}

/// Catches a row for each time that a program maps and unmaps something at one place, and rows that are mixed up then.
#[test]
fn what_is_mapped_again_is_no_row_more() {
    const RW: u32 = 3;
    const CODE: u32 = 5;
    const PRIVATE: u32 = 2;
    let mut records = vec![at(1, exec())];
    let mut time = 1;
    let mut map = |start: u64, length: u64, protection, path: &str| {
        time += 1;
        records.push(at(time, mmap(start, length, protection, PRIVATE, path)));
    };
    for i in 0..1000 {
        // Anonymous memory of any size, and files one after another, at the same place.
        map(0x7000_0000, 0x1000 * (1 + i * 7 % 13), RW, "//anon");
        map(0x7000_1000, 0x1000, [0, RW][i as usize % 2], "//anon");
        map(0x7000_0000, 0x3000, 1, ["/lib/a", "/lib/b"][i as usize % 2]);
        // Memory of a compiler: written, then run.
        map(0x8000_0000, 0x4000, RW, "//anon");
        map(0x8000_1000, 0x1000, CODE, "//anon");
    }
    records.extend(fault(9_000, 0x7000_2000, 0, 0x1000, None, false));
    let trace = run(&records, None);
    let rows: Vec<_> =
        trace.tables.mappings.iter().map(|(_, row)| (row.start, row.end, row.protection.to_string())).collect();
    assert_eq!(
        rows,
        [
            (0x7000_0000, 0x7000_d000, "rw-".to_owned()),
            (0x7000_1000, 0x7000_2000, "---".to_owned()),
            (0x7000_0000, 0x7000_3000, "r--".to_owned()),
            (0x8000_0000, 0x8000_4000, "rw-".to_owned()),
            (0x8000_1000, 0x8000_2000, "r-x".to_owned()),
            (0x7000_0000, 0x7000_3000, "r--".to_owned()),
        ]
    );
    let mapping = &trace.tables.mappings[trace.faults[0].mapping.expect("known")];
    assert_eq!((mapping.describe(&trace.tables).as_str(), mapping.until), ("/lib/b", None));
}

/// Catches a library that is mapped again under its old row although another one was there in between: whose code it was
/// at a time is told by the order of rows; and positions in files that are wrong where a row became wider.
#[test]
fn code_keeps_its_order() {
    let code = |time, start, length, path| at(time, mmap(start, length, 5, 2, path));
    let again = [code(2, 0x7000_2000, 0x2000, "/lib/a"), code(3, 0x7000_2000, 0x2000, "/lib/a")];
    let trace = run(&[&[at(1, exec())], &again[..]].concat(), None);
    assert_eq!(trace.tables.mappings.len(), 1);
    let other = [code(4, 0x7000_3000, 0x1000, "/lib/b"), code(5, 0x7000_2000, 0x2000, "/lib/a")];
    let trace = run(&[&[at(1, exec())], &again[..], &other[..]].concat(), None);
    let names: Vec<_> = trace.tables.mappings.iter().map(|(_, row)| row.describe(&trace.tables)).collect();
    assert_eq!(names, ["/lib/a", "/lib/b", "/lib/a"]);
    // The same file, from another position on, at the address that belongs to it.
    let mut part = mmap(0x7000_1000, 0x3000, 1, 2, "/lib/a");
    let mut whole = mmap(0x7000_0000, 0x8000, 1, 2, "/lib/a");
    if let (Happened::Mmap(part), Happened::Mmap(whole)) = (&mut part, &mut whole) {
        (part.offset, whole.offset) = (0x5000, 0x4000);
    }
    let trace = run(&[at(1, exec()), at(2, part), at(3, whole)], None);
    let rows: Vec<_> = trace.tables.mappings.iter().map(|(_, row)| (row.start, row.end, row.offset)).collect();
    assert_eq!(rows, [(0x7000_0000, 0x7000_8000, 0x4000)]);
}

/// Catches tables that grow without end where a program maps something else each time, and a trace that does not say
/// what it left out.
#[test]
fn mappings_have_a_limit() {
    let (mut tracker, mut faults) = (Tracker::default(), Vec::new());
    tracker.record(&at(1, exec()), &mut Maps(None), &mut |_| {});
    for i in 0..MAX_MAPPINGS as u64 + 5 {
        let record = at(2, mmap(0x1_0000_0000 + i * 0x2000, 0x1000, 3, 2, "//anon"));
        tracker.record(&record, &mut Maps(None), &mut |_| {});
    }
    for record in fault(3, 0x1_0000_0000 + (MAX_MAPPINGS as u64 + 1) * 0x2000, 0, 0x1000, None, false) {
        tracker.record(&record, &mut Maps(None), &mut |fault| faults.push(fault));
    }
    tracker.finish(&mut |fault| faults.push(fault));
    let tables = tracker.into_tables().0;
    assert_eq!((tables.mappings.len(), faults[0].mapping), (MAX_MAPPINGS, None));
    assert!(tables.summary.missing.iter().any(|line| line.starts_with("5 mappings")), "{:?}", tables.summary.missing);
}

/// Catches files that are one because their paths are, and the vdso of 32-bit programs that is taken for the other one.
#[test]
fn objects_are_files() {
    let named = |time, start, path: &str, inode| {
        let mut event = mmap(start, 0x1000, 5, 2, path);
        if let Happened::Mmap(mmap) = &mut event {
            mmap.file = (inode != 0).then_some(FileId { major: 8, minor: 1, inode });
        }
        at(time, event)
    };
    let records = [
        at(1, exec()),
        named(2, 0x40_0000, "/bin/prog", 7),
        named(3, 0x50_0000, "/lib/x", 8),
        named(4, 0x60_0000, "/lib/x", 9),
        named(5, 0xf7f0_0000, "[vdso]", 0),
        named(6, 0x7fff_f7f0_0000, "[vdso]", 0),
    ];
    let mut tracker = Tracker::default();
    for record in &records {
        tracker.record(record, &mut Maps(None), &mut |_| {});
    }
    let seen = tracker.take_sightings();
    assert_eq!((seen.len(), seen[1].pid, seen[1].start, seen[1].end), (5, 10, 0x50_0000, 0x50_1000));
    assert!(tracker.take_sightings().is_empty());
    let tables = tracker.into_tables().0;
    let objects: Vec<_> =
        tables.objects.iter().map(|(_, row)| (row.path.as_str(), row.file.map(|file| file.inode))).collect();
    let expected =
        [("/bin/prog", Some(7)), ("/lib/x", Some(8)), ("/lib/x", Some(9)), ("[vdso32]", None), ("[vdso]", None)];
    assert_eq!(objects, expected);
}

/// Catches a trace that does not tell that records came late, or that a kernel does not tell the sizes of pages.
#[test]
fn what_is_missing_is_told() {
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

/// Catches ranges that overlap, vanish or are reported gone while a part is left, on random histories.
#[test]
fn the_space_is_a_map() {
    let mut state = 1u64;
    let mut random = |limit: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % limit
    };
    for _ in 0..200 {
        let (mut space, mut model) = (Space::default(), [None; 64]);
        for step in 0..40 {
            let (start, length) = (random(60), random(12));
            let (id, end) = (MappingId::from_index(step), (start + length).min(64));
            let before = model;
            (start..end).for_each(|page| model[page as usize] = Some(id));
            for gone in space.map(start, end, id) {
                assert!(before.contains(&Some(gone)), "it was there");
            }
            for page in 0..64 {
                assert_eq!(space.find(page), model[page as usize]);
            }
            assert!(space.ranges().windows(2).all(|w| w[0].1 <= w[1].0) && space.ranges().iter().all(|r| r.0 < r.1));
        }
    }
}

/// Catches lines of maps that are read wrong, or an end in the middle that is not survived.
#[test]
fn lines_of_maps() {
    let text = b"55cef134c000-55cef1372000 r--p 00001000 fe:00 247493                     /usr/bin/l s (deleted)\n\
        7f0000000000-7f0000001000 rw-s 00000000 00:00 0 \nrubbish\n1-0 rwxp 0 0:0 0 x\n";
    let lines: Vec<_> = parse_maps(text).collect();
    assert_eq!(lines.len(), 2);
    assert_eq!((lines[0].start, lines[0].offset), (0x55ce_f134_c000, 0x1000));
    assert_eq!(lines[0].file(), Some(FileId { major: 0xfe, minor: 0, inode: 247_493 }));
    assert_eq!(lines[1].file(), None);
    assert_eq!(
        (lines[0].path, lines[1].path, lines[1].flags),
        (&b"/usr/bin/l s (deleted)"[..], &b""[..], &b"rw-s"[..])
    );
    for end in 0..text.len() {
        assert!(parse_maps(&text[..end]).count() <= 3);
    }
}

/// Catches arithmetic on addresses that no kernel sends: mappings without a length, and at the end of all addresses.
#[test]
fn mappings_at_the_edges() {
    let records = [
        at(1, exec()),
        at(2, mmap(0, 0, 5, 2, "/bin/prog")),
        at(3, mmap(0, 0, 3, 2, "//anon")),
        at(4, mmap(u64::MAX - 0xfff, u64::MAX, 7, 2, "/bin/prog")),
        at(5, mmap(0x1000, 0, 3, 2, "//anon")),
        at(6, sample(Counter::Faults, 10, u64::MAX, 0, None)),
    ];
    let trace = run(&records, None);
    assert_eq!((trace.faults.len(), trace.tables.mappings.len()), (1, 1));
}

/// Catches faults without ends that are called refused where ends are not recorded.
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

/// Catches blocks in memory that is no arena or in processes that do not run on neap, and a row for each fault of a block.
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
