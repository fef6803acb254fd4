//! The result: one line for each run, one for the advice, and warnings.

use crate::turn::{Run, ending};
use neap_account::text::wrapped;
use neap_account::units::{columns, fit, plain};
use neap_launch::units::bytes;
use serde::Serialize;
use std::ffi::OsString;

/// The version of the JSON.
const SCHEMA: &str = "neap.advise/1";
/// Smaller differences count as equal.
const SAME: f64 = 0.05;
/// Smaller differences of memory are not reported, nor of time (in seconds).
const LITTLE: u64 = 1 << 20;
const SHORT: f64 = 0.02;
/// Fewer runs under each allocator show no difference of time: three and three that do not overlap are by chance in one
/// of ten cases, one and one always.
const ENOUGH: usize = 3;

/// The result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Advice {
    schema: &'static str,
    command: Vec<String>,
    runs: Vec<Run>,
    advice: String,
    warnings: Vec<String>,
}

/// Judges the runs; the first is the system's allocator.
pub fn judge(command: &[OsString], runs: Vec<Run>) -> Advice {
    let command = command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    Advice { schema: SCHEMA, command, advice: advice(&runs), warnings: warnings(&runs), runs }
}

/// How `now` compares with `before`, in words; none if they count as equal, or if the runs of both overlap.
fn change(what: &str, before: Figure, now: Figure, little: f64) -> Option<String> {
    let by = (now.median - before.median).abs();
    let overlap = before.range[0] <= now.range[1] && now.range[0] <= before.range[1];
    if before.median <= 0.0 || by < (before.median * SAME).max(little) || overlap {
        return None;
    }
    let percent = (by / before.median * 100.0).round();
    Some(format!("{percent:.0} % {} {what}", if now.median < before.median { "less" } else { "more" }))
}

/// A figure of the runs under one allocator.
#[derive(Clone, Copy)]
struct Figure {
    median: f64,
    range: [f64; 2],
}

fn time(median: f64, range: [f64; 2]) -> Figure {
    Figure { median, range }
}

fn memory(median: u64, range: [u64; 2]) -> Figure {
    Figure { median: median as f64, range: range.map(|bytes| bytes as f64) }
}

fn works(run: &Run) -> bool {
    run.signal.is_none() && run.status.is_none_or(|status| status == 0)
}

/// Whether its line shows the cost of the allocator, as far as is known.
fn counts(run: &Run) -> bool {
    works(run) && run.loaded != Some(false)
}

/// The advice in one sentence: neap against the system's allocator, and which is smallest if there are more. It states
/// what the runs show: a difference of time needs several runs that do not overlap.
fn advice(runs: &[Run]) -> String {
    let [base, neap, others @ ..] = runs else { return "Nothing ran.".to_owned() };
    if !works(neap) {
        return format!("Stay with glibc: under neap the command fails ({}).", ending(neap));
    }
    let last = if base.idled { "after idling" } else { "at its end" };
    let resident = |run: &Run| run.resident_bytes.unwrap_or(run.peak_bytes);
    let figure = |of: fn(&Run) -> Figure| (of(base), of(neap));
    let (wall, processor) = (
        figure(|run| time(run.seconds, run.ranges.seconds)),
        figure(|run| time(run.processor_seconds, run.ranges.processor_seconds)),
    );
    let peak = figure(|run| memory(run.peak_bytes, run.ranges.peak_bytes));
    let at_last = figure(|run| memory(run.resident_bytes.unwrap_or(run.peak_bytes), run.ranges.resident_bytes));
    let has_times = base.ranges.runs >= ENOUGH && !differ_in_reads(base, neap);
    // A server works as long as it was told to.
    let changes: Vec<String> = [
        change("time", wall.0, wall.1, SHORT).filter(|_| has_times && !base.idled),
        change("processor time", processor.0, processor.1, SHORT).filter(|_| has_times),
        change("memory at its peak", peak.0, peak.1, LITTLE as f64),
        change(&format!("resident {last}"), at_last.0, at_last.1, LITTLE as f64),
    ]
    .into_iter()
    .flatten()
    .collect();
    let number = base.ranges.runs;
    let of_each = if number == 1 { "one run".to_owned() } else { format!("{number} runs") };
    let mut text = match (changes.is_empty(), number >= ENOUGH) {
        (false, true) => format!("neap takes {} than glibc; the {of_each} of each do not overlap", changes.join(", ")),
        (false, false) => format!("In {of_each} of each neap took {} than glibc", changes.join(", ")),
        (true, true) => format!("{of_each} of each show no difference beyond 5 % or their spread"),
        (true, false) => format!("In {of_each} of each the memory was the same within 5 % or 1 MiB"),
    };
    if number < ENOUGH {
        text.push_str(&format!("; to compare times: --runs {ENOUGH} or more"));
    }
    let smallest = runs.iter().filter(|run| counts(run)).min_by_key(|run| resident(run));
    if let Some(smallest) = smallest.filter(|_| !others.is_empty()) {
        text.push_str(&format!(
            "; {} has the least resident memory {last}, {}",
            smallest.name,
            bytes(resident(smallest))
        ));
    }
    text.push('.');
    text
}

