//! Any text, and any value of any option.

use neap_options::{Complaint, Kind, PREFAULT, TABLE, Value};
use proptest::prelude::*;

const ANY_SIZE: Kind = Kind::Size { words: &[], min: 0, max: u64::MAX };
const ANY_TIME: Kind = Kind::Duration { min: 0, max: u32::MAX };

fn parse(kind: Kind, text: &str) -> Option<Value<'_>> {
    kind.parse(text.as_bytes())
}

/// A number with a unit as the documentation describes it, computed without care for overflow, in 128 bits.
fn number_and_unit(text: &str, units: &[(&str, u128)]) -> Option<u128> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let unit = text[split..].to_ascii_lowercase();
    let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    text[..split].parse::<u128>().ok()?.checked_mul(*factor)
}

const SIZES: [(&str, u128); 14] = [
    ("", 1),
    ("b", 1),
    ("k", 1 << 10),
    ("kb", 1 << 10),
    ("kib", 1 << 10),
    ("m", 1 << 20),
    ("mb", 1 << 20),
    ("mib", 1 << 20),
    ("g", 1 << 30),
    ("gb", 1 << 30),
    ("gib", 1 << 30),
    ("t", 1 << 40),
    ("tb", 1 << 40),
    ("tib", 1 << 40),
];
const TIMES: [(&str, u128); 5] = [("", 1), ("ms", 1), ("s", 1000), ("min", 60_000), ("h", 3_600_000)];

proptest! {
    /// Catches a size that is read as another: against the same rule in wider numbers, near the limits too.
    #[test]
    fn sizes_are_what_they_say(text in "[0-9]{0,21}[kKmMgGtTbBiI ]{0,3}") {
        let wanted = number_and_unit(&text, &SIZES).and_then(|n| u64::try_from(n).ok()).map(Value::Bytes);
        prop_assert_eq!(parse(ANY_SIZE, &text), wanted);
    }

    /// Catches a time that is read as another.
    #[test]
    fn times_are_what_they_say(text in "[0-9]{0,12}(|[msinhMSINH]{0,3})") {
        let wanted = number_and_unit(&text, &TIMES).and_then(|n| u32::try_from(n).ok()).map(Value::Milliseconds);
        prop_assert_eq!(parse(ANY_TIME, &text), wanted);
    }

    /// Catches a value that is written in a way that is not read, or read as another.
    #[test]
    fn what_is_written_is_read(number in any::<u64>(), shift in 0u32..64) {
        let number = number >> shift << (shift / 2);
        let text = Value::Bytes(number).to_string();
        prop_assert_eq!(parse(ANY_SIZE, &text), Some(Value::Bytes(number)));
        let milliseconds = (number >> 32) as u32;
        let text = Value::Milliseconds(milliseconds).to_string();
        prop_assert_eq!(parse(ANY_TIME, &text), Some(Value::Milliseconds(milliseconds)));
    }

    /// Catches text that ends the program, a value outside its range, and messages that a value can break.
    #[test]
    fn any_text_is_understood_or_refused(text in prop::collection::vec(any::<u8>(), 0..200)) {
        for opt in TABLE {
            match (opt.parse(&text), opt.kind) {
                (None, _) => (),
                (Some(Value::Word(word)), Kind::Choice(words) | Kind::Size { words, .. }) => {
                    prop_assert!(words.contains(&word));
                }
                (Some(Value::Path(path)), Kind::Directory) => prop_assert_eq!(path, &text),
                (Some(Value::Bytes(n)), Kind::Size { min, max, .. }) => prop_assert!(min <= n && n <= max),
                (Some(Value::Word(word)), Kind::Prefault { .. }) => prop_assert!(PREFAULT.contains(&word)),
                (Some(Value::Path(path)), Kind::Prefault { .. }) => {
                    prop_assert!(path == &text[..] && text.starts_with(b"file:"));
                }
                (Some(Value::Word(word)), Kind::Report) => prop_assert!(["off", "exit"].contains(&word)),
                (Some(Value::Path(path)), Kind::Report) => prop_assert!(path == &text[..] && text.contains(&b'/')),
                (Some(Value::Bytes(n)), Kind::Prefault { max }) => prop_assert!(0 < n && n <= max),
                (Some(Value::Milliseconds(n)), Kind::Duration { min, max }) => prop_assert!(min <= n && n <= max),
                (Some(value), kind) => prop_assert!(false, "{:?} of {:?}", value, kind),
            }
            let line = opt.complaint(&text).to_string();
            prop_assert!(line.len() <= Complaint::BYTES && !line.contains(char::is_control), "{}", line);
        }
    }

    /// Catches a border of an option's range that is off by one.
    #[test]
    fn ranges_are_kept(number in any::<u64>(), shift in 0u32..64) {
        for opt in TABLE {
            let (min, max) = match opt.kind {
                Kind::Size { min, max, .. } => (min, max),
                Kind::Duration { min, max } => (min.into(), max.into()),
                _ => continue,
            };
            for n in [number >> shift, min, max, max + 1, min.wrapping_sub(1)] {
                prop_assert_eq!(opt.parse(n.to_string().as_bytes()).is_some(), (min..=max).contains(&n), "{}={}", opt.name, n);
            }
        }
    }
}
