//! Free memory of a real process: it goes back while the program idles, and the helper does not disturb the program:
//! signals, forks, files, users, namespaces, priorities, filters of system calls, memory limits.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use neap_tests::{Case, Finished, Outcome, Run, SKIP_STATUS, Source, Stop, judge_case, library, program, suite, sys};

const IDLE: Source = Source::new("purge/idle.c");
const PROCESS: Source = Source::new("purge/process.c");
const RIGHTS: Source = Source::new("purge/rights.c");
const FILTERS: Source = Source::new("purge/filters.c");
const CONTAINER: Source = Source::new("purge/container.c");
const SCHEDULED: Source = Source::new("purge/scheduled.c");
const MAPPINGS: Source = Source::new("purge/mappings.c");
const TRACED: Source = Source::new("purge/traced.c");
const SOAK: Source = Source::new("life/soak.c");

/// Program, case, a variable to set (or two empty strings), and what the case would catch.
type Row = (Source, &'static str, (&'static str, &'static str), &'static str);

/// Nothing to set.
const PLAIN: (&str, &str) = ("", "");

const CASES: &[Row] = &[
    (IDLE, "large", PLAIN, "large blocks that an idle program keeps for more than a second"),
    (IDLE, "small", PLAIN, "the same for small blocks"),
    (IDLE, "mixed", PLAIN, "the same for blocks of all sizes"),
    (IDLE, "freeing_thread_blocks", PLAIN, "memory that waits for the thread that freed it"),
    (IDLE, "blocks_at_hand", PLAIN, "large blocks that stay in the cache of the thread that freed them last"),
    (IDLE, "caches_of_idle_threads", PLAIN, "blocks that stay in the caches of sleeping threads"),
    (IDLE, "caches_filled_late", PLAIN, "blocks in the caches of sleeping threads where no free started the helper"),
    (IDLE, "helper_comes_and_goes", PLAIN, "a helper that stays when nothing waits, or starts only once"),
    (IDLE, "little_memory", PLAIN, "a helper thread for less than 1 MiB of free memory"),
    (IDLE, "never", ("NEAP_PURGE", "never"), "a helper thread that has nothing to do"),
    (IDLE, "exit_is_prompt", PLAIN, "an exit that waits for the helper"),
    (IDLE, "last_thread_ends", PLAIN, "a process that lives on because of the helper"),
    (IDLE, "no_more_threads", PLAIN, "memory that stays because no thread can be started"),
    (PROCESS, "signals", PLAIN, "a signal that the helper takes or handles"),
    (PROCESS, "exec_", PLAIN, "exec that the helper disturbs"),
    (PROCESS, "all_fds_closed", PLAIN, "calloc that trusts a file the program has closed"),
    (PROCESS, "all_fds_replaced", PLAIN, "calloc that trusts a file the program has replaced"),
    (PROCESS, "other_pagemap", PLAIN, "calloc that asks another process's page map"),
    (PROCESS, "lowest_fd", PLAIN, "a low file number that stays taken, or a file that outlives exec"),
    (
        PROCESS,
        "lowest_fd_at_start",
        ("NEAP_PURGE_DELAY", "50ms"),
        "a file that the helper opens in the program's table when it starts",
    ),
    (
        PROCESS,
        "unshare_user",
        PLAIN,
        "unshare that is refused because of the helper, or a helper that never comes back",
    ),
    (PROCESS, "unshare_by_syscall", PLAIN, "the same through syscall"),
    (PROCESS, "unshare_fails", PLAIN, "an error of unshare or setns that is lost, or that leaves no helper"),
    (PROCESS, "unshare_at_once", PLAIN, "calls of several threads, of which the first to end lets the helper start"),
    (PROCESS, "fork_in_unshare", PLAIN, "a child of a handler that interrupted unshare, and that never gets a helper"),
    (PROCESS, "setns_user", PLAIN, "setns that is refused because of the helper"),
    (PROCESS, "without_proc", PLAIN, "a process without /proc whose memory stays, or is not cleared"),
    (PROCESS, "fork_with_helper", PLAIN, "a child that waits for its parent's helper, or gets none"),
    (PROCESS, "idle_child", PLAIN, "free memory of the parent that an idle child keeps"),
    (PROCESS, "forks_under_load", ("FORKS", "150"), "memory on its way to the system that breaks a child"),
    (PROCESS, "vfork_exec", PLAIN, "a child in its parent's memory that disturbs the helper"),
    (PROCESS, "vfork_frees", PLAIN, "a helper that ends with a child in its parent's memory"),
    (PROCESS, "vfork_asks", PLAIN, "a file of such a child that its parent uses as its own"),
    (PROCESS, "vfork_unshares", PLAIN, "a helper that such a child keeps away"),
    (PROCESS, "bare_fork", PLAIN, "a child made without fork handlers that waits for its parent's helper"),
    (PROCESS, "bare_clone_of_nothing", PLAIN, "a crash where clone3 gets an address that cannot be read"),
    (PROCESS, "address_limit", PLAIN, "threads that need much memory in turn under RLIMIT_AS"),
    (PROCESS, "clock_behind", PLAIN, "memory that a child keeps whose clock is behind its parent's"),
    (RIGHTS, "family", PLAIN, "a function after which a thread has the old user or the old groups"),
    (RIGHTS, "back_and_forth", PLAIN, "a helper that has the rights of the last change but one"),
    (RIGHTS, "in_empty_root", PLAIN, "the same where neap cannot read the rights from a file"),
    (RIGHTS, "in_namespace", PLAIN, "the same in another namespace of users, or an error that is lost"),
    (RIGHTS, "in_handlers", PLAIN, "a change in a handler that waits for the call which it interrupted"),
    (RIGHTS, "beside_threads", PLAIN, "a helper that another thread starts in the middle of a change"),
    (RIGHTS, "in_vfork", PLAIN, "a change of a child in its parent's memory that ends or changes the parent's helper"),
    (RIGHTS, "other_user", PLAIN, "a thread that keeps the old user, or memory that stays after the change"),
    (SCHEDULED, "realtime_starter", PLAIN, "memory that waits for a helper which never runs"),
    (SCHEDULED, "round_robin_starter", PLAIN, "the same with the other policy"),
    (SCHEDULED, "deadline_starter", PLAIN, "the same where the helper cannot be started by the first thread that asks"),
    (SCHEDULED, "idle_starter", PLAIN, "a helper without a right to a processor, for which other threads wait"),
    (SCHEDULED, "nice_starter", PLAIN, "the same with a nice value"),
    (SCHEDULED, "low_process", PLAIN, "a helper that leaves the processors or the priority of its process"),
    (FILTERS, "from_the_start", PLAIN, "a container in which no helper is started"),
    (FILTERS, "kill_first", PLAIN, "an unusual call under a filter that ends the process for it"),
    (FILTERS, "kill_last", PLAIN, "the same where the filter comes while the helper lives"),
    (FILTERS, "kill_last_by_syscall", PLAIN, "the same through syscall"),
    (FILTERS, "kill_last_all_threads", PLAIN, "a helper that gets the filter too"),
    (FILTERS, "idle_behind_filter", PLAIN, "memory that waits for a helper that a filter has ended"),
    (FILTERS, "no_room_to_look", PLAIN, "a filter that goes unnoticed where the process can open no file"),
    (FILTERS, "strict_mode", PLAIN, "an unusual call after the one that requests strict mode"),
    (FILTERS, "questions_for_filters", PLAIN, "a query for filters that counts as a filter"),
    (FILTERS, "refused_filters", PLAIN, "a process that never gets a helper because a requested filter was refused"),
    (FILTERS, "pretended", PLAIN, "calloc that trusts a filter which only pretends that memory went back"),
    (FILTERS, "in_vfork_child", PLAIN, "a filter of a child in its parent's memory that counts as the parent's"),
    (FILTERS, "threads_end", PLAIN, "memory of ended threads that stays because there can be no helper"),
    (FILTERS, "kill_under_load", PLAIN, "threads that were about to make an unusual call"),
    (FILTERS, "kill_under_load_once_refused", PLAIN, "the same where such calls were forbidden and allowed again"),
    (CONTAINER, "own_limit", ("NEAP_LIMIT", "64M"), "a limit that is not kept, or after which nothing works"),
    (CONTAINER, "no_limit", ("NEAP_LIMIT", "off"), "a limit that applies although it is off"),
    (MAPPINGS, "large_blocks", PLAIN, "a heap whose mappings grow with its blocks, up to vm.max_map_count"),
    (MAPPINGS, "moved_blocks_shrink", PLAIN, "the same for blocks that realloc moved and then shortened"),
];

