//! `neap profile --heap`, `--allocs` and `--pinned`: which code holds memory, which code allocates, and which code keeps
//! memory from going back to the system, from sampled blocks.

use std::path::PathBuf;
use std::time::Duration;

use neap_launch::child::{self, Attendant, Program};
use neap_launch::environment::with_library;
use neap_launch::error::{Error, FAILED};
use neap_launch::private_dir::{self, PrivateDir};
use neap_launch::{Setting, library, target};
use neap_options::Id;
use neap_pagein::limit::TimeLimit;
use neap_profile::{Profile, Unit, View};
use neap_survey::{Asked, Request, Scope, Snapshot, in_directory, pinned_profile, profile};

use super::args::ProfileArgs;
use super::moment::{Looking, Moment};
use super::written;

/// How long a process is watched unless the user says.
const DURATION: Duration = Duration::from_secs(10);

/// Profiles a program or a process.
pub fn run(args: &ProfileArgs, view: View) -> Result<u8, Error> {
    match args.pid {
        Some(pid) => {
            let output = written::output(&args.written, pid)?;
            let made = of_process(pid, args, view).map_err(|e| Error::failed(format!("process {pid}: {e}")))?;
            write(made, view, args, output)?;
            Ok(0)
        }
        None => of_program(args, view),
    }
}

/// Profiles a process that runs. Growth is that of the second half of the time, or of all of it where the process keeps
/// samples anyway.
fn of_process(pid: u32, args: &ProfileArgs, view: View) -> Result<Profile, neap_survey::Error> {
    let duration = args.duration.unwrap_or(DURATION);
    let mut asked = Asked::ask(neap_process::living(pid), Request { interval: args.interval, duration: duration / 2 })?;
    let first = if asked.kept_before() { asked.snapshot()? } else { None };
    let seen = watch(&mut asked);
    let look = (view == View::Pinned && seen.is_ok()).then(|| asked.look());
    // Also where it failed: the process is not to go on for its lease.
    let ended = asked.end();
    let (middle, last) = seen?;
    let look = look.transpose()?;
    ended?;
    let (earlier, scope) = (first.or(middle), Scope::of(&asked));
    let made = match look {
        Some(look) => pinned_profile(&look, earlier.as_ref(), &scope),
        None => profile(last.as_ref(), earlier.as_ref(), &scope),
    };
    Ok(Profile { pid, ..made })
}

/// Two snapshots: in the middle of the time, and at its end.
fn watch(asked: &mut Asked) -> Result<(Option<Snapshot>, Option<Snapshot>), neap_survey::Error> {
    asked.wait(&mut || false)?;
    let middle = asked.snapshot()?;
    asked.wait(&mut || false)?;
    Ok((middle, asked.snapshot()?))
}

/// Runs a program on neap with samples from its start to its end.
fn of_program(args: &ProfileArgs, view: View) -> Result<u8, Error> {
    let Some(command) = args.command.first() else { return Err(Error::failed("no program is given")) };
    let path = target::resolve(command)?;
    target::inspect(&path)?;
    let library = library::NEAP.place()?;
    let directory = PrivateDir::create(&bases(), "neap-profile").map_err(|reasons| {
        Error::failed(format!("no directory for the samples: {reasons}")).remedy(private_dir::REMEDY)
    })?;
    let named = directory.path().to_str().map(str::to_owned);
    let named = named.ok_or_else(|| Error::failed(format!("{} is not UTF-8", directory.path().display())))?;
    let setting = |id: Id, value| Setting { name: id.option().name, env: id.option().env, value };
    let settings = [setting(Id::Profile, named), setting(Id::ProfileInterval, args.interval.to_string())];
    let program = Program::new(&path, &args.command, with_library(&library.path, &settings))?;
    // Opened before the program runs, so that no result is lost.
    let mut output = None;
    let (ended, watched, _) = child::supervise_watched(&program, |pid| {
        let pid = pid.unsigned_abs();
        output = written::output(&args.written, pid)?;
        let looking = (view == View::Pinned).then(|| Looking::start(pid)).transpose();
        let looking = looking.map_err(|e| Error::failed(format!("cannot start a thread that looks at it: {e}")))?;
        let limit = args.duration.map(|time| TimeLimit::start(pid, time)).transpose()?;
        Ok(Watched { looking, limit })
    })?;
    let over = watched.limit.is_some_and(TimeLimit::finish);
    let moment = watched.looking.map(Looking::end);
    let written = in_directory(directory.path()).map_err(|e| Error::failed(format!("samples: {e}"))).and_then(|all| {
        let mut made = match moment {
            Some(moment) => of_moment(moment, args)?,
            None => of_ended(&all, ended.pid, view, args)?,
        };
        if over {
            made.notes.push("The program got SIGTERM at the end of --duration.".to_owned());
        }
        write(made, view, args, output)
    });
    drop(directory);
    drop(library);
    if let Err(error) = written {
        error.report();
        // The program's own failure is worth more to the caller than ours.
        if ended.status.success() {
            return Ok(FAILED);
        }
    }
    Ok(child::end_like(ended.status))
}

