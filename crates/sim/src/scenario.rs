//! Scenarios: a system, policies, and what each thread does. Drawn from a seed, or read from a file.

use crate::aim;
use crate::process::habits;
use crate::random::Random;
use crate::sched::Policy;
use crate::system::lacks;
use neap_core::policy::{self, Limit, Purge};
use neap_coretest::Choices;
use std::fmt::Write as _;

/// Declares the numbers of a scenario, and their text form.
macro_rules! numbers {
    ($($(#[$doc:meta])* $name:ident = $default:expr,)*) => {
        /// The system, the policies and the schedule of a scenario.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct Config {
            $($(#[$doc])* pub $name: u64,)*
            /// Futex waits may be interrupted.
            pub interrupts: bool,
        }

        impl Default for Config {
            fn default() -> Self {
                Config { $($name: $default,)* interrupts: false }
            }
        }

        impl Config {
            fn write(&self, text: &mut String) {
                $(if self.$name != $default { let _ = writeln!(text, "{} = {}", stringify!($name), self.$name); })*
                if self.interrupts {
                    let _ = writeln!(text, "interrupts = 1");
                }
            }

            fn set(&mut self, name: &str, value: u64) -> bool {
                match name {
                    $(stringify!($name) => self.$name = value,)*
                    "interrupts" => self.interrupts = value != 0,
                    _ => return false,
                }
                true
            }

            /// One simpler configuration for each number that is not the default.
            pub fn simpler(&self) -> Vec<Config> {
                let mut all = Vec::new();
                $(if self.$name != $default && stringify!($name) != "seed" && stringify!($name) != "schedule" {
                    all.push(Config { $name: $default, ..self.clone() });
                })*
                if self.interrupts {
                    all.push(Config { interrupts: false, ..self.clone() });
                }
                all
            }
        }
    };
}

numbers! {
    /// Seed of all that is left to chance.
    seed = 1,
    /// How threads are chosen: 0 at random, 1 by priorities, 2 exhaustively.
    schedule = 0,
    /// Mean steps between switches; the number of changes of priorities; most switches of an exhaustive search.
    rate = 50,
    /// Threads are stopped at places that the run seldom comes to: once in so many first times; 0: no place is preferred.
    rare = 0,
    /// Bytes of an OS page.
    page = 4096,
    /// Bytes of address space; 0: no limit.
    address_limit = 0,
    /// Reservations of a chosen address that are granted; 0: all.
    reservations = 0,
    /// Features that the system lacks.
    missing = 0,
    /// What changes while the process runs, and how the system answers: bits of `process::habits`.
    habits = 0,
    /// Calls refused, in 1000.
    fault = 0,
    /// One system call in so many takes long; 0: none.
    late = 0,
    /// The same for calls that give memory back.
    purges = 0,
    /// What the system says of its memory.
    memory = 0,
    /// Mean steps between two signals of a thread; 0: none.
    handlers = 0,
    /// Threads have no seats, so that their heaps cannot be visited.
    seatless = 0,
    /// Stores to seats are seen late by other threads, as from a store buffer.
    buffers = 0,
    /// Milliseconds that an operation takes, at most.
    pace = 0,
    /// When free memory goes back.
    purge = 0,
    /// How long it waits, in milliseconds.
    delay = 500,
    /// How much may wait: 1 more than the bytes; 0: no limit.
    bytes = 0,
    /// All blocks are zeroed.
    zero_always = 0,
    /// Threshold of large blocks that are unmapped at once: 1 more; 0: none.
    threshold = 0,
    /// The process's own limit: 0 automatic, 1 off, else bytes.
    limit = 0,
    /// Hardening.
    harden = 0,
    /// An exhaustive search switches threads from this meeting on to the next one.
    explore = 0,
}

impl Config {
    /// How threads are chosen.
    pub fn policy(&self) -> Policy {
        match self.schedule {
            0 => Policy::Random(self.rate),
            1 => Policy::Priorities(self.rate),
            _ => Policy::Exhaustive,
        }
    }

    /// What the user chose.
    pub fn choices(&self) -> Choices {
        Choices {
            purge: [Purge::Decay, Purge::Eager, Purge::Lazy, Purge::Never][self.purge as usize % 4],
            delay: self.delay as u32,
            bytes: self.bytes.checked_sub(1).map(|n| n as usize),
            zero_always: self.zero_always != 0,
            mmap_threshold: self.threshold.checked_sub(1).map_or(usize::MAX, |n| n as usize),
            limit: match self.limit {
                0 => Limit::Auto,
                1 => Limit::Off,
                n => Limit::Bytes(n as usize),
            },
            harden: self.harden != 0,
        }
    }

    /// Whether calls may fail although there is memory.
    pub fn is_limited(&self) -> bool {
        self.address_limit != 0
            || self.reservations != 0
            || self.limit > 1
            || self.fault != 0
            || self.memory > 1
            || self.habits & habits::BURSTS != 0
    }

    fn draw(r: &mut Random, seed: u64) -> Config {
        let any = |r: &mut Random, n: u64, value: u64| if r.one_in(n) { value } else { 0 };
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
            habits: if r.one_in(2) { draw_habits(r) } else { 0 },
            fault: if r.one_in(4) { r.scale(100) } else { 0 },
            late: r.pick(&[0, 2, 5, 20]),
            purges: r.pick(&[0, 1, 3, 10]),
            memory: if r.one_in(6) { 1 + r.below(5) as u64 } else { 0 },
            handlers: if r.one_in(3) { r.pick(&[100, 1000, 5000]) } else { 0 },
            seatless: any(r, 16, 1),
            buffers: any(r, 2, 1),
            pace: r.pick(&[0, 2, 10, 50]),
            purge: if r.one_in(3) { r.below(4) as u64 } else { 0 },
            delay: r.pick(&[policy::DELAY_MS.into(), 0, 50, 100, 100, 2000]),
            bytes: if r.one_in(4) { r.pick(&[1, 1 + (2 << 20)]) } else { 0 },
            zero_always: any(r, 10, 1),
            threshold: if r.one_in(6) { r.pick(&[1, 1 + (128 << 10)]) } else { 0 },
            limit: if r.one_in(6) { r.pick(&[1, 16 << 20, 64 << 20]) } else { 0 },
            harden: any(r, 6, 1),
            interrupts: r.one_in(3),
            ..Config::default()
        }
    }
}

/// Some of the system's habits.
pub fn draw_habits(r: &mut Random) -> u64 {
    (0..habits::COUNT).map(|bit| u64::from(r.one_in(4)) << bit).sum()
}

/// What a thread does next, with two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op {
    /// What.
    pub kind: Kind,
    /// Mostly a size, or a number of blocks.
    pub a: u64,
    /// Mostly which block, as a number of any size.
    pub b: u64,
}

/// Declares the operations and their names.
macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident $name:literal,)*) => {
        /// Operations of a thread.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Kind {
            $($(#[$doc])* $kind,)*
        }

        impl Kind {
            fn name(self) -> &'static str {
                match self {
                    $(Kind::$kind => $name,)*
                }
            }

            fn of(name: &str) -> Option<Kind> {
                match name {
                    $($name => Some(Kind::$kind),)*
                    _ => None,
                }
            }
        }
    };
}

