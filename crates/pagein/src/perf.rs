//! Opens the events of a process on every processor, as many as the system permits.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use neap_trace::perf::attr::{Counter, Event, sample};
use neap_trace::perf::record::Decoder;

use super::bpf::Bpf;
use super::sys::{self, Ring};
use super::unwind;
use neap_launch::sys::Identity;

/// The size of a ring that is tried first where stacks come with the faults.
const WITH_STACKS: usize = 32 << 20;

/// The sizes of a ring that holds both ends of faults, and of one that holds only beginnings. The kernel fills it with
/// zeros and maps it before the program starts, which takes some 0.2 ms for each MiB.
const BEGINS_AND_ENDS: usize = 4 << 20;
const BEGINS_ONLY: usize = 2 << 20;

/// The size of a ring that does not hold the beginnings of faults.
const WITHOUT_FAULTS: usize = 256 << 10;

/// The sizes of a ring that are tried, largest first.
const RING_SIZES: [usize; 8] = [WITH_STACKS, 4 << 20, 2 << 20, 1 << 20, 512 << 10, 256 << 10, 128 << 10, 64 << 10];

/// Bytes of the stack that come with each fault.
const STACK_BYTES: u32 = 8 << 10;

/// Faults per sample where the clock does not cover the kernel. A prime number, because faults come in regular
/// patterns.
pub const FAULTS_COUNTED: u64 = 61;

/// How often the events of running threads are enabled again: of 60 traces of busy makers of threads, 3 to 8 had lost a
/// maker on one processor when events were enabled once, none when twice.
const ENABLED_ANEW: u32 = 2;
/// Usual limit on the time that making a thread takes.
const MAKING_A_THREAD: Duration = Duration::from_millis(2);

/// Fields that all samples have.
const BASE: u64 = sample::IDENTIFIER | sample::IP | sample::TID | sample::TIME | sample::ADDR;

/// How callers are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Callgraph {
    /// By frame pointers, in the kernel
    Fp,
    /// By unwind tables, in a copy of the stack that comes with each fault
    Dwarf,
}

/// How much is recorded about each fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Detail {
    /// Its beginning: half the overhead; no service time, kinds are guesses
    Begin,
    /// Its beginning and its end
    Full,
}

/// What to trace.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// From the next exec on, instead of at once.
    pub on_exec: bool,
    /// Callers.
    pub callgraph: Option<Callgraph>,
    /// Which events.
    pub detail: Detail,
    /// Instead of faults: a sample each time that a thread has run for this many nanoseconds.
    pub clock: Option<u64>,
    /// Times of CLOCK_MONOTONIC, which programs can read too.
    pub monotonic: bool,
}

/// Why there are no events.
#[derive(Debug)]
pub struct Denied {
    /// What was refused.
    pub what: Refused,
    /// The system's error.
    pub error: io::Error,
}

/// What the system refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// An event.
    Event,
    /// The memory of a ring.
    Ring,
    /// A descriptor; this many are needed.
    Descriptor(usize),
}

impl From<io::Error> for Denied {
    fn from(error: io::Error) -> Self {
        Self { what: Refused::Event, error }
    }
}

/// The event that owns the ring of a processor.
struct Leader {
    cpu: u32,
    /// Its thread.
    tid: i32,
    event: OwnedFd,
}

/// Opened events.
pub struct Events {
    /// Events without a ring; all end when they are closed.
    descriptors: Vec<OwnedFd>,
    /// Events with a ring, in the same order as `rings`: one for each processor.
    leaders: Vec<Leader>,
    /// A ring for each processor.
    pub rings: Vec<Ring>,
    /// Takes the beginnings of faults, in place of samples.
    pub bpf: Option<Bpf>,
    /// The meaning of their samples.
    pub decoder: Decoder,
    /// Whether faults in kernel mode are seen.
    pub kernel: bool,
}

