//! The tests that mutants have to pass, each with the sites that it reaches and its time.

use std::collections::HashMap;
use std::fs::File;
use std::mem::MaybeUninit;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, ensure};

use super::build::Built;
use crate::ci::binaries::Binary;

/// Fewer random cases in all tests, because most mutants fail in each case.
const ENVIRONMENT: &[(&str, &str)] = &[("PROPTEST_CASES", "12"), ("RUST_BACKTRACE", "0")];
/// Steps of the simulation.
const STEPS: &str = "1_000_000";
/// A process that uses no processor time for this long waits for something that never happens. Tests sleep for
/// milliseconds.
const IDLE_MS: i32 = 5000;
/// Seconds that the start of a process takes.
const START: f64 = 0.005;
/// Tests that take at most this many seconds share a process.
const QUICK: f64 = 0.25;

/// One test.
pub struct Test {
    /// Folder and name, for messages.
    pub name: String,
    program: PathBuf,
    folder: PathBuf,
    /// Its name in the program; `None`: the program is the simulation.
    filter: Option<String>,
    /// Processor seconds.
    pub seconds: f64,
    /// The sites that it reaches.
    reached: Vec<bool>,
    /// The number of mutants for which it ran, and that it caught.
    ran: AtomicU32,
    caught: AtomicU32,
}

impl Test {
    /// Whether it reaches `site`.
    pub fn reaches(&self, site: u32) -> bool {
        self.reached[site as usize]
    }

    fn new(name: String, program: PathBuf, folder: PathBuf, filter: Option<String>) -> Self {
        let (ran, caught) = (AtomicU32::new(0), AtomicU32::new(0));
        Test { name, program, folder, filter, seconds: 0.0, reached: Vec::new(), ran, caught }
    }

    /// Whether its name in the program is `name`.
    pub fn is_called(&self, name: &str) -> bool {
        self.filter.as_deref() == Some(name)
    }

    /// Records the result for a mutant.
    pub fn note(&self, caught: bool) {
        // Relaxed: these are only counts.
        self.ran.fetch_add(1, Ordering::Relaxed);
        self.caught.fetch_add(u32::from(caught), Ordering::Relaxed);
    }

