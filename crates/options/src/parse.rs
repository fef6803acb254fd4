//! From text to a value. Strict: no spaces, signs or fractions, and nothing that would have to be guessed.

use crate::{Kind, Value};

/// The value of an option of this kind that `text` stands for.
pub fn value<'a>(kind: &Kind, text: &'a [u8]) -> Option<Value<'a>> {
    match *kind {
        Kind::Choice(words) => word(words, text),
        Kind::Directory => (!text.is_empty() && !text.contains(&0)).then_some(Value::Path(text)),
        Kind::Size { words, min, max } => word(words, text).or_else(|| {
            let bytes = quantity(text, bytes_in)?;
            (min..=max).contains(&bytes).then_some(Value::Bytes(bytes))
        }),
        Kind::Duration { min, max } => {
            let milliseconds = u32::try_from(quantity(text, milliseconds_in)?).ok()?;
            (min..=max).contains(&milliseconds).then_some(Value::Milliseconds(milliseconds))
        }
    }
}

fn word<'a>(words: &[&'static str], text: &[u8]) -> Option<Value<'a>> {
    words.iter().find(|word| word.as_bytes() == text).map(|word| Value::Word(word))
}

/// A decimal number and its unit, multiplied; none if it is no such thing or beyond 64 bits.
fn quantity(text: &[u8], unit: fn(&[u8]) -> Option<u64>) -> Option<u64> {
    let digits = text.iter().take_while(|b| b.is_ascii_digit()).count();
    if digits == 0 {
        return None;
    }
    let (number, rest) = text.split_at(digits);
    let number = number.iter().try_fold(0u64, |n, b| n.checked_mul(10)?.checked_add(u64::from(b - b'0')))?;
    number.checked_mul(unit(rest)?)
}

/// Bytes in a unit: binary, in any case, as `K`, `KB` or `KiB`.
fn bytes_in(unit: &[u8]) -> Option<u64> {
    let Some((letter, rest)) = unit.split_first() else { return Some(1) };
    let bytes = match letter.to_ascii_lowercase() {
        b'b' if rest.is_empty() => return Some(1),
        b'k' => 1 << 10,
        b'm' => 1 << 20,
        b'g' => 1 << 30,
        b't' => 1 << 40,
        _ => return None,
    };
    let whole = rest.is_empty() || rest.eq_ignore_ascii_case(b"b") || rest.eq_ignore_ascii_case(b"ib");
    whole.then_some(bytes)
}

