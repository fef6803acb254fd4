//! What holds files in memory and shared memory: files that processes of a cgroup have open or mapped, files in the
//! memory file systems that they see, System V segments; and what the kernel holds for open pipes and BPF maps.
//!
//! Seeing a file proves nothing about its cgroup, because other services' files are seen too. So each is shown to
//! [`Charges`], the largest first.

use crate::charge::{Charges, Found};
use crate::sys;
use neap_account::container::{InKernel, Member};
use neap_account::holder::{Holder, LEAST, What};
use neap_account::units;
use neap_launch::mounts;
use std::collections::{HashMap, HashSet};
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Limit on the files in memory file systems that are examined.
const FILES: usize = 100_000;
/// Limit on the holders of which the charge is asked.
const ASKED: usize = 1000;

/// A file: its device and inode.
type Id = (u64, u64);

/// Where a file is found again.
struct Place {
    path: PathBuf,
    /// Whether its last part is a link of the kernel to an open file.
    is_link: bool,
}

/// What holds memory of the cgroup in `folder` that is a file or shared: all that its processes have or see.
pub fn of(folder: &Path, members: &[Member]) -> Vec<Holder> {
    let mut found = Files::default();
    for member in members {
        found.opened(member);
    }
    let who: Vec<u32> = if members.is_empty() { vec![0] } else { members.iter().map(|member| member.pid).collect() };
    let mut left = FILES;
    let mut roots = HashSet::new();
    for pid in &who {
        if roots.insert(view(*pid)) {
            found.seen(*pid, &mut left);
        }
    }
    let mut files = std::mem::take(&mut found.all);
    let charges = Charges::of(folder);
    files.sort_by_key(|(holder, _)| std::cmp::Reverse(holder.bytes));
    files.truncate(ASKED);
    if let Some(charges) = &charges {
        files.retain_mut(|(holder, place)| match open(place) {
            Ok(file) => {
                charge(holder, charges.of_file(&file));
                true
            }
            // It was removed meanwhile.
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        });
    }
    find_unused(&mut files, &found.layers);
    let mut all: Vec<Holder> = files.into_iter().map(|(holder, _)| holder).collect();
    let mut namespaces = HashSet::new();
    for pid in &who {
        if namespaces.insert(namespace(*pid, "ipc")) {
            all.extend(segments(*pid, charges.as_ref()));
        }
    }
    all
}

fn charge(holder: &mut Holder, found: Option<Found>) {
    if let Some(found) = found {
        (holder.bytes, holder.charged) = (holder.bytes.max(found.resident), Some(found.charged));
    }
}

/// The folder of a process in /proc, or of its thread that lives if the first one has ended; 0 for neap's own.
fn of_process(pid: u32) -> String {
    if pid == 0 { "/proc/self".to_owned() } else { format!("/proc/{}", neap_process::living(pid)) }
}

fn namespace(pid: u32, kind: &str) -> Option<PathBuf> {
    fs::read_link(format!("{}/ns/{kind}", of_process(pid))).ok()
}

/// The mount namespace and root of a process: with others, a path leads elsewhere.
fn view(pid: u32) -> Option<(PathBuf, Id)> {
    Some((namespace(pid, "mnt")?, id(&fs::metadata(format!("{}/root", of_process(pid))).ok()?)))
}

fn id(of: &Metadata) -> Id {
    (of.dev(), of.ino())
}

/// Opens a file to look at it; nothing else that may be there by now.
fn open(place: &Place) -> io::Result<File> {
    let apart = if place.is_link { 0 } else { libc::O_NOFOLLOW };
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY | apart;
    let file = File::options().read(true).custom_flags(flags).open(&place.path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::ErrorKind::InvalidInput.into()) }
}

/// Files, each once.
#[derive(Default)]
struct Files {
    all: Vec<(Holder, Place)>,
    known: HashSet<(Id, bool)>,
    /// Whether a device is memory.
    devices: HashMap<u64, bool>,
    /// Folders that are a part of other file systems (overlay): a process that has a file open there sees another
    /// inode.
    layers: Vec<PathBuf>,
}

