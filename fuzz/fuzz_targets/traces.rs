//! Any bytes are a trace in JSON or in comma-separated values; what can be read can be counted, compared, and written
//! in every format.
#![no_main]

use libfuzzer_sys::fuzz_target;
use neap_trace::diff::{self, Diff};
use neap_trace::format::{FORMATS, json};
use neap_trace::{Fault, Recorded, Tables};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(totals) = diff::read(&mut &bytes[..]) {
        assert_eq!(totals.kinds.values().sum::<u64>(), totals.faults);
        assert_eq!(totals.functions.values().sum::<u64>(), totals.faults);
        assert_eq!(Diff::new(&totals, &totals).faults.difference(), 0);
    }
    let mut faults = Vec::new();
    if let Ok(tables) = json::read(bytes, &mut |_: &Tables, fault: &Fault| faults.push(*fault)) {
        let trace = Recorded { tables, faults };
        for format in FORMATS {
            (format.write)(&trace, &mut std::io::sink()).expect("nothing fails to be thrown away");
        }
    }
});
