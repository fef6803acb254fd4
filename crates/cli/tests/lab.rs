//! `neap lab` as a whole: what it lists, runs, keeps and shows, and what is left when it is interrupted.

mod common;

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use common::Neap;

/// Programs that the lab measures lie in its cache: their command lines name it.
fn processes_of(neap: &Neap) -> Vec<String> {
    let mark = neap.path(".cache/neap/lab").to_string_lossy().into_owned();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").expect("/proc").flatten() {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.contains(&mark) && entry.file_name() != "self" {
            found.push(line);
        }
    }
    found
}

/// How long anything may take: for what hangs.
const LIMIT: Duration = Duration::from_secs(300);

fn wait_for(what: &str, limit: Duration, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < limit, "{what}: not within {limit:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn start(neap: &Neap, arguments: &[&str]) -> Child {
    let mut command = neap.command(["lab", "run", "--quick", "--allocators", "glibc,neap", "-o"]);
    command.arg(neap.path("run")).args(arguments);
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("neap starts")
}

/// Sends the signal, and waits for the end, which must come soon.
fn interrupt(child: &mut Child, signal: &str) -> ExitStatus {
    let target = child.id().to_string();
    interrupt_all(child, signal, &target)
}

/// The same, with the signal sent to others as well: a process group is its number with a minus in front.
fn interrupt_all(child: &mut Child, signal: &str, target: &str) -> ExitStatus {
    let sent = Command::new("kill").args([signal, "--", target]).status().expect("kill");
    assert!(sent.success());
    let mut status = None;
    wait_for("the end after a signal", LIMIT, || {
        status = child.try_wait().expect("a child");
        status.is_some()
    });
    status.expect("ended")
}

fn kept(neap: &Neap) -> serde_json::Value {
    let text = fs::read_to_string(neap.path("run/run.json")).expect("run.json");
    serde_json::from_str(&text).expect("JSON")
}

/// Memory cgroups that a process of the lab made.
fn groups_of(pid: u32) -> Vec<PathBuf> {
    let name = format!("neap-workers-{pid}");
    ["/sys/fs/cgroup", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/unified"]
        .iter()
        .map(|root| Path::new(root).join(&name))
        .filter(|path| path.exists())
        .collect()
}

fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|out| out.stdout == b"0\n")
}

/// Catches an experiment that is not listed, and a list that is no JSON.
#[test]
fn experiments_are_listed() {
    let neap = Neap::new();
    let out = neap.output(["lab", "list"]);
    let text = String::from_utf8_lossy(&out.stdout);
    for name in ["calloc", "tls-chunks", "retain-large", "huge", "bursts", "workers", "programs", "suite"] {
        assert!(text.lines().any(|line| line.starts_with(name)), "{text}");
    }
    let out = neap.output(["lab", "list", "--json"]);
    let list: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
    assert_eq!(list.as_array().map(Vec::len), Some(text.lines().count()));
}

