//! The contents of the pools, by size and by NUMA node.
//!
//! ```text
//! /sys/kernel/mm/hugepages/hugepages-2048kB/{nr_hugepages,free_hugepages,resv_hugepages,surplus_hugepages,...}
//! /sys/devices/system/node/node0/hugepages/hugepages-2048kB/{nr_hugepages,free_hugepages,surplus_hugepages}
//! ```

use std::fs;
use std::io;

use crate::root::Root;
use crate::size;

/// The folder of all pools.
pub const POOLS: &str = "/sys/kernel/mm/hugepages";
/// The folder of the NUMA nodes.
pub const NODES: &str = "/sys/devices/system/node";

/// Where the numbers of a pool are: for the machine, or for one node. The path of the folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place(pub(crate) String);

impl Place {
    /// The place of the whole machine.
    pub fn machine(bytes: u64) -> Place {
        Place(format!("{POOLS}/hugepages-{}", size::folder(bytes)))
    }

    /// The place of one node.
    pub fn node(node: u32, bytes: u64) -> Place {
        Place(format!("{NODES}/node{node}/hugepages/hugepages-{}", size::folder(bytes)))
    }

    /// A file in it.
    pub fn file(&self, name: &str) -> String {
        format!("{}/{name}", self.0)
    }

    /// The file with the number of pages, which can be written.
    pub fn setting(&self) -> String {
        self.file("nr_hugepages")
    }

    /// The size of its pages.
    pub(crate) fn bytes(&self) -> Option<u64> {
        size::of_folder(self.0.rsplit_once("hugepages-")?.1)
    }

    /// Its current counts.
    pub fn counts(&self, root: &Root) -> io::Result<Counts> {
        let number = |name| root.number(&self.file(name));
        Ok(Counts {
            total: number("nr_hugepages")?,
            free: number("free_hugepages")?,
            surplus: number("surplus_hugepages")?,
        })
    }

    /// Requests this size of the pool. The kernel may give less; the caller reads what it has.
    pub(crate) fn resize(&self, root: &Root, pages: u64) -> io::Result<()> {
        #[cfg(test)]
        let pages = pages.min(root.most);
        fs::write(root.path(&self.setting()), pages.to_string())
    }
}

/// The pages of a place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// All of them.
    pub total: u64,
    /// Pages that hold no memory of a program.
    pub free: u64,
    /// Pages beyond the pool's size; they go when they are freed.
    pub surplus: u64,
}

impl Counts {
    /// The size of the pool.
    pub fn size(self) -> u64 {
        self.total.saturating_sub(self.surplus)
    }
}

/// The pool of one size of pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// The size of a page.
    pub bytes: u64,
    /// All nodes together.
    pub counts: Counts,
    /// Free pages that are promised.
    pub reserved: u64,
    /// Limit of the surplus that programs may cause.
    pub overcommit: u64,
    /// Each node, by its number.
    pub nodes: Vec<(u32, Counts)>,
}

impl Pool {
    /// The pool of pages of `bytes`.
    pub fn read(root: &Root, bytes: u64) -> io::Result<Pool> {
        let place = Place::machine(bytes);
        let counts = place.counts(root)?;
        let number = |name| root.number(&place.file(name));
        // A node without memory has no such folder, and neither has a kernel without NUMA.
        let node = |node: u32| Place::node(node, bytes).counts(root).ok().map(|counts| (node, counts));
        Ok(Pool {
            bytes,
            counts,
            reserved: number("resv_hugepages")?,
            // Pages that only the boot can make (1 GiB, on some kernels) have no overcommit.
            overcommit: number("nr_overcommit_hugepages").unwrap_or(0),
            nodes: nodes(root).into_iter().filter_map(node).collect(),
        })
    }

    /// Pages that a program can get now without the kernel making more.
    pub fn available(&self) -> u64 {
        self.counts.free.saturating_sub(self.reserved)
    }
}

/// The page sizes for which the kernel has pools, the smallest first.
pub fn sizes(root: &Root) -> io::Result<Vec<u64>> {
    let mut sizes: Vec<u64> =
        root.names(POOLS, "hugepages-")?.iter().filter_map(|name| size::of_folder(name)).collect();
    sizes.sort_unstable();
    Ok(sizes)
}

/// The numbers of the NUMA nodes; empty if the kernel knows no nodes.
pub fn nodes(root: &Root) -> Vec<u32> {
    let names = root.names(NODES, "node").unwrap_or_default();
    let mut nodes: Vec<u32> = names.iter().filter_map(|name| name.parse().ok()).collect();
    nodes.sort_unstable();
    nodes
}
