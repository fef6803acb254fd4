//! Opens the events of a process on every processor, as many as the system permits.

use std::io;
use std::os::fd::OwnedFd;

use neap_trace::perf::attr::{Counter, Event, sample};
use neap_trace::perf::record::Decoder;

use super::bpf::Bpf;
use super::sys::{self, Ring};
use super::unwind;

/// The size of a ring that is tried where stacks come with the faults.
const WITH_STACKS: usize = 32 << 20;

/// The size of a ring where the beginnings of faults do not come in it.
const WITHOUT_FAULTS: usize = 512 << 10;

/// The sizes of a ring that are tried, largest first. An ordinary user may have 516 KiB for each processor.
const RING_SIZES: [usize; 8] = [WITH_STACKS, 4 << 20, 2 << 20, 1 << 20, 512 << 10, 256 << 10, 128 << 10, 64 << 10];

/// The part of the stack that comes with each fault.
const STACK_BYTES: u32 = 8 << 10;

/// What samples have in any case.
const BASE: u64 = sample::IDENTIFIER | sample::IP | sample::TID | sample::TIME | sample::ADDR;

/// How callers are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Callgraph {
    /// By frame pointers, in the kernel
    Fp,
    /// By unwind tables, in a copy of the stack that comes with each fault
    Dwarf,
}

/// How much is learnt about each fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Detail {
    /// Its beginning: half the overhead; no service time, kinds are guesses
    Begin,
    /// Its beginning and its end
    Full,
}

/// What is to be traced.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// From the next exec on, rather than at once.
    pub on_exec: bool,
    /// Callers.
    pub callgraph: Option<Callgraph>,
    /// Which events.
    pub detail: Detail,
    /// Times of CLOCK_MONOTONIC: what programs can tell too.
    pub monotonic: bool,
}

/// Open events.
pub struct Events {
    /// All of them; they end when these are closed.
    descriptors: Vec<OwnedFd>,
    /// Those with a ring, in the same order as `rings`: one for each processor.
    leaders: Vec<OwnedFd>,
    /// A ring for each processor.
    pub rings: Vec<Ring>,
    /// What takes the beginnings of faults, instead of samples.
    pub bpf: Option<Bpf>,
    /// What their samples mean.
    pub decoder: Decoder,
    /// Whether faults in kernel mode are seen.
    pub kernel: bool,
}

/// Which fields and modes the system permits.
#[derive(Clone, Copy, Debug)]
struct Permitted {
    kernel: bool,
    fields: u64,
    /// Times are those that a BPF program, or the program itself, can tell.
    monotonic: bool,
}

impl Events {
    /// Opens the events of threads.
    pub fn open(tids: &[i32], wanted: Wanted) -> io::Result<Self> {
        sys::raise_descriptor_limit();
        let processors = processors();
        let first = tids.first().copied().unwrap_or(0);
        let mut permitted = probe(first, wanted)?;
        let plain = wanted.detail == Detail::Begin && wanted.callgraph.is_none();
        let bpf = (plain && permitted.kernel)
            .then(|| Bpf::load(processors.iter().max().map_or(1, |&last| last as usize + 1)));
        let bpf = bpf.and_then(Result::ok);
        permitted.monotonic = wanted.monotonic || bpf.is_some();
        let mut events = Self {
            descriptors: Vec::new(),
            leaders: Vec::new(),
            rings: Vec::new(),
            bpf,
            decoder: Decoder::default(),
            kernel: permitted.kernel,
        };
        // The largest size that is tried.
        let mut size = match wanted.callgraph {
            Some(Callgraph::Dwarf) => WITH_STACKS,
            _ if events.bpf.is_some() => WITHOUT_FAULTS,
            _ => RING_SIZES[1],
        };
        for cpu in processors {
            match events.open_on(cpu, tids, wanted, permitted, &mut size) {
                // A processor that is offline, or that went offline.
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {}
                other => other?,
            }
        }
        if events.rings.is_empty() {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(events)
    }

    /// Opens the events of the threads on one processor. `size` is the size of a ring at most; then that of this one.
    fn open_on(
        &mut self,
        cpu: u32,
        tids: &[i32],
        wanted: Wanted,
        permitted: Permitted,
        size: &mut usize,
    ) -> io::Result<()> {
        let leader_event = bookkeeping(wanted, permitted);
        let mut leader: Option<OwnedFd> = None;
        for &tid in tids {
            let dummy = match sys::perf_event_open(&leader_event, tid, cpu) {
                // A thread that ended meanwhile.
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) && tids.len() > 1 => continue,
                other => other?,
            };
            match &leader {
                Some(leader) => sys::perf_event_redirect(&dummy, leader)?,
                None => self.rings.push(ring(&dummy, size)?),
            }
            self.remember(&dummy, &leader_event)?;
            let output = leader.as_ref().unwrap_or(&dummy);
            for event in faults(wanted, permitted) {
                let fd = sys::perf_event_open(&event, tid, cpu)?;
                let bpf = self.bpf.as_ref().filter(|_| event.counter == Counter::Faults);
                // Where the program is refused after all, samples do.
                if bpf.is_none_or(|bpf| bpf.attach(&fd).is_err()) {
                    sys::perf_event_redirect(&fd, output)?;
                }
                self.remember(&fd, &event)?;
                self.descriptors.push(fd);
            }
            match leader {
                Some(_) => self.descriptors.push(dummy),
                None => leader = Some(dummy),
            }
        }
        self.leaders.extend(leader);
        Ok(())
    }

