//! `neap why` on stacks that share a mapping.

use std::fs;

use super::common::{Neap, compile, skip};
use super::{MIB, Planted, assert_cause, of, why};

/// Catches live stacks that count as not in use, or as no stacks, because their guards are marks in the page table (glibc
/// 2.42 and later): then adjacent stacks are one mapping.
#[test]
fn stacks_in_one_mapping_are_told_apart() {
    let neap = Neap::new();
    let Some(program) = compile(neap.dir.path(), "stacks", include_str!("stacks.c"), &["-O0", "-w", "-pthread"]) else {
        return skip("stacks_in_one_mapping", "needs a C compiler");
    };
    let flags = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let version: Vec<u32> = flags.split(['.', '-']).map_while(|part| part.parse().ok()).take(2).collect();
    if version < vec![6, 15] {
        return skip("stacks_in_one_mapping", "needs Linux 6.15, which shows guards");
    }
    let report = why(&neap, Planted::start(&program, &[], &[]).pid);
    assert_cause(&report, "stacks", "stack", 8 * MIB);
    let verdict = report["verdict"].as_str().expect("a sentence");
    // In use are 8 MiB; a few OS pages below were touched when the threads began.
    assert!(!verdict.contains("MiB of it touched once"), "{verdict}");
    let running = why(&neap, Planted::start(&program, &["run"], &[]).pid);
    assert!(of(&running, "stack") >= 2 * MIB, "{running:#}");
}
