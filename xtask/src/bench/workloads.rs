//! The programs of `lab/workloads`, built.

use std::path::PathBuf;

use anyhow::{Result, bail};
use neap_lab::sources::{self, Workload};

use crate::place;

/// A workload that was built.
#[derive(Debug)]
pub struct Program {
    /// What it is.
    pub workload: Workload,
    /// The executable.
    pub path: PathBuf,
}

/// Builds the workloads called `names` (all where empty), as far as they are not up to date.
pub fn build(names: &[String]) -> Result<Vec<Program>> {
    let workloads = sources::workloads();
    for name in names {
        if !workloads.iter().any(|workload| workload.name == name) {
            let known: Vec<_> = workloads.iter().map(|w| w.name).collect();
            bail!("no workload is called `{name}`; there are {}", known.join(", "));
        }
    }
    let place = place::lab();
    let chosen = workloads.into_iter().filter(|one| names.is_empty() || names.iter().any(|name| name == one.name));
    chosen.map(|workload| Ok(Program { path: sources::workload(&place, workload.name)?, workload })).collect()
}

/// Builds the launcher that measures a run.
pub fn build_launcher() -> Result<PathBuf> {
    sources::launcher(&place::lab())
}
