//! tls-chunks: a virtual environment with requests and pyOpenSSL, a local HTTPS server, and a client that is measured.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Result;

use super::launch::Launcher;
use crate::interrupt::{self, Guarded, Interrupted};
use crate::outcome::Outcome;
use crate::place::Place;
use crate::scratch::Scratch;
use crate::sources::{TLS_CLIENT, TLS_SERVER, write_below};
use crate::toolchain::find_program;

/// The Python packages that the client and the server need.
const PACKAGES: [&str; 4] = ["requests", "pyOpenSSL", "cffi", "cryptography"];
/// Time limit of the server's start: it makes its certificate and listens.
const SERVER_PATIENCE: Duration = Duration::from_secs(20);
/// Time limit of an installation. It takes seconds; if the network hangs, pip would try for minutes.
const INSTALL_LIMIT: Duration = Duration::from_secs(120);

/// The server, or why there is none.
pub struct Service(Result<Running, String>);

/// The server and what a client needs.
struct Running {
    /// Ended with this value, before the folder is removed.
    _server: Guarded,
    python: PathBuf,
    client: PathBuf,
    folder: Scratch,
    /// Versions of Python and of all packages.
    versions: String,
}

impl Service {
    /// A note for the report.
    pub fn note(&self) -> Option<String> {
        self.0.as_ref().ok().map(|running| format!("The client: {}.", running.versions))
    }
}

/// Downloads in chunks of `chunk` bytes, for `seconds`, under one allocator.
pub fn run(
    service: &mut Option<Service>,
    place: &Place,
    launcher: &Launcher,
    variables: &[String],
    (chunk, seconds): (u64, f64),
    timeout: Duration,
) -> Result<Outcome> {
    if service.is_none() {
        *service = Some(start(place)?);
    }
    let Some(Service(Ok(running))) = service else {
        let reason = service.as_ref().and_then(|service| service.0.as_ref().err());
        return Ok(Outcome::skipped(reason.map_or("no server", String::as_str)));
    };
    let mut command: Vec<OsString> = vec![running.python.clone().into(), running.client.clone().into()];
    command.push(running.folder.path().into());
    command.extend([chunk.to_string().into(), seconds.to_string().into()]);
    launcher.measure(variables, &command, timeout)
}

/// Makes the environment and starts the server. Only an interruption is an error; other failures are kept as the
/// reason.
fn start(place: &Place) -> Result<Service> {
    match try_start(place) {
        Ok(running) => Ok(Service(Ok(running))),
        Err(error) if error.is::<Interrupted>() => Err(error),
        Err(error) => Ok(Service(Err(format!("{error:#}").lines().next().unwrap_or_default().to_owned()))),
    }
}

fn try_start(place: &Place) -> Result<Running> {
    let python = environment(place)?;
    let sources = place.cache.join("sources");
    let server_script = write_below(&sources, &TLS_SERVER)?;
    let client = write_below(&sources, &TLS_CLIENT)?;
    let asked = interrupt::output(Command::new(&python).arg(&client).arg("--versions").env_remove("LD_PRELOAD"), None)?;
    let versions = asked.stdout.trim().to_owned();
    let folder = Scratch::new("tls")?;
    let mut command = Command::new(&python);
    command.arg(server_script).arg(folder.path());
    let mut server = Guarded::start(command.stdout(Stdio::null()).stderr(Stdio::null()))?;
    let begun = std::time::Instant::now();
    while !folder.join("port").exists() {
        if server.status()?.is_some() || begun.elapsed() > SERVER_PATIENCE {
            anyhow::bail!("the local HTTPS server does not start");
        }
        interrupt::sleep(Duration::from_millis(20))?;
    }
    Ok(Running { _server: server, python, client, folder, versions })
}

/// The Python of a virtual environment that has the packages; made on first use.
fn environment(place: &Place) -> Result<PathBuf> {
    let dir = place.cache.join("tls-environment");
    let python = dir.join("bin/python");
    if has_packages(&python)? {
        return Ok(python);
    }
    let Some(system) = find_program("python3") else {
        anyhow::bail!("python3 is not installed (Debian: apt install python3-venv)");
    };
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&place.cache)?;
    let step = |command: &mut Command, what: &str| -> Result<()> {
        let out = interrupt::output(command, Some(INSTALL_LIMIT))?;
        if out.status.is_some_and(|status| status.success()) {
            return Ok(());
        }
        let _ = fs::remove_dir_all(&dir);
        let last = out.stderr.lines().rfind(|line| line.to_lowercase().contains("error")).unwrap_or_default();
        anyhow::bail!("{what}: {}", last.trim())
    };
    step(
        Command::new(system).args(["-m", "venv"]).arg(&dir),
        "no virtual environment could be made (Debian: apt install python3-venv)",
    )?;
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "1", "--timeout", "15"]);
    step(pip.args(PACKAGES), "pip cannot install requests and pyOpenSSL (offline?)")?;
    Ok(python)
}

fn has_packages(python: &Path) -> Result<bool> {
    if !python.exists() {
        return Ok(false);
    }
    let import = "import requests, OpenSSL, cffi, cryptography, urllib3.contrib.pyopenssl";
    let out = interrupt::output(Command::new(python).args(["-c", import]), None)?;
    Ok(out.status.is_some_and(|status| status.success()))
}
