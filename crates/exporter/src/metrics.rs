//! The table of metrics, and their values. `docs/exporter.md` has the same for users.

use crate::family::{Family, Labels, Number, Sink, Type};
use crate::text::{Format, Page};
use neap_collect::{Clock, Collector, Process, processor_time};
use neap_launch::VERSION;
use std::time::Instant;

/// The value of a metric for a process, if it is known.
type Value = fn(&Process) -> Option<u64>;

const fn bytes(name: &'static str, help: &'static str) -> Family {
    Family { name, of: Type::Gauge, unit: "bytes", help }
}

const fn counter(name: &'static str, unit: &'static str, help: &'static str) -> Family {
    Family { name, of: Type::Counter, unit, help }
}

const fn seconds(name: &'static str, help: &'static str) -> Family {
    Family { name, of: Type::Gauge, unit: "seconds", help }
}

/// Metrics with one value for each process.
const OF_PROCESS: &[(Family, Value)] = &[
    (bytes("neap_process_resident_bytes", "Resident memory (RSS)."), |p| Some(p.light.rss)),
    (bytes("neap_process_resident_peak_bytes", "The most that was resident."), |p| Some(p.light.peak)),
    (bytes("neap_process_swap_bytes", "Swapped out."), |p| Some(p.light.swap)),
    (bytes("neap_process_page_table_bytes", "Page tables."), |p| Some(p.light.page_tables)),
    (bytes("neap_process_hugetlb_bytes", "Explicit huge pages (hugetlb), which are not in RSS."), |p| {
        Some(p.light.hugetlb)
    }),
    (
        bytes(
            "neap_process_proportional_bytes",
            "Resident memory where what n processes share counts for one n-th (PSS).",
        ),
        |p| p.rollup.and_then(|rollup| rollup.value.pss),
    ),
    (bytes("neap_process_private_bytes", "Resident memory that no other process has."), |p| {
        p.rollup.map(|rollup| rollup.value.private)
    }),
    (bytes("neap_process_huge_page_bytes", "Transparent huge pages."), |p| p.rollup.map(|rollup| rollup.value.huge)),
    (bytes("neap_process_live_bytes", "Blocks of malloc that the program holds."), Process::live),
    (
        bytes("neap_process_kept_bytes", "Free blocks on whole resident pages, which the allocator keeps."),
        Process::kept,
    ),
    (bytes("neap_process_fragmentation_bytes", "Free bytes on pages that live blocks keep."), Process::fragmentation),
    (
        bytes("neap_process_reclaimable_bytes", "What could be given back: kept memory, and zeros in huge pages."),
        Process::reclaimable,
    ),
    (counter("neap_process_purged_bytes", "bytes", "Given back to the system so far by neap's allocator."), |p| {
        p.neap.map(|neap| neap.purged)
    }),
    (counter("neap_process_purge_calls", "", "System calls that gave memory back, by neap's allocator."), |p| {
        p.neap.map(|neap| neap.purge_calls)
    }),
];

const ACCOUNT: Family =
    bytes("neap_process_account_bytes", "Parts of resident memory by kind, at the time of the last account.");
const CAUSE: Family = Family {
    name: "neap_process_cause",
    of: Type::Info,
    unit: "",
    help: "Why the process is as large as it is, as a word, at the time of the last account.",
};
const FAULTS: Family = counter("neap_process_page_faults", "", "Page faults; major ones read from a disk.");
const ACCOUNT_AGE: Family = seconds("neap_process_account_age_seconds", "Age of the last account.");
const ROLLUP_AGE: Family = seconds("neap_process_proportional_age_seconds", "Age of PSS, private and huge pages.");

const PROCESSES: Family =
    Family { name: "neap_exporter_processes", of: Type::Gauge, unit: "", help: "Processes with metrics of their own." };
const SMALL: Family = Family {
    name: "neap_exporter_small_processes",
    of: Type::Gauge,
    unit: "",
    help: "Processes below the limit (--least), which have no metrics of their own.",
};
const SMALL_BYTES: Family = bytes("neap_exporter_small_resident_bytes", "Resident memory (RSS) of these together.");
const ACCOUNTED: Family =
    Family { name: "neap_exporter_accounts", of: Type::Gauge, unit: "", help: "Processes that have an account." };
const ERRORS: Family = counter("neap_exporter_process_errors", "", "Processes that could not be read, by reason.");
const SCRAPES: Family = counter("neap_exporter_scrapes", "", "Scrapes that were answered.");
const OWN_TIME: Family = counter("neap_exporter_processor_seconds", "seconds", "Processor time of the exporter.");
const BUILD: Family = Family { name: "neap_build", of: Type::Info, unit: "", help: "The version of neap." };