/// Which fields and modes the system permits.
#[derive(Clone, Copy, Debug)]
struct Permitted {
    kernel: bool,
    fields: u64,
    /// Whether times are those that a BPF program, or the program itself, can read.
    monotonic: bool,
    /// Whether events report how many samples were lost.
    tells_lost: bool,
}

impl Events {
    /// Opens the events of threads. Threads that end meanwhile are skipped.
    pub fn open(tids: &[i32], wanted: Wanted) -> Result<Self, Denied> {
        sys::raise_descriptor_limit();
        let processors = processors();
        Self::open_on(&processors, tids, wanted).map_err(|denied| match denied.error.raw_os_error() {
            Some(libc::EMFILE) => Denied { what: Refused::Descriptor(descriptors(&processors, tids)), ..denied },
            _ => denied,
        })
    }

    fn open_on(processors: &[u32], tids: &[i32], wanted: Wanted) -> Result<Self, Denied> {
        let mut permitted = probe(processors, tids, wanted)?;
        let plain = wanted.detail == Detail::Begin && wanted.callgraph.is_none();
        let bpf = (plain && permitted.kernel)
            .then(|| Bpf::load(processors.iter().max().map_or(1, |&last| last as usize + 1)));
        let bpf = bpf.and_then(Result::ok);
        permitted.monotonic = wanted.monotonic || bpf.is_some();
        let largest = match (wanted.callgraph, wanted.detail) {
            _ if wanted.clock.is_some() => BEGINS_AND_ENDS,
            (Some(Callgraph::Dwarf), _) => WITH_STACKS,
            _ if bpf.is_some() => WITHOUT_FAULTS,
            (None, Detail::Begin) => BEGINS_ONLY,
            _ => BEGINS_AND_ENDS,
        };
        let leaders = leaders(processors, tids, &bookkeeping(wanted, permitted))?;
        let mut events = Self {
            descriptors: Vec::new(),
            rings: rings(&leaders, largest)?,
            leaders: Vec::new(),
            bpf,
            decoder: Decoder::default(),
            kernel: permitted.kernel,
        };
        for leader in leaders {
            events.remember(&leader.event, &bookkeeping(wanted, permitted))?;
            for &tid in tids {
                match events.follow(&leader, tid, wanted, permitted) {
                    Err(error) if is_gone(&error) => {}
                    other => other?,
                }
            }
            events.leaders.push(leader);
        }
        Ok(events)
    }

    /// Opens the events of a thread on the processor of a leader, whose ring gets their samples.
    fn follow(&mut self, leader: &Leader, tid: i32, wanted: Wanted, permitted: Permitted) -> io::Result<()> {
        let own = (tid != leader.tid).then(|| bookkeeping(wanted, permitted));
        let all = own.into_iter().chain(samples(wanted, permitted));
        // All or none: the thread may end in between.
        let opened: Vec<(Event, OwnedFd)> =
            all.map(|event| Ok((event, sys::perf_event_open(&event, tid, leader.cpu)?))).collect::<io::Result<_>>()?;
        for (event, fd) in opened {
            let bpf = self.bpf.as_ref().filter(|_| event.counter == Counter::Faults);
            // Falls back to samples where the kernel refuses the program after all.
            if bpf.is_none_or(|bpf| bpf.attach(&fd).is_err()) {
                sys::perf_event_redirect(&fd, &leader.event)?;
            }
            self.remember(&fd, &event)?;
            self.descriptors.push(fd);
        }
        Ok(())
    }

    fn remember(&mut self, fd: &OwnedFd, event: &Event) -> io::Result<()> {
        self.decoder.add(sys::perf_event_id(fd)?, event.counter, event.fields, event.registers.count_ones());
        Ok(())
    }

