//! `neap why --cgroup` on a cgroup of this machine, and on the files of one of version 2.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::common::{Neap, compile, skip, stderr, stdout};
use super::{MIB, Planted, assert_cause, assert_near, check_sum, remedy};

/// A cgroup for one test, of version 1 or 2; removed at its end.
struct Cgroup(PathBuf);

impl Cgroup {
    fn new(name: &str) -> Option<Cgroup> {
        let text = fs::read_to_string("/proc/self/cgroup").ok()?;
        let line =
            |wanted: &str| text.lines().find_map(|line| line.split_once(wanted).map(|(_, path)| path.to_owned()));
        let folder = match line(":memory:") {
            Some(path) => PathBuf::from(format!("/sys/fs/cgroup/memory{path}/{name}")),
            None => PathBuf::from(format!("/sys/fs/cgroup{}/{name}", line("::")?)),
        };
        fs::create_dir(&folder).ok()?;
        let made = Cgroup(folder);
        made.charged()?;
        Some(made)
    }

    fn procs(&self) -> String {
        self.0.join("cgroup.procs").display().to_string()
    }

    fn look(&self, neap: &Neap) -> Value {
        let output = neap.output(["why", "--json", "--cgroup", &self.0.display().to_string()]);
        assert!(output.status.success(), "{}", stderr(&output));
        let report: Value = serde_json::from_str(&stdout(&output)).expect("JSON");
        check_sum(&report);
        report
    }

