//! Whether calls can be made in a process: it may be traced, stopped or frozen.

use neap_account::seen::Held;
use neap_process::value;
use std::fs;
use std::path::Path;

/// From the text of `/proc/PID/status`, and from the cgroups of the process.
pub fn of(pid: u32, status: &str) -> Option<Held> {
    if let Some(tracer) = value(status, "TracerPid").filter(|&tracer| tracer > 0) {
        return u32::try_from(tracer).ok().map(Held::Traced);
    }
    if is_frozen(pid) {
        return Some(Held::Frozen);
    }
    status.lines().any(|line| line.starts_with("State:\tT")).then_some(Held::Stopped)
}

/// Whether its cgroup of version 2, or of version 1's freezer, is frozen.
fn is_frozen(pid: u32) -> bool {
    let text = neap_process::text(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    text.lines().any(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { return false };
        let file = |mount: &str, name: &str| {
            let folder = Path::new("/sys/fs/cgroup").join(mount).join(path.trim_start_matches('/'));
            fs::read_to_string(folder.join(name)).unwrap_or_default()
        };
        match controllers {
            "" => ["", "unified"].iter().any(|mount| value_of(&file(mount, "cgroup.events"), "frozen") == Some("1")),
            _ if controllers.split(',').any(|name| name == "freezer") => {
                file("freezer", "freezer.state").trim() == "FROZEN"
            }
            _ => false,
        }
    })
}

fn value_of<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    fn status(pid: u32) -> String {
        neap_process::text(format!("/proc/{pid}/status")).expect("a status")
    }

    /// Catches a stopped process that looks like one that runs, and one that is traced.
    #[test]
    fn a_stopped_process_is_found() {
        let mut child: Child = Command::new("sleep").arg("600").spawn().expect("sleep");
        let pid = child.id();
        assert_eq!(of(pid, &status(pid)), None);
        // SAFETY: a signal to a child of its own; the wait has no place to write to.
        unsafe {
            libc::kill(pid as i32, libc::SIGSTOP);
            libc::waitpid(pid as i32, std::ptr::null_mut(), libc::WUNTRACED);
        }
        let found = of(pid, &status(pid));
        child.kill().expect("killed");
        child.wait().expect("waited for");
        assert_eq!(found, Some(Held::Stopped));
        assert_eq!(of(pid, "State:\tt (tracing stop)\nTracerPid:\t12\n"), Some(Held::Traced(12)));
        assert_eq!(value_of("populated 1\nfrozen 1\n", "frozen"), Some("1"));
    }
}
