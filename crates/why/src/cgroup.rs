//! A container: the kernel's figures of a cgroup, of version 1 or 2, and of its processes.

use crate::args::WhyArgs;
use crate::output::Output;
use crate::{failed, read, sys};
use neap_account::container::{Charged, Container, Member, MemoryFile, container};
use neap_account::parse::{self, pair};
use neap_launch::error::Error;
use neap_launch::mounts;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Where the hierarchies are mounted.
const ROOT: &str = "/sys/fs/cgroup";
/// In version 1 a limit of at least this means no limit.
const NO_LIMIT: u64 = 1 << 60;
/// Limit on the files in memory that are examined.
const FILES: usize = 100_000;

/// Shows the account of a cgroup.
pub fn show(args: &WhyArgs, path: &str) -> Result<u8, Error> {
    let mut output = Output::standard(args)?;
    output.container(&look(path)?)?;
    Ok(0)
}

/// The path, as in `/proc/PID/cgroup`, of the cgroup to which a process's memory is charged.
pub fn of_process(pid: u32) -> Result<String, Error> {
    let text = sys::text(format!("/proc/{pid}/cgroup")).map_err(|error| failed::unreadable(pid, &error))?;
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
    let files = memory_files(members.first().map(|member| member.pid));
    Ok(container(&charged, members, &files, notes))
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
        swap: of("total_swap"),
        ..common
    })
}

/// The processes of a cgroup and of all cgroups below it.
fn members(folder: &Path, notes: &mut Vec<String>) -> Vec<Member> {
    let (mut all, mut missing) = (Vec::new(), Vec::new());
    let mut unread = 0;
    for pid in pids(folder) {
        let text = match sys::text(format!("/proc/{pid}/smaps_rollup")) {
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
            command: read::command(pid).join(" "),
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

/// The largest files in the memory file systems that a process sees, in its own mount namespace.
fn memory_files(pid: Option<u32>) -> Vec<MemoryFile> {
    let who = pid.map_or("self".to_owned(), |pid| pid.to_string());
    // A process with another mount namespace or root has other paths: here they are reached through /proc/PID/root.
    let view = |who: &str| {
        let root = fs::metadata(format!("/proc/{who}/root")).ok()?;
        Some((fs::read_link(format!("/proc/{who}/ns/mnt")).ok()?, root.dev(), root.ino()))
    };
    let is_alike = view(&who).is_some_and(|of| view("self") == Some(of));
    let root = PathBuf::from(if is_alike { "/".to_owned() } else { format!("/proc/{who}/root") });
    let mounts = mounts::parse(&sys::text(format!("/proc/{who}/mountinfo")).unwrap_or_default());
    let mut all = Vec::new();
    let mut left = FILES;
    for line in mounts.iter().filter(|line| matches!(line.kind.as_str(), "tmpfs" | "ramfs")) {
        if let Ok(place) = line.at.strip_prefix("/")
            && !place.starts_with("sys")
            && !place.starts_with("proc")
        {
            walk(&root.join(place), &mut all, &mut left);
        }
    }
    all.sort_by_key(|file| std::cmp::Reverse(file.bytes));
    all.dedup_by(|a, b| a.path == b.path);
    all.truncate(10);
    all
}

/// Adds the files below a folder, within its file system.
fn walk(folder: &Path, all: &mut Vec<MemoryFile>, left: &mut usize) {
    let Ok(device) = fs::metadata(folder).map(|metadata| metadata.dev()) else { return };
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if *left == 0 {
            return;
        }
        *left -= 1;
        let Ok(metadata) = entry.metadata() else { continue };
        let path = entry.path();
        if metadata.is_dir() && metadata.dev() == device {
            walk(&path, all, left);
        } else if metadata.is_file() && metadata.blocks() > 0 {
            // st_blocks counts units of 512 bytes on every file system.
            all.push(MemoryFile { path: path.display().to_string(), bytes: metadata.blocks() * 512 });
        }
    }
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

    /// Catches the path of a file in another mount namespace, which in this one names another file or none, although
    /// neap advises to remove it.
    #[test]
    fn files_of_another_namespace_are_found_here() {
        use std::io::{BufRead, BufReader};
        use std::process::{Command, Stdio};
        // The kernel writes the blank in the name of the mount as an octal escape.
        let script = "mount -t tmpfs none /mnt && mkdir '/mnt/a b' && mount -t tmpfs none '/mnt/a b' \
                      && head -c 9000000 /dev/zero > '/mnt/a b/large' && echo ready && read x";
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "sh", "-c", script]);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.expect("unshare(1)");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("it can be read");
        let files = memory_files(Some(child.id()));
        let path = format!("/proc/{}/root/mnt/a b/large", child.id());
        let there = fs::metadata(&path).is_ok();
        let _ = child.kill().and_then(|()| child.wait());
        if line.is_empty() {
            println!("SKIPPED: no mount in a namespace of one's own here");
            return;
        }
        assert!(there && files.iter().any(|file| file.path == path && file.bytes >= 9_000_000), "{files:?}");
        assert!(memory_files(None).iter().all(|file| !file.path.starts_with("/proc/")));
    }

    /// Catches the path of a file below another root, which names another file or none here.
    #[test]
    fn files_below_another_root_are_found_here() {
        use std::sync::mpsc;
        let name = format!("neap-root-{}", std::process::id());
        let file = PathBuf::from("/dev/shm").join(&name);
        fs::write(&file, vec![1; 9_000_000]).expect("a file");
        let (say, said) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            // SAFETY: the call takes a number; from here on this thread has its own root.
            let is_apart = unsafe { libc::unshare(libc::CLONE_FS) } == 0;
            if is_apart && std::os::unix::fs::chroot("/dev").is_ok() {
                // SAFETY: the call takes nothing.
                say.send(unsafe { libc::gettid() }).expect("it is waited for");
                let _ = ended.recv();
            }
        });
        let tid = said.recv().map(|tid: i32| tid as u32);
        let files = tid.map(|tid| memory_files(Some(tid)));
        drop(end);
        thread.join().expect("a thread");
        fs::remove_file(&file).expect("a file");
        let (Ok(tid), Ok(files)) = (tid, files) else {
            println!("SKIPPED: needs root, for chroot");
            return;
        };
        let path = format!("/proc/{tid}/root/shm/{name}");
        assert!(files.iter().any(|file| file.path == path && file.bytes >= 9_000_000), "{files:?}");
    }
}
