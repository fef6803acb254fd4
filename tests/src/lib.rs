//! Harness of neap's whole-program tests.
//!
//! Each integration test in this package compiles or finds a program, runs it with the library under test in
//! Each integration test in this package compiles or finds a program, runs it with the library under test in
//! `LD_PRELOAD`, and judges it by exit status and output. [`library`] picks the library (and never a stale one),
//! [`command`] builds the command `neap`, [`compile`] builds C and C++ programs into a cache under `target/`,
//! [`process`] runs them with a time limit, [`vm`] in a virtual machine, [`browser`] opens pages, [`profiler`] reads
//! profiles, [`lab`] makes a run of the lab for the report, [`suite`] turns them into counted tests. A test that cannot
//! run prints why and counts as ignored, not as passed.
//!
//! | variable | meaning |
//! |---|---|
//! | `NEAP_TEST_LIB` | path of another library to test, or `none` for the C library's own malloc |
//! | `NEAP_SOAK` | seconds that each soak test runs; soak tests are left out without it or `-- --ignored` |
//! | `NEAP_TEST_BUILT` | set by `cargo xtask ci`, which has just built library and command: they are not built again |
//! | `NEAP_TEST_ROOT` | folder with another system, in which the test programs are built and run ([`system`]) |
//! | `CC`, `CXX` | compilers for the test programs, default `cc` and `c++` |

pub mod browser;
pub mod command;
pub mod compile;
pub mod lab;
pub mod library;
pub mod place;
pub mod process;
pub mod profiler;
pub mod suite;
pub mod sys;
pub mod system;
pub mod terminal;
pub mod vm;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

pub use compile::Source;
pub use place::{package_dir, target_dir};
pub use process::{Daemon, Finished, Run};
pub use suite::{Case, Outcome, Stop};

/// Exit status by which a test program says that it cannot run here; its last line gives the reason.
pub const SKIP_STATUS: i32 = 77;

/// A program in `PATH` or at an absolute path; the test is skipped where it is missing.
pub fn program(name: &str) -> Result<PathBuf, Stop> {
    let found = if name.starts_with('/') {
        Some(PathBuf::from(name)).filter(|path| path.exists())
    } else {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path)
            .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
            .map(|dir| dir.join(name))
            .find(|file| file.is_file())
    };
    found.ok_or_else(|| Stop::Skip(format!("{name} is not installed (tests/setup.sh installs it)")))
}

/// strace, where it is installed and permitted.
pub fn strace() -> Result<PathBuf, Stop> {
    static MAY: OnceLock<bool> = OnceLock::new();
    let strace = program("strace")?;
    let may = *MAY.get_or_init(|| {
        let tried = Run::new(&strace).args(["-f", "-o", "/dev/null", "true"]).plain().run();
        tried.is_ok_and(|done| done.status.success())
    });
    if may { Ok(strace) } else { Err(Stop::Skip("strace may not trace here".into())) }
}

/// Copies a program in a process of its own to where it can be executed: a child that this process is just starting
/// would hold the file open for writing, and then it could not be executed.
pub fn install(from: &Path, to: &Path) -> Outcome {
    Run::new("install").args(["-m", "755"]).arg(from).arg(to).plain().run()?.success()?;
    Ok(())
}

/// Fails with what the program printed, unless the condition holds.
pub fn expect(condition: bool, done: &Finished, why: &str) -> Outcome {
    if condition { Ok(()) } else { Err(done.fail(why)) }
}

/// Whether the tests run as root; some settings of the kernel can be changed only then.
pub fn is_root() -> bool {
    sys::is_root()
}

/// The usual test of a C or C++ program: compiles `source`, runs its case `case` under the library, and expects exit
/// status 0 and `ok` as the last line. Returns its output.
pub fn run_case(source: &Source, case: &str, limit: Duration) -> Result<Finished, Stop> {
    judge_case(Run::new(source.build()?).arg(case).timeout(limit))
}

/// As [`run_case`] for a prepared [`Run`].
pub fn judge_case(run: Run) -> Result<Finished, Stop> {
    let done = run.run()?;
    if done.status.code() == Some(SKIP_STATUS) {
        let reason = done.stdout.lines().last().unwrap_or("no reason given");
        return Err(Stop::Skip(reason.to_string()));
    }
    let done = done.success()?;
    if done.stdout.lines().last() == Some("ok") {
        Ok(done)
    } else {
        Err(done.fail("the program ended early: its last line is not `ok`"))
    }
}

/// Fails unless `run` names every case in `sources`: other cases would never run.
pub fn all_cases_named(sources: &[Source], run: &[(&str, &str)]) -> Outcome {
    let mut forgotten = Vec::new();
    for source in sources {
        let list = Run::new(source.build()?).arg("--list").plain().run()?.success()?;
        let missing = list.stdout.lines().filter(|case| !run.contains(&(source.stem(), *case)));
        forgotten.extend(missing.map(|case| format!("{}::{case}", source.stem())));
    }
    if forgotten.is_empty() { Ok(()) } else { Err(Stop::Fail(format!("cases that no table names: {forgotten:?}"))) }
}
