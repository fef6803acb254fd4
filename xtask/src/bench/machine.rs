//! `machine.json`: where, when and how a benchmark was run.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::place;
use neap_lab::allocators::Allocator;
use neap_lab::peers;
use neap_lab::toolchain::{cc, cxx, run, version_line};

/// The circumstances of one benchmark.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Machine {
    /// Start of the benchmark, UTC.
    pub date: String,
    /// The command line, from `cargo xtask` on.
    pub command: String,
    /// The commit of this repository.
    pub commit: String,
    /// Processor model.
    pub cpu: String,
    /// Processors that this process may use.
    pub cpus: usize,
    /// Memory of the machine.
    pub memory_mib: u64,
    /// Kernel release.
    pub kernel: String,
    /// `/sys/kernel/mm/transparent_hugepage/enabled`.
    pub transparent_hugepage: String,
    /// `vm.overcommit_memory`.
    pub overcommit_memory: String,
    /// Load averages at the start.
    pub load: String,
    /// C and C++ compilers of the workloads.
    pub compilers: Vec<String>,
    /// Amount of work in percent.
    pub scale: u32,
    /// Runs per workload, thread count and allocator.
    pub rounds: u32,
    /// What was measured.
    pub allocators: Vec<Allocator>,
    /// How the peers were built.
    pub peers: peers::Records,
}

impl Machine {
    /// Looks around.
    pub fn look(allocators: &[Allocator], scale: u32, rounds: u32) -> Result<Machine> {
        let mut records = peers::records(&place::lab())?;
        records.retain(|name, _| allocators.iter().any(|a| a.name == *name));
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        Ok(Machine {
            date: utc_now(),
            command: format!("cargo xtask {}", arguments.join(" ")),
            commit: place::commit(),
            cpu: value_in("/proc/cpuinfo", "model name"),
            cpus: std::thread::available_parallelism().map_or(1, |n| n.get()),
            memory_mib: memory_mib(),
            kernel: line_of("/proc/sys/kernel/osrelease"),
            transparent_hugepage: line_of("/sys/kernel/mm/transparent_hugepage/enabled"),
            overcommit_memory: line_of("/proc/sys/vm/overcommit_memory"),
            load: line_of("/proc/loadavg"),
            compilers: vec![version_line(&cc()), version_line(&cxx())],
            scale,
            rounds,
            allocators: allocators.to_vec(),
            peers: records,
        })
    }

    /// Writes `machine.json` in `dir`.
    pub fn write(&self, dir: &Path) -> Result<()> {
        let json = serde_json::to_string_pretty(self)? + "\n";
        fs::write(dir.join("machine.json"), json)?;
        Ok(())
    }
}

/// The time as `2026-01-31T12:00:00Z`.
fn utc_now() -> String {
    let mut date = Command::new("date");
    date.args(["-u", "+%Y-%m-%dT%H:%M:%SZ"]);
    run(&mut date).map_or_else(|_| "unknown".into(), |text| text.trim().to_owned())
}

fn line_of(path: &str) -> String {
    fs::read_to_string(path).map_or_else(|_| "unknown".into(), |text| text.trim().to_owned())
}

/// The value of the first line `key : value` of a file.
fn value_in(path: &str, key: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with(key));
    let value = line.and_then(|line| line.split_once(':'));
    value.map_or_else(|| "unknown".into(), |(_, v)| v.trim().to_owned())
}

fn memory_mib() -> u64 {
    let value = value_in("/proc/meminfo", "MemTotal");
    let kib: Option<u64> = value.split(' ').next().and_then(|n| n.parse().ok());
    kib.unwrap_or_default() / 1024
}
