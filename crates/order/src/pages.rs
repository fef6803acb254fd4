//! Which pages of a binary a program touches, through `neap pagein --exact` in a separate process.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::BufReader;
use std::os::fd::AsRawFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use neap_launch::child::{self, Program};
use neap_launch::error::Error;
use neap_launch::output;
use neap_launch::private_dir::{self, PrivateDir, temporary_bases};
use neap_launch::sys;
use neap_trace::format::json;
use neap_trace::{Access, Fault, Subject};

const PAGE: u64 = 4096;

/// What a program touched of a binary.
#[derive(Debug, Default)]
pub struct Touched {
    /// Faults of the program, in all its mappings.
    pub faults: u64,
    /// Touched pages of the binary by file offset, and whether code was executed in them.
    pub pages: BTreeMap<u64, bool>,
    /// Accesses to data of the binary that faulted, in order.
    pub data: Vec<Datum>,
    /// Instructions of the binary that faulted, in the same order.
    pub instructions: Vec<Instruction>,
    /// How the program ended.
    pub status: ExitStatus,
}

/// An instruction of the binary that faulted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// File offset.
    pub offset: u64,
    /// Its process.
    pub process: u32,
    /// Nanoseconds since the first fault of the trace.
    pub at: u64,
}

/// An access to data of the binary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datum {
    /// Link-time address, where there is a symbol.
    pub address: Option<u64>,
    /// File offset.
    pub offset: u64,
    /// Whether it was a write.
    pub write: bool,
}

impl Touched {
    /// Number of pages in which code was executed.
    pub fn code(&self) -> u64 {
        self.pages.values().filter(|&&code| code).count() as u64
    }

    /// Number of pages of which only data was touched.
    pub fn data(&self) -> u64 {
        self.pages.len() as u64 - self.code()
    }
}

/// Runs a program, discarding its output, and returns what it touches of a binary.
pub fn touched(binary: &Path, command: &[OsString]) -> Result<Touched, Error> {
    let failed = |what: &str| Error::failed(format!("cannot count pages: {what}"));
    let (trace, path) = nameless().map_err(|why| failed(&why).remedy(private_dir::REMEDY))?;
    let mut neap = Command::new(NEAP);
    neap.args(arguments(&path, command));
    // Otherwise the traced program would run on when neap is killed.
    let die_with_parent = || {
        sys::die_with_parent();
        Ok(())
    };
    // SAFETY: it makes one system call, as is allowed between fork and exec.
    unsafe { neap.pre_exec(die_with_parent) };
    let output = neap.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).output();
    let output = output.map_err(|e| failed(&e.to_string()))?;
    if !is_written(&trace) {
        let said = String::from_utf8_lossy(&output.stderr);
        let why = said.lines().find_map(|line| line.strip_prefix("neap: ")).unwrap_or("neap pagein left no trace");
        return Err(failed(why));
    }
    read(trace, binary, output.status).map_err(|e| failed(&e))
}

/// Runs a program with the standard files of this process, and returns what it touches of a binary. Its exit status is
/// returned even if the trace fails after the run.
pub fn touched_in_place(binary: &Path, command: &[OsString]) -> Result<(ExitStatus, Result<Touched, Error>), Error> {
    let failed = |what: &str| Error::failed(format!("cannot trace faults: {what}"));
    let (trace, path) = nameless().map_err(|why| failed(&why).remedy(private_dir::REMEDY))?;
    let words: Vec<OsString> = [OsString::from("neap")].into_iter().chain(arguments(&path, command)).collect();
    let program = Program::new(Path::new(NEAP), &words, std::env::vars_os().collect())?;
    let (ended, (), signals) = child::supervise_watched(&program, |_| Ok(()))?;
    signals.release();
    let touched = match is_written(&trace) {
        true => read(trace, binary, ended.status).map_err(|e| failed(&e)),
        false => Err(failed("neap pagein left no trace")),
    };
    Ok((ended.status, touched))
}

/// This program, for a child process.
const NEAP: &str = "/proc/self/exe";

fn arguments(path: &Path, command: &[OsString]) -> Vec<OsString> {
    let words = ["pagein", "--exact", "--format", "json", "-o"].map(OsString::from);
    words.into_iter().chain([path.into(), "--".into()]).chain(command.iter().cloned()).collect()
}

/// A file for a trace, and a path by which another process opens it. It has no name, so nothing is left if a signal ends
/// neap.
fn nameless() -> Result<(File, PathBuf), String> {
    let made = || {
        let folder = PrivateDir::create(&temporary_bases(), "neap-order")?;
        let file = File::options().read(true).write(true).create_new(true).open(folder.path().join("faults.json"));
        file.map_err(|error| error.to_string())
    };
    let file = temporary_bases().iter().find_map(|base| output::nameless(base)).map_or_else(made, Ok)?;
    let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    Ok((file, path.into()))
}

/// Whether another process has written to the file.
fn is_written(file: &File) -> bool {
    file.metadata().is_ok_and(|metadata| metadata.len() > 0)
}

/// What a trace of faults contains about a binary.
fn read(file: File, binary: &Path, status: ExitStatus) -> Result<Touched, String> {
    let mut faults = Vec::new();
    let tables = json::read(BufReader::new(file), &mut |_, fault: &Fault| faults.push(*fault))
        .map_err(|error| error.to_string())?;
    let mut touched = Touched { faults: faults.len() as u64, status, ..Touched::default() };
    for fault in faults {
        let Some(mapping) = fault.mapping.map(|id| &tables.mappings[id]) else { continue };
        let object = mapping.object.map(|id| &tables.objects[id]);
        if object.is_none_or(|object| Path::new(&object.path) != binary) {
            continue;
        }
        let page = (fault.page() - mapping.start.min(fault.page()) + mapping.offset) / PAGE;
        *touched.pages.entry(page).or_default() |= fault.subject == Subject::Code;
        let offset = fault.address.saturating_sub(mapping.start) + mapping.offset;
        match fault.subject {
            Subject::Data => {
                let address = fault.data.map(|id| tables.places[id].address);
                touched.data.push(Datum { address, offset, write: fault.access == Access::Write });
            }
            Subject::Code => {
                let process = tables.processes[tables.threads[fault.thread].process].pid;
                touched.instructions.push(Instruction { offset, process, at: fault.time });
            }
        }
    }
    Ok(touched)
}

/// An exit status as one number: 128 plus the signal, if one ended the program.
pub fn number(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}
