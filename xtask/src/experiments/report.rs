//! The markdown report, made from the raw rows and `machine.json` alone.

use std::fmt::Write;

use super::catalogue::{self, Experiment, Table};
use super::data::Row;
use super::targets::{self, number};
use super::view::{Figure, Value, View};
use crate::bench::machine::Machine;

/// The whole report.
pub fn markdown(rows: &[Row], machine: &Machine) -> String {
    let allocators = machine.allocators.iter().map(|allocator| allocator.name.clone()).collect();
    let view = View::of(rows, allocators, machine.cpus as u32);
    let mut text = String::new();
    head(&mut text, machine);
    for experiment in catalogue::all(false) {
        if experiment.cases.iter().any(|case| view.has_case(experiment.name, &case.name)) {
            section(&mut text, &view, &experiment);
        }
    }
    text
}

fn head(text: &mut String, m: &Machine) {
    let versions: Vec<String> = m.allocators.iter().map(|a| format!("{} {}", a.name, a.version)).collect();
    let quick = if m.scale < 100 { " A quick pass: less work than the targets ask for." } else { "" };
    let _ = write!(
        text,
        "# Experiments\n\n\
         {} on {} ({} CPUs, {} MiB), Linux {}, transparent huge pages {}, load {}.\n\
         Command: `{}` at commit {}; rounds: {}.{quick}\n\
         Measured: {}.\n\n\
         Figures are medians over the rounds, in brackets the least and the greatest. Under each experiment stand the \
         targets of neap; comparisons with a peer are ratios within one round, the median over the rounds. An \
         allocator that crashed or ran out of time in any round is shown as failed.\n",
        m.date,
        m.cpu,
        m.cpus,
        m.memory_mib,
        m.kernel,
        m.transparent_hugepage,
        m.load,
        m.command,
        m.commit,
        m.rounds,
        versions.join(", ")
    );
}

fn section(text: &mut String, view: &View, experiment: &Experiment) {
    let _ = write!(text, "\n## {}\n\n{}\n", experiment.name, experiment.about);
    for table in &experiment.tables {
        figures(text, view, experiment.name, table);
    }
    text.push('\n');
    for target in targets::of(view, experiment.name) {
        let _ = writeln!(text, "- {}: {}", target.line, target.verdict);
    }
}

/// One table: allocators down, figures across.
fn figures(text: &mut String, view: &View, experiment: &str, table: &Table) {
    let columns: Vec<_> = table.columns.iter().filter(|column| view.has_case(experiment, &column.case)).collect();
    if columns.is_empty() {
        return;
    }
    let labels: Vec<&str> = columns.iter().map(|column| column.label.as_str()).collect();
    let _ = write!(text, "\n{}:\n\n| | {} |\n", table.title, labels.join(" | "));
    let _ = writeln!(text, "|---|{}", "---:|".repeat(columns.len()));
    for allocator in &view.allocators {
        let _ = write!(text, "| {allocator} |");
        for column in &columns {
            let figure = Figure { experiment, case: &column.case, metric: column.metric };
            let _ = write!(text, " {} |", cell(&view.value(figure, allocator)));
        }
        text.push('\n');
    }
}

fn cell(value: &Value) -> String {
    match value {
        Value::Is(spread) if spread.min == spread.max => number(spread.median),
        Value::Is(spread) => {
            format!("{} [{}, {}]", number(spread.median), number(spread.min), number(spread.max))
        }
        Value::Failed(status) if status.starts_with("skipped") => status.clone(),
        Value::Failed(status) => format!("**failed** ({status})"),
        Value::Absent => "-".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::view::tests::row;
    use super::*;
    use crate::allocators::Allocator;

    // Would catch a failed allocator that disappears from its table, or targets that are not told.
    #[test]
    fn tables_and_targets() {
        let figure = Figure { experiment: "retain-small", case: "rounds", metric: "rss-1s" };
        let failed = Row { status: "timeout".into(), metric: String::new(), ..row(figure, "other", 1, 0.0) };
        let rows = [row(figure, "neap", 1, 3.0), row(figure, "neap", 2, 3.5), failed];
        let allocator = |name: &str| Allocator { name: name.into(), ..Allocator::default() };
        let machine = Machine { allocators: ["neap", "other"].map(allocator).into(), ..Machine::default() };
        let text = markdown(&rows, &machine);
        assert!(text.contains("| 3.25 [3, 3.50] |"), "{text}");
        assert!(text.contains("| other | **failed** (timeout) |"), "{text}");
        assert!(text.contains("- RSS 1 s after: at most 4 MiB: met: 3.25 MiB, at most 4 MiB"), "{text}");
        assert!(!text.contains("## calloc"), "{text}");
    }
}
