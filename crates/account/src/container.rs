//! The account of a cgroup: its processes, and the memory that the kernel charges to it and that belongs to no process.
//!
//! **The rule.** The kernel's `memory.stat` says what is charged, by kind. Anonymous memory is divided among the
//! processes: each has its anonymous Pss, scaled down if the sum is more than what is charged. Mapped file memory is
//! charged to the cgroup whose process read it first, so the page cache is one account; files in memory (tmpfs) and
//! System V memory are another. `other` is the rest of what is charged.

use crate::model::{Account, Cause, Kind, Remedy};
use crate::shell;
use crate::units::{bytes, percent};
use serde::Serialize;

/// The version of the JSON.
pub const SCHEMA: &str = "neap.why.cgroup/1";

/// The kernel's figures of a cgroup, in bytes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Charged {
    /// Its path below the root of the hierarchy.
    pub path: String,
    /// Everything.
    pub current: u64,
    /// The limit; `None` for none.
    pub limit: Option<u64>,
    /// Private memory without a file.
    pub anon: u64,
    /// The page cache, including files in memory.
    pub file: u64,
    /// Part of it: files in memory and shared memory.
    pub shmem: u64,
    /// Part of the page cache: not yet written to the disk.
    pub dirty: u64,
    /// Part of the page cache: mapped by processes.
    pub mapped: u64,
    /// Slab that the kernel can free.
    pub slab_reclaimable: u64,
    /// Slab that it cannot.
    pub slab_unreclaimable: u64,
    /// Buffers of sockets.
    pub sockets: u64,
    /// Page tables.
    pub page_tables: u64,
    /// Stacks in the kernel.
    pub kernel_stacks: u64,
    /// Per-processor data.
    pub percpu: u64,
    /// The kernel's memory if it has no finer figures.
    pub kernel: u64,
    /// Swapped out.
    pub swap: u64,
    /// Whether it is version 2 of cgroups.
    pub v2: bool,
    /// Where its files are.
    pub folder: String,
}

/// A process in a cgroup.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Member {
    /// The process.
    pub pid: u32,
    /// The program and its arguments.
    pub command: String,
    /// Rss.
    pub rss_bytes: u64,
    /// Pss.
    pub pss_bytes: u64,
    /// Of Pss: memory without a file.
    pub anonymous_bytes: u64,
}

impl Member {
    /// The program without its folder and its arguments.
    fn name(&self) -> &str {
        let program = self.command.split(' ').next().unwrap_or("");
        program.rsplit('/').next().unwrap_or(program)
    }
}

/// A file in memory that a process of the cgroup can see.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MemoryFile {
    /// Its path.
    pub path: String,
    /// Bytes that it takes.
    pub bytes: u64,
}

/// The account of a cgroup.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Container {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// Its path.
    pub path: String,
    /// What is charged to it: `memory.current`. Named as in the account of a process.
    pub rss_bytes: u64,
    /// Its limit.
    pub limit_bytes: Option<u64>,
    /// Swapped out.
    pub swap_bytes: u64,
    /// What is charged, by owner.
    pub accounts: Vec<Account>,
    /// Its processes, the largest first.
    pub processes: Vec<Member>,
    /// The main finding.
    pub cause: Cause,
    /// The same in a sentence.
    pub verdict: String,
    /// Possible actions.
    pub remedies: Vec<Remedy>,
    /// What else a reader should know.
    pub notes: Vec<String>,
}

/// The account of a cgroup, of its processes and the files in memory that were found.
pub fn container(of: &Charged, mut members: Vec<Member>, files: &[MemoryFile], notes: Vec<String>) -> Container {
    members.sort_by_key(|member| std::cmp::Reverse(member.pss_bytes));
    let accounts = accounts(of, &members);
    let (cause, verdict, remedies) = judge(of, &members, files);
    Container {
        schema: SCHEMA,
        path: of.path.clone(),
        rss_bytes: of.current,
        limit_bytes: of.limit,
        swap_bytes: of.swap,
        accounts,
        processes: members,
        cause,
        verdict,
        remedies,
        notes,
    }
}

