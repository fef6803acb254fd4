//! Decodes the records of a ring.
//!
//! ```text
//! struct perf_event_header { __u32 type; __u16 misc; __u16 size; };
//! ```
//!
//! Every record but a sample ends with `struct sample_id`, of which the events here have
//!
//! ```text
//! { u32 pid, tid; } && PERF_SAMPLE_TID
//! { u64 time;     } && PERF_SAMPLE_TIME
//! { u64 id;       } && PERF_SAMPLE_IDENTIFIER
//! ```

use std::collections::HashMap;

use super::attr::{Counter, sample};
use super::bytes::Bytes;
use crate::FileId;

/// The size of a record's header.
pub const HEADER_SIZE: usize = 8;
/// The size of the trailer of every record but a sample.
const TRAILER_SIZE: usize = 24;

/// `PERF_RECORD_MISC_CPUMODE_MASK`.
const MISC_CPUMODE: u16 = 7;
/// `PERF_RECORD_MISC_KERNEL`.
const MISC_KERNEL: u16 = 1;
/// `PERF_RECORD_MISC_COMM_EXEC`.
const MISC_COMM_EXEC: u16 = 1 << 13;

/// Bytes that are no valid record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// One record: when, and what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// On the kernel's clock for perf events, in nanoseconds.
    pub time: u64,
    /// What happened.
    pub event: Happened,
}

/// The contents of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Happened {
    /// A fault began or ended, or the clock fired.
    Sample(Box<Sample>),
    /// Something was mapped, or its protection changed.
    Mmap(Box<Mmap>),
    /// A thread has a new name.
    Comm {
        /// Process.
        pid: u32,
        /// Thread.
        tid: u32,
        /// Whether it executed a program.
        exec: bool,
        /// The name.
        name: Vec<u8>,
    },
    /// A thread or process began.
    Fork {
        /// Its process.
        pid: u32,
        /// Its thread.
        tid: u32,
        /// The process that made it.
        parent_pid: u32,
        /// The thread that made it.
        parent_tid: u32,
    },
    /// A thread ended.
    Exit {
        /// Its process.
        pid: u32,
        /// Its number.
        tid: u32,
    },
    /// The ring was full: this many records are missing.
    Lost(u64),
    /// A record that is not used.
    Other(u32),
}

/// A fault's beginning or end, or an instruction at which the clock fired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Which event.
    pub counter: Counter,
    /// The instruction.
    pub ip: u64,
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// The address.
    pub address: u64,
    /// Whether the instruction is the kernel's.
    pub kernel: bool,
    /// The size of the page that is mapped there, 0 for none; `None` where the kernel does not report it.
    pub page_size: Option<u64>,
    /// The physical address; 0 where there is none, or for the zero page; `None` where it was not requested.
    pub physical: Option<u64>,
    /// Input for finding the callers, where it was requested.
    pub callers: Option<Box<Callers>>,
}

/// Input for finding the callers of an instruction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Callers {
    /// Their addresses, innermost first, without the kernel's context marks.
    pub chain: Vec<u64>,
    /// Registers of user mode, in the order of the bits that were requested; empty where there are none.
    pub registers: Vec<u64>,
    /// A copy of the stack, from the stack pointer on.
    pub stack: Vec<u8>,
}

/// A mapping that was made or changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mmap {
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// Address.
    pub start: u64,
    /// Length.
    pub length: u64,
    /// Position in the file.
    pub offset: u64,
    /// The file; none for what has no file.
    pub file: Option<FileId>,
    /// `PROT_*`.
    pub protection: u32,
    /// `MAP_*`.
    pub flags: u32,
    /// The path, or the name that the kernel gives: `//anon`, `[heap]`, `[stack]`, `[vdso]`.
    pub path: Vec<u8>,
}

/// The meanings of the ids in samples.
#[derive(Clone, Debug, Default)]
pub struct Decoder {
    events: HashMap<u64, (Counter, u64)>,
    registers: usize,
}

