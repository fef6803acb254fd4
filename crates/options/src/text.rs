//! What is allowed, and what was refused, in words. One wording for the library, the command and the documentation.

use core::fmt::{Display, Formatter, Result, Write};

use crate::{Kind, Opt, Value};

/// A number of bytes as an option takes it: in the largest unit that divides it (`128T`, `1M`, `4097`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub u64);

impl Display for Size {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let shift = (self.0.trailing_zeros() / 10 * 10).min(40);
        match (self.0, shift) {
            (0, _) | (_, 0) => write!(f, "{}", self.0),
            (bytes, shift) => write!(f, "{}{}", bytes >> shift, ["K", "M", "G", "T"][shift as usize / 10 - 1]),
        }
    }
}

/// A span of time as an option takes it: in the largest unit that divides it (`1h`, `90s`, `500ms`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Milliseconds(pub u32);

impl Display for Milliseconds {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let ms = self.0;
        match ms {
            0 => f.write_str("0"),
            _ if ms.is_multiple_of(3_600_000) => write!(f, "{}h", ms / 3_600_000),
            _ if ms.is_multiple_of(60_000) => write!(f, "{}min", ms / 60_000),
            _ if ms.is_multiple_of(1000) => write!(f, "{}s", ms / 1000),
            _ => write!(f, "{ms}ms"),
        }
    }
}

/// What is accepted: `decay, eager, lazy or never`.
impl Display for Kind {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match *self {
            Kind::Choice(words) => {
                let Some((first, rest)) = words.split_first() else { return Ok(()) };
                f.write_str(first)?;
                or(f, rest)
            }
            Kind::Directory => f.write_str("the path of an existing directory"),
            Kind::Size { words, min, max } => {
                write!(f, "a size from {} to {} (as 4096, 64K or 2GiB)", Size(min), Size(max))?;
                or(f, words)
            }
            Kind::Duration { min, max } => {
                write!(f, "a time from {} to {} (as 500ms or 2s)", Milliseconds(min), Milliseconds(max))
            }
        }
    }
}

/// A value as it would be written. A path that is no text is shown with replacement characters.
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
            Value::Bytes(bytes) => Size(bytes).fmt(f),
            Value::Milliseconds(ms) => Milliseconds(ms).fmt(f),
        }
    }
}

/// Further words of a list that has begun.
fn or(f: &mut Formatter<'_>, words: &[&str]) -> Result {
    for (i, word) in words.iter().enumerate() {
        write!(f, "{}{word}", if i + 1 == words.len() { " or " } else { ", " })?;
    }
    Ok(())
}

/// Text of a user's within a line of ours: one line, not long, whatever it is.
struct Quoted<'a>(&'a [u8]);

/// Most characters of a value that are shown.
const SHOWN: usize = 64;

impl Display for Quoted<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let mut left = SHOWN;
        for chunk in self.0.utf8_chunks() {
            let broken = if chunk.invalid().is_empty() { "" } else { "\u{fffd}" };
            for c in chunk.valid().chars().chain(broken.chars()) {
                if left == 0 {
                    return f.write_str("...");
                }
                left -= 1;
                f.write_char(if c.is_control() { '?' } else { c })?;
            }
        }
        Ok(())
    }
}

/// Why a value was refused: ``option `zero` accepts resident or always, not `x` ``.
#[derive(Clone, Copy, Debug)]
pub struct Refusal<'a> {
    pub(crate) opt: &'a Opt,
    pub(crate) text: &'a [u8],
}

impl Display for Refusal<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "option `{}` accepts {}, not `{}`", self.opt.name, self.opt.kind, Quoted(self.text))
    }
}

/// A bad value in the environment:
/// `neap: NEAP_ZERO=x is not understood; it may be resident or always; the default is used: resident`.
/// Never longer than [`Complaint::BYTES`].
#[derive(Clone, Copy, Debug)]
pub struct Complaint<'a> {
    pub(crate) opt: &'a Opt,
    pub(crate) text: &'a [u8],
}

impl Complaint<'_> {
    /// Longest line that may come out; a test holds the table to it.
    pub const BYTES: usize = 511;
}

