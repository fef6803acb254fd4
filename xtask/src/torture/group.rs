//! A memory cgroup for one run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A cgroup with a memory limit; removed when dropped.
pub struct Group(PathBuf);

impl Group {
    /// Creates it below the root of version 1 or 2.
    pub fn new(name: &str, limit: u64) -> Result<Self, String> {
        let mut why = "no cgroups are mounted".to_owned();
        for (root, file) in [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")] {
            if !Path::new(root).join("cgroup.procs").exists() {
                continue;
            }
            let group = Group(Path::new(root).join(name));
            match fs::create_dir(&group.0).and_then(|()| fs::write(group.0.join(file), limit.to_string())) {
                Ok(()) => return Ok(group),
                Err(error) => why = format!("{root}: {error}"),
            }
        }
        Err(format!("cannot make a cgroup with a memory limit: {why}"))
    }

    /// A command that enters the cgroup and becomes `program`.
    pub fn enter(&self, program: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "echo $$ > \"$0\"/cgroup.procs && exec \"$@\""]).arg(&self.0).arg(program);
        command
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Ended processes stay in the cgroup for some milliseconds.
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() || !self.0.exists() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        eprintln!("could not remove {}", self.0.display());
    }
}
