//! Libraries of allocators as Debian ships them, each in a system of its release; and the programs that hold memory.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Mutex;

use neap_tests::command::neap_release;
use neap_tests::{Stop, package_dir, system};
use serde_json::Value;

/// A build of an allocator: a package of a release of Debian, and the library in it.
#[derive(Debug)]
pub struct Build {
    /// What `neap why` calls it, without its version.
    pub allocator: &'static str,
    release: &'static Release,
    package: &'static str,
    /// What is preloaded; empty for the C library's own.
    library: &'static str,
}

/// A release of Debian.
#[derive(Debug)]
struct Release {
    name: &'static str,
    words: &'static str,
    /// The packages that it gets.
    packages: &'static str,
}

static BOOKWORM: Release = Release {
    name: "bookworm",
    words: "Debian 12",
    packages: "--include=gcc,libc6-dev,libjemalloc2,libmimalloc2.0,libtcmalloc-minimal4",
};
const NEWER: &str = "--include=gcc,libc6-dev,libjemalloc2,libmimalloc3,libtcmalloc-minimal4t64";
static TRIXIE: Release = Release { name: "trixie", words: "Debian 13", packages: NEWER };
static SID: Release = Release { name: "sid", words: "Debian sid", packages: NEWER };

const fn build(
    allocator: &'static str,
    release: &'static Release,
    package: &'static str,
    library: &'static str,
) -> Build {
    Build { allocator, release, package, library }
}

/// All of them.
#[rustfmt::skip]
pub static BUILDS: [Build; 12] = [
    build("glibc", &BOOKWORM, "libc6", ""),
    build("glibc", &TRIXIE, "libc6", ""),
    build("glibc", &SID, "libc6", ""),
    build("jemalloc", &BOOKWORM, "libjemalloc2", "libjemalloc.so.2"),
    build("jemalloc", &TRIXIE, "libjemalloc2", "libjemalloc.so.2"),
    build("jemalloc", &SID, "libjemalloc2", "libjemalloc.so.2"),
    build("mimalloc", &BOOKWORM, "libmimalloc2.0", "libmimalloc.so.2"),
    build("mimalloc", &TRIXIE, "libmimalloc3", "libmimalloc.so.3"),
    build("mimalloc", &SID, "libmimalloc3", "libmimalloc.so.3"),
    build("tcmalloc", &BOOKWORM, "libtcmalloc-minimal4", "libtcmalloc_minimal.so.4"),
    build("tcmalloc", &TRIXIE, "libtcmalloc-minimal4t64", "libtcmalloc_minimal.so.4"),
    build("tcmalloc", &SID, "libtcmalloc-minimal4t64", "libtcmalloc_minimal.so.4"),
];

impl Build {
    fn root(&self) -> Result<PathBuf, Stop> {
        // Two tests would make it at the same time.
        static ONE: Mutex<()> = Mutex::new(());
        let _one = ONE.lock();
        let release = self.release;
        system::made(&format!("builds-{}", release.name), &[release.packages, release.name], |_| Ok(()))
    }

    fn inside(&self) -> Result<Command, Stop> {
        let mut command = Command::new("chroot");
        command.arg(self.root()?);
        Ok(command)
    }

    /// `jemalloc 5.3.0-3 (Debian 13)`.
    pub fn name(&self) -> Result<String, Stop> {
        let done = self.inside()?.args(["dpkg-query", "-W", "-f", "${Version}", self.package]).output()?;
        Ok(format!("{} {} ({})", self.allocator, String::from_utf8_lossy(&done.stdout), self.release.words))
    }