    /// The likelihood that it passes, from its results so far.
    fn passes(&self) -> f64 {
        // Relaxed: as above.
        let [ran, caught] = [&self.ran, &self.caught].map(|count| f64::from(count.load(Ordering::Relaxed)));
        1.0 - (caught + 1.0) / (ran + 4.0)
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

/// All tests of `built`, each run once without a mutant, `jobs` at a time. Those that take longer than `longest`
/// seconds are left out. They write to `folder`.
pub fn measure(built: &Built, sites: usize, folder: &Path, jobs: usize, longest: f64) -> Result<Vec<Test>> {
    let mut tests = Vec::new();
    for binary in &built.tests {
        for name in names(binary)? {
            let (program, folder) = (binary.path.clone(), binary.package.clone());
            let title = format!("{}: {name}", binary.name.trim_start_matches("crates/"));
            tests.push(Test::new(title, program, folder, Some(name)));
        }
    }
    let (program, here) = (built.simulation.clone(), folder.to_owned());
    tests.push(Test::new("the simulation".to_owned(), program, here, None));
    let cache = folder.join("measured.txt");
    let known = Known::read(&cache, sites);
    let waiting = Mutex::new(tests);
    let measured = Mutex::new(Vec::new());
    let work = |job: usize| -> Result<()> {
        let (log, map) = (folder.join(format!("job-{job}.log")), folder.join(format!("sites-{job}")));
        loop {
            let Some(mut test) = waiting.lock().expect("no worker panics").pop() else { return Ok(()) };
            // The simulation may take long.
            let longest = if test.filter.is_none() { 3600.0 } else { longest };
            if !known.fill(&mut test, longest)? {
                std::fs::write(&map, vec![0; sites])?;
                let mut command = command(&[&test]);
                let ended = run(command.env("NEAP_SITES", &map), &log, (longest * 1.2).ceil() as u64, 3600)?;
                test.seconds = ended.seconds;
                let success = ended.status.success();
                test.reached = std::fs::read(&map)?.into_iter().map(|byte| success && byte != 0).collect();
                ensure!(
                    success || ended.seconds > longest,
                    "{} fails without a mutant; see {}",
                    test.name,
                    log.display()
                );
            }
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
    std::fs::write(cache, tests.iter().map(|test| known.line(test)).collect::<Result<String>>()?)?;
    tests.retain(|test| {
        let fits = test.filter.is_none() || test.seconds <= longest;
        if !fits {
            println!("mutants: left out because it takes long: {}", test.name);
        }
        fits
    });
    // The quickest first.
    tests.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    Ok(tests)
}

/// Measurements of programs that have not changed: the time of each test and the sites that it reaches.
struct Known {
    sites: usize,
    tests: HashMap<String, (f64, Vec<usize>)>,
}

impl Known {
    fn read(cache: &Path, sites: usize) -> Self {
        let line = |line: &str| {
            let mut fields = line.split('\t');
            let (key, seconds, list) = (fields.next()?.to_owned(), fields.next()?.parse().ok()?, fields.next()?);
            Some((key, (seconds, list.split_terminator(',').filter_map(|site| site.parse().ok()).collect())))
        };
        let text = std::fs::read_to_string(cache).unwrap_or_default();
        Known { sites, tests: text.lines().filter_map(line).collect() }
    }

    /// The key of a test: its name, its program with the time of its build, and the number of sites.
    fn key(&self, test: &Test) -> Result<String> {
        let built = std::fs::metadata(&test.program)?.modified()?.duration_since(std::time::UNIX_EPOCH)?;
        Ok(format!("{} of {} at {} with {}", test.name, test.program.display(), built.as_nanos(), self.sites))
    }

    fn line(&self, test: &Test) -> Result<String> {
        let list: Vec<String> =
            (0..self.sites).filter(|&site| test.reached[site]).map(|site| site.to_string()).collect();
        Ok(format!("{}\t{}\t{}\n", self.key(test)?, test.seconds, list.join(",")))
    }

    /// Fills in the measurements of `test`; false if it has to run. For one that was ended early, with a smaller
    /// `longest`, the sites are not known.
    fn fill(&self, test: &mut Test, longest: f64) -> Result<bool> {
        let Some((seconds, list)) = self.tests.get(&self.key(test)?) else { return Ok(false) };
        test.seconds = *seconds;
        test.reached = vec![false; self.sites];
        list.iter().for_each(|&site| test.reached[site] = true);
        Ok(!list.is_empty() || *seconds > longest)
    }
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

/// The tests that reach `site`; quick tests of one program are one group. The groups that catch most for their time, by
/// their results so far, come first, as many as take `budget` seconds; the simulation is always included. Also returns
/// how many tests do not fit.
pub fn groups(tests: &[Test], site: u32, budget: f64) -> (Vec<Group>, usize) {
    let mut groups: Vec<Group> = Vec::new();
    for (i, test) in tests.iter().enumerate().filter(|(_, test)| test.reaches(site)) {
        let same = |group: &&mut Group| {
            test.seconds + seconds(tests, group) < QUICK && tests[group[0]].program == test.program
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.push(i),
            None => groups.push(vec![i]),
        }
    }
    let worth = |group: &Group| {
        let passes: f64 = group.iter().map(|&t| tests[t].passes()).product();
        (1.0 - passes) / (START + seconds(tests, group))
    };
    groups.sort_by(|a, b| worth(b).total_cmp(&worth(a)));
    let (mut sum, mut left) = (0.0, 0);
    groups.retain(|group| {
        let fits = sum + seconds(tests, group) <= budget || tests[group[0]].filter.is_none();
        if fits {
            sum += seconds(tests, group);
        } else {
            left += group.len();
        }
        fits
    });
    (groups, left)
}

/// Processor seconds of a group.
fn seconds(tests: &[Test], group: &Group) -> f64 {
    group.iter().map(|&t| tests[t].seconds).sum()
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

/// Runs `command`, for at most `cpu` processor seconds and `wall` seconds of time, because a mutant may run or wait for
/// ever. Ends the processes that it started with it.
pub fn run(command: &mut Command, log: &Path, cpu: u64, wall: u32) -> Result<Ended> {
    let file = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
    command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).process_group(0);
    let limit = move || {
        for (which, most) in [(libc::RLIMIT_CPU, cpu), (libc::RLIMIT_CORE, 0)] {
            let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
            // SAFETY: the call only reads the record.
            if unsafe { libc::setrlimit(which, &raw const limit) } != 0 {
                return Err(std::io::Error::last_os_error());
            }
        }
        // SAFETY: C strings, and a buffer with its length. A mutant may fill all memory; then it is killed first.
        unsafe {
            let file = libc::open(c"/proc/self/oom_score_adj".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
            libc::write(file, c"1000".as_ptr().cast(), 4);
            libc::close(file);
        }
        // SAFETY: no pointers. The signal ends the process, also after exec.
        unsafe { libc::alarm(wall) };
        Ok(())
    };
    // SAFETY: the closure makes system calls only.
    unsafe { command.pre_exec(limit) };
    let child = command.spawn().with_context(|| format!("cannot start {}", command.get_program().display()))?;
    let pid = child.id().cast_signed();
    // The child is not collected yet, so that its group's number is not reused.
    wait_until_done(pid)?;
    // SAFETY: no pointers; the group is that of the child, which is not collected yet.
    unsafe { libc::kill(-pid, libc::SIGKILL) };
    let (mut status, mut usage) = (0, MaybeUninit::<libc::rusage>::zeroed());
    // SAFETY: both are valid for writes, and nothing collected the child before.
    let waited = unsafe { libc::wait4(pid, &mut status, 0, usage.as_mut_ptr()) };
    ensure!(waited == pid, "wait4: {}", std::io::Error::last_os_error());
    // SAFETY: all zeros are valid for it, and the call wrote it.
    let usage = unsafe { usage.assume_init() };
    let seconds = [usage.ru_utime, usage.ru_stime].map(|t| t.tv_sec as f64 + t.tv_usec as f64 / 1e6).iter().sum();
    Ok(Ended { status: ExitStatus::from_raw(status), seconds })
}

/// Waits until the child `pid` has ended, or is idle for [`IDLE_MS`].
fn wait_until_done(pid: i32) -> Result<()> {
    let mut before = None;
    // SAFETY: no pointers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) } as i32;
    ensure!(fd >= 0, "pidfd_open: {}", std::io::Error::last_os_error());
    let mut ended = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one record.
    while unsafe { libc::poll(&raw mut ended, 1, IDLE_MS) } == 0 {
        let now = processor_time(pid);
        if now == before {
            break;
        }
        before = now;
    }
    // SAFETY: the file is this function's.
    unsafe { libc::close(fd) };
    Ok(())
}

/// Ticks of a processor that the process `pid` has used so far.
fn processor_time(pid: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The third field follows the name, which may contain anything; the 14th and 15th are these.
    let fields: Vec<&str> = stat.rsplit(')').next()?.split_whitespace().collect();
    Some(fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?)
}