fn account(kind: Kind, owner: impl Into<String>, bytes: u64, note: Option<String>) -> Account {
    Account {
        kind,
        owner: owner.into(),
        bytes,
        pss_bytes: bytes,
        private_bytes: bytes,
        dirty_bytes: 0,
        swap_bytes: 0,
        reserved_bytes: 0,
        mappings: 0,
        note,
    }
}

/// What is charged, the largest first.
fn accounts(of: &Charged, members: &[Member]) -> Vec<Account> {
    let mut all = Vec::new();
    let mut anon = of.anon;
    let sum: u64 = members.iter().map(|member| member.anonymous_bytes).sum();
    for member in members {
        // A sum above what is charged: part of it is charged to other cgroups.
        let bytes = match sum > of.anon {
            true => (u128::from(member.anonymous_bytes) * u128::from(of.anon) / u128::from(sum.max(1))) as u64,
            false => member.anonymous_bytes,
        };
        anon -= bytes.min(anon);
        let name = member.name();
        all.push(account(Kind::Anonymous, format!("process {} {name}", member.pid), bytes, None));
    }
    all.push(account(Kind::Anonymous, "charged to it, in none of its processes", anon, None));
    let cache = of.file.saturating_sub(of.shmem);
    let mapped =
        (of.mapped > 0).then(|| format!("{} of it mapped, {} not yet on the disk", bytes(of.mapped), bytes(of.dirty)));
    all.push(account(Kind::File, "page cache", cache, mapped));
    all.push(account(Kind::Shared, "tmpfs and shared memory", of.shmem, None));
    let kernel = [
        ("kernel: reclaimable slab", of.slab_reclaimable),
        ("kernel: slab", of.slab_unreclaimable),
        ("kernel: sockets", of.sockets),
        ("kernel: page tables", of.page_tables),
        ("kernel: stacks", of.kernel_stacks),
        ("kernel: per-processor data", of.percpu),
        ("kernel: not split further", of.kernel),
    ];
    let mut left = of.current.saturating_sub(of.anon + of.file);
    for (owner, bytes) in kernel {
        let bytes = bytes.min(left);
        left -= bytes;
        all.push(account(Kind::Vdso, owner, bytes, None));
    }
    all.push(account(Kind::Other, "charged, in none of the kernel's figures", left, None));
    all.retain(|account| account.bytes > 0);
    all.sort_by_key(|account| std::cmp::Reverse(account.bytes));
    all
}

/// What takes most, in a sentence, and what would give it back.
fn judge(of: &Charged, members: &[Member], files: &[MemoryFile]) -> (Cause, String, Vec<Remedy>) {
    let cache = of.file.saturating_sub(of.shmem);
    let kernel = of.current.saturating_sub(of.anon + of.file);
    let all =
        [(of.anon, Cause::Anonymous), (cache, Cause::PageCache), (of.shmem, Cause::Tmpfs), (kernel, Cause::Kernel)];
    let (most, cause) = all.into_iter().max_by_key(|(bytes, _)| *bytes).unwrap_or((0, Cause::Nothing));
    let whole = bytes(of.current);
    let first = match cause {
        Cause::PageCache => format!(
            "{} of {whole} are page cache, which the kernel takes back by itself when memory is short",
            bytes(cache)
        ),
        Cause::Tmpfs => {
            let file = files
                .first()
                .map_or(String::new(), |file| format!(", the largest {} ({})", file.path, bytes(file.bytes)));
            format!("{} of {whole} are files in memory (tmpfs) and shared memory, in no process{file}", bytes(of.shmem))
        }
        Cause::Kernel => format!("{} of {whole} are the kernel's own (slab, sockets, page tables)", bytes(kernel)),
        _ => {
            let who = members.first().map_or(String::new(), |member| {
                let name = member.name();
                format!(
                    ", most of it process {} {name} ({}): `neap why {}`",
                    member.pid,
                    bytes(member.pss_bytes),
                    member.pid
                )
            });
            match members.len() {
                1 => format!("{} of {whole} are memory of its process{who}", bytes(most)),
                count => format!("{} of {whole} are memory of its {count} processes{who}", bytes(most)),
            }
        }
    };
    let limit = match of.limit {
        Some(limit) if percent(of.current, limit) >= 80 => format!("; the limit is {}", bytes(limit)),
        _ => String::new(),
    };
    (cause, format!("{first}{limit}."), remedies(of, cache, files))
}

