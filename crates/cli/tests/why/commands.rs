//! The commands of remedies can be run for the process that they are advised for.

use super::{MIB, Planted, of, plant, why};
use crate::common::{Neap, compile, skip};
use serde_json::Value;
use std::path::PathBuf;

/// The planted causes in a static program.
fn linked_statically(neap: &Neap, name: &str, flags: &[&str]) -> Option<PathBuf> {
    let flags = [&["-O0", "-w", "-pthread", "-static"], flags].concat();
    compile(neap.dir.path(), name, include_str!("plant.c"), &flags)
}

fn commands(report: &Value) -> Vec<String> {
    let remedies = report["remedies"].as_array().expect("remedies").iter();
    remedies.filter_map(|of| of["command"].as_str().map(str::to_owned)).collect()
}

/// Catches neap for a static program, which it refuses, and a debugger that is to call a function whose name the program
/// does not have.
#[test]
fn a_static_program_is_not_started_on_neap() {
    let neap = Neap::new();
    let named = linked_statically(&neap, "named", &[]);
    let Some((named, stripped)) = named.zip(linked_statically(&neap, "stripped", &["-s"])) else {
        return skip("a_static_program", "needs a C compiler and a static C library");
    };
    for cause in ["top", "leak"] {
        let process = Planted::start(&named, &[cause], &[]);
        let report = why(&neap, process.pid);
        assert!(of(&report, "heap-free") + of(&report, "heap-live") > 60 * MIB, "{report:#}");
        assert!(commands(&report).iter().all(|of| !of.starts_with("neap ")), "{report:#}");
        let can_trim = commands(&report).iter().any(|of| of.contains("malloc_trim"));
        assert_eq!(can_trim, cause == "top", "{report:#}");
    }
    let process = Planted::start(&stripped, &["top"], &[]);
    let report = why(&neap, process.pid);
    assert!(commands(&report).iter().all(|of| !of.contains("gdb")), "{report:#}");
    assert!(report["remedies"].to_string().contains("Call malloc_trim(0) in the program"), "{report:#}");
}

/// Catches a debugger that is given the number of a thread that has ended: it refuses.
#[test]
fn a_debugger_gets_a_thread_that_lives() {
    let neap = Neap::new();
    let Some(program) = plant(&neap) else { return skip("a_debugger", "needs a C compiler") };
    let process = Planted::start(&program, &["top", "gone"], &[]);
    let report = why(&neap, process.pid);
    let gdb = commands(&report).into_iter().find(|of| of.starts_with("gdb -p ")).unwrap_or_default();
    let thread: u32 = gdb.split(' ').nth(2).and_then(|number| number.parse().ok()).unwrap_or(0);
    assert!(thread != process.pid, "{report:#}");
    let folder = format!("/proc/{}/task/{thread}", process.pid);
    assert!(std::path::Path::new(&folder).exists(), "{folder}: {report:#}");
}
