//! The command line: one definition for the parser, `--help`, the man page and the shell completions.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

use neap_trace::format::Format;

use crate::error::Error;
use crate::lab::args::LabArgs;
use crate::options::{self, Setting, SettingParser};
use crate::pagein::{Callgraph, Detail};
use crate::sys::print;

/// The version, and which library is inside.
const VERSION: &str =
    concat!(env!("CARGO_PKG_VERSION"), " (libneap.so ", env!("NEAP_LIBRARY_HASH"), ", ", env!("NEAP_TARGET"), ")");

const EXAMPLES: &str = "\
Examples:
  neap run -- python3 script.py          run a program on neap
  neap run --summary -- ./server         ... and print what it cost at exit
  neap pagein -o - -- ls                 every page fault of a program, in order
  neap lab run all --quick               the field's experiments, across allocators
  neap options                           what can be set with neap run --set

Exit status: that of the program for `neap run` and `neap pagein`; 125 when neap itself fails.";

const RUN_EXAMPLES: &str = "\
Examples:
  neap run -- redis-server --port 7000
  neap run --summary -- make -j4
  neap run --summary-file summary.json --json -- ./batch input
  neap run --set foreign=abort -- ./program
  neap run --set purge=eager --set limit=512M -- ./server

Exit status: that of the program (128+N where a shell shows death by signal N);
125 when neap itself fails, 126 when the program cannot be run, 127 when it is
not found.

Without a summary neap becomes the program: same process, terminal and signals.";

const PAGEIN_EXAMPLES: &str = "\
Examples:
  neap pagein -- ls                      writes pagein.PID
  neap pagein -o - -- python3 -c pass    writes to standard output
  neap pagein --format table -- ./server
  neap pagein --exact --format table -- ./server    each page of a file that it touches
  neap pagein --sites --format table -- ./server    where the blocks at the faults were allocated
  neap pagein --callgraph dwarf --format table -- ./server    callers, without frame pointers
  neap pagein --pid 1234 --duration 10s -o faults
  neap pagein --format html -o faults.html -- ./server
  neap pagein --format folded --callgraph fp -o - -- ls | flamegraph.pl > faults.svg
  neap pagein diff before.json after.json
  neap pagein -- neap run -- ./server    a program on neap

Each line of the classic format: number, page, C (code) or D (data), cycles
since the first fault, instruction, symbol, object. The trace ends with what it
covers and what it does not.

Exit status: that of the program; 125 when neap itself fails, 126 when the
program cannot be run, 127 when it is not found.";

/// Run programs on neap, a malloc that pays for the pages a program touches and for no others.
#[derive(Debug, Parser)]
#[command(name = "neap", version = VERSION, after_help = EXAMPLES)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands of neap.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a program with neap as its malloc
    Run(RunArgs),
    /// Trace every page fault of a program, in order, with its cause
    Pagein(PageinArgs),
    /// Run the field's experiments on this machine, across allocators
    Lab(LabArgs),
    /// List neap's options: values, who chose them, defaults
    Options(OptionsArgs),
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page (man -l <(neap man))
    Man,
}

/// Arguments of `neap run`.
#[derive(Debug, Args)]
#[command(after_help = RUN_EXAMPLES, after_long_help = run_long_help())]
pub struct RunArgs {
    /// Print a summary on standard error when the program has ended
    #[arg(long)]
    pub summary: bool,

    /// Write the summary to FILE (it is opened before the program starts)
    #[arg(long, value_name = "FILE")]
    pub summary_file: Option<PathBuf>,

    /// Write the summary as JSON; implies --summary
    #[arg(long)]
    pub json: bool,

    /// Set an option of neap (see `neap options`); may be given several times
    // The table of options follows at the end of the long help; the bare list of values would only repeat it.
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = SettingParser, hide_possible_values = true)]
    pub settings: Vec<Setting>,

    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

