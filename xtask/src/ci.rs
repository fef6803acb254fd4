//! `cargo xtask ci`: the gate, which every change passes, and with `--long` all other checks.
//!
//! The gate has three kinds of lanes, which share the processors:
//!
//! 1. the release build of the product, then the tasks that need only that: the simulation, the torture;
//! 2. the development build of all test programs, then the checks that compilers do;
//! 3. test programs, two at a time, when both builds are done; at the end, alone, those that measure time.
//!
//! Test programs are found by asking cargo. A table names those that only `--long` runs, with the reason.

pub mod binaries;
mod command;
mod count;
mod record;

use std::path::PathBuf;
use std::process::Command;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args as ClapArgs;

use crate::place::root;
use binaries::Binary;
use record::Record;

/// Options of `cargo xtask ci`.
#[derive(ClapArgs)]
pub struct Args {
    /// All that the gate leaves out: hours of it
    #[arg(long)]
    long: bool,
    /// Only steps and test programs with this text in their name, and the builds that they need
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
}

/// One step: its name, seconds that it should take, what it runs, and additional environment.
struct Step {
    name: &'static str,
    budget: u64,
    run: Run,
    env: &'static [(&'static str, &'static str)],
}

/// What a step runs.
enum Run {
    /// cargo, with these arguments.
    Cargo(&'static [&'static str]),
    /// A task of this program.
    Task(&'static [&'static str]),
}

