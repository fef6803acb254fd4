//! Draws a scenario from a seed: a system, policies, and the operations of each thread.

use crate::aim;
use crate::config::{Config, lacks};
use crate::random::Random;
use crate::scenario::{Kind, Op, Scenario};
use neap_core::policy::DELAY_MS;

/// Scenarios that are run with variations, besides those that are drawn.
const KEPT: [&str; 6] = [
    include_str!("../scenarios/tail-of-a-slab.txt"),
    include_str!("../scenarios/end-in-a-handshake.txt"),
    include_str!("../scenarios/guards.txt"),
    include_str!("../scenarios/all-end.txt"),
    include_str!("../scenarios/all-purge.txt"),
    include_str!("../scenarios/stranded.txt"),
];

/// The kind of a round.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Round {
    Any,
    Build,
    Tear,
}

/// Sizes that threads of a kind ask for.
#[derive(Clone, Copy, Debug)]
enum Sizes {
    Small,
    Holes,
    Large,
    Mixed,
    One(u64),
}

impl Sizes {
    fn draw(self, r: &mut Random) -> u64 {
        match self {
            Sizes::One(size) => size,
            Sizes::Small => r.scale(1024),
            Sizes::Holes => r.pick(&[28_000, 28_000, 3072, 48, 16, 5000, 1500]),
            Sizes::Large => match r.below(8) {
                0..6 => 32_769 + r.scale(1 << 20),
                6 => r.scale(4 << 20),
                _ => r.pick(&[65_536, 65_537, 1 << 20]),
            },
            Sizes::Mixed => match r.below(16) {
                0..7 => r.scale(1024),
                7..11 => r.scale(32 << 10),
                11..14 => Sizes::Holes.draw(r),
                14 => Sizes::Large.draw(r),
                _ => r.pick(&[0, 1, 16, 17, 1024, 1025, 32_768, 32_769, 65_535, 65_536, 65_537]),
            },
        }
    }
}

/// The scenario of a seed. Threads go through rounds, and meet after each: in some they build up, in some they tear
/// down while others look for free memory, in some they do anything.
pub fn scenario(seed: u64) -> Scenario {
    let mut r = Random::new(seed, 0);
    let config = config(&mut r, seed);
    match r.below(8) {
        0 | 1 => return vary(&mut r, config),
        2..6 => return aim::scenario(&mut r, config),
        _ => {}
    }
    let count = r.pick(&[1, 2, 2, 2, 3, 3, 4]);
    let mut scenario = Scenario { config, threads: vec![Vec::new(); count] };
    let rounds = 2 + r.below(6);
    let length = 2 + r.below(12);
    let forks = r.one_in(6);
    let class = r.pick(&[28_000, 28_000, 12_000, 6000, 3072, 1100, 512, 48]);
    let sizes = r.pick(&[Sizes::Small, Sizes::Holes, Sizes::Large, Sizes::Mixed, Sizes::One(class), Sizes::One(class)]);
    let mut built = false;
    for _ in 0..rounds {
        let round = match (r.below(3), built) {
            (0, _) => Round::Any,
            (_, false) => Round::Build,
            (_, true) => Round::Tear,
        };
        built = round == Round::Build;
        for ops in &mut scenario.threads {
            let looks = r.one_in(2);
            for _ in 0..length {
                let op = match round {
                    Round::Any => any(&mut r, sizes, forks),
                    Round::Build => build(&mut r, sizes),
                    Round::Tear if looks => look(&mut r, sizes, &scenario.config, forks),
                    Round::Tear => tear(&mut r, sizes, forks),
                };
                ops.push(op);
            }
            ops.push(Op { kind: Kind::Meet, a: r.next() % 1000, b: 0 });
        }
    }
    scenario
}

/// A kept scenario with some other operations, and mostly on another system.
fn vary(r: &mut Random, config: Config) -> Scenario {
    let text = r.pick(&KEPT);
    let mut scenario = Scenario::parse(text).expect("kept scenarios can be read");
    let seed = config.seed;
    if r.one_in(2) {
        scenario.config = config;
    } else {
        scenario.config.schedule = 0;
        scenario.config.rate = config.rate;
    }
    scenario.config.seed = seed;
    for _ in 0..r.below(5) {
        let thread = r.below(scenario.threads.len());
        let ops = &mut scenario.threads[thread];
        let at = r.below(ops.len().max(1)).min(ops.len());
        let op = any(r, Sizes::Mixed, false);
        match r.below(3) {
            0 if at < ops.len() => ops[at] = op,
            1 if at < ops.len() => ops[at].b = op.b,
            _ => ops.insert(at, op),
        }
    }
    scenario
}

