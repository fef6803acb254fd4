//! Life in a real process: early and late allocation, threads, forks, loaded libraries, limits.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::OnceLock;
use std::time::Duration;

use neap_tests::{
    Case, Finished, Outcome, Run, Source, Stop, judge_case, library, package_dir, suite, system, target_dir,
};

const START: Source = Source::new("life/start.c");
const THREADS: Source = Source::new("life/threads.c");
const FORK: Source = Source::new("life/fork.c");
const DL: Source = Source::new("life/dl.c");
const LIMITS: Source = Source::new("life/limits.c");
const LOCKED: Source = Source::new("life/locked.c");
const TLS: Source = Source::with_flags("life/tls.cc", &["-std=c++17"]);
/// The libraries that DL loads, by the variable PLUGIN: one that links the C++ library, and one that contains it.
const PLUGINS: [Source; 2] = [
    Source::with_flags("life/plugin.cc", &["-shared", "-std=c++17"]),
    Source::with_flags("life/plugin.cc", &["-shared", "-std=c++17", "-static-libstdc++", "-static-libgcc"]),
];
const SOAK: Source = Source::new("life/soak.c");
const UNLOAD: Source = Source::new("life/unload.c");
/// What UNLOAD does with a plugin.
const UNLOAD_CASES: [(&str, &str); 8] = [
    ("threads_end_later", "a key's destructor in code that is gone"),
    ("helper_goes_on", "a helper in code that is gone"),
    ("forks_later", "fork handlers in code that is gone"),
    ("loads_200_times", "an arena, a helper or a thread's heap for each time that a plugin is opened"),
    ("needed_by_another", "the same for a library that the opened one needs"),
    ("by_relative_name", "the same for a library that is opened by a relative name"),
    ("in_a_namespace", "the same for a library in a namespace of its own"),
    ("stays_open", "a plugin that does not work"),
];
/// A plugin with libneap.a inside, and a library that needs a plugin.
const TASK: Source = Source::with_flags("life/task.c", &["-shared"]);
const NEEDS: Source = Source::with_flags("life/needs.c", &["-shared"]);
/// The library that START and DL load, by the variable DSO.
const DSO: Source = Source::with_flags("life/dso.c", &["-shared"]);

