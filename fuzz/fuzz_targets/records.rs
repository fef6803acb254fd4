//! Any bytes are the contents of a ring, and then a packed chunk of faults: decoder, order and tracker must end with
//! faults that can be written.
#![no_main]

use libfuzzer_sys::fuzz_target;
use neap_trace::compact::{Packer, Unpacker};
use neap_trace::format::FORMATS;
use neap_trace::perf::attr::{Counter, sample};
use neap_trace::perf::order::Order;
use neap_trace::perf::record::Decoder;
use neap_trace::track::{Tracker, World};
use neap_trace::Recorded;

struct Nothing;

impl World for Nothing {
    fn maps(&mut self, _pid: u32) -> Option<Vec<u8>> {
        None
    }
}

fuzz_target!(|bytes: &[u8]| {
    let base = sample::IDENTIFIER | sample::IP | sample::TID | sample::TIME | sample::ADDR;
    let mut decoder = Decoder::default();
    decoder.add(1, Counter::Faults, base | sample::DATA_PAGE_SIZE, 0);
    decoder.add(2, Counter::MinorFaults, base | sample::DATA_PAGE_SIZE, 0);
    decoder.add(3, Counter::MajorFaults, base | sample::DATA_PAGE_SIZE, 0);
    decoder.add(4, Counter::Faults, sample::KNOWN, 2);
    let (mut order, mut tracker, mut trace) = (Order::default(), Tracker::default(), Recorded::default());
    if bytes.len() % 16 == 8 {
        tracker.only_begins();
    }
    let mut rest = bytes;
    while let Some(record) = decoder.next(&mut rest) {
        if let Ok(record) = record {
            order.push(record);
        }
    }
    order.finish(|record| tracker.record(&record, &mut Nothing, &mut |fault| trace.faults.push(fault)));
    tracker.finish(&mut |fault| trace.faults.push(fault));
    assert!(trace.faults.iter().zip(1..).all(|(fault, number)| fault.number == number));
    trace.tables = tracker.into_tables().0;
    for format in FORMATS {
        (format.write)(&trace, &mut std::io::sink()).expect("a sink takes everything");
    }
    let (mut packer, mut packed) = (Packer::default(), Vec::new());
    trace.faults.iter().for_each(|fault| packer.pack(fault, &mut packed));
    let (mut unpacker, mut chunk) = (Unpacker::default(), &packed[..]);
    for fault in &trace.faults {
        assert_eq!(unpacker.next(&mut chunk).as_ref(), Some(fault));
    }
    let (mut unpacker, mut chunk) = (Unpacker::default(), bytes);
    while unpacker.next(&mut chunk).is_some() {}
});
