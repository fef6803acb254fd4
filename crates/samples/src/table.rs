//! The writer: enters stacks, modules and blocks. Every word is an atomic, so it works on a mapping that others read.
//!
//! Relaxed where nothing is said: each number stands for itself.

use crate::{
    BUILD_BYTES, FRAME_WORDS, FRAMES_AT, HEADER_WORDS, LIVE_AT, LIVE_WORDS, MAGIC, MODULE_SHIFT, MODULE_WORDS, MODULES,
    MODULES_AT, NO_STACK, PATH_BYTES, PROGRAM, STACK_WORDS, STACKS, STACKS_AT, VERSION, WINDOW, Word, identity, live,
    module, objects, stack, words,
};
use core::sync::atomic::{AtomicU64, Ordering};

/// An object whose code was found on a stack.
#[derive(Clone, Copy, Debug)]
pub struct Module<'a> {
    /// First address.
    pub start: u64,
    /// Address behind the last.
    pub end: u64,
    /// The load bias.
    pub bias: u64,
    /// The part of it that has the code of the frame, as it is mapped: first address, end address, file offset. Zeros
    /// if that is not known.
    pub code: [u64; 3],
    /// The build id; empty if there is none.
    pub build: &'a [u8],
    /// The path, as the dynamic linker has it; empty for the program.
    pub path: &'a [u8],
}

/// A file that is written.
#[derive(Clone, Copy, Debug)]
pub struct Table<'a> {
    words: &'a [AtomicU64],
    live_shift: u32,
}

impl<'a> Table<'a> {
    /// Sets up a file of zeroed words, of which there must be [`words`]`(live_shift)`.
    pub fn set_up(words: &'a [AtomicU64], values: &[(Word, u64)], program: &[u8]) -> Option<Self> {
        let shift = values.iter().find(|(word, _)| *word == Word::LiveShift)?.1;
        for (word, value) in values {
            words.get(*word as usize)?.store(*value, Ordering::Relaxed);
        }
        words.get(Word::Version as usize)?.store(VERSION, Ordering::Relaxed);
        let table = Self::sized(words, shift)?;
        let program = program.get(..PATH_BYTES).unwrap_or(program);
        table.word(PROGRAM).store(program.len() as u64, Ordering::Relaxed);
        table.bytes(PROGRAM + 1, program);
        // The stack of samples without one has no frames.
        table.word(STACKS_AT + stack::IDENTITY).store(1, Ordering::Relaxed);
        table.word(STACKS_AT + stack::PLACE).store(stack::READY, Ordering::Relaxed);
        // Release: a reader that sees the magic sees the rest.
        table.header(Word::Magic).store(MAGIC, Ordering::Release);
        Some(table)
    }

    /// A file that was set up.
    pub fn of(words: &'a [AtomicU64]) -> Option<Self> {
        Self::sized(words, words.get(Word::LiveShift as usize)?.load(Ordering::Relaxed))
    }

    fn sized(given: &'a [AtomicU64], shift: u64) -> Option<Self> {
        let live_shift = u32::try_from(shift).ok().filter(|&shift| (5..=32).contains(&shift))?;
        (given.len() >= words(live_shift)).then_some(Table { words: given, live_shift })
    }

