//! The figures of a process in `/proc/PID/stat`.

use std::fs;
use std::io;

use neap_trace::Usage;

/// The flag of the kernel's threads (linux/sched.h).
const PF_KTHREAD: u64 = 0x0020_0000;

/// The figures of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Faults of it and of the children that it waited for.
    pub usage: Usage,
    /// Whether it has ended, and its parent has not waited for it yet.
    pub ended: bool,
    /// Whether it is a kernel thread.
    pub kernel: bool,
}

impl Stat {
    /// Reads the figures of a process.
    pub fn of(pid: u32) -> io::Result<Self> {
        let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        Self::parse(&text).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// `pid (name) state ppid pgrp session tty tpgid flags minflt cminflt majflt cmajflt ...`, and num_threads as the
    /// 20th.
    fn parse(text: &str) -> Option<Self> {
        // The name may contain blanks and parentheses.
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
        // The first thread of a process can end before the others.
        let ended = matches!(*fields.first()?, "Z" | "X") && number(20)? <= 1;
        let kernel = number(9)? & PF_KTHREAD != 0;
        Some(Self {
            usage: Usage { minor: number(10)? + number(11)?, major: number(12)? + number(13)? },
            ended,
            kernel,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches counts from the wrong columns, names that stop the parsing, and a process that counts as ended when only
    /// its first thread has.
    #[test]
    fn stat_is_read() {
        let line = |state: &str, threads: u32| {
            format!("7 (a) b) c) {state} 1 7 7 0 -1 4194304 100 20 3 4 5 6 7 8 20 0 {threads} 0 99 1000 10")
        };
        let usage = Usage { minor: 120, major: 7 };
        assert_eq!(Stat::parse(&line("S", 1)), Some(Stat { usage, ended: false, kernel: false }));
        assert_eq!(Stat::parse(&line("Z", 1)), Some(Stat { usage, ended: true, kernel: false }));
        assert_eq!(Stat::parse(&line("Z", 2)), Some(Stat { usage, ended: false, kernel: false }));
        assert_eq!(Stat::parse("7 (a) S 1 2"), None);
        let kernel = line("S", 1).replace("4194304", "2129984");
        assert_eq!(Stat::parse(&kernel), Some(Stat { usage, ended: false, kernel: true }));
    }
}
