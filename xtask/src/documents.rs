//! `cargo xtask documents`: makes all parts of the repository's documents that come from measurements, from kept runs.
//!
//! | document | made of |
//! |---|---|
//! | `BENCHMARKS.md` | the experiment `suite`, and `lab/notes/BENCHMARKS.md` |
//! | `docs/headline.svg`, `docs/headline-dark.svg` | the experiments `retain-large`, `service` and `suite` |
//! | `EXPERIMENTS.md` | a line for each other experiment, and `lab/notes/EXPERIMENTS.md` |
//! | the picture and the table in `README.md` | figures of these |
//! | the tables in `docs/attributes.md` | `xtask/src/attributes/table.rs` |
//!
//! A full run of the lab has all of this. `lab/results/published` names the runs from which the documents are made.
//! They are kept packed, without the experiments that a later one has measured again.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use neap_lab::failure::failure;
use neap_lab::{catalogue, plan, store};
use neap_report::markdown::{Options, document};
use neap_report::{readme, summary};
use neap_results::{Run, notes_from, suite};

use crate::attributes;
use crate::place::root;

/// The file with the folders of the published runs, one on each line, relative to the root.
const PUBLISHED: &str = "lab/results/published";
/// The documents that are made.
const DOCUMENTS: [&str; 5] =
    ["BENCHMARKS.md", "docs/headline.svg", "docs/headline-dark.svg", "EXPERIMENTS.md", "README.md"];
/// Remarks that were written by hand, in files with the names of the documents.
const NOTES: &str = "lab/notes";

/// Arguments of `cargo xtask documents`.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    cargo xtask documents lab/results/NAME            all documents, from a full run\n  \
    cargo xtask documents                             again, from the runs that are published\n  \
    cargo xtask documents DIR --into /tmp/documents   to look at, also from a quick run\n\n\
    Remarks that were written by hand are in lab/notes/ and come after the figures: check whether they still fit.")]
pub struct Args {
    /// Folders that `cargo xtask experiments -o` or `neap lab run -o` wrote; a later one replaces experiments of an
    /// earlier one [default: those named in lab/results/published]
    #[arg(value_name = "DIR")]
    dirs: Vec<PathBuf>,
    /// Write into FOLDER instead of the repository, and publish nothing
    #[arg(long, value_name = "FOLDER")]
    into: Option<PathBuf>,
}

/// Runs the command.
pub fn main(args: Args) -> Result<()> {
    let dirs = if args.dirs.is_empty() { published()? } else { args.dirs.clone() };
    let mut runs = load(&dirs)?;
    if args.into.is_none() {
        worthy(&dirs, &runs)?;
        runs = pack(&dirs, runs)?;
    }
    let folder = args.into.clone().unwrap_or_else(root);
    for (name, text) in documents(&dirs, &runs)? {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap_or(&folder))?;
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        eprintln!("written: {}", path.display());
    }
    attributes::write(&folder)?;
    if args.into.is_none() && !args.dirs.is_empty() {
        fs::write(root().join(PUBLISHED), names(&dirs)?)?;
        eprintln!("written: {PUBLISHED}; check whether the remarks in {NOTES}/ still fit");
    }
    Ok(())
}

/// The folders of the published runs.
fn published() -> Result<Vec<PathBuf>> {
    let path = root().join(PUBLISHED);
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(text.lines().filter(|line| !line.is_empty()).map(|line| root().join(line)).collect())
}

/// The text of [`PUBLISHED`]: a folder on each line, relative to the root.
fn names(dirs: &[PathBuf]) -> Result<String> {
    let root = fs::canonicalize(root())?;
    let mut text = String::new();
    for dir in dirs {
        let whole = fs::canonicalize(dir)?;
        let Ok(inside) = whole.strip_prefix(&root) else {
            let remedy = "put it into lab/results, or write the documents elsewhere with --into FOLDER";
            return Err(failure(format!("{} is not in the repository", dir.display()), remedy));
        };
        text.push_str(&format!("{}\n", inside.display()));
    }
    Ok(text)
}

fn load(dirs: &[PathBuf]) -> Result<Vec<Run>> {
    dirs.iter().map(|dir| store::load(dir)).collect()
}

/// Checks that all runs are full: only these are published.
fn worthy(dirs: &[PathBuf], runs: &[Run]) -> Result<()> {
    names(dirs)?;
    for (dir, run) in dirs.iter().zip(runs) {
        let what = match (run.quick, run.ended.is_none()) {
            (true, _) => "a quick run",
            (_, true) => "a run that was interrupted",
            _ => continue,
        };
        let remedy = "publish a full run, or write the documents elsewhere with --into FOLDER";
        return Err(failure(format!("{} is {what}", dir.display()), remedy));
    }
    Ok(())
}

