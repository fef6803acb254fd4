//! Ranges of memory in pages of a chosen size: a program allocates them, advises and prefaults them (or any other range
//! that it has), and asks the kernel what they got.
//!
//! | question | module |
//! |---|---|
//! | Which system calls and files? | [`kernel`] |
//! | Why was it not possible? | [`error`] |
//! | What do settings allow? | [`settings`] |
//! | Which mappings has the process? | [`maps`] |
//! | How do OS pages become resident? | [`populate`] |
//! | How, in steps and by several threads? | [`prefault`] |
//! | How is the kernel advised? | [`advice`] |
//! | Which pages does a range have? | [`resident`] |
//! | Where is hugetlbfs mounted? | [`mounts`] |
//! | Which of its files do processes share? | [`named`] |
//! | What are segments in huge pages? | [`segment`] |
//! | How is a range allocated and freed? | [`range`] |
//!
//! The allocator has no part in this: a range is a separate mapping, not a block of malloc. So nothing here holds a
//! lock of neap or allocates, and the threads of a prefault are ordinary threads. `neap` has the Rust interface,
//! `neap-surface` the C interface. May depend on `neap-sys` (system calls that leave errno alone, and reading of the
//! kernel's files), `rustix` and the C library (threads).
#![cfg_attr(not(test), no_std)]

pub mod advice;
pub mod error;
pub mod kernel;
pub mod maps;
pub mod mounts;
pub mod named;
pub mod populate;
pub mod prefault;
pub mod range;
pub mod resident;
pub mod segment;
pub mod settings;
