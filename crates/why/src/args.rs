//! The arguments of `neap why` and `neap stats`.

use clap::Args;
use neap_launch::units::parse_duration;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  neap why 1234                          what a process has in memory, and why
  neap why -- ./server                   a command, at the peak of its memory
  neap why --watch 1234                  leak, plateau, fragmentation, retention
  neap why --watch --interval 60s --duration 1h 1234
  neap why --cgroup self                 the container of this shell
  neap why --container-of 1234           the container of a process
  neap why --html why.html 1234          a page for a browser
  neap why --check 1234                  of what the report is not sure
  neap why --json 1234 | jq '.accounts[:5]'

The process is not stopped. Only its user and root may read it.

Exit status: that of the command; 125 when neap itself fails, 126 when the
command cannot be run, 127 when it is not found.";

const STATS_EXAMPLES: &str = "\
Examples:
  neap stats 1234                        blocks, bytes, memory given back
  neap stats --json 1234 | jq .gauges.live_bytes";

/// Arguments of `neap why`.
#[derive(Clone, Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct WhyArgs {
    /// The number of a process
    #[arg(value_name = "PID")]
    pub pid: Option<u32>,

    /// Print everything as JSON (with --watch: one line each time)
    #[arg(long)]
    pub json: bool,

    /// Write a page of HTML to FILE
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "watch"])]
    pub html: Option<PathBuf>,

    /// Show small accounts too
    #[arg(long)]
    pub all: bool,

    /// Also say of what the report is not sure
    #[arg(long, conflicts_with_all = ["html", "watch", "cgroup", "container_of"])]
    pub check: bool,

    /// Measure again and again, and show what grew
    #[arg(long)]
    pub watch: bool,

    /// With --watch: time between two measurements (10s, 500ms, 2min)
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_interval)]
    pub interval: Duration,

    /// With --watch: stop after this time
    #[arg(long, value_name = "TIME", requires = "watch", value_parser = parse_duration)]
    pub duration: Option<Duration>,

    /// A container, by the path of its cgroup: below /sys/fs/cgroup, or as in /proc/PID/cgroup, or `self`
    #[arg(long, value_name = "PATH|self", conflicts_with_all = ["pid", "command", "watch", "container_of"])]
    pub cgroup: Option<String>,

    /// The container of a process
    #[arg(long, value_name = "PID", conflicts_with_all = ["pid", "command", "watch"])]
    pub container_of: Option<u32>,

    /// Write to FILE; `-` is standard output [default: standard output; of a command: standard error]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// A command to run and its arguments, after `--`
    #[arg(last = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

/// Arguments of `neap stats`.
#[derive(Clone, Debug, Args)]
#[command(after_help = STATS_EXAMPLES)]
pub struct StatsArgs {
    /// A process that runs on neap
    #[arg(value_name = "PID")]
    pub pid: u32,

    /// Print them as JSON
    #[arg(long)]
    pub json: bool,
}

/// A time between measurements.
fn parse_interval(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        short if short < Duration::from_millis(50) => Err("the shortest interval is 50ms".to_owned()),
        interval => Ok(interval),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches measurements without a pause.
    #[test]
    fn an_interval_has_a_length() {
        assert_eq!(parse_interval("500ms"), Ok(Duration::from_millis(500)));
        for bad in ["0", "1ms", "", "s"] {
            assert!(parse_interval(bad).is_err(), "{bad}");
        }
    }
}
