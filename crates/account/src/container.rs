//! The account of a cgroup: its processes, and the memory that the kernel charges to it and that belongs to no process.
//!
//! **The rule.** The kernel's `memory.stat` says what is charged, by kind. Anonymous memory is divided among the
//! processes: each has its anonymous Pss, scaled down if the sum is more than what is charged. Mapped file memory is
//! charged to the cgroup whose process read it first, so the page cache is one account. Files in memory and shared memory
//! are accounts of their holders ([`crate::holder`]), as far as these are known to be charged to the cgroup.
//!
//! A huge page of which the program freed a part stays whole until the kernel splits it. The freed part is charged, and
//! on the kernel's lists of anonymous memory, but no process maps it: this is how it is found. `other` is the rest of
//! what is charged.

use crate::holder::{self, Holder};
use crate::model::{Account, Action, Cause, Kind, Remedy};
use crate::units::{bytes, percent};
use crate::{shell, trial};
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
    /// Part of the page cache, and of files in memory: mapped by processes.
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
    /// Anonymous memory, files in memory and shared memory on the kernel's lists, except locked memory.
    pub anon_lists: u64,
    /// Part of it: swapped in, and still in swap too.
    pub swap_cached: u64,
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
    pub fn name(&self) -> &str {
        let program = self.command.split(' ').next().unwrap_or("");
        program.rsplit('/').next().unwrap_or(program)
    }
}

/// Least freed parts of huge pages: the kernel's figures are from slightly different moments.
const FREED: u64 = 1 << 20;

impl Charged {
    /// Page cache that is not a file in memory.
    fn cache(&self) -> u64 {
        self.file.saturating_sub(self.shmem)
    }

    /// What is known of it. Files in memory that are mapped are in the kernel's figure too.
    fn cached(&self) -> Option<String> {
        let mapped = self.mapped.min(self.cache());
        let most = if self.shmem > 0 { "up to " } else { "" };
        (mapped > 0).then(|| format!("{most}{} of it mapped, {} not yet on the disk", bytes(mapped), bytes(self.dirty)))
    }

    /// Freed parts of huge pages.
    fn freed(&self) -> u64 {
        let freed = self.anon_lists.saturating_sub(self.anon + self.shmem + self.swap_cached);
        let freed = freed.min(self.current.saturating_sub(self.anon + self.file));
        if freed >= FREED { freed } else { 0 }
    }

    /// What the kernel has for itself.
    fn kernels(&self) -> u64 {
        self.current.saturating_sub(self.anon + self.file + self.freed())
    }
}

/// Memory in the kernel that a process of the cgroup causes: pipes, BPF maps.
#[derive(Clone, Debug, PartialEq)]
pub struct InKernel {
    /// What and how much of it, in words: `500 pipes with 125.0 MiB in them`.
    pub words: String,
    /// Its bytes.
    pub bytes: u64,
    /// The process that has it open: number and name.
    pub user: (u32, String),
}

/// What was found besides the kernel's figures.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Found {
    /// The processes.
    pub members: Vec<Member>,
    /// Files in memory and shared memory.
    pub holders: Vec<Holder>,
    /// Memory in the kernel.
    pub in_kernel: Vec<InKernel>,
    /// What else a reader should know.
    pub notes: Vec<String>,
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