/// Whether two runs read different amounts from disks: then their times cannot be compared.
fn differ_in_reads(one: &Run, other: &Run) -> bool {
    let most = one.read_bytes.max(other.read_bytes);
    one.read_bytes.abs_diff(other.read_bytes) >= LITTLE.max((most as f64 * SAME) as u64)
}

/// Warnings about limits of the comparison.
fn warnings(runs: &[Run]) -> Vec<String> {
    let mut all = Vec::new();
    let Some(base) = runs.first() else { return all };
    let private = base.malloc_bytes + base.other_bytes;
    // If most memory was given back before the end, the rest says little about it.
    let is_most = base.resident_bytes.is_some_and(|resident| resident * 2 > base.peak_bytes);
    if is_most && private > 4 * LITTLE && base.malloc_bytes * 2 < private {
        all.push(format!(
            "most of its memory is not malloc's ({} of {}; the largest part: {}), so an allocator changes little",
            bytes(base.other_bytes),
            bytes(private),
            base.most.as_deref().unwrap_or("unknown")
        ));
    }
    const OWN: [&str; 5] = ["jemalloc", "tcmalloc", "mimalloc", "musl", "snmalloc"];
    let own = base.allocators.iter().find(|name| OWN.iter().any(|own| name.starts_with(own)));
    if let Some(own) = own {
        all.push(format!(
            "the program has its own allocator ({own}), so the line of glibc is of that one; \
             see also its own figures, such as INFO memory of Redis"
        ));
    }
    for run in runs.iter().skip(1).filter(|run| works(run)) {
        let taken = run.allocators.iter().any(|name| name.starts_with(&run.name));
        if run.name == "neap" && !taken && !run.allocators.is_empty() {
            all.push(format!(
                "the program does not take its memory from neap ({} inside): it is static, or has its own malloc",
                run.allocators.join(", ")
            ));
        }
    }
    if runs.get(1).is_some_and(|neap| differ_in_reads(base, neap)) {
        let read: Vec<String> = runs.iter().map(|run| format!("{} {}", run.name, bytes(run.read_bytes))).collect();
        all.push(format!(
            "the runs read different amounts from disks ({}), so their times cannot be compared: run it again, or \
             use --runs 3",
            read.join(", ")
        ));
    }
    for run in runs.iter().filter(|run| run.loaded == Some(false) && run.name != "neap") {
        all.push(format!(
            "{} was not loaded, so its line is that of glibc; is it a library for this machine, and the program \
             not static?",
            run.name
        ));
    }
    for run in runs.iter().filter(|run| !works(run)) {
        all.push(format!("under {} the command fails ({})", run.name, ending(run)));
    }
    for run in runs.iter().filter(|run| run.busy) {
        all.push(format!("under {} the server did not idle: its memory was measured at work", run.name));
    }
    if base.own_peak_bytes.is_some_and(|own| base.peak_bytes > own * 2) && base.peak_bytes > 16 * LITTLE {
        all.push(
            "the command starts larger programs: only peak and time include them, the other figures are its own"
                .to_owned(),
        );
    }
    all
}

