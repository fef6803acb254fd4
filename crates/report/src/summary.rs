//! Kept runs on one page: `EXPERIMENTS.md` and `BENCHMARKS.md`. `neap lab show` has all tables.

use std::fmt::Write as _;

use neap_results::{Kind, Run, Verdict};

/// One line for each experiment: its question and its result.
pub fn experiments(run: &Run, intro: &str) -> String {
    let mut text = head("Experiments", run, intro);
    text.push_str("\n| experiment | question | result | goals met |\n|---|---|---|---|\n");
    for experiment in &run.experiments {
        let result = match (&experiment.skipped, experiment.lead()) {
            (Some(why), _) => format!("not run: {why}"),
            (None, lead) => lead.unwrap_or_default(),
        };
        let goals = goals(&experiment.verdicts);
        let _ =
            writeln!(text, "| `{}` | {} | {} | {goals} |", experiment.name, cell(&experiment.question), cell(&result));
    }
    notes(&mut text, run);
    text
}

/// The first table of each experiment, and its verdicts.
pub fn benchmarks(run: &Run, intro: &str) -> String {
    let mut text = head("Benchmarks", run, intro);
    for experiment in &run.experiments {
        let _ = write!(text, "\n{} {}\n", experiment.question, experiment.about);
        let first = experiment.tables.first().into_iter().cloned().collect();
        let short = neap_results::Experiment { tables: first, ..experiment.clone() };
        crate::markdown::tables(&mut text, &short, &neap_results::View::of(run));
        text.push('\n');
        for verdict in &experiment.verdicts {
            let _ = writeln!(text, "- {}{}", crate::markdown::mark(verdict), verdict.text);
        }
    }
    notes(&mut text, run);
    text
}

fn head(title: &str, run: &Run, intro: &str) -> String {
    let machine = &run.machine;
    let versions = run.allocators.iter().filter(|one| one.base.is_none());
    let versions: Vec<String> = versions.map(|one| format!("{} {}", one.name, one.version)).collect();
    format!(
        "# {title}\n\n{}\n\nMachine: {}, {} processors, {} MiB, Linux {}, transparent huge pages {}. Allocators: {}.\n",
        intro.trim(),
        machine.cpu,
        machine.cores,
        machine.memory_mib,
        machine.kernel,
        machine.transparent_hugepage,
        versions.join(", ")
    )
}

/// `3 of 4`; empty where there are none.
fn goals(verdicts: &[Verdict]) -> String {
    let judged: Vec<bool> =
        verdicts.iter().filter(|verdict| verdict.kind == Kind::Target).filter_map(|verdict| verdict.holds).collect();
    let met = judged.iter().filter(|holds| **holds).count();
    if judged.is_empty() { String::new() } else { format!("{met} of {}", judged.len()) }
}

/// A text for a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

fn notes(text: &mut String, run: &Run) {
    for note in &run.notes {
        let _ = write!(text, "\n{note}\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    // Would catch an experiment that is left out, a shortfall that is not counted, a reason that is lost.
    #[test]
    fn each_experiment_has_its_line() {
        let mut run = sample::run();
        run.notes = vec!["## What falls short".into(), "nothing | at all".into()];
        let text = experiments(&run, "intro\n");
        assert!(text.starts_with("# Experiments\n\nintro\n\nMachine: "), "{text}");
        assert!(text.contains("Allocators: glibc 1.0, neap 1.0, other 1.0.\n"), "{text}");
        assert!(text.contains("| `calloc` | What does it cost? | neap is first of 2. | 0 of 1 |\n"), "{text}");
        assert!(text.contains("| `workers` |  | not run: it needs root |  |\n"), "{text}");
        assert!(text.ends_with("\n## What falls short\n\nnothing | at all\n"), "{text}");
        assert_eq!(cell("a | b"), "a \\| b");
    }

    // Would catch a page without its table or its shortfalls.
    #[test]
    fn benchmarks_have_their_table() {
        let text = benchmarks(&sample::run(), "");
        assert!(text.contains("| glibc | 0.461 |") && text.contains("- **missed**: neap has 912 ns"), "{text}");
    }
}
