//! Runs one command of CI: writes its output to a file, measures its time, and ends it if it hangs.

use std::fs::File;
use std::mem::MaybeUninit;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::count::Count;

/// A command that ended.
#[derive(Debug)]
pub struct Ended {
    /// It returned 0, in time.
    pub success: bool,
    /// What it printed on both streams.
    pub output: String,
    /// The file that holds the output.
    pub log: PathBuf,
    pub time: Duration,
    /// Processor time, including the processes that it started and waited for.
    pub cpu: Duration,
    /// The tests that it ran.
    pub count: Count,
}

/// Runs `command` to its end, or for `limit`. Its output is in `log` while it runs.
pub fn run(command: &mut Command, log: &Path, limit: Duration) -> Result<Ended> {
    let file = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
    let start = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        .spawn()
        .with_context(|| format!("cannot start {}", command.get_program().display()))?;
    let mut nap = Duration::from_millis(1);
    let mut hangs = false;
    let (status, cpu) = loop {
        if let Some(ended) = poll(&child)? {
            break ended;
        }
        if start.elapsed() > limit && !hangs {
            // The processes that it started end by their own limits.
            child.kill()?;
            hangs = true;
        }
        std::thread::sleep(nap);
        nap = (nap * 2).min(Duration::from_millis(50));
    };
    let time = start.elapsed();
    let mut output = String::from_utf8_lossy(&std::fs::read(log)?).into_owned();
    if hangs {
        output.push_str(&format!("\nci: ended because it still ran after {} s\n", limit.as_secs()));
    } else if !status.success() {
        output.push_str(&format!("\nci: {status}\n"));
    }
    let count = Count::of(&output);
    Ok(Ended { success: status.success() && !hangs, output, log: log.to_owned(), time, cpu, count })
}

/// Status and processor time of a child, including the processes that it waited for; none while it runs.
fn poll(child: &Child) -> Result<Option<(ExitStatus, Duration)>> {
    let (mut status, mut usage) = (0, MaybeUninit::<libc::rusage>::zeroed());
    // SAFETY: both are valid for writes. The child was not waited for, so its number is its own.
    let waited = unsafe { libc::wait4(child.id().cast_signed(), &mut status, libc::WNOHANG, usage.as_mut_ptr()) };
    match waited {
        -1 => Err(std::io::Error::last_os_error()).context("wait4"),
        0 => Ok(None),
        _ => {
            // SAFETY: all zeros are valid for it, and the call wrote it.
            let usage = unsafe { usage.assume_init() };
            let cpu = [usage.ru_utime, usage.ru_stime].map(|t| t.tv_sec as f64 + t.tv_usec as f64 / 1e6);
            Ok(Some((ExitStatus::from_raw(status), Duration::from_secs_f64(cpu.iter().sum()))))
        }
    }
}
