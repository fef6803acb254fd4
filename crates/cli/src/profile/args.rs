//! The arguments of `neap profile`.
//!
//! **Views.** Each view is a flag (`--time`), and at most one is given: it says what is measured, and which value type is
//! shown first. A file keeps all value types that came with the measurement, so `show` and `diff` take the same flags and
//! choose among those of the file. [`Views::chosen`] is the only place where flags become a [`View`].

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use neap_launch::units::parse_duration;
use neap_options::nearest::did_you_mean;
use neap_options::{Id, Value};
use neap_profile::View;
use neap_profile::format::{FORMATS, Format};

const EXAMPLES: &str = "\
Examples:
  neap profile --heap -- ./server              which code holds memory at exit
  neap profile --heap --duration 1min -- ./server   ... after a minute
  neap profile --heap --pid 1234 --duration 10s     ... and what grows
  neap profile --allocs -- ./server            which code allocates
  neap profile --pinned --pid 1234             which code pins free memory
  neap profile --time -- ./server              where allocation takes time
  neap profile --time -- neap run -- ./server  ... on neap
  neap profile --time --pid 1234 --duration 10s
  neap profile --heap --format html -o heap.html -- ./server   a flame graph
  neap profile --time --format pprof -o time.pb.gz -- ./server
  neap profile show time.pb.gz                 a profile that was written
  neap profile diff before.json after.json     what grew

--heap, --allocs and --pinned run the program on neap; --pid needs a process on
neap. --time takes any program, on any allocator.

Exit status: that of the program; 125 when neap itself fails, 126 when the
program cannot be run, 127 when it is not found.";

const SHOW_EXAMPLES: &str = "\
Examples:
  neap profile show profile.1234.json
  neap profile show --format html -o page.html heap.pb.gz
  curl -s localhost:6060/debug/pprof/heap | neap profile show -

FILE is in JSON (neap's) or in pprof's format, compressed or not, also of other
programs.";

const DIFF_EXAMPLES: &str = "\
Examples:
  neap profile diff before.json after.json
  neap profile diff --json before.pb.gz after.pb.gz | jq '.sites[:10]'
  neap profile diff --format html -o diff.html before.json after.json

Call sites are matched by function, file and line, wherever they were. What grew
comes first.";

/// Arguments of `neap profile`.
#[derive(Debug, Args)]
#[command(
    after_help = EXAMPLES,
    after_long_help = long_help(),
    args_conflicts_with_subcommands = true,
    disable_help_subcommand = true
)]
pub struct ProfileArgs {
    /// What to do with profiles; none to make one.
    #[command(subcommand)]
    pub action: Option<ProfileAction>,

    #[command(flatten)]
    pub views: Views,

    #[command(flatten)]
    pub written: Written,

    /// Profile a running process
    #[arg(long, value_name = "PID", conflicts_with = "command")]
    pub pid: Option<u32>,

    /// Stop after this time (10s, 500ms, 2min); a program that neap started gets SIGTERM
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub duration: Option<Duration>,

    /// With --time: processor time of a thread between two samples
    #[arg(long, value_name = "TIME", default_value = "1ms", value_parser = parse_period)]
    pub period: Duration,

    /// With --heap, --allocs and --pinned: mean bytes between two samples (64K, 4MiB); 1: every block
    #[arg(long, value_name = "SIZE", default_value = "512K", value_parser = parse_interval)]
    pub interval: u64,

    /// The program and its arguments
    #[arg(trailing_var_arg = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

/// Which view is asked for: one at most.
#[derive(Clone, Copy, Debug, Args)]
#[group(multiple = false)]
pub struct Views {
    /// Live blocks by call site, with the age of the oldest
    #[arg(long)]
    pub heap: bool,

    /// All allocations by call site
    #[arg(long)]
    pub allocs: bool,

    /// Memory that is not live and cannot go back to the system, by the call site of the live blocks that pin it
    #[arg(long)]
    pub pinned: bool,

