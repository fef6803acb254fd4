//! The system, the policies and the schedule of a scenario.

use crate::sched::Policy;
use neap_core::policy::{Limit, Purge};
use neap_coretest::Choices;
use std::fmt::Write as _;

/// How the system behaves: bits of [`Config::habits`].
pub mod habits {
    /// The clock has steps of 10 ms.
    pub const COARSE: u64 = 1;
    /// Half of all calls are refused for a while.
    pub const BURSTS: u64 = 2;
    /// Memory is locked for a while, so that none of it can go back.
    pub const LOCKS: u64 = 4;
    /// Mappings are resized where they are, if there is room.
    pub const STAYS: u64 = 8;
    /// A limit on address space comes and goes.
    pub const LIMITS: u64 = 16;
    /// A refused call was done in part.
    pub const PARTS: u64 = 32;
    /// The program does not run while time passes, and run times of ended threads are missing.
    pub const IDLE: u64 = 64;
    /// The system reports whether a thread has ended.
    pub const NUMBERS: u64 = 128;
    /// The process gets other rights than the helper, or may make no unusual calls for a while.
    pub const RIGHTS: u64 = 256;
    /// The system reports short memory, also when it is not short.
    pub const PRESSURE: u64 = 512;
    /// Number of habits.
    pub const COUNT: u32 = 10;
}

/// Features that a system may lack: bits of [`Config::missing`].
pub mod lacks {
    #![expect(missing_docs, reason = "named after the calls")]
    pub const ZEROS: u64 = 1;
    pub const MOVE: u64 = 2;
    pub const RENEW: u64 = 4;
    pub const PURGE: u64 = 8;
    pub const PURGE_RUNS: u64 = 16;
    pub const LAZY: u64 = 32;
    pub const TOUCHED: u64 = 64;
    pub const BARRIER: u64 = 128;
    pub const MEMORY: u64 = 256;
    pub const POPULATE: u64 = 512;
    pub const RUN_TIME: u64 = 1024;
    pub const HELPER: u64 = 2048;
}

/// Declares the numbers of a scenario, and their text form.
macro_rules! numbers {
    ($($(#[$doc:meta])* $name:ident = $default:expr,)*) => {
        /// The system, the policies and the schedule of a scenario.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct Config {
            $($(#[$doc])* pub $name: u64,)*
            /// Whether futex waits may be interrupted.
            pub interrupts: bool,
        }

        impl Default for Config {
            fn default() -> Self {
                Config { $($name: $default,)* interrupts: false }
            }
        }

        impl Config {
            pub(crate) fn write(&self, text: &mut String) {
                $(if self.$name != $default { let _ = writeln!(text, "{} = {}", stringify!($name), self.$name); })*
                if self.interrupts {
                    let _ = writeln!(text, "interrupts = 1");
                }
            }

            pub(crate) fn set(&mut self, name: &str, value: u64) -> bool {
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
    /// Seed of all random choices.
    seed = 1,
    /// How threads are chosen: 0 at random, 1 by priorities, 2 exhaustively.
    schedule = 0,
    /// Mean steps between switches; the number of changes of priorities; limit on switches of an exhaustive search.
    rate = 50,
    /// Threads are stopped at places that the run rarely reaches: at one in this many first visits; 0: no place is
    /// preferred.
    rare = 0,
    /// Bytes of an OS page.
    page = 4096,
    /// Bytes of address space; 0: no limit.
    address_limit = 0,
    /// Reservations of a chosen address that are granted; 0: all.
    reservations = 0,
    /// Features that the system lacks.
    missing = 0,
    /// How the system changes and behaves: bits of [`habits`].
    habits = 0,
    /// Refused calls, in 1000.
    fault = 0,
    /// One system call in this many takes long; 0: none.
    late = 0,
    /// The same for calls that give memory back.
    purges = 0,
    /// The system's answer about its memory.
    memory = 0,
    /// Mean steps between two signals of a thread; 0: none.
    handlers = 0,
    /// Threads have no thread slots, so that there are no handshakes with them.
    slotless = 0,
    /// Other threads see stores to thread slots late, as from a store buffer.
    buffers = 0,
    /// Limit on the milliseconds of an operation.
    pace = 0,
    /// When free memory goes back.
    purge = 0,
    /// How long it waits, in milliseconds.
    delay = 500,
    /// Limit on what may wait: bytes plus 1; 0: no limit.
    bytes = 0,
    /// All blocks are zeroed.
    zero_always = 0,
    /// Threshold above which large blocks are unmapped at once, plus 1; 0: none.
    threshold = 0,
    /// The process's own limit: 0 automatic, 1 off, else bytes.
    limit = 0,
    /// Hardening.
    harden = 0,
    /// An exhaustive search switches threads from this meeting to the next one.
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

    /// The user's settings.
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
}