    /// A program of this folder, compiled in its system, with the library preloaded.
    pub fn program(&self, source: &str, arguments: &[&str], environment: &[&str]) -> Result<Command, Stop> {
        static ONE: Mutex<()> = Mutex::new(());
        let _one = ONE.lock();
        let (root, place) = (self.root()?, format!("/tmp/{source}-{}", std::process::id()));
        if !root.join(&place[1..]).exists() {
            std::fs::copy(package_dir().join("builds").join(source), root.join("tmp").join(source))?;
            let flags = ["gcc", "-O1", "-D_GNU_SOURCE", "-fno-builtin", "-pthread", "-o", &place];
            let done = self.inside()?.args(flags).arg(format!("/tmp/{source}")).output()?;
            if !done.status.success() {
                return Err(Stop::Fail(String::from_utf8_lossy(&done.stderr).into_owned()));
            }
        }
        let mut command = self.inside()?;
        command.arg("env").args(environment);
        if !self.library.is_empty() {
            command.arg(format!("LD_PRELOAD={}", self.library));
        }
        command.arg(place).args(arguments);
        Ok(command)
    }
}

/// A program that has printed "ready".
pub struct Running {
    child: Child,
    output: BufReader<ChildStdout>,
    /// What it printed before.
    pub said: String,
}

impl Running {
    /// Starts it.
    pub fn start(command: &mut Command) -> Result<Self, Stop> {
        let command = command.env_remove("LD_PRELOAD").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let output = child.stdout.take().ok_or_else(|| Stop::Fail("no output".into()))?;
        let mut running = Running { child, output: BufReader::new(output), said: String::new() };
        running.wait()?;
        Ok(running)
    }

    fn wait(&mut self) -> Result<(), Stop> {
        loop {
            let before = self.said.len();
            if self.output.read_line(&mut self.said)? == 0 {
                return Err(Stop::Fail(format!("the program ended: {}", self.said)));
            }
            if self.said[before..].contains("ready") {
                return Ok(());
            }
        }
    }

    /// Sends it a line, and waits until it is ready again.
    pub fn ask(&mut self) -> Result<(), Stop> {
        let input = self.child.stdin.as_mut().ok_or_else(|| Stop::Fail("no input".into()))?;
        input.write_all(b"t\n")?;
        self.wait()
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its Rss in bytes.
    pub fn rss(&self) -> Result<u64, Stop> {
        let text = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", self.pid()))?;
        let line = text.lines().find_map(|line| line.strip_prefix("Rss:"));
        let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
        Ok(kib.ok_or_else(|| Stop::Fail(text.clone()))? << 10)
    }

    /// What `neap why` says of it. On a machine with other load a reading may be cut short: then it is repeated.
    pub fn account(&self) -> Result<Value, Stop> {
        for _ in 0..5 {
            let done = Command::new(neap_release()?).args(["why", "--json", &self.pid().to_string()]).output()?;
            let account: Value = serde_json::from_slice(&done.stdout)
                .map_err(|error| Stop::Fail(format!("{error}: {}", String::from_utf8_lossy(&done.stderr))))?;
            if !account["notes"].to_string().contains("cut short") {
                return Ok(account);
            }
        }
        Err(Stop::Skip("each reading was cut short".into()))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A Python with packages, made on first use and kept in `target/systems`.
pub fn python(packages: &[&str]) -> Result<PathBuf, Stop> {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock();
    let folder = neap_tests::target_dir().join("systems").join(format!("python-{}", packages.join("-")));
    let python = folder.join("bin/python");
    if !python.exists() {
        let done = Command::new(neap_tests::program("python3")?).args(["-m", "venv"]).arg(&folder).output()?;
        installed("venv", &done, &folder)?;
        let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
        installed("pip", &Command::new(&python).args(pip).args(packages).output()?, &folder)?;
    }
    Ok(python)
}

/// Skips the test where a registry cannot be reached; the next one tries again.
pub fn installed(tool: &str, done: &std::process::Output, folder: &Path) -> Result<(), Stop> {
    if done.status.success() {
        return Ok(());
    }
    let _ = std::fs::remove_dir_all(folder);
    Err(Stop::Skip(format!("{tool}: {}", system::tail(done))))
}
