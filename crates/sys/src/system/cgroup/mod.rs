//! Finds the memory limit that this process shares with others (of its cgroup, v1 or v2, or of the machine), and how
//! much of it is used. docs/containers.md says what is read and what that costs.
//!
//! - `parse`: the kernel's text formats, pure;
//! - `files`: opening and reading, in pieces;
//! - `groups`: which cgroups limit the process, and what they say.
//!
//! All of it runs inside the allocator: nothing here allocates, waits, touches errno or panics. The caller may have a
//! stack of 16 KiB, so buffers are static. One thread reads at a time, and the others get its last answer.

mod files;
mod groups;
mod parse;
use crate::system::call;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use files::{Buffers, Files};
use groups::{Groups, machine};
use neap_core::os::Memory;
use neap_core::time::passed;

/// Milliseconds after which limits, and the cgroup of the process, are looked up again. That is soon enough for an
/// administrator who changes them, and takes a hundredth of a percent of the time of one processor.
const SURVEY_MS: u64 = 1000;

/// Milliseconds after which the table of mounts is read again. It may be long, and cgroups are rarely mounted anew
/// while a program runs.
const LOCATE_MS: u64 = 60_000;

// All zero, so it takes no room in the library's file, and no OS page before the first call.
static PROBE: Probe = Probe::new();

/// [`neap_core::Os::memory`], at the time `now` in milliseconds. Not for a guest: it may be killed in the middle of a
/// lookup, and then the owner would never look up again.
#[cold]
pub(crate) fn memory(now: u64) -> Option<Memory> {
    PROBE.memory(Files { root: b"" }, now, call::process())
}

/// The last answer of [`memory`], without a lookup.
pub(crate) fn last() -> Option<Memory> {
    PROBE.last.get()
}

/// To be called in the child of a fork that interrupted no call: another thread of the parent may have been in a
/// lookup. (A fork in a handler that interrupts a call does not call this. If this thread was in a lookup, that goes on
/// in the child; if another one was, the child never makes one again.)
pub(crate) fn forked() {
    PROBE.forked();
}

/// Finds the memory limit that a process shares with others, and its use.
#[derive(Debug)]
struct Probe {
    /// The process of the thread that makes a lookup now; 0: none does.
    looking: AtomicU32,
    view: UnsafeCell<View>,
    last: Last,
}

// SAFETY: only the thread that set `looking` uses `view`.
unsafe impl Sync for Probe {}

impl Probe {
    /// Nothing was looked up yet.
    const fn new() -> Probe {
        Probe { looking: AtomicU32::new(0), view: UnsafeCell::new(View::NEW), last: Last::new() }
    }

    fn memory(&self, files: Files, now: u64, process: u32) -> Option<Memory> {
        // Acquire pairs with the Release below: this thread sees what the last one that looked wrote.
        let take = |from| self.looking.compare_exchange(from, process, Ordering::Acquire, Ordering::Relaxed);
        let left = match take(0) {
            Ok(_) => false,
            // The number is another process's: this one is its child, made without fork handlers while a thread there
            // was in a lookup.
            Err(other) if other != process && take(other).is_ok() => true,
            Err(_) => return self.last.get(),
        };
        // SAFETY: no other thread of this process is in a lookup, so the view is this thread's.
        let memory = unsafe {
            // A lookup that was cut off leaves an invalid view.
            (*self.view.get()).found &= !left;
            (*self.view.get()).memory(files, now)
        };
        self.last.set(memory);
        self.looking.store(0, Ordering::Release);
        memory
    }

    fn forked(&self) {
        // Relaxed, twice: there is one thread.
        if self.looking.load(Ordering::Relaxed) != 0 {
            // A lookup that was cut off leaves an invalid view.
            // SAFETY: there is one thread, and it is not in the middle of a lookup, which is a part of a call.
            unsafe { (*self.view.get()).found = false };
            self.looking.store(0, Ordering::Relaxed);
        }
    }
}

/// The last answer. Words that two threads store at the same time may be mixed, which is good enough for an approximate
/// figure. A limit of 0: no answer.
#[derive(Debug)]
struct Last {
    limit: AtomicUsize,
    used: AtomicUsize,
    stalled: AtomicBool,
}

