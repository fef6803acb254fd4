//! What an option accepts, and how a value is read and written. The parser is strict: no spaces, signs or fractions,
//! and nothing ambiguous.

use core::fmt::{Display, Formatter, Result, Write};

/// What an option accepts. [`Display`] says it in words: `decay, eager, lazy or never`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One of these words. As a number: its place.
    Choice(&'static [&'static str]),
    /// The path of an existing directory.
    Directory,
    /// A number of bytes, with or without a binary unit (`4096`, `64K`, `10mb`, `2GiB`), or a word.
    Size {
        /// Words that may stand in place of a number: the first for the largest number, the second for 0.
        words: &'static [&'static str],
        /// Fewest bytes.
        min: u64,
        /// Most bytes.
        max: u64,
    },
    /// What is prefaulted: a number of bytes as in a [`Kind::Size`], `off`, `all`, or `file:` and a pattern.
    Prefault {
        /// Most bytes.
        max: u64,
    },
    /// Where a report goes: `off`, `exit`, or the path of a file, which has a slash.
    Report,
    /// A span of time: milliseconds, or a number with a unit (`500ms`, `2s`, `5min`, `1h`).
    Duration {
        /// Fewest milliseconds.
        min: u32,
        /// Most milliseconds.
        max: u32,
    },
}

/// A value that an option accepts. [`Display`] writes it as it is read; a path that is not text with replacement
/// characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// A word of a [`Kind::Choice`] or a [`Kind::Size`].
    Word(&'static str),
    /// The path of a [`Kind::Directory`] or a [`Kind::Report`]; it may not exist. The text of a [`Kind::Prefault`] that
    /// has a pattern.
    Path(&'a [u8]),
    /// The number of bytes of a [`Kind::Size`] or a [`Kind::Prefault`].
    Bytes(u64),
    /// The milliseconds of a [`Kind::Duration`].
    Milliseconds(u32),
}

/// The words of a [`Kind::Prefault`].
pub const PREFAULT: &[&str] = &["off", "all"];
/// What stands in front of the pattern of a [`Kind::Prefault`].
pub const FILE: &str = "file:";
/// Numbers that the words of a size stand for.
const WORDS: [u64; 2] = [u64::MAX, 0];

impl Kind {
    /// The value that `text` stands for; `None` if it is not accepted.
    pub fn parse<'a>(&self, text: &'a [u8]) -> Option<Value<'a>> {
        match *self {
            Kind::Choice(words) => word(words, text),
            Kind::Directory => (!text.is_empty() && !text.contains(&0)).then_some(Value::Path(text)),
            Kind::Size { words, min, max } => word(words, text).or_else(|| {
                let bytes = read(text, BYTES)?;
                (min..=max).contains(&bytes).then_some(Value::Bytes(bytes))
            }),
            Kind::Prefault { max } => {
                let is_pattern = text.strip_prefix(FILE.as_bytes()).is_some_and(|pattern| !pattern.is_empty());
                let pattern = (is_pattern && !text.contains(&0)).then_some(Value::Path(text));
                let size = || read(text, BYTES).filter(|bytes| (1..=max).contains(bytes)).map(Value::Bytes);
                word(PREFAULT, text).or(pattern).or_else(size)
            }
            // Constants, because a list of words would be written at each start of a program (relocations).
            Kind::Report => match text {
                b"off" => Some(Value::Word("off")),
                b"exit" => Some(Value::Word("exit")),
                _ => (text.contains(&b'/') && !text.contains(&0)).then_some(Value::Path(text)),
            },
            Kind::Duration { min, max } => {
                let milliseconds = u32::try_from(read(text, MILLISECONDS)?).ok()?;
                (min..=max).contains(&milliseconds).then_some(Value::Milliseconds(milliseconds))
            }
        }
    }

    /// The number that stands for a value in settings and gauges; `None` for a path and for a value that is not
    /// accepted.
    pub fn number(&self, value: Value<'_>) -> Option<u64> {
        let place = |words: &[&str], word| words.iter().position(|w| *w == word);
        match (*self, value) {
            (Kind::Choice(words), Value::Word(word)) => place(words, word).map(|place| place as u64),
            (Kind::Size { words, .. }, Value::Word(word)) => WORDS.get(place(words, word)?).copied(),
            (Kind::Size { min, max, .. }, Value::Bytes(n)) => (min..=max).contains(&n).then_some(n),
            (Kind::Duration { min, max }, Value::Milliseconds(n)) => (min..=max).contains(&n).then_some(n.into()),
            _ => None,
        }
    }

    /// The value that a number stands for.
    pub fn value(&self, number: u64) -> Option<Value<'static>> {
        let word = |words: &[&'static str], place: usize| words.get(place).map(|word| Value::Word(word));
        match *self {
            Kind::Choice(words) => word(words, usize::try_from(number).ok()?),
            Kind::Directory | Kind::Prefault { .. } | Kind::Report => None,
            Kind::Size { words, .. } => {
                let place = WORDS.iter().position(|n| *n == number);
                place.and_then(|place| word(words, place)).or(Some(Value::Bytes(number)))
            }
            Kind::Duration { .. } => u32::try_from(number).ok().map(Value::Milliseconds),
        }
    }
}

fn word<'a>(words: &[&'static str], text: &[u8]) -> Option<Value<'a>> {
    words.iter().find(|word| word.as_bytes() == text).map(|word| Value::Word(word))
}

