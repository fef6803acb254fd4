//! Whether a pid still belongs to the same process, with the same program.

use crate::text;
use std::fs;
use std::os::unix::fs::MetadataExt;

/// The identity of a program in a process. Another process with the same number has another start time; another program
/// in the same process has another file, or its code or stack elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    started: u64,
    /// Where code and stack begin; 0 if this user may not know that.
    code: u64,
    stack: u64,
    /// Device and inode.
    file: Option<(u64, u64)>,
}

impl Identity {
    /// Whether this is the process and program of `other`, or its end: a process that has ended has no program.
    pub fn is_of(&self, other: &Identity) -> bool {
        let has_ended = self.code == 0 && self.stack == 0 && self.file.is_none();
        self.started == other.started && (has_ended || self == other)
    }

    /// Whether both execute one program, at the same addresses: one was forked from the other.
    pub fn is_fork_of(&self, other: &Identity) -> bool {
        self.code != 0 && (self.code, self.stack, self.file) == (other.code, other.stack, other.file)
    }
}

/// The identity of process `pid`; none if it has gone.
pub fn of(pid: u32) -> Option<Identity> {
    let file = fs::metadata(format!("/proc/{pid}/exe")).ok().map(|file| (file.dev(), file.ino()));
    parse(&text(format!("/proc/{pid}/stat")).ok()?, file)
}

/// The identity in a line of `stat`: fields 22, 26 and 28 of proc_pid_stat(5).
fn parse(stat: &str, file: Option<(u64, u64)>) -> Option<Identity> {
    let (_, tail) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = tail.split_ascii_whitespace().take(26).collect();
    let number = |at: usize| fields.get(at - 3)?.parse().ok();
    Some(Identity { started: number(22)?, code: number(26)?, stack: number(28)?, file })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn later_fork(of: &Identity) -> Identity {
        Identity { started: of.started + 7, ..of.clone() }
    }

    /// Catches wrong fields, and a name that moves them.
    #[test]
    fn fields() {
        let line = "7 (a) b) S 1 7 7 0 -1 4194560 1 0 3 0 5 2 0 0 20 0 1 0 8825 5 6 7 4096 9 140000 0 0";
        let seen = parse(line, None).expect("a process");
        assert_eq!((seen.started, seen.code, seen.stack), (8825, 4096, 140_000));
        let own = of(std::process::id()).expect("this process");
        assert!(own.code > 0 && own.stack > 0 && own.file.is_some() && Some(own) == of(std::process::id()));
        assert_eq!(of(u32::MAX), None);
        let ended = Identity { code: 0, stack: 0, ..seen.clone() };
        let later = Identity { started: 8826, ..ended.clone() };
        let other = Identity { stack: 150_000, ..seen.clone() };
        assert!(seen.is_fork_of(&later_fork(&seen)) && !ended.is_fork_of(&ended) && !other.is_fork_of(&seen));
        assert!(seen.is_of(&seen) && ended.is_of(&seen) && !later.is_of(&seen) && !other.is_of(&seen));
    }
}