impl RunArgs {
    /// The arguments of `neap run -- CMD ...` and `neap run CMD ...`, where no option of neap is given. They
    /// need no parser, and building it would be a tenth of what neap adds to the start of a program.
    pub fn without_options(arguments: &[OsString]) -> Option<Self> {
        let [_, run, rest @ ..] = arguments else { return None };
        let command = match rest {
            [separator, command @ ..] if separator == "--" => command,
            command => command.first().filter(|first| !first.as_encoded_bytes().starts_with(b"-")).map(|_| command)?,
        };
        (run == "run" && !command.is_empty()).then(|| Self {
            summary: false,
            summary_file: None,
            json: false,
            settings: Vec::new(),
            command: command.to_vec(),
        })
    }

    /// Whether a summary is wanted in any form.
    pub fn wants_summary(&self) -> bool {
        self.summary || self.json || self.summary_file.is_some()
    }
}

const DIFF_EXAMPLES: &str = "\
Examples:
  neap pagein --format json -o before.json -- ./server-1 --check
  neap pagein --format json -o after.json -- ./server-2 --check
  neap pagein diff before.json after.json
  neap pagein diff --json before.json after.json | jq '.functions[:10]'

A and B are traces in the format json or csv; `-` is standard input. Functions,
mappings and pages of files are matched by their names, wherever they lay.
A program whose name is `diff` is traced with: neap pagein -- diff ...";

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
    #[arg(long, value_name = "FORMAT", default_value = "classic", value_parser = crate::pagein::parse_format)]
    pub format: &'static Format,

    /// Write the trace as JSON: short for --format json
    #[arg(long, conflicts_with = "format")]
    pub json: bool,

    /// How much to learn about each fault [default: begin for classic and folded, else full]
    #[arg(long, value_name = "DETAIL")]
    pub detail: Option<Detail>,

    /// Turn fault-around off for the program's files, so that each page of them that it touches is a fault of its own
    #[arg(long, conflicts_with = "pid")]
    pub exact: bool,

    /// Find the callers of each faulting instruction too
    #[arg(long, value_name = "HOW")]
    pub callgraph: Option<Callgraph>,

    /// Run the program on neap and show where the blocks were allocated; with BYTES, record one allocation in so many bytes
    #[arg(
        long,
        value_name = "BYTES",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "1",
        value_parser = crate::pagein::parse_interval,
        conflicts_with = "pid"
    )]
    pub sites: Option<u64>,

    /// Trace a process that runs already
    #[arg(long, value_name = "PID")]
    pub pid: Option<u32>,

    /// With --pid: stop after that time (10s, 500ms, 2min)
    #[arg(long, value_name = "TIME", requires = "pid", value_parser = crate::pagein::parse_duration)]
    pub duration: Option<Duration>,

    /// The program and its arguments
    #[arg(trailing_var_arg = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

impl PageinArgs {
    /// The arguments of `neap pagein`, by a parser of that command alone: building the one of all commands would be a
    /// tenth of what neap adds to the start of a program. None where they are refused: that one says why.
    pub fn alone(arguments: &[OsString]) -> Option<Self> {
        let own = arguments.get(1..).filter(|own| own.first().is_some_and(|name| name == "pagein"))?;
        let matches = Self::augment_args(clap::Command::new("pagein")).try_get_matches_from(own).ok()?;
        Self::from_arg_matches(&matches).ok()
    }

    /// How much is learnt about each fault: not more than the format shows, unless it was asked for.
    pub fn detail(&self) -> Detail {
        self.detail.unwrap_or(if self.format.rich { Detail::Full } else { Detail::Begin })
    }
}

/// What `neap pagein` does with traces.
#[derive(Debug, Subcommand)]
pub enum PageinAction {
    /// Compare two traces by kind, function, mapping and page of a file
    Diff(DiffArgs),
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

/// Arguments of `neap options`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  neap options                           what programs started from here would run with
  MALLOC_TRIM_THRESHOLD_=131072 neap options
  neap options --pid 4711                what a running program runs with
  neap options --json | jq -r '.options[].env'")]
pub struct OptionsArgs {
    /// Print the table as JSON
    #[arg(long)]
    pub json: bool,

