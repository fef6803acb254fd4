//! A terminal that a test reads and types on.

use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::io::{Error, Read, Result, Write};
use std::os::fd::FromRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::{Stop, program};

/// A terminal, and the program in its foreground.
#[derive(Debug)]
pub struct Terminal {
    /// The user's side.
    keys: File,
    /// The program, or the setsid(1) that waits for it.
    child: Child,
    shown: String,
}

impl Terminal {
    /// Runs a command there, in a session of its own.
    pub fn run(command: &[&OsStr]) -> std::result::Result<Self, Stop> {
        let setsid = program("setsid")?;
        let (keys, name) = open()?;
        let side = File::options().read(true).write(true).custom_flags(libc::O_NOCTTY).open(name)?;
        let child = Command::new(setsid)
            .args(["--ctty", "--wait"])
            .args(command)
            .stdin(Stdio::from(side.try_clone()?))
            .stdout(Stdio::from(side.try_clone()?))
            .stderr(Stdio::from(side))
            .spawn()?;
        Ok(Terminal { keys, child, shown: String::new() })
    }

    /// Waits until the terminal has shown these words.
    pub fn wait_for(&mut self, words: &str, limit: Duration) -> std::result::Result<(), Stop> {
        let started = Instant::now();
        while !self.shown.contains(words) {
            if started.elapsed() > limit {
                return Err(self.fail(&format!("{words:?} was not shown")));
            }
            self.look();
        }
        Ok(())
    }

    /// Waits until the screen, a list of its lines, satisfies a condition. `what` describes it in messages.
    pub fn wait_until(
        &mut self,
        what: &str,
        limit: Duration,
        has: impl Fn(&[String]) -> bool,
    ) -> std::result::Result<(), Stop> {
        let started = Instant::now();
        while !has(&screen(&self.shown)) {
            if started.elapsed() > limit {
                return Err(Stop::Fail(format!("{what} was not shown; the screen:\n{:#?}", screen(&self.shown))));
            }
            self.look();
        }
        Ok(())
    }

    /// Presses keys: `\x03` is Ctrl-C.
    pub fn press(&mut self, keys: &str) -> Result<()> {
        self.keys.write_all(keys.as_bytes())
    }

    /// Waits for the end; returns all output.
    pub fn end(mut self, limit: Duration) -> std::result::Result<(ExitStatus, String), Stop> {
        let started = Instant::now();
        loop {
            self.look();
            if let Some(status) = self.child.try_wait()? {
                // Reads the rest.
                let mut before = usize::MAX;
                while before != self.shown.len() {
                    before = self.shown.len();
                    self.look();
                }
                return Ok((status, std::mem::take(&mut self.shown)));
            }
            if started.elapsed() > limit {
                return Err(self.fail("it does not end"));
            }
        }
    }

    /// Reads what is shown within a moment.
    fn look(&mut self) {
        let mut bytes = [0; 4096];
        match self.keys.read(&mut bytes) {
            Ok(count) if count > 0 => self.shown.push_str(&String::from_utf8_lossy(&bytes[..count])),
            // Nothing yet, or the other side is closed.
            _ => std::thread::sleep(Duration::from_millis(10)),
        }
    }

    /// A failure that shows the terminal's output.
    pub fn fail(&self, why: &str) -> Stop {
        Stop::Fail(format!("{why}; the terminal shows:\n{:?}", self.shown))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The screen after a program's output: interprets cursor positions and clearing (CSI H, CSI J), and drops colours.
fn screen(shown: &str) -> Vec<String> {
    let (mut lines, mut row, mut column) = (vec![Vec::new(); 50], 0, 0);
    let mut rest = shown;
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        if let Some(sequence) = rest.strip_prefix('[').filter(|_| c == '\x1b') {
            let end = sequence.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(sequence.len());
            let mut numbers = sequence[..end].split(';').map(|number| number.parse::<usize>().unwrap_or(1));
            match sequence.as_bytes().get(end) {
                Some(b'H') => {
                    row = numbers.next().unwrap_or(1).saturating_sub(1).min(49);
                    column = numbers.next().unwrap_or(1).saturating_sub(1);
                }
                Some(b'J') => lines.iter_mut().for_each(Vec::clear),
                _ => {}
            }
            rest = sequence.get(end + 1..).unwrap_or_default();
        } else if !c.is_control() {
            let line: &mut Vec<char> = &mut lines[row];
            line.resize(line.len().max(column + 1), ' ');
            line[column] = c;
            column += 1;
        }
    }
    lines.into_iter().map(String::from_iter).collect()
}

/// A new pseudo-terminal: the user's side, which does not block, and the name of the other side.
fn open() -> Result<(File, PathBuf)> {
    let mut name = [0 as libc::c_char; 128];
    // SAFETY: the calls take descriptors, and a buffer with its length; the descriptor is new and belongs to the file.
    unsafe {
        let descriptor = libc::posix_openpt(libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC | libc::O_NONBLOCK);
        if descriptor < 0 {
            return Err(Error::last_os_error());
        }
        let keys = File::from_raw_fd(descriptor);
        if libc::grantpt(descriptor) != 0
            || libc::unlockpt(descriptor) != 0
            || libc::ptsname_r(descriptor, name.as_mut_ptr(), name.len()) != 0
        {
            return Err(Error::last_os_error());
        }
        let name = CStr::from_ptr(name.as_ptr());
        Ok((keys, PathBuf::from(OsStr::from_bytes(name.to_bytes()))))
    }
}
