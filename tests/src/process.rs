//! Runs programs under the library with a time limit, captures their output, and leaves no process behind.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::sys::{self, Signal};
use crate::{Stop, library, system};

/// Time limit unless a test sets another: for hangs, not for slowness. A first run on a fresh machine reads all files
/// from its disk, beside other tests.
const DEFAULT_LIMIT: Duration = Duration::from_secs(180);
/// Lines of output that a failure message shows, from the end.
const TAIL_LINES: usize = 40;

/// A program to run: by default under the library, with empty input, for at most three minutes.
#[derive(Debug)]
pub struct Run {
    command: Command,
    preload: Option<PathBuf>,
    plain: bool,
    limit: Duration,
    input: String,
}

impl Run {
    /// Prepares `program`, a path or a name in `PATH`.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        Run { command: Command::new(program), preload: None, plain: false, limit: DEFAULT_LIMIT, input: String::new() }
    }

    /// Adds an argument.
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.command.arg(arg);
        self
    }

    /// Adds arguments.
    pub fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.command.args(args);
        self
    }

    /// Sets an environment variable.
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Takes an environment variable away.
    pub fn env_remove(mut self, name: &str) -> Self {
        self.command.env_remove(name);
        self
    }

    /// Sets the current folder.
    pub fn dir(mut self, dir: &Path) -> Self {
        self.command.current_dir(dir);
        self
    }

    /// Sets the standard input.
    pub fn input(mut self, text: impl Into<String>) -> Self {
        self.input = text.into();
        self
    }

    /// Sets the time limit.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Runs without the library: for clients and tools whose own malloc is not the subject.
    pub fn plain(mut self) -> Self {
        self.plain = true;
        self
    }

    /// Runs on another copy of the library, for instance one that every user may read.
    pub fn preload(mut self, copy: Option<PathBuf>) -> Self {
        self.preload = copy;
        self
    }

    /// Runs to the end. Fails past the time limit, after ending the whole process group.
    pub fn run(self) -> Result<Finished, Stop> {
        let limit = self.limit;
        let (mut running, mut group) = self.start()?;
        let started = Instant::now();
        let mut nap = Duration::from_millis(1);
        let status = loop {
            if let Some(status) = group.child.try_wait()? {
                break Some(status);
            }
            if started.elapsed() > limit {
                break None;
            }
            std::thread::sleep(nap);
            nap = (nap * 2).min(Duration::from_millis(20));
        };
        group.end();
        let (stdout, stderr) = running.output()?;
        let done = Finished {
            status: status.unwrap_or_else(|| ExitStatus::from_raw(Signal::KILL.as_raw())),
            stdout,
            stderr,
            wall: started.elapsed(),
            command: running.command,
        };
        match status {
            Some(_) => Ok(done),
            None => Err(done.fail(&format!("still running after {} s", limit.as_secs()))),
        }
    }

    /// Starts a server that runs until the result is dropped.
    pub fn daemon(self) -> Result<Daemon, Stop> {
        let (running, group) = self.start()?;
        Ok(Daemon { running, group })
    }

    fn start(mut self) -> Result<(Running, Group), Stop> {
        let library = library::under_test()?;
        let preload = self.preload.take().or_else(|| library.path().map(Path::to_path_buf));
        self.command.env_remove("LD_PRELOAD");
        if let (Some(path), false) = (&preload, self.plain) {
            self.command.env("LD_PRELOAD", path);
            self.command.env("NEAP_TEST_PRELOADED", path);
        }
        if library.is_neap() {
            self.command.env("NEAP_TEST_STRICT", "1");
        }
        if system::has(Path::new(self.command.get_program())) {
            system::enter(&mut self.command);
        }
        let mut input = sys::unnamed_file()?;
        input.write_all(self.input.as_bytes())?;
        input.rewind()?;
        let (out, err) = (sys::unnamed_file()?, sys::unnamed_file()?);
        self.command
            .stdin(Stdio::from(input))
            .stdout(Stdio::from(out.try_clone()?))
            .stderr(Stdio::from(err.try_clone()?))
            .process_group(0);
        let words: Vec<OsString> = std::iter::once(self.command.get_program())
            .chain(self.command.get_args())
            .map(OsStr::to_os_string)
            .collect();
        let command = words.join(OsStr::new(" ")).to_string_lossy().into_owned();
        let child = self.command.spawn().map_err(|e| Stop::Fail(format!("cannot start {command}: {e}")))?;
        let running = Running { command, out, err };
        let group = Group { child, ended: false };
        Ok((running, group))
    }
}

/// Output and description of a started program.
#[derive(Debug)]
struct Running {
    command: String,
    out: File,
    err: File,
}

impl Running {
    fn output(&mut self) -> Result<(String, String), Stop> {
        let mut texts = [String::new(), String::new()];
        for (file, text) in [&mut self.out, &mut self.err].into_iter().zip(&mut texts) {
            let mut bytes = Vec::new();
            file.rewind()?;
            file.read_to_end(&mut bytes)?;
            *text = String::from_utf8_lossy(&bytes).into_owned();
        }
        let [stdout, stderr] = texts;
        Ok((stdout, stderr))
    }
}

