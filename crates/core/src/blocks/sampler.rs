//! Sampling: chooses blocks that represent the others, and computes what each represents.
//!
//! Samples are a Poisson process over the bytes that a thread requests: each byte starts a sample with the same
//! probability, one in `Blocks::sample_interval`, whatever came before. A block of `s` bytes is a sample with the
//! probability `p = 1 - exp(-s / interval)`, so it represents `1 / p` blocks like it, that is `s / p` bytes
//! ([`weight`]). At an interval of 1 each block is a sample and represents itself.
//!
//! A sampled block is a large one, whatever its size. It has chunks of its own, so free takes its slow path without a
//! check, and its record has the mark (`marks.rs`). Each live sample costs an OS page.

use crate::system::random;
use core::cell::Cell;

/// When the next sample is due in one heap. All bytes zero: a sampler that has not started.
///
/// It counts bytes while the heap's allocations are sampled and not watched otherwise ([`Watch::Samples`]), so that the
/// usual block costs a few instructions. Otherwise each block is chosen by chance. It may begin to count, and stop, at
/// any time, because a Poisson process has no memory. A heap follows a new interval at its next call that its caches do
/// not serve ([`Sampler::follow`]).
#[derive(Debug)]
pub(crate) struct Sampler {
    /// Bytes until the next sample; 0: it does not count.
    left: Cell<u64>,
    /// The interval that `left` was drawn for.
    interval: Cell<usize>,
    /// State of the random number generator; 0: not seeded yet.
    seed: Cell<u64>,
    /// The thread is in a hook, whose allocations are not sampled.
    pub(crate) in_hook: Cell<bool>,
}

impl Sampler {
    pub(crate) const fn new() -> Self {
        Sampler { left: Cell::new(0), interval: Cell::new(0), seed: Cell::new(0), in_hook: Cell::new(false) }
    }

    /// A random number.
    fn random(&self) -> u64 {
        let mut seed = self.seed.get();
        let number = random::next(&mut seed);
        self.seed.set(seed);
        number
    }

    /// Draws the bytes until the next sample from an exponential distribution with mean `interval`.
    fn draw(&self, interval: usize) {
        // 53 bits, never 0: in (0, 1].
        let uniform = ((self.random() >> 11) + 1) as f64 / (1u64 << 53) as f64;
        // At an interval of 1 the next byte, so that each block is a sample.
        let bytes = if interval <= 1 { 0.0 } else { -ln(uniform) * interval as f64 };
        self.left.set(bytes as u64 + 1);
        self.interval.set(interval);
    }

    /// Stops counting.
    pub(crate) fn stop(&self) {
        self.left.set(0);
    }

    /// Stops counting if it counts for another interval.
    pub(crate) fn follow(&self, interval: usize) {
        if self.interval.get() != interval {
            self.stop();
        }
    }

    /// Returns whether a block of `size` bytes is a sample; `counts`: by counting its bytes. `seed` starts the random
    /// numbers.
    pub(crate) fn is_due(&self, size: usize, interval: usize, counts: bool, seed: impl FnOnce() -> u64) -> bool {
        if self.seed.get() == 0 {
            self.seed.set(seed() | 1);
        }
        if !counts {
            self.stop();
            return by_chance(size, interval as u64, self.random());
        }
        if self.left.get() == 0 || self.interval.get() != interval {
            self.draw(interval);
        }
        let due = !self.skips(size.max(1));
        if due {
            self.draw(interval);
        }
        due
    }

    /// Counts `size` bytes, if it counts and their block is no sample; otherwise returns false and counts nothing.
    /// Bytes of blocks that are never samples, as those of a hook, count as others: the next sample is as likely.
    #[inline(always)]
    pub(crate) fn skips(&self, size: usize) -> bool {
        let (left, size) = (self.left.get(), size as u64);
        let skips = left > size;
        if skips {
            self.left.set(left - size);
        }
        skips
    }
}

