//! One run of the command.

use crate::args::AdviseArgs;
use crate::family::Family;
use crate::server::{self, Idled};
use neap_account::{Kind, Report};
use neap_launch::child::{self, Ended, Program};
use neap_launch::environment::{LD_PRELOAD, with_library};
use neap_launch::error::Error;
use neap_why::{Exit, Watched};
use serde::Serialize;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};

/// An allocator to run under.
#[derive(Clone, Debug)]
pub struct Under {
    name: String,
    library: Option<PathBuf>,
}

impl Under {
    /// The system's allocator.
    pub fn system() -> Under {
        Under { name: "glibc".to_owned(), library: None }
    }

    /// A preloaded library.
    pub fn preloaded(name: &str, path: &Path) -> Under {
        Under { name: name.to_owned(), library: Some(path.to_owned()) }
    }

    fn environment(&self) -> Vec<(OsString, OsString)> {
        match &self.library {
            Some(path) => with_library(path, &[]),
            None => std::env::vars_os().filter(|(name, _)| name != LD_PRELOAD).collect(),
        }
    }
}

/// The least and the most of the runs under one allocator.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Ranges {
    /// How many runs.
    pub runs: usize,
    /// See [`Run`].
    pub seconds: [f64; 2],
    /// See there.
    pub processor_seconds: [f64; 2],
    /// See there.
    pub peak_bytes: [u64; 2],
    /// See there; of the peak where it is not known.
    pub resident_bytes: [u64; 2],
}

impl Ranges {
    /// The ranges of some runs, of which there is one at least.
    pub fn of(runs: &[Run]) -> Ranges {
        let times = |of: fn(&Run) -> f64| {
            let all = runs.iter().map(of);
            [all.clone().fold(f64::INFINITY, f64::min), all.fold(0.0, f64::max)]
        };
        let amounts = |of: fn(&Run) -> u64| {
            let all = runs.iter().map(of);
            [all.clone().min().unwrap_or(0), all.max().unwrap_or(0)]
        };
        Ranges {
            runs: runs.len(),
            seconds: times(|run| run.seconds),
            processor_seconds: times(|run| run.processor_seconds),
            peak_bytes: amounts(|run| run.peak_bytes),
            resident_bytes: amounts(|run| run.resident_bytes.unwrap_or(run.peak_bytes)),
        }
    }
}

/// What a run cost.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Run {
    /// The allocator.
    pub name: String,
    /// From the start to the end; of a server: until the load was over.
    pub seconds: f64,
    /// Processor time, of the command and the children it waited for.
    pub processor_seconds: f64,
    /// Peak resident memory of its largest process.
    pub peak_bytes: u64,
    /// Resident after idling, or at the end of a command that ends by itself.
    pub resident_bytes: Option<u64>,
    /// How much of that could be given back.
    pub kept_bytes: Option<u64>,
    /// Whether that was after idling.
    pub idled: bool,
    /// A server that did not idle in time.
    pub busy: bool,
    /// Page faults.
    pub page_faults: u64,
    /// Bytes read from disks, because files were not in memory.
    pub read_bytes: u64,
    /// Exit status; none for a server that neap ended.
    pub status: Option<i32>,
    /// The signal that it ended by.
    pub signal: Option<i32>,
    /// Allocators and runtimes that were found in it.
    pub allocators: Vec<String>,
    /// Whether the library was mapped; none if there is no library or it is not known.
    pub loaded: Option<bool>,
    /// From the account: memory of malloc, other memory, and the kind and owner of its largest part.
    #[serde(skip)]
    pub malloc_bytes: u64,
    /// See there.
    #[serde(skip)]
    pub other_bytes: u64,
    /// See there.
    #[serde(skip)]
    pub most: Option<String>,
    /// Peak resident memory of the command itself, without the programs that it started.
    pub own_peak_bytes: Option<u64>,
    /// The other runs under the same allocator, with this one.
    pub ranges: Ranges,
}

