//! The kernel's text about a process.

use crate::model::Light;
use neap_account::parse::value;

/// Reads `/proc/PID/stat`: the name, faults, the start, where the program is. The name may contain blanks and brackets.
///
/// ```text
/// 4711 (a) b) S 1 4711 4711 0 -1 4194560 1204 0 3 0 5 2 0 0 20 0 1 0 8825 ...
/// ```
pub fn stat(text: &str) -> Option<(String, Light)> {
    let (head, tail) = text.rsplit_once(") ")?;
    let name = head.split_once(" (")?.1;
    let fields: Vec<&str> = tail.split_ascii_whitespace().take(26).collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    // Field 3 of proc_pid_stat(5) is the first one here.
    let (faults, ran) = ((number(7)?, number(9)?), number(11)? + number(12)?);
    let program = (number(23).unwrap_or(0), number(25).unwrap_or(0));
    let rss = number(21)?.saturating_mul(neap_launch::sys::page_size() as u64);
    let light = Light { started: number(19)?, program, rss, faults, ran, ..Light::default() };
    Some((name.to_owned(), light))
}

/// Whether a line of `stat` is of a thread of the kernel (`PF_KTHREAD`), which has no memory.
pub fn is_kernel(stat: &str) -> bool {
    const PF_KTHREAD: u64 = 0x20_0000;
    let tail = stat.rsplit_once(") ").map_or("", |(_, tail)| tail);
    tail.split(' ').nth(6).and_then(|flags| flags.parse::<u64>().ok()).is_some_and(|flags| flags & PF_KTHREAD != 0)
}

/// Adds the figures of `/proc/PID/status`; false for a process without memory: a kernel thread, or one that has ended.
pub fn status(text: &str, light: &mut Light) -> bool {
    let Some(rss) = value(text, "VmRSS") else { return false };
    let of = |name| value(text, name).unwrap_or(0);
    light.rss = rss;
    light.peak = of("VmHWM");
    light.swap = of("VmSwap");
    light.page_tables = of("VmPTE");
    light.hugetlb = of("HugetlbPages");
    true
}

/// The name of a process: the file name of its first argument, because the kernel's name has at most 15 characters.
pub fn command(name: &str, cmdline: &[u8]) -> String {
    let first = cmdline.split(|&byte| byte == 0).next().unwrap_or_default();
    let first = String::from_utf8_lossy(first);
    // Servers overwrite their arguments with a status: `nginx: worker process`.
    let word = first.split([' ', ':']).next().unwrap_or_default();
    let file = word.rsplit('/').next().unwrap_or_default().trim_start_matches('-');
    if file.is_empty() { name.to_owned() } else { file.to_owned() }
}

/// The container in `/proc/PID/cgroup`: the first twelve digits of an identifier, or a name; empty for none.
///
/// ```text
/// 0::/system.slice/docker-3f0c…64 digits….scope
/// 0::/kubepods/burstable/pod7d…/3f0c…64 digits…
/// 0::/lxc.payload.web/system.slice
/// ```
pub fn container(cgroup: &str) -> String {
    let paths = cgroup.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    paths.filter_map(of_path).next().unwrap_or_default()
}

fn of_path(path: &str) -> Option<String> {
    // The innermost one.
    path.rsplit('/').find_map(|part| {
        if let Some(name) = part.strip_prefix("lxc.payload.") {
            return Some(name.to_owned());
        }
        let part = part.strip_suffix(".scope").unwrap_or(part);
        if let Some(name) = part.strip_prefix("machine-") {
            return Some(name.to_owned());
        }
        let id = part.rsplit(['-', ':']).next()?;
        let is_id = id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_id.then(|| id[..12].to_owned())
    })
}

/// Libraries with their own malloc; an earlier one takes precedence.
const LIBRARIES: [(&str, &str); 7] = [
    ("libneap", "neap"),
    ("libjemalloc", "jemalloc"),
    ("libmimalloc", "mimalloc"),
    ("libtcmalloc", "tcmalloc"),
    ("libsnmalloc", "snmalloc"),
    ("libhardened_malloc", "hardened_malloc"),
    ("libscudo", "scudo"),
];

