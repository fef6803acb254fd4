//! Starts the program: in place of neap, or as a child that neap waits for.

use std::ffi::{CStr, CString, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::ptr;
use std::time::{Duration, Instant};

use libc::{c_char, c_int, pid_t};

use crate::error::{Error, system_message};
use crate::signals::{self, Inherited};
use crate::sys;
use crate::target;

/// A program, its arguments and its environment, ready for execve.
pub struct Program {
    path: PathBuf,
    c_path: CString,
    arguments: CStrings,
    environment: CStrings,
    before_exec: Option<fn() -> io::Result<()>>,
}

impl Program {
    /// Converts everything to the form that execve requires. `arguments` begins with the program's name as the user
    /// gave it.
    pub fn new(path: &Path, arguments: &[OsString], env: Vec<(OsString, OsString)>) -> Result<Self, Error> {
        let assignments = env.into_iter().map(|(name, value)| {
            let mut bytes = name.into_vec();
            bytes.push(b'=');
            bytes.extend_from_slice(&value.into_vec());
            bytes
        });
        Ok(Self {
            path: path.to_owned(),
            c_path: c_string(path.as_os_str().to_owned().into_vec())?,
            arguments: CStrings::new(arguments.iter().cloned().map(OsString::into_vec))?,
            environment: CStrings::new(assignments)?,
            before_exec: None,
        })
    }

    /// Makes the process call `what` before it becomes the program, with system calls only: at once, while neap makes
    /// its own preparations.
    pub fn before_exec(&mut self, what: fn() -> io::Result<()>) {
        self.before_exec = Some(what);
    }

    /// The number of OS pages that the kernel fills with the path, the arguments and the environment when it executes
    /// the program. It gets them without a trap. (A script's interpreter adds some bytes.)
    pub fn argument_pages(&self) -> u64 {
        // They end one pointer below the end of the stack, which is an OS page border.
        let lists = self.arguments.bytes() + self.environment.bytes();
        let bytes = size_of::<usize>() + self.c_path.as_bytes_with_nul().len() + lists;
        bytes.div_ceil(sys::page_size()) as u64
    }

    /// Becomes the program. Returns only on failure, with the reason.
    pub fn exec(&self) -> io::Error {
        self.exec_at(&self.c_path)
    }

    fn exec_at(&self, path: &CStr) -> io::Error {
        // SAFETY: the path is a C string, and both lists are null-terminated arrays of C strings that live as
        // long as `self` (the invariant of `CStrings`).
        unsafe { libc::execve(path.as_ptr(), self.arguments.as_ptr(), self.environment.as_ptr()) };
        io::Error::last_os_error()
    }

    /// The error for a failed [`exec`](Self::exec).
    pub fn exec_error(&self, error: &io::Error) -> Error {
        let cause = format!("cannot run {}: {}", self.path.display(), system_message(error));
        match error.raw_os_error() {
            // The kernel's message does not say what is missing.
            Some(libc::ENOENT | libc::ENOEXEC | libc::ELOOP) if let Some(error) = target::obstacle(&self.path) => error,
            Some(libc::ENOENT) => Error::not_found(cause),
            Some(libc::E2BIG) => Error::cannot_run(cause).remedy("shorten the arguments or the environment"),
            _ => Error::cannot_run(cause),
        }
    }
}

/// A list of C strings for execve. Invariant: `pointers` are those of `owners`, in order, then one null.
struct CStrings {
    owners: Vec<CString>,
    pointers: Vec<*const c_char>,
}

impl CStrings {
    fn new(strings: impl Iterator<Item = Vec<u8>>) -> Result<Self, Error> {
        let owners = strings.map(c_string).collect::<Result<Vec<_>, _>>()?;
        let pointers = owners.iter().map(|s| s.as_ptr()).chain([ptr::null()]).collect();
        Ok(Self { owners, pointers })
    }

    /// The bytes of all strings, including their terminators.
    fn bytes(&self) -> usize {
        self.owners.iter().map(|string| string.as_bytes_with_nul().len()).sum()
    }

    fn as_ptr(&self) -> *const *const c_char {
        self.pointers.as_ptr()
    }
}

fn c_string(bytes: Vec<u8>) -> Result<CString, Error> {
    CString::new(bytes).map_err(|_| Error::failed("an argument contains a null byte"))
}

/// How the program ended, and what it cost.
pub struct Ended {
    /// Its process.
    pub pid: u32,
    /// Its exit status.
    pub status: ExitStatus,
    /// From just before the fork to the end of the wait.
    pub wall: Duration,
    /// For the program and the children that it waited for.
    pub usage: libc::rusage,
    /// Page faults of its process before it executed the program; `usage` contains them.
    pub faults_before_exec: u64,
    /// See [`Program::argument_pages`]; `usage` contains them.
    pub argument_pages: u64,
}

/// The result of `wait4`.
pub type Status = (c_int, libc::rusage);

/// A tool that works on the program while it runs.
pub trait Attendant {
    /// The program's next status: it stopped, continued, or ended; `None` when nothing has happened yet.
    fn wait(&mut self, pid: pid_t) -> io::Result<Option<Status>> {
        wait_for(pid, libc::WNOHANG | libc::WUNTRACED | libc::WCONTINUED)
    }
}

/// Only waits.
impl Attendant for () {}

/// Runs the program as a child: passes signals on, stops and continues with it, and waits for its end.
pub fn supervise(program: &Program) -> Result<Ended, Error> {
    supervise_watched(program, |_| Ok(())).map(|(ended, (), _)| ended)
}

/// The same with preparations before the process becomes the program: it waits until `prepare`, which gets its pid,
/// returns. If `prepare` fails, the program is not started; if the program cannot be executed, the result of `prepare`
/// is dropped. Signals stay blocked, also after the program's end, until they are released.
pub fn supervise_watched<T: Attendant>(
    program: &Program,
    prepare: impl FnOnce(pid_t) -> Result<T, Error>,
) -> Result<(Ended, T, Inherited), Error> {
    let failed = |what: &str| Error::failed(format!("{what}: {}", system_message(&io::Error::last_os_error())));
    let (read_end, write_end) = pipe().ok_or_else(|| failed("cannot make a pipe"))?;
    let (gate, opener) = pipe().ok_or_else(|| failed("cannot make a pipe"))?;
    let inherited = signals::block();
    let started = Instant::now();
    // SAFETY: neap has one thread, so the child may run any code.
    let pid = unsafe { libc::fork() };
    if pid < 0 {
        let error = failed("cannot start a process");
        inherited.restore();
        return Err(error);
    }
    if pid == 0 {
        drop(opener);
        become_program(program, &inherited, &write_end, gate);
    }
    drop((write_end, gate));
    let give_up = |error| {
        let _ = wait_for(pid, 0);
        inherited.restore();
        error
    };
    let mut prepared = match prepare(pid) {
        Ok(prepared) => prepared,
        Err(error) => {
            // The child finds the gate closed, and ends.
            drop(opener);
            return Err(give_up(error));
        }
    };
    // It may have been killed already; then there is nothing to report.
    let _ = File::from(opener).write_all(&[1]);
    let mut watch = Watch { pid, stopped: false, ended: None };
    let no_wait = |e: io::Error| Error::failed(format!("cannot wait for the program: {e}"));
    let (faults, failure) = exec_report(read_end, &mut watch, &mut prepared).map_err(no_wait)?;
    if let Some(error) = failure {
        // While signals are still blocked: preparations may have to be undone.
        drop(prepared);
        return Err(give_up(program.exec_error(&error)));
    }
    let (status, usage) = watch.supervise(&mut prepared).map_err(no_wait)?;
    let ended = Ended {
        pid: pid.unsigned_abs(),
        status: ExitStatus::from_raw(status),
        wall: started.elapsed(),
        usage,
        faults_before_exec: faults,
        argument_pages: program.argument_pages(),
    };
    Ok((ended, prepared, inherited))
}

/// A pipe that closes on exec: end of file means that exec succeeded.
fn pipe() -> Option<(OwnedFd, OwnedFd)> {
    let mut ends: [c_int; 2] = [-1; 2];
    // SAFETY: the array has room for the two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return None;
    }
    // SAFETY: pipe2 succeeded, so both descriptors are open, and have no other owner.
    unsafe { Some((OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))) }
}