/// Catches a run outside of a checkout that lacks a source, a run that cannot be shown, and a report that is not written.
#[test]
fn a_run_is_kept_and_shown() {
    let neap = Neap::new();
    let mut command = neap.command(["lab", "run", "retain-small", "--quick", "--allocators", "glibc,neap", "--check"]);
    // Would be a remedy for glibc, if it were passed on.
    command.env("MALLOC_TRIM_THRESHOLD_", "131072").env("MALLOC_MMAP_THRESHOLD_", "131072");
    let out = command.current_dir(neap.dir.path()).args(["-o", "run"]).output().expect("neap starts");
    let stderr = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{stderr}");
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(text.contains("seen again: glibc, RSS after the frees"), "{text}");
    assert!(text.contains("not passed to the programs: `MALLOC_MMAP_THRESHOLD_=131072"), "{text}");
    assert_eq!(kept(&neap)["experiments"][0]["command"], "neap lab run retain-small --quick --allocators glibc,neap");
    assert_eq!(kept(&neap)["schema"], 1);
    assert!(fs::read_to_string(neap.path("run/report.html")).is_ok_and(|page| page.contains("retain-small")));

    let run = neap.path("run");
    let shown = neap.output(["lab".as_ref(), "show".as_ref(), run.as_os_str()]);
    assert_eq!(String::from_utf8_lossy(&shown.stdout), text);
    let shown = neap.output(["lab".as_ref(), "show".as_ref(), "--json".as_ref(), run.as_os_str()]);
    let json: serde_json::Value = serde_json::from_slice(&shown.stdout).expect("JSON");
    assert!(json["rows"].as_array().is_some_and(|rows| rows.len() > 20));
    assert!(json["experiments"][0]["seconds"].as_f64().is_some_and(|seconds| seconds > 1.0));

    let shown = |options: &[&str]| {
        let mut command = neap.command(["lab", "show"]);
        let out = command.args(options).arg(&run).arg("retain-small").output().expect("neap starts");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8_lossy(&out.stdout).into_owned()
    };
    let verdicts = shown(&["--verdicts"]);
    assert!(verdicts.contains("seen again: glibc") && !verdicts.contains("RSS in MiB"), "{verdicts}");
    assert!(verdicts.contains("In all: published findings seen again: "), "{verdicts}");
    let charts = neap.path("charts");
    shown(&["--dark", "--charts", &charts.to_string_lossy()]);
    let chart = fs::read_to_string(charts.join("retain-small-rounds.svg")).expect("a chart");
    assert!(chart.starts_with("<svg"), "{chart}");
    let out = neap.command(["lab", "show"]).arg(&run).arg("huge").output().expect("neap starts");
    let stderr = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.code() == Some(125) && stderr.contains("no experiment called `huge`"), "{stderr}");
}

/// Catches a folder without a run, or with one of a later neap, that ends in anything but a cause with its remedy.
#[test]
fn what_cannot_be_shown_is_reported() {
    let neap = Neap::new();
    let shown = |dir: &Path| {
        let out = neap.output(["lab".as_ref(), "show".as_ref(), dir.as_os_str()]);
        assert_eq!(out.status.code(), Some(125));
        String::from_utf8_lossy(&out.stderr).into_owned()
    };
    let dir = neap.path("kept");
    assert!(shown(&dir).contains("there is no folder"), "{}", shown(&dir));
    fs::create_dir(&dir).expect("a folder");
    assert!(shown(&dir).contains("no run in") && shown(&dir).contains("neap lab run -o"), "{}", shown(&dir));
    fs::write(dir.join("run.json"), "{\"schema\": 2, \"neap\": \"9.9\"}").expect("a file");
    assert!(shown(&dir).contains("written by neap 9.9"), "{}", shown(&dir));
}

/// Compiles a library called `name`, which needs those in `needed`.
fn library(neap: &Neap, name: &str, source: &str, needed: &[&Path]) -> PathBuf {
    let source = neap.file(&format!("{name}.c"), source, 0o600);
    let path = neap.path(name);
    let mut command = Command::new("cc");
    command.args(["-shared", "-fPIC", "-Wl,--no-as-needed", "-o"]).arg(&path).arg(source).args(needed);
    assert!(command.status().expect("cc").success());
    path
}

