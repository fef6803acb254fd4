//! Any bytes are an ELF file, with debug information.
#![no_main]

use libfuzzer_sys::fuzz_target;
use neap_symbols::{Image, Lines, What};

fuzz_target!(|bytes: &[u8]| {
    if let Some(image) = Image::parse(bytes) {
        for address in [0, 0x1000, 0x40_1000, u64::MAX] {
            for what in [What::Code, What::Data] {
                if let Some(found) = image.find(address, what) {
                    assert!(found.address <= address);
                }
            }
            let _ = (image.bytes(address), image.address(address, true, false), image.address(address, false, true));
        }
        // The parser of lines keeps its bytes for ever, as neap does: run it only if there is something to parse.
        if image.has_lines() && bytes.len() < 1 << 16 {
            let copy: &'static [u8] = bytes.to_vec().leak();
            if let Some(lines) = Lines::parse(copy, &|bytes| bytes.leak()) {
                let _ = lines.find(0x1000);
            }
        }
    }
});
