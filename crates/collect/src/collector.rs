//! Reads all processes repeatedly.

use crate::filter::Filter;
use crate::jobs::{self, Job, Pace, What};
use crate::model::{Aged, Brief, Errors, Process, Rollup};
use crate::read::{self, Why};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

/// How often the allocator of a process is determined again: the process may load one, or execute another program.
const AGAIN: Duration = Duration::from_secs(60);

/// A process, and data that make reading it cheap.
#[derive(Debug)]
struct Known {
    process: Process,
    name: String,
    taken: bool,
    /// Whether it is smaller than the limit since it is known.
    small: bool,
    page: Option<neap_observe::Page>,
    /// When its mappings were last searched; of a small process, when all its light figures were read.
    mapped: Option<Instant>,
}

/// Processes below the limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Small {
    /// How many there are.
    pub processes: u64,
    /// Their resident memory.
    pub rss: u64,
}

/// All processes.
#[derive(Debug)]
pub struct Collector {
    filter: Filter,
    pace: Pace,
    least: u64,
    known: BTreeMap<u32, Known>,
    errors: Errors,
    focus: Option<Vec<u32>>,
    buffer: Vec<u8>,
}

impl Collector {
    /// A collector of the processes that the filter accepts, before the first reading.
    pub fn new(filter: Filter, pace: Pace) -> Self {
        let (known, buffer) = (BTreeMap::new(), Vec::new());
        Collector { filter, pace, least: 0, known, errors: Errors::default(), focus: None, buffer }
    }

    /// Counts processes with less memory together. One that has had more is not small again, because its figures
    /// would come and go.
    pub fn from(self, least: u64) -> Self {
        Collector { least, ..self }
    }

