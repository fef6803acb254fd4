//! Tests of the decoders, on bytes laid out as the kernel's.

use super::attr::{Counter, Event, sample};
use super::order::Order;
use super::record::{Decoder, Happened, Malformed, Mmap, Record};
use crate::FileId;

/// A record of the kernel's: header, words and bytes.
fn bytes(kind: u32, misc: u16, parts: &[&[u8]]) -> Vec<u8> {
    let mut body = parts.concat();
    body.resize(body.len().next_multiple_of(8), 0);
    let mut out = kind.to_ne_bytes().to_vec();
    out.extend(misc.to_ne_bytes());
    out.extend((8 + body.len() as u16).to_ne_bytes());
    out.extend(body);
    out
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn pair(low: u32, high: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

const BASE: u64 = sample::IDENTIFIER | sample::IP | sample::TID | sample::TIME | sample::ADDR;
const TRAILER: [u64; 3] = [7, 100, 1];

fn decoder(fields: u64) -> Decoder {
    let mut decoder = Decoder::default();
    decoder.add(1, Counter::Faults, fields, 2);
    decoder
}

fn one(fields: u64, bytes: &[u8]) -> Result<Record, Malformed> {
    let mut rest = bytes;
    let record = decoder(fields).next(&mut rest).expect("a record");
    assert_eq!(rest, b"");
    record
}

/// Catches a field of a sample that is read at the wrong place, alone and after all others.
#[test]
fn samples_with_every_field() {
    let head = [1, 0xcafe, pair(10, 11), 100, 0xdead_b000];
    let Happened::Sample(plain) = one(BASE, &bytes(9, 2, &[&words(&head)])).expect("valid").event else { panic!() };
    assert_eq!((plain.ip, plain.pid, plain.tid, plain.address), (0xcafe, 10, 11, 0xdead_b000));
    assert!(!plain.kernel && plain.page_size.is_none() && plain.physical.is_none() && plain.callers.is_none());

    let chain = [3, -512i64 as u64, 0xcafe, 0xbeef];
    let registers = [2, 0x51, 0x52];
    let mut stack = words(&[16]);
    stack.extend_from_slice(b"0123456789abcdef");
    stack.extend(words(&[10]));
    let body = [words(&head), words(&chain), words(&registers), stack, words(&[0x7000, 0x1000])].concat();
    let record = one(sample::KNOWN, &bytes(9, 1, &[&body])).expect("valid");
    assert_eq!(record.time, 100);
    let Happened::Sample(full) = record.event else { panic!() };
    let callers = full.callers.expect("asked for");
    assert_eq!(callers.chain, [0xcafe, 0xbeef]);
    assert_eq!(callers.registers, [0x51, 0x52]);
    assert_eq!(callers.stack, b"0123456789");
    assert_eq!((full.physical, full.page_size, full.kernel), (Some(0x7000), Some(0x1000), true));

    // A kernel thread has no registers and no stack of user mode.
    let body = [&head[..], &[0, 0, 0, 0, 0]].concat();
    let Happened::Sample(none) = one(sample::KNOWN, &bytes(9, 1, &[&words(&body)])).expect("valid").event else {
        panic!()
    };
    assert!(none.callers.is_some_and(|callers| callers.registers.is_empty() && callers.stack.is_empty()));
}

/// Catches records of processes and mappings that are read wrongly, or whose trailer is read as text.
#[test]
fn records_of_processes() {
    let record = |kind, misc, parts: &[&[u8]]| {
        let mut parts = parts.to_vec();
        let trailer = words(&TRAILER);
        parts.push(&trailer);
        let record = one(BASE, &bytes(kind, misc, &parts)).expect("valid");
        assert_eq!(record.time, 100);
        record.event
    };
    let ids = words(&[pair(10, 11)]);
    assert_eq!(
        record(3, 1 << 13, &[&ids, b"name-of-16-bytes"]),
        Happened::Comm { pid: 10, tid: 11, exec: true, name: b"name-of-16-bytes".to_vec() }
    );
    let four = words(&[pair(10, 1), pair(11, 2), 100]);
    assert_eq!(record(7, 0, &[&four]), Happened::Fork { pid: 10, tid: 11, parent_pid: 1, parent_tid: 2 });
    assert_eq!(record(4, 0, &[&four]), Happened::Exit { pid: 10, tid: 11 });
    assert_eq!(record(2, 0, &[&words(&[1, 42])]), Happened::Lost(42));
    assert_eq!(record(13, 0, &[&words(&[43])]), Happened::Lost(43));
    assert_eq!(record(99, 0, &[]), Happened::Other(99));
    let mapping = words(&[pair(10, 11), 0x1000, 0x2000, 0x3000, pair(8, 1), 77, 0, pair(5, 2)]);
    let expected = Mmap {
        pid: 10,
        tid: 11,
        start: 0x1000,
        length: 0x2000,
        offset: 0x3000,
        file: Some(FileId { major: 8, minor: 1, inode: 77 }),
        protection: 5,
        flags: 2,
        path: b"/bin/true".to_vec(),
    };
    assert_eq!(record(10, 2, &[&mapping, b"/bin/true\0\0\0\0\0\0\0"]), Happened::Mmap(Box::new(expected)));
}

/// Catches a decoder that reads beyond the end, or never ends, on bytes that are cut anywhere.
#[test]
fn bytes_that_end_anywhere() {
    let head = words(&[1, 0xcafe, pair(10, 11), 100, 0xdead_b000, 0, 0, 0, 0, 0]);
    let mut stream = bytes(9, 2, &[&head]);
    stream.extend(bytes(3, 0, &[&words(&[pair(1, 1), 0]), &words(&TRAILER)]));
    for end in 0..stream.len() {
        let mut rest = &stream[..end];
        let mut count = 0;
        while decoder(sample::KNOWN).next(&mut rest).is_some() {
            count += 1;
            assert!(count <= 3);
        }
    }
    // A size below that of a header would loop for ever.
    let mut rest: &[u8] = &[9, 0, 0, 0, 0, 0, 0, 0, 1, 2];
    assert_eq!(decoder(BASE).next(&mut rest), Some(Err(Malformed)));
    assert_eq!(decoder(BASE).next(&mut rest), None);
}

/// Catches a merge that hands records out before an earlier one can still come, or holds them for ever.
#[test]
fn rings_are_merged_in_order() {
    let record = |time| Record { time, event: Happened::Other(0) };
    let mut order = Order::default();
    let mut out = Vec::new();
    for round in [&[1, 5, 9][..], &[2, 7, 12], &[10, 11, 20], &[]] {
        round.iter().for_each(|&time| order.push(record(time)));
        order.end_round(|record| out.push(record.time));
    }
    assert_eq!(out, [1, 2, 5, 7, 9, 10, 11, 12, 20]);
    order.push(record(3));
    order.finish(|record| out.push(record.time));
    assert_eq!((out.last(), order.late()), (Some(&3), 1));
}

/// Catches a word of the attribute at the wrong offset: the kernel would count something else.
#[test]
fn the_attribute_is_the_kernels() {
    let event = Event {
        counter: Counter::MajorFaults,
        period: 1,
        fields: BASE,
        exclude_kernel: true,
        enable_on_exec: true,
        monotonic: false,
        bookkeeping: false,
        tells_lost: true,
        watermark: 4096,
        registers: 3,
        stack_bytes: 512,
        kernel_callers: false,
    };
    let attr = event.to_bytes();
    let u32_at = |at: usize| u32::from_ne_bytes(attr[at..at + 4].try_into().expect("four"));
    let u64_at = |at: usize| u64::from_ne_bytes(attr[at..at + 8].try_into().expect("eight"));
    assert_eq!((u32_at(0), u32_at(4), u64_at(8), u64_at(16), u64_at(24)), (1, 128, 6, 1, BASE));
    // disabled, inherit, exclude_kernel, exclude_hv, enable_on_exec, watermark, sample_id_all, no kernel callers
    assert_eq!(u64_at(40), 1 | 2 | 1 << 5 | 1 << 6 | 1 << 12 | 1 << 14 | 1 << 18 | 1 << 21);
    assert_eq!((u64_at(32), u32_at(48), u64_at(80), u32_at(88)), (1 << 4, 4096, 3, 512));

    let clock = Event { counter: Counter::Clock, period: 1_000_000, kernel_callers: true, ..event };
    let attr = clock.to_bytes();
    let u64_at = |at: usize| u64::from_ne_bytes(attr[at..at + 8].try_into().expect("eight"));
    // The same, without callers of the program.
    assert_eq!((u64_at(8), u64_at(16), u64_at(40) >> 21 & 3), (1, 1_000_000, 2));
}
