//! What is counted, and a row of the table.

use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// One kind of operation.
pub struct Op {
    /// The argument of ops.c.
    pub letter: char,
    /// The title in the table.
    pub title: &'static str,
    /// The two counts.
    pub counts: (u64, u64),
}

/// One measured figure; a row of `icount.csv`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Count {
    /// Which allocator.
    pub allocator: String,
    /// Its version.
    pub version: String,
    /// Letter of the operation.
    pub op: char,
    /// Title of the operation.
    pub title: String,
    /// `callgrind` or `single-step`.
    pub method: String,
    /// Instructions per operation; none if the allocator failed.
    pub instructions: Option<f64>,
}

/// Writes counts as CSV.
pub fn write_csv(path: &Path, counts: &[Count]) -> Result<()> {
    let mut writer = csv::Writer::from_path(path).with_context(|| format!("cannot write {}", path.display()))?;
    for count in counts {
        writer.serialize(count)?;
    }
    writer.flush()?;
    Ok(())
}
