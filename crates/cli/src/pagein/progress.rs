//! A line on the terminal that says how far it is, from the third second on.

use std::cell::RefCell;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use neap_trace::{Fault, Source, Tables};

/// From when on, and how often, progress is told.
const EVERY: Duration = Duration::from_secs(2);
/// How many faults are written between two looks at the clock.
const FAULTS: u64 = 1 << 14;

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

/// A trace that tells how far it was written. Some formats visit it several times.
pub struct Told<'s> {
    source: &'s dyn Source,
    progress: RefCell<Progress>,
}

impl<'s> Told<'s> {
    /// Tells of that trace.
    pub fn new(source: &'s dyn Source) -> Self {
        Self { source, progress: RefCell::new(Progress::new()) }
    }
}

impl Source for Told<'_> {
    fn tables(&self) -> &Tables {
        self.source.tables()
    }

    fn visit(&self, visitor: &mut dyn FnMut(&Fault) -> io::Result<()>) -> io::Result<()> {
        let all = self.tables().summary.faults;
        let mut seen = 0u64;
        self.source.visit(&mut |fault| {
            seen += 1;
            if seen.is_multiple_of(FAULTS)
                && let Ok(mut progress) = self.progress.try_borrow_mut()
            {
                progress.show(|| format!("writing, {seen} of {all} faults"));
            }
            visitor(fault)
        })
    }
}

impl Drop for Told<'_> {
    fn drop(&mut self) {
        self.progress.get_mut().clear();
    }
}