/// The child's side of the fork.
fn become_program(program: &Program, inherited: &Inherited, report: &OwnedFd, gate: OwnedFd) -> ! {
    // If neap is killed, the program would run on without a process that waits for it. The signal is not inherited by
    // the program's children; a program that changes its identity loses it too.
    sys::die_with_parent();
    inherited.restore();
    let prepared = program.before_exec.map_or(Ok(()), |prepare| prepare());
    let opened = matches!(File::from(gate).read(&mut [0]), Ok(1));
    let mut errno = libc::ECANCELED.to_ne_bytes();
    if opened {
        // First with an empty path, which fails at once and writes nothing: then all needed code is mapped, and its
        // faults are counted.
        for (path, length) in [(c"", 0), (&*program.c_path, size_of::<u64>())] {
            let faults = sys::faults_of_this_process().to_ne_bytes();
            // SAFETY: the buffer is valid for that length.
            unsafe { libc::write(report.as_raw_fd(), faults.as_ptr().cast(), length) };
            let number = match &prepared {
                Ok(()) => program.exec_at(path).raw_os_error(),
                Err(error) => error.raw_os_error(),
            };
            errno = number.unwrap_or(libc::EIO).to_ne_bytes();
        }
    }
    // SAFETY: the buffer is valid for its length; _exit takes no pointers and runs no handlers of the parent.
    unsafe {
        libc::write(report.as_raw_fd(), errno.as_ptr().cast(), errno.len());
        libc::_exit(127)
    }
}