/// Milliseconds in a unit, in any case. `m` is none: it could be a minute or short for `ms`.
fn milliseconds_in(unit: &[u8]) -> Option<u64> {
    const UNITS: [(&[u8], u64); 5] = [(b"", 1), (b"ms", 1), (b"s", 1000), (b"min", 60_000), (b"h", 3_600_000)];
    UNITS.iter().find(|(name, _)| unit.eq_ignore_ascii_case(name)).map(|&(_, milliseconds)| milliseconds)
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::format;

    const SIZE: Kind = Kind::Size { words: &["auto", "off"], min: 0, max: u64::MAX };
    const HOUR: Kind = Kind::Duration { min: 0, max: 3_600_000 };

    fn size(text: &str) -> Option<u64> {
        match value(&SIZE, text.as_bytes())? {
            Value::Bytes(bytes) => Some(bytes),
            other => panic!("{text:?} is {other:?}"),
        }
    }

    fn duration(text: &str) -> Option<u32> {
        match value(&HOUR, text.as_bytes())? {
            Value::Milliseconds(milliseconds) => Some(milliseconds),
            other => panic!("{text:?} is {other:?}"),
        }
    }

    /// Catches a unit or a spelling of it that is not understood, or decimal units.
    #[test]
    fn sizes_in_every_unit_and_spelling() {
        for (letter, shift) in [("k", 10), ("m", 20), ("g", 30), ("t", 40)] {
            for end in ["", "b", "B", "ib", "iB", "Ib", "IB"] {
                for letter in [letter.to_ascii_lowercase(), letter.to_ascii_uppercase()] {
                    let text = format!("3{letter}{end}");
                    assert_eq!(size(&text), Some(3 << shift), "{text}");
                }
            }
        }
        for (text, bytes) in [("0", 0), ("1", 1), ("512b", 512), ("512B", 512), ("0k", 0), ("0064", 64)] {
            assert_eq!(size(text), Some(bytes), "{text}");
        }
    }

    /// Catches leniency that hides a mistake: signs, spaces, fractions, other bases, half a unit, a unit alone.
    #[test]
    fn what_is_no_size() {
        for text in [
            "", " ", "-1", "+1", " 1", "1 ", "1 K", "1.5G", "1,5G", "1_000", "0x10", "1e6", "K", "B", "iB", "1i",
            "1Ki", "1iB", "1KK", "1KBB", "1KiBs", "1BK", "1P", "1E", "1k\n", "1\0", "\u{661}", "Auto", "AUTO", "auto ",
            "none",
        ] {
            assert_eq!(size(text), None, "{text:?}");
        }
        assert_eq!(value(&SIZE, b"1\xffK"), None);
    }

    /// Catches numbers that wrap around: in the digits, and by their unit.
    #[test]
    fn sizes_do_not_overflow() {
        assert_eq!(size("18446744073709551615"), Some(u64::MAX));
        assert_eq!(size("18446744073709551616"), None);
        assert_eq!(size("184467440737095516150"), None);
        assert_eq!(size("16777215T"), Some(16_777_215 << 40));
        assert_eq!(size("16777216T"), None);
        assert_eq!(size("18014398509481984K"), None);
        assert_eq!(size(&"9".repeat(1000)), None);
        assert_eq!(size(&format!("{}7", "0".repeat(1000))), Some(7));
    }

    /// Catches a range that is off by one, and words that the range would refuse.
    #[test]
    fn sizes_keep_their_range() {
        let kind = Kind::Size { words: &["off"], min: 1024, max: 4096 };
        for (text, wanted) in [("1023", None), ("1k", Some(1024)), ("4096", Some(4096)), ("4097", None), ("0", None)] {
            assert_eq!(value(&kind, text.as_bytes()), wanted.map(Value::Bytes), "{text}");
        }
        assert_eq!(value(&kind, b"off"), Some(Value::Word("off")));
    }

    /// Catches a wrong unit of time, and a plain number that is taken for seconds.
    #[test]
    fn durations_in_every_unit() {
        for (text, milliseconds) in [
            ("0", 0),
            ("500", 500),
            ("500ms", 500),
            ("500MS", 500),
            ("2s", 2000),
            ("2S", 2000),
            ("0h", 0),
            ("5min", 300_000),
            ("60Min", 3_600_000),
            ("1h", 3_600_000),
            ("1H", 3_600_000),
            ("3600s", 3_600_000),
            ("3600000", 3_600_000),
        ] {
            assert_eq!(duration(text), Some(milliseconds), "{text}");
        }
    }

    /// Catches leniency, overflow (also of 32 bits alone), and a range that is off by one.
    #[test]
    fn what_is_no_duration() {
        for text in [
            "",
            " ",
            "ms",
            "s",
            "-1",
            "-1s",
            "+1s",
            "1 s",
            " 1s",
            "1s ",
            "0.5s",
            "1m",
            "1us",
            "1d",
            "1sec",
            "1mss",
            "1K",
            "auto",
            "3600001",
            "3601s",
            "61min",
            "2h",
            "4294967296",
            "4294967297ms",
            "18446744073709551616",
            "18446744073709551615h",
            "1s\n",
        ] {
            assert_eq!(duration(text), None, "{text:?}");
        }
    }

    /// Catches words that match in part, and paths that cannot be.
    #[test]
    fn words_and_paths() {
        let kind = Kind::Choice(&["pass", "abort"]);
        assert_eq!(value(&kind, b"abort"), Some(Value::Word("abort")));
        for text in ["", "pas", "passs", "Pass", "pass ", "pass,abort"] {
            assert_eq!(value(&kind, text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(value(&Kind::Directory, b"/tmp"), Some(Value::Path(b"/tmp")));
        assert_eq!(value(&Kind::Directory, b"\xff"), Some(Value::Path(b"\xff")));
        assert_eq!(value(&Kind::Directory, b""), None);
        assert_eq!(value(&Kind::Directory, b"a\0b"), None);
    }
}
