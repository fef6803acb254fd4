//! Beginnings of faults from a BPF program instead of samples: for users that may load one (root, or CAP_BPF and
//! CAP_PERFMON).
//!
//! The kernel runs the program where it would make a sample, and it does less: it writes 32 bytes into a ring. That
//! costs half of what a sample does (docs/pagein.md has the figures). The rings are the values of one array that is
//! mapped here, a value for each processor:
//!
//! ```text
//! struct ring { u64 head; u64 tail; u64 lost; u64 unused[5]; struct { u64 time, pid_tid, ip, address; } slots[]; };
//! ```
//!
//! `head` counts the bytes that the program wrote, `tail` those that neap read. The program runs with preemption off,
//! and no fault begins inside it, so each ring has one writer. It is written by hand, because 33 instructions need no
//! compiler: a crate that loads BPF programs would need one, and an ELF file.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering;

use neap_trace::perf::attr::Counter;
use neap_trace::perf::record::{Happened, Record, Sample};

use super::sys::{self, Instruction, Mapped};

/// Bytes before the slots, and bytes of a slot.
const HEADER: usize = 64;
const SLOT: usize = 32;
/// Bytes of slots for each processor: 16,384 faults. The kernel fills them with zeros and maps them before the program
/// starts, which takes some 0.25 ms for each MiB.
const DATA: usize = 512 << 10;

/// A loaded program and its rings.
pub struct Bpf {
    program: OwnedFd,
    map: Mapped,
    stride: usize,
    rings: usize,
}

impl Bpf {
    /// Loads the program, for processors below this number.
    pub fn load(processors: usize) -> io::Result<Self> {
        if !cfg!(target_arch = "x86_64") || !in_first_namespace() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let stride = HEADER + DATA;
        let array = sys::bpf_array(stride as u32, processors as u32)?;
        let program = sys::bpf_load(&program(array.as_raw_fd(), DATA as i32))?;
        let length = (stride * processors).next_multiple_of(sys::page_size());
        Ok(Self { program, map: Mapped::shared(&array, length)?, stride, rings: processors })
    }

    /// Makes the program run for each sample of an event, in place of the sample.
    pub fn attach(&self, event: &OwnedFd) -> io::Result<()> {
        sys::perf_event_set_bpf(event, &self.program)
    }

    /// Hands out the contents of the rings, each in order; returns how many records were lost since the beginning.
    pub fn read(&self, mut each: impl FnMut(Record)) -> u64 {
        let mut lost = 0;
        for ring in 0..self.rings {
            let start = ring * self.stride;
            let word = |offset: usize| self.map.word(start + offset);
            // Acquire: the slots below head are written; x86 stores in order.
            let (head, tail) = (word(0).load(Ordering::Acquire), word(8).load(Ordering::Relaxed));
            for at in (tail..head).step_by(SLOT) {
                let slot = HEADER + (at % DATA as u64) as usize;
                // Relaxed: see above, and the program writes no slot between tail and head.
                let [time, thread, ip, address] =
                    [0, 8, 16, 24].map(|field| word(slot + field).load(Ordering::Relaxed));
                each(Record { time, event: Happened::Sample(Box::new(sample(thread, ip, address))) });
            }
            // Release: slots are read before the program may write them again.
            word(8).store(head, Ordering::Release);
            lost += word(16).load(Ordering::Relaxed);
        }
        lost
    }
}

fn sample(thread: u64, ip: u64, address: u64) -> Sample {
    Sample {
        counter: Counter::Faults,
        ip,
        pid: (thread >> 32) as u32,
        tid: thread as u32,
        address,
        // The kernel has the upper half of the address space.
        kernel: ip >> 63 != 0,
        page_size: None,
        physical: None,
        callers: None,
    }
}

/// Whether this process is in the initial pid namespace, whose numbers the program sees.
fn in_first_namespace() -> bool {
    /// `PROC_PID_INIT_INO`
    const FIRST: &str = "pid:[4026531836]";
    std::fs::read_link("/proc/self/ns/pid").is_ok_and(|name| name.as_os_str() == FIRST)
}

const fn instruction(code: u8, registers: u8, offset: i16, value: i32) -> Instruction {
    let ([a, b], [c, d, e, f]) = (offset.to_ne_bytes(), value.to_ne_bytes());
    [code, registers, a, b, c, d, e, f]
}

/// `to = from`, with registers as 0xST: source, target.
const fn copy(registers: u8) -> Instruction {
    instruction(0xbf, registers, 0, 0)
}

/// `to = value`
const fn set(register: u8, value: i32) -> Instruction {
    instruction(0xb7, register, 0, value)
}

/// `to = *(u64 *)(from + offset)`
const fn load(registers: u8, offset: i16) -> Instruction {
    instruction(0x79, registers, offset, 0)
}

/// `*(u64 *)(to + offset) = from`
const fn store(registers: u8, offset: i16) -> Instruction {
    instruction(0x7b, registers, offset, 0)
}

/// `r0 = function(r1, ...)`
const fn call(function: i32) -> Instruction {
    instruction(0x85, 0, 0, function)
}

/// The program. Registers: 6 the context, 7 the ring, 8 its head, 9 the slot.
fn program(array: i32, data: i32) -> Vec<Instruction> {
    const MAP_LOOKUP_ELEM: i32 = 1;
    const KTIME_GET_NS: i32 = 5;
    const GET_SMP_PROCESSOR_ID: i32 = 8;
    const GET_CURRENT_PID_TGID: i32 = 14;
    // struct bpf_perf_event_data { struct pt_regs regs; __u64 sample_period; __u64 addr; };
    const IP: i16 = 128;
    const ADDRESS: i16 = 176;
    let slot = HEADER as i16;
    let (keep, lost) = (
        [
            // r9 = r7 + (r8 & (data - SLOT))
            copy(0x89),
            instruction(0x57, 9, 0, data - SLOT as i32),
            instruction(0x0f, 0x79, 0, 0),
            call(KTIME_GET_NS),
            store(0x09, slot),
            call(GET_CURRENT_PID_TGID),
            store(0x09, slot + 8),
            load(0x61, IP),
            store(0x19, slot + 16),
            load(0x61, ADDRESS),
            store(0x19, slot + 24),
            // head += SLOT
            instruction(0x07, 8, 0, SLOT as i32),
            store(0x87, 0),
            set(0, 0),
            instruction(0x95, 0, 0, 0),
        ],
        [load(0x71, 16), instruction(0x07, 1, 0, 1), store(0x17, 16), set(0, 0), instruction(0x95, 0, 0, 0)],
    );
    let behind = keep.len() as i16;
    let mut all = vec![
        copy(0x16),
        call(GET_SMP_PROCESSOR_ID),
        // *(u32 *)(r10 - 4) = r0; r1 = the array; r2 = r10 - 4
        instruction(0x63, 0x0a, -4, 0),
        instruction(0x18, 0x11, 0, array),
        instruction(0, 0, 0, 0),
        copy(0xa2),
        instruction(0x07, 2, 0, -4),
        call(MAP_LOOKUP_ELEM),
        // A processor without a ring: to the end of `lost`.
        instruction(0x15, 0, 6 + behind + 3, 0),
        copy(0x07),
        load(0x78, 0),
        load(0x71, 8),
        // r2 = r8 - r1, what is not read yet; if (r2 > data - SLOT) goto lost
        copy(0x82),
        instruction(0x1f, 0x12, 0, 0),
        instruction(0x25, 2, behind, data - SLOT as i32),
    ];
    all.extend(keep);
    all.extend(lost);
    all
}
