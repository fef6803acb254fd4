//! What holds files in memory and shared memory of a cgroup, and which of it can be removed.
//!
//! **The rule.** A process sees files that belong to other services, so seeing a file proves nothing. A holder counts
//! for the cgroup with the bytes that the kernel charges to it, if the kernel tells ([`Holder::charged`]). A command that
//! removes something is printed only if all of it is charged to the cgroup, and if no process has it open: then it is
//! the cgroup's own, and its bytes go back.

use crate::model::{Account, Action, Kind, Remedy};
use crate::shell;
use crate::units::bytes;

/// Holders of less than this are left out.
pub const LEAST: u64 = 64 << 10;

/// What holds the memory.
#[derive(Clone, Debug, PartialEq)]
pub enum What {
    /// A file that has a name; how many names.
    File {
        /// Its path.
        path: String,
        /// Its names: removing one of several gives nothing back.
        links: u64,
    },
    /// A file without a name, which is there while a process has it: memfd, deleted, shared anonymous mapping.
    Nameless {
        /// How the kernel calls it.
        name: String,
    },
    /// A System V segment.
    Segment {
        /// Its number.
        id: i32,
        /// A process in its namespace, if that is another one than neap's.
        of: Option<u32>,
    },
}

/// A holder of memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Holder {
    /// What.
    pub what: What,
    /// Bytes that it takes.
    pub bytes: u64,
    /// Part of it: charged to this cgroup; none if that is not known.
    pub charged: Option<u64>,
    /// The process that has it open or mapped, if one has: its number and name.
    pub user: Option<(u32, String)>,
    /// Whether it is known that no process of the machine has it.
    pub is_unused: bool,
}

impl Holder {
    /// What it is called in accounts.
    pub fn name(&self) -> String {
        match &self.what {
            What::File { path, .. } => path.clone(),
            What::Nameless { name } => name.clone(),
            What::Segment { id, .. } => format!("System V segment {id}"),
        }
    }

    /// The process that has it, in words; or that it has none.
    pub fn users(&self) -> String {
        match &self.user {
            Some((pid, name)) => format!("process {pid} {name} has it"),
            None if self.is_unused => "in no process".into(),
            None => "in no process of the cgroup".into(),
        }
    }

    /// Whether it is this cgroup's alone.
    fn is_own(&self) -> bool {
        self.charged.is_some_and(|charged| charged == self.bytes)
    }

    /// The command that removes it, if it may be printed.
    fn removal(&self) -> Option<(Action, String)> {
        if !self.is_own() || !self.is_unused {
            return None;
        }
        match &self.what {
            What::File { path, links: 1 } => Some((Action::RemoveFile, format!("rm {}", shell::word(path)?))),
            What::Segment { id, of: None } => Some((Action::RemoveSegment, format!("ipcrm -m {id}"))),
            What::Segment { id, of: Some(pid) } => {
                Some((Action::RemoveSegment, format!("nsenter -i -t {pid} ipcrm -m {id}")))
            }
            _ => None,
        }
    }
}

/// Holders that count for the cgroup, those with most first, with at most `shmem` bytes together.
pub fn own(holders: &[Holder], shmem: u64) -> Vec<Holder> {
    let charged = |holder: &Holder| holder.charged.unwrap_or(0);
    let mut own: Vec<Holder> = holders.iter().filter(|holder| charged(holder) >= LEAST).cloned().collect();
    own.sort_by_key(|holder| std::cmp::Reverse(charged(holder)));
    let mut left = shmem;
    for holder in &mut own {
        let bytes = charged(holder).min(left);
        left -= bytes;
        // The kernel's sum lags behind: what is over belongs to no other cgroup.
        holder.bytes -= charged(holder) - bytes;
        holder.charged = Some(bytes);
    }
    own.retain(|holder| charged(holder) >= LEAST);
    own
}

/// Accounts of the holders, and of what is charged for none of them.
pub fn accounts(own: &[Holder], shmem: u64, of: impl Fn(Kind, String, u64, Option<String>) -> Account) -> Vec<Account> {
    let mut left = shmem;
    let mut all = Vec::new();
    for holder in own {
        let charged = holder.charged.unwrap_or(0);
        left -= charged.min(left);
        let rest = holder.bytes - charged.min(holder.bytes);
        let rest = (rest >= LEAST).then(|| format!("{} more are charged to other cgroups", bytes(rest)));
        let note = std::iter::once(holder.users()).chain(rest).reduce(|one, next| format!("{one}; {next}"));
        all.push(of(Kind::Shared, holder.name(), charged, note));
    }
    all.push(of(Kind::Shared, "tmpfs and shared memory".into(), left, None));
    all
}