    /// Show the values in the running process PID, and who chose them
    #[arg(long, value_name = "PID")]
    pub pid: Option<u32>,
}

/// The examples, and the table of options.
fn run_long_help() -> String {
    format!("{RUN_EXAMPLES}\n\nOptions for --set:\n\n{}", options::table_text(false, None))
}

/// Prints a completion script.
pub fn completions(shell: clap_complete::Shell) -> Result<u8, Error> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "neap", &mut text);
    print(&text)
}

/// Prints the manual page of neap, followed by a section for each command.
pub fn man() -> Result<u8, Error> {
    let mut text = Vec::new();
    // The table of options is at the end of the page.
    let mut command = Cli::command().disable_help_subcommand(true).mut_subcommands(|sub| match sub.get_name() {
        "run" => sub.after_long_help(RUN_EXAMPLES),
        _ => sub,
    });
    command.build();
    render(&command, &mut text).map_err(|e| Error::failed(format!("cannot render the manual page: {e}")))?;
    print(as_typed(&String::from_utf8_lossy(&text)).as_bytes())?;
    print(options::man_section().as_bytes())
}

/// The sections of a command and of the commands in it.
fn render(command: &clap::Command, text: &mut Vec<u8>) -> std::io::Result<()> {
    clap_mangen::Man::new(command.clone()).render(text)?;
    command.get_subcommands().try_for_each(|sub| render(sub, text))
}