/// The account of a cgroup.
pub fn container(of: &Charged, found: Found) -> Container {
    let Found { mut members, holders, mut in_kernel, mut notes } = found;
    members.sort_by_key(|member| std::cmp::Reverse(member.pss_bytes));
    in_kernel.sort_by_key(|of| std::cmp::Reverse(of.bytes));
    let own = holder::own(&holders, of.shmem);
    notes.extend(holder::unknown(&holders, of.shmem));
    notes.extend(in_kernel.iter().map(|of| {
        let (pid, name) = &of.user;
        format!("process {pid} {name} has {} open, which are memory of the kernel", of.words)
    }));
    let accounts = accounts(of, &members, &own);
    let (cause, verdict) = judge(of, &members, &own, &in_kernel);
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
        remedies: remedies(of, &own),
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
fn accounts(of: &Charged, members: &[Member], own: &[Holder]) -> Vec<Account> {
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
    all.push(account(Kind::File, "page cache", of.cache(), of.cached()));
    all.extend(holder::accounts(own, of.shmem, account));
    all.push(account(Kind::Vdso, "parts of huge pages that were freed", of.freed(), None));
    let kernel = [
        ("kernel: reclaimable slab", of.slab_reclaimable),
        ("kernel: slab", of.slab_unreclaimable),
        ("kernel: sockets", of.sockets),
        ("kernel: page tables", of.page_tables),
        ("kernel: stacks", of.kernel_stacks),
        ("kernel: per-processor data", of.percpu),
        ("kernel: not split further", of.kernel),
    ];
    let mut left = of.kernels();
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

/// What takes most, in a sentence.
fn judge(of: &Charged, members: &[Member], own: &[Holder], in_kernel: &[InKernel]) -> (Cause, String) {
    let all = [
        (of.anon, Cause::Anonymous),
        (of.cache(), Cause::PageCache),
        (of.shmem, Cause::Tmpfs),
        (of.freed(), Cause::FreedHuge),
        (of.kernels(), Cause::Kernel),
    ];
    let (most, cause) = all.into_iter().max_by_key(|(bytes, _)| *bytes).unwrap_or((0, Cause::Nothing));
    let (most, whole) = (bytes(most), bytes(of.current));
    let first = match cause {
        Cause::PageCache => {
            format!("{most} of {whole} are page cache, which the kernel takes back by itself when memory is short")
        }
        Cause::Tmpfs => {
            let largest = own.first().map_or("; what holds them is not known".into(), |holder| {
                let charged = bytes(holder.charged.unwrap_or(0));
                format!("; the largest is {} ({charged}): {}", holder.name(), holder.users())
            });
            format!("{most} of {whole} are files in memory (tmpfs, memfd) and shared memory{largest}")
        }
        Cause::FreedHuge => format!(
            "{most} of {whole} are parts of huge pages that its processes have freed; the kernel takes them back when \
             memory is short"
        ),
        Cause::Kernel => {
            let who = in_kernel.first().filter(|held| percent(held.bytes, of.current) >= 5).map(|held| {
                let (pid, name) = &held.user;
                format!("; process {pid} {name} has {} open", held.words)
            });
            format!(
                "{most} of {whole} are the kernel's own (slab, sockets, page tables, pipes, BPF maps){}",
                who.unwrap_or_default()
            )
        }
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
                1 => format!("{most} of {whole} are memory of its process{who}"),
                count => format!("{most} of {whole} are memory of its {count} processes{who}"),
            }
        }
    };
    let limit = match of.limit {
        Some(limit) if percent(of.current, limit) >= 80 => format!("; the limit is {}", bytes(limit)),
        _ => String::new(),
    };
    (cause, format!("{first}{limit}."))
}

