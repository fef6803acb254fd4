//! The table of neap's options. The parser of the environment, `neap run --set`, `--help`, the documentation
//! and the tests all come from [`TABLE`].
//!
//! An option `name` is set through the environment variable `NEAP_NAME` (upper case).
#![no_std]

/// What an option accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One of these words; the value is the index of the word.
    Choice(&'static [&'static str]),
    /// The path of an existing directory.
    Directory,
}

/// One option.
#[derive(Clone, Copy, Debug)]
pub struct Opt {
    /// Lower-case name, as in `neap run --set name=value`.
    pub name: &'static str,
    /// The environment variable.
    pub env: &'static str,
    /// What it accepts.
    pub kind: Kind,
    /// The default, as it would be written.
    pub default: &'static str,
    /// One sentence for `--help` and the documentation.
    pub doc: &'static str,
}

/// Every option of neap.
pub const TABLE: &[Opt] = &[
    Opt {
        name: "counters",
        env: "NEAP_COUNTERS",
        kind: Kind::Directory,
        default: "",
        doc: "Count blocks, bytes and system calls, in a file for each process in this directory (slower; used by neap run --summary).",
    },
    Opt {
        name: "foreign",
        env: "NEAP_FOREIGN",
        kind: Kind::Choice(&["pass", "abort"]),
        default: "pass",
        doc: "What free does with a block of another allocator: pass it on to the C library where it is plausibly one of its blocks, or abort.",
    },
];