/// What can be removed.
pub fn remedies(own: &[Holder]) -> impl Iterator<Item = Remedy> {
    own.iter().filter_map(|holder| {
        let (action, command) = holder.removal()?;
        let text = match action {
            Action::RemoveFile => "Remove a file in memory that no process has open, if its contents are not needed.",
            _ => "Remove a System V segment that no process has attached, if its contents are not needed.",
        };
        Some(Remedy {
            command,
            rule: "its OS pages that the kernel charges to this cgroup: all of them".into(),
            ..Remedy::new(action, text, holder.charged.unwrap_or(0))
        })
    })
}

/// What remains unknown, for a note: files that its processes see and that may be charged to it.
pub fn unknown(holders: &[Holder], shmem: u64) -> Option<String> {
    let mut may_be: Vec<&Holder> =
        holders.iter().filter(|of| of.charged.is_none() && (LEAST..=shmem).contains(&of.bytes)).collect();
    may_be.sort_by_key(|of| std::cmp::Reverse(of.bytes));
    let named = |of: &&Holder| format!("{} ({}; {})", of.name(), bytes(of.bytes), of.users());
    let names: Vec<String> = may_be.iter().take(3).map(named).collect();
    (!names.is_empty()).then(|| {
        format!(
            "which files in memory are charged to it is not known (root of the machine may know, on kernels with \
             /proc/kpagecgroup). Its processes see {}, which may be other services'",
            names.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn file(path: &str, mib: u64, charged: Option<u64>) -> Holder {
        let what = What::File { path: path.into(), links: 1 };
        Holder { what, bytes: mib * MIB, charged: charged.map(|mib| mib * MIB), user: None, is_unused: true }
    }

    /// Catches commands that remove what is another service's, partly or perhaps, or what gives nothing back.
    #[test]
    fn only_its_own_is_removed() {
        let commands = |holder: Holder| -> Vec<String> {
            remedies(&own(&[holder], 1 << 40)).map(|remedy| remedy.command).collect()
        };
        let mine = file("/dev/shm/mine", 30, Some(30));
        assert_eq!(commands(mine.clone()), ["rm /dev/shm/mine"]);
        assert_eq!(commands(file("/dev/shm/x; id", 30, Some(30))), ["rm '/dev/shm/x; id'"]);
        let none = [""; 0];
        assert_eq!(commands(file("/dev/shm/x\u{202e}y", 30, Some(30))), none);
        assert_eq!(commands(file("/dev/shm/theirs", 30, Some(0))), none);
        assert_eq!(commands(file("/dev/shm/partly", 30, Some(29))), none);
        assert_eq!(commands(file("/dev/shm/unknown", 30, None)), none);
        assert_eq!(commands(Holder { is_unused: false, ..mine.clone() }), none);
        assert_eq!(commands(Holder { what: What::File { path: "/x".into(), links: 2 }, ..mine.clone() }), none);
        assert_eq!(commands(Holder { what: What::Nameless { name: "memfd:x".into() }, ..mine.clone() }), none);
        let segment = |of| Holder { what: What::Segment { id: 5, of }, ..mine.clone() };
        assert_eq!(commands(segment(None)), ["ipcrm -m 5"]);
        assert_eq!(commands(segment(Some(71))), ["nsenter -i -t 71 ipcrm -m 5"]);
    }

    /// Catches holders that have more than is charged together, and promises of more than that.
    #[test]
    fn holders_are_bounded_by_what_is_charged() {
        let all = [file("/a", 30, Some(30)), file("/b", 20, Some(20)), file("/c", 9, None)];
        let own = own(&all, 40 * MIB);
        assert_eq!(own.iter().map(|of| of.charged.unwrap_or(0) / MIB).collect::<Vec<_>>(), [30, 10]);
        assert_eq!(remedies(&own).map(|of| of.bytes / MIB).collect::<Vec<_>>(), [30, 10]);
        assert!(
            unknown(&all, 8 * MIB).is_none() && unknown(&all, 9 * MIB).is_some_and(|text| text.contains("/c (9.0"))
        );
        assert!(super::own(&all, 0).is_empty());
    }
}
