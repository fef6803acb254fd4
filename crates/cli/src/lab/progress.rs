//! Progress on standard error: one line that is written over on a terminal, one line per case elsewhere.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use neap_lab::event::Event;
use neap_lab::text::duration_text;
use neap_launch::sys;

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
                let elapsed = self.begun.elapsed();
                let left = remaining(elapsed, *number, *of);
                let left = left.map_or(String::new(), |left| format!(", {} left", clock(left)));
                let text = format!("[{number}/{of}] {}{left}  {experiment}, {case} ...", clock(elapsed));
                // A line that the terminal breaks could not be written over.
                let width = sys::width_of(libc::STDERR_FILENO).unwrap_or(usize::MAX);
                let text: String = text.chars().take(width.saturating_sub(1)).collect();
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

/// About how long it will take from the begin of step `number`, from 1, to the end of step `of`: as the steps so far. None
/// at the begin.
fn remaining(elapsed: Duration, number: usize, of: usize) -> Option<Duration> {
    let done = number.checked_sub(1).filter(|&done| done > 0)?;
    let nanoseconds = elapsed.as_nanos() * (of - done.min(of)) as u128 / done as u128;
    Some(Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX)))
}

/// `3:07`.
fn clock(time: Duration) -> String {
    format!("{}:{:02}", time.as_secs() / 60, time.as_secs() % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    // Would catch a time for a run that has only begun, and one that grows with what is done.
    #[test]
    fn what_remains_shrinks() {
        let seconds = |elapsed, number, of| remaining(Duration::from_secs(elapsed), number, of).map(|t| t.as_secs());
        assert_eq!(seconds(5, 1, 10), None);
        assert_eq!(seconds(10, 2, 10), Some(90));
        assert_eq!(seconds(90, 10, 10), Some(10));
        assert_eq!(clock(Duration::from_secs(187)), "3:07");
    }
}