/// The page with its examples line by line, as they are in the help: not filled and not spread to both margins.
fn as_typed(page: &str) -> String {
    let (mut text, mut open) = (String::with_capacity(page.len()), false);
    for line in page.lines() {
        if open && (line.starts_with(".SH") || line.starts_with(".TH")) {
            text.push_str(".fi\n");
            open = false;
        }
        if line == ".SH EXTRA" {
            text.push_str(".SH EXAMPLES\n.nf\n");
            open = true;
        } else if !(open && line == "Examples:") {
            text.push_str(line);
            text.push('\n');
        }
    }
    text.push_str(if open { ".fi\n" } else { "" });
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a manual page that lacks a command, or has examples in which several lines are one.
    #[test]
    fn the_manual_page_is_whole() {
        let mut text = Vec::new();
        let mut command = Cli::command().disable_help_subcommand(true);
        command.build();
        render(&command, &mut text).expect("a page");
        let page = as_typed(std::str::from_utf8(&text).expect("UTF-8"));
        for name in ["neap\\-run", "neap\\-pagein\\-diff", "neap\\-lab\\-peers\\-build", "neap\\-man"] {
            assert!(page.contains(&format!(".SH NAME\n{name} ")), "{name}: {page}");
        }
        assert!(page.contains(".SH EXAMPLES\n.nf\n") && !page.contains(".SH EXTRA"), "{page}");
        assert_eq!(page.matches("\n.nf\n").count(), page.matches("\n.fi\n").count());
    }

    /// Catches contradictions in the definitions.
    #[test]
    fn the_definitions_are_consistent() {
        Cli::command().debug_assert();
    }

    fn parse(line: &[&str]) -> Result<RunArgs, clap::Error> {
        match Cli::try_parse_from(line)?.command {
            Command::Run(run) => Ok(run),
            other => panic!("{other:?}"),
        }
    }

    /// Catches arguments of the program that neap takes for its own, with and without `--`.
    #[test]
    fn arguments_after_the_program_are_its_own() {
        for line in [
            &["neap", "run", "--", "ls", "--json", "-l", "--", "x"][..],
            &["neap", "run", "ls", "--json", "-l", "--", "x"][..],
        ] {
            let run = parse(line).expect("a program");
            assert_eq!(run.command, ["ls", "--json", "-l", "--", "x"]);
            assert!(!run.wants_summary());
        }
    }

    /// Catches a shortcut that reads a command line otherwise than the parser does.
    #[test]
    fn the_shortcut_agrees_with_the_parser() {
        let lines: [&[&str]; 9] = [
            &["neap", "run", "--", "ls", "-l"],
            &["neap", "run", "ls", "--", "-l"],
            &["neap", "run", "--", "--", "x"],
            &["neap", "run", "--", "-x"],
            &["neap", "run", ""],
            &["neap", "run"],
            &["neap", "run", "--"],
            &["neap", "run", "--summary", "--", "ls"],
            &["neap", "options"],
        ];
        for line in lines {
            let arguments: Vec<OsString> = line.iter().map(OsString::from).collect();
            if let Some(short) = RunArgs::without_options(&arguments) {
                let run = parse(line).unwrap_or_else(|e| panic!("{line:?}: {e}"));
                assert_eq!(short.command, run.command, "{line:?}");
                assert!(!run.wants_summary() && run.settings.is_empty(), "{line:?}");
            }
        }
        assert!(RunArgs::without_options(&["neap".into(), "run".into(), "--".into(), "ls".into()]).is_some());
    }

    /// Catches programs that are taken for an action of `neap pagein`, and the other way round.
    #[test]
    fn actions_are_no_programs() {
        let pagein = |line: &[&str]| match Cli::try_parse_from(line).map(|cli| cli.command) {
            Ok(Command::Pagein(args)) => args,
            other => panic!("{other:?}"),
        };
        assert!(matches!(pagein(&["neap", "pagein", "diff", "a", "b"]).action, Some(PageinAction::Diff(_))));
        for line in [
            &["neap", "pagein", "--", "diff", "a", "b"][..],
            &["neap", "pagein", "--format", "csv", "--", "diff", "a", "b"][..],
        ] {
            let args = pagein(line);
            assert!(args.action.is_none() && args.command == ["diff", "a", "b"], "{args:?}");
        }
        let args = pagein(&["neap", "pagein", "ls", "diff"]);
        assert!(args.action.is_none() && args.command == ["ls", "diff"], "{args:?}");
    }

    /// Catches a parser of one command that reads a command line otherwise than the parser of all.
    #[test]
    fn one_command_alone_is_parsed_alike() {
        for line in [
            &["neap", "pagein", "ls", "-l"][..],
            &["neap", "pagein", "-o", "-", "--format=table", "--exact", "--sites", "--", "ls", "--exact"],
            &["neap", "pagein", "--pid", "7", "--duration", "10s", "--detail", "full"],
            &["neap", "pagein", "diff", "--json", "a", "b"],
            &["neap", "pagein"],
        ] {
            let arguments: Vec<OsString> = line.iter().map(OsString::from).collect();
            let all = match Cli::try_parse_from(line).map(|cli| cli.command) {
                Ok(Command::Pagein(args)) => args,
                other => panic!("{other:?}"),
            };
            let alone = PageinArgs::alone(&arguments);
            assert_eq!(format!("{alone:?}"), format!("{:?}", Some(all)), "{line:?}");
        }
        for line in [
            &["neap", "pagein", "--help"][..],
            &["neap", "pagein", "--exact", "--pid", "7"],
            &["neap", "pagein", "--duration", "1s", "ls"],
            &["neap", "run", "ls"],
            &["neap"],
        ] {
            let arguments: Vec<OsString> = line.iter().map(OsString::from).collect();
            assert!(PageinArgs::alone(&arguments).is_none(), "{line:?}");
        }
    }

    /// Catches a mistyped option of neap that is taken for the program.
    #[test]
    fn unknown_options_are_refused() {
        assert!(parse(&["neap", "run", "--sumary", "--", "ls"]).is_err());
        assert!(parse(&["neap", "run"]).is_err());
    }
}
