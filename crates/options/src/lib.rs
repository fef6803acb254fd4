//! The table of neap's options. The parser of the environment, `neap run --set`, `--help`, the documentation
//! and the tests all come from [`TABLE`].
//!
//! An option `name` is set through the environment variable `NEAP_NAME` (upper case).
//!
//! | file | holds |
//! |---|---|
//! | `lib.rs` | what an option is, and what it accepts |
//! | `table.rs` | the options |
//! | `glibc.rs` | glibc's controls, and what they mean to neap |
//! | `origin.rs` | who chose a value |
//! | `parse.rs` | from text to [`Value`] |
//! | `text.rs` | what is allowed, and what was refused, in words |
//!
//! Everything is pure, and nothing allocates: the library reads its options before `main`. May depend on nothing.
#![no_std]

pub mod glibc;
mod origin;
mod parse;
mod table;
mod text;

pub use origin::Origin;
pub use table::TABLE;
pub use text::{Complaint, Milliseconds, Refusal, Size};

/// The environment variable by which `neap run` says which options it has set: their names, with commas between.
pub const SET_BY_RUN: &str = "NEAP_SET_BY_RUN";

/// Names an option in code: whoever takes the values apart by it learns from the compiler when an option is added.
/// The numbers are the places in [`TABLE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Id {
    /// `counters`
    Counters,
    /// `foreign`
    Foreign,
    /// `purge`
    Purge,
    /// `purge_delay`
    PurgeDelay,
    /// `purge_bytes`
    PurgeBytes,
    /// `zero`
    Zero,
    /// `mmap_threshold`
    MmapThreshold,
    /// `limit`
    Limit,
    /// `harden`
    Harden,
    /// `sites`
    Sites,
    /// `sites_interval`
    SitesInterval,
}

impl Id {
    /// The option of this name.
    pub const fn option(self) -> &'static Opt {
        &TABLE[self as usize]
    }
}

/// What an option accepts. [`Display`](core::fmt::Display) says it in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One of these words.
    Choice(&'static [&'static str]),
    /// The path of an existing directory.
    Directory,
    /// A number of bytes, with or without a binary unit (`4096`, `64K`, `10mb`, `2GiB`), or one of some words.
    Size {
        /// What may stand in place of a number.
        words: &'static [&'static str],
        /// Fewest bytes.
        min: u64,
        /// Most bytes.
        max: u64,
    },
    /// A span of time: milliseconds, or a number with a unit (`500ms`, `2s`, `5min`, `1h`).
    Duration {
        /// Fewest milliseconds.
        min: u32,
        /// Most milliseconds.
        max: u32,
    },
}

/// A value that an option accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// A word of a [`Kind::Choice`] or a [`Kind::Size`].
    Word(&'static str),
    /// The path of a [`Kind::Directory`]; nobody has looked yet whether there is one.
    Path(&'a [u8]),
    /// The number of bytes of a [`Kind::Size`].
    Bytes(u64),
    /// The milliseconds of a [`Kind::Duration`].
    Milliseconds(u32),
}

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
    /// What it does, for `--help` and the documentation.
    pub doc: &'static str,
    /// It can be set only when the program starts.
    pub start_only: bool,
}

impl Opt {
    /// The option that users call `name`.
    pub fn by_name(name: &str) -> Option<&'static Opt> {
        TABLE.iter().find(|opt| opt.name == name)
    }

    /// The value that `text` stands for; none if the option does not accept it.
    pub fn parse<'a>(&self, text: &'a [u8]) -> Option<Value<'a>> {
        parse::value(&self.kind, text)
    }

    /// Why `text` was refused, for `neap run --set`.
    pub fn refusal<'a>(&'a self, text: &'a [u8]) -> Refusal<'a> {
        Refusal { opt: self, text }
    }

    /// The line, without its end, by which the library says that its variable has a bad value.
    pub fn complaint<'a>(&'a self, text: &'a [u8]) -> Complaint<'a> {
        Complaint { opt: self, text }
    }
}
