//! Programs that run while a test exchanges lines with them, and with neap.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use neap_tests::command::neap;
use neap_tests::{Source, Stop};

/// More programs that are hard to trace.
pub const HARD: Source = Source::new("pagein/hard.c");
/// Limit on each wait.
pub const LIMIT: Duration = Duration::from_secs(120);

/// A running program; killed when this is dropped.
pub struct Started {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Started {
    /// Starts a command with pipes for input and output.
    pub fn new(command: &mut Command) -> Result<Self, Stop> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take().ok_or_else(|| Stop::Fail("no standard output".into()))?;
        Ok(Self { child, output: BufReader::new(output) })
    }

    /// Starts a case of `hard.c`.
    pub fn hard(case: &str) -> Result<Self, Stop> {
        Self::new(Command::new(HARD.build()?).arg(case))
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Reads the next line that it prints.
    pub fn line(&mut self) -> Result<String, Stop> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }

    /// Writes to its input.
    pub fn say(&mut self, text: &str) -> Result<(), Stop> {
        let input = self.child.stdin.as_mut().ok_or_else(|| Stop::Fail("it is not listening".into()))?;
        Ok(input.write_all(text.as_bytes())?)
    }

    /// Closes its input.
    pub fn say_no_more(&mut self) {
        self.child.stdin = None;
    }

    /// Sends it a signal.
    pub fn signal(&self, number: i32) {
        // SAFETY: kill takes no pointers, and the child was not waited for.
        unsafe { libc::kill(self.child.id() as i32, number) };
    }

    /// Sends a signal to its process group, where it was started in one of its own.
    pub fn signal_group(&self, number: i32) {
        // SAFETY: kill takes no pointers, and the child, which leads the group, was not waited for.
        unsafe { libc::kill(-(self.child.id() as i32), number) };
    }

    /// How it ended; `None` while it runs.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>, Stop> {
        Ok(self.child.try_wait()?)
    }

    /// Waits for its end.
    pub fn end(&mut self) -> Result<ExitStatus, Stop> {
        let started = Instant::now();
        loop {
            match self.child.try_wait()? {
                Some(status) => return Ok(status),
                None if started.elapsed() > LIMIT => return Err(Stop::Fail("neap does not end".into())),
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts `neap pagein OPTIONS --pid PID -o FILE` and waits until it has attached: then it opens the file, which has no
/// name until the trace is written.
pub fn attached(options: &[&str], pid: u32, file: &Path) -> Result<Started, Stop> {
    let mut command = Command::new(neap()?);
    command.arg("pagein").args(options).args(["--pid", &pid.to_string(), "-o"]).arg(file);
    let mut neap = Started::new(&mut command)?;
    let folder = file.parent().ok_or_else(|| Stop::Fail("a file without a folder".into()))?;
    let opened = format!("/proc/{}/fd", neap.pid());
    let has_opened = || {
        let files =
            fs::read_dir(&opened).into_iter().flatten().filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
        files.into_iter().any(|path| path.starts_with(folder))
    };
    let started = Instant::now();
    while !has_opened() {
        if neap.child.try_wait()?.is_some() || started.elapsed() > LIMIT {
            return Err(Stop::Fail(format!("neap does not attach to process {pid}")));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(neap)
}