    /// Reads all processes: light figures only.
    pub fn look(&mut self) -> io::Result<()> {
        let mut seen = Vec::new();
        for entry in fs::read_dir("/proc")? {
            let Ok(entry) = entry else { continue };
            if let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) {
                seen.push(pid);
            }
        }
        seen.sort_unstable();
        self.known.retain(|pid, _| seen.binary_search(pid).is_ok());
        let own = std::process::id();
        let others = self.errors.other;
        for pid in seen.into_iter().filter(|&pid| pid != own) {
            if let Err(why) = self.look_at(pid) {
                self.known.remove(&pid);
                self.count(why);
            }
        }
        // If no process could be read, the cause is not the processes: neap itself lacks something.
        match self.known.is_empty() && self.errors.other > others {
            true => File::open("/proc/self/stat").map(|_| ()),
            false => Ok(()),
        }
    }

    fn count(&mut self, why: Why) {
        match why {
            Why::Ended => self.errors.ended += 1,
            Why::Denied => self.errors.denied += 1,
            Why::Other => self.errors.other += 1,
            Why::NoMemory => {}
        }
    }

    fn look_at(&mut self, pid: u32) -> Result<(), Why> {
        if !self.known.contains_key(&pid) {
            // The user first, because it is the cheapest to read.
            let user = fs::metadata(format!("/proc/{pid}"))?.uid();
            if !self.filter.takes_user(user) {
                return Err(Why::NoMemory);
            }
        }
        let (name, mut light, via) = read::stat(pid, &mut self.buffer)?;
        light.of_stat = light.rss;
        let same = self.known.get(&pid).is_some_and(|known| {
            let before = &known.process.light;
            (before.started, before.program) == (light.started, light.program) && known.name == name
        });
        if !same {
            // A new process, or another program in the old one: the old figures do not apply.
            let cmdline = read::cmdline(pid);
            let command = crate::parse::command(&name, &cmdline);
            let taken = self.filter.takes(&command, &cmdline) || self.filter.takes(&name, b"");
            read::status(via, &mut self.buffer, &mut light)?;
            let process = Process {
                pid,
                command,
                container: if taken { read::container(pid) } else { String::new() },
                allocator: String::new(),
                light,
                neap: None,
                rollup: None,
                account: None,
                denied: false,
                failed: None,
            };
            self.known.insert(pid, Known { process, name, taken, small: true, page: None, mapped: None });
        }
        let Some(known) = self.known.get_mut(&pid).filter(|known| known.taken) else { return Ok(()) };
        let is_due = known.mapped.is_none_or(|at| at.elapsed() >= AGAIN);
        if same {
            let before = known.process.light;
            match known.small {
                // The figures of `stat` suffice.
                true if light.rss < self.least && !is_due => {}
                false if !light.may_differ(&before) => light = before,
                _ => read::status(via, &mut self.buffer, &mut light)?,
            }
        }
        known.process.light = light;
        if known.small && light.size() < self.least {
            known.mapped = if is_due { Some(Instant::now()) } else { known.mapped };
            return Ok(());
        }
        let is_due = is_due || known.small;
        known.small = false;
        if is_due && !known.process.denied {
            known.mapped = Some(Instant::now());
            match read::mapped(pid, &mut self.buffer) {
                Ok((allocator, page)) => {
                    known.process.allocator = allocator.to_owned();
                    known.page = page;
                }
                Err(Why::Denied) => {
                    known.process.denied = true;
                    self.errors.denied += 1;
                }
                Err(why) => return Err(why),
            }
        }
        let snapshot = known.page.as_ref().and_then(|page| page.read().ok());
        known.process.neap = snapshot.as_ref().map(read::neap);
        Ok(())
    }

    /// The processes that the filter accepts, by number, without small ones.
    pub fn processes(&self) -> impl Iterator<Item = &Process> {
        self.known.values().filter(|known| known.taken && !known.small).map(|known| &known.process)
    }

    /// Small processes that the filter accepts.
    pub fn small(&self) -> Small {
        let small = self.known.values().filter(|known| known.taken && known.small);
        small.fold(Small::default(), |sum, known| Small {
            processes: sum.processes + 1,
            rss: sum.rss + known.process.light.rss,
        })
    }

    /// Processes that could not be read so far.
    pub fn errors(&self) -> Errors {
        self.errors
    }

    /// From now on only these get accounts.
    pub fn focus(&mut self, pids: Vec<u32>) {
        self.focus = Some(pids);
    }

    /// The pace.
    pub fn pace(&self) -> Pace {
        self.pace
    }

    /// The most urgent job, and what it is expected to cost.
    pub fn next_job(&self, now: Instant) -> Option<(Job, Duration)> {
        let job = jobs::next(self.processes(), &self.pace, self.focus.as_deref(), now)?;
        Some((job, jobs::expected(&self.known.get(&job.pid)?.process, job.what)))
    }

    /// Keeps the result of a job, and what it cost.
    pub fn done(&mut self, job: Job, made: Result<Made, Why>, cost: Duration) {
        let known = self.known.get_mut(&job.pid).map(|known| &mut known.process);
        let is_same = |process: &&mut Process| {
            let light = &process.light;
            (light.started, light.program) == (job.started, job.program)
        };
        let Some(process) = known.filter(is_same) else { return };
        let (at, mark) = (Instant::now(), job.mark);
        match made {
            Ok(Made::Rollup(value)) => process.rollup = Some(Aged { value, at, cost, mark }),
            Ok(Made::Account(value)) => process.account = Some(Aged { value, at, cost, mark }),
            Err(why) => {
                process.denied |= why == Why::Denied;
                process.failed = Some(at);
                self.count(why);
            }
        }
    }
}

/// The result of a job.
#[derive(Clone, Debug)]
pub enum Made {
    /// Pss and huge pages.
    Rollup(Rollup),
    /// The account.
    Account(Brief),
}

