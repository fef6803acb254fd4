//! The lab: published experiments on memory, run again on this machine across allocators.
//!
//! Depends on `neap-results` (the schema of a run), `neap-hugetlb` (pools of huge pages), `neap-options` (suggestions
//! for misspelt names) and well-kept libraries, not on the allocator. The command `neap lab` and the task runner are
//! thin layers over it.
//!
//! | module | holds |
//! |---|---|
//! | [`catalogue`] | what the experiments are: cases, claims, charts, verdicts |
//! | [`sources`] | the C programs, embedded and compiled on demand |
//! | [`environment`] | variables that are not passed to measured programs |
//! | [`event`] | events of a run, for progress |
//! | [`allocators`], [`peers`] | what is measured, and how the other allocators are built |
//! | [`plan`], [`session`], `turns` | a run from its request to its files; its rounds; the order within a round |
//! | [`runner`] | one case under one allocator |
//! | [`noise`], [`machine`], [`memory`] | how quiet the machine is, its properties, how much memory is free |
//! | [`settings`], [`interrupt`], `scratch` | what is undone however a run ends |
//! | [`store`], [`text`] | the folder of a run; its tables as text |
//!
//! | word | meaning |
//! |---|---|
//! | design | an experiment before it is run; what it becomes in a run is an experiment of the schema |
//! | work | how a case is run: a program of the lab, a program of the system, a server |
//! | outcome | what one run of a case printed and cost |

pub mod allocators;
pub mod catalogue;
pub mod environment;
pub mod event;
pub mod failure;
pub mod interrupt;
pub mod machine;
pub mod memory;
pub mod noise;
pub mod outcome;
pub mod peers;
pub mod place;
pub mod plan;
pub mod real;
pub mod runner;
mod scratch;
pub mod session;
pub mod settings;
pub mod sources;
pub mod store;
pub mod text;
pub mod toolchain;
mod turns;
