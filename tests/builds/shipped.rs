//! Programs and libraries from registries that carry an allocator: `neap why` names its heap, divides it or says with
//! bytes that it cannot, and sends no user to a profile that shows next to nothing of it.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;

use neap_tests::{Case, Outcome, Stop, package_dir, program, target_dir};

use crate::libraries::{Running, installed, python};
use crate::remedies::PACKAGES;
use crate::{fail, record};

/// Where a program comes from.
#[derive(Clone, Copy)]
enum From {
    /// A package of pip; the argument of `hold.py`.
    Pip(&'static str),
    /// A package of npm; the argument of `hold.mjs`.
    Npm(&'static str),
    /// A package of npm; its program, which runs `hold.mjs` itself.
    Runtime(&'static str),
}

/// The package, where from, and the allocator of which a heap is found; empty: none, and a note says so with bytes.
const SHIPPED: &[(&str, From, &str)] = &[
    ("pyarrow", From::Pip("freed"), "mimalloc 3"),
    ("polars", From::Pip("polars"), "jemalloc"),
    ("duckdb", From::Pip("duckdb"), "jemalloc"),
    ("@swc/core", From::Npm("swc"), "mimalloc"),
    ("@rspack/core", From::Npm("rspack"), "mimalloc 3"),
    ("rolldown", From::Npm("rolldown"), "mimalloc"),
    ("bun", From::Runtime("node_modules/bun/bin/bun.exe"), "mimalloc 3"),
    ("workerd", From::Runtime("node_modules/workerd/bin/workerd"), "tcmalloc (Google's)"),
];

pub fn cases() -> Vec<Case> {
    let of = |(package, from, allocator): &'static (&'static str, From, &'static str)| {
        Case::new(format!("shipped::{package}"), "a heap that has no owner, or a profile that does not show it", || {
            shipped(package, *from, allocator)
        })
    };
    SHIPPED.iter().map(of).collect()
}

/// A folder with the packages of npm, made on first use and kept in `target/systems`.
fn npm() -> Result<PathBuf, Stop> {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock();
    let folder = target_dir().join("systems/npm");
    if !folder.join("node_modules").exists() {
        std::fs::create_dir_all(&folder)?;
        std::fs::write(folder.join("package.json"), r#"{"name":"builds","version":"1.0.0"}"#)?;
        let packages = SHIPPED.iter().filter(|of| !matches!(of.1, From::Pip(_))).map(|of| of.0);
        let mut command = Command::new(program("npm")?);
        command.args(["install", "--no-audit", "--no-fund", "--silent"]).args(packages).current_dir(&folder);
        installed("npm", &command.output()?, &folder)?;
    }
    for file in ["hold.mjs", "workerd.capnp"] {
        std::fs::copy(package_dir().join("builds").join(file), folder.join(file))?;
    }
    Ok(folder)
}

impl From {
    fn start(self) -> Result<Command, Stop> {
        let mut command;
        match self {
            From::Pip(argument) => {
                command = Command::new(python(PACKAGES)?);
                command.arg(package_dir().join("builds/hold.py")).arg(argument);
            }
            From::Npm(argument) => {
                command = Command::new(program("node")?);
                command.args(["hold.mjs", argument]).current_dir(npm()?);
            }
            From::Runtime(path) => {
                let folder = npm()?;
                let is_worker = path.ends_with("workerd");
                // What a worker prints goes to the standard error.
                command = Command::new("sh");
                command.args(["-c", "exec \"$0\" \"$@\" 2>&1"]).arg(folder.join(path));
                command.args(if is_worker { &["serve", "--verbose", "workerd.capnp"][..] } else { &["hold.mjs"] });
                command.current_dir(folder);
            }
        }
        Ok(command)
    }

    fn version(self, package: &str) -> Result<String, Stop> {
        let mut command = match self {
            From::Pip(_) => {
                let code = format!("import importlib.metadata as m; print(m.version('{package}'))");
                let mut command = Command::new(python(PACKAGES)?);
                command.args(["-c", &code]);
                command
            }
            _ => {
                let code = format!(
                    "console.log(JSON.parse(require('fs').readFileSync('node_modules/{package}/package.json')).version)"
                );
                let mut command = Command::new(program("node")?);
                command.args(["-e", &code]).current_dir(npm()?);
                command
            }
        };
        Ok(String::from_utf8_lossy(&command.output()?.stdout).trim().to_owned())
    }
}

fn shipped(package: &str, from: From, allocator: &str) -> Outcome {
    const MIB: u64 = 1 << 20;
    let running = Running::start(&mut from.start()?)?;
    let account = running.account()?;
    let name = format!("{package} {}", from.version(package)?);
    let all = account["accounts"].as_array().cloned().unwrap_or_default();
    let sum = |kinds: &[&str], start: &str| -> u64 {
        let is_one = |of: &&serde_json::Value| {
            kinds.iter().any(|kind| of["kind"] == *kind) && of["owner"].as_str().is_some_and(|of| of.starts_with(start))
        };
        all.iter().filter(is_one).filter_map(|of| of["bytes"].as_u64()).sum()
    };
    let found = account["allocators"].as_array().into_iter().flatten().filter_map(|of| of.as_str());
    let found = found.into_iter().find(|of| of.starts_with(allocator)).map(str::to_owned);
    let Some(found) = found else { return fail(format!("{name}: no heap of {allocator}: {account:#}")) };
    let [live, free, whole] =
        [&["heap-live"][..], &["heap-free", "heap-fragmentation"], &["heap"]].map(|kinds| sum(kinds, &found));
    let unnamed = sum(&["anonymous"], "private memory");
    if unnamed > 5 * MIB || live + free + whole < MIB {
        return fail(format!("{name}: {unnamed} bytes without an owner: {account:#}"));
    }
    let notes = account["notes"].to_string();
    if whole > MIB && !notes.contains(&found) {
        return fail(format!("{name}: no note on {whole} bytes that are not divided: {notes}"));
    }
    let remedies = account["remedies"].to_string();
    if account["cause"] == "live" && live > 64 * MIB && remedies.contains("neap profile --heap --") {
        return fail(format!("{name}: sends its user to a profile that does not show {live} bytes: {remedies}"));
    }
    let mib = |bytes: u64| format!("{:.1}", bytes as f64 / MIB as f64);
    let beginning = format!("| `{package}` |");
    let row = format!(
        "{beginning} {} | {found} | {} | {} | {} | {} | {} |",
        name.rsplit(' ').next().unwrap_or_default(),
        mib(live),
        mib(free),
        mib(whole),
        mib(unnamed),
        record::today()?
    );
    println!("{row}");
    if record::is_on() {
        record::row(&["docs/builds.md"], "| `", &beginning, &row)?;
    }
    Ok(())
}
