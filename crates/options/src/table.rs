//! The options. A new option needs an entry here, which defines it completely, and a section in docs/options.md. Tests
//! report what is missing: the section, the gauge, or the function that starts it if it is not a setting of the core.

use crate::text::{Complaint, Refusal};
use crate::{Kind, Value};
use neap_core::policy::{Policy, Setting};

/// One option.
#[derive(Clone, Copy, Debug)]
pub struct Opt {
    /// Its name in code.
    pub id: Id,
    /// Lower-case name, as in `neap run --set name=value`.
    pub name: &'static str,
    /// The environment variable.
    pub env: &'static str,
    /// What it accepts.
    pub kind: Kind,
    /// The default, as it would be written; empty: not set.
    pub default: &'static str,
    /// Whether it can be set only when the program starts.
    pub start_only: bool,
    /// The core's setting that keeps it, as [`Kind::number`], and the gauge on the counters page that shows the same
    /// number. `None` if the library starts something instead.
    pub kept: Option<(Setting, &'static str)>,
    /// Whether it decides how long free memory waits; then the purger looks again when it is set.
    pub guides_purger: bool,
    /// Controls of glibc's that set it.
    pub glibc: &'static [Control],
}

/// A control of glibc's: parameter of mallopt, environment variable and tunable. `control_texts.rs` has its texts.
#[derive(Clone, Copy, Debug)]
pub struct Control {
    /// Name and number of the parameter of mallopt.
    pub parameter: Option<(&'static str, i32)>,
    /// The environment variable.
    pub env: Option<&'static str>,
    /// The tunable, without `glibc.malloc.`.
    pub tunable: &'static str,
    /// Greatest value. As in glibc, a negative number counts as greater than all others.
    pub max: u64,
    /// What setting it to a number does.
    pub effect: fn(u64) -> Effect,
}

impl Control {
    /// A control that does nothing.
    pub(crate) const fn new(
        parameter: Option<(&'static str, i32)>,
        env: Option<&'static str>,
        tunable: &'static str,
        max: u64,
    ) -> Control {
        Control { parameter, env, tunable, max, effect: |_| Effect::Nothing }
    }

    /// What setting it to `number` does; `None` if the number is out of range.
    pub fn does(&self, number: u64) -> Option<Effect> {
        (number <= self.max).then(|| (self.effect)(number))
    }
}

/// What setting a control does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    Nothing,
    /// An option of neap gets a value.
    Option(Id, Value<'static>),
    /// Whether blocks may go back when they are freed, as [`Id::MmapThreshold`] says.
    Mmap(bool),
    /// Blocks are filled with this byte when they are freed, and with its complement when they are new; 0: not.
    Fill(u8),
    /// Whether threads have caches.
    Caches(bool),
    /// Whether an error is reported before it ends the process.
    Report(bool),
}

/// Most bytes of a size: all addresses of a program. In controls of glibc's a greater number means "never".
const ALL: u64 = 128 << 40;
/// Least memory limit: a process needs about this much to start. So `limit=512`, where megabytes were meant, and 0 are
/// refused.
const LEAST_LIMIT: u64 = 1 << 20;
const HOUR: u32 = 60 * 60 * 1000;

/// An option that the library starts when the program starts. An entry takes the fields that it does not state from
/// here.
const START: Opt = Opt {
    id: Id::Counters,
    name: "",
    env: "",
    kind: Kind::Directory,
    default: "",
    start_only: true,
    kept: None,
    guides_purger: false,
    glibc: &[],
};

/// An option that can be set at any time.
const ANY_TIME: Opt = Opt { start_only: false, ..START };

macro_rules! options {
    ($($id:ident($name:literal, $env:literal) = $like:ident { $($field:ident: $value:expr,)* } $doc:literal)*) => {
        /// Names an option in code. The numbers are the places in [`TABLE`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Id {
            $(#[doc = concat!("Option `", $name, "`.")] $id,)*
        }

        /// Every option of neap.
        pub static TABLE: &[Opt] = &[$(Opt { id: Id::$id, name: $name, env: $env, $($field: $value,)* ..$like }),*];

        /// What each does. Apart from [`TABLE`], because the library needs no texts.
        static DOCS: &[&str] = &[$($doc),*];
    };
}

options! {
    Counters("counters", "NEAP_COUNTERS") = START {
        kind: Kind::Directory,
    } "Count blocks, bytes and system calls, in a file for each process in this directory (slower; used by neap run --summary)."
    Foreign("foreign", "NEAP_FOREIGN") = ANY_TIME {
        kind: Kind::Choice(&["pass", "abort"]),
        default: "pass",
        kept: Some((Setting::ForeignAbort, "foreign")),
    } "What free does with a block of another allocator: pass it on if it may be a block of the C library, or abort."
    Purge("purge", "NEAP_PURGE") = ANY_TIME {
        // In the order of the core's `Purge`.
        kind: Kind::Choice(&["decay", "eager", "lazy", "never"]),
        default: "decay",
        kept: Some((Setting::Purge, "policy")),
        guides_purger: true,
    } "When free memory goes back to the system: after purge_delay without use (decay); at once (eager); as decay, but the system takes it only when memory is short (lazy); or only when the program asks (never)."
    PurgeDelay("purge_delay", "NEAP_PURGE_DELAY") = ANY_TIME {
        kind: Kind::Duration { min: 0, max: HOUR },
        default: "500ms",
        kept: Some((Setting::Delay, "purge_delay")),
        guides_purger: true,
    } "How long free memory waits for its next use before it goes back."
    PurgeBytes("purge_bytes", "NEAP_PURGE_BYTES") = ANY_TIME {
        kind: Kind::Size { words: &["auto"], min: 0, max: ALL },
        default: "auto",
        kept: Some((Setting::Bytes, "purge_bytes")),
        guides_purger: true,
        glibc: &[Control {
            effect: |bytes| match bytes {
                0..=ALL => Effect::Option(Id::PurgeBytes, Value::Bytes(bytes)),
                _ => Effect::Option(Id::Purge, Value::Word("never")),
            },
            ..Control::new(Some(("M_TRIM_THRESHOLD", -1)), Some("MALLOC_TRIM_THRESHOLD_"), "trim_threshold", u64::MAX)
        }],
    } "Limit on free memory that waits; memory beyond it goes back earlier. auto is a quarter of the memory limit."
    Zero("zero", "NEAP_ZERO") = ANY_TIME {
        kind: Kind::Choice(&["resident", "always"]),
        default: "resident",
        kept: Some((Setting::ZeroAlways, "zero")),
    } "What calloc clears of reused memory: only the OS pages that may hold something (resident), or all of it (always)."
    MmapThreshold("mmap_threshold", "NEAP_MMAP_THRESHOLD") = ANY_TIME {
        kind: Kind::Size { words: &["none"], min: 0, max: ALL },
        default: "none",
        kept: Some((Setting::MmapThreshold, "mmap_threshold")),
        glibc: &[
            Control {
                effect: |bytes| Effect::Option(
                    Id::MmapThreshold,
                    if bytes <= ALL { Value::Bytes(bytes) } else { Value::Word("none") },
                ),
                ..Control::new(Some(("M_MMAP_THRESHOLD", -3)), Some("MALLOC_MMAP_THRESHOLD_"), "mmap_threshold", u64::MAX)
            },
            Control {
                effect: |count| Effect::Mmap(count > 0),
                ..Control::new(Some(("M_MMAP_MAX", -4)), Some("MALLOC_MMAP_MAX_"), "mmap_max", i32::MAX as u64)
            },
        ],
    } "Blocks of at least this many bytes go back to the system as soon as they are freed."
    Limit("limit", "NEAP_LIMIT") = ANY_TIME {
        kind: Kind::Size { words: &["auto", "off"], min: LEAST_LIMIT, max: ALL },
        default: "auto",
        kept: Some((Setting::Limit, "limit")),
        guides_purger: true,
    } "Which memory limit counts: that of the container or the machine, for which no allocation fails (auto), none (off), or a size for this process, beyond which allocations fail."
    Harden("harden", "NEAP_HARDEN") = START {
        kind: Kind::Choice(&["off", "on"]),
        default: "off",
        kept: Some((Setting::Harden, "harden")),
    } "Makes heap errors harmless, or detects them, but costs time: freed blocks are zeroed, places are random, guard pages, no free lists."
    Huge("huge", "NEAP_HUGE") = ANY_TIME {
        // In the order of the core's `HugePages`.
        kind: Kind::Choice(&["off", "adaptive", "advised", "thp", "always", "hugetlb"]),
        default: "adaptive",
        kept: Some((Setting::Huge, "huge")),
    } "Huge pages: none (off); if a program of 96 MiB or more grows and uses nearly all memory that it takes (adaptive); as adaptive, but none that the kernel gives by itself (advised); for large blocks, from 2 MiB on (thp); for all blocks (always); for all blocks, from the kernel's pool while it lasts (hugetlb)."
    Sites("sites", "NEAP_SITES") = START {
        kind: Kind::Directory,
    } "Record where blocks are allocated, in a file for each process in this directory (slower; used by neap pagein --sites)."
    SitesInterval("sites_interval", "NEAP_SITES_INTERVAL") = START {
        kind: Kind::Size { words: &[], min: 1, max: ALL },
        default: "1",
    } "The sampling interval of sites: the mean number of bytes between two recorded allocations; 1: all are recorded."
    Profile("profile", "NEAP_PROFILE") = START {
        kind: Kind::Directory,
    } "Keep sampled blocks with the stacks that allocated them, in a file for each process in this directory (used by neap profile)."
    ProfileInterval("profile_interval", "NEAP_PROFILE_INTERVAL") = START {
        kind: Kind::Size { words: &[], min: 1, max: ALL },
        default: "512K",
    } "The sampling interval of profile: the mean number of bytes between two sampled blocks; 1: each block is kept."
    ProfileSignal("profile_signal", "NEAP_PROFILE_SIGNAL") = START {
        kind: Kind::Choice(&[
            "off", "usr1", "usr2", "rtmin+1", "rtmin+2", "rtmin+3", "rtmin+4", "rtmin+5", "rtmin+6", "rtmin+7",
            "rtmin+8",
        ]),
        default: "off",
    } "The signal at which the process writes a profile for pprof into the directory of profile."
    Guards("guards", "NEAP_GUARDS") = START {
        kind: Kind::Choice(&["off", "on", "report"]),
        default: "off",
    } "Guarded blocks: some blocks are next to an inaccessible OS page, and become inaccessible when they are freed. An overrun, a use after free or a double free of one is reported with stacks; then the process ends (on), or goes on (report)."
    GuardsInterval("guards_interval", "NEAP_GUARDS_INTERVAL") = START {
        kind: Kind::Size { words: &[], min: 1, max: ALL },
        default: "100M",
    } "The sampling interval of guards: the mean number of requested bytes between two blocks that are to be guarded."
    Prefault("prefault", "NEAP_PREFAULT") = START {
        kind: Kind::Prefault { max: ALL },
        default: "off",
    } "Makes memory resident when the program starts, so that its first use is no page fault: this many bytes of the heap, all mappings of files, or those whose path matches the pattern."
    Stats("stats", "NEAP_STATS") = START {
        kind: Kind::Report,
        default: "off",
    } "Reports what the process used and holds when it exits: on standard error (exit), or at the end of a file."
    Hugetlb("hugetlb", "NEAP_HUGETLB") = ANY_TIME {
        kind: Kind::Choice(&["fallback", "strict"]),
        default: "fallback",
        kept: Some((Setting::PoolOnly, "hugetlb")),
    } "What huge=hugetlb does when the pool is empty: small pages, after one line on standard error (fallback), or allocations fail (strict)."
}

const _: () =
    assert!(TABLE.len() <= Policy::ORIGINS, "each option has its place among the origins: see Policy::set_origin");

impl Id {
    /// The option of this name.
    pub const fn option(self) -> &'static Opt {
        &TABLE[self as usize]
    }
}

impl Opt {
    /// The option of this name.
    pub fn by_name(name: impl AsRef<[u8]>) -> Option<&'static Opt> {
        TABLE.iter().find(|opt| opt.name.as_bytes() == name.as_ref())
    }

