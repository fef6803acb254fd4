//! `Os::memory` in a real cgroup with a limit, where this test may make one.

use neap_core::Os;
use neap_core::os::Memory;
use neap_sys::global::NEAP;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const MIB: usize = 1 << 20;
const LIMIT: usize = 64 * MIB;
/// What the child touches once it is in the cgroup.
const TOUCHED: usize = 24 * MIB;
/// Set in the environment of the child.
const INSIDE: &str = "NEAP_TEST_INSIDE";

/// Two cgroups, one in the other; removed when dropped.
struct Groups {
    outer: PathBuf,
    inner: PathBuf,
}

impl Drop for Groups {
    fn drop(&mut self) {
        // The kernel needs a moment after the last process has ended.
        for _ in 0..100 {
            let _ = fs::remove_dir(&self.inner);
            if fs::remove_dir(&self.outer).is_ok() || !self.outer.exists() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        eprintln!("could not remove {}", self.outer.display());
    }
}

/// The process in it; killed when dropped.
struct Inside {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Drop for Inside {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Inside {
    /// This program's test `inside`, which waits for a line before it does anything.
    fn start() -> Inside {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "inside", "--ignored", "--nocapture", "--test-threads=1"])
            .env(INSIDE, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Inside { child, out }
    }

    /// Sends it one line, and returns the numbers that it prints.
    fn ask(&mut self) -> Vec<usize> {
        writeln!(self.child.stdin.as_mut().unwrap(), "go").unwrap();
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.out.read_line(&mut line).unwrap() > 0, "the child ended");
            if let Some((_, numbers)) = line.split_once("memory:") {
                return numbers.split_whitespace().map(|n| n.parse().unwrap()).collect();
            }
        }
    }
}

/// Directories in which a cgroup with a memory limit may be made, by the name of the file that sets it.
fn places() -> Vec<(PathBuf, &'static str)> {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let (groups, mounts) = (read("/proc/self/cgroup"), read("/proc/self/mountinfo"));
    let mut places = Vec::new();
    for line in groups.lines() {
        let fields: Vec<_> = line.splitn(3, ':').collect();
        let [_, controllers, path] = fields[..] else { continue };
        let v1 = controllers.split(',').any(|c| c == "memory");
        if !v1 && !controllers.is_empty() {
            continue;
        }
        for mount in mounts.lines() {
            let Some((front, back)) = mount.split_once(" - ") else { continue };
            let kind = if v1 { "cgroup " } else { "cgroup2 " };
            let shown = !v1 || back.rsplit(' ').next().is_some_and(|o| o.split(',').any(|o| o == "memory"));
            if let (Some(point), true) = (front.split(' ').nth(4), back.starts_with(kind) && shown) {
                let own = Path::new(point).join(path.trim_start_matches('/'));
                let file = if v1 { "memory.limit_in_bytes" } else { "memory.max" };
                // In v2 a cgroup with processes has none with limits below it, so next to it is tried too.
                places.extend(own.parent().filter(|_| !v1).map(|p| (p.to_path_buf(), file)));
                places.push((own, file));
            }
        }
    }
    places
}

/// Makes the two cgroups with their limits, or says why not.
fn make() -> Result<Groups, String> {
    let mut why = "there is no cgroup of the memory controller".to_owned();
    for (place, file) in places() {
        let outer = place.join(format!("neap-test-{}", std::process::id()));
        let groups = Groups { inner: outer.join("inner"), outer };
        let made = || -> std::io::Result<()> {
            fs::create_dir(&groups.outer)?;
            fs::write(groups.outer.join(file), LIMIT.to_string())?;
            if file == "memory.max" {
                fs::write(groups.outer.join("cgroup.subtree_control"), "+memory")?;
            }
            fs::create_dir(&groups.inner)?;
            fs::write(groups.inner.join(file), (2 * LIMIT).to_string())
        };
        match made() {
            Ok(()) => return Ok(groups),
            Err(e) => why = format!("{}: {e}", groups.outer.display()),
        }
    }
    Err(why)
}

/// Catches a probe that reads something else than the kernel enforces, that does not see a process move, or that
/// leaves files open.
#[test]
fn limit_and_use_of_a_real_cgroup() {
    let groups = match make() {
        Ok(groups) => groups,
        Err(why) => return eprintln!("skipped: cannot make a cgroup with a memory limit: {why}"),
    };
    let mut inside = Inside::start();
    let before = inside.ask();
    assert_ne!(before[0], LIMIT, "not yet in the cgroup");
    if let Err(e) = fs::write(groups.inner.join("cgroup.procs"), inside.child.id().to_string()) {
        return eprintln!("skipped: cannot move a process: {e}");
    }
    // Longer than neap keeps what it found.
    std::thread::sleep(Duration::from_millis(1100));
    for _ in 0..2 {
        let after = inside.ask();
        assert_eq!(after[0], LIMIT);
        assert!((TOUCHED * 9 / 10..=LIMIT).contains(&after[1]), "used {} of which {TOUCHED} are touched", after[1]);
        assert_eq!(after[2], before[2], "open files");
    }
    drop(inside);
    let outer = groups.outer.clone();
    drop(groups);
    assert!(!outer.exists(), "{} is left behind", outer.display());
}

/// The process in the cgroup. For each line that it reads, it prints its memory and how many files are open.
#[test]
#[ignore = "started by limit_and_use_of_a_real_cgroup"]
fn inside() {
    if std::env::var_os(INSIDE).is_none() {
        return;
    }
    let linux = &NEAP.os;
    let mut blocks = Vec::new();
    for line in std::io::stdin().lines() {
        line.unwrap();
        // The second line comes when the process was moved.
        if blocks.len() == 1 {
            blocks.push(std::hint::black_box(vec![1u8; TOUCHED]));
        }
        let Memory { limit, used, .. } = linux.memory().expect("memory");
        let files = fs::read_dir("/proc/self/fd").unwrap().count();
        println!("memory: {limit} {used} {files}");
        blocks.push(Vec::new());
    }
}

/// Catches a result without a limit or a use, and errno changed by a file that is not there.
#[test]
fn this_process() {
    let linux = &NEAP.os;
    // SAFETY: errno of this thread.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    unsafe { *errno = 77 };
    let memory = linux.memory();
    // SAFETY: as above.
    assert_eq!(unsafe { *errno }, 77);
    let Some(memory) = memory else { return eprintln!("skipped: no /proc here") };
    assert!(memory.limit > MIB && memory.used > 0, "{memory:?}");
}

/// Catches a child of fork that waits for a thread that is not there, or that believes half a record.
#[test]
fn forks_while_other_threads_ask() {
    static DONE: AtomicBool = AtomicBool::new(false);
    let Some(want) = NEAP.os.memory() else { return eprintln!("skipped: no /proc here") };
    let asking: Vec<_> = (0..2)
        .map(|_| {
            std::thread::spawn(|| {
                while !DONE.load(Ordering::Relaxed) {
                    NEAP.os.memory();
                }
            })
        })
        .collect();
    for _ in 0..100 {
        // SAFETY: the child makes bare system calls and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // A child that waits is ended by the alarm.
            // SAFETY: both calls are safe after fork.
            unsafe {
                libc::alarm(20);
                libc::_exit(i32::from(NEAP.os.memory().map(|m| m.limit) != Some(want.limit)))
            }
        }
        let mut status = -1;
        // SAFETY: the child was just made.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
    }
    DONE.store(true, Ordering::Relaxed);
    asking.into_iter().for_each(|t| t.join().unwrap());
}
