//! Requests profiles with `neap profile --pid` repeatedly during a run: two at a time, of all views and formats, to
//! files that accept a profile and to a full disk; some are killed halfway.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::plan::Draw;

/// Limit on the time of a request beyond its duration, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time that a program may take to start.
const START: Duration = Duration::from_secs(10);
/// Milliseconds within which an answer certainly comes: it comes at a slow path, so the program must work and no call
/// may be delayed.
const SURE: u64 = 1500;

/// Requests that go on until they are ended.
pub struct Asks {
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<u32, String>>>,
}

/// The parameters of requests.
#[derive(Clone)]
struct Asker {
    neap: PathBuf,
    /// The process that was started; the program is this process or a child.
    first: u32,
    folder: PathBuf,
    /// Whether all calls are served in time.
    prompt: bool,
}

impl Asks {
    /// Starts requests to the program that `first` is or starts.
    pub fn start(neap: &Path, first: u32, folder: &Path, seed: u64, prompt: bool) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let asker = Asker { neap: neap.into(), first, folder: folder.into(), prompt };
        let threads = (0..2).map(|number| {
            let (over, asker) = (over.clone(), asker.clone());
            std::thread::spawn(move || {
                let (mut draw, mut asked, begun) = (Draw::new(seed ^ number), 0, Instant::now());
                while !over.load(Ordering::Relaxed) {
                    match program(asker.first) {
                        Some(pid) => asker.ask(pid, number, &mut draw, &over, begun)?,
                        None => std::thread::sleep(Duration::from_millis(20)),
                    }
                    asked += 1;
                }
                Ok(asked)
            })
        });
        Asks { over: over.clone(), threads: threads.collect() }
    }

    /// Ends the requests; returns the first error.
    pub fn end(self) -> Option<String> {
        self.over.store(true, Ordering::Relaxed);
        self.threads.into_iter().filter_map(|thread| thread.join().expect("an asker does not panic").err()).next()
    }
}

/// The torture program: a process of this name among `first` and its first children.
fn program(first: u32) -> Option<u32> {
    let mut pid = first;
    for _ in 0..4 {
        // The program sets its name when it has started.
        if fs::read_to_string(format!("/proc/{pid}/comm")).ok()?.trim() == "torture" {
            let command = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            let words = command.split(|&byte| byte == 0).take(1).flatten().copied().collect::<Vec<u8>>();
            return (words.ends_with(b"/torture") || words.ends_with(b"/wrapped")).then_some(pid);
        }
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
        pid = children.split_whitespace().next()?.parse().ok()?;
    }
    None
}

impl Asker {
    fn ask(&self, pid: u32, number: u64, draw: &mut Draw, over: &AtomicBool, begun: Instant) -> Result<(), String> {
        let view = draw.pick(&["--heap", "--allocs", "--pinned"]);
        let format = draw.pick(&["pprof", "folded", "json", "html", "firefox"]);
        let (interval, duration) = (draw.pick(&["4K", "64K", "512K"]), draw.pick(&[100, 400, SURE]));
        let (full, killed) = (draw.one_in(4), draw.one_in(6));
        let file = self.folder.join(format!("profile-{number}"));
        let to = if full { Path::new("/dev/full") } else { &file };
        let mut command = Command::new(&self.neap);
        command.args(["profile", view, "--pid", &pid.to_string(), "--interval", interval]);
        command.args(["--duration", &format!("{duration}ms"), "--format", format, "-o"]).arg(to);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("cannot start neap: {error}"))?;
        if killed {
            std::thread::sleep(Duration::from_millis(draw.below(200) as u64));
            let _ = child.kill();
            let _ = child.wait();
            return Ok(());
        }
        let output = end_of(child, PATIENCE + Duration::from_millis(duration))
            .ok_or_else(|| format!("HANG: {command:?} does not end"))?;
        let lines = String::from_utf8_lossy(&output.stderr).into_owned();
        let wrong = |what: &str| Err(format!("{command:?}: {what}: {} {lines}", output.status));
        let first = lines.lines().next().unwrap_or("");
        let gone =
            first.contains("no such process") || first.contains("the process ended") || over.load(Ordering::Relaxed);
        // Before its libraries are loaded a program does not run on neap.
        let early = first.contains("does not run on neap") && begun.elapsed() < START;
        let silent = first.contains("has not answered") && !(self.prompt && duration == SURE);
        match output.status.success() {
            // A profile without samples has no line, and what has no line fits on a full disk.
            true if format == "folded" && (full || file.exists()) => Ok(()),
            true if full => wrong("a full disk is no error"),
            true if fs::metadata(&file).is_ok_and(|file| file.len() > 0) => Ok(()),
            true => wrong("there is no profile"),
            false if gone || silent || early => Ok(()),
            false if full && first.starts_with("neap: ") && first.contains("/dev/full") => Ok(()),
            false => wrong("an error that was not expected"),
        }
    }
}

/// The output of a process when it ends; `None` if it does not end in time and is killed.
fn end_of(mut child: Child, patience: Duration) -> Option<Output> {
    let begun = Instant::now();
    while child.try_wait().ok()?.is_none() {
        if begun.elapsed() > patience {
            let _ = child.kill();
            let _ = child.wait();
            return None;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().ok()
}
