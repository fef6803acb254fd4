//! The cgroups that were found, shared by all threads without a lock.
//!
//! The record is a row of atomic words with a checksum. Writers store the words, readers copy them; two that meet may
//! mix words of two records, which the checksum shows, and then the reader looks for itself. So nobody ever waits: not
//! a thread, not a signal handler, not the child of a fork in the middle of a write.

use super::files::{Path, ROOM};
use super::groups::{Groups, Level, MAX_LEVELS};
use super::parse::Version;
use core::sync::atomic::{AtomicU64, Ordering};

/// Words of a record: six of the head, two for each level, the path.
const WORDS: usize = 6 + 2 * MAX_LEVELS + ROOM / 8;

const _: () = assert!(ROOM.is_multiple_of(8), "the path is stored in whole words");

/// What is known, and since when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    /// When limits were last looked for, by [`neap_core::Os::clock`].
    pub surveyed: u64,
    /// When the table of mounts was last read.
    pub located: u64,
    /// What was found.
    pub groups: Groups,
}

/// A place for one [`Known`], empty at first.
#[derive(Debug)]
pub(super) struct Saved {
    /// Checksum of `words`. It is never right for words that are all zero.
    sum: AtomicU64,
    words: [AtomicU64; WORDS],
}

impl Saved {
    /// Nothing.
    pub(super) const fn new() -> Saved {
        Saved { sum: AtomicU64::new(0), words: [const { AtomicU64::new(0) }; WORDS] }
    }

    /// Keeps `known`.
    pub(super) fn store(&self, known: &Known) {
        let mut sum = Sum::NEW;
        let mut words = self.words.iter();
        let mut put = |value: u64| {
            sum.add(value);
            if let Some(word) = words.next() {
                // Relaxed, here and in `load`: the checksum tells whether the words belong together.
                word.store(value, Ordering::Relaxed);
            }
        };
        let groups = &known.groups;
        let path = groups.path.as_bytes();
        put(known.surveyed);
        put(known.located);
        put(groups.line);
        put(match groups.version {
            None => 0,
            Some(Version::V1) => 1,
            Some(Version::V2) => 2,
        });
        put(path.len() as u64 | (groups.top as u64) << 32);
        put(groups.count as u64);
        for level in &groups.levels {
            put(level.len as u64);
            put(level.limit);
        }
        for piece in path.chunks(8) {
            let mut bytes = [0; 8];
            bytes.iter_mut().zip(piece).for_each(|(to, from)| *to = *from);
            put(u64::from_ne_bytes(bytes));
        }
        self.sum.store(sum.0, Ordering::Relaxed);
    }

    /// What is kept. `None` if there is nothing, or while it changes.
    pub(super) fn load(&self) -> Option<Known> {
        let want = self.sum.load(Ordering::Relaxed);
        let mut sum = Sum::NEW;
        let mut words = self.words.iter();
        let mut take = || {
            let value = words.next().map_or(0, |w| w.load(Ordering::Relaxed));
            sum.add(value);
            value
        };
        let mut groups = Groups::NONE;
        let (surveyed, located) = (take(), take());
        groups.line = take();
        groups.version = match take() {
            1 => Some(Version::V1),
            2 => Some(Version::V2),
            _ => None,
        };
        let lens = take();
        let len = (lens as u32 as usize).min(ROOM);
        groups.top = (lens >> 32) as usize;
        groups.count = take() as usize;
        for level in &mut groups.levels {
            *level = Level { len: take() as usize, limit: take() };
        }
        let mut path = Path::new();
        for at in (0..len).step_by(8) {
            path.extend(take().to_ne_bytes().into_iter().take(len - at));
        }
        groups.path = path;
        (sum.0 == want).then_some(Known { surveyed, located, groups })
    }
}

/// A checksum of words.
#[derive(Clone, Copy, Debug)]
struct Sum(u64);

impl Sum {
    const NEW: Sum = Sum(0x243f_6a88_85a3_08d3);

    fn add(&mut self, word: u64) {
        // Each step can be undone, so two rows that differ in one word never have one sum.
        let mixed = (self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 29);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    fn known(n: u64) -> Known {
        let mut groups = Groups { line: n, version: Some(Version::V2), top: 3, count: MAX_LEVELS, ..Groups::NONE };
        let len = (n % (ROOM as u64 + 1)) as usize;
        assert!(groups.path.extend(std::iter::repeat_n(n as u8, len)));
        groups.levels = std::array::from_fn(|i| Level { len: i, limit: n });
        Known { surveyed: n, located: n, groups }
    }

    fn check(k: &Known) {
        let want = known(k.surveyed);
        assert_eq!((k.located, k.groups.line, k.groups.top), (want.located, want.groups.line, want.groups.top));
        assert_eq!((k.groups.version, k.groups.count), (want.groups.version, want.groups.count));
        assert_eq!(k.groups.levels, want.groups.levels);
        assert_eq!(k.groups.path.as_bytes(), want.groups.path.as_bytes());
    }

    /// Catches a field that is lost, and an empty record that is taken for one.
    #[test]
    fn what_is_stored_is_loaded() {
        let saved = Saved::new();
        assert!(saved.load().is_none());
        for n in 0..=ROOM as u64 {
            saved.store(&known(n));
            check(&saved.load().unwrap());
        }
    }

    /// Catches a record that is taken although its words are of two writers.
    #[test]
    fn mixed_records_are_never_seen() {
        let saved = Saved::new();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writers: Vec<_> = [0, 7]
                .into_iter()
                .map(|from| {
                    scope.spawn({
                        let saved = &saved;
                        move || (0..20_000).for_each(|i| saved.store(&known(from + i * 11)))
                    })
                })
                .collect();
            let reader = scope.spawn(|| {
                while !done.load(Ordering::Acquire) {
                    saved.load().iter().for_each(check);
                }
            });
            writers.into_iter().for_each(|w| w.join().unwrap());
            done.store(true, Ordering::Release);
            reader.join().unwrap();
        });
    }
}
