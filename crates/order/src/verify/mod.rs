//! `neap order verify`: whether a program with another layout touches fewer pages.

mod conditions;
mod measure;
mod ratios;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use neap_launch::error::{Error, system_message};
use neap_launch::sys::{print, print_fitted};
use neap_launch::units;
use neap_layout::Order;
use neap_layout::names::Counts;
use serde::Serialize;

use self::conditions::Conditions;
use self::measure::{Sample, measure};
use self::ratios::{Ratio, median};
use crate::args::VerifyArgs;
use crate::files;
use crate::layout::read_binary;
use crate::pages::{Touched, number, touched};

/// The exit status if nothing improved, or too few names were found.
const NOT_BETTER: u8 = 1;
/// Of ten functions of a trace, the number that must be in the new binary.
const FOUND_OF_TEN: usize = 9;

/// The comparison, in the order in which it is shown.
#[derive(Debug, Serialize)]
struct Report {
    format: &'static str,
    before: PathBuf,
    after: PathBuf,
    pairs: u32,
    /// Of `--trace`.
    #[serde(skip_serializing_if = "Option::is_none")]
    functions: Option<Functions>,
    measures: Vec<Measure>,
    conditions: Conditions,
    /// What could not be measured, or needs care.
    notes: Vec<String>,
    improved: bool,
}

/// The functions of a trace, searched in the new binary.
#[derive(Debug, Serialize)]
struct Functions {
    /// By their names.
    found: usize,
    /// Under a changed name.
    changed: usize,
    lost: usize,
    /// Whether nine tenths of them were found.
    enough: bool,
}

/// One comparison.
#[derive(Debug, Serialize)]
struct Measure {
    name: &'static str,
    unit: Unit,
    /// Medians.
    before: f64,
    after: f64,
    /// After divided by before, pair by pair; `None` where a value before is 0.
    ratio: Option<Ratio>,
    improved: bool,
}

#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum Unit {
    Count,
    Bytes,
    Seconds,
}

/// Runs the command; the result is neap's exit status.
pub fn run(args: &VerifyArgs) -> Result<u8, Error> {
    let [before, after] = [&args.before, &args.after].map(|path| {
        fs::canonicalize(path)
            .map_err(|e| Error::failed(format!("cannot read {}: {}", path.display(), system_message(&e))))
    });
    let (before, after) = (before?, after?);
    let functions = args.trace.as_deref().map(|trace| Functions::of(trace, &after)).transpose()?;
    let mut notes = Vec::new();
    let mut conditions = Conditions::of([&before, &after]);
    let mut measures = exact([&before, &after], &args.arguments, &mut notes)?;
    for cold in [false, true] {
        measures.extend(pairs([&before, &after], args, cold, (&mut conditions, &mut notes))?);
    }
    // Two files with the same content may differ in time, depending on their place in the page cache.
    let improved = measures.iter().any(|measure| measure.improved && !matches!(measure.unit, Unit::Seconds));
    let enough = functions.as_ref().is_none_or(|functions| functions.enough);
    let (format, pairs) = ("neap-order-verify 1", args.pairs);
    let report = Report { format, before, after, pairs, functions, measures, conditions, notes, improved };
    match args.json {
        true => print(&json(&report)?)?,
        false => print_fitted(&text(&report))?,
    };
    Ok(if improved && enough { 0 } else { NOT_BETTER })
}

/// Pages and faults without fault-around, which do not vary: one run of each.
fn exact(files: [&Path; 2], arguments: &[OsString], notes: &mut Vec<String>) -> Result<Vec<Measure>, Error> {
    let see = |file: &Path| {
        let command: Vec<OsString> =
            [file.as_os_str().to_owned()].into_iter().chain(arguments.iter().cloned()).collect();
        touched(file, &command)
    };
    let (before, after) = match (see(files[0]), see(files[1])) {
        (Ok(before), Ok(after)) => (before, after),
        (Err(error), _) | (_, Err(error)) => {
            let why = error.to_string();
            notes.push(why.lines().next().unwrap_or_default().trim_start_matches("neap: ").to_owned());
            return Ok(Vec::new());
        }
    };
    same_end(files, number(before.status), number(after.status))?;
    let of = |name, value: fn(&Touched) -> u64| {
        Measure::new(name, Unit::Count, &[value(&before) as f64], &[value(&after) as f64])
    };
    Ok(vec![
        of("pages of code touched", Touched::code),
        of("pages of data touched", Touched::data),
        of("faults without fault-around", |touched| touched.faults),
    ])
}

