//! Where events are denied: scans the page tables of the program again and again, and counts each new page as a fault.
//! Pages that the kernel mapped around a fault count as one fault together.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use neap_process::maps::parse_maps;
use neap_trace::perf::attr::Counter;
use neap_trace::perf::record::{Happened, Record, Sample};
use neap_trace::track::Tracker;

use super::collect::Collected;
use super::stat::Stat;
use super::sys::{self, Wakeup};
use super::unwind::Proc;

/// Time between two scans.
const NAP_MILLISECONDS: i32 = 2;
/// Size of the aligned range of a file that the kernel maps with one fault (its default).
const FAULT_AROUND: u64 = 64 << 10;

/// The state of the process when scans begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// It has not executed its program yet: all new pages are faults.
    BeforeExec,
    /// It runs already: the pages that it has are not faults of this trace.
    Running,
}

/// A thread that scans.
pub struct Scanner {
    thread: JoinHandle<()>,
    stop: Arc<Wakeup>,
    scanning: Arc<Mutex<Scanning>>,
}

impl Scanner {
    /// Starts the thread. It takes no signals: they are blocked already. With `exact`, each page is a fault.
    pub fn start(pid: u32, tracker: Tracker, begin: Begin, exact: bool) -> std::io::Result<Self> {
        let stop = Arc::new(Wakeup::new()?);
        let stopped = Arc::clone(&stop);
        let collected = Collected { tracker, ..Collected::default() };
        let mut scanning = Scanning {
            root: pid,
            started: Instant::now(),
            exact,
            // Pages of neap's own child, before it becomes the program, are not the program's.
            own: fs::read_link("/proc/self/exe").ok(),
            followed: false,
            known: HashMap::new(),
            world: Proc::default(),
            collected,
        };
        if begin == Begin::Running {
            tree(pid).into_iter().for_each(|pid| scanning.begun(pid));
        }
        let scanning = Arc::new(Mutex::new(scanning));
        let shared = Arc::clone(&scanning);
        let thread = std::thread::Builder::new().name("scanner".to_owned()).spawn(move || {
            let mut descriptors = [sys::readable(&*stopped)];
            while descriptors[0].revents == 0 {
                sys::poll(&mut descriptors, NAP_MILLISECONDS);
                lock(&shared).round();
            }
        })?;
        Ok(Self { thread, stop, scanning })
    }

    /// Ends the thread. Returns what was collected, and whether starts and ends of processes were reported.
    pub fn finish(self) -> (Collected, bool) {
        self.stop.raise();
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let mut scanning = lock(&self.scanning);
        (scanning.finish(), scanning.followed)
    }

    /// From now on the calls below report the start of each process, what it executes, and its end.
    pub fn follow(&self) {
        lock(&self.scanning).followed = true;
    }

    /// A process has begun, and is stopped: it has its parent's pages.
    pub fn begun(&self, pid: u32) {
        lock(&self.scanning).begun(pid);
    }

    /// A process has executed a program, and is stopped before its first instruction.
    pub fn executed(&self, pid: u32) {
        lock(&self.scanning).executed(pid);
    }

    /// A process is about to end, and is stopped: makes the last scan.
    pub fn ending(&self, pid: u32) {
        lock(&self.scanning).look(pid);
    }
}

/// The state, also after a panic in the other thread, which is reported when that thread is joined.
fn lock(scanning: &Mutex<Scanning>) -> MutexGuard<'_, Scanning> {
    scanning.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is known of a process: its program, and the pages of the last scan.
#[derive(Default)]
struct Known {
    program: Option<PathBuf>,
    pages: HashSet<u64>,
}

/// The state of all scans.
struct Scanning {
    root: u32,
    started: Instant,
    exact: bool,
    /// neap's own program.
    own: Option<PathBuf>,
    /// Whether starts, programs and ends of processes are reported.
    followed: bool,
    known: HashMap<u32, Known>,
    world: Proc,
    collected: Collected,
}

