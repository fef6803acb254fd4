//! redis-server under redis-benchmark: page faults of a steady load, and RSS after it.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::launch::{end_text, refused};
use crate::allocators::Allocator;
use crate::interrupt::{Guarded, Interrupted, TimedOut, run_within, sleep};
use crate::outcome::{Metric, Outcome};
use crate::scratch::Scratch;
use crate::toolchain::find_program;

/// Time limit of the server's first answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// The file with its standard error, which may have errors of the dynamic linker.
const COMPLAINTS: &str = "complaints";
/// Distinct keys, and distinct fields of the hash.
const KEYS: &str = "100000";
/// Bytes of a value.
const VALUE_BYTES: &str = "512";
/// The load, which is repeated: requests of each kind.
const LOAD: [&str; 4] = ["-t", "set,get,lpush,lpop,sadd,spop,hset", "-n", "20000"];
/// Creates the keys before the load, so that it is steady.
const FILL: [&str; 6] = ["-t", "set,hset", "-n", "400000", "-P", "16"];
/// The length of lists and sets varies with time, so they are dropped before RSS is read.
const TRANSIENT: [&str; 2] = ["mylist", "myset"];

/// Runs redis-server under `allocator` with a load after a warm-up, and measures it.
pub fn run_load(allocator: &Allocator, times: (Duration, Duration), timeout: Duration) -> Result<Outcome> {
    for program in ["redis-server", "redis-benchmark", "redis-cli"] {
        if find_program(program).is_none() {
            return Ok(Outcome::skipped(format!("{program} is not installed (Debian: apt install redis)")));
        }
    }
    let mut server = Server::start(allocator, Instant::now() + timeout)?;
    let measured = match server.answers()? {
        true => measure(&server, times),
        false => Err(TimedOut.into()),
    };
    if let Some(reason) = refused(&fs::read_to_string(server.dir.join(COMPLAINTS)).unwrap_or_default()) {
        return Ok(Outcome::failed(reason));
    }
    // A server that died, hangs or gives wrong answers makes its clients fail. That is a failure of the server, not of
    // the lab.
    match (server.child.status()?, measured) {
        (_, Err(error)) if error.is::<Interrupted>() => Err(error),
        (Some(_), _) => Ok(Outcome::failed(end_text(server.child.status()?))),
        (None, Ok(metrics)) => Ok(Outcome::good(metrics)),
        (None, Err(error)) if error.is::<TimedOut>() => Ok(Outcome::failed("timeout")),
        (None, Err(error)) => {
            let words = error.to_string();
            Ok(Outcome::failed(format!("a client failed ({})", words.lines().last().unwrap_or_default())))
        }
    }
}

fn measure(server: &Server, (warm_up, load): (Duration, Duration)) -> Result<Vec<Metric>> {
    server.ask(server.client("redis-benchmark").args(["-q", "-r", KEYS, "-d", VALUE_BYTES]).args(FILL))?;
    let mut benchmark = server.client("redis-benchmark");
    benchmark.args(["-q", "-l", "-c", "50", "-r", KEYS, "-d", VALUE_BYTES]).args(LOAD);
    let mut benchmark = Guarded::start(benchmark.stdout(Stdio::null()).stderr(Stdio::null()))?;
    sleep(warm_up)?;
    let (begun, requests, faults) = (Instant::now(), server.requests()?, server.faults()?);
    sleep(load)?;
    let (requests, faults) = (server.requests()? - requests, server.faults()? - faults);
    let seconds = begun.elapsed().as_secs_f64();
    benchmark.end();
    server.ask(server.client("redis-cli").arg("del").args(TRANSIENT))?;
    let after = server.rss_mib()?;
    sleep(Duration::from_secs(1))?;
    Ok(vec![
        Metric::new("faults-per-1000", "count", faults * 1000.0 / requests),
        Metric::new("rate", "1/s", requests / seconds),
        Metric::new("rss-after", "MiB", after),
        Metric::new("rss-idle", "MiB", server.rss_mib()?),
    ])
}

