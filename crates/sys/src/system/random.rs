//! Random numbers that an outsider cannot guess, and that reveal nothing else: SipHash-2-4 of a counter, with a key
//! from the kernel.
//!
//! The key comes from getrandom(2), which every program on a current glibc calls at its start (glibc's malloc does).
//! Where that is refused or forbidden, the key is a SipHash of the time and of addresses, whose own key is the sixteen
//! bytes of AT_RANDOM. The C library makes its stack canary and pointer guard of those bytes, so they must stay secret.
//! They do: the hash cannot be inverted without its key.
//!
//! Each process makes its own key, even the child of a fork. A child that was made without the C library's fork goes on
//! with its parent's numbers, which only spread blocks and samples.

use crate::arch;
use crate::system::filter::{self, Asking};
use crate::system::{call, clock};
use core::sync::atomic::{AtomicU64, Ordering};

/// Words of a key.
const WORDS: usize = 2;
const GRND_NONBLOCK: usize = 1;

/// The generator of the process.
pub static RANDOM: Random = Random::new();

/// A generator.
#[derive(Debug)]
pub struct Random {
    /// 0: the word is not made yet.
    key: [AtomicU64; WORDS],
    count: AtomicU64,
}

impl Random {
    const fn new() -> Self {
        Random { key: [const { AtomicU64::new(0) }; WORDS], count: AtomicU64::new(0) }
    }

    /// The next number; no two threads get the same one. Never waits.
    pub fn next(&self) -> u64 {
        // Relaxed: it only matters that each value is taken once.
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        siphash(self.key(), &[count])
    }

    /// To be called in the child of a fork, which has one thread: its next number comes from a key of its own.
    pub fn forked(&self) {
        self.key.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }

    fn key(&self) -> [u64; WORDS] {
        // Relaxed, here and below: each word stands for itself, and is stored once.
        let key = [self.key[0].load(Ordering::Relaxed), self.key[1].load(Ordering::Relaxed)];
        if key.contains(&0) { self.make_key() } else { key }
    }

    /// Where several threads do this at once, one of them sets each word, and all use the same key.
    #[cold]
    fn make_key(&self) -> [u64; WORDS] {
        let mut new = seed();
        for (word, new) in self.key.iter().zip(&mut new) {
            *new = (*new).max(1);
            if let Err(first) = word.compare_exchange(0, *new, Ordering::Relaxed, Ordering::Relaxed) {
                *new = first;
            }
        }
        new
    }
}

/// A fresh key.
fn seed() -> [u64; WORDS] {
    let _asking = Asking::begin();
    let mut bytes = [0u64; WORDS];
    if !filter::is_forbidden() {
        let arguments = [(&raw mut bytes).expose_provenance(), size_of_val(&bytes), GRND_NONBLOCK, 0, 0, 0];
        // SAFETY: the kernel writes to `bytes`.
        let got = unsafe { arch::syscall(libc::SYS_getrandom as usize, arguments) };
        if got == size_of_val(&bytes).cast_signed() {
            return bytes;
        }
    }
    derived()
}

/// A key for systems that give none.
fn derived() -> [u64; WORDS] {
    let now = clock::read(libc::CLOCK_MONOTONIC).unwrap_or_default();
    let here = (&raw const now).addr() as u64;
    let time = now.as_secs().rotate_left(32) ^ u64::from(now.subsec_nanos());
    // SAFETY: getauxval only reads; AT_RANDOM points to sixteen bytes.
    let key = unsafe {
        let bytes = core::ptr::with_exposed_provenance::<[u64; WORDS]>(call::auxiliary(libc::AT_RANDOM));
        if bytes.is_null() { [here, time] } else { bytes.read_unaligned() }
    };
    [siphash(key, &[time, here, 0]), siphash(key, &[time, here, 1])]
}

/// SipHash-2-4 (Aumasson and Bernstein, 2012) of whole words.
fn siphash(key: [u64; 2], message: &[u64]) -> u64 {
    let mut v = [
        key[0] ^ 0x736F_6D65_7073_6575,
        key[1] ^ 0x646F_7261_6E64_6F6D,
        key[0] ^ 0x6C79_6765_6E65_7261,
        key[1] ^ 0x7465_6462_7974_6573,
    ];
    let length = (message.len() as u64 * 8) << 56;
    for &word in message.iter().chain(core::iter::once(&length)) {
        v[3] ^= word;
        (0..2).for_each(|_| round(&mut v));
        v[0] ^= word;
    }
    v[2] ^= 0xFF;
    (0..4).for_each(|_| round(&mut v));
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

fn round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[2] = v[2].rotate_left(32);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Catches a hash that is not SipHash-2-4: the vectors of its authors (key 0 to 15, message 0, 1, 2, ...).
    #[test]
    fn hashes_as_published() {
        let key = [0x0706_0504_0302_0100, 0x0F0E_0D0C_0B0A_0908];
        assert_eq!(siphash(key, &[]), 0x726F_DB47_DD0E_0E31);
        assert_eq!(siphash(key, &[0x0706_0504_0302_0100]), 0x93F5_F579_9A93_2462);
    }

    /// Catches a number that two threads get, also while the key is made, and a child that repeats its parent's.
    #[test]
    fn no_number_comes_twice() {
        let random = Random::new();
        let numbers = || (0..1000).map(|_| random.next()).collect::<std::vec::Vec<_>>();
        let mut seen = HashSet::new();
        for _ in 0..20 {
            let all: std::vec::Vec<_> = std::thread::scope(|s| {
                let threads: std::vec::Vec<_> = (0..4).map(|_| s.spawn(numbers)).collect();
                threads.into_iter().flat_map(|t| t.join().unwrap()).collect()
            });
            assert!(all.into_iter().all(|n| seen.insert(n)));
            random.forked();
            random.count.store(0, Ordering::Relaxed);
        }
    }

    /// Catches a fallback that is the same each time, or that reveals the C library's secret bytes.
    #[test]
    fn derives_a_key() {
        let (a, b) = (derived(), derived());
        assert_ne!(a, b);
        // SAFETY: AT_RANDOM points to sixteen bytes.
        let secret = unsafe {
            core::ptr::with_exposed_provenance::<[u64; 2]>(call::auxiliary(libc::AT_RANDOM)).read_unaligned()
        };
        assert!(a.iter().chain(&b).all(|word| !secret.contains(word)));
    }
}
