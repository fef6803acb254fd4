//! A line on the terminal that shows the progress of slow steps.

use std::cell::RefCell;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use neap_trace::{Fault, Source, Tables};

/// Progress is shown after this time, and then at this interval.
const EVERY: Duration = Duration::from_secs(2);
/// Number of faults between two reads of the clock.
const FAULTS: u64 = 1 << 10;

/// The line; empty where standard error is no terminal.
pub struct Progress {
    next: Option<Instant>,
    shown: bool,
}

impl Progress {
    /// A line that is not shown yet.
    pub fn new() -> Self {
        let next = io::stderr().is_terminal().then(|| Instant::now() + EVERY);
        Self { next, shown: false }
    }

    /// Shows the text, if it is time.
    pub fn show(&mut self, text: impl FnOnce() -> String) {
        if self.next.is_none_or(|next| Instant::now() < next) {
            return;
        }
        self.next = Some(Instant::now() + EVERY);
        self.shown = true;
        // Carriage returns on both sides, because the program writes to the same terminal.
        let _ = io::stderr().write_all(format!("\rneap: {}\x1b[K\r", text()).as_bytes());
    }

    /// Removes the line.
    pub fn clear(&mut self) {
        if std::mem::take(&mut self.shown) {
            let _ = io::stderr().write_all(b"\r\x1b[K");
        }
    }
}

/// Shows how many of the faults a step has processed.
pub struct Steps {
    progress: Progress,
    doing: &'static str,
    all: u64,
    done: u64,
}

impl Steps {
    /// Starts at the first fault.
    pub fn new(doing: &'static str, all: u64) -> Self {
        Self { progress: Progress::new(), doing, all, done: 0 }
    }

    /// Starts again at the first fault.
    pub fn again(&mut self) {
        self.done = 0;
    }

    /// Counts one more fault.
    pub fn step(&mut self) {
        self.done += 1;
        if self.done.is_multiple_of(FAULTS) {
            let Self { progress, doing, all, done } = self;
            progress.show(|| format!("{doing}, {done} of {all} faults"));
        }
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        self.progress.clear();
    }
}

/// A trace that shows how much of it was written. Some formats visit it several times.
pub struct Shown<'s> {
    source: &'s dyn Source,
    steps: RefCell<Steps>,
}

impl<'s> Shown<'s> {
    /// Shows the progress of this trace.
    pub fn new(source: &'s dyn Source) -> Self {
        let all = source.tables().summary.faults;
        Self { source, steps: RefCell::new(Steps::new("writing", all)) }
    }
}

impl Source for Shown<'_> {
    fn tables(&self) -> &Tables {
        self.source.tables()
    }

    fn visit(&self, visitor: &mut dyn FnMut(&Fault) -> io::Result<()>) -> io::Result<()> {
        // A nested visit only restarts the count.
        self.steps.borrow_mut().again();
        self.source.visit(&mut |fault| {
            self.steps.borrow_mut().step();
            visitor(fault)
        })
    }
}