impl Files {
    /// Adds a file if it is in memory and new. `bytes` of tmpfs are counted in units of 512 bytes, as everywhere.
    fn add(&mut self, path: &Path, of: &Metadata, make: impl FnOnce() -> (What, Option<(u32, String)>, bool)) {
        let bytes = of.blocks() * 512;
        if !of.is_file() || bytes < LEAST {
            return;
        }
        let device = of.dev();
        if !*self.devices.entry(device).or_insert_with(|| sys::is_in_memory(path)) {
            return;
        }
        let (what, user, is_link) = make();
        // The inode of a segment is its number, which a file may have too.
        if self.known.insert((id(of), matches!(what, What::Segment { .. }))) {
            let place = Place { path: path.to_owned(), is_link };
            self.all.push((Holder { what, bytes, charged: None, user, is_unused: false }, place));
        }
    }

    /// Adds files that a process has open or mapped.
    fn opened(&mut self, member: &Member) {
        let folder = of_process(member.pid);
        for kind in ["fd", "map_files"] {
            for entry in fs::read_dir(format!("{folder}/{kind}")).into_iter().flatten().flatten() {
                let path = entry.path();
                let (Ok(of), Ok(target)) = (fs::metadata(&path), fs::read_link(&path)) else { continue };
                self.add(&path, &of, || {
                    let target = target.display().to_string();
                    let named = || target.trim_end_matches(" (deleted)").to_owned();
                    let what = match target.strip_prefix("/SYSV") {
                        Some(_) => What::Segment { id: of.ino() as i32, of: None },
                        None if target.starts_with("/memfd:") => What::Nameless { name: named()[1..].to_owned() },
                        None if target.starts_with("/dev/zero") => {
                            What::Nameless { name: format!("shared anonymous mapping {}", of.ino()) }
                        }
                        None if of.nlink() == 0 => What::Nameless { name: target.clone() },
                        None => What::File { path: target.clone(), links: of.nlink() },
                    };
                    (what, Some((member.pid, member.name().to_owned())), true)
                });
            }
        }
    }

    /// Adds files in the memory file systems that a process sees, by paths that lead to them from here.
    fn seen(&mut self, pid: u32, left: &mut usize) {
        let folder = of_process(pid);
        let is_alike = view(pid).is_some_and(|of| view(0) == Some(of));
        let root = PathBuf::from(if is_alike { "/".to_owned() } else { format!("{folder}/root") });
        let mounts = mounts::parse(&neap_process::text(format!("{folder}/mountinfo")).unwrap_or_default());
        let layers = mounts.iter().filter(|line| line.kind == "overlay").flat_map(|line| {
            let of = |name| line.option(name).unwrap_or_default().split(':').filter(|path| path.starts_with('/'));
            of("lowerdir").chain(of("upperdir")).map(|path| root.join(&path[1..])).collect::<Vec<_>>()
        });
        self.layers.extend(layers);
        let mut walked = HashSet::new();
        for line in mounts.iter().filter(|line| line.kind == "tmpfs") {
            if let Ok(place) = line.at.strip_prefix("/")
                && !place.starts_with("sys")
                && !place.starts_with("proc")
                && walked.insert((line.device, line.root.clone()))
            {
                self.walk(&root.join(place), left);
            }
        }
    }

    /// Adds the files below a folder, within its file system.
    fn walk(&mut self, folder: &Path, left: &mut usize) {
        let Ok(device) = fs::metadata(folder).map(|metadata| metadata.dev()) else { return };
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            if *left == 0 {
                return;
            }
            *left -= 1;
            let Ok(of) = entry.metadata() else { continue };
            let path = entry.path();
            if of.is_dir() && of.dev() == device {
                self.walk(&path, left);
            } else {
                self.add(&path, &of, || {
                    let path = path.display().to_string();
                    (What::File { path, links: of.nlink() }, None, false)
                });
            }
        }
    }
}