/// Program, case, text that must appear in the output, and what the case would catch.
const CASES: &[(Source, &str, &str, &str)] = &[
    (START, "preinit", "", "an allocator that works only after its own constructor ran"),
    (START, "constructor", "", "blocks of an early constructor that are lost later"),
    (START, "pthread_create_first", "", "a first malloc inside pthread_create that finds no heap"),
    (START, "dlopen_first", "", "a first malloc inside dlopen, under the linker's lock"),
    (START, "after_main", "last destructor ran", "a heap torn down before the last destructor"),
    (START, "at_quick_exit_", "quick_exit handler ran", "a heap torn down before quick_exit handlers"),
    (START, "exit_while_busy", "atexit handler ran", "a crash at exit while threads allocate"),
    (START, "main_thread_exits", "", "a heap of the main thread that the process needs after that thread has ended"),
    (START, "program_lies_first", "", "arenas in the first line of /proc/PID/maps, which tools take for the program"),
    (THREADS, "key_destructors", "", "thread-key destructors that allocate after the heap was given up"),
    (
        THREADS,
        "late_heaps",
        "",
        "a heap that is never given up because its thread got it in the last but one round of destructors",
    ),
    (THREADS, "storm", "", "heaps of ended threads that are not reused (10,000 threads)"),
    (THREADS, "detached", "", "detached threads whose end is not noticed"),
    (THREADS, "orphans", "", "blocks of ended threads that cannot be freed, resized or reused"),
    (THREADS, "remote_ring", "", "a remote free that loses or corrupts a block"),
    (THREADS, "one_way", "", "remotely freed blocks that never come back to their maker"),
    (THREADS, "cancelled", "", "a cancelled thread that leaves a lock held"),
    (THREADS, "crowd", "", "many threads that hold an OS page for each size of block, however few blocks they have"),
    (THREADS, "small_stacks", "", "an allocator or thread end that needs more than the smallest stack"),
    (FORK, "while_threads_allocate", "", "a lock held by another thread at fork, which the child waits for"),
    (FORK, "from_four_threads", "", "forks at the same time that block each other"),
    (FORK, "handlers_allocate", "", "fork handlers that allocate while the heap is locked for fork"),
    (FORK, "early_handlers_allocate", "", "the same for handlers older than all other libraries'"),
    (FORK, "early_handlers_lock", "", "a deadlock of fork and a thread that waits for a heap locked for fork"),
    (FORK, "while_streams_are_flushed", "", "the same with the C library's lock for its list of streams"),
    (FORK, "of_idle_threads", "", "a fork that writes to the memory of each thread, also of those that sleep"),
    (FORK, "chain", "", "state of the parent that breaks a grandchild"),
    (FORK, "vfork_exec", "", "vfork that corrupts the parent's heap"),
    (FORK, "spawn_system_popen", "", "posix_spawn, system or popen that hang or corrupt"),
    (DL, "load_1000_times", "", "memory lost with each dlopen and dlclose"),
    (DL, "load_in_threads", "", "a deadlock between the linker's lock and the allocator's"),
    (DL, "deepbind", "", "a library whose free is the C library's and gets neap's blocks, as PHP's extensions do"),
    (
        DL,
        "deepbind_in_threads",
        "",
        "symbols of the C library that are half changed while several threads open such libraries",
    ),
    (DL, "foreign_under_filter", "", "a query about a block of the C library for which a filter ends the program"),
    (DL, "by_dlsym", "", "foreign blocks that pass as neap's"),
    (DL, "by_dlsym_without_break", "", "the same where the program's break cannot grow"),
    (DL, "by_dlsym_in_threads", "", "the same with many arenas of the C library"),
    (
        DL,
        "by_dlsym_first_in_threads",
        "",
        "a crash where several threads set up the C library's malloc at the same time",
    ),
    (DL, "by_library_first_in_threads", "", "the same through a library that needs the C library"),
    (DL, "by_rtld_next", "", "a malloc wrapper that mixes two allocators"),
    (DL, "dlmopen_namespace", "", "a second C library in the process that disturbs the heap"),
    (LIMITS, "data_limit", "", "RLIMIT_DATA that ends in a crash instead of NULL"),
    (LIMITS, "data_limit_used_up", "", "memory that counts for RLIMIT_DATA although no block has it"),
    (LIMITS, "data_limit_used_up_large", "", "the same with blocks that do not fit into whole chunks"),
    (LIMITS, "address_limit_lowered", "", "a block that moves under a limit below what the process has already"),
    (LIMITS, "address_limit_later", "", "reservations that use up a limit which the program sets, or exceed it"),
    (LIMITS, "free_parts_under_limit", "", "NULL although neighbouring free ranges of different states suffice"),
    (LIMITS, "caches_under_limit", "", "NULL although enough is free, in caches"),
    (LIMITS, "address_limit_by_syscall", "", "the same for a limit that is set through syscall"),
    (LIMITS, "address_limit_beside_threads", "", "a reservation that goes back while another thread uses it"),
    (LIMITS, "address_limit_from_outside", "", "growth beyond a limit that another process has set"),
    (LIMITS, "address_limit_in_vfork", "", "a child of vfork that takes its parent's reservations"),
    (LIMITS, "data_limit_lowered", "", "the same for RLIMIT_DATA that is reached while blocks grow"),
    (LIMITS, "data_limit_below", "", "the same for RLIMIT_DATA below what the process has already"),
    (LIMITS, "mappings_used_up", "mappings used up", "a failed munmap, mprotect or madvise at vm.max_map_count"),
    (LIMITS, "mappings_used_up_threads", "", "a thread without a mapping for its heap that crashes"),
    (LIMITS, "many_mappings_moved", "", "a block in several mappings of which realloc loses those it cannot move"),
    (LIMITS, "seccomp_kill", "", "an unusual system call in a filtered program"),
    (LIMITS, "seccomp_kill_after_work", "", "a helper thread or probe that comes after the filter"),
    (LIMITS, "seccomp_kill_populate", "", "unusual madvise advice in a filtered program"),
    (LIMITS, "seccomp_no_populate", "", "growth that fails or changes errno where some madvise advice is refused"),
    (LIMITS, "seccomp_eperm", "", "a refused system call without a fallback"),
    (LIMITS, "interrupted", "", "a system call of the allocator that fails with EINTR"),
    (LIMITS, "blocked_signal_stays_pending", "", "a helper thread that takes the program's signals"),
    (LIMITS, "unshare_user", "", "a helper thread in the way of unshare(CLONE_NEWUSER)"),
    (LOCKED, "first_block", "", "reservations that are locked because mlockall came before the first block"),
    (LOCKED, "future", "", "blocks that are not locked after mlockall(MCL_FUTURE)"),
    (LOCKED, "current_and_future", "", "reserved addresses that count as locked"),
    (LOCKED, "future_without_notice", "", "blocks that are not locked where the program makes the call itself"),
    (LOCKED, "future_on_fault", "", "memory that is populated although the program locks it when it is touched"),
    (LOCKED, "first_block_as_user", "", "no memory at all where little may be locked from the start on"),
    (LOCKED, "as_user", "", "mlockall that is refused because of reserved addresses"),
    (LOCKED, "current_as_user", "", "mlockall(MCL_CURRENT) that locks too little, or what comes later"),
    (LOCKED, "too_much_as_user", "", "mlockall that is granted beyond the limit"),
    (LOCKED, "rights_given_up", "", "a daemon that can make no thread after it gave up the right to lock memory"),
    (LOCKED, "beside_forks", "", "blocks taken during a fork that mlockall of another thread clears"),
    (LOCKED, "trimmed", "", "locked memory that stays, or figures of a trim that count what stays"),
    (
        LOCKED,
        "core_dump",
        "",
        "reserved or unused memory that debuggers write to core dumps, or used memory that they do not",
    ),
    (
        LOCKED,
        "core_dump_after_advice",
        "",
        "memory that is not in dumps because the last owner of the block kept it out",
    ),
    (LOCKED, "core_dump_filtered", "", "memory that is missing in dumps of a filtered program"),
    (LOCKED, "registered", "", "faults of later blocks that go to the userfaultfd of an earlier one"),
    (LOCKED, "registered_with_events", "", "a deadlock of a free and a userfaultfd's thread that allocates"),
    (TLS, "in_threads", "", "C++ thread_local destructors that come after the heap was given up"),
    (TLS, "of_main", "objects destroyed", "static C++ objects destroyed after the heap"),
];

