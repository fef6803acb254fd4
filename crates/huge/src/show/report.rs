//! The memory of a process: put together from smaps, the page tables and the memory itself.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

use neap_hugetlb::Root;
use serde::Serialize;

use super::pages::{Pages, Run};
use super::smaps;
use super::zeros::Zeros;
use neap_process::maps::{self, Mapping};

/// Name and version of the JSON schema; raised when a field changes its meaning or is removed.
const SCHEMA: &str = "neap.huge.show/1";
/// An area is dense if at most one in this many of its OS pages is not in memory.
const DENSE: u64 = 16;

/// What to report.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Limit on the bytes of huge pages that are read to find zeros.
    pub read: u64,
    /// Whether PAGEMAP_SCAN may be used; false only in tests.
    pub scans: bool,
}

/// The whole report.
#[derive(Debug, Serialize)]
pub struct Report {
    schema: &'static str,
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// Seconds since neap began to watch it.
    pub at_seconds: f64,
    pub page_bytes: u64,
    /// The size of a transparent huge page.
    pub huge_bytes: u64,
    pub total: Amounts,
    /// Sorted by memory, the largest first.
    pub mappings: Vec<Entry>,
    /// The cost of reading memory to find zeros.
    pub cost: Cost,
    /// What is unknown, and why.
    pub missing: Vec<String>,
}

/// Bytes, by what they are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Amounts {
    /// In memory.
    pub resident: u64,
    /// By the size of pages. Parts of a 2 MiB page that is not mapped as a whole count as OS pages.
    pub by_page: BTreeMap<u64, u64>,
    /// The bytes in OS pages that are parts of a 2 MiB page that is not mapped as a whole.
    pub parts: u64,
    /// Bytes in pages of a pool; `by_page` includes them.
    pub pool: u64,
    /// Bytes of huge pages that were read, and those of them that are zero.
    pub read: u64,
    pub zero: u64,
    /// Areas of 2 MiB that are densely in memory, in smaller pages: the bytes they hold, and the bytes they would take
    /// in addition.
    pub could_be_huge: u64,
    pub to_add: u64,
}

/// A mapping.
#[derive(Debug, Serialize)]
pub struct Entry {
    /// Hexadecimal.
    pub start: String,
    pub end: String,
    pub permissions: String,
    pub name: String,
    pub amounts: Amounts,
}

/// The cost of reading memory.
#[derive(Debug, Default, Serialize)]
pub struct Cost {
    pub read_bytes: u64,
    pub read_seconds: f64,
    /// For the whole report.
    pub seconds: f64,
}

impl Amounts {
    fn add(&mut self, other: &Amounts) {
        for (to, from) in [
            (&mut self.resident, other.resident),
            (&mut self.parts, other.parts),
            (&mut self.pool, other.pool),
            (&mut self.read, other.read),
            (&mut self.zero, other.zero),
            (&mut self.could_be_huge, other.could_be_huge),
            (&mut self.to_add, other.to_add),
        ] {
            *to += from;
        }
        for (size, bytes) in &other.by_page {
            *self.by_page.entry(*size).or_insert(0) += bytes;
        }
    }
}

/// The reading of one process.
struct Look {
    os_page: u64,
    huge: u64,
    pages: Option<Pages>,
    zeros: Option<Zeros>,
    sizes_known: bool,
    reading: Duration,
}