fn remedies(of: &Charged, own: &[Holder]) -> Vec<Remedy> {
    let amount = of.cache().saturating_sub(of.dirty) + of.slab_reclaimable + of.freed();
    let (argument, file) = if of.v2 { (amount, "memory.reclaim") } else { (0, "memory.force_empty") };
    let file = shell::word(&format!("{}/{file}", of.folder));
    let reclaim = Remedy {
        command: file.map_or_else(String::new, |file| format!("echo {argument} > {file}")),
        rule: "page cache that is neither dirty nor a file in memory; slab that the kernel can free; freed parts of \
               huge pages"
            .into(),
        ..Remedy::new(
            Action::Reclaim,
            "Make the kernel drop page cache, its own caches and freed parts of huge pages now; it does so by itself \
             before it kills a process.",
            amount,
        )
    };
    let mut all: Vec<Remedy> = std::iter::once(reclaim).chain(holder::remedies(own)).collect();
    all.retain(|remedy| remedy.bytes >= holder::LEAST && trial::is_proven(remedy.action));
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
            let made = container(&of, Found { members, ..Found::default() });
            let sum: u64 = made.accounts.iter().map(|account| account.bytes).sum();
            assert!(of.current - sum < 16, "{sum}");
            assert_eq!(made.cause, Cause::Tmpfs);
        }
    }

    /// Catches a remedy with more bytes than can go back, and holders that are not in the account or the verdict.
    #[test]
    fn holders_are_named() {
        let of = Charged {
            current: 500 << 20,
            file: 450 << 20,
            shmem: 400 << 20,
            dirty: 20 << 20,
            slab_reclaimable: 5 << 20,
            v2: true,
            ..Charged::default()
        };
        let look = |charged: Option<u64>, user: Option<(u32, String)>| {
            let what = holder::What::File { path: "/dev/shm/x".into(), links: 1 };
            let (charged, is_unused) = (charged.map(|mib| mib << 20), user.is_none());
            let holders = vec![Holder { what, bytes: 390 << 20, charged, user, is_unused }];
            container(&of, Found { holders, ..Found::default() })
        };
        let reclaim = ("echo 36700160 > /memory.reclaim", 35);
        let remedies = |of: &Container| -> Vec<(String, u64)> {
            of.remedies.iter().map(|remedy| (remedy.command.clone(), remedy.bytes >> 20)).collect()
        };
        let own = look(Some(390), None);
        assert_eq!(remedies(&own), [("rm /dev/shm/x".into(), 390), (reclaim.0.into(), reclaim.1)]);
        assert!(own.verdict.contains("/dev/shm/x (390.0 MiB): in no process"), "{}", own.verdict);
        let shared = |of: &Container| {
            let shared = of.accounts.iter().filter(|of| of.kind == Kind::Shared);
            shared.map(|of| (of.owner.clone(), of.bytes >> 20)).collect::<Vec<_>>()
        };
        assert_eq!(shared(&own), [("/dev/shm/x".into(), 390), ("tmpfs and shared memory".into(), 10)]);
        let open = look(Some(390), Some((7, "p".into())));
        assert!(open.verdict.contains("process 7 p has it") && remedies(&open).len() == 1, "{}", open.verdict);
        // Of another service, or perhaps.
        for charged in [Some(0), None] {
            let other = look(charged, None);
            assert_eq!(remedies(&other), [(reclaim.0.to_owned(), reclaim.1)]);
            assert!(!other.verdict.contains("/dev/shm/x"), "{}", other.verdict);
            assert_eq!(other.notes.len(), usize::from(charged.is_none()), "{:?}", other.notes);
            assert_eq!(shared(&other), [("tmpfs and shared memory".into(), 400)]);
        }
    }

    /// Catches more page cache that is mapped than there is: mapped files in memory are in the kernel's figure.
    #[test]
    fn no_more_is_mapped_than_there_is() {
        let cached = |shmem: u64, mapped: u64| {
            Charged { file: (shmem + 15) << 20, shmem: shmem << 20, mapped: mapped << 20, ..Charged::default() }
                .cached()
        };
        assert_eq!(cached(30, 20).as_deref(), Some("up to 15.0 MiB of it mapped, 0 B not yet on the disk"));
        assert_eq!(cached(0, 3).as_deref(), Some("3.0 MiB of it mapped, 0 B not yet on the disk"));
        assert_eq!(cached(30, 0), None);
    }

    /// Catches freed parts of huge pages that are taken for the kernel's memory, and more of them than there is.
    #[test]
    fn freed_parts_of_huge_pages_go_back() {
        let lists = |lists: u64| {
            let of = Charged { current: 200 << 20, anon: 1 << 20, anon_lists: lists << 20, ..Charged::default() };
            container(&of, Found::default())
        };
        let of = lists(190);
        assert_eq!((of.cause, of.remedies[0].bytes), (Cause::FreedHuge, 189 << 20));
        assert_eq!(of.remedies[0].command, "echo 0 > /memory.force_empty");
        assert_eq!(lists(300).remedies[0].bytes, 199 << 20);
        assert!(lists(1).remedies.is_empty() && lists(1).cause == Cause::Kernel);
    }
}