kinds! {
    /// malloc of `a` bytes.
    Malloc "malloc",
    /// calloc of `a` bytes.
    Calloc "calloc",
    /// aligned_alloc of `a` bytes; `b`: the logarithm of the alignment, and 64 more for a zeroed block.
    Aligned "aligned",
    /// realloc of block `b` to `a` bytes.
    Realloc "realloc",
    /// free of block `b`; where `a` is 1 it is a large one of which the program made an OS page inaccessible.
    Free "free",
    /// malloc of `a` bytes, `b` times.
    Fill "fill",
    /// free of `a % 4096` blocks of this thread from `b` on, every `a / 4096 + 1`-th.
    Drain "drain",
    /// free of `a` blocks of other threads, from `b` on.
    Pass "pass",
    /// Contents and usable size of block `b`.
    Check "check",
    /// malloc_trim that keeps `a` bytes.
    Trim "trim",
    /// All free memory goes back.
    Purge "purge",
    /// The thread's caches go back.
    Rest "rest",
    /// The thread sleeps for `a` milliseconds.
    Sleep "sleep",
    /// The thread ends, after it made `a` calls without a heap; another one takes its place.
    End "end",
    /// The thread ends and leaves its heap behind; another one takes its place.
    Vanish "vanish",
    /// fork; the child makes some calls.
    Fork "fork",
    /// A child of vfork frees `a` blocks from `b` on.
    Vfork "vfork",
    /// A call during which there may be no helper.
    Alone "alone",
    /// All threads wait for each other, and everything is checked.
    Meet "meet",
}

/// Scenarios that are run with variations, among those that are drawn.
const KEPT: [&str; 5] = [
    include_str!("../scenarios/tail-of-a-slab.txt"),
    include_str!("../scenarios/end-in-a-visit.txt"),
    include_str!("../scenarios/guards.txt"),
    include_str!("../scenarios/all-end.txt"),
    include_str!("../scenarios/all-purge.txt"),
];

/// What threads do in a round.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Round {
    Any,
    Build,
    Tear,
}

/// A scenario.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The system, the policies, the schedule.
    pub config: Config,
    /// What each thread does.
    pub threads: Vec<Vec<Op>>,
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