/// The labels of a process.
fn labels(process: &Process) -> Labels {
    Labels::new(vec![
        ("pid", process.pid.to_string()),
        ("command", process.command.clone()),
        ("container", process.container.clone()),
        ("allocator", process.main_allocator().to_owned()),
    ])
}

/// All metrics as a text.
pub fn page(collector: &Collector, format: Format, scrapes: u64) -> String {
    let mut page = Page::new(format);
    write(&mut page, collector, scrapes);
    page.finish()
}

/// All metrics.
pub fn write(page: &mut impl Sink, collector: &Collector, scrapes: u64) {
    let now = Instant::now();
    let all: Vec<(Labels, &Process)> = collector.processes().map(|process| (labels(process), process)).collect();
    for (family, value) in OF_PROCESS {
        page.family(family);
        for (labels, process) in &all {
            if let Some(value) = value(process) {
                page.sample(labels, None, Number::Whole(value));
            }
        }
    }
    page.family(&FAULTS);
    for (labels, process) in &all {
        let (minor, major) = process.light.faults;
        page.sample(labels, Some(("type", "minor")), Number::Whole(minor));
        page.sample(labels, Some(("type", "major")), Number::Whole(major));
    }
    accounts(page, &all);
    let age = |at: Instant| Number::Seconds(now.saturating_duration_since(at).as_secs_f64());
    page.family(&ACCOUNT_AGE);
    for (labels, account) in all.iter().filter_map(|(labels, process)| Some((labels, process.account.as_ref()?))) {
        page.sample(labels, None, age(account.at));
    }
    page.family(&ROLLUP_AGE);
    for (labels, rollup) in all.iter().filter_map(|(labels, process)| Some((labels, process.rollup.as_ref()?))) {
        page.sample(labels, None, age(rollup.at));
    }
    own(page, collector, &all, scrapes);
}

/// The parts of each account, and its cause.
fn accounts(page: &mut impl Sink, all: &[(Labels, &Process)]) {
    let accounted = || all.iter().filter_map(|(labels, process)| Some((labels, &process.account.as_ref()?.value)));
    page.family(&ACCOUNT);
    for (labels, brief) in accounted() {
        for (kind, bytes) in &brief.kinds {
            page.sample(labels, Some(("kind", kind.name())), Number::Whole(*bytes));
        }
    }
    page.family(&CAUSE);
    for (labels, brief) in accounted() {
        page.sample(labels, Some(("cause", &brief.cause)), Number::Whole(1));
    }
}

/// Metrics of the exporter itself.
fn own(page: &mut impl Sink, collector: &Collector, all: &[(Labels, &Process)], scrapes: u64) {
    let none = Labels::default();
    page.family(&PROCESSES);
    page.sample(&none, None, Number::Whole(all.len() as u64));
    let small = collector.small();
    page.family(&SMALL);
    page.sample(&none, None, Number::Whole(small.processes));
    page.family(&SMALL_BYTES);
    page.sample(&none, None, Number::Whole(small.rss));
    page.family(&ACCOUNTED);
    let accounted = all.iter().filter(|(_, process)| process.account.is_some()).count();
    page.sample(&none, None, Number::Whole(accounted as u64));
    page.family(&ERRORS);
    let errors = collector.errors();
    for (reason, count) in [("ended", errors.ended), ("denied", errors.denied), ("other", errors.other)] {
        page.sample(&none, Some(("reason", reason)), Number::Whole(count));
    }
    page.family(&SCRAPES);
    page.sample(&none, None, Number::Whole(scrapes));
    page.family(&OWN_TIME);
    page.sample(&none, None, Number::Seconds(processor_time(Clock::Process).as_secs_f64()));
    page.family(&BUILD);
    page.sample(&none, Some(("version", VERSION)), Number::Whole(1));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn families() -> Vec<Family> {
        let single = [
            ACCOUNT,
            CAUSE,
            FAULTS,
            ACCOUNT_AGE,
            ROLLUP_AGE,
            PROCESSES,
            SMALL,
            SMALL_BYTES,
            ACCOUNTED,
            ERRORS,
            SCRAPES,
            OWN_TIME,
            BUILD,
        ];
        OF_PROCESS.iter().map(|(family, _)| *family).chain(single).collect()
    }

    /// Catches names that break the conventions, and metrics that docs/exporter.md lacks.
    #[test]
    fn names_follow_the_conventions() {
        let doc = include_str!("../../../docs/exporter.md");
        for family in families() {
            let name = family.name;
            assert!(name.starts_with("neap_") && !name.ends_with("_total") && !name.ends_with("_info"), "{name}");
            assert!(family.unit.is_empty() || name.ends_with(&format!("_{}", family.unit)), "{name}");
            assert!(family.help.ends_with('.') && !family.help.contains('\n'), "{name}");
            assert!(
                doc.contains(&format!("`{name}{}`", family.ending())),
                "docs/exporter.md has no {name}{}",
                family.ending()
            );
        }
    }
}