/// The result as text.
pub fn text(advice: &Advice) -> String {
    let idled = advice.runs.iter().any(|run| run.idled);
    let last = if idled { "after idling" } else { "at its end" };
    let width = advice.runs.iter().map(|run| columns(&plain(&run.name))).max().unwrap_or(0).clamp(9, 16);
    let unknown = |value: Option<u64>| value.map_or("-".to_owned(), bytes);
    let mut text = format!(
        "{:<width$} {:>10} {:>10} {:>12} {:>12} {:>13}\n",
        "", "time", "processor", "peak", last, "could go back"
    );
    for run in &advice.runs {
        let name = fit(&plain(&run.name), 16);
        text.push_str(&format!(
            "{name:<width$} {:>8.2} s {:>8.2} s {:>12} {:>12} {:>13}\n",
            run.seconds,
            run.processor_seconds,
            bytes(run.peak_bytes),
            unknown(run.resident_bytes),
            unknown(run.kept_bytes)
        ));
    }
    text.push_str(&wrapped(&advice.advice, 0));
    for warning in &advice.warnings {
        text.push_str(&wrapped(&format!("warning: {}", plain(warning)), 9));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::turn::Ranges;

    fn run(name: &str, seconds: f64, peak: u64, resident: u64) -> Run {
        Run {
            name: name.into(),
            seconds,
            peak_bytes: peak << 20,
            resident_bytes: Some(resident << 20),
            status: Some(0),
            allocators: vec![name.into()],
            malloc_bytes: 100 << 20,
            own_peak_bytes: Some(peak << 20),
            ..Run::default()
        }
    }

    /// The same run, as the median of `runs` whose times differ by the part `spread`.
    fn of(runs: usize, spread: f64, run: Run) -> Run {
        let around = |time: f64| [time * (1.0 - spread), time * (1.0 + spread)];
        let ranges = Ranges {
            runs,
            seconds: around(run.seconds),
            processor_seconds: around(run.processor_seconds),
            peak_bytes: [run.peak_bytes; 2],
            resident_bytes: [run.resident_bytes.unwrap_or(run.peak_bytes); 2],
        };
        Run { ranges, ..run }
    }

    fn advise(number: usize, spread: f64, runs: &[Run]) -> Advice {
        judge(&[], runs.iter().map(|run| of(number, spread, run.clone())).collect())
    }

    /// Catches a change in the wrong direction, noise that counts as a change, and more lines than four texts take.
    #[test]
    fn the_advice_compares() {
        let same = advise(5, 0.0, &[run("glibc", 1.0, 100, 100), run("neap", 1.03, 101, 99)]);
        assert_eq!(same.advice, "5 runs of each show no difference beyond 5 % or their spread.");
        let less = advise(5, 0.1, &[run("glibc", 2.0, 100, 80), run("neap", 1.0, 125, 20)]);
        assert_eq!(
            less.advice,
            "neap takes 50 % less time, 25 % more memory at its peak, 75 % less resident at its end than glibc; the 5 \
             runs of each do not overlap."
        );
        // The sentence takes two lines.
        assert_eq!((text(&less).lines().count(), less.warnings.len()), (5, 0));
        assert!(text(&less).lines().all(|line| line.len() <= 80), "{}", text(&less));
        let more = advise(3, 0.0, &[run("glibc", 1.0, 9, 9), run("neap", 1.0, 9, 9), run("x", 1.0, 9, 3)]);
        assert!(more.advice.ends_with("; x has the least resident memory at its end, 3.0 MiB."), "{}", more.advice);
        let short = advise(3, 0.0, &[run("glibc", 0.001, 9, 9), run("neap", 0.007, 9, 9)]);
        assert_eq!(short.advice, "3 runs of each show no difference beyond 5 % or their spread.");
        let ignored = Run { loaded: Some(false), ..run("x", 1.0, 9, 3) };
        let ignored = advise(3, 0.0, &[run("glibc", 1.0, 9, 9), run("neap", 1.0, 9, 8), ignored]);
        assert!(ignored.advice.contains("; neap has the least") && ignored.warnings[0].starts_with("x was not loaded"));
    }

    /// Catches a difference that the runs do not show: of time by one run, or by runs that overlap; and small amounts
    /// of memory that are the same within 5 % although they are not.
    #[test]
    fn only_what_the_runs_show() {
        let [glibc, neap] = [run("glibc", 1.0, 100, 80), run("neap", 1.45, 100, 20)];
        let both = [glibc, neap];
        let one = advise(1, 0.0, &both).advice;
        assert_eq!(
            one,
            "In one run of each neap took 75 % less resident at its end than glibc; to compare times: --runs 3 or more."
        );
        let overlaps = advise(5, 0.3, &both).advice;
        assert!(overlaps.starts_with("neap takes 75 % less resident at its end than glibc"), "{overlaps}");
        assert!(advise(5, 0.1, &both).advice.contains("45 % more time"), "{overlaps}");
        let small = [1100, 1600].map(|kib| Run { peak_bytes: kib << 10, resident_bytes: None, ..run("x", 1.0, 0, 0) });
        let small = advise(1, 0.0, &small).advice;
        assert!(small.starts_with("In one run of each the memory was the same within 5 % or 1 MiB;"), "{small}");
    }

    /// Catches a first run that reads files from disk, where the time counts as its allocator's.
    #[test]
    fn times_of_runs_that_read_are_not_compared() {
        let of = |first: u64, second: u64| {
            let read = |run: Run, mib: u64| Run { read_bytes: mib << 20, ..run };
            advise(3, 0.0, &[read(run("glibc", 2.0, 100, 80), first), read(run("neap", 1.0, 100, 20), second)])
        };
        let cold = of(30, 0);
        assert!(cold.advice.starts_with("neap takes 75 % less resident at its end than glibc;"), "{}", cold.advice);
        assert!(cold.warnings[0].contains("from disks (glibc 30.0 MiB, neap 0 B)"), "{:?}", cold.warnings);
        for (first, second) in [(30, 30), (0, 0)] {
            let alike = of(first, second);
            assert!(alike.advice.contains("50 % less time") && alike.warnings.is_empty(), "{alike:?}");
        }
        assert!(!of(0, 30).warnings.is_empty());
    }

    /// Catches programs for which a comparison says little and no warning says so, and failures under one allocator.
    #[test]
    fn warnings_are_given() {
        let mut base = run("glibc", 1.0, 100, 100);
        (base.malloc_bytes, base.other_bytes, base.most) = (10 << 20, 80 << 20, Some("runtime heap, V8".into()));
        base.allocators = vec!["jemalloc".into()];
        let neap = Run { signal: Some(11), status: None, ..run("neap", 1.0, 100, 100) };
        let advice = judge(&[], vec![base, neap]);
        let all = advice.warnings.join("\n");
        assert!(all.contains("not malloc's (80.0 MiB of 90.0 MiB; the largest part: runtime heap, V8)"), "{all}");
        assert!(
            all.contains("has its own allocator (jemalloc)")
                && all.contains("under neap the command fails (signal 11)"),
            "{all}"
        );
        assert!(advice.advice.starts_with("Stay with glibc"), "{}", advice.advice);
    }
}
