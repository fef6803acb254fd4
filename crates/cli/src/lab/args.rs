//! The arguments of `neap lab`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use neap_lab::peers;

const EXAMPLES: &str = "\
Examples:
  neap lab list                        the experiments
  neap lab peers build                 other allocators, from their sources
  neap lab run retain-large ebizzy     two experiments, all allocators found
  neap lab run all --quick             a first look at all, some minutes
  neap lab run all --allocators glibc,neap,mine=/tmp/libmine.so -o results
  neap lab show results                tables, verdicts and the HTML report
  neap lab compare before after        what changed between two runs

The programs are small, in C, and part of neap; your C compiler compiles them.
docs/lab.md explains each experiment, and how noise is handled.";

const RUN_EXAMPLES: &str = "\
Examples:
  neap lab run all --quick --allocators glibc,neap,mimalloc3,jemalloc
  neap lab run calloc --runs 5 -o results/calloc
  neap lab run suite --cases trees,cache    two of its workloads
  neap lab run ebizzy --allocators neap,mine=/tmp/libmine.so
  neap lab run all --quick --check          fails where a goal is missed

Ctrl-C stops the run: its results so far are kept, programs are ended, and
settings of the kernel are restored. An error of neap itself ends only the
experiment in which it occurs.

Exit status: 0; 1 with --check where a verdict that must hold does not; 128+N
after signal N; 125 when neap itself fails, also in one experiment only.";

/// Arguments of `neap lab`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, disable_help_subcommand = true)]
pub struct LabArgs {
    /// What to do.
    #[command(subcommand)]
    pub action: LabAction,
}

/// What `neap lab` does.
#[derive(Debug, Subcommand)]
pub enum LabAction {
    /// List the experiments, and the question of each
    List(ListArgs),
    /// Run experiments under several allocators, and keep the results
    Run(RunArgs),
    /// Show a kept run: tables, verdicts, the HTML report
    Show(ShowArgs),
    /// Compare two kept runs
    Compare(CompareArgs),
    /// Build or list the other allocators
    Peers(PeersArgs),
}

/// Arguments of `neap lab list`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  neap lab list
  neap lab list --json | jq -r '.[].name'")]
pub struct ListArgs {
    /// Print the list as JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `neap lab run`.
#[derive(Debug, Args)]
#[command(after_help = RUN_EXAMPLES)]
pub struct RunArgs {
    /// Experiments by name, or `all`
    #[arg(value_name = "NAME", required = true)]
    pub names: Vec<String>,

    /// Only cases with one of these texts in their name
    #[arg(long, value_delimiter = ',', value_name = "TEXTS")]
    pub cases: Vec<String>,

    /// Fewer cases with less work: findings can be seen, times are rough
    #[arg(long)]
    pub quick: bool,

    /// Allocators by name, or NAME=PATH for any preload library [default: all that are found]
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub allocators: Vec<String>,

    /// Rounds, each with one run per case and allocator [default: 1 to 5, by experiment]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: Option<u32>,

    /// Folder for the run [default: neap-lab-DATE in the current one]
    #[arg(short, long, value_name = "DIR")]
    pub output: Option<PathBuf>,

    /// Replace the run that DIR has
    #[arg(long)]
    pub force: bool,

    /// End with status 1 where a verdict that must hold does not
    #[arg(long)]
    pub check: bool,

    /// Folder of built peers [default: ~/.cache/neap/lab/peers, or below $XDG_CACHE_HOME]
    #[arg(long, value_name = "DIR")]
    pub peers: Option<PathBuf>,

    /// Print the run as JSON instead of tables
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `neap lab show`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  neap lab show results                    tables and verdicts
  neap lab show results retain-large huge  of two experiments
  neap lab show --verdicts results         without the tables
  neap lab show --open results             the HTML report, in the browser
  neap lab show --markdown results > results.md
  neap lab show --charts pictures results  each chart as an SVG file
  neap lab show --charts pictures --dark results retain-large
  neap lab show --json results | jq '.experiments[].verdicts[].text'")]
pub struct ShowArgs {
    /// A folder that `neap lab run -o` wrote
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,

    /// Only these experiments
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,

    /// Print the verdicts without the tables
    #[arg(long, conflicts_with_all = ["json", "markdown", "charts"])]
    pub verdicts: bool,