/// The child's report before it becomes the program: its page faults so far, and the error if exec failed. A signal may
/// stop a traced child, which continues only if the attendant handles it.
fn exec_report(
    report: OwnedFd,
    watch: &mut Watch,
    attendant: &mut dyn Attendant,
) -> io::Result<(u64, Option<io::Error>)> {
    let mut report = File::from(report);
    let mut bytes = Vec::with_capacity(16);
    loop {
        let mut asked = [libc::pollfd { fd: report.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
        sys::poll(&mut asked, Duration::from_millis(1))?;
        if asked[0].revents == 0 {
            watch.look(attendant)?;
            continue;
        }
        let mut piece = [0; 16];
        match report.read(&mut piece)? {
            0 => break,
            read => bytes.extend_from_slice(&piece[..read]),
        }
    }
    let faults = bytes.first_chunk().map_or(0, |faults| u64::from_ne_bytes(*faults));
    let errno = bytes.get(size_of::<u64>()..).and_then(|rest| rest.first_chunk());
    Ok((faults, errno.map(|number| io::Error::from_raw_os_error(i32::from_ne_bytes(*number)))))
}

/// The state of the program while neap waits for its end.
struct Watch {
    pid: pid_t,
    stopped: bool,
    /// How it ended, and its usage.
    ended: Option<Status>,
}

impl Watch {
    /// Handles what has happened to the program.
    fn look(&mut self, attendant: &mut dyn Attendant) -> io::Result<()> {
        while self.ended.is_none()
            && let Some((status, usage)) = attendant.wait(self.pid)?
        {
            if libc::WIFSTOPPED(status) {
                self.stopped = true;
                // The shell that waits for neap sees the job stop, and continues all of it.
                signals::suffer(libc::WSTOPSIG(status));
            } else if libc::WIFCONTINUED(status) {
                self.stopped = false;
            } else {
                self.ended = Some((status, usage));
            }
        }
        Ok(())
    }

    /// Handles signals until the program has ended; returns its wait status and usage.
    fn supervise(mut self, attendant: &mut dyn Attendant) -> io::Result<Status> {
        let session_leader = sys::is_session_leader();
        loop {
            if let Some(ended) = self.ended {
                return Ok(ended);
            }
            let received = signals::wait()?;
            // Checks the program first: a stop or an end that has already happened determines what a signal means.
            self.look(attendant)?;
            match received.number {
                _ if self.ended.is_some() => {}
                libc::SIGCHLD => {}
                // Usually neap is continued together with the program; alone, if only neap got the signal.
                libc::SIGCONT if !self.stopped => {}
                libc::SIGCONT => signals::send(self.pid, libc::SIGCONT),
                number if received.must_be_passed_on(self.pid, session_leader) => signals::send(self.pid, number),
                _ => {}
            }
        }
    }
}

/// wait4: the status and usage, or `None` when nothing has happened yet.
fn wait_for(pid: pid_t, flags: c_int) -> io::Result<Option<Status>> {
    let mut status: c_int = 0;
    // SAFETY: rusage is a plain structure of integers, for which zero is a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    loop {
        // SAFETY: both pointers are valid for the call.
        let waited = unsafe { libc::wait4(pid, &mut status, flags, &mut usage) };
        if waited > 0 {
            return Ok(Some((status, usage)));
        }
        if waited == 0 {
            return Ok(None);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Ends neap like the program: with the same exit status, or by the same signal without a second core dump. Returns the
/// exit status.
pub fn end_like(status: ExitStatus) -> u8 {
    if let Some(code) = status.code() {
        return code as u8;
    }
    let number = status.signal().unwrap_or(0);
    sys::leave_no_core();
    signals::suffer(number);
    // Reached only if the signal did not end neap (its default effect is not death): the status that a shell would
    // show.
    (128 + number) as u8
}