/// What goes on while the program runs.
struct Watched {
    looking: Option<Looking>,
    limit: Option<TimeLimit>,
}

impl Attendant for Watched {}

/// What the files of samples may take: those of a hundred processes. In many containers /dev/shm has 64 MiB.
const ROOM: u64 = 512 << 20;

/// A file on a disk would be written by the system all the time; in memory there has to be room.
fn bases() -> Vec<PathBuf> {
    let mut bases = vec![PathBuf::from("/dev/shm")];
    bases.extend(private_dir::volatile_bases());
    private_dir::roomy_first(bases, ROOM)
}

/// The profile of a program that has ended: of the last one that its process executed.
fn of_ended(all: &[Snapshot], pid: u32, view: View, args: &ProfileArgs) -> Result<Profile, Error> {
    let own: Vec<&Snapshot> = all.iter().filter(|snapshot| snapshot.process() == pid).collect();
    let Some(last) = own.last() else {
        return Err(Error::failed("the program has left no samples")
            .remedy("it may have started others only, or cleared its environment: neap profile --pid, while it runs"));
    };
    let mut made = profile(Some(last), None, &scope(args));
    made.notes.push("Live is what was live when the program ended.".to_owned());
    let none = |name: &str| made.column(name).is_some_and(|column| made.total(column) == 0);
    if none("alloc_space") {
        made.notes.push(
            "No block was sampled: the program took less from neap than --interval, or all from another malloc that \
             replaces neap's (as valgrind's does)."
                .to_owned(),
        );
    } else if view == View::Heap && none(&view.main().name) {
        made.notes.push(
            "No block was live at the end: --allocs also shows freed blocks, --pid reads a program that runs."
                .to_owned(),
        );
    }
    if all.len() > 1 {
        made.notes.push(format!("{} other processes and programs that it started are not in it.", all.len() - 1));
    }
    Ok(made)
}

/// The profile of the moment at which most was pinned.
fn of_moment(moment: Moment, args: &ProfileArgs) -> Result<Profile, Error> {
    let Some(look) = moment.look else {
        let why = moment.error.map_or("it ended too soon, or took no sample".to_owned(), |error| error.to_string());
        return Err(Error::failed(format!("the program's heap was not seen: {why}"))
            .remedy("a smaller --interval takes more samples; neap profile --heap needs no look while it runs"));
    };
    let mut made = pinned_profile(&look, None, &scope(args));
    let after = neap_profile::amount(i64::try_from(made.duration).unwrap_or(i64::MAX), &Unit::Nanoseconds);
    made.notes
        .push(format!("The moment, of {} that were looked at, at which most was pinned: after {after}.", moment.looks));
    Ok(made)
}

/// What is known of the program.
fn scope(args: &ProfileArgs) -> Scope {
    let command = args.command.iter().map(|argument| argument.to_string_lossy().into_owned()).collect();
    Scope { command, ..Scope::default() }
}

fn write(
    mut made: Profile,
    view: View,
    args: &ProfileArgs,
    output: Option<neap_launch::output::Output>,
) -> Result<(), Error> {
    made.shown = made.column(&view.main().name).unwrap_or(made.shown);
    written::write(&made, made.shown, &args.written, output)
}
