//! Turns cases into counted tests: passed, failed, or ignored with a printed reason.

use std::process::ExitCode;
use std::sync::{Mutex, RwLock};

use libtest_mimic::{Arguments, Completion, Failed, Trial};

use crate::sys;

/// Why a test did not pass.
#[derive(Debug)]
pub enum Stop {
    /// It failed; the text says how.
    Fail(String),
    /// It cannot run here; the text says why.
    Skip(String),
}

impl From<std::io::Error> for Stop {
    fn from(error: std::io::Error) -> Self {
        Stop::Fail(format!("the harness met: {error}"))
    }
}

/// Result of a test.
pub type Outcome = Result<(), Stop>;

/// One test.
pub struct Case {
    name: String,
    catches: &'static str,
    exclusive: bool,
    soak: bool,
    ignored: bool,
    body: Box<dyn FnOnce() -> Outcome + Send>,
}

impl Case {
    /// A test called `name`; `catches` says in one line what it would catch.
    pub fn new(
        name: impl Into<String>,
        catches: &'static str,
        body: impl FnOnce() -> Outcome + Send + 'static,
    ) -> Self {
        Case { name: name.into(), catches, exclusive: false, soak: false, ignored: false, body: Box::new(body) }
    }

    /// Lets no other test of this process run at the same time.
    pub fn exclusive(mut self) -> Self {
        self.exclusive = true;
        self
    }

    /// Leaves the test out unless `--ignored` is given, for example because it disturbs other tests.
    pub fn ignored(mut self) -> Self {
        self.ignored = true;
        self
    }

    /// Marks a long test, which runs only with `--ignored` or `NEAP_SOAK`.
    pub fn soak(mut self) -> Self {
        self.soak = true;
        self
    }
}

/// Runs `cases` as the arguments of the test binary ask; the return value of its `main`.
pub fn main(cases: Vec<Case>) -> ExitCode {
    // Programs that abort on purpose must not leave core files.
    let _ = sys::no_core_files();
    let soaking = std::env::var_os("NEAP_SOAK").is_some();
    let trials = cases
        .into_iter()
        .map(|case| {
            let left_out = case.ignored || case.soak && !soaking;
            Trial::ignorable_test(case.name.clone(), move || finish(case)).with_ignored_flag(left_out)
        })
        .collect();
    let conclusion = libtest_mimic::run(&Arguments::from_args(), trials);
    for line in NOTES.lock().iter().flat_map(|notes| notes.iter()) {
        eprintln!("NOTE {line}");
    }
    if let Ok(skipped) = SKIPPED.lock() {
        for line in skipped.iter() {
            eprintln!("SKIPPED {line}");
        }
        if !skipped.is_empty() {
            eprintln!("SKIPPED tests in all: {}", skipped.len());
        }
    }
    conclusion.exit_code()
}

/// Name and reason of each skipped test, printed at the end, where they are seen.
static SKIPPED: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Prints a measurement at the end, also when all tests pass.
pub fn note(text: impl Into<String>) {
    if let Ok(mut notes) = NOTES.lock() {
        notes.push(text.into());
    }
}

static NOTES: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn finish(case: Case) -> Result<Completion, Failed> {
    static TURN: RwLock<()> = RwLock::new(());
    let outcome = if case.exclusive {
        let _alone = TURN.write();
        (case.body)()
    } else {
        let _shared = TURN.read();
        (case.body)()
    };
    match outcome {
        Ok(()) => Ok(Completion::Completed),
        Err(Stop::Skip(reason)) => {
            if let Ok(mut skipped) = SKIPPED.lock() {
                skipped.push(format!("{}: {reason}", case.name));
            }
            Ok(Completion::ignored_with(reason))
        }
        Err(Stop::Fail(why)) => Err(Failed::from(format!("{}\n  it catches: {}\n  {why}", case.name, case.catches))),
    }
}
