//! Finds and builds the programs of `lab/workloads`.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::toolchain::{cc, cxx, is_stale, need, root, run};

/// One workload: a source file and what its head comment says.
#[derive(Debug)]
pub struct Workload {
    /// The file's name without its ending.
    pub name: String,
    /// Thread counts that make sense, from the line `bench: threads=...`.
    pub threads: Vec<u32>,
    source: PathBuf,
}

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
    let workloads = find()?;
    for name in names {
        if !workloads.iter().any(|workload| workload.name == *name) {
            let known: Vec<_> = workloads.iter().map(|w| w.name.as_str()).collect();
            bail!("no workload is called `{name}`; there are {}", known.join(", "));
        }
    }
    let chosen = |workload: &Workload| names.is_empty() || names.contains(&workload.name);
    workloads.into_iter().filter(chosen).map(build_one).collect()
}

/// Builds the launcher that measures a run.
pub fn build_launcher() -> Result<PathBuf> {
    compile(&root().join("lab/launch.c"), "launch")
}

fn find() -> Result<Vec<Workload>> {
    let dir = root().join("lab/workloads");
    let mut found = Vec::new();
    for entry in fs::read_dir(&dir).with_context(|| format!("cannot read {}", dir.display()))? {
        let source = entry?.path();
        if !matches!(source.extension().and_then(|e| e.to_str()), Some("c" | "cc")) {
            continue;
        }
        let text = fs::read_to_string(&source)?;
        let threads = declared_threads(&text)
            .with_context(|| format!("{}: the line `bench: threads=...` is missing", source.display()))?;
        let name = source.file_stem().unwrap_or_default().to_string_lossy();
        let name = name.into_owned();
        found.push(Workload { name, threads, source });
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

/// Reads `bench: threads=1,2` from a head comment.
fn declared_threads(text: &str) -> Option<Vec<u32>> {
    let (_, rest) = text.split_once("bench: threads=")?;
    let list = rest.lines().next()?.trim();
    list.split(',').map(|n| n.parse().ok()).collect()
}

fn build_one(workload: Workload) -> Result<Program> {
    let path = compile(&workload.source, &workload.name)?;
    Ok(Program { workload, path })
}

/// Compiles one C or C++ file into target/lab, unless it is up to date.
pub fn compile(source: &Path, name: &str) -> Result<PathBuf> {
    let dir = root().join("target/lab");
    fs::create_dir_all(&dir)?;
    let output = dir.join(name);
    if !is_stale(&output, &inputs(source)?) {
        return Ok(output);
    }
    let is_c = source.extension().is_some_and(|e| e == "c");
    let (compiler, standard) = if is_c { (cc(), "-std=gnu11") } else { (cxx(), "-std=gnu++17") };
    need(&compiler, "install a compiler (Debian: apt install build-essential)")?;
    run(Command::new(compiler)
        .args([standard, "-O2", "-Wall", "-Wextra", "-pthread"])
        .arg(source)
        .arg("-o")
        .arg(&output))?;
    Ok(output)
}

/// A source file and the headers beside it.
fn inputs(source: &Path) -> Result<Vec<OsString>> {
    let mut files = vec![source.as_os_str().to_owned()];
    for entry in fs::read_dir(source.parent().unwrap_or(Path::new(".")))? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "h") {
            files.push(path.into());
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::declared_threads;

    // Would catch a head comment whose thread counts are no longer read.
    #[test]
    fn threads_are_read_from_the_head_comment() {
        let text = "/* Models a thing.\n *\n * bench: threads=1,2\n */\n";
        assert_eq!(declared_threads(text), Some(vec![1, 2]));
        assert_eq!(declared_threads("/* nothing */"), None);
        assert_eq!(declared_threads("bench: threads=1,x"), None);
    }
}