/// Units in rising order: the factor of each, and its spellings, in any case. Output uses the first spelling.
type Units = &'static [(u64, &'static [&'static str])];

const BYTES: Units = &[
    (1, &["", "B"]),
    (1 << 10, &["K", "KB", "KiB"]),
    (1 << 20, &["M", "MB", "MiB"]),
    (1 << 30, &["G", "GB", "GiB"]),
    (1 << 40, &["T", "TB", "TiB"]),
];

/// `m` is not accepted: it could mean a minute or a millisecond.
const MILLISECONDS: Units = &[(1, &["ms", ""]), (1000, &["s"]), (60_000, &["min"]), (3_600_000, &["h"])];

/// A decimal number times its unit; `None` if `text` is not such a number, or the product needs more than 64 bits.
fn read(text: &[u8], units: Units) -> Option<u64> {
    let (number, unit) = text.split_at(text.iter().take_while(|b| b.is_ascii_digit()).count());
    if number.is_empty() {
        return None;
    }
    let is_unit = |name: &&str| unit.eq_ignore_ascii_case(name.as_bytes());
    let (factor, _) = units.iter().find(|(_, names)| names.iter().any(is_unit))?;
    let number = number.iter().try_fold(0u64, |n, b| n.checked_mul(10)?.checked_add(u64::from(b - b'0')))?;
    number.checked_mul(*factor)
}

/// Writes a number in the largest unit that divides it; 0 without a unit.
fn write(f: &mut Formatter<'_>, number: u64, units: Units) -> Result {
    match units.iter().rev().find(|(factor, _)| number != 0 && number.is_multiple_of(*factor)) {
        Some((factor, names)) => write!(f, "{}{}", number / factor, names[0]),
        None => f.write_char('0'),
    }
}

impl Display for Value<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match *self {
            Value::Word(word) => f.write_str(word),
            Value::Path(path) => {
                for chunk in path.utf8_chunks() {
                    f.write_str(chunk.valid())?;
                    f.write_str(if chunk.invalid().is_empty() { "" } else { "\u{fffd}" })?;
                }
                Ok(())
            }
            Value::Bytes(bytes) => write(f, bytes, BYTES),
            Value::Milliseconds(milliseconds) => write(f, milliseconds.into(), MILLISECONDS),
        }
    }
}

impl Display for Kind {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let words = match *self {
            Kind::Choice([first, rest @ ..]) => {
                f.write_str(first)?;
                rest
            }
            Kind::Choice([]) => &[],
            Kind::Directory => return f.write_str("the path of an existing directory"),
            Kind::Size { words, min, max } => {
                write!(f, "a size from {} to {} (as 4096, 64K or 2GiB)", Value::Bytes(min), Value::Bytes(max))?;
                words
            }
            Kind::Prefault { max } => {
                let most = Value::Bytes(max);
                return write!(f, "a size up to {most} (as 64M), all, {FILE}PATTERN or off");
            }
            Kind::Report => {
                return f.write_str("exit, the path of a file with a slash in it (%p: the process), or off");
            }
            Kind::Duration { min, max } => {
                let (min, max) = (Value::Milliseconds(min), Value::Milliseconds(max));
                return write!(f, "a time from {min} to {max} (as 500ms or 2s)");
            }
        };
        for (i, word) in words.iter().enumerate() {
            write!(f, "{}{word}", if i + 1 == words.len() { " or " } else { ", " })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::format;

    const SIZE: Kind = Kind::Size { words: &["auto", "off"], min: 0, max: u64::MAX };
    const HOUR: Kind = Kind::Duration { min: 0, max: 3_600_000 };

    fn size(text: &str) -> Option<u64> {
        match SIZE.parse(text.as_bytes())? {
            Value::Bytes(bytes) => Some(bytes),
            other => panic!("{text:?} is {other:?}"),
        }
    }

    fn duration(text: &str) -> Option<u32> {
        match HOUR.parse(text.as_bytes())? {
            Value::Milliseconds(milliseconds) => Some(milliseconds),
            other => panic!("{text:?} is {other:?}"),
        }
    }

    /// Catches a unit or a spelling of it that is refused, or decimal units.
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
        assert_eq!(SIZE.parse(b"1\xffK"), None);
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
            assert_eq!(kind.parse(text.as_bytes()), wanted.map(Value::Bytes), "{text}");
        }
        assert_eq!(kind.parse(b"off"), Some(Value::Word("off")));
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
        assert_eq!(kind.parse(b"abort"), Some(Value::Word("abort")));
        for text in ["", "pas", "passs", "Pass", "pass ", "pass,abort"] {
            assert_eq!(kind.parse(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(Kind::Directory.parse(b"/tmp"), Some(Value::Path(b"/tmp")));
        assert_eq!(Kind::Directory.parse(b"\xff"), Some(Value::Path(b"\xff")));
        assert_eq!(Kind::Directory.parse(b""), None);
        assert_eq!(Kind::Directory.parse(b"a\0b"), None);
    }

    /// Catches patterns that are taken for sizes, and the other way round.
    #[test]
    fn what_is_prefaulted() {
        let kind = Kind::Prefault { max: 1 << 30 };
        assert_eq!(kind.parse(b"64M"), Some(Value::Bytes(64 << 20)));
        assert_eq!(kind.parse(b"file:/usr/*"), Some(Value::Path(b"file:/usr/*")));
        assert_eq!((kind.parse(b"all"), kind.parse(b"off")), (Some(Value::Word("all")), Some(Value::Word("off"))));
        for bad in [&b""[..], b"0", b"2G", b"file:", b"file:a\0", b"/usr/*", b"ALL", b"all,64M"] {
            assert_eq!(kind.parse(bad), None, "{bad:?}");
        }
        assert_eq!(format!("{kind}"), "a size up to 1G (as 64M), all, file:PATTERN or off");
    }
}
