//! Tests of mappings: which row an address has, and how many rows there are.

use super::*;
use crate::track::file_of;
use neap_process::maps::parse_maps;

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

/// Catches a copy of all mappings for each new one, and a linear search for rows.
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
    // A child shares them until one of both adds a mapping; then neither copies any more.
    take(&at(COUNT + 3, Happened::Fork { pid: 20, tid: 20, parent_pid: 10, parent_tid: 10 }), false);
    take(&at(COUNT + 4, mmap(0x1000, 0x1000, 3, 2, "//anon")), true);
    assert_eq!(tracker.tables().mappings.len() as u64, COUNT + 1);
}

/// Catches a row for each time that a program maps and unmaps memory at one place, and rows that are mixed up.
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
        // Memory of a JIT compiler: written, then executed.
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

/// Catches a library that is mapped again under its old row although another one was there in between (the order of
/// rows shows whose code was there at a time), and wrong file positions in rows that became wider.
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
    // The same file, from another position on, at the address that matches it.
    let mut part = mmap(0x7000_1000, 0x3000, 1, 2, "/lib/a");
    let mut whole = mmap(0x7000_0000, 0x8000, 1, 2, "/lib/a");
    if let (Happened::Mmap(part), Happened::Mmap(whole)) = (&mut part, &mut whole) {
        (part.offset, whole.offset) = (0x5000, 0x4000);
    }
    let trace = run(&[at(1, exec()), at(2, part), at(3, whole)], None);
    let rows: Vec<_> = trace.tables.mappings.iter().map(|(_, row)| (row.start, row.end, row.offset)).collect();
    assert_eq!(rows, [(0x7000_0000, 0x7000_8000, 0x4000)]);
}

/// Catches tables that grow without end where a program keeps mapping other things, and a trace that does not report
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

/// Catches files that are merged because their paths are equal, and the vdso of 32-bit programs that is merged with the
/// other one.
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

/// Catches ranges that overlap, vanish, or are reported as gone while a part is left, on random histories.
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

/// Catches lines of maps that are read wrongly, and a panic on text that is cut in the middle.
#[test]
fn lines_of_maps() {
    let text = b"55cef134c000-55cef1372000 r--p 00001000 fe:00 247493                     /usr/bin/l s (deleted)\n\
        7f0000000000-7f0000001000 rw-s 00000000 00:00 0 \nrubbish\n1-0 rwxp 0 0:0 0 x\n";
    let lines: Vec<_> = parse_maps(text).collect();
    assert_eq!(lines.len(), 2);
    assert_eq!((lines[0].start, lines[0].offset), (0x55ce_f134_c000, 0x1000));
    assert_eq!(file_of(&lines[0]), Some(FileId { major: 0xfe, minor: 0, inode: 247_493 }));
    assert_eq!(file_of(&lines[1]), None);
    assert_eq!(
        (lines[0].path, lines[1].path, lines[1].flags),
        (&b"/usr/bin/l s (deleted)"[..], &b""[..], &b"rw-s"[..])
    );
    for end in 0..text.len() {
        assert!(parse_maps(&text[..end]).count() <= 3);
    }
}

/// Catches overflows with addresses that no kernel sends: mappings without a length, and at the end of the address
/// space.
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
