//! glibc's controls: parameters of mallopt, environment variables and tunables, and what they mean to neap. One table;
//! the library, `neap options`, docs/controls.md and the tests come from it.
//!
//! Numbers are read as glibc reads them, and what it ignores without a word is ignored here too: an unknown tunable, a
//! number that is none, one out of range. (mallopt says no to the latter.)

use crate::{Id, Value};

/// One control.
#[derive(Clone, Copy, Debug)]
pub struct Control {
    /// Its name in code.
    pub knob: Knob,
    /// Name and number of the parameter of mallopt.
    pub parameter: Option<(&'static str, i32)>,
    /// The environment variable.
    pub env: Option<&'static str>,
    /// The tunable, without `glibc.malloc.`.
    pub tunable: Option<&'static str>,
    /// Greatest value; a negative number is above all others, as glibc takes it.
    pub max: u64,
    /// glibc's default.
    pub default: &'static str,
    /// What it is to glibc.
    pub glibc: &'static str,
    /// What it is to neap.
    pub neap: &'static str,
}

/// Names a control in code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Knob {
    /// How much free memory may be kept.
    TrimThreshold,
    /// From which size on blocks go back when they are freed.
    MmapThreshold,
    /// How many such blocks there may be.
    MmapMax,
    /// What blocks are filled with.
    Perturb,
    /// What happens when a mistake is found.
    CheckAction,
    /// How many blocks caches hold.
    TcacheCount,
    /// Known, and without a meaning to neap.
    Other,
}

/// What setting a control does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    Nothing,
    /// An option of neap gets a value.
    Option(Id, Value<'static>),
    /// Blocks are filled with this byte when they are freed, and with its complement when they are new; 0: not.
    Fill(u8),
    /// Whether blocks may go back when they are freed, as [`Knob::MmapThreshold`] says.
    Mmap(bool),
    /// Whether threads keep free blocks at hand.
    Caches(bool),
    /// Whether a mistake is told before it ends the process.
    Told(bool),
}

/// A number that glibc takes for all addresses and more.
const ALL: u64 = 128 << 40;
const ANY: u64 = u64::MAX;
const INT: u64 = i32::MAX as u64;

