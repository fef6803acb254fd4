//! Scenarios that aim at what the core rarely does: short, with few threads, on a system that refuses little. Each
//! shape brings threads together at one protocol of the core.

use crate::config::{Config, habits};
use crate::random::Random;
use crate::scenario::{Kind, Op, Scenario};

/// Draws some of the system's habits.
pub fn draw_habits(r: &mut Random) -> u64 {
    (0..habits::COUNT).map(|bit| u64::from(r.one_in(4)) << bit).sum()
}

/// What a scenario is aimed at.
#[derive(Clone, Copy, Debug)]
enum Shape {
    /// Heaps change hands while other threads free into them.
    Lives,
    /// Holes of slabs go back while their threads free more, and end.
    Holes,
    /// OS pages behind the last block of a slab go back while the slab is freed and its chunk used again.
    Tails,
    /// The helper starts, ends, and is kept away while memory comes to wait.
    Helper,
    /// The helper ends, or memory is refused, just when more comes to wait.
    Ends,
    /// Mappings of huge blocks are resized, and their addresses used again.
    Huge,
    /// Blocks get guards while the arena grows.
    Guards,
    /// Handshakes empty caches while the threads of the heaps make calls.
    Handshakes,
    /// Large blocks of many lengths, moved, cut, and mapped apart.
    Large,
    /// Handlers make reentrant calls, whose deferred work others do.
    Reentrant,
    /// Threads fork while others are in the middle of calls.
    Forks,
}

/// A scenario of some shape, on a system like `config` or on a plain one.
pub fn scenario(r: &mut Random, config: Config) -> Scenario {
    let shape = r.pick(&[
        Shape::Lives,
        Shape::Lives,
        Shape::Holes,
        Shape::Holes,
        Shape::Tails,
        Shape::Helper,
        Shape::Helper,
        Shape::Ends,
        Shape::Ends,
        Shape::Huge,
        Shape::Guards,
        Shape::Handshakes,
        Shape::Handshakes,
        Shape::Large,
        Shape::Reentrant,
        Shape::Forks,
    ]);
    let mut scenario = Scenario { config: system(r, shape, config), threads: Vec::new() };
    let (count, rounds) = (r.pick(&[2, 2, 3]), 1 + r.below(4));
    let class = r.pick(&[28_000, 28_000, 12_000, 6000, 3072, 1100, 512, 48]);
    scenario.threads = vec![Vec::new(); count];
    for _ in 0..rounds {
        let length = 1 + r.below(8);
        for (i, ops) in scenario.threads.iter_mut().enumerate() {
            for _ in 0..length {
                ops.push(op(r, shape, i, class));
            }
        }
        // Operations before a meeting are finished by all threads before those after it begin.
        let meet = Op { kind: Kind::Meet, a: r.next() % 300, b: 0 };
        scenario.threads.iter_mut().for_each(|ops| ops.push(meet));
    }
    scenario
}