fn config(r: &mut Random, seed: u64) -> Config {
    let maybe = |r: &mut Random, n: u64, value: u64| if r.one_in(n) { value } else { 0 };
    let schedule = if r.one_in(3) { 1 } else { 0 };
    let missing = if r.one_in(4) {
        let all = [
            lacks::ZEROS,
            lacks::MOVE,
            lacks::RENEW,
            lacks::PURGE,
            lacks::PURGE_RUNS,
            lacks::LAZY,
            lacks::TOUCHED,
            lacks::BARRIER,
            lacks::MEMORY,
            lacks::POPULATE,
            lacks::RUN_TIME,
            lacks::HELPER,
        ];
        all.into_iter().filter(|_| r.one_in(5)).sum()
    } else {
        0
    };
    Config {
        seed,
        schedule,
        rate: if schedule == 1 { 2 + r.scale(40) } else { r.pick(&[3, 10, 30, 100, 300, 1000]) },
        rare: if r.one_in(2) { r.pick(&[1, 2, 4, 8, 16, 32]) } else { 0 },
        page: if r.one_in(8) { r.pick(&[16384, 65536]) } else { 4096 },
        address_limit: if r.one_in(8) { r.pick(&[1 << 30, 128 << 20, 32 << 20]) } else { 0 },
        reservations: if r.one_in(10) { r.pick(&[1, 2]) } else { 0 },
        missing,
        habits: if r.one_in(2) { aim::draw_habits(r) } else { 0 },
        fault: if r.one_in(4) { r.scale(100) } else { 0 },
        late: r.pick(&[0, 2, 5, 20]),
        purges: r.pick(&[0, 1, 3, 10]),
        memory: if r.one_in(6) { 1 + r.below(5) as u64 } else { 0 },
        handlers: if r.one_in(3) { r.pick(&[100, 1000, 5000]) } else { 0 },
        slotless: maybe(r, 16, 1),
        buffers: maybe(r, 2, 1),
        pace: r.pick(&[0, 2, 10, 50]),
        purge: if r.one_in(3) { r.below(4) as u64 } else { 0 },
        delay: r.pick(&[DELAY_MS.into(), 0, 50, 100, 100, 2000]),
        bytes: if r.one_in(4) { r.pick(&[1, 1 + (2 << 20)]) } else { 0 },
        zero_always: maybe(r, 10, 1),
        threshold: if r.one_in(6) { r.pick(&[1, 1 + (128 << 10)]) } else { 0 },
        limit: if r.one_in(6) { r.pick(&[1, 16 << 20, 64 << 20]) } else { 0 },
        harden: maybe(r, 6, 1),
        interrupts: r.one_in(3),
        ..Config::default()
    }
}

/// Memory is used, freed in part, and used again.
fn build(r: &mut Random, sizes: Sizes) -> Op {
    let b = r.next() >> 32;
    let op = |kind, a, b| Op { kind, a, b };
    match r.below(16) {
        0..6 => {
            let size = sizes.draw(r);
            fill(r, size)
        }
        6..9 => op(Kind::Drain, 1 + r.next() % 60 + 4096 * (r.next() % 3), b),
        9 | 10 => {
            let size = r.pick(&[40_000, 60_000, 200_000]);
            op(Kind::Fill, size, 1 + r.next() % 20)
        }
        11 => op(Kind::Free, 0, b),
        12 => op(Kind::Calloc, sizes.draw(r), b),
        13 => op(Kind::Realloc, sizes.draw(r), b),
        _ => op(Kind::Malloc, sizes.draw(r), b),
    }
}

/// Memory is freed, used for other things, and threads end.
fn tear(r: &mut Random, sizes: Sizes, forks: bool) -> Op {
    let b = r.next() >> 32;
    let op = |kind, a, b| Op { kind, a, b };
    match r.below(16) {
        0..6 => op(Kind::Drain, r.scale(800) + 4096 * (r.next() % 2), b),
        6..9 => {
            let size = r.pick(&[40_000, 65_536, 65_536, 200_000, 8000, 300]);
            fill(r, size)
        }
        9 | 10 => op(Kind::End, r.next() % 3, b),
        11 => op(Kind::Rest, 0, 0),
        _ => any(r, sizes, forks),
    }
}

/// Free memory is looked for.
fn look(r: &mut Random, sizes: Sizes, config: &Config, forks: bool) -> Op {
    let op = |kind, a, b| Op { kind, a, b };
    match r.below(16) {
        0..4 => op(Kind::Trim, 0, 0),
        4..7 => op(Kind::Purge, 0, 0),
        7..11 => op(Kind::Sleep, (config.delay * (1 + r.next() % 10) / 5).min(3000), 0),
        _ => any(r, sizes, forks),
    }
}

fn fill(r: &mut Random, size: u64) -> Op {
    // Limited to some MiB.
    let most = ((3 << 19) / size.max(64)).clamp(1, 300);
    Op { kind: Kind::Fill, a: size, b: r.scale(most) }
}

/// Any operation.
fn any(r: &mut Random, sizes: Sizes, forks: bool) -> Op {
    let b = r.next() >> 32;
    let size = sizes.draw(r);
    let op = |kind, a, b| Op { kind, a, b };
    match r.below(64) {
        0..14 => op(Kind::Malloc, size, b),
        14..18 => op(Kind::Calloc, size, b),
        18 => op(Kind::Aligned, size.min(200_000), r.below(17) as u64 + 64 * (b & 1)),
        19..24 => op(Kind::Realloc, size, b),
        24..38 => op(Kind::Free, u64::from(b & 0xE00 == 0), b),
        38..43 => fill(r, size),
        43..49 => op(Kind::Drain, 1 + r.next() % 300 + 4096 * (r.next() % 3), b),
        49..52 => op(Kind::Check, 0, b),
        52 | 53 => op(Kind::Trim, if b & 3 == 0 { 1 << 20 } else { 0 }, 0),
        54 | 55 => op(Kind::Purge, 0, 0),
        56 => op(Kind::Rest, 0, 0),
        57..60 => op(Kind::Sleep, r.scale(2000), 0),
        60 | 61 if b & 7 == 0 => op(Kind::Vanish, 0, 0),
        60 | 61 => op(Kind::End, r.next() % 4, b),
        62 if b & 1 == 0 => op(Kind::Vfork, r.scale(200), b),
        62 => op(Kind::Alone, r.next() % 50, b),
        _ => op(if forks { Kind::Fork } else { Kind::Free }, 0, b),
    }
}
