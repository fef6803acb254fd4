//! The tests that mutants have to pass, each with the sites where it comes and the time that it takes.

use std::fs::File;
use std::mem::MaybeUninit;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Mutex;

use anyhow::{Context, Result, ensure};

use super::build::Built;
use crate::ci::binaries::Binary;

/// Fewer cases of what is random, for all tests: most mutants fail in each case.
const ENVIRONMENT: &[(&str, &str)] = &[("PROPTEST_CASES", "12"), ("RUST_BACKTRACE", "0")];
/// Steps of the simulation.
const STEPS: &str = "1_000_000";
/// Tests that are this quick share a process.
const QUICK: f64 = 0.25;

/// One test.
pub struct Test {
    /// Folder and name, for people.
    pub name: String,
    program: PathBuf,
    folder: PathBuf,
    /// As the program calls it; `None`: the program is the simulation.
    filter: Option<String>,
    /// Processor seconds.
    pub seconds: f64,
    /// Where it comes.
    reached: Vec<bool>,
}

impl Test {
    /// Whether it comes to `site`.
    pub fn reaches(&self, site: u32) -> bool {
        self.reached[site as usize]
    }
}

/// Tests that one process runs, in the order of a list of tests.
pub type Group = Vec<usize>;

/// How a process ended.
pub struct Ended {
    pub status: ExitStatus,
    /// Processor seconds.
    pub seconds: f64,
}

/// All tests of `built`, each run once without a mutant, `jobs` at a time. Those that take longer than `longest` seconds
/// are left out. `folder` holds what they write.
pub fn measure(built: &Built, sites: usize, folder: &Path, jobs: usize, longest: f64) -> Result<Vec<Test>> {
    let mut tests = Vec::new();
    for binary in &built.tests {
        for name in names(binary)? {
            let (program, folder) = (binary.path.clone(), binary.package.clone());
            let title = format!("{}: {name}", binary.name.trim_start_matches("crates/"));
            tests.push(Test { name: title, program, folder, filter: Some(name), seconds: 0.0, reached: Vec::new() });
        }
    }
    let (program, here) = (built.simulation.clone(), folder.to_owned());
    let name = "the simulation".to_owned();
    tests.push(Test { name, program, folder: here, filter: None, seconds: 0.0, reached: Vec::new() });
    let waiting = Mutex::new(tests);
    let measured = Mutex::new(Vec::new());
    let work = |job: usize| -> Result<()> {
        let (log, map) = (folder.join(format!("job-{job}.log")), folder.join(format!("sites-{job}")));
        loop {
            let Some(mut test) = waiting.lock().expect("no worker panics").pop() else { return Ok(()) };
            std::fs::write(&map, vec![0; sites])?;
            let mut command = command(&[&test]);
            // The simulation is worth its time.
            let longest = if test.filter.is_none() { 3600.0 } else { longest };
            let ended = run(command.env("NEAP_SITES", &map), &log, (longest * 1.2).ceil() as u64, 3600)?;
            if ended.seconds > longest {
                println!("mutants: left out, as it takes long: {}", test.name);
                continue;
            }
            ensure!(ended.status.success(), "{} fails without a mutant; see {}", test.name, log.display());
            test.seconds = ended.seconds;
            test.reached = std::fs::read(&map)?.into_iter().map(|byte| byte != 0).collect();
            measured.lock().expect("no worker panics").push(test);
        }
    };
    let ended: Vec<Result<()>> = std::thread::scope(|scope| {
        let workers: Vec<_> =
            (0..jobs).map(|job| (job, &work)).map(|(job, work)| scope.spawn(move || work(job))).collect();
        workers.into_iter().map(|worker| worker.join().expect("a worker does not panic")).collect()
    });
    ended.into_iter().collect::<Result<()>>()?;
    let mut tests = measured.into_inner().expect("no worker panicked");
    // The quickest first.
    tests.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    Ok(tests)
}

/// The names of the tests in `binary`.
fn names(binary: &Binary) -> Result<Vec<String>> {
    let output = Command::new(&binary.path).args(["--list", "--format", "terse"]).output().context("a test program")?;
    let text = String::from_utf8(output.stdout)?;
    let ignored = Command::new(&binary.path).args(["--list", "--format", "terse", "--ignored"]).output()?;
    let ignored = String::from_utf8(ignored.stdout)?;
    let names = |text: &str| -> Vec<String> {
        text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect()
    };
    let ignored = names(&ignored);
    Ok(names(&text).into_iter().filter(|name| !ignored.contains(name)).collect())
}

