//! Layout of the counters page that a process under neap shares with its observers, and its parser.
//!
//! There are two kinds of pages, of one layout:
//! - **Gauges.** Every process that ever uses more than some 8 MiB has a page of its own, which shows how much memory
//!   is where ([`gauges`]). It is a shared mapping named `/memfd:neap-counters` in `/proc/PID/maps` ([`maps`] finds
//!   it), or one without a name where the system refuses that. The page of a forked child is another one.
//! - **Exact counts.** When the option `counters` names a directory, `libneap.so` creates one file in it for each
//!   process image (`PID.N`, N from 0, the first name that is free), of [`FILE_BYTES`] bytes, and maps it shared. Every
//!   call is counted. A forked child makes a file of its own, which counts from zero except for `blocks_inherited` and
//!   `bytes_inherited`. The gauges are in this page then.
//!
//! The numbers are live: files survive `_exit`, signals and SIGKILL. All values are in the byte order of the machine.
//!
//! A reader checks [`MAGIC`] and [`is_readable`] first. Minor versions only add fields after [`Counters::size`] bytes,
//! so a reader uses the fields that it knows. docs/counters.md explains each field.
#![no_std]

#[cfg(test)]
extern crate std;

pub mod gauges;
pub mod maps;
mod snapshot;

pub use gauges::{Gauges, Unit};
pub use snapshot::{Snapshot, Unreadable};

use core::sync::atomic::{AtomicU32, AtomicU64};

/// First eight bytes of the page: `neapcnt\0`.
pub const MAGIC: u64 = u64::from_le_bytes(*b"neapcnt\0");
/// A reader refuses any other: fields have changed.
pub const MAJOR: u32 = 2;
/// Fields were added.
pub const MINOR: u32 = 5;
/// Version of the layout.
pub const VERSION: u32 = MAJOR << 16 | MINOR;
/// Size of a counters page in bytes; what lies behind the layout is zero.
pub const FILE_BYTES: usize = 4096;
/// Name of the memory file of a page.
pub const NAME: &core::ffi::CStr = c"neap-counters";

/// Whether this reader understands pages of `version`.
pub const fn is_readable(version: u32) -> bool {
    version >> 16 == MAJOR
}

/// System calls that the allocator makes, by kind; the index into [`Counters::syscalls`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Syscall {
    /// `mmap`
    Mmap,
    /// `munmap`
    Munmap,
    /// `mremap`
    Mremap,
    /// `mprotect`
    Mprotect,
    /// `madvise`
    Madvise,
    /// `futex`
    Futex,
    /// everything else
    Other,
}

impl Syscall {
    /// Every kind, in index order.
    pub const ALL: [Syscall; 7] = [
        Syscall::Mmap,
        Syscall::Munmap,
        Syscall::Mremap,
        Syscall::Mprotect,
        Syscall::Madvise,
        Syscall::Futex,
        Syscall::Other,
    ];

    /// The kernel's name of the call, or `other`.
    pub const fn name(self) -> &'static str {
        match self {
            Syscall::Mmap => "mmap",
            Syscall::Munmap => "munmap",
            Syscall::Mremap => "mremap",
            Syscall::Mprotect => "mprotect",
            Syscall::Madvise => "madvise",
            Syscall::Futex => "futex",
            Syscall::Other => "other",
        }
    }
}

/// The counters page. Invariant: `blocks_allocated + blocks_inherited - blocks_freed` blocks are live, where calls are
/// counted.
#[repr(C)]
#[derive(Debug)]
pub struct Counters {
    /// [`MAGIC`], written last when the page is set up.
    pub magic: AtomicU64,
    /// [`VERSION`].
    pub version: AtomicU32,
    /// The process that writes the page, by its number in its own namespace; 0 if a filter forbids getpid.
    pub pid: AtomicU32,
    /// Bytes of the layout that the writer knows.
    pub size: AtomicU32,
    /// 1 if calls are counted, so that the fields below mean something; else 0.
    pub exact: AtomicU32,
    /// Blocks handed out since the page was set up; in a process that was not forked also those that it had by then.
    pub blocks_allocated: AtomicU64,
    /// Bytes of these (usable sizes).
    pub bytes_allocated: AtomicU64,
    /// Blocks freed since the page was set up.
    pub blocks_freed: AtomicU64,
    /// Bytes freed (usable sizes) since the page was set up.
    pub bytes_freed: AtomicU64,
    /// Live blocks taken over from the parent at a fork.
    pub blocks_inherited: AtomicU64,
    /// Bytes of those blocks.
    pub bytes_inherited: AtomicU64,
    /// System calls made by the allocator, by [`Syscall`].
    pub syscalls: [AtomicU64; Syscall::ALL.len()],
    /// Twice the number of updates of the gauges; odd during one.
    pub sequence: AtomicU64,
    /// The gauges, in the order of [`Gauges::TABLE`].
    pub gauges: [AtomicU64; Gauges::COUNT],
}

impl Counters {
    /// An empty page.
    pub const fn new() -> Self {
        Counters {
            magic: AtomicU64::new(0),
            version: AtomicU32::new(0),
            pid: AtomicU32::new(0),
            size: AtomicU32::new(0),
            exact: AtomicU32::new(0),
            blocks_allocated: AtomicU64::new(0),
            bytes_allocated: AtomicU64::new(0),
            blocks_freed: AtomicU64::new(0),
            bytes_freed: AtomicU64::new(0),
            blocks_inherited: AtomicU64::new(0),
            bytes_inherited: AtomicU64::new(0),
            syscalls: [const { AtomicU64::new(0) }; Syscall::ALL.len()],
            sequence: AtomicU64::new(0),
            gauges: [const { AtomicU64::new(0) }; Gauges::COUNT],
        }
    }
}

impl Default for Counters {
    fn default() -> Self {
        Self::new()
    }
}

// The page must hold the whole layout: enlarge FILE_BYTES (and raise MAJOR) when this fails.
const _: () = assert!(size_of::<Counters>() <= FILE_BYTES);
