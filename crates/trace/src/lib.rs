//! A trace of page faults, without I/O: the model, and the formats in which it is written.
//!
//! Depends on the standard library and on crates that know formats (serde, csv, the Firefox Profiler's). It opens no
//! file and makes no system call: input is bytes or records, output is bytes. The command `neap pagein` does the rest.
//!
//! `docs/glossary.md` defines the words.
//!
//! Start with [`Tables`] and [`Fault`]; a [`Source`] has both. [`format::FORMATS`] lists the ways of writing them, and
//! [`diff`] compares two written traces.
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