/// A malloc in front of neap's.
const TRACER: Source = Source::with_flags("interpose/tracer.c", &["-shared"]);

/// Cases with a function of their own below, and one of `machine.rs`.
const PREPARED_CASES: [(&str, &str); 6] = [
    ("threads", "idle"),
    ("limits", "overcommit_never"),
    ("limits", "locked"),
    ("dl", "library_loaded_late"),
    ("dl", "deepbind_first_in_threads"),
    ("dl", "operators_of_a_plugin"),
];

fn main() -> ExitCode {
    let mut cases: Vec<Case> = CASES
        .iter()
        .map(|(source, case, text, catches)| {
            Case::new(format!("{}::{case}", source.stem()), catches, move || {
                prepared(source, case, &[])?.contains(text)?.no_complaint()?;
                Ok(())
            })
        })
        .collect();
    cases.push(Case::new("table::complete", "a case that is written but never run", || {
        let mut named: Vec<_> = CASES.iter().map(|(source, case, _, _)| (source.stem(), *case)).collect();
        named.extend(PREPARED_CASES);
        named.extend(UNLOAD_CASES.map(|(case, _)| (UNLOAD.stem(), case)));
        neap_tests::all_cases_named(&[START, THREADS, FORK, DL, LIMITS, LOCKED, TLS, UNLOAD], &named)
    }));
    cases.push(Case::new(
        "dl::library_loaded_late",
        "thread storage too large for late loading, or an unload that leaves callbacks behind",
        loaded_late,
    ));
    cases.push(Case::new(
        "dl::deepbind_first_in_threads",
        "a crash where several threads first use the C library's malloc through RTLD_DEEPBIND",
        || {
            let (tracer, neap) = (TRACER.build()?, library::require_neap()?);
            // Its look-ups need its own calloc where each thread's first dlsym allocates (glibc 2.31), with or without
            // neap.
            let alone = Run::new(DL.build()?).arg("by_rtld_next").preload(Some(tracer.clone())).run()?;
            if !alone.status.success() {
                return Err(Stop::Skip("a malloc that uses dlsym does not work with this C library".into()));
            }
            let both = format!("{}:{}", tracer.display(), neap.display());
            let run = Run::new(DL.build()?).arg("deepbind_first_in_threads").preload(Some(both.into()));
            judge_case(run)?.no_complaint()?;
            Ok(())
        },
    ));
    cases.push(Case::new(
        "dl::operators_of_a_plugin",
        "an operator new that ends the process instead of throwing bad_alloc, or ignores the new-handler",
        || {
            for plugin in &PLUGINS {
                let run = Run::new(DL.build()?).arg("operators_of_a_plugin").env("PLUGIN", plugin.build()?);
                judge_case(run)?.no_complaint()?;
            }
            Ok(())
        },
    ));
    for (case, catches) in UNLOAD_CASES {
        cases.push(Case::new(format!("unload::crate_{case}"), catches, move || unload(&plugin_of_crate()?, case)));
        cases.push(Case::new(format!("unload::archive_{case}"), catches, move || unload(&plugin_of_archive()?, case)));
    }
    cases.push(
        Case::new("threads::idle_2000", "a heap that costs each idle thread more than 18 KiB", idle_threads)
            .exclusive(),
    );
    cases.push(Case::new("limits::locked", "reservations that mlockall makes resident", locked).exclusive());
    cases.push(
        Case::new("soak::stress", "rare corruption under hours of random work", || stress(soak_seconds(3600))).soak(),
    );
    cases.push(Case::new(
        "soak::short",
        "corruption under seconds of random work with threads that come and go",
        || stress(8),
    ));
    suite::main(cases)
}