/// Returns the natural logarithm of a number in (0, 1], to some ten digits.
fn ln(x: f64) -> f64 {
    let bits = x.to_bits();
    let exponent = (bits >> 52) as i64 - 1023;
    let mantissa = f64::from_bits(bits & ((1 << 52) - 1) | 1023 << 52);
    // ln m = 2 artanh((m - 1) / (m + 1)), whose argument is at most a third.
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let (square, mut term, mut sum) = (s * s, s, 0.0);
    let mut odd = 1.0;
    while odd < 20.0 {
        sum += term / odd;
        term *= square;
        odd += 2.0;
    }
    2.0 * sum + exponent as f64 * core::f64::consts::LN_2
}

/// `1 - exp(-x)` for `x >= 0`.
fn chance(x: f64) -> f64 {
    if x > 40.0 {
        return 1.0;
    }
    // 1 - exp(-x) by its series for x / 1024; then x is doubled ten times: 1 - (1 - p)^2 = p (2 - p).
    let mut part = x / 1024.0;
    part = part * (1.0 - part / 2.0 * (1.0 - part / 3.0 * (1.0 - part / 4.0)));
    for _ in 0..10 {
        part *= 2.0 - part;
    }
    part
}

/// The probability with which a block of `size` bytes is a sample, at a mean distance of `interval` bytes. 0 bytes count
/// as one. At an interval of 1 each block is one.
fn probability(size: f64, interval: u64) -> f64 {
    if interval <= 1 { 1.0 } else { chance(size.max(1.0) / interval as f64) }
}

/// Returns the bytes that a sampled block of `size` bytes represents, at a mean distance of `interval` bytes. 0 bytes
/// count as one.
pub fn weight(size: usize, interval: usize) -> u64 {
    let size = size.max(1) as f64;
    // At least its own bytes, whatever was rounded.
    (size / probability(size, interval as u64)).max(size) as u64
}

/// Whether a block of `size` bytes is a sample, with a mean distance of `interval` bytes between samples, by a random
/// number: for callers that do not count bytes.
pub fn by_chance(size: usize, interval: u64, random: u64) -> bool {
    uniform(random) < probability(size as f64, interval)
}

/// Whether a sample of `size` bytes, chosen at a mean distance of `interval` bytes, is also one at the longer distance
/// `wanted`, by a random number. Those that are form a Poisson process of that distance.
pub fn is_also(size: usize, interval: u64, wanted: u64, random: u64) -> bool {
    if wanted <= interval {
        return true;
    }
    uniform(random) < probability(size as f64, wanted) / probability(size as f64, interval)
}

