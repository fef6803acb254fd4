//! `neap run`: a program with neap as its malloc.
//!
//! The steps, each in a module: find the program and look at it (`target`, `elf`, `sanitizer`), put the library in a file
//! (`library`), become the program or supervise it (`child`, `signals`), and report (`counters`, `summary`).

pub mod child;
mod counters;
mod elf;
pub mod library;
pub mod private_dir;
mod sanitizer;
pub mod signals;
mod summary;
pub mod target;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{IsTerminal, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use neap_options::SET_BY_RUN;

use crate::args::RunArgs;
use crate::error::{Error, FAILED};
use crate::options::Setting;

use self::child::Program;
use self::private_dir::PrivateDir;
use self::summary::{Style, Summary};

/// The name of the variable by which the dynamic linker is told.
const LD_PRELOAD: &str = "LD_PRELOAD";

/// Runs the command; the result is the program's exit status. Does not return where neap becomes the program
/// or dies by the program's signal.
pub fn run(args: RunArgs) -> Result<u8, Error> {
    let Some(command) = args.command.first() else {
        return Err(Error::failed("no program is given"));
    };
    let counters_set = args.settings.iter().any(|s| s.name == "counters");
    if args.wants_summary() && counters_set {
        return Err(Error::failed("a summary makes a counters directory of its own")
            .remedy("leave out --set counters=..., or the summary"));
    }
    let path = target::resolve(command)?;
    target::inspect(&path)?;
    let output = args.summary_file.as_deref().map(create_summary_file).transpose()?;
    let library = library::place()?;

    let mut settings = args.settings.clone();
    if !args.wants_summary() {
        let program = Program::new(&path, &args.command, environment(&library.path, &settings))?;
        if library.is_temporary() {
            // Somebody must stay to remove the file.
            let ended = child::supervise(&program)?;
            drop(library);
            return Ok(child::end_like(ended.status));
        }
        return Err(program.exec_error(&program.exec()));
    }

    let counters_dir = PrivateDir::create(&private_dir::volatile_bases(), "neap-counters")
        .map_err(|reasons| Error::failed(format!("no directory for the counters: {reasons}")))?;
    settings.push(counters_setting(&counters_dir)?);
    let program = Program::new(&path, &args.command, environment(&library.path, &settings))?;
    let ended = child::supervise(&program)?;
    let report = counters::read(counters_dir.path(), ended.pid);
    let summary = Summary::new(&args.command, &ended, report);
    drop(counters_dir);
    drop(library);
    if let Err(error) = write_summary(&summary, output, args.json, args.summary_file.as_deref()) {
        error.report();
        // The program's own failure is worth more to the caller than ours.
        if ended.status.success() {
            return Ok(FAILED);
        }
    }
    Ok(child::end_like(ended.status))
}

fn create_summary_file(path: &Path) -> Result<File, Error> {
    if path.as_os_str() == "-" {
        return Err(Error::failed("the summary cannot be written to standard output, which is the program's")
            .remedy("leave --summary-file out: standard error gets it; or name a file"));
    }
    File::create(path).map_err(|e| {
        Error::failed(format!("cannot write the summary to {}: {e}", path.display()))
            .remedy("name another file with --summary-file")
    })
}

fn counters_setting(dir: &PrivateDir) -> Result<Setting, Error> {
    let opt = neap_options::Id::Counters.option();
    let value = dir.path().to_str().map(str::to_owned);
    let value = value.ok_or_else(|| Error::failed(format!("{} is not UTF-8", dir.path().display())))?;
    Ok(Setting { name: opt.name, env: opt.env, value })
}

/// neap's own environment with the library first in LD_PRELOAD, and the settings.
pub fn environment(library: &Path, settings: &[Setting]) -> Vec<(OsString, OsString)> {
    let replaced = |name: &OsStr| name == LD_PRELOAD || name == SET_BY_RUN || settings.iter().any(|s| name == s.env);
    let mut env: Vec<_> = std::env::vars_os().filter(|(name, _)| !replaced(name)).collect();
    env.push((LD_PRELOAD.into(), preload_list(library, std::env::var_os(LD_PRELOAD).as_deref())));
    for (i, setting) in settings.iter().enumerate() {
        // The last of several wins, as with shell assignments.
        if !settings[i + 1..].iter().any(|later| later.env == setting.env) {
            env.push((setting.env.into(), setting.value.clone().into()));
        }
    }
    // What an outer `neap run` has set still is.
    let mut names = std::env::var_os(SET_BY_RUN).unwrap_or_default();
    for setting in settings {
        if !names.is_empty() {
            names.push(",");
        }
        names.push(setting.name);
    }
    if !names.is_empty() {
        env.push((SET_BY_RUN.into(), names));
    }
    env
}

/// What a list of libraries to preload names: separated by colons or spaces, as the dynamic linker reads it.
fn preload_entries(list: &OsStr) -> impl Iterator<Item = &[u8]> {
    list.as_bytes().split(|b| matches!(b, b':' | b' ')).filter(|entry| !entry.is_empty())
}

/// The library, then what was preloaded already, without a second mention of the library.
fn preload_list(library: &Path, existing: Option<&OsStr>) -> OsString {
    let library = library.as_os_str().as_bytes();
    let mut list = library.to_vec();
    for entry in preload_entries(existing.unwrap_or_default()).filter(|entry| *entry != library) {
        list.push(b':');
        list.extend_from_slice(entry);
    }
    OsString::from_vec(list)
}

/// Writes the summary to the file, or to standard error.
fn write_summary(summary: &Summary, file: Option<File>, json: bool, path: Option<&Path>) -> Result<(), Error> {
    let stderr = std::io::stderr();
    let colour =
        file.is_none() && stderr.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let text = if json { summary.json() } else { summary.text(Style { colour }) };
    let written = match file {
        Some(mut file) => file.write_all(text.as_bytes()),
        None => stderr.lock().write_all(text.as_bytes()),
    };
    written.map_err(|e| match path {
        Some(path) => Error::failed(format!("cannot write the summary to {}: {e}", path.display())),
        None => Error::failed(format!("cannot write the summary: {e}")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a lost or reordered preload of the user, and a list that grows with every nested `neap run`.
    #[test]
    fn an_existing_preload_is_kept_after_ours() {
        let ours = Path::new("/c/libneap.so");
        assert_eq!(preload_list(ours, None), "/c/libneap.so");
        assert_eq!(preload_list(ours, Some(OsStr::new(""))), "/c/libneap.so");
        assert_eq!(preload_list(ours, Some(OsStr::new("/a.so b.so"))), "/c/libneap.so:/a.so:b.so");
        assert_eq!(preload_list(ours, Some(OsStr::new("/c/libneap.so:/a.so"))), "/c/libneap.so:/a.so");
    }

    /// Catches two values for one variable, of which a program may take either.
    #[test]
    fn the_last_setting_wins() {
        let setting = |value: &str| Setting { name: "foreign", env: "NEAP_FOREIGN", value: value.to_owned() };
        let env = environment(Path::new("/c/libneap.so"), &[setting("pass"), setting("abort")]);
        let values: Vec<_> = env.iter().filter(|(name, _)| name == "NEAP_FOREIGN").map(|(_, v)| v).collect();
        assert_eq!(values, ["abort"]);
        assert_eq!(env.iter().filter(|(name, _)| name == LD_PRELOAD).count(), 1);
    }
}