/// Time limit for a case, in seconds: for hangs.
const LIMIT: u64 = 240;

/// System calls that are refused in turn.
const REFUSED: &[&str] = &[
    "ioctl",
    "pread64",
    "userfaultfd",
    "membarrier",
    "clone",
    "clone3",
    "madvise",
    "rt_sigprocmask",
    "prctl",
    "fcntl",
    "openat",
    "lseek",
    "dup3",
    "gettid",
    "get_robust_list",
    "getrandom",
    "capget",
    "prlimit64",
    "tgkill",
    "memfd_create",
    "fallocate",
    "close_range",
    "sched_setscheduler",
    "sched_getaffinity",
    "setpriority",
];
/// When the filter is set: before the first work, after it, or before the program starts.
const TIMES: &[&str] = &["first", "last", "at_start"];

const POLICIES: &[&str] = &["decay", "eager", "lazy", "never"];

fn main() -> ExitCode {
    let mut cases: Vec<Case> = CASES
        .iter()
        .map(|&(source, case, variable, catches)| {
            Case::new(format!("{}::{case}", source.stem()), catches, move || {
                run(&source, case, variable, LIMIT).map(drop)
            })
        })
        .collect();
    for call in REFUSED {
        cases.push(Case::new(
            format!("filters::{call}"),
            "a refused system call after which memory is wrong, or the process ends",
            || refused(call),
        ));
    }
    cases.push(Case::new("table::complete", "a case that is written but never run", || {
        let refused: Vec<String> = REFUSED.iter().flat_map(|c| TIMES.iter().map(move |t| format!("{c}_{t}"))).collect();
        let mut named: Vec<_> = CASES.iter().map(|(source, case, _, _)| (source.stem(), *case)).collect();
        named.extend(refused.iter().map(|case| ("filters", case.as_str())));
        named.extend([
            ("container", "mixed_sizes"),
            ("container", "relay"),
            ("container", "charged"),
            ("idle", "loaded_late"),
            ("idle", "loaded_late_under_filter"),
        ]);
        neap_tests::all_cases_named(&[IDLE, PROCESS, RIGHTS, FILTERS, CONTAINER, MAPPINGS, SCHEDULED], &named)
    }));
    cases.push(Case::new("rights::in_python", "a thread with the old user beside an interpreter", in_python));
    cases.push(Case::new("traced::small_programs", "a helper thread in a program that holds little memory", traced));
    cases.extend([
        Case::new("container::relay", "a process that is killed for what another one has freed", relay).exclusive(),
        Case::new("container::mixed_sizes", "memory that blocks hold and do not need, near a limit", mixed_sizes),
        Case::new("container::charged", "parts of huge pages that went back and stay charged", charged),
    ]);
    let late = [
        ("loaded_late", "a helper that runs on in a closed library"),
        ("loaded_late_under_filter", "a filter from before the library that ends the process for its calls"),
    ];
    for (case, catches) in late {
        cases.push(Case::new(format!("idle::{case}"), catches, || loaded_late(case)));
    }
    for policy in POLICIES {
        for forks in [false, true] {
            let name = if forks { "load_with_forks" } else { "load" };
            cases.push(Case::new(format!("{name}::{policy}"), "memory that is purged while it is used", move || {
                load(policy, forks, 2)
            }));
            cases.push(
                Case::new(format!("soak::{name}_{policy}"), "the same, rarer", move || {
                    load(policy, forks, soak_seconds())
                })
                .soak(),
            );
        }
    }
    cases.push(
        Case::new("soak::forks_under_load", "the same as process::forks_under_load, rarer", || {
            run(&PROCESS, "forks_under_load", ("FORKS", "1000"), 300).map(drop)
        })
        .soak(),
    );
    suite::main(cases)
}

