//! Allocators as they are shipped: what `neap why` says of their heaps against what the program counts (`truth.rs`), what
//! its remedies promise against what they give back (`remedies.rs`), and programs from registries that carry an
//! allocator (`shipped.rs`). With `NEAP_RECORD=1`, which `cargo xtask remedies` sets, the results go to the tables of
//! `docs/builds.md`, `docs/remedies.md` and `crates/account/trials.md` (`record.rs`).

mod libraries;
mod record;
mod remedies;
mod shipped;
mod truth;

use std::process::ExitCode;

use neap_tests::{Case, Stop, suite};

fn main() -> ExitCode {
    let mut cases = Vec::new();
    cases.extend(truth::cases());
    cases.extend(remedies::cases());
    cases.extend(shipped::cases());
    // They measure how large processes are, and some take half a GiB.
    suite::main(cases.into_iter().map(|case: Case| case.exclusive()).collect())
}

/// A failed test.
fn fail<T>(why: impl Into<String>) -> Result<T, Stop> {
    Err(Stop::Fail(why.into()))
}