/// The System V segments of a process's namespace that no process has attached.
fn segments(pid: u32, charges: Option<&Charges>) -> Vec<Holder> {
    let is_other = namespace(pid, "ipc") != namespace(0, "ipc");
    let look = || {
        if is_other {
            sys::enter_ipc(&File::open(format!("{}/ns/ipc", of_process(pid)))?)?;
        }
        let listed = listed(&neap_process::text("/proc/sysvipc/shm")?);
        // With this setting the kernel removes a segment as soon as the last process detaches it: neap must not be that.
        let forced = neap_process::text("/proc/sys/kernel/shm_rmid_forced").is_ok_and(|text| text.trim() != "0");
        let of_one = |segment: &Segment| {
            let what = What::Segment { id: segment.id, of: is_other.then_some(pid) };
            let mut holder =
                Holder { what, bytes: segment.resident, charged: None, user: None, is_unused: segment.attached == 0 };
            if let Some(charges) = charges.filter(|_| !forced) {
                charge(&mut holder, charges.of_segment(segment.id, segment.length));
            }
            holder
        };
        let alone = listed.iter().filter(|segment| segment.attached == 0 && segment.resident >= LEAST);
        Ok::<_, io::Error>(alone.take(ASKED).map(of_one).collect::<Vec<_>>())
    };
    // In a thread of its own, because it stays in the namespace.
    std::thread::scope(|scope| scope.spawn(look).join()).ok().and_then(Result::ok).unwrap_or_default()
}

/// A line of `/proc/sysvipc/shm`.
#[derive(Debug, PartialEq, Eq)]
struct Segment {
    id: i32,
    length: u64,
    attached: u64,
    resident: u64,
}

/// ```text
///        key      shmid perms                  size  cpid  lpid nattch   uid   gid  cuid  cgid      atime ... rss  swap
///          0          5   600              62914560  7003  7003      0     0     0     0     0 1764310000 ... 62914560  0
/// ```
fn listed(text: &str) -> Vec<Segment> {
    let of_line = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse().ok();
        let length: u64 = number(3)?;
        // Linux 6.18 has 512 times as many bytes here for a segment of huge pages (SHM_HUGETLB).
        let resident = number(14)?.min(length);
        Some(Segment { id: fields.get(1)?.parse().ok()?, length, attached: number(6)?, resident })
    };
    text.lines().skip(1).filter_map(of_line).collect()
}

/// The number of the namespace that has all processes of the machine, in include/linux/proc_ns.h.
const ALL_PROCESSES: &str = "pid:[4026531836]";

/// Finds out which files no process of the machine has: one that has it open keeps its memory, and needs it.
fn find_unused(all: &mut [(Holder, Place)], layers: &[PathBuf]) {
    if namespace(0, "pid").is_none_or(|of| of.as_os_str() != ALL_PROCESSES) {
        return;
    }
    // The kernel has these open itself.
    let disks = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let backing = disks.filter_map(|disk| fs::read_to_string(disk.path().join("loop/backing_file")).ok());
    let kept: Vec<PathBuf> = backing.map(|path| PathBuf::from(path.trim_end())).chain(layers.iter().cloned()).collect();
    let mut wanted: HashMap<Id, usize> = HashMap::new();
    for (at, (holder, place)) in all.iter_mut().enumerate() {
        let is_own = holder.charged.is_some_and(|charged| charged >= LEAST);
        if is_own && holder.user.is_none() && !kept.iter().any(|kept| place.path.starts_with(kept)) {
            holder.is_unused = true;
            wanted.extend(fs::symlink_metadata(&place.path).map(|of| (id(&of), at)));
        }
    }
    if wanted.is_empty() {
        return;
    }
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        // A thread may have files of its own; the first one has none when it has ended.
        let threads = neap_process::threads(pid).unwrap_or_default().into_iter();
        let folders = threads.map(|tid| format!("/proc/{tid}/fd")).chain([format!("{}/map_files", of_process(pid))]);
        for folder in folders {
            for link in fs::read_dir(folder).into_iter().flatten().flatten() {
                let Some(at) = fs::metadata(link.path()).ok().and_then(|of| wanted.get(&id(&of)).copied()) else {
                    continue;
                };
                let name = neap_process::text(format!("/proc/{pid}/comm")).unwrap_or_default();
                let holder = &mut all[at].0;
                holder.is_unused = false;
                holder.user.get_or_insert((pid, name.trim_end().to_owned()));
            }
        }
    }
}

