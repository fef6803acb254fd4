//! Reads a profile in any of its formats.

use std::io::Read;

use flate2::read::GzDecoder;

use crate::{Profile, json, pprof};

/// How gzip files begin.
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// Limit on the unpacked bytes of a compressed file: more than any profile, and less than memory.
const MOST: u64 = 1 << 30;

/// Reads a profile in JSON or in pprof's format, compressed or not; otherwise returns what is wrong with it.
pub fn read(bytes: &[u8]) -> Result<Profile, String> {
    let plain;
    let bytes = if bytes.starts_with(&GZIP) {
        let mut out = Vec::new();
        let mut decoder = GzDecoder::new(bytes).take(MOST + 1);
        decoder.read_to_end(&mut out).map_err(|error| format!("its compression is damaged: {error}"))?;
        if out.len() as u64 > MOST {
            return Err("it is longer than 1 GiB".to_owned());
        }
        plain = out;
        &plain
    } else {
        bytes
    };
    let first = bytes.iter().find(|byte| !byte.is_ascii_whitespace());
    let profile = match first {
        None => return Err("it is empty".to_owned()),
        Some(b'{') => json::read_json(bytes)?,
        Some(_) => pprof::read(bytes).map_err(|error| format!("it is neither JSON nor a profile of pprof: {error}"))?,
    };
    if profile.is_valid() { Ok(profile) } else { Err("its tables do not belong together".to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::profile;

    /// Catches data that JSON loses, and files that pass as profiles.
    #[test]
    fn json_is_read_back() {
        let mut bytes = Vec::new();
        json::json(&profile(), &mut bytes).expect("memory takes everything");
        let text = String::from_utf8(bytes).expect("UTF-8");
        assert!(text.starts_with(r#"{"schema":"neap-profile","version":1,"#), "{text}");
        let after = read(text.as_bytes()).expect("it is valid");
        assert_eq!(serde_json::to_value(&after).expect("plain"), serde_json::to_value(profile()).expect("plain"));
        let refused = |text: &str| read(text.as_bytes()).expect_err("no profile");
        assert_eq!(refused(" \n"), "it is empty");
        assert_eq!(refused("{}"), "it is JSON, but no profile of neap");
        assert!(refused(&text.replace(r#""version":1"#, r#""version":9"#)).contains("version 9"));
        assert!(refused(&text[..text.len() / 2]).contains("EOF"));
        assert!(refused("hello").starts_with("it is neither JSON nor"));
        // A stack whose caller comes later would be endless.
        let broken = text.replace(r#""stacks":[{"location""#, r#""stacks":[{"parent":0,"location""#);
        assert_ne!(broken, text);
        assert_eq!(refused(&broken), "its tables do not belong together");
    }

    /// Profiles of neap and of Go, which are the seeds of the fuzz target `profiles`.
    fn seed(name: &str) -> Vec<u8> {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/profiles").join(name);
        std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    /// Catches fuzzing seeds that the target rejects, and files of Go that are refused.
    #[test]
    fn seeds_of_the_fuzzer() {
        for (name, samples, types) in [
            ("heap.json", 5, "alloc_objects alloc_space inuse_objects inuse_space"),
            ("heap.pb", 5, "alloc_objects alloc_space inuse_objects inuse_space"),
            ("heap.pb.gz", 5, "alloc_objects alloc_space inuse_objects inuse_space"),
            ("addresses.pb", 5, "alloc_objects alloc_space inuse_objects inuse_space"),
            ("time.json", 0, "samples time"),
            ("go.pb", 0, "alloc_objects alloc_space inuse_objects inuse_space"),
        ] {
            let profile = read(&seed(name)).unwrap_or_else(|why| panic!("{name}: {why}"));
            let names: Vec<&str> = profile.types.iter().map(|of| of.name.as_ref()).collect();
            assert_eq!(names.join(" "), types, "{name}");
            assert!(profile.samples.len() == samples || samples == 0 && profile.samples.len() > 2, "{name}");
        }
    }

    /// Catches a panic, or an endless loop, on files that are cut or damaged.
    #[test]
    fn damaged_files() {
        let mut valid = 0;
        for name in ["heap.json", "heap.pb", "heap.pb.gz", "go.pb"] {
            let whole = seed(name);
            for position in (0..whole.len()).step_by(1 + whole.len() / 600) {
                let mut damaged = whole.clone();
                damaged[position] ^= 0x41;
                valid += usize::from(read(&damaged).is_ok_and(|profile| profile.total(0) >= 0));
                valid += usize::from(read(&whole[..position]).is_ok_and(|profile| profile.total(0) >= 0));
            }
        }
        // Damage in the letters of names is harmless.
        assert!(valid > 300, "{valid}");
    }
}
