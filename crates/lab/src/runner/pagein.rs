//! `neap pagein` on a small program: its page faults by subject and kind, and the table of them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use neap_results::{GLIBC, Listing, NEAP};
use serde::Deserialize;

use super::launch::{end_text, refused};
use crate::allocators::Allocator;
use crate::catalogue::FAULT_KINDS;
use crate::interrupt;
use crate::outcome::{Metric, Outcome};
use crate::place::Place;
use crate::scratch::Scratch;
use crate::toolchain::find_program;

/// Time limit; a trace takes milliseconds.
const LIMIT: Duration = Duration::from_secs(30);

/// The members of the JSON of `neap pagein` (docs/pagein.md) that are used. A member that refers to a row of a table
/// has its index.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Trace {
    clock: Clock,
    processes: Vec<serde_json::Value>,
    threads: Vec<Thread>,
    objects: Vec<Object>,
    symbols: Vec<Symbol>,
    places: Vec<Code>,
    faults: Vec<Fault>,
}

#[derive(Default, Deserialize)]
struct Clock {
    /// Nanoseconds are cycles times the first, shifted right by the second.
    #[serde(default)]
    tsc: Option<(u32, u16)>,
}

#[derive(Deserialize)]
struct Thread {
    process: usize,
}

#[derive(Deserialize)]
struct Object {
    path: String,
}

#[derive(Deserialize)]
struct Symbol {
    name: String,
}

#[derive(Deserialize)]
struct Code {
    object: Option<usize>,
    symbol: Option<usize>,
}

#[derive(Deserialize)]
struct Fault {
    /// Nanoseconds since the first fault of the trace.
    time: u64,
    thread: usize,
    subject: String,
    kind: String,
    address: String,
    ip: String,
    #[serde(default)]
    code: Option<usize>,
}

/// Traces `program` under `allocator`. The table of glibc and of neap is kept.
pub fn run(place: &Place, program: &str, allocator: &Allocator) -> Result<Outcome> {
    let (Some(program_path), Some(env)) = (find_program(program), find_program("env")) else {
        return Ok(Outcome::skipped(format!("no {program} on this system")));
    };
    let scratch = Scratch::new("pagein")?;
    let file = scratch.join("trace.json");
    let mut command = Command::new(&place.command);
    command.args(["pagein", "--format", "json", "-o"]).arg(&file).arg("--").arg(&env).args(allocator.variables());
    let out = interrupt::output(command.arg(&program_path), Some(LIMIT))?;
    if let Some(reason) = refused(&out.stderr) {
        return Ok(Outcome::failed(reason));
    }
    match out.status.and_then(|status| status.code()) {
        Some(0) => {}
        // neap itself failed: this system does not let it trace.
        Some(125) => return Ok(Outcome::skipped(out.stderr.lines().next().unwrap_or("neap pagein failed"))),
        _ => return Ok(Outcome::failed(end_text(out.status))),
    }
    let text = fs::read_to_string(&file).context("neap pagein left no trace")?;
    let trace: Trace = serde_json::from_str(&text).context("the trace of neap pagein makes no sense")?;
    let mut outcome = counts(&trace);
    if outcome.is_ok() && [GLIBC, NEAP].contains(&&*allocator.name) {
        let title = format!("Every page fault of `{program}` under {}, in order", allocator.name);
        outcome.listing = Some(Listing { title, text: classic(&trace) });
    }
    Ok(outcome)
}

impl Trace {
    /// The faults of the last program: the first is `env`, which sets the variables.
    fn of_program(&self) -> Vec<&Fault> {
        let last = self.processes.len().saturating_sub(1);
        let of_last = |fault: &&Fault| self.threads.get(fault.thread).is_some_and(|thread| thread.process == last);
        self.faults.iter().filter(of_last).collect()
    }

    /// A time in cycles; in nanoseconds if the rate of the processor's counter is not known.
    fn cycles(&self, ns: u64) -> u64 {
        match self.clock.tsc {
            Some((mult, shift)) if mult != 0 && shift < 64 => {
                u64::try_from((u128::from(ns) << shift) / u128::from(mult)).unwrap_or(u64::MAX)
            }
            _ => ns,
        }
    }
}

