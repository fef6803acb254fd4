//! Requests samples from a process (`neap_samples::control`).
//!
//! **Several readers at a time.** The control block has room for one request: a later request replaces an earlier one,
//! and each reader renews its own. Numbers grow, so a reader whose request was replaced sees by a later answer that
//! samples are taken. It requests the interval that is in force, and leaves the end to the lease of the others.

use crate::pinned::Tally;
use crate::process::Memory;
use crate::snapshot::Snapshot;
use crate::walk::{Walked, walk};
use crate::{Error, Fuel, find};
use neap_samples::Live;
use neap_samples::control::{Control, HeapPlaces};
use std::mem::offset_of;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How often the answer is looked for.
const LOOK: Duration = Duration::from_millis(2);
/// How often the process is made to look once more: a thread that has followed a request passes it on to others, unless
/// those are in the middle of a call.
const AGAIN: Duration = Duration::from_millis(100);
/// How long sampling goes on without the asker.
const LEASE: Duration = Duration::from_secs(5);

/// What is requested.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Mean bytes between two samples; 1: each block.
    pub interval: u64,
    /// For how long.
    pub duration: Duration,
}

/// Asks for nothing: of an observer that only reads.
const NOTHING: Request = Request { interval: 0, duration: Duration::ZERO };

/// Samples and the heap at one moment.
#[derive(Clone, Debug)]
pub struct Look {
    /// The samples; `None` if the process has had none yet.
    pub snapshot: Option<Snapshot>,
    /// What keeps the OS pages of the heap.
    pub tally: Tally,
}

/// A process that was asked, or keeps samples already.
#[derive(Debug)]
pub struct Asked {
    memory: Memory,
    block: u64,
    pid: u32,
    request: Request,
    /// The number of the request; 0: the process keeps samples anyway.
    number: u64,
    /// Another asker has made requests too.
    has_others: bool,
    /// The process has answered a request.
    was_answered: bool,
    /// When the request was made, or renewed.
    renewed: Instant,
}

impl Asked {
    /// Asks process `pid`. It may take a while to answer.
    pub fn ask(pid: u32, request: Request) -> Result<Self, Error> {
        let mut asked = Asked::attach(pid, request)?;
        let state = asked.word(offset_of!(Control, state))?;
        // Without a lease the program itself has chosen to keep samples.
        if state == 0 || asked.word(offset_of!(Control, lease))? != 0 {
            asked.has_others = state != 0;
            asked.renew(request.interval)?;
        }
        Ok(asked)
    }

    /// Finds the control block of process `pid`, and asks for nothing yet.
    fn attach(pid: u32, request: Request) -> Result<Self, Error> {
        Asked::in_memory(pid, request, Memory::open(pid)?)
    }

    fn in_memory(pid: u32, request: Request, memory: Memory) -> Result<Self, Error> {
        let (block, renewed) = (find::control(pid, &memory)?, Instant::now());
        Ok(Asked { memory, block, pid, request, number: 0, has_others: false, was_answered: false, renewed })
    }

    /// Whether the process keeps samples without being asked.
    pub fn kept_before(&self) -> bool {
        self.number == 0
    }

    fn word(&self, at: usize) -> Result<u64, Error> {
        self.memory.word(self.block.wrapping_add(at as u64)).map_err(|_| Error::Gone)
    }

    fn set(&self, at: usize, bytes: &[u8]) -> Result<(), Error> {
        self.memory.write(self.block.wrapping_add(at as u64), bytes).map_err(|error| match error.kind() {
            std::io::ErrorKind::PermissionDenied => Error::Denied,
            _ => Error::Gone,
        })
    }