fn system(r: &mut Random, shape: Shape, config: Config) -> Config {
    let plain = Config {
        seed: config.seed,
        schedule: config.schedule,
        rate: if config.schedule == 1 { config.rate } else { r.pick(&[2, 3, 5, 10, 30, 100]) },
        rare: if r.one_in(2) { r.pick(&[1, 2, 4, 8, 16, 32]) } else { 0 },
        habits: if r.one_in(4) { draw_habits(r) } else { 0 },
        late: r.pick(&[0, 2, 5]),
        purges: r.pick(&[0, 1, 3]),
        buffers: r.next() & 1,
        ..Config::default()
    };
    let mut config = if r.one_in(4) { config } else { plain };
    match shape {
        Shape::Helper => {
            // Ticks are 10 or 20 ms apart, so that sleepers and the helper wake at the same time.
            (config.delay, config.pace) = (r.pick(&[0, 50, 50, 100]), r.pick(&[0, 0, 0, 2, 10]));
        }
        Shape::Ends => {
            (config.delay, config.pace) = (r.pick(&[0, 50]), 0);
            config.purge = r.pick(&[0, 0, 0, 2]);
            config.rare = r.pick(&[1, 1, 2, 4]);
            config.habits |= r.pick(&[0, 0, habits::LOCKS]);
        }
        // The arena is short, so that most large blocks are mappings.
        Shape::Huge => {
            (config.reservations, config.address_limit) = (1, r.pick(&[16 << 20, 32 << 20]));
            config.late = r.pick(&[2, 2, 5]);
        }
        Shape::Guards => config.harden = 1,
        Shape::Handshakes => {
            config.buffers = 1;
            config.habits |= if r.one_in(3) { habits::NUMBERS } else { 0 };
        }
        // One arena, so that a block that does not fit is a mapping of its own.
        Shape::Large if r.one_in(2) => (config.reservations, config.address_limit) = (1, 96 << 20),
        Shape::Reentrant => {
            config.handlers = r.pick(&[10, 30, 100, 300]);
            config.harden = u64::from(r.one_in(8));
        }
        _ => {}
    }
    config
}

