//! A run as text for a terminal: tables and verdicts.

use std::fmt::Write;
use std::time::Duration;

use neap_results::judge::number;
use neap_results::{Column, Experiment, Figure, Kind, Run, Table, Value, Verdict, View};

use crate::plan::gates_off;

/// The form of a text.
#[derive(Clone, Copy, Debug)]
pub struct Form {
    /// With the colours of a terminal.
    pub colour: bool,
    /// Columns of the terminal; wider tables are split.
    pub width: usize,
}

impl Default for Form {
    fn default() -> Self {
        Form { colour: false, width: usize::MAX }
    }
}

/// From this many figures on, the figures go down and the allocators across.
const WIDE: usize = 9;

/// The whole run.
pub fn run_text(run: &Run, form: Form) -> String {
    let view = View::of(run);
    let mut text = String::new();
    head(&mut text, run);
    for experiment in &run.experiments {
        section(&mut text, &view, experiment, form);
    }
    for note in &run.notes {
        let _ = write!(text, "\n{}\n", note.trim_end());
    }
    text.push('\n');
    summary(&mut text, run);
    text
}

/// The verdicts of each experiment, without the tables.
pub fn verdicts_text(run: &Run, form: Form) -> String {
    let mut text = String::new();
    for experiment in &run.experiments {
        title(&mut text, experiment, form);
        if let Some(reason) = &experiment.skipped {
            let _ = writeln!(text, "Not run: {reason}");
        }
        verdicts(&mut text, experiment, form);
        text.push('\n');
    }
    summary(&mut text, run);
    text
}

fn title(text: &mut String, experiment: &Experiment, form: Form) {
    let (on, off) = if form.colour { ("\u{1b}[1m", "\u{1b}[0m") } else { ("", "") };
    let _ = writeln!(text, "{on}{}: {}{off}", experiment.name, experiment.title);
    if let Some(lead) = experiment.lead() {
        let _ = writeln!(text, "{lead}");
    }
}

fn verdicts(text: &mut String, experiment: &Experiment, form: Form) {
    for verdict in &experiment.verdicts {
        let _ = writeln!(text, "- {}", verdict_text(verdict, form));
    }
}

/// The last line: how many findings, ranks and goals hold.
fn summary(text: &mut String, run: &Run) {
    let count = |kind: Kind| {
        let all = run.experiments.iter().flat_map(|experiment| &experiment.verdicts);
        let checked: Vec<bool> =
            all.filter(|verdict| verdict.kind == kind).filter_map(|verdict| verdict.holds).collect();
        (checked.iter().filter(|&&holds| holds).count(), checked.len())
    };
    let words = [
        (Kind::Finding, "published findings seen again"),
        (Kind::Rank, "first places for neap"),
        (Kind::Target, "goals met"),
    ];
    let part = |(kind, words): (Kind, &str)| match count(kind) {
        (_, 0) => None,
        (good, all) => Some(format!("{words}: {good} of {all}")),
    };
    let parts: Vec<String> = words.into_iter().filter_map(part).collect();
    if !parts.is_empty() {
        let _ = writeln!(text, "In all: {}.", parts.join(", "));
    }
}

fn head(text: &mut String, run: &Run) {
    let m = &run.machine;
    let versions: Vec<String> = run.allocators.iter().map(|a| format!("{} {}", a.name, a.version)).collect();
    let quick = if run.quick { " A quick run: less work than the full experiments." } else { "" };
    let virtualised = match m.virtualised.as_deref() {
        None => String::new(),
        Some("yes") => ", virtual machine".into(),
        Some(name) => format!(", virtual machine ({name})"),
    };
    let _ = write!(
        text,
        "{} on {} ({} CPUs, {} MiB{virtualised}), Linux {}, transparent huge pages {}, load {}.\n\
         Command: {}; rounds: {}.{quick}\n\
         Measured: {}.\n",
        run.started,
        m.cpu,
        m.cores,
        m.memory_mib,
        m.kernel,
        m.transparent_hugepage,
        m.load_before,
        commit_text(run),
        run.rounds,
        versions.join(", ")
    );
    noise(text, run);
    text.push_str(
        "\nFigures are medians over the rounds; if they vary much, with the least and the greatest. Ratios are taken \
         within a round. An allocator that crashed or ran out of time in any round is shown as failed.\n",
    );
}

fn commit_text(run: &Run) -> String {
    match &run.commit {
        Some(commit) => format!("{} (at {commit})", run.command),
        None => run.command.clone(),
    }
}