/// Runs the command under an allocator.
pub fn run(args: &AdviseArgs, path: &Path, under: &Under, family: &Family) -> Result<Run, Error> {
    let mut program = Program::new(path, &args.command, under.environment())?;
    program.before_exec(redirect);
    let is_server = args.time.is_some() || args.load.is_some();
    let mut attendant = None;
    let (ended, watched, signals) = child::supervise_watched(&program, |pid| {
        if is_server {
            attendant = Some(server::start(args, pid, family)?);
        }
        Ok(Watched::start_unseen(pid))
    })?;
    let (at_end, exit) = watched.end();
    let idled = attendant.map(server::Attendant::finish).transpose();
    family.end();
    signals.release();
    let idled = idled?;
    let run = figures(under, &ended, exit, at_end.as_ref(), idled.as_ref());
    if let Some(Idled { ended_early: true, .. }) = idled {
        return Err(Error::failed(format!("under {} the command ended before it idled ({})", run.name, ending(&run)))
            .remedy("leave out --for and --load for a command that ends by itself"));
    }
    if matches!(run.signal, Some(libc::SIGINT | libc::SIGTERM | libc::SIGHUP | libc::SIGQUIT)) {
        return Err(Error::failed(format!("the command was ended under {} ({})", run.name, ending(&run))));
    }
    if run.name == "glibc" && (run.signal.is_some() || run.status.is_some_and(|status| status != 0)) {
        return Err(Error::failed(format!("the command fails ({})", ending(&run)))
            .remedy("it runs once for each allocator, without input: give a command that works this way"));
    }
    Ok(run)
}

/// How a run ended, in words.
pub fn ending(run: &Run) -> String {
    match (run.status, run.signal) {
        (Some(status), _) => format!("exit status {status}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "ended by neap".to_owned(),
    }
}

/// Runs in the process that becomes the command: empty input, and output to standard error.
fn redirect() -> io::Result<()> {
    // SAFETY: the path is a C string; the descriptors are numbers.
    let done = unsafe {
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        null >= 0
            && libc::dup2(null, libc::STDIN_FILENO) >= 0
            && libc::dup2(libc::STDERR_FILENO, libc::STDOUT_FILENO) >= 0
    };
    if done { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn figures(under: &Under, ended: &Ended, exit: Option<Exit>, at_end: Option<&Report>, idled: Option<&Idled>) -> Run {
    let time = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    let usage = &ended.usage;
    let last = idled.and_then(|idled| idled.report.as_ref()).or(at_end);
    // The kernel stops the command while its account is made, which must not count as its time.
    let alone = exit.map_or(ended.wall, |exit| exit.after);
    let was_ended = idled.is_some_and(|idled| !idled.ended_early);
    let mut run = Run {
        name: under.name.clone(),
        seconds: idled.map_or(alone, |idled| idled.worked).as_secs_f64(),
        processor_seconds: time(usage.ru_utime) + time(usage.ru_stime),
        peak_bytes: u64::try_from(usage.ru_maxrss).unwrap_or(0) * 1024,
        resident_bytes: last.map(|report| report.rss_bytes),
        kept_bytes: last.map(Report::could_go_back),
        idled: was_ended,
        busy: idled.is_some_and(|idled| idled.busy),
        page_faults: u64::try_from(usage.ru_minflt + usage.ru_majflt).unwrap_or(0),
        // ru_inblock counts units of 512 bytes.
        read_bytes: u64::try_from(usage.ru_inblock).unwrap_or(0) * 512,
        status: if was_ended { None } else { ended.status.code() },
        signal: if was_ended { None } else { ended.status.signal() },
        ..Run::default()
    };
    run.own_peak_bytes = exit.map(|exit| exit.peak_bytes);
    if let Some(report) = last {
        run.allocators = report.allocators.clone();
        // Mappings have the canonical path.
        let file = under.library.as_ref().and_then(|path| path.canonicalize().ok());
        run.loaded = file.map(|file| report.accounts.iter().any(|of| Path::new(&of.owner) == file));
        let is_other = |kind: Kind| !kind.is_heap() && !matches!(kind, Kind::File | Kind::Vdso);
        run.malloc_bytes = report.accounts.iter().filter(|of| of.kind.is_heap()).map(|of| of.bytes).sum();
        let others = report.accounts.iter().filter(|of| is_other(of.kind));
        run.other_bytes = others.clone().map(|of| of.bytes).sum();
        run.most = others.max_by_key(|of| of.bytes).map(|of| format!("{}, {}", of.kind.label(), of.owner));
    }
    run
}