impl Report {
    /// Reads the current memory of a process.
    pub fn read(pid: u32, wanted: Wanted, since: Instant) -> io::Result<Report> {
        let begun = Instant::now();
        let root = Root::system();
        let mappings = maps::smaps(&neap_process::text(format!("/proc/{pid}/smaps"))?);
        let os_page = neap_launch::sys::page_size() as u64;
        let huge = root.number("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size").unwrap_or(2 << 20);
        let mut missing = Vec::new();
        let mut note = |what: &str, error: &io::Error| {
            missing.push(format!("{what}: {}", neap_launch::error::system_message(error)));
        };
        let pages = Pages::open(pid, os_page, wanted.scans)
            .inspect_err(|error| note("zeros and what could become huge: the page tables cannot be read", error))
            .ok();
        let zeros = Zeros::open(pid, os_page, wanted.read)
            .inspect_err(|error| note("zeros: the memory cannot be read", error))
            .ok();
        let mut look = Look { os_page, huge, pages, zeros, sizes_known: true, reading: Duration::ZERO };
        let mut entries: Vec<(Mapping, Amounts)> = mappings
            .into_iter()
            .filter(|mapping| smaps::held(mapping) > 0)
            .map(|mapping| (mapping, Amounts::default()))
            .collect();
        // Mappings with the most huge pages first: the limit on reading is used where it matters.
        entries.sort_by_key(|(mapping, _)| std::cmp::Reverse(smaps::transparent(mapping) + mapping.figures.hugetlb));
        let mut total = Amounts::default();
        for (mapping, amounts) in &mut entries {
            *amounts = look.at(mapping);
            total.add(amounts);
        }
        if look.pages.as_ref().is_some_and(|pages| !pages.knows_huge()) {
            missing.push("zeros in transparent huge pages: which these are is known from Linux 6.7 on".to_owned());
        }
        if !look.sizes_known {
            missing.push("pages between an OS page and 2 MiB: their sizes are known to root only (/proc/kpageflags); they count as OS pages".to_owned());
        }
        let huge_bytes: u64 =
            entries.iter().map(|(mapping, _)| smaps::transparent(mapping) + mapping.figures.hugetlb).sum();
        if look.zeros.is_some() && wanted.read < huge_bytes {
            missing.push(format!(
                "zeros in huge pages beyond the first {}: --read SIZE sets the limit",
                neap_launch::units::bytes(total.read)
            ));
        }
        entries.sort_by_key(|(mapping, amounts)| (std::cmp::Reverse(amounts.resident), mapping.range.start));
        let entry = |(mapping, amounts): (Mapping, Amounts)| Entry {
            start: format!("{:x}", mapping.range.start),
            end: format!("{:x}", mapping.range.end),
            permissions: mapping.permissions(),
            name: mapping.name,
            amounts,
        };
        Ok(Report {
            schema: SCHEMA,
            pid,
            name: root.read(&format!("/proc/{pid}/comm")).unwrap_or_default(),
            at_seconds: since.elapsed().as_secs_f64(),
            page_bytes: os_page,
            huge_bytes: huge,
            mappings: entries.into_iter().map(entry).collect(),
            cost: Cost {
                read_bytes: total.read,
                read_seconds: look.reading.as_secs_f64(),
                seconds: begun.elapsed().as_secs_f64(),
            },
            total,
            missing,
        })
    }
}

impl Look {
    fn at(&mut self, mapping: &Mapping) -> Amounts {
        let mut amounts =
            Amounts { resident: smaps::held(mapping), pool: mapping.figures.hugetlb, ..Amounts::default() };
        let mut add = |size: u64, bytes: u64| {
            if bytes > 0 {
                *amounts.by_page.entry(size).or_insert(0) += bytes;
            }
        };
        add(mapping.page, mapping.figures.hugetlb);
        add(self.huge, smaps::transparent(mapping));
        let (start, end) = (mapping.range.start, mapping.range.end);
        let runs = self.pages.as_ref().and_then(|pages| pages.runs(start, end).ok()).unwrap_or_default();
        let mut small = mapping.figures.rss.saturating_sub(smaps::transparent(mapping));
        for run in runs.iter().filter(|run| !run.huge && !smaps::is_pool(mapping)) {
            let Some(sizes) = self.pages.as_mut().filter(|_| self.sizes_known).and_then(|pages| pages.sizes(*run))
            else {
                self.sizes_known = false;
                break;
            };
            for (size, bytes) in sizes {
                // The process runs meanwhile: no more than the kernel counted.
                let bytes = bytes.min(small);
                if size >= self.huge {
                    amounts.parts += bytes;
                } else if size > self.os_page {
                    add(size, bytes);
                    small -= bytes;
                }
            }
        }
        add(self.os_page, small);
        if let Some(zeros) = &mut self.zeros {
            let begun = Instant::now();
            for run in runs.iter().filter(|run| run.huge || smaps::is_pool(mapping)) {
                let (read, zero) = zeros.count(run.start, run.end);
                amounts.read += read;
                amounts.zero += zero;
            }
            self.reading += begun.elapsed();
        }
        if smaps::could_be_huge(mapping) {
            let guards = self.pages.as_ref().map(|pages| pages.guards(mapping.range.clone())).unwrap_or_default();
            (amounts.could_be_huge, amounts.to_add) = dense((start, end), &runs, &guards, self.huge);
        }
        amounts
    }
}