fn noise(text: &mut String, run: &Run) {
    let Some(quiet) = run.noise.quiet else {
        return;
    };
    let check = |check: &neap_results::NoiseCheck| {
        let unit = if check.unit == "ratio" { String::new() } else { format!(" {}", check.unit) };
        format!("{} {}{unit} (quiet: at most {})", check.name, number(check.value), number(check.limit))
    };
    let checks: Vec<String> = run.noise.checks.iter().map(check).collect();
    let word = if quiet { "quiet" } else { "not quiet" };
    let _ = writeln!(text, "The machine was {word}: {}.", checks.join(", "));
    if !run.noise.repeats.is_empty() {
        let _ = writeln!(text, "{} rounds were run again for noise.", run.noise.repeats.len());
    }
    if !run.noise.doubtful.is_empty() {
        let count = run.noise.doubtful.len();
        let _ =
            writeln!(text, "{count} noisy rounds count: they were run again already, or there was no time for that.");
    }
}

fn section(text: &mut String, view: &View, experiment: &Experiment, form: Form) {
    text.push('\n');
    title(text, experiment, form);
    let _ = writeln!(text, "{}", experiment.question);
    for claim in &experiment.claims {
        let year = claim.year.map_or(String::new(), |year| format!(", {year}"));
        let _ = write!(text, "\nPublished ({}{year}): {}\n", claim.source, claim.text);
    }
    if let Some(reason) = &experiment.skipped {
        let _ = write!(text, "\nNot run: {reason}\n");
        return;
    }
    if let Some(seconds) = experiment.seconds {
        let _ = write!(text, "\nIt took {}.\n", duration_text(Duration::from_secs_f64(seconds.max(0.0))));
    }
    for table in &experiment.tables {
        figures(text, view, &experiment.name, table, form.width);
    }
    text.push('\n');
    verdicts(text, experiment, form);
    for note in &experiment.notes {
        let _ = write!(text, "\n{}\n", note.trim_end());
    }
}

/// How many verdicts are not checked in this run although they must hold on a quiet machine; none if all are checked.
pub fn gates_off_text(run: &Run) -> Option<String> {
    let count = gates_off(run);
    (count > 0).then(|| {
        format!("not checked, because other programs were at work: {count} verdicts that must hold on a quiet machine")
    })
}

/// The sentence after a word that says whether it holds.
pub fn verdict_text(verdict: &Verdict, form: Form) -> String {
    let (word, colour) = match (verdict.holds, verdict.kind) {
        (Some(true), Kind::Rank) => ("first", "32"),
        (Some(false), Kind::Rank) => ("behind", "33"),
        (Some(true), Kind::Finding) => ("seen again", "32"),
        (Some(false), Kind::Finding) => ("not seen", "33"),
        (Some(true), _) => ("met", "32"),
        (Some(false), _) => ("missed", "31"),
        (None, Kind::Figure) => return verdict.text.clone(),
        (None, _) => ("open", "2"),
    };
    match form.colour {
        false => format!("{word}: {}", verdict.text),
        true => format!("\u{1b}[{colour}m{word}\u{1b}[0m: {}", verdict.text),
    }
}

/// A time in words: `12 s`, `5 min 3 s`.
pub fn duration_text(time: Duration) -> String {
    match time.as_secs_f64() {
        seconds if seconds < 9.95 => format!("{seconds:.1} s"),
        seconds if seconds < 59.5 => format!("{seconds:.0} s"),
        seconds => format!("{} min {} s", seconds.round() as u64 / 60, seconds.round() as u64 % 60),
    }
}

/// One table: allocators down and figures across; turned if there are [`WIDE`] figures or more.
fn figures(text: &mut String, view: &View, experiment: &str, table: &Table, width: usize) {
    let columns: Vec<&Column> = table.columns.iter().filter(|column| view.has_case(experiment, &column.case)).collect();
    let present = |name: &&String| {
        let value = |column: &&&Column| view.value(figure(experiment, column), name) != Value::Absent;
        columns.iter().any(|column| value(&column))
    };
    let allocators: Vec<&String> = view.allocators().iter().filter(present).collect();
    if columns.is_empty() || allocators.is_empty() {
        return;
    }
    let value = |column: &Column, name: &str| cell(&view.value(figure(experiment, column), name));
    let mut rows: Vec<Vec<String>> = Vec::new();
    if columns.len() >= WIDE {
        rows.push([String::new()].into_iter().chain(allocators.iter().map(|name| (*name).clone())).collect());
        for column in &columns {
            let cells = allocators.iter().map(|name| value(column, name));
            rows.push([column.label.clone()].into_iter().chain(cells).collect());
        }
    } else {
        rows.push([String::new()].into_iter().chain(columns.iter().map(|column| column.label.clone())).collect());
        for name in &allocators {
            let cells = columns.iter().map(|column| value(column, name));
            rows.push([(*name).clone()].into_iter().chain(cells).collect());
        }
    }
    let _ = write!(text, "\n{}:\n\n", table.title);
    text.push_str(&aligned_rows(&rows, width));
}