impl Decoder {
    /// Registers an event: its id, its counter, the [`sample`] fields of its samples, and their number of registers.
    pub fn add(&mut self, id: u64, counter: Counter, fields: u64, registers: u32) {
        self.events.insert(id, (counter, fields));
        // Events without registers do not reset the number: all events that have registers have the same ones.
        self.registers = self.registers.max(registers as usize);
    }

    /// Splits a record off the front of the bytes; `None` at their end.
    pub fn next(&self, bytes: &mut &[u8]) -> Option<Result<Record, Malformed>> {
        if bytes.is_empty() {
            return None;
        }
        let mut header = Bytes(bytes);
        let (Some(kind), Some(misc), Some(size)) = (header.u32(), header.u16(), header.u16()) else {
            *bytes = &[];
            return Some(Err(Malformed));
        };
        let Some((record, rest)) = bytes.split_at_checked(usize::from(size)).filter(|(r, _)| r.len() >= HEADER_SIZE)
        else {
            *bytes = &[];
            return Some(Err(Malformed));
        };
        *bytes = rest;
        Some(self.record(kind, misc, &record[HEADER_SIZE..]).ok_or(Malformed))
    }

    fn record(&self, kind: u32, misc: u16, body: &[u8]) -> Option<Record> {
        const LOST: u32 = 2;
        const COMM: u32 = 3;
        const EXIT: u32 = 4;
        const FORK: u32 = 7;
        const SAMPLE: u32 = 9;
        const MMAP2: u32 = 10;
        const LOST_SAMPLES: u32 = 13;
        if kind == SAMPLE {
            return self.sample(misc, Bytes(body));
        }
        let (body, trailer) = body.split_at_checked(body.len().checked_sub(TRAILER_SIZE)?)?;
        let mut trailer = Bytes(trailer);
        let _pid_tid = trailer.u64()?;
        let time = trailer.u64()?;
        let mut body = Bytes(body);
        let event = match kind {
            // struct { header; u64 id; u64 lost; sample_id; }
            LOST => {
                body.u64()?;
                Happened::Lost(body.u64()?)
            }
            // struct { header; u64 lost; sample_id; }
            LOST_SAMPLES => Happened::Lost(body.u64()?),
            // struct { header; u32 pid, tid; char comm[]; sample_id; }
            COMM => Happened::Comm {
                pid: body.u32()?,
                tid: body.u32()?,
                exec: misc & MISC_COMM_EXEC != 0,
                name: body.text().to_vec(),
            },
            // struct { header; u32 pid, ppid; u32 tid, ptid; u64 time; sample_id; }
            EXIT | FORK => {
                let (pid, parent_pid, tid, parent_tid) = (body.u32()?, body.u32()?, body.u32()?, body.u32()?);
                match kind {
                    EXIT => Happened::Exit { pid, tid },
                    _ => Happened::Fork { pid, tid, parent_pid, parent_tid },
                }
            }
            MMAP2 => mmap2(misc, body)?,
            other => Happened::Other(other),
        };
        Some(Record { time, event })
    }

