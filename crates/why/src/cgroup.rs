//! A container: the kernel's figures of a cgroup, of version 1 or 2, and of its processes.

use crate::args::WhyArgs;
use crate::output::Output;
use crate::{failed, holders};
use neap_account::container::{Charged, Container, Found, Member, container};
use neap_account::holder::LEAST;
use neap_account::parse::{self, pair};
use neap_launch::error::Error;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Where the hierarchies are mounted.
const ROOT: &str = "/sys/fs/cgroup";
/// In version 1 a limit of at least this means no limit.
const NO_LIMIT: u64 = 1 << 60;

/// Shows the account of a cgroup.
pub fn show(args: &WhyArgs, path: &str) -> Result<u8, Error> {
    let mut output = Output::standard(args)?;
    output.container(&look(path)?)?;
    Ok(0)
}

/// The path, as in `/proc/PID/cgroup`, of the cgroup to which a process's memory is charged.
pub fn of_process(pid: u32) -> Result<String, Error> {
    let text = neap_process::text(format!("/proc/{pid}/cgroup")).map_err(|error| failed::unreadable(pid, &error))?;
    path_of(&text).ok_or_else(|| Error::failed(format!("process {pid} is in no cgroup with a memory controller")))
}

/// The path in the line of version 1's memory controller, or of version 2.
fn path_of(text: &str) -> Option<String> {
    let line = |wanted: &dyn Fn(&str) -> bool| {
        text.lines().find_map(|line| {
            let (_, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            wanted(controllers).then(|| path.to_owned())
        })
    };
    line(&|controllers| controllers.split(',').any(|name| name == "memory")).or_else(|| line(&str::is_empty))
}

/// The account of the cgroup at a path; `self` is neap's own.
pub fn look(path: &str) -> Result<Container, Error> {
    // Only neap's own cgroup may be mounted at the root, see [`folder`].
    let own = of_process(std::process::id());
    let path = if path == "self" { own.as_ref().map_err(cannot_know)?.clone() } else { path.to_owned() };
    let (folder, v2) = folder(&path, own.is_ok_and(|own| path == own))?;
    let charged = charged(&path, &folder, v2)?;
    let mut notes = Vec::new();
    let members = members(&folder, &mut notes);
    // Where none is charged there is nothing to look for.
    let holders = if charged.shmem < LEAST { Vec::new() } else { holders::of(&folder, &members) };
    let in_kernel = holders::in_kernel(&members);
    Ok(container(&charged, Found { members, holders, in_kernel, notes }))
}

fn cannot_know(error: &Error) -> Error {
    let cause = error.to_string();
    let cause = cause.lines().next().unwrap_or("").trim_start_matches("neap: ");
    Error::failed(format!("neap's own cgroup is unknown: {cause}"))
        .remedy("mount -t proc proc /proc; or name a folder: neap why --cgroup /sys/fs/cgroup/PATH")
}

/// The folder of a cgroup, and whether it is of version 2.
fn folder(path: &str, is_own: bool) -> Result<(PathBuf, bool), Error> {
    let below = path.strip_prefix(ROOT).unwrap_or(path).trim_start_matches('/');
    let given = [PathBuf::from(path), Path::new(ROOT).join(below), Path::new(ROOT).join("memory").join(below)];
    // In a container the container's own cgroup may be mounted as the root.
    let root = [PathBuf::from(ROOT), Path::new(ROOT).join("memory")];
    let root = root.iter().filter(|_| is_own);
    for folder in given.iter().filter(|folder| folder.is_absolute()).chain(root) {
        if folder.join("memory.current").exists() {
            return Ok((folder.clone(), true));
        }
        if folder.join("memory.usage_in_bytes").exists() {
            return Ok((folder.clone(), false));
        }
    }
    Err(Error::failed(format!("there is no cgroup {path} with figures of memory"))
        .remedy("cat /proc/self/cgroup shows paths; the root of version 2 has no figures"))
}

fn number(folder: &Path, name: &str) -> Option<u64> {
    fs::read_to_string(folder.join(name)).ok()?.trim().parse().ok()
}

fn charged(path: &str, folder: &Path, v2: bool) -> Result<Charged, Error> {
    let cannot = |name: &str, error: &io::Error| {
        let made = Error::failed(format!("cannot read {}/{name}: {}", folder.display(), failed::words(error)));
        made.remedy(failed::remedy(error).unwrap_or("run neap as root; does the cgroup still exist?"))
    };
    let stat = fs::read_to_string(folder.join("memory.stat")).map_err(|error| cannot("memory.stat", &error))?;
    // Required: without it the accounts have no sum. Some kernels lack other figures.
    let current = |name: &str| {
        let text = fs::read_to_string(folder.join(name)).map_err(|error| cannot(name, &error))?;
        text.trim().parse().map_err(|_| cannot(name, &io::ErrorKind::InvalidData.into()))
    };
    let of = |name: &str| pair(&stat, name).unwrap_or(0);
    let common = Charged { path: path.to_owned(), v2, folder: folder.display().to_string(), ..Charged::default() };
    if v2 {
        return Ok(Charged {
            current: current("memory.current")?,
            limit: number(folder, "memory.max"),
            anon: of("anon"),
            file: of("file"),
            shmem: of("shmem"),
            dirty: of("file_dirty"),
            mapped: of("file_mapped"),
            slab_reclaimable: of("slab_reclaimable"),
            slab_unreclaimable: of("slab_unreclaimable"),
            sockets: of("sock"),
            page_tables: of("pagetables"),
            kernel_stacks: of("kernel_stack"),
            percpu: of("percpu"),
            // Socket buffers are charged separately.
            kernel: of("kernel").saturating_sub(of("slab") + of("pagetables") + of("kernel_stack") + of("percpu")),
            anon_lists: of("inactive_anon") + of("active_anon"),
            swap_cached: of("swapcached"),
            swap: number(folder, "memory.swap.current").unwrap_or(0),
            ..common
        });
    }
    let sockets = number(folder, "memory.kmem.tcp.usage_in_bytes").unwrap_or(0);
    Ok(Charged {
        current: current("memory.usage_in_bytes")?,
        limit: number(folder, "memory.limit_in_bytes").filter(|limit| *limit < NO_LIMIT),
        anon: of("total_rss"),
        file: of("total_cache"),
        shmem: of("total_shmem"),
        dirty: of("total_dirty"),
        mapped: of("total_mapped_file"),
        sockets,
        kernel: number(folder, "memory.kmem.usage_in_bytes").unwrap_or(0),
        anon_lists: of("total_inactive_anon") + of("total_active_anon"),
        swap_cached: of("total_swapcached"),
        swap: of("total_swap"),
        ..common
    })
}

/// The processes of a cgroup and of all cgroups below it.
fn members(folder: &Path, notes: &mut Vec<String>) -> Vec<Member> {
    let (mut all, mut missing) = (Vec::new(), Vec::new());
    let mut unread = 0;
    for pid in pids(folder) {
        let via = neap_process::living(pid);
        let text = match neap_process::text(format!("/proc/{via}/smaps_rollup")) {
            Ok(text) => text,
            // Kernel threads and ending processes have none.
            Err(error) => {
                unread += usize::from(error.kind() == io::ErrorKind::PermissionDenied);
                if error.kind() == io::ErrorKind::NotFound {
                    missing.push(pid);
                }
                continue;
            }
        };
        let figures = parse::rollup(&text);
        let anonymous = parse::value(&text, "Pss_Anon").unwrap_or(figures.anonymous.min(figures.pss));
        all.push(Member {
            pid,
            command: neap_process::command(pid).join(" "),
            rss_bytes: figures.rss,
            pss_bytes: figures.pss,
            anonymous_bytes: anonymous,
        });
    }
    // A process that is still in the cgroup but not in /proc is hidden (hidepid).
    if !missing.is_empty() {
        let now = pids(folder);
        unread += missing.iter().filter(|pid| now.contains(pid)).count();
    }
    if unread > 0 {
        notes.push(format!("{unread} processes of it may not be read: run neap as root"));
    }
    all
}

fn pids(folder: &Path) -> Vec<u32> {
    let text = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
    let mut all: Vec<u32> = text.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid != 0).collect();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            all.extend(pids(&entry.path()));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches the path of another hierarchy.
    #[test]
    fn paths_are_those_of_memory() {
        assert_eq!(path_of("9:name=systemd:/x\n4:memory:/a/b\n0::/z\n").as_deref(), Some("/a/b"));
        assert_eq!(path_of("0::/user.slice/x:y\n").as_deref(), Some("/user.slice/x:y"));
        assert_eq!(path_of("3:cpu,cpuacct:/\n"), None);
    }
}
