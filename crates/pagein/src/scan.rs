//! Where events are denied: looks at the page tables of the program again and again, and takes each page that is newly
//! there for a fault.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use neap_trace::perf::attr::Counter;
use neap_trace::perf::record::{Happened, Record, Sample};
use neap_trace::track::{Tracker, parse_maps};

use super::collect::Collected;
use super::files::Files;
use super::stat::Stat;
use super::store::Store;
use super::sys::{self, Wakeup};
use super::unwind::Proc;

/// How long between two looks.
const NAP_MILLISECONDS: i32 = 2;

/// A thread that looks.
pub struct Scanner {
    thread: JoinHandle<Collected>,
    stop: Arc<Wakeup>,
}

impl Scanner {
    /// Starts the thread. It takes no signals: they are blocked already.
    pub fn start(pid: u32, tracker: Tracker) -> std::io::Result<Self> {
        let stop = Arc::new(Wakeup::new()?);
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("scanner".to_owned()).spawn(move || {
            let collected = Collected { tracker, store: Store::default(), malformed: 0, files: Files::default() };
            Scanning { root: pid, started: Instant::now(), known: HashMap::new(), world: Proc::default(), collected }
                .run(&stopped)
        })?;
        Ok(Self { thread, stop })
    }

    /// Ends the thread.
    pub fn finish(self) -> Collected {
        self.stop.raise();
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// The state of the thread.
struct Scanning {
    root: u32,
    started: Instant,
    /// The program of each process, and its pages that were there at the last look.
    known: HashMap<u32, (Option<std::path::PathBuf>, HashSet<u64>)>,
    world: Proc,
    collected: Collected,
}

impl Scanning {
    fn run(mut self, stop: &Wakeup) -> Collected {
        let mut descriptors = [sys::readable(stop)];
        // What neap's own child has before it becomes the program is not the program's.
        let own = fs::read_link("/proc/self/exe").ok();
        while descriptors[0].revents == 0 {
            sys::poll(&mut descriptors, NAP_MILLISECONDS);
            for pid in tree(self.root) {
                let program = fs::read_link(format!("/proc/{pid}/exe")).ok();
                if program.is_some() && program != own {
                    self.look(pid, program);
                }
            }
            self.world.seek(&mut self.collected.tracker);
            self.world.blocks.forget();
            self.forget_ended();
        }
        let Collected { tracker, store, .. } = &mut self.collected;
        tracker.finish(&mut |fault| store.push(&fault));
        self.collected.files = self.world.files;
        self.collected
    }

    /// Tells of the processes that have ended since the last look.
    fn forget_ended(&mut self) {
        let time = self.time();
        let Collected { tracker, store, .. } = &mut self.collected;
        for (pid, _) in self.known.extract_if(|&pid, _| Stat::of(pid).map_or(true, |stat| stat.ended)) {
            let event = Happened::Exit { pid, tid: pid };
            tracker.record(&Record { time, event }, &mut self.world, &mut |fault| store.push(&fault));
        }
    }

    /// Nanoseconds from the start; never 0.
    fn time(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX).saturating_add(1)
    }

    /// Looks at one process.
    fn look(&mut self, pid: u32, program: Option<std::path::PathBuf>) {
        let Ok(maps) = fs::read(format!("/proc/{pid}/maps")) else { return };
        let Ok(pagemap) = File::open(format!("/proc/{pid}/pagemap")) else { return };
        let time = self.time();
        let Collected { tracker, store, .. } = &mut self.collected;
        let (before, known) = self.known.entry(pid).or_default();
        let name =
            program.as_deref().and_then(|path| path.file_name()).unwrap_or_default().to_string_lossy().into_owned();
        if *before != program {
            before.clone_from(&program);
            known.clear();
            let event = Happened::Comm { pid, tid: pid, exec: true, name: name.into_bytes() };
            tracker.record(&Record { time, event }, &mut self.world, &mut |fault| store.push(&fault));
        }
        tracker.adopt(pid, "", &[], Some(&maps));
        let mut present = HashSet::with_capacity(known.len());
        for line in parse_maps(&maps).filter(|line| line.start < 1 << 63) {
            for page in sys::present_pages(&pagemap, line.start, line.end) {
                present.insert(page);
                if !known.contains(&page) {
                    let event = Happened::Sample(Box::new(appeared(pid, page)));
                    tracker.record(&Record { time, event }, &mut self.world, &mut |fault| store.push(&fault));
                }
            }
        }
        *known = present;
    }
}

/// A page that was not there before.
fn appeared(pid: u32, address: u64) -> Sample {
    Sample {
        counter: Counter::MinorFaults,
        ip: 0,
        pid,
        tid: pid,
        address,
        kernel: false,
        page_size: Some(sys::page_size() as u64),
        physical: None,
        callers: None,
    }
}

/// A process and its descendants.
pub fn tree(root: u32) -> Vec<u32> {
    let mut all = vec![root];
    let mut next = 0;
    while let Some(&pid) = all.get(next) {
        next += 1;
        let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { continue };
        for task in tasks.filter_map(Result::ok) {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            all.extend(children.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
        }
    }
    all
}
