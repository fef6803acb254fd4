//! The record of a run of CI: prints a line for each step, and the sums at the end.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::command::{Ended, run};
use super::count::Count;

/// A step that takes longer than this multiple of its budget is reported as slow.
const SLOW: u32 = 2;
/// How many lines of a failed step's output are repeated at the end, for readers who have only that.
const REPEATED: usize = 60;

/// A run of CI. Its lanes share it.
pub struct Record {
    /// The folder of the logs.
    logs: PathBuf,
    start: Instant,
    sums: Mutex<Sums>,
}

#[derive(Default)]
struct Sums {
    count: Count,
    /// The steps that failed, and the end of their output.
    failed: Vec<(String, String)>,
    skipped: Vec<String>,
    slow: Vec<String>,
}

impl Record {
    /// A run whose logs go to `logs`.
    pub fn new(logs: PathBuf) -> Result<Record> {
        let _ = std::fs::remove_dir_all(&logs);
        std::fs::create_dir_all(&logs)?;
        Ok(Record { logs, start: Instant::now(), sums: Mutex::default() })
    }

    /// Runs a step: `command`, which should take `budget` seconds and is ended after `limit`.
    pub fn step(&self, name: &str, budget: u64, limit: Duration, command: &mut Command) -> bool {
        self.output(name, budget, limit, command).is_some()
    }

    /// [`Record::step`]; returns its output if it passed.
    pub fn output(&self, name: &str, budget: u64, limit: Duration, command: &mut Command) -> Option<String> {
        let log = self.logs.join(format!("{}.log", name.replace(['/', ' '], "-")));
        let ended = run(command, &log, limit);
        let words = format!("{} {}", command.get_program().display(), words(command));
        match ended {
            Ok(ended) => {
                self.note(name, budget, &ended, &words);
                ended.success.then_some(ended.output)
            }
            Err(error) => {
                self.fail(name, &format!("{error:#}"));
                None
            }
        }
    }

    /// Records a failed step that ran no program.
    pub fn fail(&self, name: &str, why: &str) {
        let mut sums = self.lock();
        sums.count.failed += 1;
        sums.failed.push((name.to_owned(), why.to_owned()));
        println!("ci: {} {name} FAILED: {why}", self.clock());
    }

    fn note(&self, name: &str, budget: u64, ended: &Ended, command: &str) {
        let mut sums = self.lock();
        // A step without tests counts as one test, and so does a step that failed although no test did.
        let mut count = ended.count;
        if count == Count::default() && ended.success {
            count.passed = 1;
        }
        if !ended.success && count.failed == 0 {
            count.failed = 1;
        }
        sums.count += count;
        let seconds = ended.time.as_secs_f64();
        let cpu = ended.cpu.as_secs_f64();
        let slow = ended.time > SLOW * Duration::from_secs(budget);
        let budget = format!("budget {budget} s{}", if slow { ", SLOW" } else { "" });
        let result = if ended.success { "passed" } else { "FAILED" };
        let tests = if ended.count == Count::default() { String::new() } else { format!(": {}", ended.count.words()) };
        println!("ci: {} {name} {result} in {seconds:.1} s, {cpu:.1} s of a processor ({budget}){tests}", self.clock());
        if slow {
            sums.slow.push(format!("{name}: {seconds:.0} s ({budget})"));
        }
        for line in ended.output.lines().filter(|line| line.starts_with("SKIPPED ")) {
            sums.skipped.push(format!("{name}: {}", line.trim_start_matches("SKIPPED ")));
        }
        if !ended.success {
            let lines: Vec<&str> = ended.output.trim_end().lines().collect();
            sums.failed.push((name.to_owned(), lines[lines.len().saturating_sub(REPEATED)..].join("\n")));
            println!("----- {} -----\n{}", ended.log.display(), ended.output.trim_end());
            println!("----- to repeat it: {command}");
        }
    }

    /// Prints the failed, left-out and slow steps, and the closing line; returns whether all passed.
    pub fn finish(&self, tier: &str) -> bool {
        let sums = self.lock();
        for line in &sums.skipped {
            println!("ci: left out: {line}");
        }
        for line in &sums.slow {
            println!("ci: more than {SLOW} times its budget: {line}");
        }
        for (name, output) in &sums.failed {
            println!("ci: failed: {name}\n{output}");
        }
        println!("ci: {tier}, {} ignored, {:.0} s in all", sums.count.ignored, self.start.elapsed().as_secs_f64());
        println!("{} passed, {} failed", sums.count.passed, sums.count.failed);
        sums.failed.is_empty()
    }

    /// The folder of the logs.
    pub fn logs(&self) -> &Path {
        &self.logs
    }

    fn clock(&self) -> String {
        format!("[{:>4.0} s]", self.start.elapsed().as_secs_f64())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Sums> {
        self.sums.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// The arguments of a command, and the variables that it gets in addition to this process's.
fn words(command: &Command) -> String {
    let args: Vec<String> = command.get_args().map(|a| a.to_string_lossy().into_owned()).collect();
    let env: Vec<String> = command
        .get_envs()
        .filter_map(|(name, value)| Some(format!("{}='{}'", name.display(), value?.display())))
        .collect();
    if env.is_empty() { args.join(" ") } else { format!("{}   (with {})", args.join(" "), env.join(" ")) }
}
