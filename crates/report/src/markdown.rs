//! A run as markdown, with all its tables.

use std::fmt::Write as _;

use neap_results::judge::{number, spread_text, value_text};
use neap_results::{Experiment, Figure, Kind, Run, Table, Value, Verdict, View};

/// What goes into the document beside the run.
#[derive(Clone, Debug, Default)]
pub struct Options<'a> {
    /// The title.
    pub title: &'a str,
    /// Text under it.
    pub intro: &'a str,
    /// The folder of the pictures, relative to the document; without it there are no pictures.
    pub pictures: Option<&'a str>,
}

/// The document.
pub fn document(run: &Run, options: &Options) -> String {
    let view = View::of(run);
    let mut text = String::new();
    head(&mut text, run, options);
    for experiment in &run.experiments {
        section(&mut text, experiment, &view, options);
    }
    if !run.notes.is_empty() {
        let _ = write!(text, "\n## Notes on this run\n");
        for note in &run.notes {
            // Headings move one level down: the document has a title of its own.
            let note = if note.starts_with('#') { format!("#{note}") } else { note.clone() };
            let _ = write!(text, "\n{note}\n");
        }
    }
    text
}

fn head(text: &mut String, run: &Run, options: &Options) {
    let machine = &run.machine;
    let versions: Vec<String> = run.allocators.iter().map(|one| format!("{} {}", one.name, one.version)).collect();
    let commit = run.commit.as_ref().map_or(String::new(), |commit| format!(" at commit {commit}"));
    let quick = if run.quick { " A quick run: less work than the full experiments." } else { "" };
    let interrupted = if run.ended.is_none() { " The run was interrupted." } else { "" };
    let noisy = if run.noise.quiet == Some(false) { " The machine was not quiet." } else { "" };
    let title = if options.title.is_empty() { "Experiments" } else { options.title };
    let _ = write!(text, "# {title}\n\n");
    if !options.intro.is_empty() {
        let _ = write!(text, "{}\n\n", options.intro.trim());
    }
    let _ = write!(
        text,
        "{} on {} ({} processors, {} MiB), Linux {}, transparent huge pages {}, load {}.\n\
         Command: `{}`{commit}; rounds: {}.{quick}{interrupted}{noisy}\n\
         Measured: {}.\n\n\
         Figures are medians over the rounds, in brackets the least and the greatest. Ratios are taken within a round. \
         An allocator that failed in any round is shown as failed; `-` was not run.\n",
        run.started,
        machine.cpu,
        machine.cores,
        machine.memory_mib,
        machine.kernel,
        machine.transparent_hugepage,
        machine.load_before,
        run.command,
        run.rounds,
        versions.join(", ")
    );
}

fn section(text: &mut String, experiment: &Experiment, view: &View, options: &Options) {
    let _ = write!(text, "\n## {}\n\n", experiment.heading());
    if let Some(lead) = experiment.lead() {
        let _ = write!(text, "**{lead}**\n\n");
    }
    for part in [&experiment.question, &experiment.about].into_iter().filter(|part| !part.is_empty()) {
        let _ = write!(text, "{part}\n\n");
    }
    for claim in &experiment.claims {
        let year = claim.year.map_or(String::new(), |year| format!(", {year}"));
        let _ = writeln!(text, "> {} ({}{year})", claim.text, claim.source);
        for figure in &claim.figures {
            let _ = writeln!(text, "> {}: {}.", figure.label, figure.value);
        }
        text.push('\n');
    }
    if let Some(why) = &experiment.skipped {
        let _ = writeln!(text, "Not run: {why}\n");
    }
    for verdict in &experiment.verdicts {
        let _ = writeln!(text, "- {}{}", mark(verdict), verdict.text);
    }
    if let Some(folder) = options.pictures {
        for chart in &experiment.charts {
            let file = crate::file_stem(experiment, chart);
            let _ = write!(text, "\n![{}]({folder}/{file}.svg)\n", chart.title);
        }
    }
    tables(text, experiment, view);
    for listing in &experiment.listings {
        let _ = write!(
            text,
            "\n<details>\n<summary>{}</summary>\n\n```text\n{}\n```\n\n</details>\n",
            listing.title,
            listing.text.trim_end()
        );
    }
    for note in &experiment.notes {
        let _ = write!(text, "\n{note}\n");
    }
    if !experiment.command.is_empty() {
        let _ = write!(text, "\nTo repeat it: `{}`\n", experiment.command);
    }
}

