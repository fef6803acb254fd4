//! Faults of earlier versions, each shown by a small program: lost data, crashes, hangs, and leaks.
//!
//! Most need a rare order of threads. Where the order depends on how long a system call takes, strace delays it or
//! makes it fail; those tests are skipped where strace is missing or not permitted. `NEAP_SOAK` sets the seconds for
//! which each program runs, and adds a run of each with delays in all the system calls that neap makes. `cargo xtask
//! faults` runs them many times and prints a table.

use std::process::ExitCode;
use std::time::Duration;

use neap_tests::{Case, Outcome, Run, Source, judge_case, suite};

const HOLES: Source = Source::new("trust/holes.c");
const REALLOC: Source = Source::new("trust/realloc.c");
const THREADS: Source = Source::new("trust/threads.c");
const HELPER: Source = Source::new("trust/helper.c");
const FORK: Source = Source::new("trust/fork.c");
const GUARDS: Source = Source::new("trust/guards.c");
const SHIM: Source = Source::new("trust/shim.c");
const WRAP: Source = Source::new("trust/wrap.c");
/// Symbols are bound at start: the loader takes 3 KiB of stack to bind one at its first call.
const STACK: Source = Source::with_flags("trust/stack.c", &["-Wl,-z,now"]);
const LIMITS: Source = Source::new("trust/limits.c");
const COUNTER: Source = Source::new("trust/counter.c");

/// One run of a case of a program.
struct Row {
    /// The end of the test's name, where several rows run the same case.
    variant: &'static str,
    source: Source,
    case: &'static str,
    env: &'static [(&'static str, &'static str)],
    /// What strace injects; empty: runs without strace.
    inject: &'static [&'static str],
    catches: &'static str,
}

const fn row(source: Source, case: &'static str, catches: &'static str) -> Row {
    Row { variant: "", source, case, env: &[], inject: &[], catches }
}

impl Row {
    const fn env(mut self, env: &'static [(&'static str, &'static str)]) -> Self {
        self.env = env;
        self
    }
    const fn inject(mut self, inject: &'static [&'static str]) -> Self {
        self.inject = inject;
        self
    }
    const fn variant(mut self, variant: &'static str) -> Self {
        self.variant = variant;
        self
    }
    fn name(&self) -> String {
        format!("{}::{}{}", self.source.stem(), self.case, self.variant)
    }
}

const NO_CLOCK: &[&str] = &["clock_gettime:error=EPERM"];
const LATE_HELPER: &[&str] = &["close_range:delay_exit=500000"];
const SLOW_START: &[&str] = &["mmap,rt_sigprocmask:delay_enter=20000"];
/// A child's thread gets its number late, and a handshake with it takes long.
const LATE_NUMBER: &[&str] = &["gettid:delay_enter=5000000", "membarrier:delay_exit=1500000"];
const LONG_HANDSHAKE: &[&str] = &["membarrier:delay_exit=1500000"];
/// Every third of the calls that move memory or start a thread takes some milliseconds longer.
const DELAYS: &[&str] =
    &["madvise:delay_enter=5000:when=1+3", "mmap,munmap,mremap,clone,membarrier:delay_exit=3000:when=1+3"];

