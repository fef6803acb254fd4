//! A profile: values by call stack, such as the bytes that each holds or the time that each takes. Its model, the formats
//! in which it is written and read, and comparisons, without I/O.
//!
//! Depends on `neap-trace` (tables, and what formats of both have in common), well-kept libraries that know formats, and
//! the standard library. Opens no file and makes no system call.
//!
//! # Glossary
//!
//! | word | meaning |
//! |---|---|
//! | value type | what a column of values means, and its unit: `inuse_space` in `bytes` |
//! | view | value types that are asked for and shown together: live blocks, allocations, pinned memory, time |
//! | sample | a stack with one value for each value type of the profile, and labels |
//! | stack | a path in a tree, from the innermost frame outwards |
//! | location | an instruction: its address, mapping and frames |
//! | frame | a function and a line; several at one location where functions were inlined |
//! | mapping | a file in the process, by which a location is found in the file |
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
