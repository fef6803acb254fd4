//! What the tests of the command share.
#![allow(dead_code, reason = "each test file uses a part")]

use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// A process that is ended with the test.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A directory that only this user can enter, removed when it is dropped.
pub struct TempDir(PathBuf);

impl TempDir {
    pub fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let path = loop {
            let name = format!("neap-cli-test-{}-{}", std::process::id(), NUMBER.fetch_add(1, Relaxed));
            let path = std::env::temp_dir().join(name);
            match fs::create_dir(&path) {
                // A test that was killed left it, and its process had this one's number.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                made => break made.map(|()| path).expect("a temporary directory"),
            }
        };
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).expect("chmod");
        Self(path)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// `neap` with a cache of its own.
pub struct Neap {
    /// Home directory, cache and files of the test.
    pub dir: TempDir,
}

impl Neap {
    /// A fresh home.
    pub fn new() -> Self {
        Self { dir: TempDir::new() }
    }

    /// `neap ARGUMENTS`, not started.
    pub fn command<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_neap"));
        command.args(arguments);
        command.env("HOME", self.dir.path());
        let options = neap_options::TABLE.iter().map(|opt| opt.env);
        let glibc = neap_options::glibc::all().filter_map(|control| control.env);
        let others = ["XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "TMPDIR", "LD_PRELOAD", "GLIBC_TUNABLES"];
        for name in others.into_iter().chain(options).chain(glibc) {
            command.env_remove(name);
        }
        default_signals(&mut command);
        command
    }

    /// Runs `neap ARGUMENTS`.
    pub fn output<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Output {
        self.command(arguments).output().expect("neap starts")
    }

    /// Runs `neap run -- ARGUMENTS`.
    pub fn run<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Output {
        let mut command = self.command(["run", "--"]);
        command.args(arguments);
        command.output().expect("neap starts")
    }

    /// A path in the test's directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A file in the test's directory. One that can be executed is [copied](copy_program).
    pub fn file(&self, name: &str, content: impl AsRef<[u8]>, mode: u32) -> PathBuf {
        let path = self.path(name);
        if mode & 0o111 == 0 {
            fs::write(&path, content).expect("writable");
        } else {
            let text = self.path(&format!("{name}.text"));
            fs::write(&text, content).expect("writable");
            copy_program(&text, &path);
            fs::remove_file(text).expect("it was there");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("chmod");
        path
    }

    /// The files called libneap.so in this home's cache.
    pub fn libraries(&self) -> Vec<PathBuf> {
        let lib = self.path(".cache/neap/lib");
        let hashes = fs::read_dir(lib).into_iter().flatten().flatten();
        hashes.flat_map(|hash| fs::read_dir(hash.path()).into_iter().flatten().flatten()).map(|f| f.path()).collect()
    }
}

/// Standard output as text.
pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Standard error as text.
pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Checks an error of neap: its status, words in its message, and that nothing ran.
pub fn assert_refused(output: &Output, status: i32, words: &[&str]) {
    let text = stderr(output);
    assert_eq!(output.status.code(), Some(status), "{text}");
    assert!(text.starts_with("neap: "), "{text}");
    for word in words {
        assert!(text.contains(word), "no {word:?} in {text}");
    }
    assert_eq!(stdout(output), "");
}

/// Says loudly that a test did not run.
pub fn skip(test: &str, why: &str) {
    eprintln!("SKIPPED {test}: {why}");
}

/// Settings of huge pages, which belong to the whole machine: one test at a time changes them, in all test programs. The
/// file is unlocked when it is closed.
pub fn huge_page_settings() -> fs::File {
    let path = std::env::temp_dir().join("neap-tests-huge-page-settings");
    let file = fs::OpenOptions::new().create(true).append(true).open(path).expect("a file for the lock");
    file.lock().expect("a lock");
    file
}

/// Whether the tests run as root.
pub fn is_root() -> bool {
    // SAFETY: geteuid takes nothing and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Compiles a C program; none where there is no compiler or it fails.
pub fn compile(dir: &Path, name: &str, source: &str, flags: &[&str]) -> Option<PathBuf> {
    let (c, program) = (dir.join(format!("{name}.c")), dir.join(name));
    fs::write(&c, source).expect("writable");
    let status = Command::new("cc").args(flags).arg("-o").arg(&program).arg(&c).status();
    status.is_ok_and(|s| s.success()).then_some(program)
}

/// Copies a program, by a process of its own: a child of this one that is just being started would have the file open for
/// writing, and it could not be executed.
pub fn copy_program(from: impl AsRef<Path>, to: &Path) {
    let from = from.as_ref();
    let copied = Command::new("cp").arg(from).arg(to).status();
    assert!(copied.is_ok_and(|status| status.success()), "{} cannot be copied to {}", from.display(), to.display());
}

/// A shell starts what runs in the background with keys of the terminal ignored, and `nohup` ignores hang-ups: programs
/// under test are not to inherit that from the tests.
pub fn default_signals(command: &mut Command) {
    // SAFETY: signal and the constants are plain system calls, allowed between fork and exec.
    unsafe {
        command.pre_exec(|| {
            for number in [libc::SIGINT, libc::SIGQUIT, libc::SIGHUP] {
                libc::signal(number, libc::SIG_DFL);
            }
            Ok(())
        });
    }
}
