//! What a run of the lab found, without I/O: its schema as JSON and CSV, statistics, verdicts, comparisons.
//!
//! Depends on the standard library and on crates that know formats (serde, csv), opens no file and makes no system
//! call. `neap lab` measures and keeps the files; `neap-report` draws.
//!
//! `docs/glossary.md` defines the words.
//!
//! Start with [`Run`]; a [`View`] sorts its rows; [`judge`] has the pieces of verdicts, [`mod@compare`] compares two
//! runs, [`suite`] adds ratios and means to the allocation workloads.
#![forbid(unsafe_code)]

mod chart;
pub mod compare;
mod error;
pub mod judge;
pub mod means;
mod row;
mod run;
pub mod stats;
pub mod suite;
mod view;

pub use chart::{Axis, Better, Chart, ChartKind, Column, Mark, Place, Point, Position, Series, Table};
pub use compare::{Change, Comparison, Missing, Outcome, compare};
pub use error::{ReadError, SCHEMA};
pub use row::{Row, rows_from_csv, rows_to_csv};
pub use run::{
    Allocator, Case, Claim, ClaimFigure, Experiment, Kind, Listing, Machine, Metric, Noise, NoiseCheck, Param, Repeat,
    Run, Verdict, notes_from,
};
pub use stats::{Ratio, Spread};
pub use view::{Figure, Value, View};

/// Name of the baseline: the system's own malloc.
pub const GLIBC: &str = "glibc";
/// Name of this project's allocator.
pub const NEAP: &str = "neap";
