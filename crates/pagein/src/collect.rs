//! Collects the records of a program while it runs, in a separate thread.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use neap_trace::perf::order::Order;
use neap_trace::perf::record::Happened;
use neap_trace::track::Tracker;

use super::files::Files;
use super::perf::Events;
use super::progress::Progress;
use super::sites::Sites;
use super::store::Store;
use super::sys::{self, Wakeup};
use super::unwind::Proc;

/// Limit on a sleep of the thread, so that records in the rings do not get old.
const NAP_MILLISECONDS: i32 = 50;
/// The same where the thread is not woken when rings fill up: they hold 16,384 faults each.
const SHORT_NAP_MILLISECONDS: i32 = 4;
/// The same while the program starts, and while one of its processes runs on neap, whose blocks must be read soon.
const EARLY_NAP_MILLISECONDS: i32 = 2;
/// How long a program counts as starting.
const BEGINNING: Duration = Duration::from_millis(200);

/// What was collected.
#[derive(Default)]
pub struct Collected {
    /// Processes, mappings, counts; faults are in the store.
    pub tracker: Tracker,
    /// The faults, in order.
    pub store: Store,
    /// Records that could not be read.
    pub malformed: u64,
    /// The objects found so far.
    pub files: Files,
}

/// A thread that collects.
pub struct Collector {
    thread: JoinHandle<Collected>,
    stop: Arc<Wakeup>,
}

impl Collector {
    /// Starts the thread. It takes no signals: they are blocked already, and new threads inherit that.
    /// With `sites`, processes record their allocations, this many bytes apart.
    pub fn start(events: Events, tracker: Tracker, sites: Option<u64>) -> std::io::Result<Self> {
        let stop = Arc::new(Wakeup::new()?);
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("collector".to_owned())
            .spawn(move || Collecting::new(events, tracker, sites).run(&stopped))?;
        Ok(Self { thread, stop })
    }

    /// Reads the rest of the rings, and ends.
    pub fn finish(self) -> Collected {
        self.stop.raise();
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// The state of the thread.
struct Collecting {
    events: Events,
    order: Order,
    world: Proc,
    collected: Collected,
    buffer: Vec<u8>,
    progress: Progress,
    sites: Option<Sites>,
    /// Losses reported by records, and by the BPF program.
    told_lost: u64,
    bpf_lost: u64,
}

impl Collecting {
    fn new(events: Events, tracker: Tracker, sites: Option<u64>) -> Self {
        let collected = Collected { tracker, ..Collected::default() };
        Self {
            events,
            order: Order::default(),
            world: Proc::default(),
            collected,
            buffer: Vec::new(),
            progress: Progress::new(),
            sites: sites.map(Sites::new),
            told_lost: 0,
            bpf_lost: 0,
        }
    }

    fn run(mut self, stop: &Wakeup) -> Collected {
        // Records may be lost in full rings while the thread waits for a processor.
        sys::hurry();
        let mut descriptors = self.events.pollable();
        let rings = descriptors.len();
        let started = Instant::now();
        let nap = if self.events.bpf.is_some() { SHORT_NAP_MILLISECONDS } else { NAP_MILLISECONDS };
        descriptors.push(sys::readable(stop));
        loop {
            let early = started.elapsed() < BEGINNING || self.collected.tracker.wants_blocks();
            sys::poll(&mut descriptors, if early { EARLY_NAP_MILLISECONDS } else { nap });
            let stopped = descriptors[rings].revents != 0;
            self.round();
            if stopped {
                break;
            }
            let faults = self.collected.tracker.faults();
            self.progress.show(|| format!("{faults} faults"));
        }
        // Everything that happened before `stop` is in the rings by now.
        self.round();
        let untold = self.events.lost().map_or(0, |lost| lost.saturating_sub(self.told_lost));
        let Collected { tracker, store, .. } = &mut self.collected;
        tracker.note_lost(self.bpf_lost + untold);
        let mut sink = |fault| store.push(&fault);
        self.order.finish(|record| tracker.record(&record, &mut self.world, &mut sink));
        if let Some(sites) = &mut self.sites {
            sites.finish(tracker);
        }
        tracker.note_late(self.order.late());
        self.world.seek(tracker);
        tracker.finish(&mut sink);
        self.collected.files = self.world.files;
        self.progress.clear();
        self.collected
    }

    /// Reads every ring once.
    fn round(&mut self) {
        if let Some(sites) = &mut self.sites {
            sites.begin_round();
        }
        for ring in &self.events.rings {
            self.buffer.clear();
            ring.read(&mut self.buffer);
            let mut rest = &self.buffer[..];
            while let Some(record) = self.events.decoder.next(&mut rest) {
                match record {
                    Ok(record) if matches!(record.event, Happened::Other(_)) => {}
                    Ok(record) => {
                        if let Happened::Lost(count) = record.event {
                            self.told_lost += count;
                        }
                        self.order.push(record);
                    }
                    Err(_) => self.collected.malformed += 1,
                }
            }
        }
        if let Some(bpf) = &self.events.bpf {
            self.bpf_lost = bpf.read(|record| self.order.push(record));
            self.collected.tracker.note_lost(self.bpf_lost);
        }
        let Collected { tracker, store, .. } = &mut self.collected;
        if let Some(sites) = &mut self.sites {
            sites.read(tracker);
        }
        self.order.end_round(|record| tracker.record(&record, &mut self.world, &mut |fault| store.push(&fault)));
        if let Some(sites) = &mut self.sites {
            sites.end_round(tracker);
        }
        self.world.seek(tracker);
        self.world.blocks.forget();
    }
}
