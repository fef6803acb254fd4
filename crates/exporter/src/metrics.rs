//! Which metrics there are, and their values. One table; `docs/exporter.md` has the same for users.

use crate::text::{Family, Format, Page, Type, label};
use neap_account::Kind;
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
        |p| p.rollup.map(|rollup| rollup.value.pss),
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
    Family { name: "neap_exporter_processes", of: Type::Gauge, unit: "", help: "Processes that match the filter." };
const ACCOUNTED: Family =
    Family { name: "neap_exporter_accounts", of: Type::Gauge, unit: "", help: "Processes that have an account." };
const ERRORS: Family = counter("neap_exporter_process_errors", "", "Processes that could not be read, by reason.");
const SCRAPES: Family = counter("neap_exporter_scrapes", "", "Scrapes that were answered.");
const OWN_TIME: Family = counter("neap_exporter_processor_seconds", "seconds", "Processor time of the exporter.");
const BUILD: Family = Family { name: "neap_build", of: Type::Info, unit: "", help: "The version of neap." };

/// The labels of a process.
fn labels(process: &Process) -> String {
    format!(
        "pid=\"{}\",{},{},{}",
        process.pid,
        label("command", &process.command),
        label("container", &process.container),
        label("allocator", &process.allocator)
    )
}

/// All metrics.
pub fn page(collector: &Collector, format: Format, scrapes: u64) -> String {
    let now = Instant::now();
    let all: Vec<(String, &Process)> = collector.processes().map(|process| (labels(process), process)).collect();
    let mut page = Page::new(format);
    for (family, value) in OF_PROCESS {
        page.family(family);
        for (labels, process) in &all {
            if let Some(value) = value(process) {
                page.sample(labels, value);
            }
        }
    }
    page.family(&FAULTS);
    for (labels, process) in &all {
        let (minor, major) = process.light.faults;
        page.sample(&format!("{labels},type=\"minor\""), minor);
        page.sample(&format!("{labels},type=\"major\""), major);
    }
    accounts(&mut page, &all);
    let age = |at: Instant| format!("{:.1}", now.saturating_duration_since(at).as_secs_f64());
    page.family(&ACCOUNT_AGE);
    for (labels, account) in all.iter().filter_map(|(labels, process)| Some((labels, process.account.as_ref()?))) {
        page.sample(labels, age(account.at));
    }
    page.family(&ROLLUP_AGE);
    for (labels, rollup) in all.iter().filter_map(|(labels, process)| Some((labels, process.rollup.as_ref()?))) {
        page.sample(labels, age(rollup.at));
    }
    own(&mut page, collector, &all, scrapes);
    page.finish()
}

/// The parts of each account, and its cause.
fn accounts(page: &mut Page, all: &[(String, &Process)]) {
    let accounted = || all.iter().filter_map(|(labels, process)| Some((labels, &process.account.as_ref()?.value)));
    page.family(&ACCOUNT);
    for (labels, brief) in accounted() {
        for (kind, bytes) in &brief.kinds {
            page.sample(&format!("{labels},kind=\"{}\"", Kind::name(*kind)), bytes);
        }
    }
    page.family(&CAUSE);
    for (labels, brief) in accounted() {
        page.sample(&format!("{labels},{}", label("cause", &brief.cause)), 1);
    }
}

/// The exporter about itself.
fn own(page: &mut Page, collector: &Collector, all: &[(String, &Process)], scrapes: u64) {
    page.family(&PROCESSES);
    page.sample("", all.len());
    page.family(&ACCOUNTED);
    page.sample("", all.iter().filter(|(_, process)| process.account.is_some()).count());
    page.family(&ERRORS);
    let errors = collector.errors();
    for (reason, count) in [("ended", errors.ended), ("denied", errors.denied), ("other", errors.other)] {
        page.sample(&format!("reason=\"{reason}\""), count);
    }
    page.family(&SCRAPES);
    page.sample("", scrapes);
    page.family(&OWN_TIME);
    page.sample("", format!("{:.3}", processor_time(Clock::Process).as_secs_f64()));
    page.family(&BUILD);
    page.sample(&label("version", VERSION), 1);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn families() -> Vec<Family> {
        let single =
            [ACCOUNT, CAUSE, FAULTS, ACCOUNT_AGE, ROLLUP_AGE, PROCESSES, ACCOUNTED, ERRORS, SCRAPES, OWN_TIME, BUILD];
        OF_PROCESS.iter().map(|(family, _)| *family).chain(single).collect()
    }

    /// Catches names against the conventions, and metrics that the page of docs lacks.
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
