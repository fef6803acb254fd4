//! `neap lab`: published experiments, run again on this machine (the crate neap-lab does the work).

pub mod args;
mod progress;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use neap_lab::failure::{Failure, failure};
use neap_lab::interrupt::Interrupted;
use neap_lab::place::{Place, user_cache};
use neap_lab::plan::{self, Request};
use neap_lab::text::{self, Form};
use neap_lab::toolchain::shell_word;
use neap_lab::{allocators, catalogue, machine, peers, store};
use neap_options::nearest::did_you_mean;
use neap_report::theme::Theme;
use neap_results::{Comparison, NEAP, Run};
use serde_json::json;

use self::args::{BuildArgs, CompareArgs, LabAction, LabArgs, ListArgs, PeersAction, PeersListArgs, RunArgs, ShowArgs};
use self::progress::Progress;
use neap_launch::error::{Error, tell};
use neap_launch::library;
use neap_launch::sys;

/// Exit status where a verdict that must hold does not, or a comparison shows a regression.
const NOT_HELD: u8 = 1;
/// The file of the report, beside the run.
const REPORT: &str = "report.html";
/// A shell shows death by signal N as 128 + N.
const SIGNALLED: u8 = 128;

/// Runs the command; the result is neap's exit status.
pub fn run(args: LabArgs) -> Result<u8, Error> {
    let result = match args.action {
        LabAction::List(args) => list(&args),
        LabAction::Run(args) => measure(args),
        LabAction::Show(args) => show(&args),
        LabAction::Compare(args) => compare(&args),
        LabAction::Peers(args) => match args.action {
            PeersAction::Build(args) => build_peers(args),
            PeersAction::List(args) => list_peers(args),
        },
    };
    result.or_else(|error| match error.downcast_ref::<Interrupted>() {
        Some(signal) => Ok(status_of(signal.0)),
        None => Err(error.downcast::<Error>().unwrap_or_else(|error| to_error(&error))),
    })
}

/// The cause and, where there is one, the remedy.
fn to_error(error: &anyhow::Error) -> Error {
    match error.chain().find_map(|cause| cause.downcast_ref::<Failure>()) {
        Some(failure) => Error::failed(failure.cause.clone()).remedy(failure.remedy.clone()),
        None => {
            // What a compiler said has many lines.
            let text = format!("{error:#}");
            let (cause, details) = text.split_once('\n').unwrap_or((&text, ""));
            Error::failed(cause).details(details)
        }
    }
}

fn status_of(signal: i32) -> u8 {
    SIGNALLED.saturating_add(u8::try_from(signal).unwrap_or(0))
}

/// Where things lie. The library is placed as `neap run` does it; it must outlive the run.
fn place(peers: Option<PathBuf>, library: &Path) -> anyhow::Result<Place> {
    let cache = user_cache()?;
    Ok(Place {
        peers: peers.map_or_else(|| Ok(cache.join("peers")), std::path::absolute)?,
        library: library.into(),
        version: format!("{}+{}", env!("CARGO_PKG_VERSION"), &library::NEAP.hash[..12]),
        command: std::env::current_exe()?,
        build_peers: "neap lab peers build",
        cache,
    })
}

fn placed_library() -> anyhow::Result<library::Placed> {
    Ok(library::NEAP.place()?)
}

fn list(args: &ListArgs) -> anyhow::Result<u8> {
    let designs = catalogue::all(false);
    if args.json {
        let one = |design: &catalogue::Design| {
            let cases: Vec<&str> = design.cases.iter().map(|case| case.name.as_str()).collect();
            json!({
                "name": design.name, "title": design.title, "question": design.question, "about": design.about,
                "claims": design.claims, "cases": cases, "rounds": design.rounds,
            })
        };
        let list: Vec<_> = designs.iter().map(one).collect();
        return print(&(serde_json::to_string_pretty(&list)? + "\n"));
    }
    let width = designs.iter().map(|design| design.name.len()).max().unwrap_or(0);
    let line = |design: &catalogue::Design| format!("{:<width$}  {}\n", design.name, design.question);
    print_text(&designs.iter().map(line).collect::<String>())
}

