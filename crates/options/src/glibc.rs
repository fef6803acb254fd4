//! glibc's controls: parameters of mallopt, environment variables and tunables, and what each does when it is set.
//! Controls that set an option are in the option's entry (`table.rs`), the others here. The library, `neap options`,
//! docs/controls.md and the tests use both.
//!
//! Numbers are read as glibc reads them. What glibc ignores without a message is ignored here too: an unknown tunable,
//! text that is not a number, a number out of range. (mallopt returns 0 for the latter.)

use crate::{Id, TABLE, Value};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use neap_core::policy::Purge;

pub use crate::origin::By;
pub use crate::table::{Control, Effect};

const ANY: u64 = u64::MAX;

/// The controls of glibc 2.42 and before that set no option.
const OTHERS: &[Control] = &[
    Control::new(Some(("M_TOP_PAD", -2)), Some("MALLOC_TOP_PAD_"), "top_pad", ANY),
    Control {
        effect: |number| Effect::Fill(number as u8),
        ..Control::new(Some(("M_PERTURB", -6)), Some("MALLOC_PERTURB_"), "perturb", ANY)
    },
    Control {
        // Only the combination that ends the process without a message differs.
        effect: |number| Effect::Report(number & 3 != 2),
        ..Control::new(Some(("M_CHECK_ACTION", -5)), Some("MALLOC_CHECK_"), "check", ANY)
    },
    Control::new(Some(("M_ARENA_TEST", -7)), Some("MALLOC_ARENA_TEST"), "arena_test", ANY),
    Control::new(Some(("M_ARENA_MAX", -8)), Some("MALLOC_ARENA_MAX"), "arena_max", ANY),
    Control::new(Some(("M_MXFAST", 1)), None, "mxfast", 160),
    Control { effect: |number| Effect::Caches(number > 0), ..Control::new(None, None, "tcache_count", 65535) },
    Control::new(None, None, "tcache_max", ANY),
    Control::new(None, None, "tcache_unsorted_limit", ANY),
    Control::new(None, None, "hugetlb", ANY),
];

/// Every control.
pub fn all() -> impl Iterator<Item = &'static Control> {
    TABLE.iter().flat_map(|opt| opt.glibc).chain(OTHERS)
}

/// The parameter of mallopt with this number.
pub fn by_parameter(number: i32) -> Option<&'static Control> {
    all().find(|control| control.parameter.is_some_and(|(_, n)| n == number))
}