/// Runs a case for at most `seconds`. Only neap promises this.
fn run(source: &Source, case: &str, (name, value): (&str, &str), seconds: u64) -> Result<Finished, Stop> {
    library::require_neap()?;
    let mut run = Run::new(source.build()?).arg(case).timeout(Duration::from_secs(seconds));
    if !name.is_empty() {
        run = run.env(name, value);
    }
    let done = judge_case(run)?.no_complaint()?;
    for line in done.stdout.lines().filter(|line| line.contains("the goal is")) {
        suite::note(format!("{}::{case}: {line}", source.stem()));
    }
    Ok(done)
}

/// Runs the three cases of one refused call. A case that cannot run here does not hide the others.
fn refused(call: &str) -> Outcome {
    for time in TIMES {
        match run(&FILTERS, &format!("{call}_{time}"), PLAIN, LIMIT) {
            Ok(_) => {}
            Err(Stop::Skip(reason)) => suite::note(format!("filters::{call}_{time}: {reason}")),
            Err(fail) => return Err(fail),
        }
    }
    Ok(())
}

/// A Python program that becomes another user and itself again, and looks at its threads each time.
fn in_python() -> Outcome {
    const PROGRAM: &str = "
import os, time
def users():
    found = []
    for thread in os.listdir('/proc/self/task'):
        try:
            text = open(f'/proc/self/task/{thread}/status').read()
        except (FileNotFoundError, ProcessLookupError):
            continue
        found += [line for line in text.split('\\n') if line.startswith(('Uid:', 'Gid:', 'Groups:'))]
    return len(set(found)), len(found) // 3
most = 0
for i in range(50):
    for k in range(1000):
        blocks = [bytearray(1 << 20) for _ in range(4)]
        del blocks
        if users()[1] > 1:
            break
    most = max(most, users()[1])
    os.setgroups([7, i + 10])
    assert users()[0] == 3, (i, 'setgroups')
    os.setegid(i + 5)
    assert users()[0] == 3, (i, 'setegid')
    os.seteuid(i + 5)
    assert users()[0] == 3, (i, 'seteuid')
    os.setreuid(0, 0)
    assert users()[0] == 3, (i, 'setreuid')
assert most > 1, 'no helper was seen'
print('ok')
";
    if !sys::is_root() {
        return Err(Stop::Skip("only root can become another user".into()));
    }
    library::require_neap()?;
    program("python3")?;
    let run = Run::new("python3").args(["-c", PROGRAM]).timeout(Duration::from_secs(LIMIT));
    run.run()?.success()?.no_complaint()?.contains("ok")?;
    Ok(())
}