/// Makes the runs small: removes from earlier ones the experiments of later ones, and updates texts and verdicts to
/// this version.
fn pack(dirs: &[PathBuf], mut runs: Vec<Run>) -> Result<Vec<Run>> {
    for place in 0..runs.len() {
        let (earlier, later) = runs.split_at_mut(place + 1);
        let run = &mut earlier[place];
        let again = |name: &str| later.iter().any(|run| run.experiment(name).is_some());
        run.experiments.retain(|experiment| !again(&experiment.name));
        run.rows.retain(|row| !again(&row.experiment));
        plan::refresh(run);
        store::pack(&dirs[place], run)?;
    }
    Ok(runs)
}

/// The documents: name, relative to the root, and text.
fn documents(dirs: &[PathBuf], runs: &[Run]) -> Result<Vec<(&'static str, String)>> {
    let mut made = Vec::new();
    let suite = runs.iter().rev().find_map(suite::of);
    let pages = runs.iter().filter_map(without_suite).reduce(with_later);
    let mut readme = fs::read_to_string(root().join("README.md")).context("cannot read README.md")?;
    let place = |place: readme::Place, readme: &str, text: &str| {
        place.with(readme, text).with_context(|| format!("README.md has no line `{}`", place.begin))
    };
    if let Some((suite, pages)) = suite.as_ref().zip(pages.as_ref()) {
        for (name, theme) in readme::FILES {
            made.extend(readme::picture(suite, pages, theme).map(|svg| (name, svg)));
        }
        if let (Some(picture), Some(table)) = (readme::element(suite, pages), readme::table(pages)) {
            readme = place(readme::PICTURE, &readme, &picture)?;
            made.push(("README.md", place(readme::TABLE, &readme, &table)?));
        }
    }
    if let Some(suite) = suite {
        let intro = format!(
            "The allocation suite: geometric means over 15 programs, at one and two threads. {}",
            whole(dirs, runs, |run| suite::of(run).is_some())
        );
        made.push(("BENCHMARKS.md", summary::benchmarks(&with_notes(suite, "BENCHMARKS.md"), &intro)));
    }
    if let Some(mut pages) = pages {
        let names = catalogue::names();
        pages.experiments.sort_by_key(|one| names.iter().position(|name| *name == one.name));
        let intro = format!(
            "Each experiment repeats the program of an article, a paper or a bug report under neap and other \
             allocators ([docs/lab.md](docs/lab.md)). The result says how often neap leads, and where it first \
             falls behind. {}",
            whole(dirs, runs, |run| without_suite(run).is_some())
        );
        made.push(("EXPERIMENTS.md", summary::experiments(&with_notes(pages, "EXPERIMENTS.md"), &intro)));
    }
    for name in DOCUMENTS {
        if !made.iter().any(|(other, _)| *other == name) {
            eprintln!("left as it is: {name}; the run lacks experiments for it");
        }
    }
    Ok(made)
}

/// A run without the allocation suite.
fn without_suite(run: &Run) -> Option<Run> {
    let mut run = run.clone();
    run.experiments.retain(|experiment| experiment.name != suite::NAME);
    run.rows.retain(|row| row.experiment != suite::NAME);
    (!run.experiments.is_empty()).then_some(run)
}

/// A run in which the experiments of a later one replace its own.
fn with_later(mut run: Run, later: Run) -> Run {
    let names: Vec<&str> = later.experiments.iter().map(|experiment| experiment.name.as_str()).collect();
    run.rows.retain(|row| !names.contains(&row.experiment.as_str()));
    run.rows.extend(later.rows);
    for experiment in later.experiments {
        match run.experiments.iter_mut().find(|own| own.name == experiment.name) {
            Some(own) => *own = experiment,
            None => run.experiments.push(experiment),
        }
    }
    run
}

/// The sentence with the commands that show all tables and charts of these runs.
fn whole(dirs: &[PathBuf], runs: &[Run], is_part: impl Fn(&Run) -> bool) -> String {
    let parts = dirs.iter().zip(runs).filter(|(_, run)| is_part(run));
    let commands: Vec<String> = parts
        .map(|(dir, run)| {
            let noisy =
                if run.noise.quiet == Some(false) { " (the machine was not quiet: times are rough)" } else { "" };
            format!("`neap lab show {}`{noisy}", dir.strip_prefix(root()).unwrap_or(dir).display())
        })
        .collect();
    format!("All figures with their spread, all verdicts and the commands: {}.", commands.join(", "))
}

/// A run with the remarks that were written by hand.
fn with_notes(mut run: Run, name: &str) -> Run {
    let notes = fs::read_to_string(root().join(NOTES).join(name)).unwrap_or_default();
    run.notes = notes_from(&notes);
    run
}