const ROWS: &[Row] = &[
    row(HOLES, "late_purge", "a purge of an OS page that has a new owner: live bytes become zero")
        .inject(&["madvise:delay_enter=250000"]),
    row(HOLES, "threads_end_under_trim", "a heap that is an orphan in the second pass of a trim"),
    row(REALLOC, "parts_locked", "bytes lost where mremap moves some of a block's mappings and fails"),
    row(REALLOC, "parts_marked", "the same with parts that madvise marked"),
    row(REALLOC, "one_part_locked", "the same with three mappings"),
    row(REALLOC, "grown_before", "the same with a block that realloc made of several"),
    row(THREADS, "detached", "a heap made as a thread ends, whose thread slot is written later"),
    row(THREADS, "detached_leave_nothing", "3 KiB that each ended thread leaves behind"),
    row(
        THREADS,
        "number_of_another",
        "a write to a thread slot that is gone because another process has its thread's number",
    ),
    row(THREADS, "number_of_a_later_thread", "the same because a later thread has the number"),
    row(THREADS, "ends_beside_forks", "a heap that is lost because a fork ends while its thread ends"),
    row(HELPER, "start_beside_options", "a helper that counts as lost while it is started"),
    row(HELPER, "start_beside_options", "the same, each time").variant("::slow").inject(SLOW_START),
    row(HELPER, "blocks_passed_on", "threads that wait in free for a helper that does not end"),
    row(HELPER, "blocks_passed_on", "the same, each time").variant("::slow").inject(SLOW_START),
    row(HELPER, "errno_of_the_starter", "a helper that writes another thread's errno").inject(NO_CLOCK),
    row(HELPER, "starter_unmapped", "a helper that writes to unmapped thread storage").inject(NO_CLOCK),
    row(HELPER, "under_filter", "the same where a filter refuses the clock")
        .env(&[("NEAP_TRUST_CASE", "errno_of_the_starter")]),
    row(
        HELPER,
        "lowest_number_stays",
        "a file of the helper's in the program's table, where the program relies on descriptor numbers",
    ),
    row(HELPER, "under_filter", "the same in a container, whose filter also applies to the helper")
        .variant("::numbers")
        .env(&[("NEAP_TRUST_CASE", "lowest_number_stays")]),
    row(HELPER, "filter_beside_questions", "a thread that is killed for a query it was about to make")
        .inject(&["lseek:delay_exit=20000"]),
    row(HELPER, "filter_beside_start", "a thread that is killed as it is about to start a helper")
        .inject(&["rt_sigprocmask:delay_enter=250000"]),
    row(HELPER, "unshare_behind_the_helper", "a call that is refused because the kernel still counts the ended helper")
        .inject(&["exit:delay_enter=1500000"]),
    row(HELPER, "vfork_child_frees", "a helper that ends with a child of vfork: 67 MB stay for ever"),
    row(HELPER, "vfork_children_under_filters", "a child that its filter kills because another child has a filter too"),
    row(HELPER, "sharing_child_ends", "a helper that ends with a child of clone, and holds a lock")
        .env(&[("NEAP_PURGE_DELAY", "1ms")]),
    row(
        HELPER,
        "clone_function_returns",
        "a child that lives as long as its helper, and gets the helper's exit status",
    ),
    row(HELPER, "first_thread_exits", "the same where the only thread ends by a direct system call"),
    row(HELPER, "rights_given_up_without_proc", "a helper that keeps root's rights where there is no /proc"),
    row(HELPER, "rights_given_up_at_start", "the same where the program changes its user before the helper looks")
        .inject(LATE_HELPER),
    row(HELPER, "long_handshake", "a thread that waits for its heap while a helper has no processor")
        .inject(LONG_HANDSHAKE),
    row(HELPER, "helper_without_processor", "memory that stays while the helper has no processor")
        .inject(&["close_range:delay_exit=12000000"]),
    row(FORK, "handlers_are_registered", "locks held while the C library takes its own in fork"),
    row(FORK, "forks_in_handlers", "two forks that take two locks in different orders"),
    row(FORK, "parent_ends_first", "a child's only thread that counts as ended with the parent, and waits for ever")
        .inject(LATE_NUMBER),
    row(FORK, "parent_of_a_bare_child_ends_first", "the same for a child made without fork handlers")
        .inject(LONG_HANDSHAKE),
    row(FORK, "start_of_helper", "two helpers on one stack in the child of a fork that interrupted the start of one"),
    row(FORK, "files_over_generations", "a file that stays open in each child of a fork"),
    row(GUARDS, "guards_stay", "guard pages that are lost where another thread commits memory")
        .env(&[("NEAP_HARDEN", "on")]),
    row(GUARDS, "programs_pages_stay", "memory that becomes accessible again after a program protected it"),
    row(
        GUARDS,
        "freed_blocks_are_as_new",
        "OS pages of a freed block that stay inaccessible, locked, mapped to a file, or not inherited by children",
    ),
    row(GUARDS, "freed_blocks_are_as_new", "the same where freed blocks are filled")
        .variant("::filled")
        .env(&[("MALLOC_PERTURB_", "165")]),
    row(GUARDS, "ends_grow_again", "a block that grows into an OS page that was inaccessible before it got shorter"),
    row(GUARDS, "ends_grow_again", "the same where freed blocks are filled")
        .variant("::filled")
        .env(&[("MALLOC_PERTURB_", "165")]),
    row(GUARDS, "freed_at_the_limit_of_mappings", "addresses lost at each free of a block that cannot be unmapped"),
    row(SHIM, "memalign_over_posix", "a call inside the library that reaches a program's function"),
    row(WRAP, "each_call_once", "a second name that leads to an interposable one"),
    row(STACK, "bytes_for_each_call", "a call that takes more than 2 KiB of stack"),
    row(STACK, "bytes_for_each_call", "the same near a memory limit").variant("::limit").env(&[("NEAP_LIMIT", "20M")]),
    row(STACK, "bytes_without_helper", "the same where threads are the purger"),
    row(STACK, "smallest_trims", "malloc_trim that overflows the smallest stack"),
    row(STACK, "smallest_at_the_limit", "a purge near a limit that overflows the smallest stack")
        .env(&[("NEAP_LIMIT", "20M")]),
    row(STACK, "smallest_in_waves", "the same with all kinds of calls").env(&[("NEAP_LIMIT", "20M")]),
    row(STACK, "waves_under_filter", "400 MB that stay after all threads have ended, without a helper"),
    row(LIMITS, "address_space_limited_later", "a limit that is read only at start: 16 GiB used under 1 GiB"),
    row(LIMITS, "end_sealed", "a crash in memory that the system took back up to a sealed part"),
    row(LIMITS, "parts_sealed", "realloc or calloc of memory of which the program has sealed a part"),
    row(LIMITS, "posix_memalign_sets_errno", "errno that says Success after a failure"),
    row(LIMITS, "program_comes_first", "arenas that tools mistake for the program"),
    row(LIMITS, "refused_memory_takes_no_addresses", "64 GiB more of addresses for each malloc that fails"),
    row(LIMITS, "questions_are_asked_again", "a query of the kernel that failed once and is never repeated")
        .inject(&["ioctl:error=ENOMEM:when=1..18"]),
    row(LIMITS, "inaccessible_and_not_unmapped", "a free that touches what the program has made inaccessible"),
    row(LIMITS, "memory_on_its_way", "NULL although enough is free, as it is on its way to the system")
        .inject(&["madvise:delay_enter=250000"]),
    row(LIMITS, "shrinking_succeeds_without_memory", "a realloc to fewer bytes that fails, or changes errno"),
    row(LIMITS, "shrinking_succeeds_without_memory", "the same where blocks are filled")
        .variant("::filled")
        .env(&[("MALLOC_PERTURB_", "165")]),
    row(
        COUNTER,
        "taken_by_prctl",
        "a helper or a sample that reads the time-stamp counter after the program disabled it",
    ),
    row(COUNTER, "taken_by_the_strict_mode", "a sample that reads that counter in the strict mode of seccomp"),
    row(COUNTER, "taken_by_the_strict_mode", "a guarded block whose place is chosen by that counter")
        .variant("::guards")
        .env(&[("NEAP_GUARDS", "on"), ("NEAP_GUARDS_INTERVAL", "1000")]),
];