/// The number of threads that a program starts, the library's included.
fn threads_of(command: &[&str]) -> Result<u64, Stop> {
    let done = judge_case(Run::new(TRACED.build()?).args(command))?;
    let count = done.stdout.lines().find_map(|line| line.strip_prefix("threads ")?.parse().ok());
    count.ok_or_else(|| done.fail("no count in the output"))
}

fn traced() -> Outcome {
    library::require_neap()?;
    let hosts = "/etc/hosts";
    for command in [&["true"][..], &["ls", "-lR", "/etc"], &["cat", hosts, hosts], &["sort", hosts]] {
        program(command[0])?;
        let count = threads_of(command)?;
        if count != 0 {
            return Err(Stop::Fail(format!("{count} threads in {command:?}")));
        }
    }
    let idle = IDLE.build()?;
    let count = threads_of(&[&idle.to_string_lossy(), "large"])?;
    // One; or another where the program waited so long for a processor while freeing that the first had ended.
    if (1..=3).contains(&count) { Ok(()) } else { Err(Stop::Fail(format!("{count} threads where one was expected"))) }
}

/// Without preload: the program itself loads the library, uses it, and closes it.
fn loaded_late(case: &str) -> Outcome {
    let path = library::require_neap()?;
    judge_case(Run::new(IDLE.build()?).arg(case).env("LIBRARY", path).plain())?.no_complaint()?;
    Ok(())
}

