//! The markdown tables, made from the raw rows and `machine.json` alone.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::data::Table;
use super::machine::Machine;
use super::stats::{self, Cells, Figure, Spread, geometric_mean};
use neap_results::{GLIBC, NEAP};

/// neap may be at most this much slower than the best other allocator on any workload.
const WALL_LIMIT: f64 = 1.10;
/// neap's peak resident memory may be at most this much of glibc's on any workload.
const RSS_LIMIT: f64 = 1.50;

/// The whole report.
pub fn markdown(table: &Table, machine: &Machine) -> String {
    let view = View::of(table, machine);
    let mut text = String::new();
    head(&mut text, machine);
    summary(&mut text, &view);
    against_best(&mut text, &view);
    for &threads in &view.threads {
        ratios(&mut text, &view, threads, "Wall time", stats::wall, "ms", 1.0);
        ratios(&mut text, &view, threads, "Peak resident memory", stats::rss, "MiB", 1024.0);
    }
    details(&mut text, &view);
    text
}

/// The cells with the names of rows and columns.
struct View<'a> {
    cells: Cells<'a>,
    threads: BTreeSet<u32>,
    workloads: Vec<&'a str>,
    allocators: Vec<&'a str>,
}

impl<'a> View<'a> {
    fn of(table: &'a Table, machine: &'a Machine) -> View<'a> {
        let cells = stats::cells(table);
        let workloads: BTreeSet<&str> = cells.keys().map(|key| key.1).collect();
        let allocators = machine.allocators.iter().map(|a| a.name.as_str());
        View {
            threads: cells.keys().map(|key| key.0).collect(),
            workloads: workloads.into_iter().collect(),
            allocators: allocators.collect(),
            cells,
        }
    }

    /// All but glibc.
    fn others(&self) -> impl Iterator<Item = &'a str> {
        self.allocators.iter().copied().filter(|name| *name != GLIBC)
    }

    fn ratio(&self, threads: u32, workload: &'a str, allocator: &'a str, figure: Figure) -> Ratio<'_> {
        let Some(cell) = self.cells.get(&(threads, workload, allocator)) else {
            return Ratio::Absent;
        };
        if let Some(status) = cell.failure() {
            return Ratio::Failed(status);
        }
        let base = self.cells.get(&(threads, workload, GLIBC));
        match base.and_then(|base| cell.ratio(base, figure)) {
            Some(spread) => Ratio::Is(spread),
            None => Ratio::Absent,
        }
    }

    /// Geometric mean of the median ratios, and how many workloads failed.
    fn mean(&self, threads: u32, allocator: &'a str, figure: Figure) -> (f64, usize) {
        let mut medians = Vec::new();
        let mut failed = 0;
        for workload in &self.workloads {
            match self.ratio(threads, workload, allocator, figure) {
                Ratio::Is(spread) => medians.push(spread.median),
                Ratio::Failed(_) => failed += 1,
                Ratio::Absent => {}
            }
        }
        (geometric_mean(&medians), failed)
    }
}

/// A ratio to glibc, or why there is none.
enum Ratio<'a> {
    Is(Spread),
    Failed(&'a str),
    Absent,
}

impl std::fmt::Display for Ratio<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Ratio::Is(spread) => write!(f, "{:.2}", spread.median),
            Ratio::Failed(status) => write!(f, "**failed** ({status})"),
            Ratio::Absent => write!(f, "-"),
        }
    }
}

/// A mean with a mark where workloads failed and are not in it.
fn mean_text((mean, failed): (f64, usize)) -> String {
    match (mean.is_nan(), failed) {
        (true, 0) => "-".into(),
        (true, _) => "failed".into(),
        (false, 0) => format!("{mean:.2}"),
        (false, n) => format!("{mean:.2} ({n} failed)"),
    }
}

fn head(text: &mut String, machine: &Machine) {
    let m = machine;
    let versions: Vec<String> = m.allocators.iter().map(|a| format!("{} {}", a.name, a.version)).collect();
    let _ = write!(
        text,
        "# Benchmarks\n\n\
         {} on {} ({} CPUs, {} MiB), Linux {}, transparent huge pages {}.\n\
         Command: `{}` at commit {}; {} rounds at {} % of the work.\n\
         Measured: {}.\n\n\
         All figures below are ratios to glibc within one round, the median over the rounds; less \
         is better. The last section has the spread. An allocator that crashed, ran out of time or \
         damaged the workload's data is shown as failed.\n",
        m.date,
        m.cpu,
        m.cpus,
        m.memory_mib,
        m.kernel,
        m.transparent_hugepage,
        m.command,
        m.commit,
        m.rounds,
        m.scale,
        versions.join(", ")
    );
}