/// The tables of one run, for the terminal.
pub fn print(dir: &Path) -> Result<()> {
    print!("{}", document(&store::load(dir)?, &Options::default()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use neap_results::{Experiment, Row};

    /// Catches figures of an earlier run beside those of a later one, and experiments that are lost.
    #[test]
    fn a_later_run_counts() {
        let row = |name: &str, value| Row { experiment: name.into(), value, ..Row::default() };
        let run = |names: &[&str], value| Run {
            experiments: names.iter().map(|&name| Experiment { name: name.into(), ..Experiment::default() }).collect(),
            rows: names.iter().map(|name| row(name, value)).collect(),
            ..Run::default()
        };
        let both = with_later(run(&["calloc", "huge"], 1.0), run(&["huge", "vmas"], 2.0));
        let names: Vec<&str> = both.experiments.iter().map(|experiment| experiment.name.as_str()).collect();
        assert_eq!(names, ["calloc", "huge", "vmas"]);
        let values: Vec<(&str, f64)> = both.rows.iter().map(|row| (row.experiment.as_str(), row.value)).collect();
        assert_eq!(values, [("calloc", 1.0), ("huge", 2.0), ("vmas", 2.0)]);
    }

    /// Catches a document that differs from the kept runs, verdicts of an earlier version, and remarks that a document
    /// lost.
    #[test]
    fn what_is_published_is_what_is_kept() {
        let dirs = published().expect("kept");
        let runs = load(&dirs).expect("readable");
        worthy(&dirs, &runs).expect("whole runs");
        for (dir, run) in dirs.iter().zip(&runs) {
            let mut now = run.clone();
            plan::refresh(&mut now);
            assert!(now == *run, "{} is stale; to bring it up to date: cargo xtask documents", dir.display());
        }
        let made = documents(&dirs, &runs).expect("made");
        assert_eq!(made.len(), DOCUMENTS.len());
        for (name, text) in made {
            let there = fs::read_to_string(root().join(name)).expect("readable");
            assert!(there == text, "{name} is stale; to write it anew: cargo xtask documents");
        }
        let notes = fs::read_to_string(root().join(NOTES).join("BENCHMARKS.md")).expect("readable");
        let first = notes.lines().find(|line| line.starts_with("## ")).expect("a heading");
        assert!(fs::read_to_string(root().join("BENCHMARKS.md")).is_ok_and(|text| text.contains(first)));
    }

    /// Catches large results, which every clone has; reports that can be made again; and paths of the machine that made
    /// them.
    #[test]
    fn what_is_kept_is_small() {
        let mut size = 0;
        for dir in published().expect("kept") {
            for entry in fs::read_dir(&dir).expect("a folder") {
                let path = entry.expect("an entry").path();
                let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
                // `neap lab show` writes it; git ignores it.
                if name == "report.html" {
                    continue;
                }
                assert!([store::RUN, store::PACKED].contains(&name), "{}", path.display());
                size += fs::metadata(&path).expect("a file").len();
            }
            let run = store::load(&dir).expect("readable");
            let text = run.to_json_without_rows() + &neap_results::rows_to_csv(&run.rows, true);
            let foreign = foreign_paths(&text);
            assert!(foreign.is_empty(), "{}: {foreign:?}", dir.display());
        }
        assert!(size < 500_000, "{size} bytes");
    }
    /// Absolute paths in JSON, CSV or commands outside of the folders that every system has.
    fn foreign_paths(text: &str) -> Vec<String> {
        const SYSTEM: [&str; 8] = ["/bin/", "/dev/", "/lib/", "/lib64/", "/proc/", "/sys/", "/usr/bin/", "/usr/lib/"];
        // Escapes end a word, and the slashes of `https://` do not begin one.
        let text = ["\\n", "\\t", "\\\"", "://"]
            .iter()
            .fold(text.to_owned(), |text, mark| text.replace(mark, if *mark == "://" { ":" } else { " " }));
        let words = text.split(|c: char| c.is_whitespace() || "\"'`,;:=()[]{}<>|&".contains(c));
        // `-I/include` has its path in the same word.
        let bare = |word: &str| match word.strip_prefix('-').and_then(|rest| rest.split_once('/')) {
            Some((option, path)) if option.len() <= 1 => format!("/{path}"),
            _ => word.to_owned(),
        };
        let is_path = |word: &String| word.starts_with('/') && word.contains(|c: char| c.is_alphanumeric());
        let is_foreign = |word: &String| !SYSTEM.iter().any(|folder| word.starts_with(folder)) || word.contains("/../");
        words.map(bare).filter(is_path).filter(is_foreign).collect()
    }

    /// Catches a folder of one machine that counts as a folder of every system, as a rate or as an address.
    #[test]
    fn folders_of_a_machine_are_found() {
        let foreign = [
            r#"{"command":"/srv/neap run"}"#,
            r"a,b,/mnt/x.so,1",
            r"cc -I/opt/include",
            r"--prefix=/scratch/a",
            r"LIB=/usr/lib/a:/data/b",
            r"file:///builds/a",
            r#""one\n/export/two""#,
            r#""said \"/build/x\"""#,
            r"/usr/lib/../../nfs/a",
            r"(/var/a)",
            r"/usr/local/a",
        ];
        for text in foreign {
            assert_eq!(foreign_paths(text).len(), 1, "{text}: {:?}", foreign_paths(text));
        }
        let general = r#"https://example.org/a 1/s lab/results/a ../docs "/bin/true" /proc/self/maps a / b target/x"#;
        assert_eq!(foreign_paths(general), [""; 0]);
    }
}