fn figure<'a>(experiment: &'a str, column: &'a Column) -> Figure<'a> {
    Figure::new(experiment, &column.case, &column.metric)
}

fn cell(value: &Value) -> String {
    match value {
        // With a wide spread the median alone would mislead.
        Value::Is(spread) if spread.relative() > 0.2 => {
            format!("{} [{}..{}]", number(spread.median), number(spread.min), number(spread.max))
        }
        Value::Is(spread) => number(spread.median),
        Value::Failed(status) => format!("FAILED {status}"),
        Value::Skipped(_) => "skipped".into(),
        Value::Absent => "-".into(),
    }
}

/// Columns as wide as their widest cell, the first aligned to the left, the others to the right. Columns that do not
/// fit follow in a table below, which repeats the first column.
fn aligned_rows(rows: &[Vec<String>], room: usize) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let (mut text, mut begin) = (String::new(), 1);
    while begin < columns {
        let (mut end, mut used) = (begin, 2 + widths[0]);
        while end < columns && (end == begin || used + 2 + widths[end] <= room) {
            used += 2 + widths[end];
            end += 1;
        }
        text.push_str(if begin > 1 { "\n" } else { "" });
        for row in rows {
            let mut line = format!("  {:<width$}", row[0], width = widths[0]);
            for (cell, width) in row[begin..end].iter().zip(&widths[begin..end]) {
                let _ = write!(line, "  {cell:>width$}");
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        begin = end;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use neap_results::Row;

    fn run() -> Run {
        let row = |allocator: &str, round, status: &str, metric: &str, value| Row {
            experiment: "e".into(),
            case: "c".into(),
            allocator: allocator.into(),
            round,
            turn: 1,
            status: status.into(),
            metric: metric.into(),
            unit: "MiB".into(),
            value,
        };
        let rows = vec![
            row("neap", 1, "ok", "rss", 3.0),
            row("neap", 2, "ok", "rss", 3.5),
            row("other", 1, "timeout", "", 0.0),
        ];
        let verdict = Verdict { text: "so it is".into(), holds: Some(false), kind: Kind::Target, must_hold: true };
        let experiment = Experiment {
            name: "e".into(),
            tables: vec![Table { title: "RSS".into(), columns: vec![Column::new("MiB", "c", "rss")] }],
            verdicts: vec![verdict],
            ..Experiment::default()
        };
        Run { rows, experiments: vec![experiment], ..Run::default() }
    }

    // Would catch a minute of sixty seconds.
    #[test]
    fn times_are_said_as_people_do() {
        let text = |seconds| duration_text(Duration::from_secs_f64(seconds));
        assert_eq!(
            [0.04, 9.94, 9.96, 59.4, 59.6, 311.0].map(text),
            ["0.0 s", "9.9 s", "10 s", "59 s", "1 min 0 s", "5 min 11 s"]
        );
    }

    // Would catch a table that a terminal wraps, and columns that are lost where a table is split.
    #[test]
    fn wide_tables_are_parted() {
        let rows = [["", "1 thread", "2 threads", "4 threads"], ["neap", "1.5", "2.5", "4.5"]];
        let rows = rows.map(|row| row.map(str::to_owned).to_vec());
        let parted =
            "        1 thread  2 threads\n  neap       1.5        2.5\n\n        4 threads\n  neap        4.5\n";
        assert_eq!(aligned_rows(&rows, 28), parted);
        assert_eq!(aligned_rows(&rows, 26).lines().map(str::len).max(), Some(17));
        assert_eq!(aligned_rows(&rows, usize::MAX).lines().count(), 2);
    }

    // Would catch a failed allocator that disappears from its table, or a verdict that is not printed.
    #[test]
    fn tables_and_verdicts() {
        let text = run_text(&run(), Form::default());
        assert!(text.contains("- missed: so it is"), "{text}");
        assert!(text.contains("  neap             3.25\n  other  FAILED timeout\n"), "{text}");
        assert!(text.ends_with("\nIn all: goals met: 0 of 1.\n"), "{text}");
        assert!(!text.contains('\u{1b}'), "{text}");
        let verdicts = "e: \nso it is.\n- missed: so it is\n\nIn all: goals met: 0 of 1.\n";
        assert_eq!(verdicts_text(&run(), Form::default()), verdicts);
    }
}