/// Catches an allocator that disappears because it crashes, and glibc that is measured under the name of a library that
/// the dynamic linker did not take.
#[test]
fn a_failing_allocator_stays_in_the_table() {
    let neap = Neap::new();
    let crashing = "#include <stdlib.h>\nvoid *malloc(size_t n) { (void)n; abort(); }\n";
    let bad = library(&neap, "libbad.so", crashing, &[]);
    let gone = library(&neap, "libgone.so", "int gone;\n", &[]);
    let lacking = library(&neap, "liblacking.so", "int lacking;\n", &[&gone]);
    fs::remove_file(gone).expect("it was there");
    let text = neap.file("text.so", "no library, whatever its name says\n".repeat(10), 0o600);
    let list = [("bad", &bad), ("lacking", &lacking), ("text", &text)];
    let list: Vec<String> = list.iter().map(|(name, path)| format!("{name}={}", path.display())).collect();
    let allocators = format!("glibc,{}", list.join(","));
    let arguments = ["lab", "run", "retain-small", "pagein", "--quick", "--allocators", &allocators, "-o"];
    let out = neap.command(arguments).arg(neap.path("run")).output().expect("neap starts");
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert!(text.contains("FAILED signal:6"), "{text}");
    let rows = fs::read_to_string(neap.path("run/rows.csv")).expect("rows");
    for experiment in ["retain-small", "pagein"] {
        let of = |name: &str| -> Vec<&str> {
            rows.lines().filter(|row| row.starts_with(experiment) && row.contains(&format!(",{name},"))).collect()
        };
        let lacks = |row: &&str| row.contains("not loaded (") && row.contains("libgone.so: cannot open");
        assert!(of("lacking").iter().all(lacks), "{:?}", of("lacking"));
        assert!(of("text").iter().all(|row| row.contains("not preloaded (invalid ELF header)")), "{:?}", of("text"));
        assert!(!of("lacking").is_empty() && !of("text").is_empty(), "{rows}");
    }
}

/// Catches a layout that the linker does not take, and figures of one side that are shown for the other.
#[test]
fn a_program_is_laid_out_again() {
    let neap = Neap::new();
    let mut command =
        neap.command(["lab", "run", "order", "--quick", "--cases", "and data", "--allocators", "glibc", "-o"]);
    let out = command.arg(neap.path("run")).output().expect("neap starts");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let rows = fs::read_to_string(neap.path("run/rows.csv")).expect("rows");
    let value = |metric: &str| -> Option<f64> {
        let row = rows.lines().find(|row| row.split(',').any(|field| field == metric))?;
        row.split(',').filter_map(|field| field.parse().ok()).next_back()
    };
    let Some((before, after)) = value("faults-before").zip(value("faults")) else {
        assert!(rows.contains("skipped"), "{rows}");
        return common::skip("a_program_is_laid_out_again", "neap order cannot trace here");
    };
    assert!(after < 0.5 * before, "{rows}");
}

/// Catches an earlier run that is lost, and one that cannot be replaced.
#[test]
fn an_earlier_run_is_not_overwritten() {
    let neap = Neap::new();
    let run = |options: &[&str]| {
        let mut command = neap.command(["lab", "run", "vmas", "--quick", "--allocators", "glibc", "-o"]);
        command.arg(neap.path("run")).args(options).output().expect("neap starts")
    };
    assert!(run(&[]).status.success());
    let rows = || fs::read_to_string(neap.path("run/rows.csv")).expect("rows");
    let before = rows();
    let out = run(&[]);
    let stderr = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.code() == Some(125) && stderr.contains("has a run already"), "{stderr}");
    assert!(stderr.contains("--force"), "{stderr}");
    assert_eq!(rows(), before);
    assert!(run(&["--force"]).status.success());
    assert_ne!(rows(), before);
}

/// Catches a missing compiler that ends in anything but a cause with its remedy.
#[test]
fn a_missing_compiler_is_reported() {
    let neap = Neap::new();
    let mut command = neap.command(["lab", "run", "retain-small", "--quick", "--allocators", "glibc", "-o"]);
    let out = command.arg(neap.path("run")).env("CC", "no-such-compiler").output().expect("neap starts");
    let stderr = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(125));
    assert!(stderr.contains("`no-such-compiler` is not installed") && stderr.contains("apt install"), "{stderr}");
}

