//! What shells complete, besides options and paths: experiments, allocators, peers, formats, processes and commands.
//! The script of a shell calls neap with [`VARIABLE`] set, and neap answers with the words that fit.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::PermissionsExt;

use clap::builder::ValueParser;
use clap::{Arg, Command, CommandFactory};
use clap_complete::engine::{
    ArgValueCandidates, ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter,
};
use clap_complete::env::{CompleteEnv, Shells};

use crate::args::Cli;
use neap_launch::error::{Error, cannot_print};
use neap_launch::sys::print;

/// The variable by which a shell asks for completions.
const VARIABLE: &str = "_NEAP_COMPLETE";

/// The command line, with what its values may be.
pub fn definition() -> Command {
    Cli::command().mut_subcommands(|sub| {
        let top = sub.get_name().to_owned();
        described(sub, &top)
    })
}

/// `top` is the command of neap that it belongs to.
fn described(command: Command, top: &str) -> Command {
    let starts = command.get_arguments().any(|arg| first_name(arg) == "CMD");
    command.mut_args(|arg| with_values(arg, top, starts)).mut_subcommands(|sub| described(sub, top))
}

/// How the help calls the argument's value.
fn first_name(arg: &Arg) -> &str {
    arg.get_value_names().and_then(|names| names.first()).map_or("", |name| name.as_str())
}

/// `starts`: whether the command can start a program.
fn with_values(arg: Arg, top: &str, starts: bool) -> Arg {
    match (first_name(&arg).to_owned().as_str(), arg.get_id().to_owned().as_str(), top) {
        ("PID", ..) => {
            if arg.is_positional() && starts {
                return arg.value_parser(ValueParser::new(parse_pid_or_command)).add(ArgValueCompleter::new(either));
            }
            arg.value_parser(ValueParser::new(parse_pid)).add(ArgValueCandidates::new(processes))
        }
        (_, "command", "man") => {
            let names = || Cli::command().get_subcommands().map(|sub| sub.get_name().to_owned()).collect::<Vec<_>>();
            arg.add(ArgValueCandidates::new(move || plain(names())))
        }
        ("CMD" | "COMMAND", ..) => arg.add(ArgValueCompleter::new(commands)),
        (_, "names", "lab") => arg.add(ArgValueCandidates::new(experiments)),
        (_, "allocators", "lab") => arg.add(ArgValueCandidates::new(|| plain(neap_lab::allocators::names()))),
        (_, "only", "lab") => arg.add(ArgValueCandidates::new(|| plain(neap_lab::peers::names()))),
        (_, "prefault", "run") => arg.add(ArgValueCandidates::new(|| plain(["all", "file:"]))),
        (_, "cgroup", "why") => arg.add(ArgValueCandidates::new(|| plain(["self"]))),
        (_, "size", "huge") => arg.add(ArgValueCandidates::new(|| plain(["2M", "1G"]))),
        ("FORMAT", _, "pagein") if is_open(&arg) => arg.add(ArgValueCandidates::new(|| {
            neap_trace::format::FORMATS.iter().map(|format| explained(format.name, format.doc)).collect()
        })),
        ("FORMAT", _, "profile") if is_open(&arg) => arg.add(ArgValueCandidates::new(|| {
            neap_profile::format::FORMATS.iter().map(|format| explained(format.name, format.doc)).collect()
        })),
        _ => arg,
    }
}

/// Whether the parser of the argument has no list of values.
fn is_open(arg: &Arg) -> bool {
    arg.get_possible_values().is_empty()
}

fn parse_pid(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| "a PID is a number, as `neap top` and `ps -e` show it".to_owned())
}

fn parse_pid_or_command(text: &str) -> Result<u32, String> {
    parse_pid(text).map_err(|error| format!("{error}; to start a command, write -- in front of it: -- {text}"))
}

fn explained(name: impl Into<OsString>, help: impl Into<String>) -> CompletionCandidate {
    let help: String = help.into();
    CompletionCandidate::new(name).help(Some(help.into()))
}

fn plain<T: Into<OsString>>(names: impl IntoIterator<Item = T>) -> Vec<CompletionCandidate> {
    names.into_iter().map(CompletionCandidate::new).collect()
}

fn experiments() -> Vec<CompletionCandidate> {
    let all = neap_lab::catalogue::all(true);
    let all = all.iter().map(|design| explained(design.name, design.question));
    all.chain([explained("all", "every experiment")]).collect()
}

/// The processes that can be seen, with their names.
fn processes() -> Vec<CompletionCandidate> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let process = |entry: fs::DirEntry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let name = fs::read_to_string(entry.path().join("comm")).ok()?;
        Some(explained(pid.to_string(), name.trim_end()))
    };
    entries.filter_map(process).collect()
}

/// Programs in PATH whose name begins so, and files.
fn commands(begun: &OsStr) -> Vec<CompletionCandidate> {
    let mut found = PathCompleter::any().complete(begun);
    if begun.is_empty() || begun.as_encoded_bytes().contains(&b'/') {
        return found;
    }
    let folders = std::env::var_os("PATH").unwrap_or_default();
    for entry in std::env::split_paths(&folders).filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten() {
        let name = entry.file_name();
        let runs =
            || fs::metadata(entry.path()).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0);
        if name.as_encoded_bytes().starts_with(begun.as_encoded_bytes()) && runs() {
            found.push(CompletionCandidate::new(name));
        }
    }
    found
}

/// A process, or behind `--` a program. For the library that answers shells, both are the first argument.
fn either(begun: &OsStr) -> Vec<CompletionCandidate> {
    // The shell's script puts a `--` in front of the words.
    if std::env::args_os().filter(|word| word == "--").count() > 1 {
        return commands(begun);
    }
    let mut found = processes();
    found.retain(|process| process.get_value().as_encoded_bytes().starts_with(begun.as_encoded_bytes()));
    found
}

/// Answers a shell that asks for completions; false if none does.
pub fn answered(arguments: &[OsString]) -> Result<bool, Error> {
    if std::env::var_os(VARIABLE).is_none() {
        return Ok(false);
    }
    let folder = std::env::current_dir().ok();
    let answer =
        CompleteEnv::with_factory(definition).var(VARIABLE).try_complete(arguments.to_vec(), folder.as_deref());
    answer.map_err(|error| Error::failed(error.to_string()))
}

/// Prints the script of a shell.
pub fn script(shell: clap_complete::Shell) -> Result<u8, Error> {
    let shells = Shells::builtins();
    let Some(completer) = shells.completer(&shell.to_string()) else {
        return Err(Error::failed(format!("there are no completions for {shell}")));
    };
    let mut text = Vec::new();
    completer.write_registration(VARIABLE, "neap", "neap", "neap", &mut text).map_err(|error| cannot_print(&error))?;
    print(&text)
}
