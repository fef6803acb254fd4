//! Reads a profile back, whatever format it is in.

use std::io::Read;

use flate2::read::GzDecoder;

use crate::{Profile, json, pprof};

/// What gzip begins with.
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// Bytes that a compressed file may have: more than any profile, and less than memory.
const MOST: u64 = 1 << 30;

/// Reads a profile in JSON or in pprof's format, compressed or not; or says what is wrong with it.
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

    /// Catches what JSON loses, and files that are no profile and are taken for one.
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
        // A stack whose caller comes later would never end.
        let broken = text.replace(r#""stacks":[{"location""#, r#""stacks":[{"parent":0,"location""#);
        assert_ne!(broken, text);
        assert_eq!(refused(&broken), "its tables do not belong together");
    }
}