impl Scanning {
    /// Scans all processes.
    fn round(&mut self) {
        for pid in tree(self.root) {
            let program = program_of(pid);
            if program.is_none() || program == self.own {
                continue;
            }
            match self.known.get(&pid) {
                Some(known) if known.program == program => self.look(pid),
                // It is stopped, and will be reported next.
                _ if self.followed => {}
                Some(_) => self.executed(pid),
                // A child that has executed nothing yet has its parent's pages.
                None if pid != self.root && self.known.values().any(|known| known.program == program) => {
                    self.begun(pid);
                }
                None => self.executed(pid),
            }
        }
        self.world.seek(&mut self.collected.tracker);
        self.world.blocks.forget();
        self.forget_ended();
    }

    /// Returns what was collected.
    fn finish(&mut self) -> Collected {
        let Collected { mut tracker, mut store, malformed, .. } = std::mem::take(&mut self.collected);
        tracker.finish(&mut |fault| store.push(&fault));
        Collected { tracker, store, malformed, files: std::mem::take(&mut self.world.files) }
    }

    /// Reports the processes that have ended since the last scan.
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

    /// Adds a process, with pages that are no faults of its own.
    fn begun(&mut self, pid: u32) {
        let pages = present(pid).map(|(_, pages)| pages.into_iter().flatten().collect()).unwrap_or_default();
        self.known.insert(pid, Known { program: program_of(pid), pages });
    }

    /// A process has a new program. Its stack has the arguments, which the kernel wrote without a fault.
    fn executed(&mut self, pid: u32) {
        let program = program_of(pid);
        if program == self.own {
            return;
        }
        let name = program.as_deref().and_then(|path| path.file_name()).unwrap_or_default();
        let event =
            Happened::Comm { pid, tid: pid, exec: true, name: name.to_string_lossy().into_owned().into_bytes() };
        let time = self.time();
        let Collected { tracker, store, .. } = &mut self.collected;
        tracker.record(&Record { time, event }, &mut self.world, &mut |fault| store.push(&fault));
        let pages = present(pid).map(|(maps, pages)| {
            let stack = parse_maps(&maps).zip(pages).filter(|(line, _)| line.path == b"[stack]");
            stack.flat_map(|(_, pages)| pages).collect()
        });
        self.known.insert(pid, Known { program, pages: pages.unwrap_or_default() });
        self.look(pid);
    }

    /// Scans one process: new pages are faults.
    fn look(&mut self, pid: u32) {
        let Some((maps, pages)) = present(pid) else { return };
        let Some(pagemap) = pagemap_of(pid) else { return };
        let time = self.time();
        let Some(known) = self.known.get_mut(&pid) else { return };
        let Collected { tracker, store, .. } = &mut self.collected;
        tracker.adopt(pid, "", &[], Some(&maps));
        let mut now = HashSet::with_capacity(known.pages.len());
        for (line, pages) in parse_maps(&maps).zip(pages) {
            let mut around = None;
            for page in pages {
                now.insert(page);
                if known.pages.contains(&page) {
                    continue;
                }
                // A written page of a private mapping belongs to the process, and had a fault of its own.
                if !self.exact && line.inode != 0 && sys::is_of_file(&pagemap, page) {
                    let window = page / FAULT_AROUND;
                    if around.replace(window) == Some(window) {
                        continue;
                    }
                }
                let event = Happened::Sample(Box::new(appeared(pid, page)));
                tracker.record(&Record { time, event }, &mut self.world, &mut |fault| store.push(&fault));
            }
        }
        known.pages = now;
    }
}

/// The program of a process.
fn program_of(pid: u32) -> Option<PathBuf> {
    let of = |pid: u32| fs::read_link(format!("/proc/{pid}/exe")).ok();
    // When its first thread has ended, only the others have a program.
    of(pid).or_else(|| of(neap_process::living(pid)))
}

fn pagemap_of(pid: u32) -> Option<File> {
    File::open(format!("/proc/{}/pagemap", neap_process::living(pid))).ok()
}

/// The mappings of a process, and the present pages of each.
fn present(pid: u32) -> Option<(Vec<u8>, Vec<Vec<u64>>)> {
    let maps = neap_process::maps(pid).ok()?;
    let pagemap = pagemap_of(pid)?;
    let pages = parse_maps(&maps).map(|line| match line.start >> 63 {
        0 => sys::present_pages(&pagemap, line.start, line.end),
        _ => Vec::new(),
    });
    let pages = pages.collect();
    Some((maps, pages))
}

/// The sample of a new page.
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
