//! The account of a process's resident memory: who owns it, why it stays, and what would give it back. No I/O: the
//! input is what was read from a process ([`Seen`]), the output is a [`Report`].
//!
//! | word | meaning |
//! |---|---|
//! | Rss | the kernel's resident set size, as in `smaps_rollup`: the OS pages of this process, each counted whole |
//! | Pss | the same, but an OS page that n processes map counts as one n-th |
//! | account | a part of Rss: a [`Kind`], an owner, bytes |
//! | claim | what a reader knows about a range of addresses besides the list of mappings: blocks of a heap, pools |
//! | kept | free memory of an allocator in whole resident OS pages |
//! | fragmentation | free bytes on OS pages that live blocks keep |
//!
//! **The equation** ([`sum`]): the accounts of a mapping add up to the Rss that the kernel has for the mapping. So all
//! accounts add up to Rss, and what no rule explains is of kind `other`.
//!
//! | file | answers |
//! |---|---|
//! | `model.rs` | what a report has; the kinds |
//! | `parse.rs` | the kernel's text: smaps, smaps_rollup, status |
//! | `seen.rs` | what was read from a process |
//! | `owner.rs`, `runtime.rs` | the owner of a mapping |
//! | `sum.rs`, `notes.rs` | from mappings and claims to accounts; remarks on them |
//! | `facts.rs`, `verdict.rs`, `remedy.rs` | why it is so large; what gives memory back, and how much |
//! | `doubt.rs` | what is known to be unsure |
//! | `held.rs` | what keeps calls from being made in a process: traced, stopped, frozen, seccomp |
//! | `trial.rs` | what has been tried of remedies: without a trial none is printed |
//! | `container.rs`, `holder.rs` | the account of a cgroup; what holds its files in memory |
//! | `watch.rs` | what changes over time: leak, plateau, fragmentation, retention |
//! | `python.rs` | pools of CPython |
//! | `text.rs`, `html/` | a report as text and as a page (JSON is the model itself) |
//! | `units.rs`, `shell.rs` | numbers and names as text; names in commands |
//!
//! May depend on `neap-process` (mappings as they were read), `neap-trace` (the style of neap's pages), well-kept libraries and std.
#![forbid(unsafe_code)]

pub mod container;
mod doubt;
mod facts;
mod held;
pub mod holder;
pub mod html;
pub mod model;
mod notes;
mod owner;
pub mod parse;
pub mod python;
mod remedy;
mod runtime;
pub mod seen;
mod shell;
pub mod sum;
pub mod text;
pub mod trial;
pub mod units;
mod verdict;
pub mod watch;

#[cfg(test)]
mod testing;

pub use model::{Account, Cause, Kind, Remedy, Report};
pub use runtime::is_go_heap;
pub use seen::{Claim, HeapPart, Mapping, Seen, Thread};
pub use sum::report;