    /// Print JSON, with all rows
    #[arg(long, conflicts_with = "markdown")]
    pub json: bool,

    /// Print markdown
    #[arg(long)]
    pub markdown: bool,

    /// Write the charts as SVG files into FOLDER, and nothing else
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["json", "markdown"])]
    pub charts: Option<PathBuf>,

    /// Draw the charts for a dark background
    #[arg(long, requires = "charts")]
    pub dark: bool,

    /// Open the HTML report in the browser
    #[arg(long, conflicts_with_all = ["json", "markdown", "charts"])]
    pub open: bool,
}

/// Arguments of `neap lab compare`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  neap lab compare results/before results/after
  neap lab compare --json results/before results/after
  neap lab compare --check results/before results/after || echo worse

Compare runs of one machine with the same options; figures of different machines
cannot be compared. A change shows from three rounds on; with three, a few
changes are chance: for --check, measure both with --runs 5.

Exit status: 0; 1 with --check where neap is worse or something of it was lost;
125 when neap itself fails.")]
pub struct CompareArgs {
    /// The first run
    #[arg(value_name = "DIR1")]
    pub before: PathBuf,

    /// The second run
    #[arg(value_name = "DIR2")]
    pub after: PathBuf,

    /// End with status 1 where a figure of neap is worse beyond noise, or is not in the second run
    #[arg(long)]
    pub check: bool,

    /// Print the comparison as JSON
    #[arg(long)]
    pub json: bool,

    /// Write the comparison to FILE as a page too
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,

    /// Print at most N lines of each list
    #[arg(long, value_name = "N", default_value_t = 40, conflicts_with = "json")]
    pub limit: usize,
}

/// Arguments of `neap lab peers`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  neap lab peers list                  what a run would measure
  neap lab peers build                 build those that are not there")]
pub struct PeersArgs {
    /// What to do.
    #[command(subcommand)]
    pub action: PeersAction,
}

/// What `neap lab peers` does.
#[derive(Debug, Subcommand)]
pub enum PeersAction {
    /// Fetch and compile the other allocators
    #[command(after_help = "\
Examples:
  neap lab peers build
  neap lab peers build --only tcmalloc --force
  neap lab peers build --upstream      the newest releases, by git
  neap lab peers build --upstream --only rpmalloc --repository rpmalloc=/src/rp

Needs cargo (it fetches the sources), a C and a C++ compiler, make and cmake,
and the network on first use. About two minutes on two processors. --upstream
needs git, autoconf for jemalloc, and the network each time; peers without
releases are built from their crates. A release stays until the next --upstream;
--force alone builds the crate.")]
    Build(BuildArgs),
    /// List the allocators that a run would measure, and where they came from
    List(PeersListArgs),
}

/// Arguments of `neap lab peers build`.
#[derive(Debug, Args)]
pub struct BuildArgs {
    /// Build even what is already there
    #[arg(long)]
    pub force: bool,

    /// Build only these
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub only: Vec<String>,

    /// Build the newest releases, from their authors' repositories, instead of the crates
    #[arg(long)]
    pub upstream: bool,

    /// With --upstream: take peer NAME from this repository (an address for git, or a path); may be given several times
    #[arg(long, value_name = "NAME=URL", value_parser = peers::parse_repository, requires = "upstream")]
    pub repository: Vec<(String, String)>,

    /// Folder for the libraries [default: ~/.cache/neap/lab/peers, or below $XDG_CACHE_HOME]
    #[arg(long, value_name = "DIR")]
    pub peers: Option<PathBuf>,
}

impl BuildArgs {
    /// What is to be built.
    pub fn wanted(self) -> peers::Wanted {
        peers::Wanted { force: self.force, only: self.only, upstream: self.upstream, repositories: self.repository }
    }
}

/// Arguments of `neap lab peers list`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  neap lab peers list
  neap lab peers list --json | jq -r '.[] | select(.found).name'")]
pub struct PeersListArgs {
    /// Print the list as JSON
    #[arg(long)]
    pub json: bool,

    /// Folder of the libraries [default: ~/.cache/neap/lab/peers, or below $XDG_CACHE_HOME]
    #[arg(long, value_name = "DIR")]
    pub peers: Option<PathBuf>,
}