fn table_head(text: &mut String, first: &str, columns: &[String]) {
    let _ = writeln!(text, "| {first} | {} |", columns.join(" | "));
    let _ = writeln!(text, "|---|{}", "---:|".repeat(columns.len()));
}

fn summary(text: &mut String, view: &View) {
    let _ = write!(text, "\n## Geometric means against glibc\n\n");
    let mut columns = Vec::new();
    for threads in &view.threads {
        columns.push(format!("wall, {}", threads_text(*threads)));
        columns.push(format!("peak RSS, {}", threads_text(*threads)));
    }
    table_head(text, "", &columns);
    for allocator in view.others() {
        let _ = write!(text, "| {allocator} |");
        for &threads in &view.threads {
            let wall = mean_text(view.mean(threads, allocator, stats::wall));
            let rss = mean_text(view.mean(threads, allocator, stats::rss));
            let _ = write!(text, " {wall} | {rss} |");
        }
        text.push('\n');
    }
}

fn threads_text(threads: u32) -> String {
    format!("{threads} thread{}", if threads == 1 { "" } else { "s" })
}

/// neap against the best other allocator of each workload, glibc included.
fn against_best(text: &mut String, view: &View) {
    let _ = write!(text, "\n## neap against the best other allocator\n\n");
    if !view.allocators.contains(&NEAP) {
        let _ = writeln!(text, "neap was not measured in this run.");
        return;
    }
    let columns = ["threads", "best", "its wall", "neap's wall", "neap/best", "RSS", ""];
    table_head(text, "workload", &columns.map(String::from));
    let (mut rows, mut flagged) = (0, 0);
    for workload in &view.workloads {
        for &threads in &view.threads {
            let neap = view.ratio(threads, workload, NEAP, stats::wall);
            let best = best_other(view, threads, workload);
            if matches!(neap, Ratio::Absent) {
                continue;
            }
            let rss = view.ratio(threads, workload, NEAP, stats::rss);
            let flags = flags(&neap, best, &rss);
            rows += 1;
            flagged += usize::from(!flags.is_empty());
            let quotient = match (&neap, best) {
                (Ratio::Is(neap), Some((_, best))) => format!("{:.2}", neap.median / best),
                _ => "-".into(),
            };
            let (name, wall) = best.unwrap_or(("-", f64::NAN));
            let _ = writeln!(
                text,
                "| {workload} | {threads} | {name} | {wall:.2} | {neap} | {quotient} | {rss} | {flags} |"
            );
        }
    }
    let _ = writeln!(
        text,
        "\n{flagged} of {rows} flagged: slower than {WALL_LIMIT:.2} times the best, or above \
         {RSS_LIMIT:.2} of glibc's memory."
    );
}

/// The other allocator with the least wall time, and its ratio to glibc (glibc's own is 1).
fn best_other<'a>(view: &View<'a>, threads: u32, workload: &'a str) -> Option<(&'a str, f64)> {
    let candidates = view.allocators.iter().copied().filter(|name| *name != NEAP);
    let ratio = |name: &'a str| match view.ratio(threads, workload, name, stats::wall) {
        Ratio::Is(spread) => Some((name, spread.median)),
        _ => None,
    };
    candidates.filter_map(ratio).min_by(|a, b| a.1.total_cmp(&b.1))
}

fn flags(neap: &Ratio, best: Option<(&str, f64)>, rss: &Ratio) -> String {
    let mut flags = Vec::new();
    match (neap, best) {
        (Ratio::Failed(_), _) => flags.push("**failed**"),
        (Ratio::Is(neap), Some((_, best))) if neap.median > WALL_LIMIT * best => {
            flags.push("**slow**");
        }
        _ => {}
    }
    if matches!(rss, Ratio::Is(rss) if rss.median > RSS_LIMIT) {
        flags.push("**large**");
    }
    flags.join(" ")
}