/// The tables of an experiment.
pub(crate) fn tables(text: &mut String, experiment: &Experiment, view: &View) {
    for one in &experiment.tables {
        table(text, one, experiment, view);
    }
}

/// The word before a verdict, in bold if the verdict does not hold.
pub(crate) fn mark(verdict: &Verdict) -> String {
    let (word, class) = crate::page::tag(verdict);
    match (verdict.kind, class) {
        (Kind::Figure, _) => String::new(),
        (_, "no") => format!("**{word}**: "),
        _ => format!("{word}: "),
    }
}

/// One table: allocators down, figures across. It is turned if there are more than 12 figures, and more of them than
/// allocators.
fn table(text: &mut String, table: &Table, experiment: &Experiment, view: &View) {
    let columns: Vec<_> = table.columns.iter().filter(|one| view.has_case(&experiment.name, &one.case)).collect();
    let value = |allocator: &str, place: usize| {
        let column = columns[place];
        view.value(Figure::new(&experiment.name, &column.case, &column.metric), allocator)
    };
    let has_part = |allocator: &&String| (0..columns.len()).any(|place| value(allocator, place) != Value::Absent);
    let allocators: Vec<&String> = view.allocators().iter().filter(has_part).collect();
    if allocators.is_empty() {
        return;
    }
    let labels: Vec<&str> = columns.iter().map(|column| column.label.as_str()).collect();
    let names: Vec<&str> = allocators.iter().map(|name| name.as_str()).collect();
    let turned = columns.len() > allocators.len() && columns.len() > 12;
    let (across, down) = if turned { (&names, &labels) } else { (&labels, &names) };
    let _ = write!(text, "\n{}:\n\n| | {} |\n|---|{}\n", table.title, across.join(" | "), "---:|".repeat(across.len()));
    for (line, name) in down.iter().enumerate() {
        let _ = write!(text, "| {name} |");
        for place in 0..across.len() {
            let (allocator, column) = if turned { (names[place], line) } else { (names[line], place) };
            let _ = write!(text, " {} |", cell(&value(allocator, column)));
        }
        text.push('\n');
    }
}

fn cell(value: &Value) -> String {
    match value {
        Value::Is(spread) => spread_text(spread, number),
        Value::Failed(_) => format!("**{}**", value_text(value, "")),
        Value::Skipped(_) => value_text(value, ""),
        Value::Absent => "-".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    // Would catch a failed allocator that disappears, a verdict that is left out, a picture that is not there.
    #[test]
    fn the_document_has_its_parts() {
        let mut run = sample::run();
        run.experiments[0].tables[0].columns.push(neap_results::Column::new("1 MiB, µs", "1 MiB", "us"));
        run.notes = vec!["## What falls short\n\nnothing".into()];
        let text = document(&run, &Options { title: "T", intro: "I", pictures: Some("docs") });
        for part in [
            "# T\n\nI\n\n",
            "> calloc clears what was not touched. (an article, 2016)\n> 10,000 times 100 MiB: 8 minutes.",
            "**neap is first of 2.**",
            "- seen: glibc grows with the size",
            "- **missed**: neap has 912 ns (limit: 500 ns)",
            "![calloc and free](docs/calloc-sizes.svg)",
            "| other | 1 | **failed: crashed (signal 11)** |",
            "| glibc | 0.461 | 7.10 [7, 7.20] |",
            "Not run: it needs root",
            "<summary>Every fault of `true`</summary>\n\n```text\n1 0x1000 C 0 0x1080: _start (in <libc>)\n```",
            "\n### What falls short\n",
            "To repeat it: `neap lab run calloc`",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    // Would catch a table with thirty columns, or one whose values stand under other names.
    #[test]
    fn long_tables_are_turned() {
        let mut run = sample::run();
        let column = run.experiments[0].tables[0].columns[0].clone();
        run.experiments[0].tables[0].columns = vec![column; 13];
        let text = document(&run, &Options::default());
        assert!(text.contains("| | glibc | neap | other |\n|---|---:|---:|---:|\n| 64 KiB, µs | 0.461 | 0.731 | 1 |"));
    }
}
