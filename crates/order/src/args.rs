//! The arguments of `neap order`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

const EXAMPLES: &str = "\
Examples:
  neap order trace -o T -- ./server --check   the functions that it enters
  neap order estimate T ./server              what an order would save
  neap order emit --for lld -o order.txt T ./server   a file for the linker
  neap order verify --before ./server.old --after ./server -- --check";

const TRACE_EXAMPLES: &str = "\
Examples:
  neap order trace -o T -- ./server --check
  neap order trace -o T --runs 3 --data -- ./server --check
  neap order trace -o T --binary ./libfoo.so -- ./program
  neap order trace -o T --binary ./server -- ./start.sh
  neap order trace -o T --follow -- ./server --workers 4

The program runs with a breakpoint on each function of the binary, which is
removed when the function is first entered. That needs the names of functions: a
binary that is not stripped, or its debug information below /usr/lib/debug. One
that is compiled with -finstrument-functions counts its calls instead.

Exit status: that of the program; 125 when neap itself fails, 126 when the
program cannot be run, 127 when it is not found.";

const MERGE_EXAMPLES: &str = "\
Examples:
  neap order trace -o start -- ./server --check
  neap order trace -o request -- ./server --once request.txt
  neap order merge -o T start request

Functions that all runs entered come first, then the others; each group by the
median of their places in the runs that entered them.";

const ESTIMATE_EXAMPLES: &str = "\
Examples:
  neap order trace -o T --data -- ./server --check
  neap order estimate T ./server
  neap order estimate --json T ./server | jq .total.packed.pages

Pages are OS pages of 4 KiB; faults are those of a first start, without and with
the kernel's fault-around (windows of 16 OS pages).";

const EMIT_EXAMPLES: &str = "\
Examples:
  neap order emit --for lld -o order.txt T ./server
      ... -Wl,--symbol-ordering-file=order.txt --no-warn-symbol-ordering
  neap order emit --for gold -o order.txt T ./server
      ... -fuse-ld=gold -Wl,--section-ordering-file=order.txt
  neap order emit --for ld-script -o script.ld T ./server
      ... -Wl,-T,script.ld
  neap order emit --for objects T ./server *.o

BINARY may be a later build than the traced one: names are matched by rules, and
a line says how many were found. For ld and gold, compile with
-ffunction-sections -fdata-sections.";

const PICTURE_EXAMPLES: &str = "\
Examples:
  neap order picture -o server.html T ./server
  neap order picture -o server.html --after T2 ./server.new T ./server

One file without scripts, for any browser. Each square is an OS page; those that
the traced runs touch are coloured, and the functions on each are its title.";

const CLOSURE_EXAMPLES: &str = "\
Examples:
  neap order closure --entry main *.o lib.a
  neap order closure --entry main --entry signal_handler --all *.o";

const VERIFY_EXAMPLES: &str = "\
Examples:
  neap order verify --before ./server.old --after ./server -- --check
  neap order verify --before A --after B --trace T -- --check
  neap order verify --before A --after B --pairs 20 --json -- input.txt

Both programs get the same arguments; their input and output are /dev/null. A
measure is less if the median of the ratios is below 0.99 and nine of ten pairs
are below 1.

Exit status: 0 if a measure other than time is less; 1 if not, or if B has fewer
than nine tenths of the functions of --trace; 125 when neap itself fails.";

/// Arguments of `neap order`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, disable_help_subcommand = true)]
pub struct OrderArgs {
    /// What to do.
    #[command(subcommand)]
    pub action: OrderAction,
}

/// What `neap order` does.
#[derive(Debug, Subcommand)]
pub enum OrderAction {
    /// Record which functions a program enters, in which order
    Trace(TraceArgs),
    /// Make one trace of several of the same binary
    Merge(MergeArgs),
    /// Show how many OS pages a start touches, and how many it needs
    Estimate(EstimateArgs),
    /// Write the order file that a linker takes
    Emit(EmitArgs),
    /// Order object files by what entry symbols reach, without a run
    Closure(ClosureArgs),
    /// Draw a binary: the OS pages that a start touches, and the functions on each
    Picture(PictureArgs),
    /// Compare a program before and after: pages touched, faults, memory, time
    Verify(VerifyArgs),
}

/// Arguments of `neap order trace`.
#[derive(Debug, Args)]
#[command(after_help = TRACE_EXAMPLES)]
pub struct TraceArgs {
    /// Write the trace to FILE; `-` is standard output
    #[arg(short, long, value_name = "FILE", default_value = "order.json")]
    pub output: PathBuf,

    /// Trace this file (a library that CMD loads, or a program that it executes) instead of CMD itself
    #[arg(long, value_name = "PATH")]
    pub binary: Option<PathBuf>,

    /// Run CMD N times, and merge the traces; the exit status is that of the last one
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub runs: u32,