fn measure(args: RunArgs) -> anyhow::Result<u8> {
    let library = placed_library()?;
    let place = place(args.peers, &library.path)?;
    let output = args.output.unwrap_or_else(|| format!("neap-lab-{}", machine::stamp()).into());
    let request = Request {
        names: args.names,
        cases: args.cases,
        quick: args.quick,
        runs: args.runs,
        allocators: args.allocators,
        output: output.clone(),
        force: args.force,
        command: command_line(),
        commit: None,
    };
    let mut progress = Progress::new();
    let done = plan::run(&place, &request, &mut |event| progress.show(&event))?;
    progress.clear();
    let written = write_report(&output, &done.run);
    if args.json {
        print(&done.run.to_json())?;
    } else {
        print_text(&text::run_text(&done.run, terminal_form()))?;
    }
    let error = match written {
        Ok(page) => {
            tell(format_args!("written: {}", page.display()));
            done.error
        }
        Err(error) => Some(done.error.unwrap_or(error)),
    };
    if let Some(signal) = done.interrupted {
        tell("neap: interrupted; what was measured until then is kept");
        return Ok(status_of(signal));
    }
    if let Some(error) = error {
        tell("neap: not all could be measured or kept; the rest is above");
        return Err(error);
    }
    Ok(if args.check && report_broken(&done.run) { NOT_HELD } else { 0 })
}

/// Says which verdicts had to hold and do not.
fn report_broken(run: &Run) -> bool {
    let broken = run.broken();
    for (experiment, verdict) in &broken {
        tell(format_args!("neap: {}: must hold and does not: {}", experiment.name, verdict.text));
    }
    if let Some(words) = text::gates_off_text(run) {
        tell(format_args!("neap: {words}"));
    }
    !broken.is_empty()
}

fn show(args: &ShowArgs) -> anyhow::Result<u8> {
    let whole = store::load(&args.dir)?;
    let run = part(whole.clone(), &args.names)?;
    if args.json {
        return print(&run.to_json());
    }
    if let Some(dir) = &args.charts {
        write_charts(dir, &run, if args.dark { Theme::Dark } else { Theme::Light })?;
        return Ok(0);
    }
    if args.markdown {
        return print(&neap_report::markdown::document(&run, &neap_report::markdown::Options::default()));
    }
    let text = if args.verdicts { text::verdicts_text } else { text::run_text };
    print_text(&text(&run, terminal_form()))?;
    let dir = if args.dir.is_dir() { args.dir.clone() } else { args.dir.parent().unwrap_or(Path::new(".")).into() };
    let written = write_report(&dir, &whole);
    // A user who cannot write there can still read.
    let page = match written {
        Err(error) if !args.open => {
            to_error(&error).report();
            return Ok(0);
        }
        other => other?,
    };
    tell(format_args!("written: {}", page.display()));
    if args.open {
        open(&page)?;
    }
    Ok(0)
}

/// The experiments called `names` of a run; all where there is no name.
fn part(mut run: Run, names: &[String]) -> anyhow::Result<Run> {
    if let Some(name) = names.iter().find(|name| run.experiment(name).is_none()) {
        let there: Vec<&str> = run.experiments.iter().map(|experiment| experiment.name.as_str()).collect();
        let remedy = format!("{}its experiments are {}", did_you_mean(name, there.iter().copied()), there.join(", "));
        return Err(failure(format!("the run has no experiment called `{name}`"), remedy));
    }
    if !names.is_empty() {
        run.experiments.retain(|experiment| names.contains(&experiment.name));
        run.rows.retain(|row| names.contains(&row.experiment));
    }
    Ok(run)
}

/// Writes the HTML report beside the run.
fn write_report(dir: &Path, run: &Run) -> anyhow::Result<PathBuf> {
    let page = dir.join(REPORT);
    write(&page, &neap_report::page::html(run), "copy the run to a folder that you may write to")?;
    Ok(page)
}

/// Writes each chart as an SVG file.
fn write_charts(dir: &Path, run: &Run, theme: Theme) -> anyhow::Result<()> {
    std::fs::create_dir_all(dir).map_err(|error| {
        failure(format!("cannot create {}: {error}", dir.display()), "name a folder that you may write to")
    })?;
    let charts = neap_report::charts(run, theme);
    for (stem, svg) in &charts {
        write(&dir.join(format!("{stem}.svg")), svg, "name another folder with --charts")?;
    }
    tell(format_args!("written: {} charts in {}", charts.len(), dir.display()));
    Ok(())
}

fn write(path: &Path, text: &str, remedy: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).map_err(|error| failure(format!("cannot write {}: {error}", path.display()), remedy))
}

/// Opens a page in the user's browser.
fn open(page: &Path) -> anyhow::Result<()> {
    let started = std::process::Command::new("xdg-open").arg(page).status();
    if !started.is_ok_and(|status| status.success()) {
        return Err(failure("xdg-open cannot open the report", format!("open {} in a browser", page.display())));
    }
    Ok(())
}

