//! The options of neap: one table ([`TABLE`]) from which the parser of the environment, `neap run --set`, `--help`,
//! docs/options.md, docs/controls.md, the functions that read and set options, and the tests come.
//!
//! | file | answers |
//! |---|---|
//! | `table.rs` | which options there are, with the complete definition of each |
//! | `kind.rs` | what an option accepts, and how a value is read and written |
//! | `glibc.rs` | glibc's controls: which there are, and what setting one does |
//! | `control_texts.rs` | what they do, in words |
//! | `environment.rs` | which variables of the environment count, in which order |
//! | `origin.rs` | where a value comes from |
//! | `pattern.rs` | which paths a pattern matches |
//! | `jemalloc.rs` | jemalloc's MALLOC_CONF, and what it sets |
//! | `unknown.rs` | variables that look like an option's, but belong to none |
//! | `nearest.rs` | which name a mistyped one means |
//! | `amount.rs` | how reports write bytes and counts |
//! | `text.rs` | the messages about a value that is refused |
//!
//! An option `name` is set through the environment variable `NEAP_NAME` (upper case). Everything is pure, and nothing
//! allocates: the library reads its options before `main`. May depend on `neap-core`, for the settings that options are
//! stored in.
#![no_std]

pub mod amount;
mod control_texts;
pub mod environment;
pub mod glibc;
pub mod jemalloc;
mod kind;
pub mod nearest;
mod origin;
pub mod pattern;
mod table;
mod text;
pub mod unknown;

pub use control_texts::Texts;
pub use kind::{FILE, Kind, PREFAULT, Value};
pub use origin::Origin;
pub use table::{Id, Opt, TABLE};
pub use text::{Complaint, Quoted, Refusal};