/// The areas of a mapping that are densely in memory and not huge: the bytes they hold, and the bytes they lack. A guard
/// has an entry in the page table, so the kernel makes no huge page of its area.
fn dense((start, end): (u64, u64), runs: &[Run], guards: &[Range<u64>], huge: u64) -> (u64, u64) {
    let mut areas: BTreeMap<u64, u64> = BTreeMap::new();
    let (first, end) = (start.next_multiple_of(huge), end / huge * huge);
    for run in runs.iter().filter(|run| !run.huge) {
        let (mut from, to) = (run.start.max(first), run.end.min(end));
        while from < to {
            let area = from / huge * huge;
            let next = to.min(area + huge);
            *areas.entry(area).or_insert(0) += next - from;
            from = next;
        }
    }
    let is_guarded = |area: u64| {
        let at = guards.partition_point(|guard| guard.end <= area);
        guards.get(at).is_some_and(|guard| guard.start < area + huge)
    };
    areas.retain(|&area, _| !is_guarded(area));
    let dense = areas.into_values().filter(|&held| held >= huge - huge / DENSE);
    dense.fold((0, 0), |(held, lacking), area| (held + area, lacking + huge - area))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Catches areas that lie only partly in a mapping, that are huge, or that are not dense.
    #[test]
    fn dense_areas() {
        let run = |start: u64, end: u64, huge| Run { start, end, huge };
        let page = 4096;
        // 1 to 2: not whole. 2 to 4: all. 4 to 6: huge. 6 to 8: all but 32 pages, in two runs. 8 to 10: too few.
        let runs = [
            run(MIB, 4 * MIB, false),
            run(4 * MIB, 6 * MIB, true),
            run(6 * MIB, 7 * MIB, false),
            run(7 * MIB + 32 * page, 8 * MIB, false),
            run(8 * MIB + 33 * page, 11 * MIB, false),
        ];
        assert_eq!(dense((MIB, 11 * MIB), &runs, &[], 2 * MIB), (4 * MIB - 32 * page, 32 * page));
        // Guards beside and in an area.
        let (beside, inside) = (5 * MIB..6 * MIB, 7 * MIB + 31 * page..7 * MIB + 32 * page);
        assert_eq!(dense((MIB, 11 * MIB), &runs, &[beside, inside], 2 * MIB), (2 * MIB, 0));
    }

    /// Catches a report on a kernel without PAGEMAP_SCAN that differs in what can be known there, or guesses the rest.
    #[test]
    fn without_a_scan() {
        let memory = vec![1u8; 5 << 20];
        let read = |scans| Report::read(std::process::id(), Wanted { read: 1 << 20, scans }, Instant::now());
        let (with, without) = (read(true).expect("a report"), read(false).expect("a report"));
        let start = memory.as_ptr().addr() as u64;
        let entry = |report: &Report| {
            let holds = |entry: &&Entry| {
                let address = |text: &str| u64::from_str_radix(text, 16).unwrap_or(0);
                (address(&entry.start)..address(&entry.end)).contains(&(start + 4096))
            };
            report.mappings.iter().find(holds).map(|entry| entry.amounts.clone()).expect("the mapping")
        };
        assert!(entry(&with).resident >= 5 << 20 && entry(&without).resident >= 5 << 20);
        if entry(&with).by_page.keys().eq(&[4096]) {
            assert_eq!(entry(&with).could_be_huge, entry(&without).could_be_huge);
        }
        assert!(without.missing.iter().any(|line| line.contains("Linux 6.7")), "{:?}", without.missing);
    }
}
