//! Trials of remedies: a program is started, `neap why` promises bytes, and the remedy that it prints is applied. It has to
//! give back what was promised, within a tenth or in the printed range.

use std::process::Command;

use neap_tests::command::neap_release;
use neap_tests::{Case, Outcome, Source, Stop, package_dir, program};
use serde_json::Value;

use crate::libraries::{BUILDS, Build, Running, python};
use crate::{fail, record};

/// What is tried with all builds of an allocator: action, allocator, argument of `hold.c`.
const OF_BUILDS: &[(&str, &str, &str)] = &[
    ("malloc-trim", "glibc", "threads"),
    ("glibc-tcache", "glibc", "caches"),
    ("jemalloc-decay", "jemalloc", "blocks"),
    ("jemalloc-decay", "jemalloc", "threads"),
    ("mimalloc-purge", "mimalloc", "blocks"),
    ("mimalloc-purge", "mimalloc", "threads"),
    ("tcmalloc-decommit", "tcmalloc", "blocks"),
    ("tcmalloc-decommit", "tcmalloc", "threads"),
];
/// With a library of Python: action, argument of `hold.py`, package.
const OF_PYTHON: &[(&str, &str, &str)] = &[
    ("mimalloc-purge", "freed", "pyarrow"),
    ("pyarrow-release", "freed", "pyarrow"),
    ("mimalloc-no-huge", "sparse", "pyarrow"),
    ("numpy-no-huge", "numpy", "numpy"),
];
const OF_JAVA: &[&str] = &["jvm-trim", "jvm-trim-interval"];

/// A program under one of the remedies.
trait Tried {
    /// What it is, and what it does, for the table.
    fn words(&self) -> Result<(String, String), Stop>;
    /// It, started with variables of the environment or an option, which the remedy printed.
    fn start(&self, setting: &str) -> Result<Command, Stop>;
}

pub fn cases() -> Vec<Case> {
    const CATCHES: &str = "a remedy that does not give back what was promised";
    let mut cases = Vec::new();
    for (action, allocator, argument) in OF_BUILDS {
        for (number, build) in BUILDS.iter().enumerate().filter(|(_, build)| build.allocator == *allocator) {
            let name = format!("remedy::{action}_{argument}_{number}");
            cases.push(Case::new(name, CATCHES, move || tried(action, &OfBuild { build, argument })));
        }
    }
    for (action, argument, package) in OF_PYTHON {
        let name = format!("remedy::{action}_{argument}");
        cases.push(Case::new(name, CATCHES, move || tried(action, &OfPython { argument, package })));
    }
    for action in OF_JAVA {
        cases.push(Case::new(format!("remedy::{action}"), CATCHES, move || tried(action, &OfJava)));
    }
    cases.push(Case::new("remedy::neap-run", CATCHES, || tried("neap-run", &OnNeap)));
    cases
}

struct OfBuild {
    build: &'static Build,
    argument: &'static str,
}

/// What `hold.c` does with an argument.
fn held(argument: &str) -> &'static str {
    match argument {
        "blocks" => "400 MiB in blocks of 4 KiB, 80 % freed",
        "threads" => "32 threads, each frees all but its last block",
        _ => "100 threads, each with full caches",
    }
}

impl Tried for OfBuild {
    fn words(&self) -> Result<(String, String), Stop> {
        Ok((self.build.name()?, held(self.argument).to_owned()))
    }

    fn start(&self, setting: &str) -> Result<Command, Stop> {
        let environment: Vec<&str> = setting.split_whitespace().collect();
        self.build.program("hold.c", &[self.argument], &environment)
    }
}

/// The C library of this system, and neap in its place.
struct OnNeap;

impl Tried for OnNeap {
    fn words(&self) -> Result<(String, String), Stop> {
        let done = Command::new("getconf").arg("GNU_LIBC_VERSION").output()?;
        Ok((String::from_utf8_lossy(&done.stdout).trim().to_owned(), held("blocks").to_owned()))
    }

    fn start(&self, setting: &str) -> Result<Command, Stop> {
        let hold = Source::new("builds/hold.c").build()?;
        let mut command = match setting {
            "" => Command::new(hold),
            _ => {
                let mut command = Command::new(neap_release()?);
                command.args(["run", "--"]).arg(hold);
                command
            }
        };
        command.arg("blocks");
        Ok(command)
    }
}