    /// Makes a request, or renews it.
    fn renew(&mut self, interval: u64) -> Result<(), Error> {
        let (last, state) = (self.word(offset_of!(Control, request))?, self.word(offset_of!(Control, state))?);
        self.has_others |= self.number != 0 && last != self.number;
        // Where others count each block, frees would be missed if that ended.
        let interval = if self.has_others && state != 0 { interval.min(state) } else { interval };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |now| now.as_nanos() as u64);
        self.number = now.max(last.wrapping_add(1)).max(1);
        self.renewed = Instant::now();
        self.set(offset_of!(Control, interval), &interval.to_ne_bytes())?;
        self.set(offset_of!(Control, lease), &(LEASE.as_millis() as u64).to_ne_bytes())?;
        self.set(offset_of!(Control, request), &self.number.to_ne_bytes())?;
        self.knock()
    }

    fn knock(&self) -> Result<(), Error> {
        let at = self.word(offset_of!(Control, knock))?;
        self.set(at as usize, &[1])
    }

    /// Whether the process has done what it was asked, or what another one asked later, or has chosen by itself to keep
    /// samples.
    pub fn has_answered(&self) -> Result<bool, Error> {
        let answer = self.word(offset_of!(Control, answer))?;
        let is_answered = answer != 0 && answer.wrapping_sub(self.number).cast_signed() >= 0;
        Ok(self.number == 0 || is_answered || (self.is_on()? && self.word(offset_of!(Control, lease))? == 0))
    }

    /// Whether the process takes samples now.
    fn is_on(&self) -> Result<bool, Error> {
        Ok(self.word(offset_of!(Control, state))? != 0)
    }

    /// Waits for the time that was requested to pass, counted from the answer, or until `ends` is true.
    pub fn wait(&mut self, ends: &mut dyn FnMut() -> bool) -> Result<(), Error> {
        let began = Instant::now();
        let (mut answered, mut knocked) = (None, began);
        loop {
            // A renewal that is not answered yet is no reason to wait: samples go on.
            if answered.is_none() && (self.was_answered || self.has_answered()?) {
                self.was_answered = true;
                answered = Some(Instant::now());
            }
            let since = answered.unwrap_or(began);
            if since.elapsed() >= self.request.duration || ends() {
                break;
            }
            if self.number != 0 && knocked.elapsed() >= AGAIN {
                // Another asker, or the program, may have ended what was requested.
                let is_due = self.renewed.elapsed() >= LEASE / 2 || (answered.is_some() && !self.is_on()?);
                if is_due {
                    self.renew(self.request.interval)?;
                } else {
                    self.knock()?;
                }
                knocked = Instant::now();
            }
            sleep(LOOK.min(self.request.duration.saturating_sub(since.elapsed())));
        }
        if answered.is_none() { Err(Error::Silent(self.request.duration)) } else { Ok(()) }
    }

    /// A copy of what the process has kept so far; `None` if it has had no sample yet.
    pub fn snapshot(&self) -> Result<Option<Snapshot>, Error> {
        match self.word(offset_of!(Control, file))? {
            0 => Ok(None),
            file => Snapshot::from_memory(&self.memory, file).map(Some),
        }
    }

    /// Attaches to a process that keeps samples by its own choice, and asks for nothing. `None` if it keeps none, or has
    /// had none yet.
    pub fn join(pid: u32) -> Result<Option<Self>, Error> {
        let asked = Asked::attach(pid, NOTHING)?;
        let keeps = asked.word(offset_of!(Control, state))? != 0 && asked.word(offset_of!(Control, file))? != 0;
        Ok(keeps.then_some(asked))
    }

    /// What the process has kept so far, and what keeps the OS pages of its heap.
    pub fn look(&self) -> Result<Look, Error> {
        let snapshot = self.snapshot()?;
        let live: Vec<Live> = snapshot.as_ref().map_or_else(Vec::new, |snapshot| snapshot.view().live().collect());
        Ok(Look { snapshot, tally: self.walked(&live)?.tally })
    }

    /// Walks the heap of process `pid` without asking it for anything. With what is left of `fuel`.
    pub fn heap(pid: u32, fuel: &Arc<Fuel>) -> Result<Walked, Error> {
        Asked::in_memory(pid, NOTHING, Memory::open(pid)?.limited(Arc::clone(fuel)))?.walked(&[])
    }

    fn walked(&self, live: &[Live]) -> Result<Walked, Error> {
        let place = |at: usize| self.word(offset_of!(Control, heap) + at);
        let places = HeapPlaces {
            layout: place(offset_of!(HeapPlaces, layout))?,
            arenas: place(offset_of!(HeapPlaces, arenas))?,
            heaps: place(offset_of!(HeapPlaces, heaps))?,
            huge: place(offset_of!(HeapPlaces, huge))?,
        };
        let memory = match self.memory.fuel {
            Some(_) => &self.memory,
            None => &self.memory.limited(Arc::new(Fuel::of(self.pid, || false))),
        };
        walk(memory, self.pid, self.block, places, live)
    }

    /// Ends the request. Where others have made requests too, it ends with the last lease.
    pub fn end(&mut self) -> Result<(), Error> {
        if self.number == 0 || self.has_others || self.word(offset_of!(Control, request))? != self.number {
            return Ok(());
        }
        self.renew(0)
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        self.pid
    }
}