fn remedies(of: &Charged, cache: u64, files: &[MemoryFile]) -> Vec<Remedy> {
    let clean = cache.saturating_sub(of.dirty) + of.slab_reclaimable;
    let (amount, file) = if of.v2 { (clean, "memory.reclaim") } else { (0, "memory.force_empty") };
    let file = shell::word(&format!("{}/{file}", of.folder));
    let reclaim = file.map_or_else(String::new, |file| format!("echo {amount} > {file}"));
    let mut all = vec![Remedy {
        text: "Make the kernel drop page cache and its own caches now; it does so by itself before it kills a process."
            .into(),
        command: reclaim,
        bytes: clean,
        rule: "page cache that is neither dirty nor a file in memory; slab that the kernel can free".into(),
        now: true,
    }];
    for file in files.iter().take(5) {
        all.push(Remedy {
            text: "Remove a file in memory.".into(),
            command: shell::word(&file.path).map_or_else(String::new, |path| format!("rm {path}")),
            bytes: file.bytes,
            rule: "the bytes that the file takes; they stay while a process has it open".into(),
            now: true,
        });
    }
    all.retain(|remedy| remedy.bytes >= 64 << 10);
    all.sort_by_key(|remedy| std::cmp::Reverse(remedy.bytes));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches accounts that do not add up to what is charged, also where processes have more than that.
    #[test]
    fn what_is_charged_is_divided() {
        let of = Charged {
            current: 1000 << 20,
            anon: 300 << 20,
            file: 500 << 20,
            shmem: 400 << 20,
            sockets: 50 << 20,
            ..Charged::default()
        };
        let member =
            |pid, mib: u64| Member { pid, command: "p x".into(), anonymous_bytes: mib << 20, ..Member::default() };
        for members in [vec![member(1, 100), member(2, 100)], vec![member(1, 400), member(2, 200)], Vec::new()] {
            let made = container(&of, members, &[], Vec::new());
            let sum: u64 = made.accounts.iter().map(|account| account.bytes).sum();
            assert!(of.current - sum < 16, "{sum}");
            assert_eq!(made.cause, Cause::Tmpfs);
        }
    }

    /// Catches a remedy with more bytes than can go back, and files without a name in the account.
    #[test]
    fn files_in_memory_are_named() {
        let of = Charged {
            current: 500 << 20,
            file: 450 << 20,
            shmem: 400 << 20,
            dirty: 20 << 20,
            slab_reclaimable: 5 << 20,
            v2: true,
            ..Charged::default()
        };
        let files = |path: &str| [MemoryFile { path: path.into(), bytes: 390 << 20 }];
        let made = container(&of, Vec::new(), &files("/dev/shm/x; id"), Vec::new());
        assert_eq!(made.remedies[0].command, "rm '/dev/shm/x; id'");
        let made = container(&of, Vec::new(), &files("/dev/shm/x\u{202e}y"), Vec::new());
        assert_eq!(made.remedies[0].command, "");
        let made = container(&of, Vec::new(), &files("/dev/shm/x"), Vec::new());
        let remedies: Vec<(&str, u64)> = made.remedies.iter().map(|r| (r.command.as_str(), r.bytes >> 20)).collect();
        assert_eq!(remedies, [("rm /dev/shm/x", 390), ("echo 36700160 > /memory.reclaim", 35)]);
        assert!(made.verdict.contains("/dev/shm/x"), "{}", made.verdict);
    }
}
