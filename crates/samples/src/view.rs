//! The parser: what a copy of a file holds. The file may have been written while it was copied.

use crate::{
    BUILD_BYTES, FRAME_WORDS, FRAMES, FRAMES_AT, LIVE_AT, LIVE_WORDS, MAGIC, MODULE_WORDS, MODULES, MODULES_AT,
    PATH_BYTES, PROGRAM, STACK_WORDS, STACKS, STACKS_AT, VERSION, Word, live, module, stack, words,
};
use core::fmt;

/// Why words are no file that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// Not the words of such a file, or one that is not set up yet.
    Foreign,
    /// A layout of another version.
    Version(u64),
    /// The end is missing.
    Short,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Foreign => f.write_str("not a file of samples"),
            Self::Version(version) => write!(f, "samples of version {version}"),
            Self::Short => f.write_str("a file of samples whose end is missing"),
        }
    }
}

impl core::error::Error for Unreadable {}

/// A copy of a file.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    words: &'a [u64],
    live: usize,
}

/// Bytes of a path or a build id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    bytes: [u8; PATH_BYTES],
    len: usize,
}

impl Path {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&self.bytes)
    }
}

/// An object whose code was on a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapped {
    /// Its number, as frames have it.
    pub number: u16,
    /// First address.
    pub start: u64,
    /// Address behind the last.
    pub end: u64,
    /// The load bias.
    pub bias: u64,
    /// Its code, as it is mapped: first address, end address, file offset. Zeros: not known.
    pub code: [u64; 3],
    /// The build id; empty if it has none.
    pub build: Path,
    /// The path, as the dynamic linker has it; empty for the program.
    pub path: Path,
}

/// A stack, and what was allocated and freed by it. Objects are in [`crate::PARTS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stack<'a> {
    /// Its number, as live blocks have it.
    pub number: u32,
    /// The frames, innermost first; none for samples whose stack found no room.
    pub frames: &'a [u64],
    /// Objects that were allocated.
    pub objects: u64,
    /// Bytes that were allocated.
    pub bytes: u64,
    /// Objects that were freed.
    pub freed_objects: u64,
    /// Bytes that were freed.
    pub freed_bytes: u64,
    /// Samples.
    pub samples: u64,
    /// Samples that were freed.
    pub freed_samples: u64,
}

/// A sampled block that is live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Live {
    /// Its address.
    pub address: u64,
    /// Bytes that were requested.
    pub size: u64,
    /// Bytes that it stands for.
    pub weight: u64,
    /// The number of its stack.
    pub stack: u32,
    /// When it was allocated: CLOCK_MONOTONIC in nanoseconds.
    pub time: u64,
}

impl<'a> View<'a> {
    /// The number of words that a file has by its header, of which at least [`Word::COUNT`] words must be given.
    pub fn length(header: &[u64]) -> Result<usize, Unreadable> {
        if header.first() != Some(&MAGIC) {
            return Err(Unreadable::Foreign);
        }
        match header.get(Word::Version as usize) {
            Some(&VERSION) => {}
            version => return Err(version.map_or(Unreadable::Short, |&version| Unreadable::Version(version))),
        }
        let shift = header.get(Word::LiveShift as usize).and_then(|&shift| u32::try_from(shift).ok());
        shift.filter(|&shift| shift <= 32).map(words).ok_or(Unreadable::Foreign)
    }

    /// The file in these words.
    pub fn of(words: &'a [u64]) -> Result<Self, Unreadable> {
        let length = Self::length(words)?;
        let words = words.get(..length).ok_or(Unreadable::Short)?;
        Ok(View { words, live: (length - LIVE_AT) / LIVE_WORDS })
    }

    /// A word of the header.
    pub fn header(&self, word: Word) -> u64 {
        self.words[word as usize]
    }

    /// The path of the program.
    pub fn program(&self) -> Path {
        self.path(PROGRAM + 1, self.words[PROGRAM] as usize)
    }

    fn path(&self, at: usize, len: usize) -> Path {
        let mut bytes = [0; PATH_BYTES];
        for (part, word) in bytes.chunks_mut(8).zip(&self.words[at..]) {
            part.copy_from_slice(&word.to_ne_bytes()[..part.len()]);
        }
        Path { bytes, len: len.min(PATH_BYTES) }
    }

    /// The modules.
    pub fn modules(&self) -> impl Iterator<Item = Mapped> + 'a {
        let view = *self;
        (1..MODULES).filter_map(move |number| {
            let at = MODULES_AT + number * MODULE_WORDS;
            let words = &view.words[at..at + MODULE_WORDS];
            let lengths = words[module::LENGTHS];
            (words[module::READY] == 1).then(|| Mapped {
                number: number as u16,
                start: words[module::START],
                end: words[module::END],
                bias: words[module::BIAS],
                code: [words[module::CODE], words[module::CODE_END], words[module::CODE_OFFSET]],
                build: view.path(at + module::BUILD, (lengths as u32 as usize).min(BUILD_BYTES)),
                path: view.path(at + module::PATH, (lengths >> 32) as usize),
            })
        })
    }

    /// The stacks by which something was allocated.
    pub fn stacks(&self) -> impl Iterator<Item = Stack<'a>> + 'a {
        let view = *self;
        (0..STACKS).filter_map(move |number| {
            let at = STACKS_AT + number * STACK_WORDS;
            let words = &view.words[at..at + STACK_WORDS];
            (words[stack::SAMPLES] != 0).then(|| Stack {
                number: number as u32,
                frames: view.frames(words[stack::PLACE]),
                objects: words[stack::OBJECTS],
                bytes: words[stack::BYTES],
                freed_objects: words[stack::FREED_OBJECTS],
                freed_bytes: words[stack::FREED_BYTES],
                samples: words[stack::SAMPLES],
                freed_samples: words[stack::FREED_SAMPLES],
            })
        })
    }

    fn frames(&self, place: u64) -> &'a [u64] {
        let first = place as u32 as usize;
        let count = ((place & !stack::READY) >> stack::COUNT_SHIFT) as usize;
        let all: &'a [u64] = &self.words[FRAMES_AT..FRAMES_AT + FRAME_WORDS];
        let known = place & stack::READY != 0 && count <= FRAMES;
        all.get(first..).and_then(|rest| rest.get(..count)).filter(|_| known).unwrap_or(&[])
    }

    /// The sampled blocks that are live.
    pub fn live(&self) -> impl Iterator<Item = Live> + 'a {
        let view = *self;
        (0..self.live).filter_map(move |number| {
            let at = LIVE_AT + number * LIVE_WORDS;
            let words = &view.words[at..at + LIVE_WORDS];
            let address = words[live::ADDRESS];
            let (size, stack) = live::size_and_stack(words[live::SIZE]);
            (address & !live::BUSY != 0 && address & live::BUSY == 0).then(|| Live {
                address,
                size,
                weight: words[live::WEIGHT],
                stack,
                time: words[live::TIME],
            })
        })
    }
}
