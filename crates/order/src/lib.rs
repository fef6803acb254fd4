//! `neap order`: which functions of a program are entered first, so that a linker can lay them out together.
//!
//! Compiles `record.rs` of `crates/instrument`, which is a library for other programs. May depend on `neap-launch`,
//! `neap-layout`, `neap-process`, `neap-trace`, well-kept libraries, the C library and std.
//!
//! | word | meaning |
//! |---|---|
//! | binary | the program or library whose layout is to be improved |
//! | site | the first byte of a function, where a breakpoint is planted |
//! | trace | the functions that were entered, in order |
#![deny(unsafe_op_in_unsafe_fn)]

pub mod args;
mod binary;
mod breakpoints;
mod data;
mod files;
mod instrumented;
mod layout;
mod pages;
mod plan;
mod record;
mod target;
mod trace;
mod verify;

use neap_launch::error::Error;

use self::args::{OrderAction, OrderArgs};

/// Runs the command; the result is neap's exit status, or the program's.
pub fn run(args: OrderArgs) -> Result<u8, Error> {
    match args.action {
        OrderAction::Trace(trace) => trace::run(&trace),
        OrderAction::Merge(merge) => files::merge(&merge),
        OrderAction::Estimate(estimate) => layout::estimate_of(&estimate),
        OrderAction::Emit(emit) => layout::emit_for(&emit),
        OrderAction::Picture(picture) => layout::picture_of(&picture),
        OrderAction::Closure(closure) => layout::closure_of(&closure),
        OrderAction::Verify(verify) => verify::run(&verify),
    }
}