/// An operation of thread `i`.
fn op(r: &mut Random, shape: Shape, i: usize, class: u64) -> Op {
    let b = r.next() >> 32;
    let op = |kind, a, b| Op { kind, a, b };
    let (some, more, all) = (1 + r.next() % 8, 1 + r.next() % 24, 1 + r.next() % 100);
    // One thread observes the others.
    let looks = i == 1;
    match (shape, r.below(16)) {
        (Shape::Lives, 0..4) => op(Kind::Fill, class, some),
        (Shape::Lives, 4 | 5) => op(Kind::End, some % 4, b),
        (Shape::Lives, 6..11) => op(Kind::Pass, some, b),
        (Shape::Lives, 11 | 12) => op(Kind::Rest, 0, 0),
        (Shape::Lives, 13 | 14) => op(Kind::Drain, more, b),
        (Shape::Lives, _) => op(Kind::Trim, 0, 0),
        (Shape::Holes, 0..8) if looks => op(if b & 1 == 0 { Kind::Trim } else { Kind::Purge }, 0, 0),
        (Shape::Holes, 0..6) => op(Kind::Fill, class, more),
        (Shape::Holes, 6..11) => op(Kind::Drain, more + 4096 * (b % 3), b),
        (Shape::Holes, 11 | 12) => op(Kind::End, some % 3, b),
        (Shape::Holes, 13) => op(Kind::Sleep, 100 * some, 0),
        (Shape::Holes, 14) => op(Kind::Rest, 0, 0),
        (Shape::Holes, _) => op(Kind::Pass, more, b),
        (Shape::Tails, 0..9) if looks => op(Kind::Trim, 0, 0),
        (Shape::Tails, 0..3) => op(Kind::Fill, r.pick(&[28_000, 12_000, 60_000]), some),
        (Shape::Tails, 3..5) => op(Kind::Fill, r.pick(&[65_536, 60_000, 200_000]), some),
        (Shape::Tails, 5..13) => op(Kind::Drain, r.pick(&[some, more, all]), b),
        (Shape::Tails, 13) => op(Kind::Rest, 0, 0),
        (Shape::Tails, _) => op(Kind::Pass, some, b),
        (Shape::Helper, 0..5) => op(Kind::Fill, r.pick(&[40_000, 200_000, 28_000]), some),
        (Shape::Helper, 5..8) => op(Kind::Drain, more, b),
        (Shape::Helper, 8 | 9) => op(Kind::Sleep, 10 * (1 + r.next() % 12), 0),
        (Shape::Helper, 10..14) => op(Kind::Alone, r.next() % 20, b),
        (Shape::Helper, 14) => op(Kind::Purge, 0, 0),
        (Shape::Helper, _) => op(Kind::Vfork, some, b),
        (Shape::Ends, 0..4) => op(Kind::Fill, r.pick(&[40_000, 70_000, 200_000]), 1 + some / 2),
        (Shape::Ends, 4..9) => op(Kind::Drain, r.pick(&[some, more, all]) + 4096 * (b % 2), b),
        (Shape::Ends, 9..12) => op(Kind::Sleep, 10 * (1 + r.next() % 12), 0),
        (Shape::Ends, 12 | 13) => op(Kind::Calloc, 200_000, 0),
        (Shape::Ends, 14) => op(if b & 1 == 0 { Kind::Purge } else { Kind::Trim }, 0, 0),
        (Shape::Ends, _) => op(Kind::Alone, r.next() % 20, b),
        (Shape::Huge, 0..4) => op(Kind::Malloc, (1 << 20) + r.scale(2 << 20), b),
        (Shape::Huge, 4..9) => op(Kind::Realloc, (1 << 20) + r.scale(2 << 20), b),
        (Shape::Huge, 9..13) => op(Kind::Free, u64::from(b & 0xE00 == 0), b),
        (Shape::Huge, 13) => op(Kind::Check, 0, b),
        (Shape::Huge, 14) => op(Kind::Aligned, 1 << 20, 21),
        (Shape::Huge, _) => op(Kind::Pass, some, b),
        (Shape::Guards, 0..9) => op(Kind::Fill, r.pick(&[40_000, 33_000, 100_000, class]), more),
        (Shape::Guards, 9..12) => op(Kind::Drain, some, b),
        (Shape::Guards, 12 | 13) => op(Kind::Realloc, r.scale(200_000), b),
        (Shape::Guards, 14) => op(Kind::End, 0, b),
        (Shape::Guards, _) => op(Kind::Pass, some, b),
        (Shape::Handshakes, 0..10) if looks => op(if b & 3 == 0 { Kind::Purge } else { Kind::Trim }, 0, 0),
        (Shape::Handshakes, 0..6) => op(Kind::Fill, class, more),
        (Shape::Handshakes, 6..11) => op(Kind::Drain, more, b),
        (Shape::Handshakes, 11) => op(Kind::Fill, 40_000, some),
        (Shape::Handshakes, 12) => op(Kind::Sleep, 100 * some, 0),
        (Shape::Handshakes, 13) if b & 1 == 0 => op(Kind::Vanish, 0, 0),
        (Shape::Handshakes, 13) => op(Kind::End, some % 3, b),
        (Shape::Handshakes, _) => op(Kind::Pass, some, b),
        (Shape::Large, 0..4) => op(Kind::Malloc, r.scale(3 << 20), b),
        (Shape::Large, 4 | 5) => op(Kind::Calloc, r.scale(3 << 20), b),
        (Shape::Large, 6..10) => op(Kind::Realloc, r.scale(3 << 20), b),
        (Shape::Large, 10) => op(Kind::Trim, 0, 0),
        (Shape::Large, _) => op(Kind::Pass, some, b),
        (Shape::Reentrant, 0..5) => op(Kind::Fill, r.pick(&[class, 40_000]), some),
        (Shape::Reentrant, 5..9) => op(Kind::Pass, some, b),
        (Shape::Reentrant, 9..12) => op(Kind::Drain, more, b),
        (Shape::Reentrant, 12) => op(Kind::End, some % 3, b),
        (Shape::Reentrant, 13) => op(Kind::Trim, 0, 0),
        (Shape::Reentrant, _) => op(Kind::Rest, 0, 0),
        (Shape::Forks, 0..4) => op(Kind::Fork, 0, b),
        (Shape::Forks, 4..8) => op(Kind::Fill, class, more),
        (Shape::Forks, 8..11) => op(Kind::Drain, more, b),
        (Shape::Forks, 11) => op(Kind::Purge, 0, 0),
        (Shape::Forks, 12) => op(Kind::Fill, 40_000, some),
        (Shape::Forks, 13) => op(Kind::End, some % 3, b),
        (Shape::Forks, _) => op(Kind::Pass, some, b),
    }
}
