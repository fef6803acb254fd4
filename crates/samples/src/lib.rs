//! Layout of the file in which a process under neap keeps its sampled blocks: which stacks allocated them, which of
//! them are live. With the writer, which works on a shared mapping, and the parser.
//!
//! The file is made of 64-bit words in the byte order of the machine:
//!
//! | part | words | holds |
//! |---|---|---|
//! | header | [`HEADER_WORDS`] | [`Word`]s, and the path of the program from [`PROGRAM`] on |
//! | modules | [`MODULES`] times [`MODULE_WORDS`] | objects whose code was on a stack: where, which build, which file |
//! | stacks | [`STACKS`] times [`STACK_WORDS`] | each stack once, with what was allocated and freed by it |
//! | frames | [`FRAME_WORDS`] | the return addresses of the stacks, innermost first |
//! | live | `1 << Word::LiveShift` times [`LIVE_WORDS`] | the sampled blocks that are live |
//!
//! **Equation.** For each stack, `allocated - freed` is what is live, in bytes and in objects, each sample counted by
//! its weight. The entry of a live block keeps its weight, so a free takes away what the allocation added.
//!
//! **Bounds.** All tables have fixed lengths, and searches examine [`WINDOW`] places. A stack that finds no room is
//! counted as stack [`NO_STACK`]; a block that finds no room is counted as allocated and freed at once. Both are
//! counted in the header, so totals stay right and nothing is dropped silently.
//!
//! **Concurrency.** Writers take places by one compare-exchange and then own them. None waits for another, so a signal
//! handler may interrupt a writer anywhere and write itself. Only the owner of a live block enters and removes it,
//! except [`Table::forget_exact`]. A reader sees a place as it was at some time, or, if the place is written meanwhile,
//! not at all.
//!
//! A frame is an address in the lower 48 bits; above is the number of its module plus 1, or 0 where no object is known.
//! So code that was unloaded differs from code that was loaded in its place.
//!
//! | file | holds |
//! |---|---|
//! | `lib.rs` | the layout |
//! | `table.rs` | the writer |
//! | `view.rs` | the parser |
//! | `pprof.rs` | profiles for pprof, from a file |
//! | `control.rs` | how another process asks for samples |
//!
//! Everything is pure, nothing allocates, and nothing panics, whatever the words are. May depend on nothing.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod control;
pub mod pprof;
mod table;
#[cfg(test)]
mod tests;
mod view;

pub use table::{Module, Table};
pub use view::{Live, Mapped, Path, Stack, Unreadable, View};

/// First word of the file: `neapsmp\0`.
pub const MAGIC: u64 = u64::from_le_bytes(*b"neapsmp\0");
/// Version of the layout; a reader refuses any other.
pub const VERSION: u64 = 2;

/// Words of the header: an OS page of 4 KiB.
pub const HEADER_WORDS: usize = 512;
/// Where the path of the program begins in the header: its length in bytes, then the bytes.
pub const PROGRAM: usize = 64;
/// Limit of modules.
pub const MODULES: usize = 512;
/// Words of a module.
pub const MODULE_WORDS: usize = 64;
/// Limit of stacks.
pub const STACKS: usize = 8192;
/// Words of a stack.
pub const STACK_WORDS: usize = 8;
/// Limit of the frames of all stacks.
pub const FRAME_WORDS: usize = 256 << 10;
/// Words of a live block.
pub const LIVE_WORDS: usize = 4;
/// Limit of the frames of one stack.
pub const FRAMES: usize = 64;
/// Binary logarithm of the limit of live samples where blocks are sampled: at 512 KiB, those of 32 GiB.
pub const LIVE_SHIFT: u32 = 16;
/// The same where every block is recorded.
pub const EXACT_SHIFT: u32 = 20;
/// Number of places that a search examines.
pub const WINDOW: usize = 32;
/// The stack of samples whose own stack found no room.
pub const NO_STACK: u32 = 0;
/// Objects are counted in parts of this size, because a sample stands for 1.6 objects, or 32768.5.
pub const PARTS: u64 = 1024;

/// Bit position of the module's number in a frame.
pub const MODULE_SHIFT: u32 = 48;

const _: () = assert!(MODULES + 1 < 1 << (64 - MODULE_SHIFT), "a module's number has a place above the address");
const _: () = assert!(STACKS <= 1 << 15, "a stack's number has 15 bits in the entry of a live block");

/// Words of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Word {
    /// [`MAGIC`], written last when the file is set up.
    Magic,
    /// [`VERSION`].
    Version,
    /// The process that writes the file, by its number in its own namespace; 0 if a filter forbids getpid.
    Process,
    /// Mean bytes between two samples when the file was made; 1: every block is recorded.
    Interval,
    /// When the file was made: CLOCK_MONOTONIC in nanoseconds.
    Started,
    /// The same by CLOCK_REALTIME.
    Date,
    /// Binary logarithm of the number of live entries.
    LiveShift,
    /// Words of frames that are used, or were requested.
    Frames,
    /// Samples whose stack found no room; they count as [`NO_STACK`].
    LostStacks,
    /// Samples that found no room among the live blocks; they count as freed.
    LostLive,
    /// Samples that were not recorded, because there was no file yet, or no memory for one.
    Lost,
    /// Frees of samples that are not in the file: those of a parent, or of an earlier profile.
    Strangers,
    /// When the last sample was recorded, in nanoseconds.
    Last,
}

