//! Real programs under the library: each starts, does real work, and must give the right result.

mod languages;
mod servers;
mod tools;

use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use neap_tests::sys::{self, Signal, TempDir};
use neap_tests::{Case, Finished, Outcome, Run, Stop, library, suite};

fn main() -> ExitCode {
    let mut cases = languages::cases();
    cases.extend(servers::cases());
    cases.extend(tools::cases());
    suite::main(cases)
}

/// Makes a case of a plain function.
fn case(name: &str, catches: &'static str, body: fn() -> Outcome) -> Case {
    Case::new(name, catches, body)
}

/// A folder for one test, which every user may enter; removed at the end.
struct Workspace(TempDir);

impl Workspace {
    fn new() -> Result<Self, Stop> {
        let dir = TempDir::new("neap-test-")?;
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755))?;
        Ok(Workspace(dir))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// Writes `text` into the file `name`, and returns its path.
    fn write(&self, name: &str, text: &str) -> Result<PathBuf, Stop> {
        let path = self.file(name);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        std::fs::write(&path, text)?;
        Ok(path)
    }

    /// A copy of the library that every user may read, for servers that change their user.
    fn public_library(&self) -> Result<Option<PathBuf>, Stop> {
        let Some(path) = library::under_test()?.path() else {
            return Ok(None);
        };
        let copy = self.file(&path.file_name().unwrap_or_default().to_string_lossy());
        std::fs::copy(path, &copy)?;
        std::fs::set_permissions(&copy, PermissionsExt::from_mode(0o755))?;
        Ok(Some(copy))
    }
}

/// A port of the loopback device that is free now and stays free: below those that the kernel gives to clients.
fn free_port() -> Result<u16, Stop> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let next = || 10_000 + (std::process::id() + NUMBER.fetch_add(1, Ordering::Relaxed)) % 20_000;
    let mut ports = std::iter::repeat_with(|| next() as u16).take(1000);
    let free = ports.find(|&port| TcpListener::bind(("127.0.0.1", port)).is_ok());
    free.ok_or_else(|| Stop::Fail("no port from 10000 to 29999 is free".into()))
}

/// Whether a server listens on `port`.
fn answers(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_ok()
}

/// Runs the same command with and without the library; both must succeed with the same output.
fn same_as_plain(make: impl Fn() -> Run) -> Result<Finished, Stop> {
    let plain = make().plain().run()?;
    if !plain.status.success() {
        return Err(Stop::Skip(format!(
            "it fails without the library too: {}",
            plain.stderr.lines().last().unwrap_or_default()
        )));
    }
    let done = make().run()?.success()?.no_complaint()?;
    if done.stdout == plain.stdout {
        Ok(done)
    } else {
        let first = done.stdout.lines().zip(plain.stdout.lines());
        let difference = first.into_iter().find(|(a, b)| a != b);
        Err(done.fail(&format!("output differs from a plain run: {difference:?}")))
    }
}

/// Fails if a process whose command line contains `mark` is left, and kills it.
fn no_leftovers(mark: &Path) -> Outcome {
    let mark = mark.to_string_lossy().into_owned();
    let started = Instant::now();
    loop {
        let left = processes_naming(&mark);
        if left.is_empty() {
            return Ok(());
        }
        if started.elapsed() > Duration::from_secs(30) {
            for pid in &left {
                let _ = sys::kill(*pid, Signal::KILL);
            }
            return Err(Stop::Fail(format!("processes are left behind: {left:?}")));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn processes_naming(mark: &str) -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| {
            let number: u32 = entry.file_name().to_str()?.parse().ok()?;
            let line = std::fs::read(entry.path().join("cmdline")).ok()?;
            let names = String::from_utf8_lossy(&line).contains(mark);
            names.then_some(number)
        })
        .collect()
}