/// A redis-server on a socket in a folder of its own, without persistence.
struct Server {
    /// Ended before the folder is removed.
    child: Guarded,
    dir: Scratch,
    /// When the time limit of the case is reached.
    deadline: Instant,
}

impl Server {
    fn start(allocator: &Allocator, deadline: Instant) -> Result<Server> {
        let dir = Scratch::new("redis")?;
        let complaints = fs::File::create(dir.join(COMPLAINTS)).context("cannot write into the server's folder")?;
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--daemonize", "no", "--save", "", "--appendonly", "no"]);
        command.arg("--unixsocket").arg(socket(&dir)).arg("--dir").arg(dir.path());
        // redis may be linked with another allocator: preloading glibc replaces that.
        if allocator.library.is_none() {
            command.env("LD_PRELOAD", "libc.so.6");
        }
        let variables = allocator.variables();
        command.envs(variables.iter().filter_map(|variable| variable.split_once('=')));
        let child = Guarded::start(command.stdout(Stdio::null()).stderr(complaints))?;
        Ok(Server { child, dir, deadline })
    }

    fn client(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.arg("-s").arg(socket(&self.dir));
        command
    }

    /// The server's answer to a client, until the deadline.
    fn ask(&self, client: &mut Command) -> Result<String> {
        run_within(client, Some(self.deadline.saturating_duration_since(Instant::now())))
    }

    /// Waits for the first answer; false if the server ends, or has not answered after ten seconds.
    fn answers(&mut self) -> Result<bool> {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE && self.child.status()?.is_none() {
            let ping = run_within(self.client("redis-cli").arg("ping"), Some(PATIENCE));
            if ping.is_ok_and(|text| text.trim() == "PONG") {
                return Ok(true);
            }
            sleep(Duration::from_millis(50))?;
        }
        Ok(false)
    }

    fn requests(&self) -> Result<f64> {
        let text = self.ask(self.client("redis-cli").args(["info", "stats"]))?;
        field(&text, "total_commands_processed:").context("redis does not report the number of its commands")
    }

    fn proc_file(&self, name: &str) -> Result<String> {
        let path = format!("/proc/{}/{name}", self.child.id());
        fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))
    }

    fn faults(&self) -> Result<f64> {
        minor_faults(&self.proc_file("stat")?).context("/proc/PID/stat has no minflt")
    }

    fn rss_mib(&self) -> Result<f64> {
        let kib = field(&self.proc_file("status")?, "VmRSS:").context("/proc/PID/status has no VmRSS")?;
        Ok(kib / 1024.0)
    }
}

fn socket(dir: &Scratch) -> PathBuf {
    dir.join("socket")
}

/// The number behind `key` at the beginning of a line.
fn field(text: &str, key: &str) -> Option<f64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(key))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// The field `minflt` of /proc/PID/stat: the tenth. The second field is the program's name in brackets and may contain
/// blanks.
fn minor_faults(stat: &str) -> Option<f64> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(7)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    // Would catch a count of fields that a blank in the program's name throws off.
    #[test]
    fn minflt_is_the_tenth_field() {
        let stat = "42 (redis server) S 1 42 42 0 -1 4194560 12345 0 6 0 10 20 0 0 20 0 5 0";
        assert_eq!(minor_faults(stat), Some(12345.0));
        assert_eq!(minor_faults("42"), None);
    }

    // Would catch a carriage return of redis or the unit of the kernel that stays in the number.
    #[test]
    fn fields_are_read() {
        assert_eq!(field("# Stats\r\ntotal_commands_processed:81\r\n", "total_commands_processed:"), Some(81.0));
        assert_eq!(field("VmHWM:\t 10 kB\nVmRSS:\t    2048 kB\n", "VmRSS:"), Some(2048.0));
        assert_eq!(field("", "VmRSS:"), None);
    }
}
