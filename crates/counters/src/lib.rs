//! Layout of the counters page that a process under neap shares with its observers.
//!
//! When the option `counters` names a directory, `libneap.so` creates one file in it for each process image
//! (`PID.N`, N from 0, the first name that is free), of [`FILE_BYTES`] bytes, and maps it shared. The numbers
//! are live: they survive `_exit`, signals and SIGKILL. A forked child makes a file of its own, which counts
//! from zero except for `blocks_inherited` and `bytes_inherited`.
//!
//! All values are in the byte order of the machine. Readers check [`MAGIC`] and [`VERSION`] first.
#![no_std]

use core::sync::atomic::{AtomicU32, AtomicU64};

/// First eight bytes of the page: `neapcnt\0`.
pub const MAGIC: u64 = u64::from_le_bytes(*b"neapcnt\0");
/// Version of the layout; a reader refuses any other.
pub const VERSION: u32 = 1;
/// Size of a counters file in bytes.
pub const FILE_BYTES: usize = 4096;

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
    /// `madvise` and `process_madvise`
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

/// The counters page. Invariant: `blocks_allocated + blocks_inherited - blocks_freed` blocks are live.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Counters {
    /// [`MAGIC`], written last when the page is set up.
    pub magic: AtomicU64,
    /// [`VERSION`].
    pub version: AtomicU32,
    /// The process that writes the page.
    pub pid: AtomicU32,
    /// Blocks handed out since the page was set up.
    pub blocks_allocated: AtomicU64,
    /// Bytes handed out (usable sizes) since the page was set up.
    pub bytes_allocated: AtomicU64,
    /// Blocks freed since the page was set up.
    pub blocks_freed: AtomicU64,
    /// Bytes freed (usable sizes) since the page was set up.
    pub bytes_freed: AtomicU64,
    /// Live blocks taken over from the parent at fork, or allocated before the page was set up.
    pub blocks_inherited: AtomicU64,
    /// Bytes of those blocks.
    pub bytes_inherited: AtomicU64,
    /// System calls made by the allocator, by [`Syscall`].
    pub syscalls: [AtomicU64; Syscall::ALL.len()],
}

// The page must hold the whole layout: enlarge FILE_BYTES (and raise VERSION) when this fails.
const _: () = assert!(size_of::<Counters>() <= FILE_BYTES);
