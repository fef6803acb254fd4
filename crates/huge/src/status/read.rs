//! Reads everything that the status shows from files below a root folder. What cannot be read is noted in one line.

use neap_hugetlb::pool::{self, Pool};
use neap_hugetlb::{Root, size};
use neap_launch::error::system_message;
use neap_launch::units::{bytes, count, counted};
use serde::Serialize;

use super::mounts::{self, Mount};
use super::row::Row;
use super::{limits, settings};
use crate::held::{self, Left};
use crate::sys;

/// Name and version of the JSON schema; raised when a field changes its meaning or is removed.
pub const SCHEMA: &str = "neap.huge.status/1";

/// The whole status.
#[derive(Debug, Serialize)]
pub struct Status {
    pub schema: &'static str,
    pub kernel: Option<String>,
    pub page_bytes: u64,
    pub processor: Vec<Row>,
    pub pools: Vec<PoolEntry>,
    pub reservations: Vec<Reserved>,
    /// What holds pages without a process.
    pub left: Vec<Left>,
    pub mounts: Vec<Mount>,
    pub transparent: Vec<Row>,
    pub transparent_sizes: Vec<settings::Size>,
    pub limits: Vec<Row>,
    /// What could not be read, and why.
    pub missing: Vec<String>,
}

/// A pool.
#[derive(Debug, Serialize)]
pub struct PoolEntry {
    pub bytes: u64,
    pub total: u64,
    pub free: u64,
    pub reserved: u64,
    pub surplus: u64,
    pub overcommit: u64,
    pub nodes: Vec<Node>,
    pub means: String,
    pub change: String,
}

/// The part of a pool on one NUMA node.
#[derive(Debug, Serialize)]
pub struct Node {
    pub node: u32,
    pub total: u64,
    pub free: u64,
    pub surplus: u64,
}

/// A reservation of `neap huge reserve`.
#[derive(Debug, Serialize)]
pub struct Reserved {
    pub pid: u32,
    /// False: neap was killed, and the next reservation gives the pages back.
    pub alive: bool,
    pub page_bytes: u64,
    pub pages: u64,
}

impl Status {
    /// Reads the status of the system.
    pub fn read(root: &Root) -> Status {
        let mut missing = Vec::new();
        let sizes = pool::sizes(root).unwrap_or_else(|error| {
            missing.push(format!(
                "pools: /sys/kernel/mm/hugepages: {}: sysfs is not mounted, or the kernel has no hugetlb",
                system_message(&error)
            ));
            Vec::new()
        });
        let mut pools = Vec::new();
        for &bytes in &sizes {
            match Pool::read(root, bytes) {
                Ok(pool) => pools.push(PoolEntry::new(pool)),
                Err(error) => missing.push(format!("pool of {}: {}", size::text(bytes), system_message(&error))),
            }
        }
        let table = root.read("/proc/self/mountinfo").unwrap_or_else(|error| {
            missing.push(format!("mounts: /proc/self/mountinfo: {}", system_message(&error)));
            String::new()
        });
        let lines = mounts::parse(&table);
        let transparent_sizes = settings::sizes(root);
        if !settings::is_there(root) {
            missing.push(format!(
                "transparent huge pages: no {}: sysfs is not mounted, or the kernel has none",
                settings::THP
            ));
        } else if transparent_sizes.is_empty() {
            missing.push("settings by size: this kernel has none (Linux 6.8 or newer has)".to_owned());
        }
        let processor = processor(root).unwrap_or_else(|why| {
            missing.push(why);
            Vec::new()
        });
        Status {
            schema: SCHEMA,
            kernel: root.read("/proc/sys/kernel/osrelease").ok(),
            page_bytes: neap_launch::sys::page_size() as u64,
            processor,
            pools,
            reservations: reservations(root),
            left: held::left(root, &lines, sys::segment),
            mounts: mounts::hugetlbfs(&lines, sys::may_write),
            transparent: settings::rows(root),
            transparent_sizes,
            limits: limits::rows(root, &lines, &sizes),
            missing,
        }
    }
}

impl PoolEntry {
    fn new(pool: Pool) -> PoolEntry {
        let (page, available) = (size::text(pool.bytes), pool.available());
        let mut means = match (pool.counts.total, available) {
            (0, _) => format!("empty: a program that asks for pages of {page} gets none"),
            (_, 0) => "all pages are in use or promised".to_owned(),
            (_, n) => format!("programs can have {} more, {}", counted(n, "page", "pages"), bytes(n * pool.bytes)),
        };
        if pool.overcommit > 0 {
            let spare = pool.overcommit.saturating_sub(pool.counts.surplus);
            means.push_str(&format!("; beyond the pool the kernel makes up to {} on demand", count(spare)));
        }
        let change = format!(
            "echo N > {}; for one command: neap huge reserve N --size {} -- CMD",
            pool::Place::machine(pool.bytes).setting(),
            size::short(pool.bytes)
        );
        let node = |(node, counts): (u32, pool::Counts)| Node {
            node,
            total: counts.total,
            free: counts.free,
            surplus: counts.surplus,
        };
        PoolEntry {
            bytes: pool.bytes,
            total: pool.counts.total,
            free: pool.counts.free,
            reserved: pool.reserved,
            surplus: pool.counts.surplus,
            overcommit: pool.overcommit,
            nodes: pool.nodes.into_iter().map(node).collect(),
            means,
            change,
        }
    }
}

fn reservations(root: &Root) -> Vec<Reserved> {
    let entry = |held: neap_hugetlb::Held| {
        let (page_bytes, pages) = held.pages()?;
        Some(Reserved { pid: held.pid, alive: held.alive, page_bytes, pages })
    };
    neap_hugetlb::held(root).into_iter().filter_map(entry).collect()
}

/// The page sizes that the processor supports, from its flags.
fn processor(root: &Root) -> Result<Vec<Row>, String> {
    let text =
        root.read("/proc/cpuinfo").map_err(|error| format!("processor: /proc/cpuinfo: {}", system_message(&error)))?;
    let flags = text.lines().find_map(|line| line.strip_prefix("flags")?.trim_start().strip_prefix(':'));
    let flags = flags.ok_or("processor: /proc/cpuinfo does not say which sizes of pages it has")?;
    let row = |(flag, page): (&str, &str)| {
        let has = flags.split_whitespace().any(|one| one == flag);
        let means = if has { format!("has pages of {page}") } else { format!("has no pages of {page}") };
        Row { name: flag.to_owned(), value: if has { "yes" } else { "no" }.to_owned(), means, change: None }
    };
    Ok([("pse", "2 MiB"), ("pdpe1gb", "1 GiB")].map(row).into())
}