/// Memory of the kernel that the processes cause: bytes in pipes, BPF maps.
pub fn in_kernel(members: &[Member]) -> Vec<InKernel> {
    let (mut all, mut known) = (Vec::new(), HashSet::new());
    for member in members {
        let handle = sys::handle(member.pid).ok();
        let (mut pipes, mut waiting, mut maps, mut mapped) = (0, 0, 0, 0);
        for entry in fs::read_dir(format!("{}/fd", of_process(member.pid))).into_iter().flatten().flatten() {
            let Some(number) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
            let Ok(target) = fs::read_link(entry.path()).map(|target| target.display().to_string()) else { continue };
            if target.starts_with("pipe:") && known.insert(target.clone()) {
                let bytes = handle.as_ref().and_then(|handle| sys::in_pipe(handle, number).ok()).unwrap_or(0);
                (pipes, waiting) = (pipes + u64::from(bytes > 0), waiting + bytes);
            } else if target == "anon_inode:bpf-map" {
                let info =
                    neap_process::text(format!("{}/fdinfo/{number}", of_process(member.pid))).unwrap_or_default();
                let of = |name: &str| {
                    info.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok()).unwrap_or(0)
                };
                if known.insert(format!("map {}", of("map_id:"))) {
                    (maps, mapped) = (maps + 1, mapped + of("memlock:"));
                }
            }
        }
        let user = (member.pid, member.name().to_owned());
        let mut add = |words: String, bytes: u64| {
            if bytes >= 1 << 20 {
                all.push(InKernel { words, bytes, user: user.clone() });
            }
        };
        add(format!("{} with {} in them", units::count(pipes, "pipe"), units::bytes(waiting)), waiting);
        add(format!("{} of {}", units::count(maps, "BPF map"), units::bytes(mapped)), mapped);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen_by(pid: u32) -> Vec<Holder> {
        let (mut files, mut left) = (Files::default(), FILES);
        files.seen(pid, &mut left);
        files.all.into_iter().map(|(holder, _)| holder).collect()
    }

    fn has(all: &[Holder], path: &str) -> bool {
        all.iter().any(|of| of.name() == path && of.bytes >= 9_000_000)
    }

    /// Catches columns that are taken for others, and a list that is damaged.
    #[test]
    fn segments_are_listed() {
        let text = "  key shmid perms size cpid lpid nattch uid gid cuid cgid atime dtime ctime rss swap\n 0 5 600 \
                    62914560 7003 7004 2 0 0 0 0 1764310000 0 1764310000 4096 0\nbroken\n\
                    0 6 600 62914560 7003 7004 0 0 0 0 0 0 0 0 32212254720 0\n";
        let segment = |id, attached, resident| Segment { id, length: 62_914_560, attached, resident };
        assert_eq!(listed(text), [segment(5, 2, 4096), segment(6, 0, 62_914_560)]);
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
        let files = seen_by(child.id());
        let path = format!("/proc/{}/root/mnt/a b/large", child.id());
        let there = fs::metadata(&path).is_ok();
        let _ = child.kill().and_then(|()| child.wait());
        if line.is_empty() {
            println!("SKIPPED: no mount in a namespace of one's own here");
            return;
        }
        assert!(there && has(&files, &path), "{files:?}");
        assert!(seen_by(0).iter().all(|file| !file.name().starts_with("/proc/")));
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
        let files = tid.map(seen_by);
        drop(end);
        thread.join().expect("a thread");
        fs::remove_file(&file).expect("a file");
        let (Ok(tid), Ok(files)) = (tid, files) else {
            println!("SKIPPED: needs root, for chroot");
            return;
        };
        let path = format!("/proc/{tid}/root/shm/{name}");
        assert!(has(&files, &path), "{files:?}");
    }
}