/// Runs `case` with the library to load named in the environment.
fn prepared(source: &Source, case: &str, env: &[(&str, &str)]) -> Result<Finished, Stop> {
    let mut run = Run::new(source.build()?).arg(case).env("DSO", DSO.build()?).timeout(Duration::from_secs(240));
    for (name, value) in env {
        run = run.env(name, value);
    }
    judge_case(run)
}

/// Without preload: the program itself loads the library.
fn loaded_late() -> Outcome {
    let Some(path) = library::under_test()?.path() else {
        return Err(Stop::Skip("no library is under test".into()));
    };
    let run = Run::new(DL.build()?).arg("library_loaded_late").env("DSO", DSO.build()?).env("LIBRARY", path).plain();
    judge_case(run)?.no_complaint()?;
    Ok(())
}

/// A program without neap opens and closes a plugin that contains neap.
fn unload(plugin: &Path, case: &str) -> Outcome {
    let outer = NEEDS.build_with(&[plugin], &[])?;
    let run = Run::new(UNLOAD.build()?).arg(case).env("PLUGIN", plugin).env("OUTER", outer).plain();
    judge_case(run)?.no_complaint()?;
    Ok(())
}

/// The example `plugin` of the Rust crate, built afresh.
fn plugin_of_crate() -> Result<PathBuf, Stop> {
    if std::env::var_os("CC").is_some() || system::root().is_some() {
        return Err(Stop::Skip("the test programs are for another system, the crate is built for this one".into()));
    }
    static PLUGIN: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let made = PLUGIN.get_or_init(|| {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut build = Command::new(cargo);
        build.args(["build", "-q", "-p", "neap", "--example", "plugin", "--target-dir"]).arg(target_dir());
        let done = build.current_dir(package_dir()).output().map_err(|e| e.to_string())?;
        let made = target_dir().join("debug/examples/libplugin.so");
        if done.status.success() { Ok(made) } else { Err(String::from_utf8_lossy(&done.stderr).into_owned()) }
    });
    library::require_neap()?;
    made.clone().map_err(Stop::Fail)
}

/// A plugin in C with `libneap.a`, whose calls of malloc are neap's.
fn plugin_of_archive() -> Result<PathBuf, Stop> {
    let archive = library::require_neap()?.with_file_name("libneap.a");
    TASK.build_with(&[&archive], &["-Wl,-Bsymbolic"])
}

/// The number after `RSS ` in the output, in KiB.
fn rss(done: &Finished) -> Result<i64, Stop> {
    done.stdout
        .lines()
        .find_map(|line| line.strip_prefix("RSS ")?.parse().ok())
        .ok_or_else(|| done.fail("no RSS in the output"))
}

const IDLE_THREADS: i64 = 2000;
const IDLE_LIMIT_KIB: f64 = 18.0;

fn idle_threads() -> Outcome {
    let without = rss(&prepared(&THREADS, "idle", &[])?)?;
    let with = prepared(&THREADS, "idle", &[("IDLE_ALLOCATES", "1")])?;
    let each = (rss(&with)? - without) as f64 / IDLE_THREADS as f64;
    let text = format!(
        "{IDLE_THREADS} idle threads: RSS {without} KiB without allocation, {} KiB with: {each:.1} KiB a thread",
        rss(&with)?
    );
    suite::note(&text);
    if each > IDLE_LIMIT_KIB && library::under_test()?.is_neap() {
        return Err(Stop::Fail(text));
    }
    Ok(())
}

const LOCKED_LIMIT_KIB: i64 = 300 << 10;

fn locked() -> Outcome {
    let done = prepared(&LIMITS, "locked", &[])?;
    let kib = rss(&done)?;
    suite::note(format!("mlockall: RSS {kib} KiB"));
    if kib > LOCKED_LIMIT_KIB {
        return Err(done.fail(&format!("RSS {kib} KiB, {LOCKED_LIMIT_KIB} at most")));
    }
    Ok(())
}

fn soak_seconds(default: u64) -> u64 {
    std::env::var("NEAP_SOAK").ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn stress(seconds: u64) -> Outcome {
    let run = Run::new(SOAK.build()?).arg(seconds.to_string()).timeout(Duration::from_secs(seconds + 60));
    let done = judge_case(run)?.no_complaint()?;
    suite::note(format!("soak of {seconds} s: {}", done.stdout.lines().next().unwrap_or_default()));
    Ok(())
}