/// The controls of malloc in the text of GLIBC_TUNABLES, with their numbers, in order.
pub fn tunables(text: &[u8]) -> impl Iterator<Item = (&'static Control, u64)> + '_ {
    text.split(|&b| b == b':').filter_map(|part| {
        let (name, text) = part.split_at(part.iter().position(|&b| b == b'=')?);
        let name = name.strip_prefix(b"glibc.malloc.")?;
        Some((all().find(|control| control.tunable.as_bytes() == name)?, number(&text[1..])?))
    })
}

/// The number in an environment variable or a tunable: decimal, octal (`0...`) or hexadecimal (`0x...`), with a sign;
/// `None` if it is not a number.
pub fn number(text: &[u8]) -> Option<u64> {
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

/// The target that controls act on: a process, or a model of one.
pub trait Target {
    /// The number of an option's value.
    fn number(&self, id: Id) -> u64;
    /// Sets an option.
    fn set(&mut self, id: Id, value: Value<'_>, by: By);
    /// Does an effect that is not the value of an option: [`Effect::Fill`], [`Effect::Caches`], [`Effect::Report`].
    fn act(&mut self, effect: Effect);
}

/// Values that controls have replaced. They are restored when the control is set back.
#[derive(Debug)]
pub struct Saved {
    /// Whether M_MMAP_MAX is 0; then `threshold` is the number of `mmap_threshold` to restore.
    no_mmap: AtomicBool,
    threshold: AtomicU64,
    /// If M_TRIM_THRESHOLD is -1, the number of `purge` before that; else [`NOTHING`].
    purge: AtomicU64,
}

const NOTHING: u64 = u64::MAX;

// All orderings are relaxed: each value stands for itself.
impl Saved {
    /// No values.
    pub const fn new() -> Saved {
        Saved { no_mmap: AtomicBool::new(false), threshold: AtomicU64::new(0), purge: AtomicU64::new(NOTHING) }
    }

    /// Sets a control to `number`; false if the number is out of range.
    pub fn apply(&self, control: &Control, number: u64, by: By, target: &mut impl Target) -> bool {
        let Some(effect) = control.does(number) else { return false };
        match effect {
            Effect::Nothing => {}
            Effect::Mmap(on) => self.allow_mmap(on, by, target),
            Effect::Option(Id::MmapThreshold, value) if self.no_mmap.load(Ordering::Relaxed) => {
                let number = Id::MmapThreshold.option().kind.number(value);
                self.threshold.store(number.unwrap_or(NOTHING), Ordering::Relaxed);
            }
            Effect::Option(id, value) => {
                let now = target.number(Id::Purge);
                let is_never = now == Purge::Never as u64;
                if id == Id::Purge && !is_never {
                    self.purge.store(now, Ordering::Relaxed);
                } else if id == Id::PurgeBytes {
                    let before = Id::Purge.option().kind.value(self.purge.swap(NOTHING, Ordering::Relaxed));
                    // Restored unless the policy has been set by other means since.
                    if let Some(before) = before.filter(|_| is_never) {
                        target.set(Id::Purge, before, by);
                    }
                }
                target.set(id, value, by);
            }
            effect => target.act(effect),
        }
        true
    }

    /// M_MMAP_MAX: 0 saves the threshold, any other number restores it.
    fn allow_mmap(&self, on: bool, by: By, target: &mut impl Target) {
        let kind = Id::MmapThreshold.option().kind;
        let (none, now) = (Value::Word("none"), target.number(Id::MmapThreshold));
        if self.no_mmap.swap(!on, Ordering::Relaxed) != on {
            return;
        }
        if !on {
            self.threshold.store(now, Ordering::Relaxed);
            target.set(Id::MmapThreshold, none, by);
        } else if kind.value(now) == Some(none) {
            // The threshold has not been set by other means since.
            let before = kind.value(self.threshold.load(Ordering::Relaxed));
            target.set(Id::MmapThreshold, before.unwrap_or(none), by);
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    fn parameter(number: i32) -> &'static Control {
        by_parameter(number).expect("a parameter")
    }

    /// Catches a number that differs from the one in <malloc.h>.
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
            assert_eq!(parameter(number).parameter, Some((name, number)));
        }
        assert_eq!(all().filter(|c| c.parameter.is_some()).count(), wanted.len());
        assert!(by_parameter(0).is_none() && by_parameter(77).is_none());
    }

    /// Catches a variable or a tunable whose name differs from glibc's, or that is there twice.
    #[test]
    fn names_are_glibcs() {
        let envs: Vec<_> = all().filter_map(|c| c.env).collect();
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
        for control in all() {
            let texts = control.texts().expect("texts");
            assert!(texts.glibc.ends_with('.') && texts.neap.ends_with('.') && !texts.default.is_empty());
        }
    }

    /// Catches numbers that are not read as glibc reads them.
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
            assert_eq!(number(text.as_bytes()), wanted, "{text:?}");
        }
    }

    /// Catches a control that does not do what the table says.
    #[test]
    fn effects() {
        use Effect::{Caches, Fill, Mmap, Nothing, Option, Report};
        for (number, value, wanted) in [
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
            (-5, 0, Some(Report(true))),
            (-5, 1, Some(Report(true))),
            (-5, 2, Some(Report(false))),
            (-5, 3, Some(Report(true))),
            (-5, 7, Some(Report(true))),
        ] {
            assert_eq!(parameter(number).does(value), wanted, "{number} {value}");
        }
        let count = all().find(|control| control.tunable == "tcache_count").expect("a tunable");
        assert_eq!((count.does(0), count.does(7)), (Some(Caches(false)), Some(Caches(true))));
    }

    /// Catches options of the table that refuse what a control sets them to.
    #[test]
    fn values_are_those_of_options() {
        use std::string::ToString;
        for control in all() {
            for value in [0, 1, 131_072, 128 << 40, u64::MAX] {
                if let Some(Effect::Option(id, value)) = control.does(value) {
                    assert_eq!(id.option().parse(value.to_string().as_bytes()), Some(value), "{}", control.tunable);
                }
            }
        }
    }

    /// Catches tunables of others, or broken ones, that are not skipped.
    #[test]
    fn tunables_are_found() {
        let text = b"glibc.malloc.perturb=0x5:x=1:glibc.rtld.nns=3:glibc.malloc.none=1:glibc.malloc.check:\
            glibc.malloc.mmap_max=z:glibc.malloc.trim_threshold=131072:";
        let found: Vec<_> = tunables(text).map(|(control, n)| (control.tunable, n)).collect();
        assert_eq!(found, [("perturb", 5), ("trim_threshold", 131_072)]);
        assert_eq!(tunables(b"").count(), 0);
    }
}
