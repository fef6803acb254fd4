//! Settings of the machine that tests change: they are put back, and one test at a time changes them.

#![allow(dead_code, reason = "no test program needs all of it")]

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::process::{Child, Command, Stdio};

/// Folder of the pools.
const POOLS: &str = "/sys/kernel/mm/hugepages";

/// In the folder for temporary files: locked by the test that changes settings of huge pages, in all test programs.
const LOCK: &str = "neap-tests-huge-page-settings";

/// Whether this is root; if not, says so.
pub fn is_root() -> bool {
    // SAFETY: geteuid only returns a number.
    let root = unsafe { libc::geteuid() } == 0;
    if !root {
        println!("SKIPPED: only root can change mounts and the settings of huge pages");
    }
    root
}

/// The lock; `None` if the test cannot change settings, which is printed.
pub struct Machine {
    lock: File,
}

impl Machine {
    pub fn lock() -> Option<Machine> {
        if !is_root() {
            return None;
        }
        if !fs::exists(POOLS).unwrap_or(false) {
            println!("SKIPPED: {POOLS} is missing");
            return None;
        }
        let lock = File::options().create(true).append(true).open(std::env::temp_dir().join(LOCK)).expect("a lock");
        lock.lock().expect("the lock");
        Some(Machine { lock })
    }

    /// Sets a setting as long as the result lives. It is put back also when this process is killed: by a helper, which
    /// waits for the end of its input and has the lock too.
    #[must_use]
    pub fn set(&self, path: &str, value: &str) -> Setting {
        let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"));
        let inside = text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(word, _)| word);
        let old = inside.unwrap_or(text.trim());
        let script = "read -r line; echo \"$1\" > \"$2\"";
        let mut helper = Command::new("sh");
        helper.args(["-c", script, "restore", old, path]).stdin(Stdio::piped());
        let lock = self.lock.as_raw_fd();
        use std::os::unix::process::CommandExt;
        // SAFETY: fcntl may be called between fork and exec.
        unsafe {
            helper.pre_exec(move || {
                libc::fcntl(lock, libc::F_SETFD, 0);
                Ok(())
            });
        }
        let helper = helper.spawn().expect("sh");
        fs::write(path, value).unwrap_or_else(|error| panic!("{path} = {value}: {error}"));
        Setting(helper)
    }

    /// Sets the pages of a pool, of which those that are reserved stay.
    pub fn resize(&self, size: usize, pages: usize) -> Setting {
        self.set(&format!("{POOLS}/hugepages-{}kB/nr_hugepages", size >> 10), &pages.to_string())
    }

    /// A pool of `pages` pages of `size` bytes; `None` if the machine cannot have it, which is printed.
    pub fn pool(&self, size: usize, pages: usize) -> Option<Setting> {
        if !fs::exists(format!("{POOLS}/hugepages-{}kB", size >> 10)).unwrap_or(false) {
            println!("SKIPPED: no pool of pages of {size} bytes");
            return None;
        }
        let setting = self.resize(size, pages);
        if pool_number(size, "nr_hugepages") != pages {
            println!("SKIPPED: the machine has no room for {pages} pages of {size} bytes");
            return None;
        }
        Some(setting)
    }
}

/// A number of a pool.
pub fn pool_number(size: usize, name: &str) -> usize {
    let path = format!("{POOLS}/hugepages-{}kB/{name}", size >> 10);
    fs::read_to_string(path).expect("a pool").trim().parse().expect("a number")
}

/// See [`Machine::set`].
pub struct Setting(Child);

impl Drop for Setting {
    fn drop(&mut self) {
        if let Some(mut input) = self.0.stdin.take() {
            let _ = input.write_all(b"\n");
        }
        let _ = self.0.wait();
    }
}

const APART: &str = "NEAP_TEST_APART";

fn is_apart(test: &str) -> bool {
    std::env::var_os(APART).is_some_and(|name| name == test)
}

/// Runs a test of this program once more in a process of its own; true in that process.
pub fn apart(test: &str) -> bool {
    is_apart(test) || {
        run_apart(test, Command::new(std::env::current_exe().expect("this program")));
        false
    }
}

/// [`apart`] with a table of mounts of its own.
pub fn apart_with_mounts(test: &str) -> bool {
    is_apart(test) || {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private"]).arg(std::env::current_exe().expect("this program"));
        run_apart(test, command);
        false
    }
}

fn run_apart(test: &str, mut command: Command) {
    let output = command.args(["--exact", test, "--nocapture"]).env(APART, test).output().expect("starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{test}: {}\n{text}{}", output.status, String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("1 passed"), "{test} did not run:\n{text}");
}
