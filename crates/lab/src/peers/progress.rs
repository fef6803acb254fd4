//! Reports of a build: lines, and how many files of a long step are done.

use std::io::{IsTerminal, Write};
use std::thread;
use std::time::Duration;

/// How often a long step is checked.
const LOOK: Duration = Duration::from_millis(200);

/// One report of a build.
pub enum Step {
    /// A line of its own.
    Line(String),
    /// A part of the files is compiled.
    Files {
        /// The step, as `[7/7] tcmalloc`.
        what: String,
        /// How many are compiled.
        done: usize,
        /// How many there are.
        of: usize,
    },
}

/// Reports of one peer.
pub struct Progress<'a> {
    what: String,
    tell: &'a mut dyn FnMut(Step),
}

impl<'a> Progress<'a> {
    /// Reports of the step called `what`.
    pub fn new(what: String, tell: &'a mut dyn FnMut(Step)) -> Progress<'a> {
        Progress { what, tell }
    }

    /// Does `work` in a thread, and meanwhile reports `done` of `of` files.
    pub fn files<T: Send>(&mut self, of: usize, done: impl Fn() -> usize, work: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let worker = scope.spawn(work);
            let mut last = 0;
            while !worker.is_finished() {
                thread::sleep(LOOK);
                let now = done().min(of);
                if now > last {
                    last = now;
                    (self.tell)(Step::Files { what: self.what.clone(), done: now, of });
                }
            }
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

/// Reports on standard error: on a terminal a count overwrites the one before it; elsewhere there is one line for each
/// quarter.
pub struct Shown {
    terminal: bool,
    quarter: usize,
    open: bool,
}

impl Default for Shown {
    fn default() -> Shown {
        Shown { terminal: std::io::stderr().is_terminal(), quarter: 0, open: false }
    }
}

impl Shown {
    /// Shows one report.
    pub fn show(&mut self, step: &Step) {
        let text = self.text(step);
        // Without a standard error there is nothing to show.
        let _ = std::io::stderr().lock().write_all(text.as_bytes());
    }

    fn text(&mut self, step: &Step) -> String {
        let clear = if std::mem::take(&mut self.open) { "\r\x1b[K" } else { "" };
        match step {
            Step::Line(line) => {
                self.quarter = 0;
                format!("{clear}{line}\n")
            }
            Step::Files { what, done, of } if self.terminal => {
                self.open = true;
                format!("{clear}{what}: {done} of {of} files")
            }
            Step::Files { what, done, of } => {
                let quarter = 4 * done / of.max(&1);
                let shown = quarter > self.quarter;
                self.quarter = quarter;
                if shown { format!("{what}: {done} of {of} files\n") } else { String::new() }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    // Would catch a long step without reports, and one that reports more files than there are.
    #[test]
    fn files_are_counted() {
        let (count, mut seen) = (AtomicUsize::new(0), Vec::new());
        let mut tell = |step: Step| match step {
            Step::Files { what, done, of } => seen.push((what, done, of)),
            Step::Line(line) => panic!("{line}"),
        };
        let work = || {
            count.store(9, Relaxed);
            thread::sleep(3 * LOOK);
            7
        };
        assert_eq!(Progress::new("x".into(), &mut tell).files(8, || count.load(Relaxed), work), 7);
        assert_eq!(seen, [("x".to_owned(), 8, 8)]);
    }

    // Would catch counts that fill a log, and a line that is written after a count on the same line.
    #[test]
    fn counts_are_written_over_or_rare() {
        let step = |done| Step::Files { what: "x".into(), done, of: 8 };
        let mut log = Shown { terminal: false, quarter: 0, open: false };
        let text: String = (1..=8).map(|done| log.text(&step(done))).collect();
        assert_eq!(text, "x: 2 of 8 files\nx: 4 of 8 files\nx: 6 of 8 files\nx: 8 of 8 files\n");
        let mut terminal = Shown { terminal: true, quarter: 0, open: false };
        assert_eq!(terminal.text(&step(1)), "x: 1 of 8 files");
        assert_eq!(terminal.text(&step(2)), "\r\x1b[Kx: 2 of 8 files");
        assert_eq!(terminal.text(&Step::Line("end".into())), "\r\x1b[Kend\n");
        assert_eq!(terminal.text(&Step::Line("more".into())), "more\n");
    }
}