impl Display for Complaint<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Opt { env, kind, default, .. } = self.opt;
        let default = if default.is_empty() { "none" } else { default };
        let value = Quoted(self.text);
        // Any path is understood. Whether a file can be made there is found out when it is used: under a filter of system
        // calls it cannot.
        let wrong = if matches!(kind, Kind::Directory) {
            "does not work: no file can be made there"
        } else {
            "is not understood"
        };
        write!(f, "neap: {env}={value} {wrong}; it may be {kind}; the default is used: {default}")
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::{Id, TABLE};
    use std::string::ToString;

    /// Catches a unit that changes the number.
    #[test]
    fn quantities_in_words() {
        for (bytes, text) in [
            (0, "0"),
            (1, "1"),
            (1023, "1023"),
            (1024, "1K"),
            (1536, "1536"),
            (3 << 20, "3M"),
            (1 << 30, "1G"),
            (128 << 40, "128T"),
            (1 << 50, "1024T"),
            (u64::MAX, "18446744073709551615"),
        ] {
            assert_eq!(Size(bytes).to_string(), text);
        }
        for (ms, text) in
            [(0, "0"), (1, "1ms"), (1500, "1500ms"), (90_000, "90s"), (120_000, "2min"), (7_200_000, "2h")]
        {
            assert_eq!(Milliseconds(ms).to_string(), text);
        }
    }

    /// Catches lists that do not read as a sentence, and a range or a word that is not told.
    #[test]
    fn what_is_allowed_in_words() {
        for (id, text) in [
            (Id::Foreign, "pass or abort"),
            (Id::Purge, "decay, eager, lazy or never"),
            (Id::PurgeDelay, "a time from 0 to 1h (as 500ms or 2s)"),
            (Id::PurgeBytes, "a size from 0 to 128T (as 4096, 64K or 2GiB) or auto"),
            (Id::Limit, "a size from 1M to 128T (as 4096, 64K or 2GiB), auto or off"),
        ] {
            assert_eq!(id.option().kind.to_string(), text);
        }
        assert_eq!(Kind::Choice(&[]).to_string(), "");
        assert_eq!(Kind::Choice(&["one"]).to_string(), "one");
    }

    /// Catches a value that is written so that its option refuses it.
    #[test]
    fn values_are_written_as_they_are_read() {
        for (id, text) in
            [(Id::Purge, "lazy"), (Id::PurgeDelay, "1500ms"), (Id::PurgeBytes, "64M"), (Id::Counters, "/run/x")]
        {
            let value = id.option().parse(text.as_bytes()).expect("a good value");
            assert_eq!(value.to_string(), text);
        }
        assert_eq!(Value::Path(b"a\xffb").to_string(), "a\u{fffd}b");
    }

    /// Catches a message that lacks the variable, the value, what is allowed, or the default.
    #[test]
    fn refusals_say_all() {
        assert_eq!(
            Id::Purge.option().complaint(b"sometimes").to_string(),
            "neap: NEAP_PURGE=sometimes is not understood; it may be decay, eager, lazy or never; \
             the default is used: decay"
        );
        assert_eq!(Id::Zero.option().refusal(b"").to_string(), "option `zero` accepts resident or always, not ``");
        let counters = Id::Counters.option().complaint(b"/none").to_string();
        assert_eq!(
            counters,
            "neap: NEAP_COUNTERS=/none does not work: no file can be made there; it may be the path of an existing directory; \
             the default is used: none"
        );
    }

    /// Catches a value that breaks the line, the terminal or the buffer.
    #[test]
    fn odd_values_stay_in_one_short_line() {
        let zero = Id::Zero.option();
        assert!(zero.complaint(b"a\nb\x1b[31m\xff\xfec").to_string().contains("=a?b?[31m\u{fffd}\u{fffd}c is"));
        assert!(zero.complaint("€".repeat(64).as_bytes()).to_string().contains("€ is"));
        let wide = "\u{10000}".repeat(100_000);
        for opt in TABLE {
            for text in [wide.as_bytes(), &[0xff; 5000], &[b'\n'; 5000]] {
                let line = opt.complaint(text).to_string();
                assert!(line.len() <= Complaint::BYTES, "{} bytes: {line}", line.len());
                let wrong = ["... is not understood", "... does not work"].iter().any(|wrong| line.contains(wrong));
                assert!(wrong && !line.contains(char::is_control), "{line}");
            }
        }
    }
}
