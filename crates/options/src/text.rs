//! The messages about a value that is refused, for the library and the command.

use crate::Kind;
use core::fmt::{Display, Formatter, Result, Write};

/// A user's text as part of a message: without line breaks, and cut where it is long.
#[derive(Clone, Copy, Debug)]
pub struct Quoted<'a>(pub &'a [u8]);

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
    pub(crate) name: &'a str,
    pub(crate) kind: &'a Kind,
    pub(crate) text: &'a [u8],
}

impl Display for Refusal<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "option `{}` accepts {}, not `{}`", self.name, self.kind, Quoted(self.text))
    }
}

/// A bad value in the environment:
/// `neap: NEAP_ZERO=x is invalid; use resident or always; the default is used: resident`.
/// Never longer than [`Complaint::BYTES`].
#[derive(Clone, Copy, Debug)]
pub struct Complaint<'a> {
    pub(crate) env: &'a str,
    pub(crate) kind: &'a Kind,
    pub(crate) default: &'a str,
    pub(crate) text: &'a [u8],
}

impl Complaint<'_> {
    /// Longest line that may come out; a test checks it for the whole table.
    pub const BYTES: usize = 511;
}

impl Display for Complaint<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Complaint { env, kind, default, text } = *self;
        let default = if default.is_empty() { "none" } else { default };
        // Every path is valid. Whether a file can be made there shows when it is made.
        let wrong = match *kind {
            Kind::Directory | Kind::Report if kind.parse(text).is_some() => {
                "does not work: no file can be made there, or a filter of system calls is in the way"
            }
            _ => "is invalid",
        };
        write!(f, "neap: {env}={} {wrong}; use {kind}; the default is used: {default}", Quoted(text))
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::{Id, TABLE, Value};
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
            assert_eq!(Value::Bytes(bytes).to_string(), text);
        }
        for (ms, text) in
            [(0, "0"), (1, "1ms"), (1500, "1500ms"), (90_000, "90s"), (120_000, "2min"), (7_200_000, "2h")]
        {
            assert_eq!(Value::Milliseconds(ms).to_string(), text);
        }
    }

    /// Catches lists that do not read as a sentence, and a range or a word that is missing.
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
            "neap: NEAP_PURGE=sometimes is invalid; use decay, eager, lazy or never; \
             the default is used: decay"
        );
        assert_eq!(Id::Zero.option().refusal(b"").to_string(), "option `zero` accepts resident or always, not ``");
        let counters = Id::Counters.option().complaint(b"/none").to_string();
        assert_eq!(
            counters,
            "neap: NEAP_COUNTERS=/none does not work: no file can be made there, or a filter of system \
             calls is in the way; use the path of an existing directory; \
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
                let wrong = ["... is invalid", "... does not work"].iter().any(|wrong| line.contains(wrong));
                assert!(wrong && !line.contains(char::is_control), "{line}");
            }
        }
    }
}