/// A child that leads a process group of its own, which is ended with it.
#[derive(Debug)]
struct Group {
    child: Child,
    ended: bool,
}

impl Group {
    fn signal(&self, signal: Signal) {
        // ESRCH: no process is left.
        let _ = sys::kill_group(self.child.id(), signal);
    }

    fn end(&mut self) {
        if !self.ended {
            self.ended = true;
            self.signal(Signal::KILL);
            let _ = self.child.wait();
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.end();
    }
}

/// A server that runs in the foreground. Dropping it ends its process group.
#[derive(Debug)]
pub struct Daemon {
    running: Running,
    group: Group,
}

impl Daemon {
    /// Process id of the server.
    pub fn pid(&self) -> u32 {
        self.group.child.id()
    }

    /// Waits until `ready` is true; fails when the server ends before that or `limit` passes.
    pub fn wait_until(&mut self, limit: Duration, ready: impl Fn() -> bool) -> Result<(), Stop> {
        let started = Instant::now();
        while !ready() {
            if let Some(status) = self.group.child.try_wait()? {
                return Err(self.fail(&format!("the server ended: {status}")));
            }
            if started.elapsed() > limit {
                return Err(self.fail("the server does not answer"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Fails unless the library is mapped in process `pid` and stays skipped where none is under test.
    pub fn check_preloaded(&self) -> Result<(), Stop> {
        let Some(path) = library::under_test()?.path() else {
            return Ok(());
        };
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.pid()))?;
        if maps.contains(&*name) { Ok(()) } else { Err(self.fail(&format!("{name} is not mapped in the server"))) }
    }

    /// Asks the server to end with `signal`, waits for it, and fails unless it ends with status 0 or by that
    /// signal.
    pub fn stop(mut self, signal: Signal, limit: Duration) -> Result<Finished, Stop> {
        sys::kill(self.pid(), signal).map_err(|e| self.fail(&format!("the server was gone before the end: {e}")))?;
        let started = Instant::now();
        loop {
            if let Some(status) = self.group.child.try_wait()? {
                self.group.end();
                let (stdout, stderr) = self.running.output()?;
                let done =
                    Finished { status, stdout, stderr, wall: started.elapsed(), command: self.running.command.clone() };
                let by_signal = status.signal() == Some(signal.as_raw());
                return if by_signal { Ok(done) } else { done.success() };
            }
            if started.elapsed() > limit {
                return Err(self.fail("the server does not end when asked to"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// A failure that shows the server's output.
    pub fn fail(&self, why: &str) -> Stop {
        let text = |file: &File| {
            let mut bytes = Vec::new();
            let mut file = file;
            let _ = file.rewind().and_then(|()| file.read_to_end(&mut bytes).map(|_| ()));
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let (out, err) = (text(&self.running.out), text(&self.running.err));
        Stop::Fail(describe(&self.running.command, why, &out, &err))
    }
}

/// The result of a program.
#[derive(Debug)]
pub struct Finished {
    /// Exit status or signal.
    pub status: ExitStatus,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// Wall time.
    pub wall: Duration,
    command: String,
}

impl Finished {
    /// Fails unless the exit status is 0.
    pub fn success(self) -> Result<Self, Stop> {
        if self.status.success() { Ok(self) } else { Err(self.fail("status 0 was expected")) }
    }

    /// Fails unless standard output or standard error contains `text`.
    pub fn contains(self, text: &str) -> Result<Self, Stop> {
        if self.stdout.contains(text) || self.stderr.contains(text) {
            Ok(self)
        } else {
            Err(self.fail(&format!("the output lacks `{text}`")))
        }
    }

    /// Fails when neap complained about a pointer: no correct program may cause that.
    pub fn no_complaint(self) -> Result<Self, Stop> {
        if self.stderr.lines().any(|line| line.starts_with("neap: ")) {
            Err(self.fail("neap reports misuse"))
        } else {
            Ok(self)
        }
    }

    /// A failure that shows command, status and output.
    pub fn fail(&self, why: &str) -> Stop {
        let why = format!("{why}; {} after {:.1?}", self.status, self.wall);
        Stop::Fail(describe(&self.command, &why, &self.stdout, &self.stderr))
    }
}

fn describe(command: &str, why: &str, stdout: &str, stderr: &str) -> String {
    let mut text = format!("{why}\n  command: {command}");
    if let Ok(library) = library::under_test() {
        let name = library.path().map_or("none".into(), Path::to_string_lossy);
        text.push_str(&format!("\n  library: {name}"));
    }
    for (name, body) in [("stdout", stdout), ("stderr", stderr)] {
        let lines: Vec<&str> = body.lines().collect();
        let from = lines.len().saturating_sub(TAIL_LINES);
        text.push_str(&format!("\n  {name} ({} lines):", lines.len()));
        for line in &lines[from..] {
            text.push_str("\n  | ");
            text.push_str(line);
        }
    }
    text
}