    /// Begins, where the events do not wait for an exec.
    ///
    /// A thread that is being made meanwhile may inherit a disabled event, just after those of earlier threads were
    /// enabled. The kernel may then exchange the two threads' events instead of switching them (it treats inherited
    /// events as equal to their parents'), and what the maker makes from then on inherits disabled events. Enabling an
    /// enabled event does nothing, so it is repeated when such threads run.
    pub fn enable(&self) -> io::Result<()> {
        let all = || self.leaders.iter().map(|leader| &leader.event).chain(&self.descriptors);
        all().try_for_each(sys::perf_event_enable)?;
        for _ in 0..ENABLED_ANEW {
            std::thread::sleep(MAKING_A_THREAD);
            all().try_for_each(sys::perf_event_enable)?;
        }
        Ok(())
    }

    /// How many samples did not fit in the rings, where the kernel reports it. (Records report it too, but only when a
    /// record fits again, which may never happen.)
    pub fn lost(&self) -> Option<u64> {
        let leaders = self.leaders.iter().map(|leader| &leader.event);
        leaders.chain(&self.descriptors).map(sys::perf_event_lost).sum()
    }

    /// The descriptors to poll.
    pub fn pollable(&self) -> Vec<libc::pollfd> {
        self.leaders.iter().map(|leader| sys::readable(&leader.event)).collect()
    }
}

/// The event that carries the records of processes and mappings, and owns the ring.
fn bookkeeping(wanted: Wanted, permitted: Permitted) -> Event {
    Event {
        counter: Counter::Dummy,
        period: 1,
        fields: BASE,
        exclude_kernel: !permitted.kernel,
        enable_on_exec: wanted.on_exec,
        bookkeeping: true,
        monotonic: permitted.monotonic,
        tells_lost: permitted.tells_lost,
        // A quarter of the ring of an ordinary user: the reader is woken rarely, but in time.
        watermark: 64 << 10,
        registers: 0,
        stack_bytes: 0,
        kernel_callers: false,
    }
}

/// The events that make samples.
fn samples(wanted: Wanted, permitted: Permitted) -> Vec<Event> {
    match wanted.clock {
        // The clock does not cover the kernel; counted page faults stand in for most of it.
        Some(period) if !permitted.kernel => {
            vec![clock(period, wanted, permitted), counted_faults(wanted, permitted)]
        }
        Some(period) => vec![clock(period, wanted, permitted)],
        None => faults(wanted, permitted).collect(),
    }
}

/// The ends of faults that read nothing from disk, one in [`FAULTS_COUNTED`], with the program's stack.
fn counted_faults(wanted: Wanted, permitted: Permitted) -> Event {
    let clock = clock(FAULTS_COUNTED, wanted, permitted);
    Event { counter: Counter::MinorFaults, fields: clock.fields | permitted.fields, ..clock }
}

/// Samples a thread each time that it has run for a period: with the program's stack, and the kernel's callers where
/// neap may see them.
fn clock(period: u64, wanted: Wanted, permitted: Permitted) -> Event {
    Event {
        counter: Counter::Clock,
        period,
        bookkeeping: false,
        fields: BASE | sample::CALLCHAIN | sample::REGS_USER | sample::STACK_USER,
        registers: unwind::MASK,
        stack_bytes: STACK_BYTES,
        kernel_callers: true,
        ..bookkeeping(wanted, permitted)
    }
}

