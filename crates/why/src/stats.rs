//! `neap stats`: the counters page of a process.

use crate::args::StatsArgs;
use neap_account::text::wrapped;
use neap_counters::{Gauges, Snapshot, Syscall, Unit};
use neap_launch::error::Error;
use neap_launch::sys;
use neap_launch::units::{bytes, count};
use serde_json::{Map, Value, json};

/// The version of the JSON.
const SCHEMA: &str = "neap.stats/1";

/// Runs `neap stats`.
pub fn run(args: &StatsArgs) -> Result<u8, Error> {
    let snapshot = neap_observe::read(args.pid).map_err(|error| {
        let made = Error::failed(format!("process {}: {error}", args.pid));
        match error {
            neap_observe::Error::NoPage => {
                made.remedy(format!("neap why {} works for every process, on any allocator", args.pid))
            }
            neap_observe::Error::NoProcess => made.remedy("ps -e lists processes"),
            _ => made.remedy("run neap as its user, or as root"),
        }
    })?;
    let text = if args.json { format!("{:#}\n", json(args.pid, &snapshot)) } else { text(args.pid, &snapshot) };
    sys::print(text.as_bytes())
}

fn json(pid: u32, snapshot: &Snapshot) -> Value {
    let names = Gauges::TABLE.iter().map(|row| row.name);
    let gauges: Map<String, Value> =
        names.zip(snapshot.gauges.words()).map(|(name, value)| (name.to_owned(), json!(value))).collect();
    let mut all = json!({
        "schema": SCHEMA,
        "pid": pid,
        "version": format!("{}.{}", snapshot.version >> 16, snapshot.version & 0xffff),
        "updates": snapshot.updates,
        "gauges": gauges,
    });
    if snapshot.exact {
        all["calls"] = json!({
            "blocks_allocated": snapshot.blocks_allocated,
            "bytes_allocated": snapshot.bytes_allocated,
            "blocks_freed": snapshot.blocks_freed,
            "bytes_freed": snapshot.bytes_freed,
            "blocks_inherited": snapshot.blocks_inherited,
            "bytes_inherited": snapshot.bytes_inherited,
        });
    }
    let calls: Map<String, Value> = Syscall::ALL
        .iter()
        .zip(snapshot.syscalls)
        .map(|(call, value)| (call.name().to_owned(), json!(value)))
        .collect();
    all["syscalls"] = Value::Object(calls);
    all
}

fn text(pid: u32, snapshot: &Snapshot) -> String {
    let mut text = format!("process {pid} on neap, {} updates\n", count(snapshot.updates));
    for (row, value) in Gauges::TABLE.iter().zip(snapshot.gauges.words()) {
        let shown = match row.unit {
            _ if value == u64::MAX => "auto, or none".to_owned(),
            Unit::Bytes => bytes(value),
            Unit::Milliseconds => format!("{} ms", count(value)),
            Unit::Microseconds => format!("{} us", count(value)),
            Unit::Count => count(value),
            // A set of bits.
            Unit::Code if row.name == "origins" => format!("{value:#x}"),
            Unit::Code => value.to_string(),
        };
        text.push_str(&format!("{:<24}{shown:>16}\n", row.name));
    }
    let calls: Vec<String> = Syscall::ALL
        .iter()
        .zip(snapshot.syscalls)
        .filter(|(_, value)| *value > 0)
        .map(|(call, value)| format!("{} {}", call.name(), count(value)))
        .collect();
    if !calls.is_empty() {
        text.push_str(&wrapped(&format!("{:<24}{}", "system calls", calls.join(", ")), 24));
    }
    if snapshot.exact {
        let calls = format!(
            "{:<24}{} blocks ({}) allocated, {} ({}) freed",
            "calls",
            count(snapshot.blocks_allocated),
            bytes(snapshot.bytes_allocated),
            count(snapshot.blocks_freed),
            bytes(snapshot.bytes_freed)
        );
        text.push_str(&wrapped(&calls, 24));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a gauge that is not shown, or not in JSON.
    #[test]
    fn every_gauge_is_shown() {
        let snapshot = Snapshot { exact: true, ..Snapshot::default() };
        let (text, json) = (text(1, &snapshot), json(1, &snapshot));
        for row in Gauges::TABLE {
            assert!(text.contains(&format!("\n{} ", row.name)) && json["gauges"][row.name] == 0, "{}", row.name);
        }
        assert_eq!((&json["calls"]["blocks_freed"], &json["schema"]), (&json!(0), &json!(SCHEMA)));
    }
}
