//! The configuration of an event: `struct perf_event_attr`.

/// The size of `struct perf_event_attr` that is written here: `PERF_ATTR_SIZE_VER7` (Linux 5.13). An older kernel
/// accepts it too if the fields that it does not know are zero.
pub const ATTR_SIZE: usize = 128;

/// `PERF_TYPE_SOFTWARE`.
const TYPE_SOFTWARE: u32 = 1;

/// `PERF_FORMAT_LOST`.
const FORMAT_LOST: u64 = 1 << 4;

/// `CLOCK_MONOTONIC`.
const CLOCK_MONOTONIC: i32 = 1;

/// A counter of the kernel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    /// `PERF_COUNT_SW_PAGE_FAULTS`: fires when a fault begins.
    Faults,
    /// `PERF_COUNT_SW_PAGE_FAULTS_MIN`: fires when a fault ends that read nothing from disk.
    MinorFaults,
    /// `PERF_COUNT_SW_PAGE_FAULTS_MAJ`: fires when a fault ends that did.
    MajorFaults,
    /// `PERF_COUNT_SW_TASK_CLOCK`: fires each [`Event::period`] nanoseconds that a thread runs.
    Clock,
    /// `PERF_COUNT_SW_DUMMY`: never fires; carries the records of processes and mappings.
    Dummy,
}

impl Counter {
    const fn config(self) -> u64 {
        match self {
            Self::Clock => 1,
            Self::Faults => 2,
            Self::MinorFaults => 5,
            Self::MajorFaults => 6,
            Self::Dummy => 9,
        }
    }
}

/// Fields of a sample: `enum perf_event_sample_format`.
pub mod sample {
    /// The instruction.
    pub const IP: u64 = 1 << 0;
    /// Process and thread.
    pub const TID: u64 = 1 << 1;
    /// The kernel's clock.
    pub const TIME: u64 = 1 << 2;
    /// The address that was accessed.
    pub const ADDR: u64 = 1 << 3;
    /// The callers.
    pub const CALLCHAIN: u64 = 1 << 5;
    /// The registers of user mode.
    pub const REGS_USER: u64 = 1 << 12;
    /// A part of the stack.
    pub const STACK_USER: u64 = 1 << 13;
    /// The event's number, in front.
    pub const IDENTIFIER: u64 = 1 << 16;
    /// The physical address of the data (needs privileges).
    pub const PHYS_ADDR: u64 = 1 << 19;
    /// The size of the page that is mapped at the address, 0 if there is none (5.11).
    pub const DATA_PAGE_SIZE: u64 = 1 << 22;
    /// All fields that the decoder knows.
    pub const KNOWN: u64 =
        IP | TID | TIME | ADDR | CALLCHAIN | REGS_USER | STACK_USER | IDENTIFIER | PHYS_ADDR | DATA_PAGE_SIZE;
}

/// Bits of the attribute's flag word, in the order of the kernel's bit fields.
mod flag {
    pub const DISABLED: u64 = 1 << 0;
    pub const INHERIT: u64 = 1 << 1;
    pub const EXCLUDE_KERNEL: u64 = 1 << 5;
    pub const EXCLUDE_HV: u64 = 1 << 6;
    pub const MMAP: u64 = 1 << 8;
    pub const COMM: u64 = 1 << 9;
    pub const ENABLE_ON_EXEC: u64 = 1 << 12;
    pub const TASK: u64 = 1 << 13;
    pub const WATERMARK: u64 = 1 << 14;
    pub const MMAP_DATA: u64 = 1 << 17;
    pub const SAMPLE_ID_ALL: u64 = 1 << 18;
    pub const EXCLUDE_CALLCHAIN_KERNEL: u64 = 1 << 21;
    pub const EXCLUDE_CALLCHAIN_USER: u64 = 1 << 22;
    pub const MMAP2: u64 = 1 << 23;
    pub const COMM_EXEC: u64 = 1 << 24;
    pub const USE_CLOCKID: u64 = 1 << 25;
}

/// One event: what it counts, and what each sample contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// What it counts.
    pub counter: Counter,
    /// Number of events per sample.
    pub period: u64,
    /// Fields of its samples, from [`sample`].
    pub fields: u64,
    /// Whether it leaves out faults in kernel mode.
    pub exclude_kernel: bool,
    /// Whether it begins when the process executes a program, not on request.
    pub enable_on_exec: bool,
    /// Whether it carries the records of processes, threads, names and mappings.
    pub bookkeeping: bool,
    /// Whether its times are from CLOCK_MONOTONIC, not from the kernel's clock for perf events.
    pub monotonic: bool,
    /// Whether reading it returns how many of its samples were lost (`PERF_FORMAT_LOST`, 6.0).
    pub tells_lost: bool,
    /// Bytes in the ring at which the reader is woken.
    pub watermark: u32,
    /// Registers in samples with [`sample::REGS_USER`], one bit each.
    pub registers: u64,
    /// Bytes of the stack in samples with [`sample::STACK_USER`].
    pub stack_bytes: u32,
    /// Whether [`sample::CALLCHAIN`] has only the kernel's part of the callers, not the program's.
    pub kernel_callers: bool,
}

impl Event {
    /// The attribute for `perf_event_open`.
    pub fn to_bytes(&self) -> [u8; ATTR_SIZE] {
        let mut flags = flag::DISABLED | flag::INHERIT | flag::EXCLUDE_HV | flag::WATERMARK | flag::SAMPLE_ID_ALL;
        flags |= if self.kernel_callers { flag::EXCLUDE_CALLCHAIN_USER } else { flag::EXCLUDE_CALLCHAIN_KERNEL };
        for (wanted, bits) in [
            (self.exclude_kernel, flag::EXCLUDE_KERNEL),
            (self.monotonic, flag::USE_CLOCKID),
            (self.enable_on_exec, flag::ENABLE_ON_EXEC),
            (self.bookkeeping, flag::MMAP | flag::MMAP2 | flag::MMAP_DATA | flag::COMM | flag::COMM_EXEC | flag::TASK),
        ] {
            if wanted {
                flags |= bits;
            }
        }
        let mut attr = [0; ATTR_SIZE];
        let mut put = |offset: usize, value: &[u8]| attr[offset..offset + value.len()].copy_from_slice(value);
        put(0, &TYPE_SOFTWARE.to_ne_bytes());
        put(4, &(ATTR_SIZE as u32).to_ne_bytes());
        put(8, &self.counter.config().to_ne_bytes());
        put(16, &self.period.to_ne_bytes());
        put(24, &self.fields.to_ne_bytes());
        put(32, &if self.tells_lost { FORMAT_LOST } else { 0 }.to_ne_bytes());
        put(40, &flags.to_ne_bytes());
        put(48, &self.watermark.to_ne_bytes());
        put(80, &self.registers.to_ne_bytes());
        put(88, &self.stack_bytes.to_ne_bytes());
        put(92, &if self.monotonic { CLOCK_MONOTONIC } else { 0 }.to_ne_bytes());
        attr
    }
}