/// Catches a missing C++ compiler that ends more than the workloads in C++.
#[test]
fn without_a_second_compiler_its_programs_are_skipped() {
    let neap = Neap::new();
    let mut command = neap.command(["lab", "run", "suite", "vmas", "--quick", "--cases", "strings,trees,blocks"]);
    command.args(["--allocators", "glibc", "-o"]).arg(neap.path("run")).env("CXX", "no-such-compiler");
    let out = command.output().expect("neap starts");
    let stderr = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{stderr}");
    let rows = fs::read_to_string(neap.path("run/rows.csv")).expect("rows");
    let has = |words: &[&str]| rows.lines().any(|row| words.iter().all(|word| row.contains(word)));
    assert!(has(&["suite,\"strings", "skipped: the compiler `no-such-compiler` is not installed"]), "{rows}");
    assert!(has(&["suite,\"trees", ",ok,"]) && has(&["vmas,", ",ok,"]), "{rows}");
}

/// Catches an error of the lab in one experiment that takes the others with it: their figures, verdicts and the report.
#[test]
fn an_error_of_the_lab_ends_one_experiment() {
    let neap = Neap::new();
    // Compiles all but one program.
    let compiler = "#!/bin/sh\ncase \"$*\" in *survivors*) echo broken >&2; exit 1;; esac\nexec cc \"$@\"\n";
    let compiler = neap.file("compiler", compiler, 0o700);
    let mut command = neap.command(["lab", "run", "retain-small", "survivors", "vmas", "--quick", "--allocators"]);
    let out = command.args(["glibc", "-o"]).arg(neap.path("run")).env("CC", compiler).output().expect("neap starts");
    let stderr = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.code() == Some(125) && stderr.contains("cannot compile experiments/survivors.c"), "{stderr}");
    let run = kept(&neap);
    assert!(!run["ended"].is_null() && run["noise"]["checks"].as_array().is_some_and(|checks| !checks.is_empty()));
    let of = |name: &str| {
        let all = run["experiments"].as_array().expect("experiments");
        all.iter().find(|one| one["name"] == name).expect("an experiment").clone()
    };
    assert!(of("survivors")["skipped"].as_str().is_some_and(|why| why.contains("ended early")), "{run}");
    let judged = |name: &str| of(name)["verdicts"].as_array().is_some_and(|list| !list.is_empty());
    assert!(judged("retain-small") && judged("vmas"));
    let rows = fs::read_to_string(neap.path("run/rows.csv")).expect("rows");
    assert!(rows.contains("\nvmas,") && rows.contains("\nretain-small,"), "{rows}");
    assert!(fs::read_to_string(neap.path("run/report.html")).is_ok_and(|page| page.contains("ended early")));
}

/// Catches ^C at a terminal that ends the compiler, whose failure then counts as one of the lab.
#[test]
fn an_interrupted_compiler_is_no_error() {
    let neap = Neap::new();
    let compiler = "#!/bin/sh\ncase \"$*\" in *survivors*) sleep 60;; esac\nexec cc \"$@\"\n";
    let compiler = neap.file("compiler", compiler, 0o700);
    let mut command = neap.command(["lab", "run", "retain-small", "survivors", "--quick", "--allocators", "glibc"]);
    command.arg("-o").arg(neap.path("run")).env("CC", compiler).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.process_group(0).spawn().expect("neap starts");
    wait_for("the compiler", LIMIT, || processes_of(&neap).iter().any(|line| line.contains("survivors.c")));
    // As a terminal does it: to the whole group.
    let group = format!("-{}", child.id());
    let status = interrupt_all(&mut child, "-INT", &group);
    assert_eq!(status.code(), Some(130), "128 + SIGINT");
    let run = kept(&neap);
    assert!(run["ended"].is_null());
    let verdicts = run["experiments"][0]["verdicts"].as_array().expect("verdicts");
    assert!(verdicts.iter().any(|verdict| verdict["holds"] == true), "{verdicts:?}");
    assert!(neap.path("run/report.html").exists());
    assert!(processes_of(&neap).is_empty(), "{:?}", processes_of(&neap));
}

