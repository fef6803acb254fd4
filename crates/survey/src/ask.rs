//! Requests samples from a process (`neap_samples::control`).
//!
//! **Several readers at a time.** The control block has room for one request: a later request replaces an earlier one,
//! and each reader renews its own. Request numbers grow, so a reader whose request was replaced sees from a later
//! answer that samples are taken. It requests the interval that is in force, and leaves the end to the lease of the
//! others.

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

/// Time between two checks for the answer.
const LOOK: Duration = Duration::from_millis(2);
/// Time between two further requests for attention: a thread that has followed a request passes it on to others, unless
/// those are in a call.
const AGAIN: Duration = Duration::from_millis(100);
/// How long sampling goes on without the reader.
const LEASE: Duration = Duration::from_secs(5);

/// What is requested.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Mean bytes between two samples; 1: each block.
    pub interval: u64,
    /// How long to sample.
    pub duration: Duration,
}

/// Requests nothing: for an observer that only reads.
const NOTHING: Request = Request { interval: 0, duration: Duration::ZERO };

/// Samples and the heap at one moment.
#[derive(Clone, Debug)]
pub struct Look {
    /// The samples; `None` if the process has had none yet.
    pub snapshot: Option<Snapshot>,
    /// What keeps the OS pages of the heap.
    pub tally: Tally,
}

/// A process from which samples were requested, or that takes samples already.
#[derive(Debug)]
pub struct Asked {
    memory: Memory,
    block: u64,
    pid: u32,
    request: Request,
    /// The number of the request; 0: the process takes samples anyway.
    number: u64,
    /// Whether another reader has made requests too.
    has_others: bool,
    /// Whether the process has answered a request.
    was_answered: bool,
    /// When the request was made, or renewed.
    renewed: Instant,
}

impl Asked {
    /// Requests samples from process `pid`. The answer may take a while.
    pub fn ask(pid: u32, request: Request) -> Result<Self, Error> {
        let mut asked = Asked::attach(pid, request)?;
        let state = asked.word(offset_of!(Control, state))?;
        // Without a lease the program itself has started sampling.
        if state == 0 || asked.word(offset_of!(Control, lease))? != 0 {
            asked.has_others = state != 0;
            asked.renew(request.interval)?;
        }
        Ok(asked)
    }

    /// Finds the control block of process `pid`, without a request yet.
    fn attach(pid: u32, request: Request) -> Result<Self, Error> {
        Asked::in_memory(pid, request, Memory::open(pid)?)
    }

    fn in_memory(pid: u32, request: Request, memory: Memory) -> Result<Self, Error> {
        let (block, renewed) = (find::control(pid, &memory)?, Instant::now());
        Ok(Asked { memory, block, pid, request, number: 0, has_others: false, was_answered: false, renewed })
    }

    /// Whether the process took samples before the request.
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
        // If others count each block, frees would be missed if that ended.
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

    /// Whether the process has followed the request or a later one of another reader, or has started sampling itself.
    pub fn has_answered(&self) -> Result<bool, Error> {
        let answer = self.word(offset_of!(Control, answer))?;
        let is_answered = answer != 0 && answer.wrapping_sub(self.number).cast_signed() >= 0;
        Ok(self.number == 0 || is_answered || (self.is_on()? && self.word(offset_of!(Control, lease))? == 0))
    }

    /// Whether the process takes samples now.
    fn is_on(&self) -> Result<bool, Error> {
        Ok(self.word(offset_of!(Control, state))? != 0)
    }

    /// Waits until the requested time has passed since the answer, or until `ends` returns true.
    pub fn wait(&mut self, ends: &mut dyn FnMut() -> bool) -> Result<(), Error> {
        let began = Instant::now();
        let (mut answered, mut knocked) = (None, began);
        loop {
            // A renewal need not be answered: sampling goes on.
            if answered.is_none() && (self.was_answered || self.has_answered()?) {
                self.was_answered = true;
                answered = Some(Instant::now());
            }
            let since = answered.unwrap_or(began);
            if since.elapsed() >= self.request.duration || ends() {
                break;
            }
            if self.number != 0 && knocked.elapsed() >= AGAIN {
                // Another reader, or the program, may have ended the sampling.
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

    /// A copy of the process's samples so far; `None` if it has had none yet.
    pub fn snapshot(&self) -> Result<Option<Snapshot>, Error> {
        match self.word(offset_of!(Control, file))? {
            0 => Ok(None),
            file => Snapshot::from_memory(&self.memory, file).map(Some),
        }
    }

    /// Attaches to a process that takes samples by its own choice, without a request. `None` if it takes none, or has
    /// had none yet.
    pub fn join(pid: u32) -> Result<Option<Self>, Error> {
        let asked = Asked::attach(pid, NOTHING)?;
        let keeps = asked.word(offset_of!(Control, state))? != 0 && asked.word(offset_of!(Control, file))? != 0;
        Ok(keeps.then_some(asked))
    }

    /// The process's samples so far, and what keeps the OS pages of its heap.
    pub fn look(&self) -> Result<Look, Error> {
        let snapshot = self.snapshot()?;
        let live: Vec<Live> = snapshot.as_ref().map_or_else(Vec::new, |snapshot| snapshot.view().live().collect());
        Ok(Look { snapshot, tally: self.walked(&live)?.tally })
    }

    /// Walks the heap of process `pid` without a request, within what is left of `fuel`.
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

    /// Ends the request. If others have made requests too, sampling ends with the last lease.
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