    fn remember(&mut self, fd: &OwnedFd, event: &Event) -> io::Result<()> {
        self.decoder.add(sys::perf_event_id(fd)?, event.counter, event.fields, event.registers.count_ones());
        Ok(())
    }

    /// Begins, where the events do not wait for an exec.
    pub fn enable(&self) -> io::Result<()> {
        self.leaders.iter().chain(&self.descriptors).try_for_each(sys::perf_event_enable)
    }

    /// What to poll.
    pub fn pollable(&self) -> Vec<libc::pollfd> {
        self.leaders.iter().map(sys::readable).collect()
    }
}

/// The event that carries the records of processes and mappings, and owns the ring.
fn bookkeeping(wanted: Wanted, permitted: Permitted) -> Event {
    Event {
        counter: Counter::Dummy,
        fields: BASE,
        exclude_kernel: !permitted.kernel,
        enable_on_exec: wanted.on_exec,
        bookkeeping: true,
        monotonic: permitted.monotonic,
        // A quarter of the smallest ring that an ordinary user gets: the reader is woken seldom, and in time.
        watermark: 128 << 10,
        registers: 0,
        stack_bytes: 0,
    }
}

/// The beginning of a fault, its end if it read from disk, and its end if it did not. The last is left out where only
/// beginnings are wanted: reads from disk are few, and cost more than an event.
fn faults(wanted: Wanted, permitted: Permitted) -> impl Iterator<Item = Event> {
    let plain = Event { bookkeeping: false, fields: permitted.fields, ..bookkeeping(wanted, permitted) };
    let (callers, registers, stack_bytes) = match wanted.callgraph {
        Some(Callgraph::Fp) => (sample::CALLCHAIN, 0, 0),
        Some(Callgraph::Dwarf) => (sample::REGS_USER | sample::STACK_USER, unwind::MASK, STACK_BYTES),
        None => (0, 0, 0),
    };
    // The physical address would tell the page of zeros to whoever may see it, but costs as much as half an event; the
    // instruction tells it too. The size of the page costs a tenth of an event.
    let (begin, minor) = match wanted.detail {
        Detail::Full => (plain.fields, Some(Event { counter: Counter::MinorFaults, ..plain })),
        Detail::Begin => (BASE, None),
    };
    [
        Event { counter: Counter::Faults, fields: begin | callers, registers, stack_bytes, ..plain },
        Event { counter: Counter::MajorFaults, ..plain },
    ]
    .into_iter()
    .chain(minor)
}

/// Finds out what is permitted, with an event that is closed again.
fn probe(tid: i32, wanted: Wanted) -> io::Result<Permitted> {
    let mut last = io::Error::from(io::ErrorKind::PermissionDenied);
    for kernel in [true, false] {
        for extra in [sample::DATA_PAGE_SIZE, 0] {
            let permitted = Permitted { kernel, fields: BASE | extra, monotonic: false };
            let Some(event) = faults(wanted, permitted).nth(1) else { break };
            match processors().into_iter().map(|cpu| sys::perf_event_open(&event, tid, cpu)).find(is_decided) {
                Some(Ok(_)) => return Ok(permitted),
                Some(Err(error)) => last = error,
                None => {}
            }
        }
    }
    Err(last)
}

/// Whether the answer would be the same on another processor.
fn is_decided(result: &io::Result<OwnedFd>) -> bool {
    !matches!(result, Err(error) if error.raw_os_error() == Some(libc::ENODEV))
}

/// The largest ring that the system permits; all have the size of the first.
fn ring(event: &OwnedFd, size: &mut usize) -> io::Result<Ring> {
    let mut last = io::Error::from(io::ErrorKind::OutOfMemory);
    for &candidate in RING_SIZES.iter().filter(|&&candidate| candidate <= *size) {
        match Ring::new(event, candidate) {
            Ok(ring) => {
                *size = candidate;
                return Ok(ring);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// The processors that are online.
fn processors() -> Vec<u32> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let listed = parse_list(text.trim());
    if !listed.is_empty() {
        return listed;
    }
    let count = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
    (0..count).collect()
}

/// A list of numbers and ranges, as in `0-3,8`.
fn parse_list(text: &str) -> Vec<u32> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    text.split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches processors that are left out: faults there would be missing.
    #[test]
    fn lists_of_processors() {
        assert_eq!(parse_list("0-3,8,10-11"), [0, 1, 2, 3, 8, 10, 11]);
        assert_eq!(parse_list("0"), [0]);
        assert_eq!(parse_list(""), [0; 0]);
    }
}