const fn cargo(name: &'static str, budget: u64, args: &'static [&'static str]) -> Step {
    Step { name, budget, run: Run::Cargo(args), env: &[] }
}

const fn task(name: &'static str, budget: u64, args: &'static [&'static str]) -> Step {
    Step { name, budget, run: Run::Task(args), env: &[] }
}

/// Before all others, because it fails fastest.
const FORMAT: Step = cargo("format", 5, &["fmt", "--all", "--check"]);
/// The library that users get, on which the tests run.
const LIBRARY: Step =
    cargo("the library", 30, &["build", "--release", "--package", "neap-preload", "--package", "neap-archive"]);
/// All that users get. Linking the command takes two minutes, so its tests use the development build.
const PRODUCT: Step = cargo("the product", 240, &["build", "--release"]);
/// All test programs, and the command in its development build.
const TESTS: Step = cargo("the test programs", 200, &["test", "--workspace", "--no-run", "--message-format=json"]);

/// What the gate runs after the product is built.
const TASKS: &[Step] = &[
    task("instruction counts", 30, &["icount", "--allocators", "neap", "--check"]),
    task("simulation", 150, &["sim", "--steps", "100_000_000"]),
    task("torture", 150, &["torture", "--time", "120", "--seed", "1"]),
];

/// What the gate runs after the test programs are built.
const CHECKS: &[Step] = &[
    cargo("lints", 60, &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]),
    Step {
        name: "lints of the simulation",
        budget: 60,
        run: Run::Cargo(&[
            "clippy",
            "--package=neap-sim",
            "--profile=sim",
            "--target-dir=target/sim",
            "--",
            "-D",
            "warnings",
        ]),
        env: &[("RUSTFLAGS", "--cfg neap_sim")],
    },
    Step {
        name: "documentation",
        budget: 40,
        // All libraries but those that have the name of the Rust crate and no interface in Rust.
        run: Run::Cargo(&[
            "doc",
            "--no-deps",
            "--workspace",
            "--lib",
            "--exclude",
            "neap-preload",
            "--exclude",
            "neap-archive",
        ]),
        env: &[("RUSTDOCFLAGS", "-D warnings")],
    },
    // Only the Rust crate has examples in its comments (a test in links.rs); each other crate would take a second.
    cargo("examples in documents", 30, &["test", "--package", "neap", "--doc"]),
    Step {
        name: "models",
        budget: 60,
        run: Run::Cargo(&["test", "-p", "neap-loom", "--profile", "models", "--target-dir", "target/loom"]),
        env: &[("RUSTFLAGS", "--cfg loom")],
    },
];

/// Test programs, or tests in them, that only `--long` runs, and why.
const LONG: &[(&str, Option<&str>, &str)] = &[
    ("tests/systems", None, "makes whole systems by debootstrap, and compiles the test programs there"),
    ("tests/recipes", None, "builds packages, and makes a system by debootstrap that has all services: minutes"),
    ("tests/arm", Some("whole"), "whole test programs and real ones, by qemu's user mode: minutes"),
    ("tests/musl", Some("whole"), "whole test programs, and a job of seconds on musl's own malloc"),
    ("tests/programs", None, "databases, browsers and compilers: minutes, and a GiB of packages"),
    ("crates/ranges/pool", Some("one_gibibyte"), "the kernel may take ten seconds to find 1 GiB of contiguous memory"),
    ("tests/exact", Some("totals"), "ten programs twice, of which some take ten seconds"),
    ("crates/cli/why", Some("all_add_up"), "starts databases, browsers and virtual machines: minutes"),
    ("tests/heaps", Some("10_gib"), "takes 10 GiB of memory"),
    ("tests/heaps", Some("releases"), "makes two releases of Debian with debootstrap: minutes"),
    ("tests/builds", None, "makes three releases of Debian, and fetches packages of pip and npm: minutes, and a GiB"),
    ("xtask/book", None, "builds the site with mdBook, which must be installed: minutes"),
    ("xtask/install", None, "installs the product, with the command's release build"),
    (
        "xtask/package",
        None,
        "builds packages and a Debian system to install them in: minutes, and some 200 MB from a mirror",
    ),
    ("xtask/release", None, "links the command's release build three times: minutes"),
    ("tests/report", None, "opens pages in Chromium, which must be installed"),
    ("tests/formats", None, "fetches the Firefox Profiler's tool from registries, and needs Chromium"),
];

/// Test programs that run alone, and why.
const ALONE: &[(&str, &str)] = &[
    ("tests/machine", "makes the kernel refuse memory to all processes: other tests would fail"),
    ("crates/ranges/pool", "sets the size of pages for all processes: other tests would count other faults"),
    ("crates/cli/huge_show", "as crates/ranges/pool"),
    ("tests/huge_pool", "as crates/ranges/pool"),
    ("tests/pinned", "reads programs repeatedly while they run: beside other tests the last reading comes too early"),
    ("xtask/release", "replaces target/release/neap, which others run"),
];

/// What `--long` runs after the test programs.
const LONG_STEPS: &[Step] = &[
    cargo("pictures", 90, &["test", "-p", "neap-report", "--features", "png"]),
    task("simulation, long", 1200, &["sim", "--steps", "1_000_000_000"]),
    task("all schedules of an end", 60, &["sim", "--replay", "crates/sim/scenarios/all-end.txt"]),
    task("all schedules of a purge", 60, &["sim", "--replay", "crates/sim/scenarios/all-purge.txt"]),
    task("faults put into the simulation", 1800, &["sim", "--mutants"]),
    task("torture, long", 3600, &["torture", "--time", "3600"]),
    task("Miri", 600, &["miri"]),
    task("AddressSanitizer", 300, &["asan"]),
    task("ThreadSanitizer", 300, &["tsan"]),
    // Each mutant once a week.
    task("mutants", 1200, &["mutants", "--daily", "7"]),
    task("the lab", 420, &["experiments", "--ci"]),
];

/// Seconds that a test program should take unless it is listed above.
const BUDGET: u64 = 60;
/// A step that runs longer counts as hung.
const LIMIT: Duration = Duration::from_secs(20 * 60);
const LONG_LIMIT: Duration = Duration::from_secs(4 * 3600);

/// The builds that lanes wait for.
#[derive(Default)]
struct Ready {
    /// Whether the product was built; `None`: not yet.
    product: Option<bool>,
    /// The test programs; `None`: not yet.
    tests: Option<Vec<Binary>>,
}

/// One run.
struct Ci {
    root: PathBuf,
    record: Record,
    long: bool,
    only: Option<String>,
    ready: Mutex<Ready>,
    changed: Condvar,
}

/// Runs `cargo xtask ci`.
pub fn main(args: Args) -> Result<()> {
    let root = root();
    let record = Record::new(root.join("target/ci"))?;
    let ci = Ci { root, record, long: args.long, only: args.only, ready: Mutex::default(), changed: Condvar::new() };
    let tier = if ci.long { "the long tier" } else { "the gate" };
    println!("ci: {tier}; logs in {}", ci.record.logs().display());
    if ci.step(&FORMAT) && ci.fetch() {
        ci.lanes();
    }
    if ci.record.finish(tier) { Ok(()) } else { bail!("{tier} failed") }
}

impl Ci {
    /// Downloads what the builds need, so that they can run in parallel without waiting for it.
    fn fetch(&self) -> bool {
        self.step(&cargo("registries", 20, &["fetch", "--locked"]))
    }

    fn lanes(&self) {
        std::thread::scope(|scope| {
            scope.spawn(|| self.product_lane());
            scope.spawn(|| self.tests_lane());
            for _ in 0..std::thread::available_parallelism().map_or(2, |n| n.get()) {
                scope.spawn(|| self.run_lane());
            }
        });
        while let Some(binary) = self.next(true) {
            self.run(&binary);
        }
        if self.long {
            LONG_STEPS.iter().filter(|step| self.wanted(step.name)).for_each(|step| _ = self.step(step));
        }
    }

    fn product_lane(&self) {
        let built = self.step(if self.long { &PRODUCT } else { &LIBRARY });
        self.tell(|ready| ready.product = Some(built));
        if built && !self.long {
            TASKS.iter().filter(|step| self.wanted(step.name)).for_each(|step| _ = self.step(step));
        }
    }

    fn tests_lane(&self) {
        let binaries = self.record.output(TESTS.name, TESTS.budget, LIMIT, &mut self.command(&TESTS));
        let binaries = binaries.and_then(|output| match binaries::listed(&output, &self.root) {
            Ok(found) => Some(self.select(found)),
            Err(error) => {
                self.record.fail(TESTS.name, &format!("{error:#}"));
                None
            }
        });
        self.tell(|ready| ready.tests = Some(binaries.unwrap_or_default()));
        if !self.long {
            CHECKS.iter().filter(|step| self.wanted(step.name)).for_each(|step| _ = self.step(step));
        }
    }

    fn run_lane(&self) {
        while let Some(binary) = self.next(false) {
            self.run(&binary);
        }
    }

    /// The test programs of this tier, with arguments that leave out the tests of the other tier.
    fn select(&self, found: Vec<Binary>) -> Vec<Binary> {
        for name in LONG.iter().map(|row| row.0).chain(ALONE.iter().map(|row| row.0)) {
            if !found.iter().any(|binary| binary.name == name) {
                self.record.fail(name, "a table of xtask/src/ci.rs names a test program that does not exist");
            }
        }
        let mut selected = Vec::new();
        for binary in found.into_iter().filter(|binary| self.wanted(&binary.name)) {
            let apart: Vec<Option<&str>> = LONG.iter().filter(|row| row.0 == binary.name).map(|row| row.1).collect();
            let whole = apart.contains(&None);
            let filters = apart.into_iter().flatten();
            match self.long {
                false if whole => {}
                false => {
                    let args = filters.flat_map(|name| ["--skip".to_owned(), name.to_owned()]).collect();
                    selected.push(Binary { args, ..binary });
                }
                true if whole => selected.push(binary),
                true => selected.extend(filters.map(|name| {
                    let args = vec![name.to_owned(), "--include-ignored".to_owned()];
                    Binary { args, ..binary.clone() }
                })),
            }
        }
        // The last one is popped first.
        selected.reverse();
        selected
    }

    /// The next test program, when all is built; `None` if there are no more.
    fn next(&self, alone: bool) -> Option<Binary> {
        let mut ready = self.ready.lock().expect("no lane panics");
        loop {
            match (ready.product, &mut ready.tests) {
                (Some(false), _) => return None,
                (Some(true), Some(tests)) => {
                    let is_alone = |binary: &Binary| ALONE.iter().any(|row| row.0 == binary.name);
                    let place = tests.iter().rposition(|binary| is_alone(binary) == alone)?;
                    return Some(tests.remove(place));
                }
                _ => ready = self.changed.wait(ready).expect("no lane panics"),
            }
        }
    }

    fn tell(&self, change: impl FnOnce(&mut Ready)) {
        change(&mut self.ready.lock().expect("no lane panics"));
        self.changed.notify_all();
    }

    fn wanted(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|text| name.contains(text.as_str()))
    }

    fn step(&self, step: &Step) -> bool {
        let limit = if self.long { LONG_LIMIT } else { LIMIT };
        self.record.step(step.name, step.budget, limit, &mut self.command(step))
    }

    fn run(&self, binary: &Binary) {
        let limit = if self.long { LONG_LIMIT } else { LIMIT };
        let name = [binary.name.as_str()].into_iter().chain(binary.args.iter().map(String::as_str));
        let name = if self.long { name.collect::<Vec<_>>().join(" ") } else { binary.name.clone() };
        let mut command = binary.command();
        // The library and the command were built just now: no test program has to build them again.
        command.env("NEAP_TEST_BUILT", "1").env("CARGO", cargo_program());
        self.record.step(&name, BUDGET, limit, &mut command);
    }

    fn command(&self, step: &Step) -> Command {
        let mut command = match step.run {
            Run::Cargo(args) => {
                let mut command = Command::new(cargo_program());
                command.args(args);
                command
            }
            Run::Task(args) => {
                // Not its path: the build of the test programs may put another file there.
                let mut command = Command::new("/proc/self/exe");
                command.args(args);
                command
            }
        };
        command.current_dir(&self.root).envs(step.env.iter().copied());
        command
    }
}

fn cargo_program() -> std::ffi::OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}
