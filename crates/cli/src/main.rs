//! The command `neap`. One module per command; this file only starts them.
#![cfg_attr(not(test), no_main)]

mod args;
mod completions;
#[cfg(test)]
mod documents;
mod lab;
mod man;
mod options;
mod profile;
mod run;
mod usage;
mod values;

use std::ffi::{OsString, c_char, c_int};
use std::process::exit;

use clap::FromArgMatches;
use neap_launch::error::{Error, FAILED, tell};
use neap_launch::sys;
use neap_pagein::args::PageinArgs;

use crate::args::{Cli, Command};
use crate::run::args::RunArgs;

/// The C entry point. Rust's own would set SIGPIPE to "ignore" and reopen closed standard descriptors before
/// `main`; the program that `neap run` becomes must find both as neap's caller left them.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn main(_argc: c_int, _argv: *const *const c_char) -> c_int {
    sys::keep_standard_descriptors();
    let result = dispatch(std::env::args_os().collect());
    // Not a return: `exit` flushes standard output, which the C entry point would not do.
    exit(match result {
        Ok(status) => c_int::from(status),
        Err(error) => {
            error.report();
            c_int::from(error.status())
        }
    })
}

/// Runs the command in `arguments`; the result is neap's exit status.
fn dispatch(arguments: Vec<OsString>) -> Result<u8, Error> {
    if completions::answered(&arguments)? {
        return Ok(0);
    }
    if let Some(run) = RunArgs::without_options(&arguments) {
        return run::run(run);
    }
    if let Some(pagein) = PageinArgs::alone(&arguments) {
        return neap_pagein::run(pagein);
    }
    // The parser's own `help` takes names of commands only.
    let help_of_help =
        matches!(&arguments[..], [_, help, option] if help == "help" && (option == "--help" || option == "-h"));
    let arguments = if help_of_help { arguments[..2].to_vec() } else { arguments };
    let parsed = completions::definition().try_get_matches_from(arguments);
    let cli = match parsed.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(message) if message.use_stderr() => {
            tell(usage::error(message));
            return Ok(FAILED);
        }
        // Help, or the version.
        Err(message) => return sys::print(usage::help(&message).as_bytes()),
    };
    match cli.command {
        Command::Run(run) => run::run(run),
        Command::Pagein(pagein) => neap_pagein::run(pagein),
        Command::Profile(profile) => profile::run(profile),
        Command::Why(why) => neap_why::run(&why),
        Command::Stats(stats) => neap_why::stats(&stats),
        Command::Top(top) => neap_top::run(&top),
        Command::Exporter(exporter) => neap_exporter::run(&exporter),
        Command::Advise(advise) => neap_advise::run(&advise),
        Command::Huge(huge) => neap_huge::run(huge),
        Command::Order(order) => neap_order::run(order),
        Command::Lab(lab) => lab::run(lab),
        Command::Options(list) => options::list(list.json, list.pid),
        Command::Completions { shell } => completions::script(shell),
        Command::Man { command, dir } => match dir {
            Some(dir) => man::write(&dir),
            None => man::show(command.as_deref()),
        },
    }
}
