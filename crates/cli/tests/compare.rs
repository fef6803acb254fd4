//! `neap lab compare`: what it says of two kept runs, and how it ends. The runs are made up.

mod common;

use std::fs;
use std::path::PathBuf;
use std::process::Output;

use common::Neap;
use neap_results::{Experiment, Row, Run, SCHEMA};

/// Writes a run with three rounds of each figure: case, allocator, value. Returns its folder.
fn kept(neap: &Neap, name: &str, figures: &[(&str, &str, f64)]) -> PathBuf {
    let row = |case: &str, allocator: &str, round: u32, value: f64| Row {
        experiment: "calloc".into(),
        case: case.into(),
        allocator: allocator.into(),
        round,
        turn: 1,
        status: "ok".into(),
        metric: "median".into(),
        unit: "us".into(),
        value: value * (1.0 + f64::from(round) / 1000.0),
    };
    let rounds = |&(case, allocator, value): &(&str, &str, f64)| {
        (1..=3).map(|round| row(case, allocator, round, value)).collect::<Vec<_>>()
    };
    let experiment = Experiment { name: "calloc".into(), ..Experiment::default() };
    let allocator = |name: &str| neap_results::Allocator { name: name.into(), ..Default::default() };
    let run = Run {
        schema: SCHEMA,
        neap: name.into(),
        allocators: ["glibc", "neap", "jemalloc"].map(allocator).into(),
        experiments: vec![experiment],
        rows: figures.iter().flat_map(rounds).collect(),
        ..Run::default()
    };
    let dir = neap.path(name);
    fs::create_dir(&dir).expect("a folder");
    fs::write(dir.join("run.json"), run.to_json()).expect("a file");
    dir
}

const BEFORE: [(&str, &str, f64); 5] = [
    ("4 KiB", "glibc", 10.0),
    ("4 KiB", "neap", 1.0),
    ("4 KiB", "jemalloc", 2.0),
    ("1 MiB", "glibc", 20.0),
    ("1 MiB", "neap", 2.0),
];

/// Status, standard output, standard error of a comparison with what is given.
fn compared(after: &[(&str, &str, f64)], options: &[&str]) -> (Option<i32>, String, String) {
    let neap = Neap::new();
    let (before, after) = (kept(&neap, "before", &BEFORE), kept(&neap, "after", after));
    let mut command = neap.command(["lab", "compare"]);
    let Output { status, stdout, stderr } = command.args(options).args([before, after]).output().expect("neap starts");
    (status.code(), String::from_utf8_lossy(&stdout).into(), String::from_utf8_lossy(&stderr).into())
}

/// Catches a regression that ends as if there were none, and a check that fails where there is none.
#[test]
fn a_regression_has_a_status() {
    let mut worse = BEFORE;
    worse[1].2 = 1.5;
    let (status, stdout, _) = compared(&worse, &[]);
    assert_eq!(status, Some(0), "without --check");
    assert!(stdout.contains("Worse beyond noise:\n  calloc, 4 KiB, median, neap: "), "{stdout}");
    let (status, _, stderr) = compared(&worse, &["--check"]);
    assert_eq!(status, Some(1), "{stderr}");
    assert!(stderr.contains("neap: calloc, 4 KiB, median: worse: "), "{stderr}");
    let (status, _, stderr) = compared(&BEFORE, &["--check"]);
    assert_eq!((status, stderr.as_str()), (Some(0), ""));
    // Another allocator that is slower now is reported and is no fault of neap's.
    let mut other = BEFORE;
    other[2].2 = 4.0;
    let (status, stdout, _) = compared(&other, &["--check"]);
    assert!(status == Some(0) && stdout.contains("calloc, 4 KiB, median, jemalloc: "), "{stdout}");
}

/// Catches a case or an allocator that is gone in silence.
#[test]
fn what_is_lost_is_reported() {
    let (status, stdout, stderr) = compared(&BEFORE[..3], &["--check"]);
    assert_eq!(status, Some(1), "{stderr}");
    assert!(stdout.contains("only in the earlier run: calloc, 1 MiB\n"), "{stdout}");
    assert!(stderr.contains("neap: only in the first run: calloc, 1 MiB\n"), "{stderr}");
    let without = [BEFORE[0], BEFORE[1], BEFORE[3], BEFORE[4]];
    let (status, stdout, _) = compared(&without, &["--check"]);
    assert!(status == Some(0) && stdout.contains("only in the earlier run: all of jemalloc\n"), "{stdout}");
    let (status, stdout, _) = compared(&without, &["--check", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&stdout).expect("JSON");
    assert_eq!((status, json["only_before"][0]["allocator"].as_str()), (Some(0), Some("jemalloc")));
}

/// Catches a page that is not written, and a folder without a run that ends in anything but a cause.
#[test]
fn a_comparison_is_written() {
    let neap = Neap::new();
    let (before, page) = (kept(&neap, "before", &BEFORE), neap.path("compared.html"));
    let mut command = neap.command(["lab", "compare", "--html"]);
    let out = command.arg(&page).args([&before, &before]).output().expect("neap starts");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert!(fs::read_to_string(page).is_ok_and(|page| page.contains("Two runs compared")));
    let out = neap.command(["lab", "compare"]).args([&before, &neap.path("none")]).output().expect("neap starts");
    let stderr = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.code() == Some(125) && stderr.contains("there is no folder"), "{stderr}");
}
