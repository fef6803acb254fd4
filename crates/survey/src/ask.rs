//! Asks a process for samples (`neap_samples::control`).
//!
//! Several may ask one process at a time. There is one request, so each asker makes its own of what the others want too:
//! the shorter distance counts, and none ends what another one may need. What was asked last is then given up with its
//! lease.

use crate::pinned::Tally;
use crate::process::Memory;
use crate::snapshot::Snapshot;
use crate::walk::walk;
use crate::{Error, find};
use neap_samples::Live;
use neap_samples::control::{Control, HeapPlaces};
use std::mem::offset_of;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How often the answer is looked for.
const LOOK: Duration = Duration::from_millis(2);
/// How often the process is made to look once more: a thread that has followed a request passes it on to others, unless
/// those are in the middle of a call.
const AGAIN: Duration = Duration::from_millis(100);
/// How long sampling goes on without the asker.
const LEASE: Duration = Duration::from_secs(5);

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Mean bytes between two samples; 1: each block.
    pub interval: u64,
    /// For how long.
    pub duration: Duration,
}

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
    /// Whether another asker was there when the request was made, or has made one since.
    is_shared: bool,
    began: Instant,
}

impl Asked {
    /// Asks process `pid`. It may take a while to answer.
    pub fn ask(pid: u32, request: Request) -> Result<Self, Error> {
        let memory = Memory::open(pid)?;
        let block = find::control(pid, &memory)?;
        let mut asked = Asked { memory, block, pid, request, number: 0, is_shared: false, began: Instant::now() };
        // Without a lease the program itself has chosen to keep samples.
        let is_kept = asked.state()? != 0;
        if !is_kept || asked.word(offset_of!(Control, lease))? != 0 {
            asked.is_shared = is_kept;
            asked.renew()?;
        }
        Ok(asked)
    }

    /// Whether the process keeps samples without being asked.
    pub fn kept_before(&self) -> bool {
        self.number == 0
    }

    fn word(&self, at: usize) -> Result<u64, Error> {
        self.memory.word(self.block + at as u64).map_err(|_| Error::Gone)
    }

    fn set(&self, at: usize, bytes: &[u8]) -> Result<(), Error> {
        self.memory.write(self.block + at as u64, bytes).map_err(|error| match error.kind() {
            std::io::ErrorKind::PermissionDenied => Error::Denied,
            _ => Error::Gone,
        })
    }

    /// Mean bytes between two samples now; 0: none are taken.
    fn state(&self) -> Result<u64, Error> {
        self.word(offset_of!(Control, state))
    }

    /// Whether another asker has made a request since this one.
    fn is_superseded(&self) -> Result<bool, Error> {
        Ok(self.word(offset_of!(Control, request))? != self.number)
    }

    /// Makes the request, or renews it.
    fn renew(&mut self) -> Result<(), Error> {
        let others = if self.is_shared { self.state()? } else { 0 };
        let wanted = self.request.interval;
        self.write(if others == 0 { wanted } else { wanted.min(others) })
    }

    /// Makes a request.
    fn write(&mut self, interval: u64) -> Result<(), Error> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |now| now.as_nanos() as u64) | 1;
        self.number = if now == self.number { now + 2 } else { now };
        self.set(offset_of!(Control, interval), &interval.to_ne_bytes())?;
        self.set(offset_of!(Control, lease), &(LEASE.as_millis() as u64).to_ne_bytes())?;
        self.set(offset_of!(Control, request), &self.number.to_ne_bytes())?;
        self.knock()
    }

    fn knock(&self) -> Result<(), Error> {
        let at = self.word(offset_of!(Control, knock))?;
        self.set(at as usize, &[1])
    }

    /// Whether the process has done what it was asked, or what another asker wanted later.
    pub fn has_answered(&self) -> Result<bool, Error> {
        if self.number == 0 {
            return Ok(true);
        }
        let answer = self.word(offset_of!(Control, answer))?;
        Ok(answer == self.number || answer == self.word(offset_of!(Control, request))? && !self.is_in_need()?)
    }

    /// Whether another asker has ended what this one needs, or wants less.
    fn is_in_need(&self) -> Result<bool, Error> {
        let state = self.state()?;
        Ok(state == 0 || state > self.request.interval)
    }

    /// Goes on with the request: renews it where that is due, or where another asker wants less. False if the process has
    /// not answered it, nor was asked by another since.
    fn go_on(&mut self, renewed: &mut Instant) -> Result<bool, Error> {
        let is_superseded = self.is_superseded()?;
        let mut is_answered = true;
        if renewed.elapsed() >= LEASE / 2 {
            is_answered = is_superseded || self.has_answered()?;
            // An asker that is still there has made a request since this one.
            self.is_shared = is_superseded;
        } else if is_superseded && self.has_been_answered()? && self.is_in_need()? {
            self.is_shared = true;
        } else {
            self.is_shared |= is_superseded;
            self.knock()?;
            return Ok(true);
        }
        *renewed = Instant::now();
        self.renew()?;
        Ok(is_answered)
    }

    /// Whether the last request, whosever it is, was carried out.
    fn has_been_answered(&self) -> Result<bool, Error> {
        Ok(self.word(offset_of!(Control, answer))? == self.word(offset_of!(Control, request))?)
    }

    /// Waits for the time that was asked for to pass, counted from the answer, or until `ends` is true.
    pub fn wait(&mut self, ends: &mut dyn FnMut() -> bool) -> Result<(), Error> {
        let mut answered = None;
        let (mut knocked, mut renewed) = (Instant::now(), Instant::now());
        loop {
            if answered.is_none() && self.has_answered()? {
                answered = Some(Instant::now());
            }
            let since = answered.unwrap_or(self.began);
            if since.elapsed() >= self.request.duration || ends() {
                break;
            }
            if self.number != 0 && knocked.elapsed() >= AGAIN {
                let goes_on = self.go_on(&mut renewed)?;
                answered = answered.filter(|_| goes_on);
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
        let memory = Memory::open(pid)?;
        let block = find::control(pid, &memory)?;
        let request = Request { interval: 0, duration: Duration::ZERO };
        let asked = Asked { memory, block, pid, request, number: 0, is_shared: false, began: Instant::now() };
        let keeps = asked.state()? != 0 && asked.word(offset_of!(Control, file))? != 0;
        Ok(keeps.then_some(asked))
    }

    /// What the process has kept so far, and what keeps the OS pages of its heap.
    pub fn look(&self) -> Result<Look, Error> {
        let snapshot = self.snapshot()?;
        let place = |at: usize| self.word(offset_of!(Control, heap) + at);
        let places = HeapPlaces {
            layout: place(offset_of!(HeapPlaces, layout))?,
            arenas: place(offset_of!(HeapPlaces, arenas))?,
            heaps: place(offset_of!(HeapPlaces, heaps))?,
            huge: place(offset_of!(HeapPlaces, huge))?,
        };
        let live: Vec<Live> = snapshot.as_ref().map_or_else(Vec::new, |snapshot| snapshot.view().live().collect());
        let tally = walk(&self.memory, self.pid, self.block, places, &live)?;
        Ok(Look { snapshot, tally })
    }

    /// Ends the request, unless another asker needs it: then it ends with the lease.
    pub fn end(&mut self) -> Result<(), Error> {
        if self.number == 0 || self.is_shared || self.is_superseded()? { Ok(()) } else { self.write(0) }
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        self.pid
    }
}
