//! The arguments of `neap pagein`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, FromArgMatches, Subcommand};
use neap_launch::units::parse_duration;
use neap_options::Id;
use neap_options::nearest::did_you_mean;
use neap_trace::format::Format;

use super::perf::{Callgraph, Detail};

const PAGEIN_EXAMPLES: &str = "\
Examples:
  neap pagein -- ls                        writes pagein.PID
  neap pagein -o - -- python3 -c pass      writes to standard output
  neap pagein --format table -- ./server   kinds, times, symbols, lines
  neap pagein --exact -- ./server          each page of a file that it touches
  neap pagein --sites --format table -- ./server   where blocks were allocated
  neap pagein --callgraph dwarf --format table -- ./server   with callers
  neap pagein --format html -o faults.html -- ./server   charts, for a browser
  neap pagein --pid 1234 --duration 10s -o faults
  neap pagein --duration 10s -- ./server   ten seconds, then SIGTERM
  neap pagein -- neap run -- ./server      a program on neap
  neap pagein --json -o trace.json -- ./server   a trace to keep
  neap pagein show trace.json --format html -o trace.html
  neap pagein diff before.json after.json

Each line of the classic format: number, page, C (code) or D (data), cycles
since the first fault, instruction, symbol, object. The trace ends with what it
covers and what it does not.

Exit status: that of the program; 125 when neap itself fails, 126 when the
program cannot be run, 127 when it is not found.";

const DIFF_EXAMPLES: &str = "\
Examples:
  neap pagein --format json -o before.json -- ./server-1 --check
  neap pagein --format json -o after.json -- ./server-2 --check
  neap pagein diff before.json after.json
  neap pagein diff --json before.json after.json | jq '.functions[:10]'

A and B are traces in the format json or csv; `-` is standard input. Functions,
mappings and pages of files are matched by their names, wherever they were.
A program whose name is `diff` or `show` is traced with: neap pagein -- diff ...";

const SHOW_EXAMPLES: &str = "\
Examples:
  neap pagein --format json -o trace.json -- ./server --check
  neap pagein show trace.json
  neap pagein show trace.json --format html -o trace.html
  neap pagein show trace.json --format folded | flamegraph.pl > trace.svg

A trace in the format json has all that the other formats show. What was not
recorded (--detail, --callgraph, --sites) stays unknown.";

/// Arguments of `neap pagein`.
#[derive(Debug, Args)]
#[command(
    after_help = PAGEIN_EXAMPLES,
    after_long_help = pagein_long_help(),
    args_conflicts_with_subcommands = true,
    disable_help_subcommand = true
)]
pub struct PageinArgs {
    /// What to do with traces; none to make one.
    #[command(subcommand)]
    pub action: Option<PageinAction>,

    /// Write the trace to FILE; `-` is standard output [default: pagein.PID, with the format's ending]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// How the trace is written (see below)
    #[arg(long, value_name = "FORMAT", default_value = "classic", value_parser = parse_format)]
    pub format: &'static Format,

    /// Write the trace as JSON: short for --format json
    #[arg(long, conflicts_with = "format")]
    pub json: bool,

    /// How much to record about each fault [default: begin for classic and folded, else full]
    #[arg(long, value_name = "DETAIL")]
    pub detail: Option<Detail>,

    /// Turn off fault-around for the program's files: each page that it touches is one fault
    #[arg(long, conflicts_with = "pid")]
    pub exact: bool,

    /// Record the callers of each faulting instruction too
    #[arg(long, value_name = "HOW")]
    pub callgraph: Option<Callgraph>,

    /// Run the program on neap and show where blocks were allocated; BYTES: record one in BYTES bytes on average
    #[arg(
        long,
        value_name = "BYTES",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "1",
        value_parser = parse_interval,
        conflicts_with = "pid"
    )]
    pub sites: Option<u64>,

    /// Trace a running process and its descendants
    #[arg(long, value_name = "PID")]
    pub pid: Option<u32>,

    /// Stop after this time (10s, 500ms, 2min); a program that neap started gets SIGTERM
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub duration: Option<Duration>,

    /// The program and its arguments
    #[arg(trailing_var_arg = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

impl PageinArgs {
    /// The arguments of `neap pagein`, by a parser of this command alone: building the parser of all commands takes a
    /// tenth of the time that neap adds to the start of a program. `None` where they are refused: the other parser
    /// reports why.
    pub fn alone(arguments: &[OsString]) -> Option<Self> {
        let own = arguments.get(1..).filter(|own| own.first().is_some_and(|name| name == "pagein"))?;
        let matches = Self::augment_args(clap::Command::new("pagein")).try_get_matches_from(own).ok()?;
        Self::from_arg_matches(&matches).ok()
    }

    /// How much is recorded about each fault: no more than the format shows, unless the user sets it.
    pub fn detail(&self) -> Detail {
        self.detail.unwrap_or(if self.format.rich { Detail::Full } else { Detail::Begin })
    }
}

/// What `neap pagein` does with traces.
#[derive(Debug, Subcommand)]
pub enum PageinAction {
    /// Compare two traces by kind, function, mapping and page of a file
    Diff(DiffArgs),
    /// Show a kept trace: its summary, or in another format
    Show(ShowArgs),
}

/// Arguments of `neap pagein show`.
#[derive(Debug, Args)]
#[command(after_help = SHOW_EXAMPLES)]
pub struct ShowArgs {
    /// The trace, in the format json; `-` is standard input
    #[arg(value_name = "TRACE")]
    pub trace: PathBuf,

    /// Write it in that format; without it, print what it covers and the functions and mappings with most faults
    #[arg(long, value_name = "FORMAT", value_parser = parse_format)]
    pub format: Option<&'static Format>,

    /// Write the trace as JSON: short for --format json
    #[arg(long, conflicts_with = "format")]
    pub json: bool,

    /// Write to FILE instead of standard output
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// Arguments of `neap pagein diff`.
#[derive(Debug, Args)]
#[command(after_help = DIFF_EXAMPLES)]
pub struct DiffArgs {
    /// The first trace (json or csv)
    #[arg(value_name = "A")]
    pub before: PathBuf,

    /// The second trace (json or csv)
    #[arg(value_name = "B")]
    pub after: PathBuf,

    /// Print the comparison as JSON, with all that did not change
    #[arg(long)]
    pub json: bool,

    /// Print at most N lines of each list
    #[arg(long, value_name = "N", default_value_t = 20, conflicts_with = "json")]
    pub limit: usize,
}

/// The examples, and the formats.
fn pagein_long_help() -> String {
    let mut text = format!("{PAGEIN_EXAMPLES}\n\nFormats:\n");
    for format in neap_trace::format::FORMATS {
        text.push_str(&format!("  {:<8}  {}\n", format.name, format.doc));
    }
    text
}

/// A sampling interval on the command line: as the option of the library.
fn parse_interval(text: &str) -> Result<u64, String> {
    let option = Id::SitesInterval.option();
    match option.parse(text.as_bytes()) {
        Some(neap_options::Value::Bytes(bytes)) => Ok(bytes),
        _ => Err(format!("it is {}", option.kind)),
    }
}

/// A format on the command line.
fn parse_format(text: &str) -> Result<&'static Format, String> {
    Format::from_name(text).ok_or_else(|| {
        let names: Vec<&str> = neap_trace::format::FORMATS.iter().map(|format| format.name).collect();
        format!("{}the formats are {}", did_you_mean(text, names.iter().copied()), names.join(", "))
    })
}