struct OfPython {
    argument: &'static str,
    package: &'static str,
}

impl Tried for OfPython {
    fn words(&self) -> Result<(String, String), Stop> {
        let code = format!("import importlib.metadata as m; print(m.version('{}'))", self.package);
        let done = Command::new(python(PACKAGES)?).args(["-c", &code]).output()?;
        let words = match self.argument {
            "freed" => "400 MB in buffers of 1 MB, all freed",
            "sparse" => "16 buffers of 16 MiB, one byte written of each 64 KiB",
            _ => "an array of 256 MiB, one byte written of each 64 KiB",
        };
        Ok((format!("{} {} (pip)", self.package, String::from_utf8_lossy(&done.stdout).trim()), words.to_owned()))
    }

    fn start(&self, setting: &str) -> Result<Command, Stop> {
        let mut command = Command::new("env");
        command.args(setting.split_whitespace()).arg(python(PACKAGES)?);
        command.arg(package_dir().join("builds/hold.py")).arg(self.argument);
        Ok(command)
    }
}

/// The packages of the tests' Python.
pub const PACKAGES: &[&str] = &["pyarrow", "polars", "duckdb", "numpy"];

struct OfJava;

impl Tried for OfJava {
    fn words(&self) -> Result<(String, String), Stop> {
        let done = Command::new(program("java")?).arg("--version").output()?;
        let text = String::from_utf8_lossy(&done.stdout).into_owned();
        let version = text.split_whitespace().nth(1).unwrap_or_default();
        Ok((format!("OpenJDK {version}"), "16 threads drop direct buffers of 20 kB, then a collection".to_owned()))
    }

    fn start(&self, setting: &str) -> Result<Command, Stop> {
        let mut command = Command::new(program("java")?);
        command.arg("-Xmx256m").args(setting.split_whitespace()).arg(package_dir().join("builds/Hold.java"));
        Ok(command)
    }
}

/// The remedy of an action in an account: least and most bytes, and its command.
fn promised(account: &Value, action: &str) -> Option<(f64, f64, String)> {
    let remedy = account["remedies"].as_array()?.iter().find(|of| of["action"] == action)?;
    Some((remedy["least_bytes"].as_f64()?, remedy["bytes"].as_f64()?, remedy["command"].as_str()?.to_owned()))
}

fn tried(action: &str, of: &dyn Tried) -> Outcome {
    const MIB: f64 = 1048576.0;
    let mut running = Running::start(&mut of.start("")?)?;
    let account = running.account()?;
    let Some((least, most, command)) = promised(&account, action) else {
        return fail(format!("`neap why` does not print {action}: {account:#}"));
    };
    let before = running.rss()?;
    let after = match action {
        "malloc-trim" | "pyarrow-release" => {
            running.ask()?;
            running.rss()?
        }
        "jvm-trim" => {
            let done = Command::new("sh").args(["-c", &command]).output()?;
            if !done.status.success() {
                return fail(format!("{command}: {}", String::from_utf8_lossy(&done.stderr)));
            }
            running.rss()?
        }
        _ => {
            drop(running);
            let running = Running::start(&mut of.start(&command)?)?;
            // What gives back in the background does so within some seconds.
            let read = || {
                std::thread::sleep(std::time::Duration::from_secs(1));
                running.rss()
            };
            (0..3).map(|_| read()).try_fold(u64::MAX, |least, rss| rss.map(|rss| rss.min(least)))?
        }
    };
    let gave = (before as f64 - after as f64) / MIB;
    let (least, most) = (least / MIB, most / MIB);
    let (build, words) = of.words()?;
    let range = if least < most { format!("{least:.1} to {most:.1}") } else { format!("{most:.1}") };
    let beginning = format!("| `{action}` | {build} | {words} |");
    println!("{beginning} {range} | {gave:.1} |");
    if !(least * 0.9..=most * 1.1).contains(&gave) {
        return fail(format!("{beginning} promised {range}, it gave back {gave:.1}: {command}"));
    }
    if record::is_on() {
        let row = format!("{beginning} {range} | {gave:.1} | {} |", record::today()?);
        record::row(&["crates/account/trials.md", "docs/remedies.md"], "| `", &beginning, &row)?;
    }
    Ok(())
}