/// Runs both in turn; the order alternates from pair to pair.
fn pairs(
    files: [&Path; 2],
    args: &VerifyArgs,
    cold: bool,
    (conditions, notes): (&mut Conditions, &mut Vec<String>),
) -> Result<Vec<Measure>, Error> {
    let mut samples: [Vec<Sample>; 2] = Default::default();
    // The first run of each is not counted: it may find a cold cache.
    for pair in 0..=args.pairs {
        for turn in 0..2 {
            let which = (pair as usize + turn) % 2;
            let sample = measure(files[which], &args.arguments, cold)?;
            samples[which].push(sample);
        }
        let [before, after] = &samples;
        same_end(files, before[pair as usize].status, after[pair as usize].status)?;
    }
    for (samples, cached) in samples.iter().zip(&mut conditions.cached) {
        let shares: Vec<f64> = samples[1..].iter().filter_map(|sample| sample.cached).collect();
        let share = Some(median(&shares)).filter(|_| !shares.is_empty());
        *(if cold { &mut cached.cold } else { &mut cached.warm }) = share;
    }
    let of = |name, unit, value: fn(&Sample) -> f64| {
        let [before, after] = [0, 1].map(|which| samples[which][1..].iter().map(value).collect::<Vec<f64>>());
        Measure::new(name, unit, &before, &after)
    };
    if !cold {
        return Ok(vec![
            of("faults, warm", Unit::Count, |sample| sample.faults as f64),
            of("RSS at exit", Unit::Bytes, |sample| sample.rss as f64),
            of("time, warm", Unit::Seconds, |sample| sample.seconds),
        ]);
    }
    let read = of("faults that read, cold", Unit::Count, |sample| sample.reads as f64);
    if read.before == 0.0 && read.after == 0.0 {
        notes.push(
            "cold runs read nothing: the files stayed in the page cache (a file system in memory, or other users)"
                .to_owned(),
        );
        return Ok(Vec::new());
    }
    let faults = of("faults, cold", Unit::Count, |sample| sample.faults as f64);
    let mut measures = vec![faults, read, of("time, cold", Unit::Seconds, |sample| sample.seconds)];
    if conditions.is_one_cold() {
        notes.push(
            "cold runs do not count: only one of the files left the page cache (a process has the other)".to_owned(),
        );
        measures.iter_mut().for_each(|measure| measure.improved = false);
    }
    Ok(measures)
}

/// Refuses to compare programs that end differently.
fn same_end(files: [&Path; 2], before: i32, after: i32) -> Result<(), Error> {
    if before == after {
        return Ok(());
    }
    Err(Error::failed(format!(
        "{} ended with status {before}, {} with {after}",
        files[0].display(),
        files[1].display()
    ))
    .remedy("both have to do the same with these arguments"))
}

impl Functions {
    fn of(trace: &Path, after: &Path) -> Result<Self, Error> {
        let Counts { same: found, changed, lost } = Order::of(&files::read(trace)?, &read_binary(after)?).functions;
        let enough = 10 * (found + changed) >= FOUND_OF_TEN * (found + changed + lost);
        Ok(Self { found, changed, lost, enough })
    }
}

impl Measure {
    /// From the values of pairs.
    fn new(name: &'static str, unit: Unit, before: &[f64], after: &[f64]) -> Self {
        let ratio = Ratio::of(before, after);
        let improved = ratio.is_some_and(|ratio| ratio.is_less());
        Self { name, unit, before: median(before), after: median(after), ratio, improved }
    }
}

fn json(report: &Report) -> Result<Vec<u8>, Error> {
    let failed = |e: serde_json::Error| Error::failed(format!("cannot write the report: {e}"));
    let mut text = serde_json::to_vec_pretty(report).map_err(failed)?;
    text.push(b'\n');
    Ok(text)
}

fn text(report: &Report) -> String {
    let mut text = format!("{:<27} {:>10} {:>10}  after / before (quartiles)\n", "", "before", "after");
    for measure in &report.measures {
        let [before, after] = [measure.before, measure.after].map(|value| measure.unit.show(value));
        let ratio = match measure.ratio {
            Some(Ratio { median, low, high, .. }) if low < high => format!("{median:.3} ({low:.3} to {high:.3})"),
            Some(Ratio { median, .. }) => format!("{median:.3}"),
            None => "-".to_owned(),
        };
        let mark = if measure.improved { "  less" } else { "" };
        text.push_str(&format!("{:<27} {before:>10} {after:>10}  {ratio}{mark}\n", measure.name));
    }
    if let Some(Functions { found, changed, lost, enough }) = &report.functions {
        let all = found + changed + lost;
        let mark = if *enough { "" } else { ": too few" };
        text.push_str(&format!(
            "{all} functions of the trace: {found} found, {changed} under a changed name, {lost} lost{mark}\n"
        ));
    }
    text.push_str(&report.conditions.text());
    for note in &report.notes {
        text.push_str(&format!("{note}\n"));
    }
    text.push_str(if report.improved { "" } else { "nothing improved\n" });
    text
}

impl Unit {
    fn show(self, value: f64) -> String {
        match self {
            Self::Count => units::count(value.round() as u64),
            Self::Bytes => units::bytes(value.round() as u64),
            Self::Seconds => format!("{:.3} ms", 1e3 * value),
        }
    }
}