/// Catches a misspelt name without the list of names.
#[test]
fn unknown_names_are_reported() {
    let neap = Neap::new();
    let out = neap.output(["lab", "run", "caloc"]);
    let stderr = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(125));
    assert!(stderr.contains("caloc") && stderr.contains("retain-large"), "{stderr}");
}

/// Catches an interruption that loses what was measured, and programs that go on without the lab.
#[test]
fn an_interrupted_run_keeps_what_it_has() {
    let neap = Neap::new();
    let mut child = start(&neap, &["retain-small", "latency"]);
    let rows = || fs::read_to_string(neap.path("run/rows.csv")).unwrap_or_default();
    wait_for("the first rows", LIMIT, || rows().contains("retain-small,rounds,neap"));
    wait_for("the second experiment", LIMIT, || processes_of(&neap).iter().any(|line| line.contains("latency-")));
    let status = interrupt(&mut child, "-INT");
    assert_eq!(status.code(), Some(130), "128 + SIGINT");
    assert!(processes_of(&neap).is_empty(), "{:?}", processes_of(&neap));
    let run = kept(&neap);
    assert!(run["ended"].is_null());
    assert!(rows().contains("retain-small,rounds,neap"));
    let verdicts = run["experiments"][0]["verdicts"].as_array().expect("verdicts");
    assert!(verdicts.iter().any(|verdict| verdict["holds"] == true), "{verdicts:?}");
}

/// Catches a memory cgroup that stays, and workers that outlive the lab.
#[test]
fn an_interrupted_run_removes_its_cgroup() {
    if !is_root() {
        eprintln!("skipped: needs root, to make a memory cgroup");
        return;
    }
    let neap = Neap::new();
    let mut child = start(&neap, &["workers"]);
    let begun = Instant::now();
    while groups_of(child.id()).is_empty() {
        if child.try_wait().expect("a child").is_some() || begun.elapsed() > LIMIT {
            eprintln!("skipped: no memory cgroup can be made here");
            let _ = child.kill();
            let _ = child.wait();
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let pid = child.id();
    let status = interrupt(&mut child, "-TERM");
    assert_eq!(status.code(), Some(143), "128 + SIGTERM");
    assert_eq!(groups_of(pid), Vec::<PathBuf>::new());
    assert!(processes_of(&neap).is_empty(), "{:?}", processes_of(&neap));
}

/// Catches settings of the kernel that stay changed: here the size of the kernel's huge pages. The reader of what neap
/// shows may also go away, as `head` does.
#[test]
fn an_interrupted_run_puts_settings_back() {
    const SETTING: &str = "/sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled";
    let _alone = common::huge_page_settings();
    let setting = || fs::read_to_string(SETTING).unwrap_or_default();
    let before = setting();
    if !is_root() || before.is_empty() || before.contains("[madvise]") {
        eprintln!("skipped: needs root and a kernel with several sizes of transparent huge pages");
        return;
    }
    for (signal, number) in [("-HUP", libc::SIGHUP), ("-QUIT", libc::SIGQUIT), ("", libc::SIGPIPE)] {
        let neap = Neap::new();
        let mut command = neap.command(["lab", "run", "--quick", "--allocators", "glibc,neap", "huge", "-o"]);
        command.arg(neap.path("run")).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("neap starts");
        wait_for("a changed setting", LIMIT, || {
            assert!(child.try_wait().expect("a child").is_none(), "it ended");
            setting().contains("[madvise]")
        });
        drop(child.stderr.take().filter(|_| signal.is_empty()));
        let status = match signal {
            "" => {
                wait_for("the end without a reader", LIMIT, || child.try_wait().expect("a child").is_some());
                child.wait().expect("a child")
            }
            signal => interrupt(&mut child, signal),
        };
        assert_eq!(status.code(), Some(128 + number));
        assert_eq!(setting(), before);
        assert!(!neap.path(".cache/neap/lab/settings-to-restore.json").exists());
        assert!(processes_of(&neap).is_empty(), "{:?}", processes_of(&neap));
    }
}