const fn other(
    parameter: Option<(&'static str, i32)>,
    env: Option<&'static str>,
    tunable: &'static str,
    max: u64,
) -> Control {
    Control { knob: Knob::Other, parameter, env, tunable: Some(tunable), max, default: "", glibc: "", neap: "" }
}

/// Every control of glibc 2.42 and before.
pub const TABLE: &[Control] = &[
    Control {
        knob: Knob::TrimThreshold,
        parameter: Some(("M_TRIM_THRESHOLD", -1)),
        env: Some("MALLOC_TRIM_THRESHOLD_"),
        tunable: Some("trim_threshold"),
        max: ANY,
        default: "128 KiB, then twice the dynamic mmap threshold",
        glibc: "Free memory at the top of the heap beyond so many bytes goes back when a block is freed; -1: never.",
        neap: "The option `purge_bytes`: free memory beyond so many bytes goes back at once, the rest after `purge_delay`. -1: `purge=never`.",
    },
    Control {
        knob: Knob::MmapThreshold,
        parameter: Some(("M_MMAP_THRESHOLD", -3)),
        env: Some("MALLOC_MMAP_THRESHOLD_"),
        tunable: Some("mmap_threshold"),
        max: ANY,
        default: "128 KiB, grows up to 32 MiB",
        glibc: "Blocks of at least so many bytes are mappings of their own, and go back when they are freed.",
        neap: "The option `mmap_threshold`: they go back when they are freed. -1: `none`.",
    },
    Control {
        knob: Knob::MmapMax,
        parameter: Some(("M_MMAP_MAX", -4)),
        env: Some("MALLOC_MMAP_MAX_"),
        tunable: Some("mmap_max"),
        max: INT,
        default: "65536",
        glibc: "Most blocks that are mappings of their own; 0: none is.",
        neap: "0: `mmap_threshold=none`, until it is raised again. Other numbers do nothing, as these blocks are no mappings of their own.",
    },
    Control {
        glibc: "How many bytes more the heap grows by than it has to, and how many stay when it shrinks.",
        neap: "Nothing: neap grows in steps of 1.5 MiB, from the third on 16 MiB and more, beside which a pad is no gain; what stays when memory is freed is a matter of `purge_delay` and `purge_bytes`.",
        default: "128 KiB",
        ..other(Some(("M_TOP_PAD", -2)), Some("MALLOC_TOP_PAD_"), "top_pad", ANY)
    },
    Control {
        knob: Knob::Perturb,
        parameter: Some(("M_PERTURB", -6)),
        env: Some("MALLOC_PERTURB_"),
        tunable: Some("perturb"),
        max: ANY,
        default: "0",
        glibc: "Freed blocks are filled with the lowest byte of the number, new ones (not calloc's) with its complement; 0: not.",
        neap: "The same, for all usable bytes of freed blocks. Caches are given up meanwhile, so calls are slower.",
    },
    Control {
        knob: Knob::CheckAction,
        glibc: "What happens when a mistake is found, until 2.26: bit 0 tells it, bit 1 ends the process. Since then it always does both.",
        neap: "2 (and 6): a mistake ends the process without a word. All others: with one line; a process with a damaged heap never goes on.",
        default: "3",
        ..other(Some(("M_CHECK_ACTION", -5)), Some("MALLOC_CHECK_"), "check", ANY)
    },
    Control {
        glibc: "How many arenas there may be before their number is limited.",
        neap: "Nothing: there is one set of arenas for all threads, so there is no number to limit.",
        default: "8 on 64 bits",
        ..other(Some(("M_ARENA_TEST", -7)), Some("MALLOC_ARENA_TEST"), "arena_test", ANY)
    },
    Control {
        glibc: "Most arenas; set to save memory.",
        neap: "Nothing: all threads share one set of arenas, as with 1 in glibc, and do not wait for each other. A thread's own are 3 KiB and its caches, which go back when it rests.",
        default: "8 for each processor",
        ..other(Some(("M_ARENA_MAX", -8)), Some("MALLOC_ARENA_MAX"), "arena_max", ANY)
    },
    Control {
        glibc: "Longest blocks that fast bins keep, at most 160; 0: none.",
        neap: "Nothing: there are no such bins. What threads keep at hand is given up by the tunable `tcache_count=0`.",
        default: "128",
        ..other(Some(("M_MXFAST", 1)), None, "mxfast", 160)
    },
    Control {
        knob: Knob::TcacheCount,
        glibc: "Most blocks of a size in a thread's cache; 0: no caches.",
        neap: "0: no caches. Other numbers do nothing.",
        default: "7",
        ..other(None, None, "tcache_count", 65535)
    },
    Control {
        glibc: "Longest blocks in a thread's cache.",
        neap: "Nothing.",
        default: "1032",
        ..other(None, None, "tcache_max", ANY)
    },
    Control {
        glibc: "Most blocks that are looked at to fill a thread's cache.",
        neap: "Nothing.",
        default: "0, without limit",
        ..other(None, None, "tcache_unsorted_limit", ANY)
    },
    Control {
        glibc: "1: madvise for huge pages, 2: huge pages from hugetlb.",
        neap: "Nothing: huge pages come where density was proven.",
        default: "0",
        ..other(None, None, "hugetlb", ANY)
    },
];

impl Control {
    /// The parameter of mallopt with this number.
    pub fn by_parameter(number: i32) -> Option<&'static Control> {
        TABLE.iter().find(|control| control.parameter.is_some_and(|(_, n)| n == number))
    }

    /// The tunable of this full name (`glibc.malloc.perturb`).
    pub fn by_tunable(name: &[u8]) -> Option<&'static Control> {
        let name = name.strip_prefix(b"glibc.malloc.")?;
        TABLE.iter().find(|control| control.tunable.is_some_and(|tunable| tunable.as_bytes() == name))
    }

    /// What a value does; `None` if it is out of range.
    pub fn effect(&self, value: u64) -> Option<Effect> {
        if value > self.max {
            return None;
        }
        Some(match self.knob {
            Knob::TrimThreshold if value > ALL => Effect::Option(Id::Purge, Value::Word("never")),
            Knob::TrimThreshold => Effect::Option(Id::PurgeBytes, Value::Bytes(value)),
            Knob::MmapThreshold if value > ALL => Effect::Option(Id::MmapThreshold, Value::Word("none")),
            Knob::MmapThreshold => Effect::Option(Id::MmapThreshold, Value::Bytes(value)),
            Knob::MmapMax => Effect::Mmap(value > 0),
            Knob::Perturb => Effect::Fill(value as u8),
            // Bit 0: tell, bit 1: end the process. Only the combination that ends it without a word is another one.
            Knob::CheckAction => Effect::Told(value & 3 != 2),
            Knob::TcacheCount => Effect::Caches(value > 0),
            Knob::Other => Effect::Nothing,
        })
    }

    /// The value of an environment variable or a tunable: decimal, octal (`0...`) or hexadecimal (`0x...`), with a sign;
    /// `None` if it is no number.
    pub fn parse(text: &[u8]) -> Option<u64> {
        let text = text.trim_ascii_start();
        let (negative, digits) = match text {
            [b'-', rest @ ..] => (true, rest),
            [b'+', rest @ ..] => (false, rest),
            _ => (false, text),
        };
        let (radix, digits) = match digits {
            [b'0', b'x' | b'X', rest @ ..] => (16, rest),
            [b'0', rest @ ..] if !rest.is_empty() => (8, rest),
            _ => (10, digits),
        };
        if digits.is_empty() {
            return None;
        }
        let number = digits.iter().try_fold(0u64, |n, &b| {
            let digit = u64::from((b as char).to_digit(radix)?);
            n.checked_mul(u64::from(radix))?.checked_add(digit)
        })?;
        Some(if negative { number.wrapping_neg() } else { number })
    }
}

