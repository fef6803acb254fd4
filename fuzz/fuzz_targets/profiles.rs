//! Any bytes are a profile, in JSON or pprof's format, compressed or not; what can be read can be compared, written in
//! every format, and read back.
#![no_main]

use std::io::sink;

use libfuzzer_sys::fuzz_target;
use neap_profile::format::{FORMATS, Format, diff_text};
use neap_profile::pprof::Symbols;
use neap_profile::{Options, Profile, diff, html, read};

fn again(profile: &Profile, format: &str) -> Profile {
    let format = Format::from_name(format).expect("a format");
    let mut bytes = Vec::new();
    let options = Options { column: profile.shown, symbols: Symbols::Named, limit: 10 };
    (format.write)(profile, options, &mut bytes).expect("memory takes everything");
    read(&bytes).expect("what neap writes can be read")
}

fuzz_target!(|bytes: &[u8]| {
    let Ok(mut profile) = read(bytes) else { return };
    assert!(profile.is_valid());
    profile.shown = profile.chosen(None).expect("a type");
    let same = diff::diff(&profile, &profile, None).expect("the same types");
    assert!(same.sites.iter().all(|change| change.growth() == 0));
    diff_text(&same, 10, &mut sink()).expect("nothing fails to be thrown away");
    for column in 0..profile.types.len().min(3) {
        for symbols in [Symbols::Named, Symbols::Addresses] {
            let options = Options { column, symbols, limit: 2 };
            for format in FORMATS {
                (format.write)(&profile, options, &mut sink()).expect("nothing fails to be thrown away");
            }
            html(&[&profile, &profile], options, &mut sink()).expect("nothing fails to be thrown away");
        }
    }
    let totals = |profile: &Profile| (0..profile.types.len()).map(|at| profile.total(at)).collect::<Vec<_>>();
    let json = again(&profile, "json");
    assert_eq!((&json.types, &json.samples), (&profile.types, &profile.samples));
    // pprof's format has one row for equal ones, so sums that saturate may do so earlier.
    let pprof = again(&profile, "pprof");
    let is_small = |value: &i64| value.unsigned_abs() < 1 << 40;
    if profile.samples.iter().flat_map(|sample| &sample.values).all(is_small) {
        assert_eq!(totals(&pprof), totals(&profile));
    }
});
