//! Progress on standard error: one line that is written over on a terminal, one line per case elsewhere.

use std::io::{IsTerminal, Write};

use neap_lab::event::Event;
use neap_lab::text::duration_text;

/// Shows what a run does.
pub struct Progress {
    terminal: bool,
    begun: std::time::Instant,
}

impl Progress {
    /// Nothing shown yet.
    pub fn new() -> Progress {
        Progress { terminal: std::io::stderr().is_terminal(), begun: std::time::Instant::now() }
    }

    /// Shows one event.
    pub fn show(&mut self, event: &Event) {
        match event {
            Event::LeftOut(reason) => self.line(&format!("left out: {reason}")),
            Event::Broken(experiment, error) => {
                self.line(&format!("{experiment}: ended early: {error:#}"));
            }
            Event::Again(experiment, case, why) => {
                self.line(&format!("{experiment}, {case}: round repeated: {why}"));
            }
            Event::Begins(experiment, case, number, of) if self.terminal => {
                let seconds = self.begun.elapsed().as_secs();
                let text = format!("[{number}/{of}] {}:{:02} {experiment}, {case} ...", seconds / 60, seconds % 60);
                let _ = write!(std::io::stderr().lock(), "\r\x1b[K{text}");
            }
            Event::Begins(..) => {}
            Event::Finished(experiment, time) => self.line(&format!("{experiment}: {}", duration_text(*time))),
            Event::Ended(experiment, case, time, failures) => {
                let failed = if failures.is_empty() { String::new() } else { format!("; {}", failures.join("; ")) };
                if !self.terminal || !failures.is_empty() {
                    self.line(&format!("{experiment}, {case}: {:.1} s{failed}", time.as_secs_f64()));
                }
            }
        }
    }

    /// Removes the line that is written over.
    pub fn clear(&self) {
        if self.terminal {
            let _ = write!(std::io::stderr().lock(), "\r\x1b[K");
        }
    }

    fn line(&self, text: &str) {
        self.clear();
        let _ = writeln!(std::io::stderr().lock(), "{text}");
    }
}