impl Word {
    /// Number of words.
    pub const COUNT: usize = Word::Last as usize + 1;
}

const _: () = assert!(Word::COUNT <= PROGRAM, "the program's path lies behind the words");

/// Where the parts begin, in words.
pub(crate) const MODULES_AT: usize = HEADER_WORDS;
pub(crate) const STACKS_AT: usize = MODULES_AT + MODULES * MODULE_WORDS;
pub(crate) const FRAMES_AT: usize = STACKS_AT + STACKS * STACK_WORDS;
pub(crate) const LIVE_AT: usize = FRAMES_AT + FRAME_WORDS;

/// Words of a file with `1 << live_shift` entries for live blocks; `live_shift` must be at most 32.
pub const fn words(live_shift: u32) -> usize {
    LIVE_AT + (LIVE_WORDS << live_shift)
}

const _: () = assert!(
    words(LIVE_SHIFT) * 8 <= 5 << 20 && words(EXACT_SHIFT) * 8 <= 35 << 20,
    "neap.h, the crate neap and docs/options.md state these sizes"
);

/// Words of a module.
pub(crate) mod module {
    // First a number that stands for the object; 0: no module.

    /// 1 when the rest is there.
    pub const READY: usize = 1;
    /// First address.
    pub const START: usize = 2;
    /// Address behind the last.
    pub const END: usize = 3;
    /// The load bias.
    pub const BIAS: usize = 4;
    /// Bytes of the build id, and above them those of the path.
    pub const LENGTHS: usize = 5;
    /// The build id.
    pub const BUILD: usize = 6;
    /// First address of its code.
    pub const CODE: usize = 10;
    /// Address behind its code.
    pub const CODE_END: usize = 11;
    /// File offset of the code.
    pub const CODE_OFFSET: usize = 12;
    /// The path.
    pub const PATH: usize = 13;
}

/// Longest build id that is kept.
pub const BUILD_BYTES: usize = (module::CODE - module::BUILD) * 8;
/// Longest path that is kept.
pub const PATH_BYTES: usize = (MODULE_WORDS - module::PATH) * 8;

/// Words of a stack.
pub(crate) mod stack {
    /// A number that stands for the frames; 0: no stack.
    pub const IDENTITY: usize = 0;
    /// Where its frames are, their number, and [`READY`].
    pub const PLACE: usize = 1;
    /// Objects that were allocated, in parts.
    pub const OBJECTS: usize = 2;
    /// Bytes that were allocated.
    pub const BYTES: usize = 3;
    /// Objects that were freed, in parts.
    pub const FREED_OBJECTS: usize = 4;
    /// Bytes that were freed.
    pub const FREED_BYTES: usize = 5;
    /// Samples.
    pub const SAMPLES: usize = 6;
    /// Samples that were freed.
    pub const FREED_SAMPLES: usize = 7;

    /// In a word [`PLACE`]: the frames are written.
    pub const READY: u64 = 1 << 63;
    /// In a word [`PLACE`]: bit position of the number of frames.
    pub const COUNT_SHIFT: u32 = 32;
}

/// Words of a live block.
pub(crate) mod live {
    /// Its address; 0: no block; with [`BUSY`]: it is being entered.
    pub const ADDRESS: usize = 0;
    /// Bytes that were requested, above them the stack, and [`EXACT`].
    pub const SIZE: usize = 1;
    /// Bytes that it stands for.
    pub const WEIGHT: usize = 2;
    /// When it was allocated: CLOCK_MONOTONIC in nanoseconds.
    pub const TIME: usize = 3;

    /// Blocks are aligned to 16, so no address has this bit.
    pub const BUSY: u64 = 1;
    /// Bit position of the stack's number in a word [`SIZE`].
    pub const STACK_SHIFT: u32 = 48;
    /// In a word [`SIZE`]: the block was kept because every block was.
    pub const EXACT: u64 = 1 << 63;

    /// The bytes, and the stack, of a word [`SIZE`].
    pub const fn size_and_stack(word: u64) -> (u64, u32) {
        (word & ((1 << STACK_SHIFT) - 1), ((word & !EXACT) >> STACK_SHIFT) as u32)
    }
}

/// Objects, in [`PARTS`], that a sample of `size` bytes stands for, whose weight is `weight` bytes.
pub const fn objects(size: u64, weight: u64) -> u64 {
    let size = if size == 0 { 1 } else { size };
    // Rounded to the nearest; a weight has less than 50 bits.
    (weight.saturating_mul(PARTS).saturating_add(size / 2)) / size
}

/// A number that stands for some words, never 0.
pub(crate) fn identity(seed: u64, words: &[u64]) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut sum = seed ^ ODD;
    for word in words {
        sum = (sum.rotate_left(23) ^ word).wrapping_mul(ODD);
    }
    (sum ^ sum >> 29).wrapping_mul(ODD) | 1
}