/// One table: workloads down, allocators across, glibc's own figure in front.
fn ratios(text: &mut String, view: &View, threads: u32, title: &str, figure: Figure, unit: &str, divisor: f64) {
    let _ = write!(text, "\n## {title} against glibc, {}\n\n", threads_text(threads));
    let mut columns = vec![format!("glibc, {unit}")];
    columns.extend(view.others().map(String::from));
    table_head(text, "workload", &columns);
    for workload in &view.workloads {
        let Some(base) = view.cells.get(&(threads, *workload, GLIBC)) else {
            continue;
        };
        let own = match base.spread(figure) {
            Some(spread) => format!("{:.0}", spread.median / divisor),
            None => "**failed**".into(),
        };
        let _ = write!(text, "| {workload} | {own} |");
        for allocator in view.others() {
            let _ = write!(text, " {} |", view.ratio(threads, workload, allocator, figure));
        }
        text.push('\n');
    }
    let _ = write!(text, "| **geometric mean** | |");
    for allocator in view.others() {
        let _ = write!(text, " **{}** |", mean_text(view.mean(threads, allocator, figure)));
    }
    text.push('\n');
}

/// Medians with least and greatest value, one line per cell.
fn details(text: &mut String, view: &View) {
    let _ = write!(text, "\n## Medians and spread\n\nMedian, in brackets least and greatest.\n\n");
    let columns = ["threads", "allocator", "runs", "wall, ms", "CPU, ms", "peak RSS, MiB", "minor faults"];
    table_head(text, "workload", &columns.map(String::from));
    for workload in &view.workloads {
        for &threads in &view.threads {
            for allocator in &view.allocators {
                let Some(cell) = view.cells.get(&(threads, *workload, *allocator)) else {
                    continue;
                };
                let show = |figure: Figure, divisor: f64| match cell.spread(figure) {
                    Some(s) => format!("{:.0} [{:.0}, {:.0}]", s.median / divisor, s.min / divisor, s.max / divisor),
                    None => "-".into(),
                };
                let runs = cell.rows.len();
                let runs = match cell.failure() {
                    Some(status) => format!("{runs}, **failed** ({status})"),
                    None => runs.to_string(),
                };
                let _ = writeln!(
                    text,
                    "| {workload} | {threads} | {allocator} | {runs} | {} | {} | {} | {} |",
                    show(stats::wall, 1.0),
                    show(stats::cpu, 1.0),
                    show(stats::rss, 1024.0),
                    show(stats::faults, 1.0)
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::data::Row;
    use super::*;
    use neap_lab::allocators::Allocator;

    fn row(workload: &str, allocator: &str, status: &str, wall_ms: u32, rss_mib: u32) -> Row {
        let line = format!("{status} {wall_ms}000000 0 0 {} 1 0 ff", rss_mib * 1024);
        let mut row = Row::parse(&line, workload, 1, allocator).unwrap();
        row.round = 1;
        row
    }

    fn report(rows: Vec<Row>) -> String {
        let allocator = |name: &str| Allocator { name: name.into(), ..Allocator::default() };
        let machine = Machine { allocators: ["glibc", "neap", "other"].map(allocator).into(), ..Machine::default() };
        markdown(&Table { rows }, &machine)
    }

    // Would catch a shortfall of neap that the report passes over.
    #[test]
    fn slow_and_large_are_flagged() {
        let text = report(vec![
            row("trees", "glibc", "ok", 100, 10),
            row("trees", "neap", "ok", 56, 16),
            row("trees", "other", "ok", 50, 30),
            row("maps", "glibc", "ok", 100, 10),
            row("maps", "neap", "ok", 55, 15),
            row("maps", "other", "ok", 50, 30),
        ]);
        let flagged = "| trees | 1 | other | 0.50 | 0.56 | 1.12 | 1.60 | **slow** **large** |";
        assert!(text.contains(flagged), "{text}");
        assert!(text.contains("| maps | 1 | other | 0.50 | 0.55 | 1.10 | 1.50 |  |"), "{text}");
        assert!(text.contains("1 of 2 flagged"), "{text}");
    }

    // Would catch a crash that is left out of the tables, or a mean that hides it.
    #[test]
    fn failures_stay_in_the_tables() {
        let text = report(vec![
            row("trees", "glibc", "ok", 100, 10),
            row("trees", "neap", "signal:11", 1, 1),
            row("trees", "other", "ok", 50, 10),
        ]);
        assert!(text.contains("| trees | 100 | **failed** (signal:11) | 0.50 |"), "{text}");
        assert!(text.contains("| neap | failed | failed |"), "{text}");
        let against = "| trees | 1 | other | 0.50 | **failed** (signal:11) | - |";
        assert!(text.contains(against), "{text}");
    }
}