fn soak_seconds() -> u64 {
    std::env::var("NEAP_SOAK").ok().and_then(|text| text.parse().ok()).unwrap_or(20)
}

/// Random work, purged as early as possible.
fn load(policy: &str, forks: bool, seconds: u64) -> Outcome {
    library::require_neap()?;
    let mut run = Run::new(SOAK.build()?).arg(seconds.to_string()).timeout(Duration::from_secs(seconds + 90));
    if forks {
        run = run.arg("20");
    }
    judge_case(run.env("NEAP_PURGE", policy).env("NEAP_PURGE_DELAY", "10ms"))?.no_complaint()?;
    Ok(())
}

/// A cgroup with a memory limit; removed when dropped.
struct Group(PathBuf);

impl Group {
    /// Tries below the roots of both cgroup versions.
    fn new(limit: u64) -> Result<Self, Stop> {
        let mut why = "no cgroups are mounted".to_owned();
        for (root, file) in [
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            ("/sys/fs/cgroup", "memory.max"),
            ("/sys/fs/cgroup/unified", "memory.max"),
        ] {
            if !Path::new(root).join("cgroup.procs").exists() {
                continue;
            }
            let group = Group(Path::new(root).join(format!("neap-purge-{}", std::process::id())));
            match fs::create_dir(&group.0).and_then(|()| fs::write(group.0.join(file), limit.to_string())) {
                Ok(()) => return Ok(group),
                Err(e) => why = format!("{root}: {e}"),
            }
        }
        Err(Stop::Skip(format!("cannot make a cgroup with a memory limit: {why}")))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for _ in 0..100 {
            // Processes left in it belong to the test: only the test knows the cgroup.
            let left = fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default();
            for pid in left.lines().filter_map(|line| line.parse().ok()) {
                let _ = sys::kill(pid, sys::Signal::KILL);
            }
            if fs::remove_dir(&self.0).is_ok() || !self.0.exists() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        eprintln!("could not remove {}", self.0.display());
    }
}

/// Limit of the cgroup, and the peak of each process.
const LIMIT_MIB: u64 = 1024;
const PEAK_MIB: u64 = LIMIT_MIB * 9 / 10;

/// Processes in a cgroup: each reaches 90 % of the limit, and starts as soon as the one before has freed its memory.
fn relay() -> Outcome {
    let group = Group::new(LIMIT_MIB << 20)?;
    in_group(&group, "relay", |run| run.env("PEAK_MIB", PEAK_MIB.to_string()))
}

/// A process of 165 MiB in blocks, in a cgroup of 200 MiB: with all that stays behind shorter blocks, in slabs and in
/// caches it would need more.
fn mixed_sizes() -> Outcome {
    let group = Group::new(200 << 20)?;
    in_group(&group, "mixed_sizes", |run| run.env("LIVE_MIB", "165"))
}

/// Huge pages of which a part went back, but which are still charged to the cgroup in full.
fn charged() -> Outcome {
    let group = Group::new(LIMIT_MIB << 20)?;
    let usage = ["memory.usage_in_bytes", "memory.current"].map(|name| group.0.join(name));
    let usage = usage.into_iter().find(|file| file.exists());
    let usage = usage.ok_or_else(|| Stop::Skip("the cgroup does not say how much memory it has".into()))?;
    in_group(&group, "charged", |run| run.env("NEAP_HUGE", "always").env("CHARGED", &usage))
}

/// Runs a case of [`CONTAINER`] in a cgroup.
fn in_group(group: &Group, case: &str, with: impl FnOnce(Run) -> Run) -> Outcome {
    library::require_neap()?;
    let enter = "echo $$ > \"$1\"/cgroup.procs || exit 77; exec \"$2\" \"$3\"";
    let run = Run::new("/bin/sh").args(["-c", enter, "sh"]).arg(&group.0).arg(CONTAINER.build()?).arg(case);
    let done = with(run).run()?;
    if done.status.code() == Some(SKIP_STATUS) {
        return Err(Stop::Skip("the process cannot be moved into the cgroup".into()));
    }
    done.success()?.contains("ok")?.no_complaint()?;
    Ok(())
}