/// The tests that reach `site`, those of one program that are quick in one group, the quickest groups first, as long as
/// they take `budget` seconds. Also how many do not fit.
pub fn groups(tests: &[Test], site: u32, budget: f64) -> (Vec<Group>, usize) {
    let mut groups: Vec<(f64, Group)> = Vec::new();
    let (mut sum, mut left) = (0.0, 0);
    for (i, test) in tests.iter().enumerate().filter(|(_, test)| test.reaches(site)) {
        if sum + test.seconds > budget {
            left += 1;
            continue;
        }
        sum += test.seconds;
        let same = |group: &&mut (f64, Group)| {
            group.0 < QUICK && test.seconds < QUICK && tests[group.1[0]].program == test.program
        };
        match groups.iter_mut().find(same) {
            Some(group) => {
                group.0 += test.seconds;
                group.1.push(i);
            }
            None => groups.push((test.seconds, vec![i])),
        }
    }
    groups.sort_by(|a, b| a.0.total_cmp(&b.0));
    (groups.into_iter().map(|group| group.1).collect(), left)
}

/// The command that runs `tests`, which are of one program.
pub fn command(tests: &[&Test]) -> Command {
    let mut command = Command::new(&tests[0].program);
    let filters: Vec<&str> = tests.iter().filter_map(|test| test.filter.as_deref()).collect();
    if filters.is_empty() {
        command.args(["--steps", STEPS, "--jobs", "1", "--no-shrink"]);
    } else {
        command.args(["--exact", "--test-threads", "1"]).args(filters);
    }
    command.current_dir(&tests[0].folder).env("CARGO_MANIFEST_DIR", &tests[0].folder);
    command.envs(ENVIRONMENT.iter().copied()).env_remove("NEAP_MUTANT").env_remove("NEAP_SITES");
    command
}

/// Runs `command`, for at most `cpu` seconds of a processor and `wall` seconds of time: a mutant may run or wait for ever.
/// What it starts ends with it.
pub fn run(command: &mut Command, log: &Path, cpu: u64, wall: u32) -> Result<Ended> {
    let file = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
    command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).process_group(0);
    let limit = move || {
        for (which, most) in [(libc::RLIMIT_CPU, cpu), (libc::RLIMIT_CORE, 0)] {
            let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
            // SAFETY: reads the record.
            if unsafe { libc::setrlimit(which, &raw const limit) } != 0 {
                return Err(std::io::Error::last_os_error());
            }
        }
        // SAFETY: strings of C, and a buffer of that length. A mutant may fill all memory: it is the first to end then.
        unsafe {
            let file = libc::open(c"/proc/self/oom_score_adj".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
            libc::write(file, c"1000".as_ptr().cast(), 4);
            libc::close(file);
        }
        // SAFETY: no pointers. The signal ends the process, also behind exec.
        unsafe { libc::alarm(wall) };
        Ok(())
    };
    // SAFETY: the closure makes system calls only.
    unsafe { command.pre_exec(limit) };
    let child = command.spawn().with_context(|| format!("cannot start {}", command.get_program().display()))?;
    let pid = child.id().cast_signed();
    // SAFETY: waits for the child's end without collecting it, so that the number of its group stays its own.
    unsafe {
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        libc::waitid(libc::P_PID, child.id(), info.as_mut_ptr(), libc::WEXITED | libc::WNOWAIT);
        libc::kill(-pid, libc::SIGKILL);
    }
    let (mut status, mut usage) = (0, MaybeUninit::<libc::rusage>::zeroed());
    // SAFETY: both are valid for writes, and nothing collected the child before.
    let waited = unsafe { libc::wait4(pid, &mut status, 0, usage.as_mut_ptr()) };
    ensure!(waited == pid, "wait4: {}", std::io::Error::last_os_error());
    // SAFETY: zeroes are a value of it, and the call wrote it.
    let usage = unsafe { usage.assume_init() };
    let seconds = [usage.ru_utime, usage.ru_stime].map(|t| t.tv_sec as f64 + t.tv_usec as f64 / 1e6).iter().sum();
    Ok(Ended { status: ExitStatus::from_raw(status), seconds })
}