impl Scenario {
    /// The scenario of a seed. Threads go through rounds, and meet behind each: in some they build up, in some they tear
    /// down while others look for free memory, in some they do anything.
    pub fn draw(seed: u64) -> Scenario {
        let mut r = Random::new(seed, 0);
        let config = Config::draw(&mut r, seed);
        match r.below(8) {
            0 | 1 => return Scenario::vary(&mut r, config),
            2..6 => return aim::draw(&mut r, config),
            _ => {}
        }
        let count = r.pick(&[1, 2, 2, 2, 3, 3, 4]);
        let mut scenario = Scenario { config, threads: vec![Vec::new(); count] };
        let rounds = 2 + r.below(6);
        let length = 2 + r.below(12);
        let forks = r.one_in(6);
        let class = r.pick(&[28_000, 28_000, 12_000, 6000, 3072, 1100, 512, 48]);
        let sizes =
            r.pick(&[Sizes::Small, Sizes::Holes, Sizes::Large, Sizes::Mixed, Sizes::One(class), Sizes::One(class)]);
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
                        Round::Any => Op::draw(&mut r, sizes, forks),
                        Round::Build => Op::draw_build(&mut r, sizes),
                        Round::Tear if looks => Op::draw_look(&mut r, sizes, &scenario.config, forks),
                        Round::Tear => Op::draw_tear(&mut r, sizes, forks),
                    };
                    ops.push(op);
                }
                ops.push(Op { kind: Kind::Meet, a: r.next() % 1000, b: 0 });
            }
        }
        scenario
    }

    /// A kept scenario with other operations here and there, and mostly on another system.
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
            let op = Op::draw(r, Sizes::Mixed, false);
            match r.below(3) {
                0 if at < ops.len() => ops[at] = op,
                1 if at < ops.len() => ops[at].b = op.b,
                _ => ops.insert(at, op),
            }
        }
        scenario
    }

    /// Its text, which [`Scenario::parse`] reads.
    pub fn text(&self) -> String {
        let mut text = String::new();
        self.config.write(&mut text);
        for ops in &self.threads {
            text.push_str("thread\n");
            for op in ops {
                let _ = writeln!(text, "  {} {} {}", op.kind.name(), op.a, op.b);
            }
        }
        text
    }

    /// Reads a scenario. Lines that begin with `#` are comments.
    pub fn parse(text: &str) -> Result<Scenario, String> {
        let mut scenario = Scenario { config: Config::default(), threads: Vec::new() };
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let wrong = || format!("not a line of a scenario: {line}");
            let number = |text: &str| text.trim().parse::<u64>().map_err(|_| wrong());
            if line == "thread" {
                scenario.threads.push(Vec::new());
            } else if let Some((name, value)) = line.split_once('=') {
                if !scenario.config.set(name.trim(), number(value)?) {
                    return Err(wrong());
                }
            } else {
                let mut words = line.split_whitespace();
                let kind = words.next().and_then(Kind::of).ok_or_else(wrong)?;
                let a = number(words.next().ok_or_else(wrong)?)?;
                let b = number(words.next().ok_or_else(wrong)?)?;
                scenario.threads.last_mut().ok_or_else(wrong)?.push(Op { kind, a, b });
            }
        }
        Ok(scenario)
    }
}

impl Op {
    /// Memory is used, freed in part, and used again.
    fn draw_build(r: &mut Random, sizes: Sizes) -> Op {
        let b = r.next() >> 32;
        let op = |kind, a, b| Op { kind, a, b };
        match r.below(16) {
            0..6 => {
                let size = sizes.draw(r);
                Op::draw_fill(r, size)
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
    fn draw_tear(r: &mut Random, sizes: Sizes, forks: bool) -> Op {
        let b = r.next() >> 32;
        let op = |kind, a, b| Op { kind, a, b };
        match r.below(16) {
            0..6 => op(Kind::Drain, r.scale(800) + 4096 * (r.next() % 2), b),
            6..9 => {
                let size = r.pick(&[40_000, 65_536, 65_536, 200_000, 8000, 300]);
                Op::draw_fill(r, size)
            }
            9 | 10 => op(Kind::End, r.next() % 3, b),
            11 => op(Kind::Rest, 0, 0),
            _ => Op::draw(r, sizes, forks),
        }
    }

    /// Free memory is looked for.
    fn draw_look(r: &mut Random, sizes: Sizes, config: &Config, forks: bool) -> Op {
        let op = |kind, a, b| Op { kind, a, b };
        match r.below(16) {
            0..4 => op(Kind::Trim, 0, 0),
            4..7 => op(Kind::Purge, 0, 0),
            7..11 => op(Kind::Sleep, (config.delay * (1 + r.next() % 10) / 5).min(3000), 0),
            _ => Op::draw(r, sizes, forks),
        }
    }

    fn draw_fill(r: &mut Random, size: u64) -> Op {
        // At most some MiB.
        let most = ((3 << 19) / size.max(64)).clamp(1, 300);
        Op { kind: Kind::Fill, a: size, b: r.scale(most) }
    }

    fn draw(r: &mut Random, sizes: Sizes, forks: bool) -> Op {
        let b = r.next() >> 32;
        let size = sizes.draw(r);
        let op = |kind, a, b| Op { kind, a, b };
        match r.below(64) {
            0..14 => op(Kind::Malloc, size, b),
            14..18 => op(Kind::Calloc, size, b),
            18 => op(Kind::Aligned, size.min(200_000), r.below(17) as u64 + 64 * (b & 1)),
            19..24 => op(Kind::Realloc, size, b),
            24..38 => op(Kind::Free, u64::from(b & 0xE00 == 0), b),
            38..43 => Op::draw_fill(r, size),
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
}
