//! Runs that were kept before the schema: `metrics.csv` or `runs.csv` with the old `machine.json`.
//!
//! The old files have values only; what they show and how they are judged stands in `pages` and [`mod@crate::suite`].

mod pages;
mod suite;

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::{Allocator, Machine, ReadError, Run, SCHEMA, notes_from, rows_from_csv};

/// The old `machine.json`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct OldMachine {
    date: String,
    command: String,
    commit: String,
    cpu: String,
    cpus: u32,
    memory_mib: u64,
    kernel: String,
    transparent_hugepage: String,
    overcommit_memory: String,
    load: String,
    compilers: Vec<String>,
    scale: u32,
    rounds: u32,
    allocators: Vec<OldAllocator>,
    peers: BTreeMap<String, OldPeer>,
}

/// An allocator there.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct OldAllocator {
    name: String,
    version: String,
    env: BTreeMap<String, String>,
}

/// How a peer was built.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct OldPeer {
    source: String,
    commands: Vec<String>,
    compiler: String,
}

/// Whether a text is an old `machine.json`.
pub fn is_old_machine(text: &str) -> bool {
    let value: Option<serde_json::Value> = serde_json::from_str(text).ok();
    value.is_some_and(|value| value.get("schema").is_none() && value.get("cpus").is_some())
}

/// Reads a run of the experiments on pages: `machine.json`, `metrics.csv`, and the remarks that were kept beside them.
pub fn pages(machine: &str, metrics: &str, notes: &str) -> Result<Run, ReadError> {
    let mut run = run_of(machine, notes)?;
    run.rows = rows_from_csv(metrics)?;
    run.experiments = pages::experiments(&run);
    Ok(run)
}

/// Reads a run of the allocation suite: `machine.json`, `runs.csv`, and the remarks.
pub fn suite(machine: &str, runs: &str, notes: &str) -> Result<Run, ReadError> {
    let mut run = run_of(machine, notes)?;
    run.rows = suite::rows(runs)?;
    let notes = std::mem::take(&mut run.notes);
    Ok(Run { notes, ..crate::suite::of(&run).unwrap_or(run) })
}

fn run_of(machine: &str, notes: &str) -> Result<Run, ReadError> {
    let old: OldMachine = serde_json::from_str(machine).map_err(ReadError::Json)?;
    let peers = old.peers;
    let names: Vec<String> = old.allocators.iter().map(|one| one.name.clone()).collect();
    let allocator = |one: OldAllocator| {
        // `neap-lazy` is a variant of `neap`, where that is there too.
        let base = one.name.rsplit_once('-').map(|(base, _)| base.to_owned()).filter(|base| names.contains(base));
        let peer = peers.get(base.as_deref().unwrap_or(&one.name));
        Allocator {
            base,
            version: one.version,
            source: peer.map(|peer| peer.source.clone()).unwrap_or_default(),
            commands: peer.map(|peer| peer.commands.clone()).unwrap_or_default(),
            compiler: peer.map(|peer| peer.compiler.clone()).unwrap_or_default(),
            env: one.env,
            name: one.name,
        }
    };
    let libc = old.allocators.iter().find(|one| one.name == crate::GLIBC).map(|one| format!("glibc {}", one.version));
    Ok(Run {
        schema: SCHEMA,
        neap: String::new(),
        commit: Some(old.commit),
        command: old.command,
        ended: Some(old.date.clone()),
        started: old.date,
        quick: old.scale < 100,
        rounds: old.rounds,
        machine: Machine {
            cpu: old.cpu,
            cores: old.cpus,
            memory_mib: old.memory_mib,
            kernel: old.kernel,
            libc: libc.unwrap_or_default(),
            transparent_hugepage: old.transparent_hugepage,
            overcommit_memory: old.overcommit_memory,
            load_before: old.load,
            compilers: old.compilers,
            ..Machine::default()
        },
        allocators: old.allocators.into_iter().map(allocator).collect(),
        notes: notes_from(notes),
        ..Run::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Figure, View};

    const MACHINE: &str = r#"{"date": "2026-01-31T12:00:00Z", "cpus": 2, "commit": "abc", "scale": 100, "rounds": 1,
        "allocators": [{"name": "glibc", "version": "2.36", "env": {}}, {"name": "neap", "version": "abc"},
        {"name": "neap-lazy", "version": "abc", "env": {"NEAP_PURGE": "lazy"}}, {"name": "x-y", "version": "1"}],
        "peers": {}}"#;

    // Would catch a variant that counts as an allocator of its own, and a dash that makes one of a peer.
    #[test]
    fn the_machine_is_read() {
        assert!(is_old_machine(MACHINE) && !is_old_machine("{\"schema\": 1, \"cpus\": 2}"));
        let csv = "experiment,case,allocator,round,turn,status,metric,unit,value\n\
                   survivors,blocks,neap,1,1,ok,ratio,ratio,1.05\n";
        let run = pages(MACHINE, csv, "# Notes\n\nIn parts.\n").unwrap();
        let bases: Vec<_> = run.allocators.iter().map(|one| one.base.as_deref()).collect();
        assert_eq!(bases, [None, None, Some("neap"), None]);
        assert_eq!((run.notes.as_slice(), run.machine.libc.as_str()), (&["In parts.".to_owned()][..], "glibc 2.36"));
        assert_eq!(run.experiments.len(), 1);
        assert!(run.experiments[0].verdicts.iter().any(|verdict| verdict.holds == Some(true)));
    }

    // Would catch a wrong checksum that counts as a good run, and means that leave failures out in silence.
    #[test]
    fn the_suite_is_read() {
        let head = "workload,threads,allocator,round,turn,status,wall_ms,user_ms,sys_ms,peak_rss_kib,minor_faults,\
                    major_faults,checksum\n";
        let line =
            |name: &str, status: &str, wall: f64| format!("trees,1,{name},1,1,{status},{wall},1,1,2048,3,0,ff\n");
        let csv = [head, &line("glibc", "ok", 100.0), &line("neap", "ok", 50.0), &line("x-y", "wrong-checksum", 1.0)];
        let run = suite(MACHINE, &csv.concat(), "").unwrap();
        let view = View::of(&run);
        let mean = |name| view.median(Figure::new("suite", "geometric means", "wall"), name);
        assert_eq!((mean("neap"), mean("glibc"), mean("x-y")), (Some(0.5), Some(1.0), None));
        assert_eq!(view.median(Figure::new("suite", "trees, 1 thread", "peak"), "neap"), Some(2.0));
        let failed = view.value(Figure::new("suite", "geometric means", "wall"), "x-y");
        assert_eq!(failed, crate::Value::Failed("1 of 1 cases failed".into()));
    }
}