/// The malloc of a process according to the files in `/proc/PID/maps`; empty if they do not show it, as in static
/// programs.
pub fn allocator(maps: &str) -> &'static str {
    let mut best: Option<usize> = None;
    let mut libc = "";
    for line in maps.lines() {
        let path = line.find('/').map_or("", |at| &line[at..]);
        // neap's library may be removed after it is mapped.
        let file = path.rsplit('/').next().unwrap_or_default();
        if path == "/memfd:neap-counters (deleted)" {
            return "neap";
        }
        if let Some(at) = LIBRARIES.iter().position(|(start, _)| file.starts_with(start)) {
            best = Some(best.map_or(at, |before| before.min(at)));
        } else if file == "libc.so.6" || file.starts_with("libc-2.") {
            libc = "glibc";
        } else if file.starts_with("ld-musl-") && libc.is_empty() {
            libc = "musl";
        }
    }
    best.map_or(libc, |at| LIBRARIES[at].1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches names with brackets that shift all figures, and figures of another field.
    #[test]
    fn figures_are_found() {
        let text = "4711 (a) b) S 1 4711 4711 0 -1 4194560 1204 9 3 8 5 2 0 0 20 0 1 0 8825 1 2 3 40 50 60";
        assert!(!is_kernel(text) && is_kernel("2 (k) S 0 0 0 0 -1 2129984 0"));
        let (name, mut light) = stat(text).expect("a process");
        assert_eq!((name.as_str(), light.started, light.faults, light.ran), ("a) b", 8825, (1204, 3), 7));
        assert_eq!((light.program, light.rss), ((40, 60), 2 * neap_launch::sys::page_size() as u64));
        let text = "Name:\tx\nVmPeak:\t 9 kB\nVmHWM:\t 4 kB\nVmRSS:\t 3 kB\nVmPTE:\t 2 kB\nVmSwap:\t 1 kB\n";
        assert!(status(text, &mut light));
        assert_eq!((light.rss, light.peak, light.page_tables, light.swap), (3072, 4096, 2048, 1024));
        assert!(!status("Name:\tkthreadd\n", &mut light));
        assert!(stat("").is_none() && stat("1 (x) S 1").is_none());
    }

    /// Catches names that are cut, and status texts of servers.
    #[test]
    fn commands_have_names() {
        assert_eq!(command("a-very-long-nam", b"/usr/bin/a-very-long-name\0-x\0"), "a-very-long-name");
        assert_eq!(command("nginx", b"nginx: worker process\0"), "nginx");
        assert_eq!((command("bash", b"-bash\0").as_str(), command("x", b"").as_str()), ("bash", "x"));
    }

    /// Catches containers that are not recognised, and slices that are taken for one.
    #[test]
    fn containers_are_found() {
        let id = "3f0c5d7e9a".to_owned() + &"0".repeat(54);
        for path in
            ["/system.slice/docker-ID.scope", "/docker/ID", "/kubepods/besteffort/podx/ID", "/a/cri-containerd:ID"]
        {
            let text = format!("1:name=systemd:/\n0::{}\n", path.replace("ID", &id));
            assert_eq!(container(&text), "3f0c5d7e9a00", "{path}");
        }
        assert_eq!(container("0::/lxc.payload.web/system.slice/cron.service\n"), "web");
        assert_eq!(container("0::/machine.slice/machine-web.scope\n"), "web");
        for none in ["", "0::/\n", "0::/user.slice/user-0.slice/session-1.scope\n", "0::/system.slice/ssh.service\n"] {
            assert_eq!(container(none), "", "{none}");
        }
    }

    /// Catches a library besides the C library that is not recognised, or recognised in a folder's name.
    #[test]
    fn allocators_are_found() {
        let line = |path: &str| format!("1000-2000 r-xp 00000000 08:01 7      {path}\n");
        let libc = line("/usr/lib/x86_64-linux-gnu/libc.so.6");
        assert_eq!(allocator(&libc), "glibc");
        assert_eq!(allocator(&(libc.clone() + &line("/usr/lib/libjemalloc.so.2"))), "jemalloc");
        assert_eq!(allocator(&(line("/x/libneap.so (deleted)") + &line("/usr/lib/libjemalloc.so.2") + &libc)), "neap");
        assert_eq!(allocator(&line("/lib/ld-musl-x86_64.so.1")), "musl");
        assert_eq!(allocator(&line("/libjemalloc/program")), "");
    }
}