    /// Also record which data CMD touches: runs it once more by `neap pagein --exact`, without its output
    #[arg(long)]
    pub data: bool,

    /// Trace all processes that have the binary, rather than the first
    #[arg(long)]
    pub follow: bool,

    /// How entries of functions are recorded
    #[arg(long, value_name = "SOURCE", default_value = "auto")]
    pub source: Wanted,

    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

/// How entries of functions are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Wanted {
    /// By its own calls if it is instrumented, else by breakpoints
    Auto,
    /// By a breakpoint on each function
    Breakpoints,
    /// By the first fault of each OS page of code: one function for each, without a breakpoint in the program
    Faults,
}

/// Arguments of `neap order merge`.
#[derive(Debug, Args)]
#[command(after_help = MERGE_EXAMPLES)]
pub struct MergeArgs {
    /// Write the trace to FILE; `-` is standard output
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    pub output: PathBuf,

    /// The traces
    #[arg(required = true, value_name = "T")]
    pub traces: Vec<PathBuf>,
}

/// Arguments of `neap order estimate`.
#[derive(Debug, Args)]
#[command(after_help = ESTIMATE_EXAMPLES)]
pub struct EstimateArgs {
    /// Print everything as JSON
    #[arg(long)]
    pub json: bool,

    /// The trace
    #[arg(value_name = "T")]
    pub trace: PathBuf,

    /// The program or library that was traced
    #[arg(value_name = "BINARY")]
    pub binary: PathBuf,
}

/// A linker, or what it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Linker {
    /// lld and rust-lld: symbols
    Lld,
    /// GNU ld from 2.43 on: a section ordering script
    Ld,
    /// Older GNU ld: its own script, with what comes first
    LdScript,
    /// gold: input sections
    Gold,
    /// mold: the order of object files, as it has no option for an order
    Mold,
    /// Any linker: the order of object files
    Objects,
}

/// How functions are ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Clustering {
    /// Those that the same runs entered together; in these by first entry
    Runs,
    /// By their first entry
    Entry,
    /// Callers before callees, where the trace has counts of calls; else by first entry
    C3,
}

/// Arguments of `neap order emit`.
#[derive(Debug, Args)]
#[command(after_help = EMIT_EXAMPLES)]
pub struct EmitArgs {
    /// Write for this linker
    #[arg(long = "for", value_name = "LINKER")]
    pub linker: Linker,

    /// Write to FILE; `-` is standard output
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    pub output: PathBuf,

    /// Order functions this way
    #[arg(long, value_name = "WAY", default_value = "runs")]
    pub by: Clustering,

    /// With --for ld-script: the script to change, rather than what `ld --verbose` prints
    #[arg(long, value_name = "FILE")]
    pub script: Option<PathBuf>,

    /// The trace
    #[arg(value_name = "T")]
    pub trace: PathBuf,

    /// The program or library, of the traced build or of a later one
    #[arg(value_name = "BINARY")]
    pub binary: PathBuf,

    /// With --for objects: the object files
    #[arg(value_name = "OBJECT")]
    pub objects: Vec<PathBuf>,
}

/// Arguments of `neap order closure`.
#[derive(Debug, Args)]
#[command(after_help = CLOSURE_EXAMPLES)]
pub struct ClosureArgs {
    /// Begin with this symbol
    #[arg(long, value_name = "SYMBOL", required = true)]
    pub entry: Vec<String>,

    /// Print the object files that are not reached too, after the others
    #[arg(long)]
    pub all: bool,

    /// Object files and archives
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
}

/// Arguments of `neap order picture`.
#[derive(Debug, Args)]
#[command(after_help = PICTURE_EXAMPLES)]
pub struct PictureArgs {
    /// Write the page to FILE; `-` is standard output
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    pub output: PathBuf,

    /// Draw a second binary beside it: a trace of the new layout, and that binary
    #[arg(long, num_args = 2, value_names = ["T2", "BINARY2"])]
    pub after: Vec<PathBuf>,

    /// The trace
    #[arg(value_name = "T")]
    pub trace: PathBuf,

    /// The program or library that was traced
    #[arg(value_name = "BINARY")]
    pub binary: PathBuf,
}

/// Arguments of `neap order verify`.
#[derive(Debug, Args)]
#[command(after_help = VERIFY_EXAMPLES)]
pub struct VerifyArgs {
    /// The program with the old layout
    #[arg(long, value_name = "A")]
    pub before: PathBuf,

    /// The program with the new layout
    #[arg(long, value_name = "B")]
    pub after: PathBuf,

    /// Check that B has at least nine tenths of the functions of this trace
    #[arg(long, value_name = "T")]
    pub trace: Option<PathBuf>,

    /// Run N pairs, warm and cold
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub pairs: u32,

    /// Print everything as JSON
    #[arg(long)]
    pub json: bool,

    /// The arguments of both
    #[arg(last = true, value_name = "ARGS")]
    pub arguments: Vec<OsString>,
}
