//! A line on the terminal that shows the progress, from the third second on.

use std::cell::RefCell;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use neap_trace::{Fault, Source, Tables};

/// From when on, and how often, progress is shown.
const EVERY: Duration = Duration::from_secs(2);
/// How many faults something is done with between two looks at the clock.
const FAULTS: u64 = 1 << 10;

/// The line; none where standard error is no terminal.
pub struct Progress {
    next: Option<Instant>,
    shown: bool,
}

impl Progress {
    /// Not shown yet.
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
        // A carriage return on either side: the program writes to the same terminal.
        let _ = io::stderr().write_all(format!("\rneap: {}\x1b[K\r", text()).as_bytes());
    }

    /// Takes the line away.
    pub fn clear(&mut self) {
        if std::mem::take(&mut self.shown) {
            let _ = io::stderr().write_all(b"\r\x1b[K");
        }
    }
}

/// Tells how many of the faults something was done with.
pub struct Steps {
    progress: Progress,
    doing: &'static str,
    all: u64,
    done: u64,
}

impl Steps {
    /// None of them yet.
    pub fn new(doing: &'static str, all: u64) -> Self {
        Self { progress: Progress::new(), doing, all, done: 0 }
    }

    /// From the first fault again.
    pub fn again(&mut self) {
        self.done = 0;
    }

    /// One more.
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

/// A trace that tells how far it was written. Some formats visit it several times.
pub struct Shown<'s> {
    source: &'s dyn Source,
    steps: RefCell<Steps>,
}

impl<'s> Shown<'s> {
    /// Tells of that trace.
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
        // A visitor may visit too: it starts the count again, and that is all.
        self.steps.borrow_mut().again();
        self.source.visit(&mut |fault| {
            self.steps.borrow_mut().step();
            visitor(fault)
        })
    }
}