    /// Where the time of allocation goes: malloc, free, clearing, copying, faults on fresh memory, each by caller
    #[arg(long)]
    pub time: bool,
}

impl Views {
    /// The view of the flag that is given.
    pub fn chosen(self) -> Option<View> {
        let all = [
            (self.heap, View::Heap),
            (self.allocs, View::Allocs),
            (self.pinned, View::Pinned),
            (self.time, View::Time),
        ];
        all.into_iter().find_map(|(given, view)| given.then_some(view))
    }
}

/// How a profile is written.
#[derive(Clone, Debug, Args)]
pub struct Written {
    /// How the profile is written (see below)
    #[arg(long, value_name = "FORMAT", default_value = "text", value_parser = parse_format)]
    format: &'static Format,

    /// Write the profile as JSON: short for --format json
    #[arg(long, conflicts_with = "format")]
    json: bool,

    /// Write to FILE; `-` is standard output [default: standard error for text, else profile.PID with the format's ending]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Show at most N call sites as text
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub limit: usize,

    /// Leave names out of pprof files: addresses, mappings and build ids only
    #[arg(long)]
    pub no_symbols: bool,
}

impl Written {
    /// The format that is wanted.
    pub fn format(&self) -> &'static Format {
        Format::from_name("json").filter(|_| self.json).unwrap_or(self.format)
    }
}

/// What `neap profile` does with profiles.
#[derive(Debug, Subcommand)]
pub enum ProfileAction {
    /// Show a profile that was written, or write it in another format
    Show(ShowArgs),
    /// Compare two profiles by call site: what grew
    Diff(DiffArgs),
}

/// Arguments of `neap profile show`.
#[derive(Debug, Args)]
#[command(after_help = SHOW_EXAMPLES)]
pub struct ShowArgs {
    /// The profile (JSON or pprof); `-` is standard input
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    #[command(flatten)]
    pub views: Views,

    /// Show this value type first [default: that of the view, or of the file]
    #[arg(long = "type", value_name = "NAME", conflicts_with = "Views")]
    pub value: Option<String>,

    #[command(flatten)]
    pub written: Written,
}

/// Arguments of `neap profile diff`.
#[derive(Debug, Args)]
#[command(after_help = DIFF_EXAMPLES)]
pub struct DiffArgs {
    /// The first profile (JSON or pprof); `-` is standard input
    #[arg(value_name = "A")]
    pub before: PathBuf,

    /// The second profile (JSON or pprof); `-` is standard input
    #[arg(value_name = "B")]
    pub after: PathBuf,

    #[command(flatten)]
    pub views: Views,

    /// How the comparison is written
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub format: DiffFormat,

    /// Write the comparison as JSON: short for --format json
    #[arg(long, conflicts_with = "format")]
    pub json: bool,

    /// Write to FILE; `-` is standard output
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    pub output: PathBuf,

    /// Show at most N call sites as text
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub limit: usize,
}

/// How a comparison is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum DiffFormat {
    /// What grew most, for people
    Text,
    /// All sites of both
    Json,
    /// One page with a flame graph, red where it grew and blue where it shrank
    Html,
}

/// The examples, and the formats.
fn long_help() -> String {
    let mut text = format!("{EXAMPLES}\n\nFormats:\n");
    for format in FORMATS {
        text.push_str(&format!("  {:<8}  {}\n", format.name, format.doc));
    }
    text
}

/// A format on the command line.
fn parse_format(text: &str) -> Result<&'static Format, String> {
    Format::from_name(text).ok_or_else(|| {
        let names: Vec<&str> = FORMATS.iter().map(|format| format.name).collect();
        format!("{}the formats are {}", did_you_mean(text, names.iter().copied()), names.join(", "))
    })
}

/// A distance between samples.
fn parse_interval(text: &str) -> Result<u64, String> {
    let option = Id::ProfileInterval.option();
    match option.parse(text.as_bytes()) {
        Some(Value::Bytes(bytes)) => Ok(bytes),
        _ => Err("an interval is a size from 1 on (64K, 4MiB)".to_owned()),
    }
}

/// A period of the clock: the kernel's timers take none below 10 µs.
fn parse_period(text: &str) -> Result<Duration, String> {
    let period = parse_duration(text)?;
    if (Duration::from_micros(10)..=Duration::from_secs(10)).contains(&period) {
        Ok(period)
    } else {
        Err("a period is from 0.01ms to 10s".to_owned())
    }
}