/// The beginning of a fault, its end if it read from disk, and its end if it did not. The last is omitted where only
/// beginnings are wanted: reads from disk are few, and cost more than an event.
fn faults(wanted: Wanted, permitted: Permitted) -> impl Iterator<Item = Event> {
    let plain = Event { bookkeeping: false, fields: permitted.fields, ..bookkeeping(wanted, permitted) };
    let (callers, registers, stack_bytes) = match wanted.callgraph {
        Some(Callgraph::Fp) => (sample::CALLCHAIN, 0, 0),
        Some(Callgraph::Dwarf) => (sample::REGS_USER | sample::STACK_USER, unwind::MASK, STACK_BYTES),
        None => (0, 0, 0),
    };
    // The physical address would identify the zero page for users that may see it, but costs half as much as an event;
    // the instruction shows it too. The size of the page costs a tenth of an event.
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
fn probe(processors: &[u32], tids: &[i32], wanted: Wanted) -> io::Result<Permitted> {
    let mut last = io::Error::from(io::ErrorKind::PermissionDenied);
    for kernel in [true, false] {
        for (extra, tells_lost) in [(sample::DATA_PAGE_SIZE, true), (sample::DATA_PAGE_SIZE, false), (0, false)] {
            let permitted = Permitted { kernel, fields: BASE | extra, monotonic: false, tells_lost };
            // Of the events of faults, one with only the fields that are needed here.
            let event = match wanted.clock {
                Some(period) => {
                    let clock = clock(period, wanted, permitted);
                    Some(Event { fields: clock.fields | extra, ..clock })
                }
                None => faults(wanted, permitted).nth(1),
            };
            let Some(event) = event else { break };
            for (&tid, &cpu) in tids.iter().flat_map(|tid| processors.iter().map(move |cpu| (tid, cpu))) {
                match sys::perf_event_open(&event, tid, cpu) {
                    Ok(_) => return Ok(permitted),
                    Err(error) => last = error,
                }
                if !is_gone(&last) {
                    break;
                }
            }
        }
    }
    Err(last)
}

/// Whether the thread ended, or the processor is or went offline: others may still exist.
fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ESRCH | libc::ENODEV))
}

/// An event on each processor, to own its ring: of the first thread that still exists.
fn leaders(processors: &[u32], tids: &[i32], event: &Event) -> io::Result<Vec<Leader>> {
    let mut leaders = Vec::with_capacity(processors.len());
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for &cpu in processors {
        for &tid in tids {
            match sys::perf_event_open(event, tid, cpu) {
                Ok(event) => {
                    leaders.push(Leader { cpu, tid, event });
                    break;
                }
                Err(error) if is_gone(&error) => last = error,
                Err(error) => return Err(error),
            }
        }
    }
    if leaders.is_empty() { Err(last) } else { Ok(leaders) }
}

/// A ring for each leader, all of one size: the largest that is wanted and permitted.
fn rings(leaders: &[Leader], largest: usize) -> Result<Vec<Ring>, Denied> {
    let fitting = share(leaders.len()).max(RING_SIZES[RING_SIZES.len() - 1]);
    let mut last = io::Error::from(io::ErrorKind::OutOfMemory);
    for &size in RING_SIZES.iter().filter(|&&size| size <= largest.min(fitting)) {
        match leaders.iter().map(|leader| Ring::new(&leader.event, size)).collect() {
            Ok(rings) => return Ok(rings),
            Err(error) => last = error,
        }
    }
    Err(Denied { what: Refused::Ring, error: last })
}

/// The largest ring that each of these processors should have.
///
/// For users other than root, the kernel permits a fixed amount for each processor in all traces of the user together
/// (`kernel.perf_event_mlock_kb`), and each process the memory that it may lock besides. Half of the former is left to
/// other traces.
fn share(processors: usize) -> usize {
    if Identity::current().euid == 0 {
        return usize::MAX;
    }
    let of_user = mlock_kb().unwrap_or(0) << 10;
    let own = sys::lockable_bytes() / processors.max(1);
    (of_user / 2).saturating_add(own).saturating_sub(sys::page_size())
}

/// The memory that a user may lock for each processor, in KiB.
pub fn mlock_kb() -> Option<usize> {
    std::fs::read_to_string("/proc/sys/kernel/perf_event_mlock_kb").ok()?.trim().parse().ok()
}

/// The descriptors that the events of this many threads need, plus some for everything else.
fn descriptors(processors: &[u32], tids: &[i32]) -> usize {
    const EACH: usize = 4;
    const OTHERS: usize = 64;
    EACH * processors.len() * tids.len() + OTHERS
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

    /// Catches processors that are left out: their faults would be missing.
    #[test]
    fn lists_of_processors() {
        assert_eq!(parse_list("0-3,8,10-11"), [0, 1, 2, 3, 8, 10, 11]);
        assert_eq!(parse_list("0"), [0]);
        assert_eq!(parse_list(""), [0; 0]);
    }
}