/// A number in [0, 1), of 53 random bits.
fn uniform(random: u64) -> f64 {
    (random >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches an approximation that distorts the distances, or the weights.
    #[test]
    #[cfg_attr(miri, ignore = "arithmetic without pointers, in loops that are long to Miri")]
    fn functions_are_exact_enough() {
        for i in 1..2000 {
            let x = f64::from(i) / 2000.0;
            assert!((ln(x) - x.ln()).abs() < 1e-9, "ln {x}");
            for x in [x * 1e-9, x * 1e-3, x, x * 30.0] {
                let wanted = -(-x).exp_m1();
                assert!((chance(x) / wanted - 1.0).abs() < 1e-10, "chance {x}");
            }
        }
        assert_eq!(chance(1e9), 1.0);
    }

    /// Catches blocks that are chosen with another probability than their size gives, and random numbers of which only
    /// a part is used.
    #[test]
    fn choices_by_chance() {
        for (size, interval) in [(1, 4096), (100, 4096), (4096, 4096), (20_000, 4096)] {
            let chosen = (0..4096u64).filter(|i| by_chance(size, interval, i << 52 | 0xFFF)).count() as f64;
            let wanted = chance(size as f64 / interval as f64) * 4096.0;
            assert!((chosen - wanted).abs() <= 1.0, "{size} of {interval}: {chosen}, not {wanted}");
        }
        for interval in [0, 1] {
            assert!(by_chance(1, interval, u64::MAX), "each block is chosen");
        }
        assert!(by_chance(0, 2, 1 << 62) && !by_chance(0, 2, 3 << 62), "no bytes count as one");
        assert!(!by_chance(1, 2, u64::MAX));
    }

    /// Catches samples that are too frequent, too rare, or at regular distances: the weights of the samples add up to
    /// the requested bytes, for small and for long blocks.
    #[test]
    #[cfg_attr(miri, ignore = "arithmetic without pointers, in loops that are long to Miri")]
    fn weights_are_unbiased() {
        let sizes = [(16, 4096), (100, 4096), (4096, 4096), (100_000, 4096), (40, 512 << 10)];
        for ((size, interval), counts) in sizes.into_iter().flat_map(|one| [(one, true), (one, false)]) {
            let sampler = Sampler::new();
            let (mut bytes, mut seen, mut samples) = (0u64, 0, 0u64);
            while bytes < 20_000 * interval as u64 {
                bytes += size as u64;
                if sampler.is_due(size, interval, counts, || 4711) {
                    seen += weight(size, interval);
                    samples += 1;
                }
            }
            let error = seen as f64 / bytes as f64 - 1.0;
            assert!(error.abs() < 4.0 / (samples as f64).sqrt(), "{size} of {interval}: {error}");
        }
    }

    /// Catches blocks that are left out, or count more than once, where each is to be a sample.
    #[test]
    fn at_an_interval_of_one_each_block_is_a_sample() {
        let sampler = Sampler::new();
        for (size, counts) in (0..1000).flat_map(|i| [(i % 20, true), (i % 20, false)]) {
            assert!(sampler.is_due(size, 1, counts, || 4711), "{size}, {counts}");
            assert!(!sampler.skips(size.max(1)), "{size}, {counts}");
            assert_eq!(weight(size, 1), size.max(1) as u64);
        }
    }

    /// Catches blocks that are chosen too often or too rarely.
    #[test]
    #[cfg_attr(miri, ignore = "arithmetic without pointers, in loops that are long to Miri")]
    fn chances_are_those_of_the_weights() {
        for (size, interval) in [(16, 512), (512, 512), (4096, 512), (100, 4096), (1, 1), (0, 1)] {
            let mut state = 1u64;
            let mut next = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                state
            };
            let chosen = (0..100_000).filter(|_| by_chance(size, interval, next())).count() as f64;
            let wanted = 1e5 * size.max(1) as f64 / weight(size, interval as usize) as f64;
            assert!((chosen - wanted).abs() < 5.0 * wanted.sqrt() + 1.0, "{size} of {interval}: {chosen} {wanted}");
        }
    }

    /// Catches samples of two distances of which the rarer ones are more or fewer than their own distance gives.
    #[test]
    #[cfg_attr(miri, ignore = "arithmetic without pointers, in loops that are long to Miri")]
    fn rarer_samples_are_chosen_among_the_others() {
        for (size, interval, wanted) in [(16, 512, 4096), (4096, 512, 4096), (100, 4096, 100_000), (64, 1, 640)] {
            let mut state = 1u64;
            let mut next = || crate::system::random::next(&mut state);
            let mut chosen = 0.0;
            for _ in 0..200_000 {
                if by_chance(size, interval, next()) && is_also(size, interval, wanted, next()) {
                    chosen += 1.0;
                }
            }
            let wanted = 2e5 * chance(size as f64 / wanted as f64);
            assert!((chosen - wanted).abs() < 5.0 * wanted.sqrt() + 1.0, "{size} of {interval}: {chosen} {wanted}");
        }
        assert!(is_also(10, 100, 100, u64::MAX) && is_also(10, 100, 50, u64::MAX));
    }

    /// Catches a weight that is less than the block, or that wraps around.
    #[test]
    fn weights_are_sane() {
        assert_eq!(weight(1 << 30, 1), 1 << 30);
        assert_eq!(weight(0, 1), 1);
        for shift in 0..47 {
            let weight = weight(1 << shift, 512 << 10);
            assert!(weight >= 1 << shift && weight >= (512 << 10) - 1, "{shift}: {weight}");
        }
    }
}