fn main() -> ExitCode {
    let mut cases: Vec<Case> = Vec::new();
    for row in ROWS {
        cases.push(Case::new(row.name(), row.catches, || run(row, row.inject)));
        if row.inject.is_empty() {
            let name = format!("{}::delayed", row.name());
            cases.push(Case::new(name, row.catches, || run(row, DELAYS)).soak());
        }
    }
    cases.push(Case::new("table::complete", "a case that is written but never run", || {
        let named: Vec<_> = ROWS.iter().map(|row| (row.source.stem(), row.case)).collect();
        neap_tests::all_cases_named(
            &[HOLES, REALLOC, THREADS, HELPER, FORK, GUARDS, SHIM, WRAP, STACK, LIMITS, COUNTER],
            &named,
        )
    }));
    suite::main(cases)
}

/// Runs a row, under strace where something is injected. Only the program loads the library, not strace.
fn run(row: &'static Row, inject: &[&str]) -> Outcome {
    let program = row.source.build()?;
    let seconds = std::env::var("NEAP_SOAK").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    let mut run = if inject.is_empty() {
        Run::new(program)
    } else {
        let library = neap_tests::library::under_test()?;
        let mut run =
            Run::new(neap_tests::strace()?).args(["-f", "-qq", "-o", "/dev/null", "-e", "signal=none"]).plain();
        for what in inject {
            run = run.arg("-e").arg(format!("inject={what}"));
        }
        if let Some(path) = library.path() {
            run = run.arg("-E").arg(format!("LD_PRELOAD={}", path.display()));
        }
        run.arg(program)
    };
    for (name, value) in row.env {
        run = run.env(name, value);
    }
    judge_case(run.arg(row.case).timeout(Duration::from_secs(180 + 2 * seconds)))?.no_complaint()?;
    Ok(())
}