/// Does a job; `exact` as in [`Pace`]. An account is cut short when `stop` returns true, and is then an error.
pub fn make(job: Job, exact: bool, stop: fn() -> bool) -> Result<Made, Why> {
    let effort = if exact { neap_why::Effort::Full } else { neap_why::Effort::Gentle };
    match job.what {
        What::Rollup => read::rollup(job.pid, exact).map(Made::Rollup),
        What::Account => match neap_why::look_until(job.pid, effort, stop) {
            Ok(_) if stop() => Err(Why::Other),
            Ok(report) => Ok(Made::Account(Brief::of(&report))),
            // The error of `look` is a text for users; a rollup shows the reason.
            Err(_) => Err(read::rollup(job.pid, exact).err().unwrap_or(Why::Other)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    struct Sleeper(Child);

    impl Drop for Sleeper {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    const PACE: Pace = Pace {
        share: 1.0,
        rollup: Duration::from_secs(5),
        account: Duration::from_secs(5),
        exact: false,
        accounts_first: false,
    };

    /// Catches processes that are not found, that stay after their end, and jobs whose result is lost.
    #[test]
    fn a_process_comes_and_goes() {
        let child = Sleeper(Command::new("sleep").arg("47.11").spawn().expect("sleep(1)"));
        let mut all = Collector::new(Filter::new(Some("^sleep 47\\.11$")).expect("a pattern"), PACE);
        let until = Instant::now() + Duration::from_secs(10);
        while all.processes().next().is_none_or(|process| process.allocator.is_empty()) && Instant::now() < until {
            // It does not run the program at once.
            all = Collector::new(Filter::new(Some("^sleep 47\\.11$")).expect("a pattern"), PACE);
            all.look().expect("/proc");
        }
        let process = all.processes().next().expect("it runs").clone();
        assert_eq!(
            (process.pid, process.command.as_str(), process.allocator.as_str()),
            (child.0.id(), "sleep", "glibc")
        );
        assert!(process.light.rss > 0 && process.reclaimable().is_none());
        for _ in 0..2 {
            let (job, _) = all.next_job(Instant::now()).expect("nothing is known");
            all.done(job, make(job, false, || false), Duration::from_millis(1));
        }
        let process = all.processes().next().expect("it runs");
        assert!(process.rollup.is_some_and(|rollup| rollup.value.rss > 0), "{process:?}");
        assert!(process.account.as_ref().is_some_and(|account| account.value.is_split()), "{process:?}");
        assert!(all.next_job(Instant::now()).is_none());
        drop(child);
        all.look().expect("/proc");
        assert_eq!(all.processes().count(), 0);
    }

    /// Catches figures of a program that remain after the process executed another one of the same name.
    #[test]
    fn another_program_is_unknown() {
        let script = "read x; exec sh -c 'read x; : 48.12'";
        let mut child = Command::new("sh");
        let child = child.args(["-c", script]).stdin(std::process::Stdio::piped()).spawn().expect("sh");
        let (mut child, mut all) = (Sleeper(child), Collector::new(Filter::new(None).expect("none"), PACE));
        let pid = child.0.id();
        let look = |all: &mut Collector, is_there: &dyn Fn(&Process) -> bool| {
            let until = Instant::now() + Duration::from_secs(10);
            loop {
                all.look().expect("/proc");
                let process = all.processes().find(|process| process.pid == pid).expect("it runs").clone();
                if is_there(&process) {
                    break process;
                }
                assert!(Instant::now() < until, "{process:?}");
                std::thread::sleep(Duration::from_millis(10));
            }
        };
        let process = look(&mut all, &|process| process.command == "sh");
        let light = process.light;
        let job = Job { pid, started: light.started, program: light.program, what: What::Rollup, mark: light.mark() };
        all.done(job, make(job, false, || false), Duration::ZERO);
        assert!(all.processes().any(|process| process.pid == pid && process.rollup.is_some()));
        std::io::Write::write_all(child.0.stdin.as_mut().expect("a pipe"), b"\n").expect("it listens");
        let process = look(&mut all, &|process| process.light.program != light.program);
        assert!(process.light.started == light.started && process.rollup.is_none(), "{process:?}");
        // The result of a job that began before belongs to the other program.
        all.done(job, make(job, false, || false), Duration::ZERO);
        assert!(all.processes().all(|process| process.pid != pid || process.rollup.is_none()));
    }
}