impl Last {
    const fn new() -> Last {
        Last { limit: AtomicUsize::new(0), used: AtomicUsize::new(0), stalled: AtomicBool::new(false) }
    }

    // Relaxed, here and below: see above.
    fn get(&self) -> Option<Memory> {
        let limit = self.limit.load(Ordering::Relaxed);
        let (used, stalled) = (self.used.load(Ordering::Relaxed), self.stalled.load(Ordering::Relaxed));
        (limit > 0).then_some(Memory { limit, used, stalled })
    }

    fn set(&self, memory: Option<Memory>) {
        let memory = memory.unwrap_or(Memory { limit: 0, used: 0, stalled: false });
        self.limit.store(memory.limit, Ordering::Relaxed);
        self.used.store(memory.used, Ordering::Relaxed);
        self.stalled.store(memory.stalled, Ordering::Relaxed);
    }
}

/// What the last lookup found, and when.
#[derive(Debug)]
struct View {
    /// Whether the rest is valid.
    found: bool,
    /// When limits were last looked for, by [`neap_core::Os::clock`].
    surveyed: u64,
    /// When the table of mounts was last read.
    located: u64,
    groups: Groups,
    buffers: Buffers,
}

impl View {
    const NEW: View = View { found: false, surveyed: 0, located: 0, groups: Groups::NONE, buffers: Buffers::new() };

    fn memory(&mut self, files: Files, now: u64) -> Option<Memory> {
        if !self.found || passed(now, self.surveyed) >= SURVEY_MS {
            let keep = self.found && passed(now, self.located) < LOCATE_MS;
            self.look(files, now, keep);
        } else if self.groups.count > 0 {
            let memory = self.groups.memory(files, &mut self.buffers);
            if memory.is_some() {
                return memory;
            }
            // A cgroup no longer exists: the process was moved, or its cgroups are mounted elsewhere.
            self.look(files, now, false);
        }
        self.groups.memory(files, &mut self.buffers).or_else(|| machine(files, &mut self.buffers))
    }

    /// Looks for limits, and for the mount too unless `keep` says to keep the one that was found.
    fn look(&mut self, files: Files, now: u64, keep: bool) {
        self.groups.find(files, &mut self.buffers, keep);
        self.surveyed = now;
        if !keep {
            self.located = now;
        }
        self.found = true;
    }
}

/// The probe on trees of files as real systems have them.
#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const MIB: usize = 1 << 20;
    const NONE_V1: &str = "9223372036854771712\n";
    const CALM: &str =
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n";
    const BUSY: &str =
        "some avg10=12.50 avg60=3.00 avg300=0.50 total=9\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n";
    const SYSTEMD_MOUNTS: &str = "\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