    /// ```text
    /// struct { header;
    ///   { u64 id;           } && PERF_SAMPLE_IDENTIFIER    { u64 ip;   } && PERF_SAMPLE_IP
    ///   { u32 pid, tid;     } && PERF_SAMPLE_TID           { u64 time; } && PERF_SAMPLE_TIME
    ///   { u64 addr;         } && PERF_SAMPLE_ADDR
    ///   { u64 nr, ips[nr];  } && PERF_SAMPLE_CALLCHAIN
    ///   { u64 abi; u64 regs[weight(mask)]; } && PERF_SAMPLE_REGS_USER
    ///   { u64 size; char data[size]; u64 dyn_size; } && PERF_SAMPLE_STACK_USER
    ///   { u64 phys_addr; } && PERF_SAMPLE_PHYS_ADDR        { u64 data_page_size; } && PERF_SAMPLE_DATA_PAGE_SIZE
    /// };
    /// ```
    fn sample(&self, misc: u16, mut body: Bytes<'_>) -> Option<Record> {
        let &(counter, fields) = self.events.get(&body.u64()?)?;
        let has = |field: u64| fields & field != 0;
        let ip = body.u64()?;
        let (pid, tid) = (body.u32()?, body.u32()?);
        let (time, address) = (body.u64()?, body.u64()?);
        let callers = self.callers(fields, &mut body)?;
        let physical = if has(sample::PHYS_ADDR) { Some(body.u64()?) } else { None };
        let page_size = if has(sample::DATA_PAGE_SIZE) { Some(body.u64()?) } else { None };
        let kernel = misc & MISC_CPUMODE == MISC_KERNEL;
        let sample = Sample { counter, ip, pid, tid, address, kernel, page_size, physical, callers };
        Some(Record { time, event: Happened::Sample(Box::new(sample)) })
    }

    fn callers(&self, fields: u64, body: &mut Bytes<'_>) -> Option<Option<Box<Callers>>> {
        let has = |field: u64| fields & field != 0;
        let mut callers = Callers::default();
        if has(sample::CALLCHAIN) {
            callers.chain = callchain(body)?;
        }
        // No registers follow where there is no user mode to copy them from: PERF_SAMPLE_REGS_ABI_NONE.
        if has(sample::REGS_USER) && body.u64()? != 0 {
            callers.registers = (0..self.registers).map(|_| body.u64()).collect::<Option<_>>()?;
        }
        if has(sample::STACK_USER) {
            let size = usize::try_from(body.u64()?).ok()?;
            if size != 0 {
                let copied = body.take(size)?;
                let valid = usize::try_from(body.u64()?).ok()?;
                callers.stack = copied.get(..valid)?.to_vec();
            }
        }
        let asked = has(sample::CALLCHAIN | sample::REGS_USER | sample::STACK_USER);
        Some(asked.then(|| Box::new(callers)))
    }
}

/// Addresses from this one on are the kernel's context marks (`PERF_CONTEXT_MAX`): what follows is kernel, user, ...
const CONTEXT_MARKS: u64 = -4095i64 as u64;

fn callchain(body: &mut Bytes<'_>) -> Option<Vec<u64>> {
    let count = usize::try_from(body.u64()?).ok()?;
    let mut addresses = Bytes(body.take(count.checked_mul(8)?)?);
    let mut chain = Vec::with_capacity(count);
    while let Some(address) = addresses.u64() {
        if address < CONTEXT_MARKS {
            chain.push(address);
        }
    }
    Some(chain)
}

/// ```text
/// struct { header; u32 pid, tid; u64 addr; u64 len; u64 pgoff;
///   union { struct { u32 maj; u32 min; u64 ino; u64 ino_generation; };
///           struct { u8 build_id_size; u8 reserved[3]; u8 build_id[20]; }; };
///   u32 prot, flags; char filename[]; sample_id; };
/// ```
fn mmap2(misc: u16, mut body: Bytes<'_>) -> Option<Happened> {
    /// `PERF_RECORD_MISC_MMAP_BUILD_ID`: the union holds a build id.
    const BUILD_ID: u16 = 1 << 14;
    let (pid, tid) = (body.u32()?, body.u32()?);
    let (start, length, offset) = (body.u64()?, body.u64()?, body.u64()?);
    let (major, minor, inode) = (body.u32()?, body.u32()?, body.u64()?);
    body.u64()?;
    let (protection, flags) = (body.u32()?, body.u32()?);
    let file = (misc & BUILD_ID == 0 && inode != 0).then_some(FileId { major, minor, inode });
    let path = body.text().to_vec();
    Some(Happened::Mmap(Box::new(Mmap { pid, tid, start, length, offset, file, protection, flags, path })))
}