/// How many faults there are of each kind.
fn counts(trace: &Trace) -> Outcome {
    let faults = trace.of_program();
    let (Some(first), Some(end)) = (faults.first(), faults.last()) else {
        return Outcome::failed("a trace without faults");
    };
    let mut kinds: BTreeMap<&str, f64> = FAULT_KINDS.iter().map(|kind| (*kind, 0.0)).collect();
    for fault in &faults {
        let kind = if kinds.contains_key(fault.kind.as_str()) { fault.kind.as_str() } else { "other" };
        *kinds.entry(kind).or_default() += 1.0;
    }
    let code = faults.iter().filter(|fault| fault.subject == "code").count();
    let mut metrics = vec![
        Metric::new("faults", "count", faults.len() as f64),
        Metric::new("code", "count", code as f64),
        Metric::new("data", "count", (faults.len() - code) as f64),
        Metric::new("duration", "us", end.time.saturating_sub(first.time) as f64 / 1e3),
    ];
    metrics.extend(kinds.into_iter().map(|(kind, count)| Metric::new(kind, "count", count)));
    Outcome::good(metrics)
}

/// The faults of the program in the classic format: number, page, C or D, cycles since its first fault, instruction,
/// symbol, object.
fn classic(trace: &Trace) -> String {
    let faults = trace.of_program();
    let begun = faults.first().map_or(0, |fault| fault.time);
    let mut text = String::new();
    for (number, fault) in faults.iter().enumerate() {
        let letter = if fault.subject == "code" { 'C' } else { 'D' };
        let code = fault.code.and_then(|code| trace.places.get(code));
        let symbol = code.and_then(|code| trace.symbols.get(code.symbol?)).map_or("???", |symbol| symbol.name.as_str());
        let cycles = trace.cycles(fault.time.saturating_sub(begun));
        let _ = write!(text, "{} {} {letter} {cycles} {}: {symbol}", number + 1, page(&fault.address), fault.ip);
        if let Some(object) = code.and_then(|code| trace.objects.get(code.object?)) {
            let _ = write!(text, " (in {})", object.path);
        }
        text.push('\n');
    }
    text
}

/// The address rounded down to 4 KiB: `0x7000` for `0x7f12`.
fn page(address: &str) -> String {
    let number = address.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok());
    number.map_or_else(|| address.into(), |number| format!("{:#x}", number & !0xfff))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A trace of `env` with one fault, and of the program that it became.
    fn trace() -> Trace {
        let fault = |time, thread, subject: &str, kind: &str| {
            format!(
                "{{\"time\": {time}, \"thread\": {thread}, \"subject\": \"{subject}\", \"kind\": \"{kind}\", \
                 \"address\": \"0x7f001234\", \"ip\": \"0x55aa\", \"code\": {thread}}}"
            )
        };
        let faults = [
            fault(0, 0, "code", "file-minor"),
            fault(1000, 1, "code", "file-minor"),
            fault(2000, 1, "data", "anon"),
            fault(4000, 1, "data", "novel"),
        ];
        let text = format!(
            "{{\"clock\": {{\"tsc\": [512, 10]}}, \"processes\": [{{}}, {{}}], \
             \"threads\": [{{\"process\": 0}}, {{\"process\": 1}}], \"objects\": [{{\"path\": \"/lib/ld.so\"}}], \
             \"symbols\": [{{\"name\": \"_start\"}}], \"places\": [{{\"object\": null, \"symbol\": null}}, \
             {{\"object\": 0, \"symbol\": 0}}], \"faults\": [{}]}}",
            faults.join(",")
        );
        serde_json::from_str(&text).unwrap()
    }

    // Would catch faults of `env` that count as the program's, and a kind that is not counted.
    #[test]
    fn faults_of_the_program_are_counted() {
        let outcome = counts(&trace());
        let values = ["faults", "code", "data", "file-minor", "anon", "cow", "other", "duration"]
            .map(|name| outcome.value(name).unwrap());
        assert_eq!(values, [3.0, 1.0, 2.0, 1.0, 1.0, 0.0, 1.0, 3.0]);
    }

    // Would catch a table with faults of `env`, with its clock, or with other columns than those of 2007.
    #[test]
    fn the_table_is_of_the_program_alone() {
        let wanted = "1 0x7f001000 C 0 0x55aa: _start (in /lib/ld.so)\n\
                      2 0x7f001000 D 2000 0x55aa: _start (in /lib/ld.so)\n\
                      3 0x7f001000 D 6000 0x55aa: _start (in /lib/ld.so)\n";
        assert_eq!(classic(&trace()), wanted);
        assert!(classic(&Trace::default()).is_empty());
    }
}