fn compare(args: &CompareArgs) -> anyhow::Result<u8> {
    let comparison = neap_results::compare(&store::load(&args.before)?, &store::load(&args.after)?);
    if let Some(file) = &args.html {
        write(file, &neap_report::compare::html(&comparison), "name another file with --html")?;
        tell(format_args!("written: {}", file.display()));
    }
    match args.json {
        true => print(&(serde_json::to_string_pretty(&comparison)? + "\n"))?,
        false => print_text(&neap_report::compare::text(&comparison, Some(args.limit)))?,
    };
    Ok(if args.check && report_regressions(&comparison) { NOT_HELD } else { 0 })
}

/// Says what of neap is worse, and what was lost.
fn report_regressions(comparison: &Comparison) -> bool {
    let (worse, lost) = (comparison.worse(NEAP).count(), comparison.lost(NEAP).count());
    for change in comparison.worse(NEAP) {
        let (experiment, case, metric) = (&change.experiment, &change.case, &change.metric);
        tell(format_args!("neap: {experiment}, {case}, {metric}: worse: {} -> {}", change.before, change.after));
    }
    for missing in comparison.lost(NEAP) {
        tell(format_args!("neap: only in the first run: {missing}"));
    }
    worse + lost > 0
}

fn build_peers(args: BuildArgs) -> anyhow::Result<u8> {
    neap_lab::interrupt::watch();
    let place = place(args.peers.clone(), Path::new(""))?;
    let mut shown = peers::Shown::default();
    let built = peers::build_all(&place, &args.wanted(), &mut |step| shown.show(&step))?;
    match built {
        0 => tell(format_args!("nothing to build in {} (--force builds again)", place.peers.display())),
        1 => tell(format_args!("written: 1 library in {}", place.peers.display())),
        built => tell(format_args!("written: {built} libraries in {}", place.peers.display())),
    }
    Ok(0)
}

fn list_peers(args: PeersListArgs) -> anyhow::Result<u8> {
    let library = placed_library()?;
    let place = place(args.peers, &library.path)?;
    let records = peers::records(&place)?;
    let (mut lines, mut entries) = (String::new(), Vec::new());
    let names = allocators::names();
    let width = names.iter().map(String::len).max().unwrap_or(0);
    for name in names {
        let found = allocators::resolve(&place, std::slice::from_ref(&name), &mut |_| {});
        let state = match &found {
            Ok(found) => {
                let (record, old) = (found[0].record(), peers::is_old(&records, &name));
                let built = found[0].built.as_ref();
                let version = built.map_or(record.version.clone(), peers::PeerRecord::dated);
                let source = if record.source.is_empty() { String::new() } else { format!(", {}", record.source) };
                let behind = built.and_then(|built| built.behind(&name));
                entries.push(json!({
                    "name": name, "found": true, "old": old, "allocator": record,
                    "date": built.and_then(|built| built.date.as_ref()), "newest": behind,
                }));
                let behind = behind.map_or(String::new(), |newest| format!(" (older than upstream {newest})"));
                let old = if old { format!(" (old: run `{}`)", place.build_peers) } else { String::new() };
                format!("{version}{source}{behind}{old}")
            }
            Err(error) => {
                entries.push(json!({"name": name, "found": false, "reason": error.to_string()}));
                format!("- ({error})")
            }
        };
        lines.push_str(&format!("{name:<width$}  {state}\n"));
    }
    match args.json {
        true => print(&(serde_json::to_string_pretty(&entries)? + "\n")),
        false => print_text(&lines),
    }
}

/// The command line, as one would type it.
fn command_line() -> String {
    let mut words: Vec<OsString> = std::env::args_os().collect();
    if let Some(first) = words.first_mut() {
        *first = "neap".into();
    }
    words.iter().map(|word| shell_word(&word.to_string_lossy())).collect::<Vec<_>>().join(" ")
}

fn terminal_form() -> Form {
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    match sys::width_of(libc::STDOUT_FILENO) {
        Some(width) => Form { colour: !plain, width },
        None => Form::default(),
    }
}

fn print(text: &str) -> anyhow::Result<u8> {
    Ok(sys::print(text.as_bytes())?)
}

/// Prints what is for people.
fn print_text(text: &str) -> anyhow::Result<u8> {
    Ok(sys::print_fitted(text)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a remedy that is lost when a cause is wrapped.
    #[test]
    fn remedies_are_kept() {
        let error = neap_lab::failure::failure("no compiler", "install one").context("while building");
        let text = to_error(&error).to_string();
        assert!(text.contains("no compiler") && text.contains("install one"), "{text}");
        assert!(to_error(&anyhow::anyhow!("inner").context("outer")).to_string().contains("outer: inner"));
        let text = to_error(&anyhow::anyhow!("exit status: 1 from: cc\nx.c:1: error\ny.c:2: error")).to_string();
        assert_eq!(text, "neap: exit status: 1 from: cc\n  x.c:1: error\n  y.c:2: error");
    }
}