23 22 0:21 / /proc rw,nosuid,nodev,noexec,relatime shared:12 - proc proc rw
29 23 0:25 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot
    ";
    const V1_MOUNTS: &str = "\
22 27 0:21 / /proc rw,relatime - proc proc rw
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
    ";

    /// A tree of files in place of the system's, and a probe for it.
    struct Tree {
        dir: PathBuf,
        probe: Probe,
    }

    impl Tree {
        fn new() -> Tree {
            static NEXT: AtomicUsize = AtomicUsize::new(0);
            let name = format!("neap-cgroup-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
            let tree = Tree { dir: std::env::temp_dir().join(name), probe: Probe::new() };
            // A test that was killed left it, and its process had this one's number.
            let _ = std::fs::remove_dir_all(&tree.dir);
            std::fs::create_dir(&tree.dir).unwrap();
            tree
        }

        /// A machine of 16 GiB, 12 of them available.
        fn machine() -> Tree {
            let text = "MemTotal:       16777216 kB\nMemFree:         8388608 kB\nMemAvailable:   12582912 kB\nBuffers: 1 kB\n";
            Tree::new().with("proc/meminfo", text).with("proc/pressure/memory", CALM)
        }

        fn with(self, path: &str, text: &str) -> Tree {
            self.write(path, text);
            self
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.dir.join(OsStr::from_bytes(path.as_bytes()));
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }

        /// A cgroup of v2 that uses `used` MiB, `file` of them inactive file memory.
        fn v2(self, dir: &str, max: &str, high: &str, used: usize, file: usize) -> Tree {
            let stat = format!("anon 1\nfile 2\ninactive_anon 3\ninactive_file {}\nslab_reclaimable 0\n", file * MIB);
            self.with(&format!("{dir}/memory.max"), max)
                .with(&format!("{dir}/memory.high"), high)
                .with(&format!("{dir}/memory.current"), &format!("{}\n", used * MIB))
                .with(&format!("{dir}/memory.stat"), &stat)
        }

        /// A cgroup of v1, likewise.
        fn v1(self, dir: &str, limit: &str, used: usize, file: usize) -> Tree {
            let stat = format!("cache 5\ninactive_file 77\ntotal_cache 5\ntotal_inactive_file {}\n", file * MIB);
            self.with(&format!("{dir}/memory.limit_in_bytes"), limit)
                .with(&format!("{dir}/memory.usage_in_bytes"), &format!("{}\n", used * MIB))
                .with(&format!("{dir}/memory.stat"), &stat)
                .with(&format!("{dir}/memory.use_hierarchy"), "1\n")
        }

        fn at(&self, now: u64) -> Option<Memory> {
            self.probe.memory(Files { root: self.dir.as_os_str().as_bytes() }, now, 1)
        }

        /// Limit and use in MiB, and whether threads wait, at the first call and at one that uses what is kept.
        #[track_caller]
        fn says(&self, limit: usize, used: usize, stalled: bool) {
            let want = Some(Memory { limit: limit * MIB, used: used * MIB, stalled });
            assert_eq!(self.at(5), want);
            assert_eq!(self.at(6), want, "what was kept says something else");
        }

        #[track_caller]
        fn says_machine(&self) {
            self.says(16384, 4096, false);
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }

    fn mib(n: usize) -> String {
        format!("{}\n", n * MIB)
    }

    /// Catches a limit of a slice that is missed for a service in it, and a limit of a cgroup that is not on the path.
    #[test]
    fn systemd_slices() {
        let group = "sys/fs/cgroup/system.slice/redis.service";
        let tree = Tree::machine()
            .with("proc/self/mountinfo", SYSTEMD_MOUNTS)
            .with("proc/self/cgroup", "0::/system.slice/redis.service\n")
            .v2(group, "max\n", "max\n", 100, 50)
            .v2("sys/fs/cgroup/system.slice", &mib(1000), "max\n", 600, 200)
            .v2("sys/fs/cgroup/user.slice", &mib(10), "max\n", 10, 0);
        tree.says(1000, 400, false);
        tree.write(&format!("{group}/memory.max"), &mib(300));
        assert_eq!(tree.at(7).unwrap().limit, 1000 * MIB, "limits are kept for a second");
        let own = Memory { limit: 300 * MIB, used: 50 * MIB, stalled: false };
        assert_eq!(tree.at(5 + SURVEY_MS), Some(own), "and looked for again after it");
    }

    /// Catches the innermost limit taken instead of the one with the least left, and reclaimable memory forgotten in
    /// that choice.
    #[test]
    fn the_limit_with_the_least_left_counts() {
        let pods = "sys/fs/cgroup/kubepods.slice";
        let path = "/kubepods.slice/kubepods-burstable.slice/pod1.slice/cri-containerd-0a.scope";
        let tree = Tree::machine()
            .with("proc/self/mountinfo", SYSTEMD_MOUNTS)
            .with("proc/self/cgroup", &format!("0::{path}\n"))
            .v2(&format!("sys/fs/cgroup{path}"), &mib(500), "max\n", 400, 0)
            .v2(&format!("{pods}/kubepods-burstable.slice/pod1.slice"), &mib(1000), "max\n", 950, 500)
            .v2(&format!("{pods}/kubepods-burstable.slice"), "max\n", "max\n", 5000, 0)
            .v2(pods, &mib(6000), "max\n", 5930, 10);
        // Left with what can be taken back: 100, 550, 80.
        tree.says(6000, 5920, false);
        tree.write(&format!("{pods}/memory.current"), &mib(5000));
        assert_eq!(tree.at(7).unwrap().limit, 500 * MIB);
        tree.write(&format!("{pods}/kubepods-burstable.slice/pod1.slice/memory.stat"), "inactive_file 0\n");
        assert_eq!(tree.at(8).unwrap(), Memory { limit: 1000 * MIB, used: 950 * MIB, stalled: false });
    }

    /// Catches `memory.high` missed, or preferred where it is higher.
    #[test]
    fn high_counts_where_it_is_lower() {
        for (max, high, limit) in [("max\n", mib(300), 300), (&mib(400), mib(300), 300), (&mib(200), mib(300), 200)] {
            let tree = Tree::machine()
                .with("proc/self/mountinfo", SYSTEMD_MOUNTS)
                .with("proc/self/cgroup", "0::/a\n")
                .v2("sys/fs/cgroup/a", max, &high, 100, 0);
            tree.says(limit, 100, false);
        }
    }

    /// Catches memory that the kernel can take back at once counted as used; all of its own caches called reclaimable.
    #[test]
    fn half_of_the_slabs_can_be_taken_back() {
        let stat = format!("anon 1\ninactive_file {}\nunevictable 0\nslab_reclaimable {}\n", 10 * MIB, 20 * MIB);
        Tree::machine()
            .with("proc/self/mountinfo", SYSTEMD_MOUNTS)
            .with("proc/self/cgroup", "0::/a\n")
            .v2("sys/fs/cgroup/a", &mib(200), "max\n", 100, 0)
            .with("sys/fs/cgroup/a/memory.stat", &stat)
            .says(200, 80, false);
    }

    /// Catches a container with a cgroup namespace: its own cgroup is the root of what it sees, and has limits there.
    #[test]
    fn docker_private_namespace() {
        Tree::machine()
            .with("proc/self/mountinfo", "700 699 0:28 / /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw,nsdelegate\n")
            .with("proc/self/cgroup", "0::/\n")
            .v2("sys/fs/cgroup", &mib(512), "max\n", 500, 100)
            .with("sys/fs/cgroup/memory.pressure", BUSY)
            .says(512, 400, true);
    }

    /// Catches a path of the host that is looked for below a mount point that shows only the container.
    #[test]
    fn docker_host_namespace() {
        let mounts = "\
690 600 0:26 /docker/0a1b /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct
691 600 0:27 /docker/0a1b /sys/fs/cgroup/memory ro,relatime master:15 - cgroup cgroup rw,memory
";
        Tree::machine()
            .with("proc/self/mountinfo", mounts)
            .with("proc/self/cgroup", "12:cpu,cpuacct:/docker/0a1b\n5:memory:/docker/0a1b/inner\n0::/docker/0a1b\n")
            .v1("sys/fs/cgroup/memory", &mib(256), 200, 20)
            .v1("sys/fs/cgroup/memory/inner", NONE_V1, 10, 0)
            .says(256, 180, false);
    }

    /// Catches a mount made outside the namespace: its root is above the process's, so its mount point limits it too.
    #[test]
    fn mounts_that_do_not_show_the_group() {
        for root in ["/../..", "/docker/other"] {
            let mounts = format!("700 699 0:28 {root} /cg ro - cgroup2 cgroup rw\n");
            Tree::machine()
                .with("proc/self/mountinfo", &mounts)
                .with("proc/self/cgroup", "0::/\n")
                .v2("cg", &mib(512), "max\n", 100, 0)
                .says(512, 100, false);
        }
        let tree = Tree::machine()
            .with("proc/self/mountinfo", "1 1 0:2 /x /one ro - cgroup2 c rw\n2 1 0:2 /a /two ro - cgroup2 c rw\n")
            .with("proc/self/cgroup", "0::/a/b\n")
            .v2("one", &mib(1), "max\n", 1, 0)
            .v2("two/b", &mib(512), "max\n", 100, 0);
        tree.says(512, 100, false);
    }

    /// Catches v2 read where the memory controller is v1's; "no limit" of v1 taken for a limit; own use for that of
    /// all.
    #[test]
    fn hybrid() {
        let tree = Tree::machine()
            .with("proc/self/mountinfo", V1_MOUNTS)
            .with("proc/self/cgroup", "9:name=systemd:/\n4:memory:/outer/inner\n2:cpuacct:/\n0::/\n")
            .v1("sys/fs/cgroup/memory", NONE_V1, 9000, 0)
            .v1("sys/fs/cgroup/memory/outer", &mib(100), 90, 30)
            .v1("sys/fs/cgroup/memory/outer/inner", "9223372036854710272\n", 50, 7)
            .v2("sys/fs/cgroup/unified", &mib(3), "max\n", 1, 0);
        tree.says(100, 60, false);
        tree.write("proc/pressure/memory", BUSY);
        assert!(tree.at(9).unwrap().stalled, "v1 has no pressure of its own");
        // Before Linux 5.11 a cgroup might not count its children.
        tree.write("sys/fs/cgroup/memory/outer/memory.use_hierarchy", "0\n");
        assert_eq!(tree.at(5000).unwrap().limit, 16384 * MIB);
    }

    /// Catches a limit above all memory taken for one.
    #[test]
    fn no_limit_is_the_machine() {
        let tree = Tree::machine().with("proc/self/mountinfo", SYSTEMD_MOUNTS).with("proc/self/cgroup", "0::/a\n");
        tree.says_machine();
        let tree = tree.v2("sys/fs/cgroup/a", "max\n", "max\n", 100, 0);
        tree.says_machine();
        let tree = tree.v2("sys/fs/cgroup/a", &mib(16385), "max\n", 100, 0);
        assert_eq!(tree.at(9999).unwrap().limit, 16384 * MIB);
        tree.write("proc/meminfo", "MemTotal: 2048 kB\nMemFree: 1024 kB\nInactive(file): 512 kB\n");
        tree.write("proc/pressure/memory", BUSY);
        let old = Memory { limit: 2 * MIB, used: MIB / 2, stalled: true };
        assert_eq!(tree.at(9999), Some(old), "before Linux 3.14 nothing is called available");
    }

    /// Catches a mount point with a space, as the kernel writes it; a cgroup with the characters that separate fields.
    #[test]
    fn escaped_names() {
        Tree::machine()
            .with("proc/self/mountinfo", "1 1 0:2 /a\\040b /my\\040groups rw - cgroup2 none rw\n")
            .with("proc/self/cgroup", "0::/a b/c:d \\e\n")
            .v2("my groups/c:d \\e", &mib(64), "max\n", 10, 0)
            .says(64, 10, false);
    }

    /// Catches a process that is moved: to where it goes, and when the cgroup that it left is removed.
    #[test]
    fn moved_processes() {
        let tree = Tree::machine()
            .with("proc/self/mountinfo", SYSTEMD_MOUNTS)
            .with("proc/self/cgroup", "0::/a\n")
            .v2("sys/fs/cgroup/a", &mib(64), "max\n", 10, 0)
            .v2("sys/fs/cgroup/b", &mib(32), "max\n", 20, 0);
        tree.says(64, 10, false);
        tree.write("proc/self/cgroup", "0::/b\n");
        std::fs::remove_dir_all(tree.dir.join("sys/fs/cgroup/a")).unwrap();
        tree.says(32, 20, false);
        tree.write("proc/self/cgroup", "0::/\n");
        assert_eq!(tree.at(7).unwrap().limit, 32 * MIB);
        assert_eq!(tree.at(7 + SURVEY_MS).unwrap().limit, 16384 * MIB);
        // The table of mounts is read again now and then, also where nothing fails.
        tree.write("proc/self/mountinfo", "700 699 0:28 / /cg ro - cgroup2 cgroup rw\n");
        tree.write("cg/memory.max", &mib(16));
        tree.write("cg/memory.current", &mib(8));
        assert_eq!(tree.at(7 + 3 * SURVEY_MS).unwrap().limit, 16384 * MIB);
        assert_eq!(tree.at(7 + 3 * SURVEY_MS + LOCATE_MS).unwrap().limit, 16 * MIB);
    }

    /// Catches files that are missing, empty or nonsense taken for numbers, and a panic on them.
    #[test]
    fn nonsense_is_passed_over() {
        assert_eq!(Tree::new().at(1), None, "no /proc");
        assert_eq!(Tree::new().with("proc/meminfo", "MemTotal: 0 kB\n").at(1), None);
        let files =
            ["proc/self/mountinfo", "proc/self/cgroup", "sys/fs/cgroup/a/memory.max", "sys/fs/cgroup/a/memory.current"];
        for file in files {
            for text in ["", "\n", "max", "-5\n", "\0\0\0", ":::::\n", "0::\n", "- - - - - - - -\n", &"9".repeat(5000)]
            {
                Tree::machine()
                    .with("proc/self/mountinfo", SYSTEMD_MOUNTS)
                    .with("proc/self/cgroup", "0::/a\n")
                    .v2("sys/fs/cgroup/a", &mib(64), "max\n", 10, 0)
                    .with(file, text)
                    .says_machine();
            }
        }
        // Without memory.stat and pressure the rest still counts; nonsense in one level leaves the others.
        Tree::machine()
            .with("proc/self/mountinfo", SYSTEMD_MOUNTS)
            .with("proc/self/cgroup", "0::/a/b\n")
            .v2("sys/fs/cgroup/a", &mib(64), "nonsense", 10, 0)
            .v2("sys/fs/cgroup/a/b", "nonsense", "", 10, 0)
            .with("sys/fs/cgroup/a/memory.stat", "inactive_file\nslab_reclaimable -\n")
            .with("sys/fs/cgroup/a/memory.pressure", "some avg10=lots\n")
            .says(64, 10, false);
    }

    /// Catches a path or a depth beyond the limits that leaves no result, or takes time without bound.
    #[test]
    fn deep_groups() {
        let deep = |n: usize| (0..n).map(|i| format!("/group{i:02}")).collect::<String>();
        let tree = |n: usize| {
            Tree::machine()
                .with("proc/self/mountinfo", SYSTEMD_MOUNTS)
                .with("proc/self/cgroup", &format!("0::{}\n", deep(n)))
        };
        tree(90).v2(&format!("sys/fs/cgroup{}", deep(60)), &mib(64), "max\n", 10, 0).says(64, 10, false);
        let mut full = tree(30);
        for n in 1..=30 {
            full = full.v2(&format!("sys/fs/cgroup{}", deep(n)), &mib(1000 - n), "max\n", 10, 0);
        }
        full.says(970, 10, false);
        tree(90).says_machine();
    }

    /// Prints what a call costs: `cargo test -p neap-sys --release --lib cost -- --ignored --nocapture`.
    #[test]
    #[ignore = "a measurement"]
    fn cost() {
        let files = Files { root: b"" };
        let time = |name: &str, call: &mut dyn FnMut() -> Option<Memory>| {
            let mut times: Vec<_> = (0..2000)
                .map(|_| {
                    let start = std::time::Instant::now();
                    std::hint::black_box(call());
                    start.elapsed()
                })
                .collect();
            times.sort();
            println!("{name}: median {:?}, 90th percentile {:?}", times[1000], times[1800]);
        };
        let probe = Probe::new();
        println!("{:?}", probe.memory(files, 0, 1));
        time("a call", &mut || probe.memory(files, 0, 1));
        let mut now = 0;
        time("after a second", &mut || {
            now += SURVEY_MS;
            probe.memory(files, now, 1)
        });
        time("the first call", &mut || Probe::new().memory(files, 0, 1));
    }

    /// Catches a child of a fork that gets old figures for ever, because a thread of its parent was in a lookup; and a
    /// second thread that makes one at the same time.
    #[test]
    fn another_thread_looks() {
        let tree = Tree::machine();
        tree.says_machine();
        tree.write("proc/meminfo", "MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\n");
        tree.probe.looking.store(1, Ordering::Relaxed);
        tree.says_machine();
        tree.probe.forked();
        tree.says(8192, 4096, false);
        // A child that was made without fork handlers: the process that looked is another.
        tree.probe.looking.store(2, Ordering::Relaxed);
        tree.write("proc/meminfo", "MemTotal: 4194304 kB\nMemAvailable: 2097152 kB\n");
        tree.says(4096, 2048, false);
    }
}
