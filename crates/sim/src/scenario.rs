//! Scenarios: a system, policies, and the operations of each thread. `draw.rs` draws them; a file may hold one.

use crate::config::Config;
use std::fmt::Write as _;

/// An operation of a thread, with two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op {
    /// The kind of operation.
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
    /// Gives all free memory back.
    Purge "purge",
    /// Gives the thread's caches back.
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
    /// A call that excludes the helper.
    Alone "alone",
    /// All threads wait for each other, and everything is checked.
    Meet "meet",
}

/// A scenario.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The system, the policies, the schedule.
    pub config: Config,
    /// The operations of each thread.
    pub threads: Vec<Vec<Op>>,
}

impl Scenario {
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