    /// The word at a place, which lies in the file. (A spare word takes the place of a panic, whose text each start
    /// would relocate.)
    fn word(&self, at: usize) -> &'a AtomicU64 {
        static SPARE: AtomicU64 = AtomicU64::new(0);
        self.words.get(at).unwrap_or(&SPARE)
    }

    /// A word of the header.
    pub fn header(&self, word: Word) -> &'a AtomicU64 {
        self.word(word as usize)
    }

    /// Copies all but the live blocks into `to`, which must be zeroed and have [`words`]`(0)` words: then it is a file
    /// without live blocks, whose stacks have all counts.
    pub fn copy(&self, to: &mut [u64]) {
        let frames = (self.header(Word::Frames).load(Ordering::Relaxed) as usize).min(FRAME_WORDS);
        for (at, place) in to.iter_mut().enumerate().take(FRAMES_AT + frames) {
            // Acquire: what a word refers to is copied after the word.
            let word = self.word(at).load(Ordering::Acquire);
            // A word that is not written takes no memory.
            if word != 0 {
                *place = word;
            }
        }
        if let Some(shift) = to.get_mut(Word::LiveShift as usize) {
            *shift = 0;
        }
    }

    fn count(&self, word: Word) {
        self.header(word).fetch_add(1, Ordering::Relaxed);
    }

    /// Writes bytes from a word on.
    fn bytes(&self, at: usize, bytes: &[u8]) {
        for (i, part) in bytes.chunks(8).enumerate() {
            self.word(at + i).store(as_word(part), Ordering::Relaxed);
        }
    }

    /// Finds `identity` in a table of `len` places of `width` words from the word `at` on, or takes a place for it.
    /// Returns the number of the place, and whether it is new. The first place is never taken.
    fn place(&self, at: usize, len: usize, width: usize, identity: u64) -> Option<(usize, bool)> {
        for step in 0..WINDOW as u64 {
            let place = (identity >> 1).wrapping_add(step) as usize % (len - 1) + 1;
            let word = self.word(at + place * width);
            match word.load(Ordering::Relaxed) {
                0 => match word.compare_exchange(0, identity, Ordering::Relaxed, Ordering::Relaxed) {
                    Ok(_) => return Some((place, true)),
                    Err(other) if other == identity => return Some((place, false)),
                    Err(_) => {}
                },
                other if other == identity => return Some((place, false)),
                _ => {}
            }
        }
        None
    }

    /// The frame of a return address in `module`, which is entered where it is new. Without room it has no module.
    pub fn frame(&self, address: u64, from: &Module<'_>) -> u64 {
        let address = address & ((1 << MODULE_SHIFT) - 1);
        let build = from.build.get(..BUILD_BYTES).unwrap_or(from.build);
        let mut parts = build.chunks(8).map(as_word);
        let known = [from.start, from.end, from.bias, parts.next().unwrap_or(0), parts.next().unwrap_or(0)];
        // Without a build id the path tells objects apart.
        let seed = if build.is_empty() {
            from.path.iter().fold(0, |sum: u64, &b| sum.rotate_left(7) ^ u64::from(b))
        } else {
            0
        };
        let identity = identity(seed, &known);
        let Some((place, new)) = self.place(MODULES_AT, MODULES, MODULE_WORDS, identity) else { return address };
        if new {
            let path = from.path.get(..PATH_BYTES).unwrap_or(from.path);
            let at = MODULES_AT + place * MODULE_WORDS;
            for (word, value) in [
                (module::START, from.start),
                (module::END, from.end),
                (module::BIAS, from.bias),
                (module::CODE, from.code[0]),
                (module::CODE_END, from.code[1]),
                (module::CODE_OFFSET, from.code[2]),
                (module::LENGTHS, build.len() as u64 | (path.len() as u64) << 32),
            ] {
                self.word(at + word).store(value, Ordering::Relaxed);
            }
            self.bytes(at + module::BUILD, build);
            self.bytes(at + module::PATH, path);
            // Release: a reader that sees it sees the rest.
            self.word(at + module::READY).store(1, Ordering::Release);
        }
        address | (place as u64 + 1) << MODULE_SHIFT
    }

    /// The number of the stack with these frames, which is entered where it is new.
    pub fn stack(&self, frames: &[u64]) -> u32 {
        let found =
            if frames.is_empty() { None } else { self.place(STACKS_AT, STACKS, STACK_WORDS, identity(0, frames)) };
        let Some((place, new)) = found else {
            self.count(Word::LostStacks);
            return NO_STACK;
        };
        let frames_at = self.word(STACKS_AT + place * STACK_WORDS + stack::PLACE);
        if new {
            let used = self.header(Word::Frames).fetch_add(frames.len() as u64, Ordering::Relaxed) as usize;
            // Without room for its frames, the stack has its counts only.
            if used.checked_add(frames.len()).is_none_or(|end| end > FRAME_WORDS) {
                self.count(Word::LostStacks);
                frames_at.store(stack::READY, Ordering::Relaxed);
                return place as u32;
            }
            for (i, &frame) in frames.iter().enumerate() {
                self.word(FRAMES_AT + used + i).store(frame, Ordering::Relaxed);
            }
            let value = used as u64 | (frames.len() as u64) << stack::COUNT_SHIFT | stack::READY;
            // Release: a reader that sees it sees the frames.
            frames_at.store(value, Ordering::Release);
        } else if frames_at.load(Ordering::Relaxed) == stack::READY {
            self.count(Word::LostStacks);
        }
        place as u32
    }

    fn add(&self, stack: u32, [objects_at, bytes_at, samples_at]: [usize; 3], size: u64, weight: u64) {
        let at = STACKS_AT + stack as usize % STACKS * STACK_WORDS;
        self.word(at + objects_at).fetch_add(objects(size, weight), Ordering::Relaxed);
        self.word(at + bytes_at).fetch_add(weight, Ordering::Relaxed);
        self.word(at + samples_at).fetch_add(1, Ordering::Relaxed);
    }

    fn add_allocated(&self, stack: u32, size: u64, weight: u64) {
        self.add(stack, [stack::OBJECTS, stack::BYTES, stack::SAMPLES], size, weight);
    }

    fn add_freed(&self, stack: u32, size: u64, weight: u64) {
        self.add(stack, [stack::FREED_OBJECTS, stack::FREED_BYTES, stack::FREED_SAMPLES], size, weight);
    }

    /// The places where the block at `address` may be.
    fn window(&self, address: u64) -> impl Iterator<Item = usize> {
        let (start, mask) = (identity(0, &[address]) >> 1, (1 << self.live_shift) - 1);
        (0..WINDOW as u64).map(move |step| LIVE_AT + (start.wrapping_add(step) as usize & mask) * LIVE_WORDS)
    }

    /// Enters a sampled block of `size` bytes that stands for `weight` bytes. Its address must be aligned to 2, and not
    /// be that of a block that is entered already.
    pub fn allocated(&self, address: u64, size: u64, weight: u64, stack: u32, time: u64) {
        self.enter(address, size, weight, stack, time, 0);
    }

    /// The same, for a block that is kept because every block is.
    pub fn allocated_exact(&self, address: u64, size: u64, stack: u32, time: u64) {
        self.enter(address, size, size, stack, time, live::EXACT);
    }

    fn enter(&self, address: u64, size: u64, weight: u64, stack: u32, time: u64, exact: u64) {
        self.add_allocated(stack, size, weight);
        self.header(Word::Last).store(time, Ordering::Relaxed);
        let size = size & ((1 << live::STACK_SHIFT) - 1);
        for at in self.window(address) {
            let word = self.word(at + live::ADDRESS);
            // Acquire pairs with the Release of `freed`: the stores below come after the loads there.
            let taken = word.load(Ordering::Relaxed) == 0
                && word.compare_exchange(0, live::BUSY, Ordering::Acquire, Ordering::Relaxed).is_ok();
            if taken {
                let value = size | u64::from(stack) << live::STACK_SHIFT | exact;
                self.word(at + live::SIZE).store(value, Ordering::Relaxed);
                self.word(at + live::WEIGHT).store(weight, Ordering::Relaxed);
                self.word(at + live::TIME).store(time, Ordering::Relaxed);
                // Release: a reader that sees the address sees the rest.
                word.store(address, Ordering::Release);
                return;
            }
        }
        self.count(Word::LostLive);
        self.add_freed(stack, size, weight);
    }

    /// Removes the sampled block at `address`; false if it is not there. The block must be the caller's.
    pub fn freed(&self, address: u64) -> bool {
        self.window(address).any(|at| self.remove(at, address))
    }

    /// Removes the block at `address` from the place `at`; false if it is not there.
    fn remove(&self, at: usize, address: u64) -> bool {
        let word = self.word(at + live::ADDRESS);
        // Acquire pairs with the Release of `allocated`. The thread that makes it busy owns the entry.
        let taken = word.load(Ordering::Relaxed) == address
            && word.compare_exchange(address, live::BUSY, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if taken {
            let (size, stack) = live::size_and_stack(self.word(at + live::SIZE).load(Ordering::Relaxed));
            let weight = self.word(at + live::WEIGHT).load(Ordering::Relaxed);
            // Release pairs with the Acquire of `allocated`.
            word.store(0, Ordering::Release);
            self.add_freed(stack, size, weight);
        }
        taken
    }

    /// Removes all blocks that were entered by [`Table::allocated_exact`], and counts them as freed. To be called
    /// before samples are kept again after that has ended: their frees have not been noted since.
    pub fn forget_exact(&self) {
        for number in 0..1usize << self.live_shift {
            let at = LIVE_AT + number * LIVE_WORDS;
            // Acquire pairs with the Release of `allocated`.
            let address = self.word(at + live::ADDRESS).load(Ordering::Acquire);
            let is_entered = address != 0 && address != live::BUSY;
            if is_entered && self.word(at + live::SIZE).load(Ordering::Relaxed) & live::EXACT != 0 {
                self.remove(at, address);
            }
        }
    }

    /// The frames of the stack that allocated the block at `address`, if it is a sample and live.
    pub fn stack_of(&self, address: u64) -> Option<impl Iterator<Item = u64>> {
        // Acquire pairs with the Release of `allocated`.
        let at = self.window(address).find(|at| self.word(at + live::ADDRESS).load(Ordering::Acquire) == address)?;
        let (_, stack) = live::size_and_stack(self.word(at + live::SIZE).load(Ordering::Relaxed));
        let stack = stack as usize % STACKS;
        let place = self.word(STACKS_AT + stack * STACK_WORDS + stack::PLACE).load(Ordering::Acquire);
        let (first, count) = (place & u64::from(u32::MAX), (place & !stack::READY) >> stack::COUNT_SHIFT);
        let words = self.words;
        let frames = (first..first.saturating_add(count)).map(|frame| FRAMES_AT + frame as usize);
        Some(frames.map_while(move |at| Some(words.get(at)?.load(Ordering::Relaxed))))
    }

    /// Counts the free of a sample that is not in the file.
    pub fn stranger_freed(&self) {
        self.count(Word::Strangers);
    }
}

/// Up to eight bytes as a word; what is missing is 0.
fn as_word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    for (place, &byte) in word.iter_mut().zip(bytes) {
        *place = byte;
    }
    u64::from_ne_bytes(word)
}

const _: () = assert!(PROGRAM + 1 + PATH_BYTES / 8 <= HEADER_WORDS, "the program's path lies in the header");
