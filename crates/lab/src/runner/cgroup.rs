//! A memory cgroup with a limit, made for one run and removed after it; version 1 and 2.

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// The beginning of the groups' names; the process id follows.
const PREFIX: &str = "neap-workers-";

/// Where the memory controller is mounted.
#[derive(Clone, Debug, PartialEq)]
enum Controller {
    /// The hierarchy of `memory` in version 1.
    V1(PathBuf),
    /// The single hierarchy of version 2.
    V2(PathBuf),
}

impl Controller {
    /// The folder below which groups are made.
    fn root(&self) -> &Path {
        let (Controller::V1(root) | Controller::V2(root)) = self;
        root
    }
}

/// A group without processes; removed when dropped. Its processes must have ended by then.
pub struct Group {
    path: PathBuf,
}

impl Group {
    /// Makes a group in which at most `limit` bytes may be resident and nothing is swapped.
    pub fn create(limit: u64) -> Result<Group> {
        let Some(controller) = mounted() else {
            bail!("no cgroup hierarchy has the memory controller for its groups");
        };
        let path = controller.root().join(format!("{PREFIX}{}", std::process::id()));
        match fs::create_dir(&path) {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => bail!("needs root, to make a memory cgroup"),
            made => made.with_context(|| format!("cannot make {}", path.display()))?,
        }
        let group = Group { path };
        match controller {
            Controller::V1(_) => {
                group.set("memory.limit_in_bytes", limit)?;
                // The file exists only if swap is accounted.
                let _ = group.set("memory.memsw.limit_in_bytes", limit);
            }
            Controller::V2(_) => {
                group.set("memory.max", limit)?;
                let _ = group.set("memory.swap.max", 0);
            }
        }
        Ok(group)
    }

    /// The folder whose `cgroup.procs` processes join.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn set(&self, file: &str, value: u64) -> Result<()> {
        let path = self.path.join(file);
        fs::write(&path, value.to_string()).with_context(|| format!("cannot write {}", path.display()))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A killed process may take a moment to leave.
        for _ in 0..50 {
            match fs::remove_dir(&self.path) {
                Err(error) if error.kind() != ErrorKind::NotFound => thread::sleep(Duration::from_millis(100)),
                _ => return,
            }
        }
        let _ = writeln!(io::stderr(), "cannot remove {}: it still has processes", self.path.display());
    }
}

/// Removes the groups that killed runs left; one with processes stays, as the kernel refuses.
pub fn remove_leftovers() {
    if let Some(controller) = mounted() {
        remove_leftovers_below(controller.root());
    }
}

fn remove_leftovers_below(root: &Path) {
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        // The group may be that of a lab that still runs.
        if owner.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// The memory controller of this machine.
fn mounted() -> Option<Controller> {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    controller(&mounts, |root| fs::read_to_string(root.join("cgroup.subtree_control")).unwrap_or_default())
}

/// Finds the memory controller in the lines of /proc/mounts. `handed_down` reads the controllers that a version 2
/// hierarchy enables for its groups.
fn controller(mounts: &str, handed_down: impl Fn(&Path) -> String) -> Option<Controller> {
    mounts.lines().find_map(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        let [_, place, kind, options, ..] = words[..] else {
            return None;
        };
        let place = PathBuf::from(place);
        match kind {
            "cgroup" if options.split(',').any(|option| option == "memory") => Some(Controller::V1(place)),
            "cgroup2" if handed_down(&place).split_whitespace().any(|name| name == "memory") => {
                Some(Controller::V2(place))
            }
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIXED: &str = "tmpfs /sys/fs/cgroup tmpfs rw,mode=755 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0
cgroup /sys/fs/cgroup/cpu cgroup rw,relatime,cpu 0 0
cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0
";

    // Would catch a version 2 mount without the controller that is preferred to version 1 with it.
    #[test]
    fn the_controller_is_found() {
        let v1 = Controller::V1("/sys/fs/cgroup/memory".into());
        assert_eq!(controller(MIXED, |_| String::new()), Some(v1));
        let v2 = Controller::V2("/sys/fs/cgroup/unified".into());
        assert_eq!(controller(MIXED, |_| "cpu memory pids\n".into()), Some(v2));
        assert_eq!(controller("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n", |_| "cpu pids\n".into()), None);
    }

    // Would catch the group of a killed run that stays, and the removal of a running lab's group.
    #[test]
    fn only_leftovers_are_removed() {
        let scratch = crate::scratch::Scratch::new("groups").unwrap();
        // No process id is above the kernel's limit, 2^22.
        let [left, own, other] =
            ["neap-workers-4194999".to_owned(), format!("{PREFIX}{}", std::process::id()), "user.slice".into()]
                .map(|name| scratch.join(&name));
        for group in [&left, &own, &other] {
            fs::create_dir(group).unwrap();
        }
        remove_leftovers_below(scratch.path());
        assert_eq!([left, own, other].map(|group| group.exists()), [false, true, true]);
    }
}
