//! Any bytes are `/proc/PID/maps`, a perf map, `/proc/kallsyms`, a mangled name, and instructions.
#![no_main]

use libfuzzer_sys::fuzz_target;
use neap_symbols::{Bits, Listing, access, demangle};
use neap_trace::track::parse_maps;

fuzz_target!(|bytes: &[u8]| {
    for line in parse_maps(bytes) {
        assert!(line.start < line.end && line.flags.len() >= 4);
    }
    for listing in [Listing::perf_map(bytes), Listing::kallsyms(bytes)] {
        for address in [0, 0x1000, u64::MAX] {
            if let Some((_, start, size)) = listing.find(address) {
                assert!(start <= address && (size == 0 || address - start < size));
            }
        }
    }
    if let Ok(name) = std::str::from_utf8(bytes) {
        let _ = demangle(name);
    }
    let _ = (access(bytes, Bits::Bits64), access(bytes, Bits::Bits32));
});
