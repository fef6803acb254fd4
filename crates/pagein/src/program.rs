//! Runs a program and traces it.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use neap_launch::child::{self, Attendant, Program, Status};
use neap_launch::error::{Error, FAILED};
use neap_launch::library::{self, Placed};
use neap_launch::private_dir::{self, PrivateDir, volatile_bases};
use neap_launch::{Setting, environment, target};
use neap_options::Id;

use crate::args::PageinArgs;
use crate::exact::{self, Exact};
use crate::footer;
use crate::limit::TimeLimit;
use crate::output;
use crate::watch::{Watcher, finish, watch};
use neap_launch::output::Output;

/// A program that runs and is traced.
struct Launched {
    /// Opened before the program runs, so that no result is lost.
    output: Output,
    watcher: Watcher,
    exact: Option<Exact>,
    limit: Option<TimeLimit>,
}

impl Attendant for Launched {
    fn wait(&mut self, pid: i32) -> io::Result<Option<Status>> {
        match &mut self.exact {
            Some(exact) => exact.wait(self.watcher.scanner()),
            None => self.watcher.wait(pid),
        }
    }
}

/// Runs a program and traces it.
pub fn run(args: &PageinArgs) -> Result<u8, Error> {
    let Some(command) = args.command.first() else { return Err(Error::failed("no program is given")) };
    let path = target::resolve(command)?;
    traceable(&path, "pagein")?;
    let recorded = args.sites.map(|interval| Recorded::new(&path, interval)).transpose()?;
    let environment = recorded.as_ref().map_or_else(|| std::env::vars_os().collect(), Recorded::environment);
    let mut program = Program::new(&path, &args.command, environment)?;
    if args.exact {
        program.before_exec(exact::install);
    }
    let (ended, launched, signals) = child::supervise_watched(&program, |pid| {
        let output = output::create(args, pid.unsigned_abs())?;
        let limit = args.duration.map(|time| TimeLimit::start(pid.unsigned_abs(), time)).transpose()?;
        let exact = args.exact.then(|| Exact::start(pid)).transpose()?;
        let directory = recorded.as_ref().map(|recorded| recorded.directory.path().as_os_str());
        Ok(Launched { output, watcher: watch(args, pid, directory)?, exact, limit })
    })?;
    let Launched { mut output, watcher, exact, limit } = launched;
    let over = limit.is_some_and(TimeLimit::finish);
    let inexact = exact.as_ref().map(Exact::inexact);
    let watched = watcher.finish();
    drop(recorded);
    // From here on neap can be interrupted: finding symbols and writing may take long.
    signals.release();
    let finished = finish(args, watched, &mut output, |tables, facts, store| {
        footer::of_program(tables, facts, &args.command, &ended, store);
        footer::exact(tables, inexact);
        if let Some(time) = args.duration.filter(|_| over) {
            footer::ended_by_limit(tables, time);
        }
    });
    match finished {
        Ok(()) => Ok(child::end_like(ended.status)),
        Err(error) => after(&ended, error),
    }
}

/// Whether the kernel permits this user to trace the program; otherwise an error that names the command.
pub fn traceable(path: &Path, command: &str) -> Result<(), Error> {
    let Some(why) = target::secure_execution(path).or_else(|| unreadable(path)) else { return Ok(()) };
    let cause =
        format!("cannot trace {}: {why}, and the kernel ends a trace when such a program starts", path.display());
    Err(Error::cannot_run(cause).remedy(format!("trace it as that user: sudo neap {command} -- PROGRAM")))
}

/// Why the kernel would not permit this user to trace the program, if so.
fn unreadable(path: &Path) -> Option<String> {
    let error = File::open(path).err()?;
    (error.kind() == io::ErrorKind::PermissionDenied).then(|| "it may be executed, but not read".to_owned())
}

/// A program on neap that records its allocations.
struct Recorded {
    library: Placed,
    directory: PrivateDir,
    settings: [Setting; 2],
}

impl Recorded {
    fn new(program: &Path, interval: u64) -> Result<Self, Error> {
        target::inspect(program)?;
        // A file on disk would have faults of its own whenever the system writes it.
        let mut bases = vec![PathBuf::from("/dev/shm")];
        bases.extend(volatile_bases());
        let directory = PrivateDir::create(&bases, "neap-sites").map_err(|reasons| {
            Error::failed(format!("no directory for the allocation sites: {reasons}")).remedy(private_dir::REMEDY)
        })?;
        let path = directory.path().to_str().map(str::to_owned);
        let path = path.ok_or_else(|| Error::failed(format!("{} is not UTF-8", directory.path().display())))?;
        let setting = |id: Id, value| Setting { name: id.option().name, env: id.option().env, value };
        let settings = [setting(Id::Sites, path), setting(Id::SitesInterval, interval.to_string())];
        Ok(Self { library: library::NEAP.place()?, directory, settings })
    }

    fn environment(&self) -> Vec<(OsString, OsString)> {
        environment::with_library(&self.library.path, &self.settings)
    }
}

/// neap failed after the program had ended: the program's own failure is worth more to the caller than neap's.
fn after(ended: &child::Ended, error: Error) -> Result<u8, Error> {
    error.report();
    if ended.status.success() { Ok(FAILED) } else { Ok(child::end_like(ended.status)) }
}
