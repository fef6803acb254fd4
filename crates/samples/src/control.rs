//! How another process requests that a process under neap samples its blocks, and how that one answers.
//!
//! The control block is in the memory of each process under neap. An ELF note of the object that contains neap says
//! where ([`NOTE_NAME`]). A process that has the rights to write there (the same user, or root: those of a debugger,
//! which the kernel checks) writes a request through `/proc/PID/mem`: first [`Control::interval`] and
//! [`Control::lease`], then [`Control::request`], then one byte other than 0 at [`Control::knock`]. The process is
//! neither stopped nor interrupted: at the end of its next slow path, or of a tick of its helper thread, it sees the
//! byte, does what is requested, and stores the number of the request in [`Control::answer`]. A later request replaces
//! an earlier one.

use core::sync::atomic::AtomicU64;

/// First word of a control block: `neapctl\0`.
pub const CONTROL_MAGIC: u64 = u64::from_le_bytes(*b"neapctl\0");
/// Version of the block and of the file of samples; a requester refuses any other.
pub const CONTROL_VERSION: u64 = 2;
/// The name of the note.
pub const NOTE_NAME: &[u8] = b"neap";
/// The type of the note. Its value is 8 bytes: how far the control block is from the value's first byte.
pub const NOTE_TYPE: u32 = 1;

/// How to read the heap of the process without its help: a number that stands for its structures, and how far from the
/// control block's first byte they are.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeapPlaces {
    /// The structures; a reader that knows others reads nothing.
    pub layout: u64,
    /// The arenas.
    pub arenas: u64,
    /// The address of the newest heap.
    pub heaps: u64,
    /// The huge blocks.
    pub huge: u64,
}

/// A control block.
#[repr(C)]
#[derive(Debug)]
pub struct Control {
    /// [`CONTROL_MAGIC`].
    pub magic: AtomicU64,
    /// [`CONTROL_VERSION`].
    pub version: AtomicU64,
    /// How far from the block's first byte the byte is that makes the process look at the request.
    pub knock: AtomicU64,
    /// The number of the request: above the last one, so that a requester whose request was replaced sees a later
    /// answer.
    pub request: AtomicU64,
    /// Requested: mean bytes between two samples; 1: every block; 0: no samples.
    pub interval: AtomicU64,
    /// Requested: milliseconds after which sampling ends unless a request renews it; 0: it does not end. The process
    /// stores 0 if the program itself has chosen to keep samples; then requests change nothing.
    pub lease: AtomicU64,
    /// The number of the last request that was carried out.
    pub answer: AtomicU64,
    /// Mean bytes between two samples now; 0: no samples are taken.
    pub state: AtomicU64,
    /// The process that answered, by its number in its own namespace; 0 if a filter forbids getpid. The child of a fork
    /// has a copy of its parent's block.
    pub process: AtomicU64,
    /// The address of the file of samples; 0: there is none yet.
    pub file: AtomicU64,
    /// How to read the heap.
    pub heap: HeapPlaces,
}

impl Control {
    /// A block without a request, whose byte is `knock` bytes from its start.
    pub const fn new(knock: usize, heap: HeapPlaces) -> Self {
        Control {
            magic: AtomicU64::new(CONTROL_MAGIC),
            version: AtomicU64::new(CONTROL_VERSION),
            knock: AtomicU64::new(knock as u64),
            request: AtomicU64::new(0),
            interval: AtomicU64::new(0),
            lease: AtomicU64::new(0),
            answer: AtomicU64::new(0),
            state: AtomicU64::new(0),
            process: AtomicU64::new(0),
            file: AtomicU64::new(0),
            heap,
        }
    }
}