/// The tunables in the text of GLIBC_TUNABLES that are controls of malloc, with their numbers, in order.
pub fn tunables(text: &[u8]) -> impl Iterator<Item = (&'static Control, u64)> + '_ {
    text.split(|&b| b == b':').filter_map(|part| {
        let at = part.iter().position(|&b| b == b'=')?;
        Some((Control::by_tunable(&part[..at])?, Control::parse(&part[at + 1..])?))
    })
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    fn control(parameter: i32) -> &'static Control {
        Control::by_parameter(parameter).expect("a parameter")
    }

    /// Catches a number of <malloc.h> that is another here.
    #[test]
    fn numbers_are_those_of_the_header() {
        let wanted = [
            ("M_MXFAST", 1),
            ("M_TRIM_THRESHOLD", -1),
            ("M_TOP_PAD", -2),
            ("M_MMAP_THRESHOLD", -3),
            ("M_MMAP_MAX", -4),
            ("M_CHECK_ACTION", -5),
            ("M_PERTURB", -6),
            ("M_ARENA_TEST", -7),
            ("M_ARENA_MAX", -8),
        ];
        for (name, number) in wanted {
            assert_eq!(control(number).parameter, Some((name, number)));
        }
        assert_eq!(TABLE.iter().filter(|c| c.parameter.is_some()).count(), wanted.len());
        assert!(Control::by_parameter(0).is_none() && Control::by_parameter(77).is_none());
    }

    /// Catches a variable or a tunable that is another here than in glibc, or there twice.
    #[test]
    fn names_are_glibcs() {
        let envs: Vec<_> = TABLE.iter().filter_map(|c| c.env).collect();
        for env in [
            "MALLOC_CHECK_",
            "MALLOC_TOP_PAD_",
            "MALLOC_PERTURB_",
            "MALLOC_MMAP_MAX_",
            "MALLOC_MMAP_THRESHOLD_",
            "MALLOC_TRIM_THRESHOLD_",
            "MALLOC_ARENA_MAX",
            "MALLOC_ARENA_TEST",
        ] {
            assert_eq!(envs.iter().filter(|&&e| e == env).count(), 1, "{env}");
        }
        assert_eq!(envs.len(), 8);
        for control in TABLE {
            assert!(control.glibc.ends_with('.') && control.neap.ends_with('.') && !control.default.is_empty());
        }
    }

    /// Catches numbers that are read otherwise than by glibc.
    #[test]
    fn numbers_are_read() {
        for (text, wanted) in [
            ("131072", Some(131_072)),
            ("0x20000", Some(131_072)),
            ("0400000", Some(131_072)),
            ("0", Some(0)),
            ("-1", Some(u64::MAX)),
            (" +7", Some(7)),
            ("", None),
            ("-", None),
            ("0x", None),
            ("08", None),
            ("12k", None),
            ("1 ", None),
            ("99999999999999999999", None),
        ] {
            assert_eq!(Control::parse(text.as_bytes()), wanted, "{text:?}");
        }
    }

    /// Catches a control that does something else than the table says.
    #[test]
    fn effects() {
        use Effect::{Caches, Fill, Mmap, Nothing, Option, Told};
        for (parameter, value, wanted) in [
            (-1, 131_072, Some(Option(Id::PurgeBytes, Value::Bytes(131_072)))),
            (-1, u64::MAX, Some(Option(Id::Purge, Value::Word("never")))),
            (-3, 1 << 20, Some(Option(Id::MmapThreshold, Value::Bytes(1 << 20)))),
            (-3, u64::MAX, Some(Option(Id::MmapThreshold, Value::Word("none")))),
            (-4, 0, Some(Mmap(false))),
            (-4, 5, Some(Mmap(true))),
            (-4, u64::MAX, None),
            (-6, 0xA5, Some(Fill(0xA5))),
            (-6, 0x100, Some(Fill(0))),
            (1, 160, Some(Nothing)),
            (1, 161, None),
            (1, u64::MAX, None),
            (-8, 1, Some(Nothing)),
            (-5, 0, Some(Told(true))),
            (-5, 1, Some(Told(true))),
            (-5, 2, Some(Told(false))),
            (-5, 3, Some(Told(true))),
            (-5, 7, Some(Told(true))),
        ] {
            assert_eq!(control(parameter).effect(value), wanted, "{parameter} {value}");
        }
        let count = Control::by_tunable(b"glibc.malloc.tcache_count").expect("a tunable");
        assert_eq!((count.effect(0), count.effect(7)), (Some(Caches(false)), Some(Caches(true))));
    }

    /// Catches options of the table that refuse what a control sets them to.
    #[test]
    fn values_are_those_of_options() {
        use std::string::ToString;
        for control in TABLE {
            for value in [0, 1, 131_072, 128 << 40, u64::MAX] {
                if let Some(Effect::Option(id, value)) = control.effect(value) {
                    assert_eq!(id.option().parse(value.to_string().as_bytes()), Some(value), "{:?}", control.knob);
                }
            }
        }
    }

    /// Catches tunables of others, or broken ones, that are not skipped.
    #[test]
    fn tunables_are_found() {
        let text = b"glibc.malloc.perturb=0x5:x=1:glibc.rtld.nns=3:glibc.malloc.none=1:glibc.malloc.check:\
            glibc.malloc.mmap_max=z:glibc.malloc.trim_threshold=131072:";
        let found: Vec<_> = tunables(text).map(|(control, n)| (control.knob, n)).collect();
        assert_eq!(found, [(Knob::Perturb, 5), (Knob::TrimThreshold, 131_072)]);
        assert_eq!(tunables(b"").count(), 0);
    }
}
