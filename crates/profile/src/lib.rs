//! A profile: values by call stack, such as the bytes that each holds or the time that each takes. The model, the
//! formats in which it is written and read, and comparisons, without I/O.
//!
//! Depends on `neap-trace` (tables, and what the formats of both have in common), well-kept libraries that know
//! formats, and the standard library. Opens no file and makes no system call.
//!
//! `docs/glossary.md` defines the words.
//!
//! Start with [`Profile`]; a [`Builder`] makes one. One profile may have the value types of several views.
#![forbid(unsafe_code)]

pub mod allocator;
mod amount;
mod builder;
pub mod diff;
pub mod format;
mod frames;
mod html;
mod json;
mod model;
mod options;
pub mod pprof;
mod reading;
pub mod sites;
#[cfg(test)]
mod testing;
pub mod time;
mod view;

pub use amount::amount;
pub use builder::Builder;
pub use frames::Shown;
pub use html::html;
pub use json::{SCHEMA, VERSION, json};
pub use model::{
    Frame, Function, FunctionId, Label, LabelValue, Location, LocationId, Mapping, MappingId, Period, Profile, Sample,
    StackId, StackNode, Unit, ValueType,
};
pub use options::Options;
pub use reading::read;
pub use view::{View, types};