    /// What it does, for `--help` and the documentation.
    pub fn doc(&self) -> &'static str {
        DOCS[self.id as usize]
    }

    /// The value that `text` stands for; `None` if the option does not accept it.
    pub fn parse<'a>(&self, text: &'a [u8]) -> Option<Value<'a>> {
        self.kind.parse(text)
    }

    /// Sets it in the core; false if the core does not keep it, or the option does not accept the value.
    pub fn store(&self, policy: &Policy, value: Value<'_>) -> bool {
        let word = self.kind.number(value).map(|number| usize::try_from(number).unwrap_or(usize::MAX));
        self.kept.zip(word).map(|((setting, _), word)| policy.set_word(setting, word)).is_some()
    }

    /// The value in the core; `None` if the core does not keep it.
    pub fn load(&self, policy: &Policy) -> Option<Value<'static>> {
        self.kind.value(policy.word(self.kept?.0) as u64)
    }

    /// Why `text` was refused, for `neap run --set`.
    pub fn refusal<'a>(&'a self, text: &'a [u8]) -> Refusal<'a> {
        Refusal { name: self.name, kind: &self.kind, text }
    }

    /// The line, without its end, by which the library reports that the option's variable has an invalid value.
    pub fn complaint<'a>(&'a self, text: &'a [u8]) -> Complaint<'a> {
        Complaint { env: self.env, kind: &self.kind, default: self.default, text }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    /// Catches a variable that cannot be guessed from the name, and names that shells do not take.
    #[test]
    fn names_and_variables_agree() {
        for opt in TABLE {
            assert_eq!(opt.env, std::format!("NEAP_{}", opt.name.to_ascii_uppercase()));
            assert!(opt.name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{}", opt.name);
            assert_eq!(Opt::by_name(opt.name).map(|found| found.id), Some(opt.id));
            assert_eq!(opt.id.option().name, opt.name);
        }
        assert!(Opt::by_name("").is_none() && Opt::by_name("Purge").is_none());
    }

    /// Catches two options of one name, of which the second could never be set.
    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = TABLE.iter().map(|opt| opt.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), TABLE.len());
    }

    /// Catches a default that the option itself refuses.
    #[test]
    fn defaults_are_accepted() {
        for opt in TABLE {
            let value = opt.parse(opt.default.as_bytes());
            assert!(value.is_some() || opt.default.is_empty() && opt.kind == Kind::Directory, "{}", opt.name);
        }
    }

    /// Catches ranges that are empty, words that look like numbers, and documentation without an end.
    #[test]
    fn entries_make_sense() {
        for opt in TABLE {
            assert!(opt.doc().ends_with('.'), "{}", opt.name);
            assert!(opt.start_only || opt.kept.is_some(), "{}: nothing to set while the program runs", opt.name);
            let words = match opt.kind {
                Kind::Choice(words) => words,
                Kind::Size { words, min, max } => {
                    assert!(min < max, "{}", opt.name);
                    words
                }
                Kind::Duration { min, max } => {
                    assert!(min < max, "{}", opt.name);
                    &[]
                }
                Kind::Directory => &[],
                Kind::Prefault { .. } => crate::PREFAULT,
                Kind::Report => &["off", "exit"],
            };
            for word in words {
                // Signals have numbers in their names.
                let is_letter = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'+';
                assert!(word.bytes().all(is_letter), "{word}");
                assert_eq!(opt.parse(word.as_bytes()), Some(Value::Word(word)));
            }
        }
    }
}
