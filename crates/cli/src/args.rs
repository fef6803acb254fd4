//! The command line: one definition for the parser, `--help`, the manual pages and the shell completions. The arguments
//! of each command are defined in its own module.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::lab::args::LabArgs;
use crate::options::OptionsArgs;
use crate::profile::args::ProfileArgs;
use crate::run::args::RunArgs;
use neap_advise::args::AdviseArgs;
use neap_exporter::args::ExporterArgs;
use neap_huge::args::HugeArgs;
use neap_launch::VERSION;
use neap_order::args::OrderArgs;
use neap_pagein::args::PageinArgs;
use neap_top::args::TopArgs;
use neap_why::args::{StatsArgs, WhyArgs};

const EXAMPLES: &str = "\
Examples:
  neap run -- python3 script.py      run a program on neap
  neap run --summary -- ./server     ... and print what it used, at exit
  neap why 1234                      why a process is so large, on any allocator
  neap profile --heap -- ./server    which code holds memory
  neap profile --time -- ./server    where allocation takes time
  neap pagein -o - -- ls             every page fault of a program, in order
  neap top                           all processes, by what they could give back
  neap exporter                      the same for Prometheus
  neap advise -- ./batch-job         what it would cost under glibc and neap
  neap huge status                   pools, settings and limits of huge pages
  neap order trace -o T -- ./server  the functions that it enters, in order
  neap lab run all --quick           published experiments, several allocators
  neap options                       what can be set with neap run --set

`neap help COMMAND` and `man neap-COMMAND` explain a command.

Exit status: that of the program, where neap runs one; 125 when neap itself
fails.";

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  source <(neap completions bash)        for this shell
  neap completions bash > ~/.local/share/bash-completion/completions/neap
  neap completions fish > ~/.config/fish/completions/neap.fish";

const MAN_EXAMPLES: &str = "\
Examples:
  neap man > neap.1 && man -l neap.1     all commands on one page
  neap man run > neap-run.1              the page of neap run
  neap man --dir ~/.local/share/man/man1  a page for each command";

/// Run programs on neap, a malloc that gives memory back, and show where the memory of any program goes.
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
    /// Show which code takes memory, and where the time of allocation goes
    Profile(ProfileArgs),
    /// Show why a process is so large, on any allocator: owners, a verdict, remedies
    Why(WhyArgs),
    /// Show what neap counts in a program that runs on it
    Stats(StatsArgs),
    /// Show all processes by what they could give back
    Top(TopArgs),
    /// Serve memory of all processes to Prometheus
    Exporter(ExporterArgs),
    /// Run a command under several allocators, and say what each costs and gives back
    Advise(AdviseArgs),
    /// Show huge pages, and reserve them for one command
    Huge(HugeArgs),
    /// Find the functions that a program enters first, to lay it out on fewer pages
    Order(OrderArgs),
    /// Run published experiments on memory again, under several allocators
    Lab(LabArgs),
    /// List neap's options: values, where they come from, defaults
    Options(OptionsArgs),
    /// Print a completion script for a shell
    #[command(after_help = COMPLETIONS_EXAMPLES)]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual, or the page of one command
    #[command(after_help = MAN_EXAMPLES)]
    Man {
        /// The command; without one, all of them on one page
        command: Option<String>,
        /// Write a page for each command into this folder instead
        #[arg(long, value_name = "FOLDER", conflicts_with = "command")]
        dir: Option<PathBuf>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use neap_pagein::args::PageinAction;
    use std::ffi::OsString;

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
            &["neap", "pagein", "--duration", "1s", "ls"],
            &["neap", "pagein", "show", "t.json", "--format", "html"],
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
            &["neap", "pagein", "--duration", "soon", "ls"],
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
