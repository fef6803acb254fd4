//! A trace of page faults, without I/O: the model, and the formats in which it is written.
//!
//! Depends on the standard library and on crates that know formats (serde, csv, the Firefox Profiler's), and opens no
//! file and makes no system call: what comes in is bytes or records, what goes out is bytes. The command `neap pagein`
//! does the rest.
//!
//! # Glossary
//!
//! | word | meaning |
//! |---|---|
//! | fault | one page fault, as the processor raised it |
//! | process | one image of a process: exec begins another one under the same pid |
//! | mapping | a range of addresses of a process, for as long as it meant the same |
//! | object | a file with symbols: a program, a library; or what stands for one (`[vdso]`, `[kernel]`, `[jit]`) |
//! | place | an address, resolved: its object, symbol and line |
//! | stack | the callers of a faulting instruction, as a path in a tree |
//!
//! Start with [`Tables`] and [`Fault`]; a [`Source`] has both; [`format::FORMATS`] are the ways of writing
//! them, and [`diff`] compares two that were written.
#![forbid(unsafe_code)]

pub mod compact;
pub mod diff;
mod fault;
pub mod format;
mod ids;
pub mod perf;
pub mod runtime;
mod source;
mod summary;
mod tables;
pub mod text;
pub mod track;

pub use fault::{Access, Fault, Kind, Mode, Subject};
pub use ids::{BlockId, Id, LineId, MappingId, ObjectId, PlaceId, ProcessId, StackId, SymbolId, Table, ThreadId};
pub use source::{Recorded, Source};
pub use summary::{Backend, Cause, Difference, End, SiteSummary, Summary, Usage};
pub use tables::{
    Block, Clock, FileId, Line, Mapping, MappingKind, Object, Place, Process, Protection, StackNode, Symbol, Tables,
    Thread,
};
