//! The arguments of `neap huge`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use neap_hugetlb::size;
use neap_launch::units::parse_duration;

const EXAMPLES: &str = "\
Examples:
  neap huge status                          what the system has and allows
  neap huge show 1234                       a process, by size of page
  sudo neap huge reserve 512 -- ./server    1 GiB in pages of 2 MiB";

const STATUS_EXAMPLES: &str = "\
Examples:
  neap huge status
  neap huge status --json | jq '.pools[] | {bytes, free}'

What cannot be read (no sysfs, no permission, an older kernel) is one line at
the end; the rest is shown.";

const SHOW_EXAMPLES: &str = "\
Examples:
  neap huge show 1234                     a process
  sudo neap huge show 1234                sizes of pages below 2 MiB too
  neap huge show --interval 10s 1234      again and again, until it ends
  neap huge show -- ./server --check      when it is about to exit
  neap huge show -- neap run -- ./server  a program on neap
  neap huge show --json -o pages.json -- ./batch

Columns: resident bytes by the size of their pages; zero parts of huge pages,
which would not be resident in small pages; and areas of 2 MiB in small pages,
of which at least 15 in 16 are resident.
A command's report goes to standard error; that of a process to standard output.

Exit status: 0, or that of the command; 125 when neap itself fails, 126 when the
command cannot be run, 127 when it is not found.";

const RESERVE_EXAMPLES: &str = "\
Examples:
  sudo neap huge reserve 512 -- ./server             1 GiB in pages of 2 MiB
  sudo neap huge reserve 4 --size 1G -- ./database
  sudo neap huge reserve 512 --node 1 -- numactl -m 1 ./server

N pages are added to the pool, and taken away when the command has ended, also
by a signal. Where the kernel gives fewer, nothing is started and the pool is as
before. Other programs can take the pages too.

Exit status: that of the command; 125 when neap itself fails, 126 when the
command cannot be run, 127 when it is not found.";

/// Arguments of `neap huge`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, disable_help_subcommand = true)]
pub struct HugeArgs {
    /// What to do.
    #[command(subcommand)]
    pub action: HugeAction,
}

/// What `neap huge` does.
#[derive(Debug, Subcommand)]
pub enum HugeAction {
    /// Show the huge pages of the system: pools, mounts, settings, limits
    Status(StatusArgs),
    /// Show the memory of a process, or of a command before its exit, by size of page
    Show(ShowArgs),
    /// Reserve huge pages for one command (root), and give them back
    Reserve(ReserveArgs),
}

/// Arguments of `neap huge status`.
#[derive(Debug, Args)]
#[command(after_help = STATUS_EXAMPLES)]
pub struct StatusArgs {
    /// Print everything as JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `neap huge show`.
#[derive(Clone, Debug, Args)]
#[command(after_help = SHOW_EXAMPLES)]
pub struct ShowArgs {
    /// A running process
    #[arg(value_name = "PID")]
    pub pid: Option<u32>,

    /// Show small mappings too, those with less than 1 MiB in memory
    #[arg(long)]
    pub all: bool,

    /// Print everything as JSON
    #[arg(long)]
    pub json: bool,

    /// Write to FILE; `-` is standard output
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Show it again after each TIME (10s, 500ms, 2min)
    #[arg(long, value_name = "TIME", value_parser = parse_interval)]
    pub interval: Option<Duration>,

    /// Read at most SIZE of huge pages to find zeros; 0: none
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = parse_bytes)]
    pub read: u64,

    /// The command and its arguments, after `--`
    #[arg(last = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

/// Arguments of `neap huge reserve`.
#[derive(Debug, Args)]
#[command(after_help = RESERVE_EXAMPLES)]
pub struct ReserveArgs {
    /// How many pages to add
    #[arg(value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub pages: u64,

    /// The size of a page
    #[arg(long, value_name = "SIZE", default_value = "2M", value_parser = parse_size)]
    pub size: u64,

    /// Take them from this NUMA node
    #[arg(long, value_name = "K")]
    pub node: Option<u32>,

    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

/// A size of pages on the command line.
fn parse_size(text: &str) -> Result<u64, String> {
    size::parse(text).ok_or_else(|| "a size is a number and K, M or G, as 2M or 1G".to_owned())
}

/// A time between reports on the command line.
fn parse_interval(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        Duration::ZERO => Err("the interval must be longer than 0".to_owned()),
        interval => Ok(interval),
    }
}

/// An amount of memory on the command line.
fn parse_bytes(text: &str) -> Result<u64, String> {
    let bytes = if text == "0" { Some(0) } else { size::parse(text) };
    bytes.ok_or_else(|| "a size is a number and K, M or G, as 512M, or 0".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches reports that follow each other without a pause.
    #[test]
    fn an_interval_has_a_length() {
        assert_eq!(parse_interval("500ms"), Ok(Duration::from_millis(500)));
        for bad in ["0", "0ms", "", "s"] {
            assert!(parse_interval(bad).is_err(), "{bad}");
        }
    }
}