    fn charged(&self) -> Option<u64> {
        let read = |name| fs::read_to_string(self.0.join(name)).ok();
        read("memory.current").or_else(|| read("memory.usage_in_bytes"))?.trim().parse().ok()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// Catches page cache and files in memory of a container that are not named, and remedies that do not work.
#[test]
fn a_container_has_more_than_processes() {
    let neap = Neap::new();
    let Some(cgroup) = Cgroup::new(&format!("neap-why-{}", std::process::id())) else {
        return skip("a_container", "needs root, and a cgroup that may have others below it");
    };
    let (procs, look) = (cgroup.procs(), || cgroup.look(&neap));
    let fill = |file: &str| {
        let script = format!("echo $$ > {procs}; dd if=/dev/zero of={file} bs=1M count=64 2>/dev/null; sync {file}");
        assert!(Command::new("sh").args(["-c", &script]).status().expect("sh starts").success());
    };
    let shared = format!("/dev/shm/neap-why-test-{}", std::process::id());
    fill(&shared);
    let report = look();
    let before = cgroup.charged().expect("a number");
    assert_cause(&report, "tmpfs", "shared", 60 * MIB);
    if knows_charges() {
        // While a process has it open, removing it gives nothing back.
        let open = fs::File::open(&shared).expect("it is there");
        let commands = commands(&look());
        assert!(commands.iter().all(|command| !command.starts_with("rm")), "{commands:?}");
        drop(open);
        let promised = remedy(&report, &format!("rm {shared}"));
        fs::remove_file(&shared).expect("it is there");
        assert_near("rm of a file in memory", promised, before.saturating_sub(cgroup.charged().expect("a number")));
    } else {
        fs::remove_file(&shared).expect("it is there");
        skip("a_container: rm", "the kernel does not tell what is charged to whom");
    }

    let file = neap.path("cache").display().to_string();
    fill(&file);
    let report = look();
    assert_cause(&report, "page-cache", "file", 60 * MIB);
    let remedies = report["remedies"].as_array().expect("remedies");
    let command = remedies.iter().filter_map(|of| of["command"].as_str()).find(|command| command.starts_with("echo"));
    let (promised, before) = (remedy(&report, "page cache"), cgroup.charged().expect("a number"));
    let _ = Command::new("sh").args(["-c", command.expect("a command")]).stderr(Stdio::null()).status();
    assert_near("page cache", promised, before.saturating_sub(cgroup.charged().expect("a number")));
}

/// Catches a process that is not counted because its first thread has ended: "0 processes", and its memory unexplained.
#[test]
fn a_process_without_its_first_thread_counts() {
    let neap = Neap::new();
    let Some(program) = compile(neap.dir.path(), "odd", include_str!("odd.c"), &["-O0", "-w", "-pthread"]) else {
        return skip("a_process_without_its_first_thread", "needs a C compiler");
    };
    let Some(cgroup) = Cgroup::new(&format!("neap-why-first-{}", std::process::id())) else {
        return skip("a_process_without_its_first_thread", "needs root, and a cgroup that may have others below it");
    };
    let mut command = Command::new("sh");
    command.args(["-c", "echo $$ > \"$0\" && exec \"$1\" first"]).arg(cgroup.procs()).arg(&program);
    let first = Planted::of(command);
    let report = cgroup.look(&neap);
    let owner = format!("process {} odd", first.pid);
    let accounts = report["accounts"].as_array().expect("accounts");
    let own = accounts.iter().find(|of| of["owner"].as_str().is_some_and(|text| text.starts_with(&owner)));
    let bytes = own.and_then(|of| of["bytes"].as_u64()).unwrap_or(0);
    assert!(bytes >= 38 * MIB, "{report:#}");
}

/// Whether the kernel tells which cgroup an OS page is charged to.
fn knows_charges() -> bool {
    fs::File::open("/proc/kpagecgroup").is_ok()
}

fn commands(report: &Value) -> Vec<String> {
    let remedies = report["remedies"].as_array().expect("remedies").iter();
    remedies.filter_map(|of| of["command"].as_str()).map(str::to_owned).collect()
}

/// Catches files of other services that are called the cause or that neap proposes to remove, and holders of memory that
/// are not named: memory files and deleted files of a process, segments without one, pipes.
#[test]
fn holders_are_named_and_others_files_are_left_alone() {
    let neap = Neap::new();
    let test = "holders_are_named";
    let Some(program) = compile(neap.dir.path(), "hold", include_str!("hold.c"), &["-O1", "-w"]) else {
        return skip(test, "needs a C compiler");
    };
    if !knows_charges() {
        return skip(test, "the kernel does not tell what is charged to whom");
    }
    // It is larger than what the cgroups hold, and smaller.
    let others = [(100, "large"), (30, "small")].map(|(mib, name)| {
        let path = format!("/dev/shm/neap-why-other-{name}-{}", std::process::id());
        fs::write(&path, vec![1; mib << 20]).expect("a file");
        path
    });
    let held = |how: &str, check: &dyn Fn(&Cgroup, &Value, u32)| {
        let Some(cgroup) = Cgroup::new(&format!("neap-why-{how}-{}", std::process::id())) else {
            return skip(test, "needs root, and a cgroup that may have others below it");
        };
        let planted = Planted::start(&program, &[&cgroup.procs(), how], &[]);
        let report = cgroup.look(&neap);
        let text = report.to_string();
        assert!(!text.contains("neap-why-other"), "{report:#}");
        check(&cgroup, &report, planted.pid);
        drop(planted);
    };
    let file = |owner: &'static str| {
        move |_: &Cgroup, report: &Value, pid: u32| {
            assert_cause(report, "tmpfs", "shared", 60 * MIB);
            let first = &report["accounts"][0];
            let bytes = first["bytes"].as_u64().expect("bytes");
            assert!(first["owner"].as_str().is_some_and(|name| name.contains(owner)), "{report:#}");
            // The kernel's sums lag behind.
            assert!((60 * MIB..=64 * MIB).contains(&bytes), "{report:#}");
            let who = format!("process {pid} hold has it");
            assert!(report["verdict"].as_str().is_some_and(|text| text.contains(&who)), "{report:#}");
            assert_eq!(commands(report).iter().filter(|of| !of.starts_with("echo")).count(), 0, "{report:#}");
        }
    };
    held("memfd", &file("memfd:cache"));
    held("deleted", &file("/dev/shm/neap-why-deleted"));
    held("segment", &|cgroup, report, _| {
        assert_cause(report, "tmpfs", "shared", 60 * MIB);
        let command = commands(report).into_iter().find(|command| command.contains("ipcrm -m")).expect("a remedy");
        let (promised, before) = (remedy(report, "ipcrm"), cgroup.charged().expect("a number"));
        assert!(Command::new("sh").args(["-c", &command]).status().expect("sh starts").success(), "{command}");
        assert_near("ipcrm", promised, before.saturating_sub(cgroup.charged().expect("a number")));
    });
    held("pipes", &|_, report, pid| {
        assert_cause(report, "kernel", "vdso", 0);
        let verdict = report["verdict"].as_str().expect("a sentence");
        assert!(
            verdict.contains(&format!("process {pid} hold has 1024 pipes with 64.0 MiB in them open")),
            "{verdict}"
        );
    });
    let enabled = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    if enabled.contains("[madvise]") || enabled.contains("[always]") {
        held("huge", &|cgroup, report, _| {
            assert_cause(report, "freed-huge", "vdso", 60 * MIB);
            let command = commands(report).into_iter().find(|command| command.starts_with("echo")).expect("a remedy");
            let (promised, before) = (remedy(report, "echo"), cgroup.charged().expect("a number"));
            let _ = Command::new("sh").args(["-c", &command]).stderr(Stdio::null()).status();
            assert_near("freed huge pages", promised, before.saturating_sub(cgroup.charged().expect("a number")));
        });
    }
    for path in others {
        fs::remove_file(path).expect("no other removed it");
    }
}

/// `memory.stat` of a program with 24 MiB of page cache, 16 of tmpfs, 12 of its own, 41 in sockets of TCP and 7 in
/// pairs of local ones, as Linux 6.1 has it (zeros left out); `memory.current` was 110,727,168.
const STAT: &str = "anon 13688832\nfile 41984000\nkernel 11300864\npagetables 69632\nsock 43491328\nshmem 16781312
file_mapped 8388608\nfile_dirty 12288\nanon_thp 12582912\nslab_reclaimable 2977144
slab_unreclaimable 361904\nslab 3339048\n";

/// Catches figures of version 2 that are left out or subtracted twice, and processes below that are not found.
#[test]
fn version_2_adds_up() {
    let neap = Neap::new();
    let inner = neap.path("group/inner");
    fs::create_dir_all(&inner).expect("a folder");
    let group = neap.path("group");
    let own = std::process::id();
    for (name, text) in [
        ("memory.current", "110727168\n".to_owned()),
        ("memory.max", "134217728\n".to_owned()),
        ("memory.stat", STAT.to_owned()),
        ("cgroup.procs", String::new()),
        ("inner/cgroup.procs", format!("{own}\n0\n4194304\n")),
    ] {
        fs::write(group.join(name), text).expect("a file");
    }
    let output = neap.output(["why", "--json", "--cgroup", &group.display().to_string()]);
    assert!(output.status.success(), "{}", stderr(&output));
    let report: Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    check_sum(&report);
    let of = |owner: &str| {
        let accounts = report["accounts"].as_array().expect("accounts").iter();
        accounts.filter(|of| of["owner"] == owner).map(|of| of["bytes"].as_u64().expect("bytes")).sum::<u64>()
    };
    assert_eq!(
        (of("kernel: sockets"), of("page cache"), of("tmpfs and shared memory")),
        (43491328, 25202688, 16781312)
    );
    let rest = 11300864 - 3339048 - 69632;
    assert_eq!((of("kernel: not split further"), of("kernel: reclaimable slab")), (rest, 2977144), "{report:#}");
    assert_eq!(of("charged, in none of the kernel's figures"), 110727168 - 13688832 - 41984000 - 11300864 - 43491328);
    assert_eq!((&report["cause"], &report["processes"][0]["pid"]), (&"kernel".into(), &own.into()), "{report:#}");
    // It gave back 28,098,560.
    assert_near("memory.reclaim", remedy(&report, "memory.reclaim"), 28_098_560);
    assert!(report["verdict"].as_str().is_some_and(|text| text.contains("the limit is 128.0 MiB")), "{report:#}");
    fs::remove_file(group.join("memory.current")).expect("a file");
    let output = neap.output(["why", "--cgroup", &group.display().to_string()]);
    assert!(!output.status.success() && stderr(&output).contains("there is no cgroup"), "{}", stderr(&output));
}
