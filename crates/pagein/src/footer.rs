//! The footer: what a trace covers, and what it does not.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use neap_trace::{Backend, Cause, Difference, End, Tables, Usage};

use super::exact::Inexact;
use super::perf::{self, Denied, Detail, Refused};
use super::store::Store;
use neap_launch::child::Ended;
use neap_launch::error::system_message;

/// What the watcher knows besides the faults.
pub struct Facts {
    /// Faults without an end.
    pub not_completed: u64,
    /// Faults of processes that were not waited for.
    pub not_waited_for: u64,
    /// Processes that are still running.
    pub running: usize,
    /// Records that could not be read.
    pub malformed: u64,
    /// Whether faults in kernel mode were seen; `None` for scans.
    pub kernel: Option<bool>,
    /// Which events were traced.
    pub detail: Detail,
    /// Whether the format shows more than the beginnings of faults provide.
    pub rich: bool,
    /// Why there are no events.
    pub why: Option<Denied>,
    /// Whether each process was scanned at its start and at its end, where page tables were scanned.
    pub followed: bool,
}

/// What is known of a process that neap attached to.
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// The kernel's count from before the trace began until after it ended.
    pub usage: Usage,
    /// The part of it that was counted while the trace began or ended.
    pub edges: u64,
    /// Whether the process ended; then the count is that of some time before its end.
    pub ended: bool,
    /// From the beginning of the trace to its end.
    pub duration: Duration,
    /// Whether it had children before, which are traced too.
    pub children: bool,
    /// Whether new threads may be untraced.
    pub unfollowed: bool,
}

/// Fills in the summary of a program that was run.
pub fn of_program(tables: &mut Tables, facts: &Facts, command: &[OsString], ended: &Ended, store: &Store) {
    common(tables, facts);
    let untraced = untraced(tables, facts, store);
    let summary = &mut tables.summary;
    summary.command = command.iter().map(|argument| argument.to_string_lossy().into_owned()).collect();
    summary.pid = ended.pid;
    summary.end = match (ended.status.code(), ended.status.signal()) {
        (Some(status), _) => End::Exited(status),
        (None, signal) => End::Signal(signal.unwrap_or(0)),
    };
    summary.duration = nanoseconds(ended.wall);
    let count = |value: libc::c_long| u64::try_from(value).unwrap_or(0);
    let usage = Usage { minor: count(ended.usage.ru_minflt), major: count(ended.usage.ru_majflt) };
    summary.usage = Some(usage);
    if facts.running > 0 {
        summary.missing.push(format!(
            "{} of its processes were still running when the program ended: their later faults",
            facts.running
        ));
    }
    let known = vec![
        difference(Cause::BeforeExec, ended.faults_before_exec),
        difference(Cause::Arguments, ended.argument_pages),
    ];
    let count = Count { total: usage.total(), seen: summary.faults, lost: summary.lost, known, edges: 0 };
    let differences = count.differences(facts, |rest| match rest {
        0.. if untraced => Some(Cause::Untraced),
        0.. => None,
        // A scan counts the pages around a fault, which are more than any child's faults.
        _ if facts.kernel.is_none() => None,
        // All faults of a child that was not waited for are missing.
        _ => fewest_of_a_child(tables, store).filter(|&few| rest.unsigned_abs() >= few).map(|_| Cause::NotWaitedFor),
    });
    tables.summary.differences = differences;
}

/// Fills in the summary of a process that neap attached to.
pub fn of_process(tables: &mut Tables, facts: &Facts, process: &Process, store: &Store) {
    common(tables, facts);
    let untraced = untraced(tables, facts, store) || process.unfollowed;
    let summary = &mut tables.summary;
    summary.pid = process.pid;
    summary.end = if process.ended { End::Ended } else { End::Running };
    summary.duration = nanoseconds(process.duration);
    summary.usage = Some(process.usage);
    if process.unfollowed {
        summary.missing.push("the faults of some threads that began while neap attached".to_owned());
    }
    let (seen, lost) = (summary.faults, summary.lost);
    let count = Count { total: process.usage.total(), seen, lost, known: Vec::new(), edges: process.edges };
    summary.differences = count.differences(facts, |rest| match rest {
        // The count may be that of some time before the end.
        ..0 if process.ended => Some(Cause::Edges),
        // One of the others ended, and its parent did not wait for it.
        ..0 if process.children => Some(Cause::NotWaitedFor),
        0.. if untraced => Some(Cause::Untraced),
        _ => None,
    });
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Records which programs began and could not be traced: the kernel ends a trace when the program runs as another user,
/// or may not be read. Then no record reports its mappings, and there is no fault. Returns whether there are any.
fn untraced(tables: &mut Tables, facts: &Facts, store: &Store) -> bool {
    const NAMED: usize = 5;
    if facts.kernel.is_none() {
        return false;
    }
    let mapped: HashSet<_> = tables.mappings.iter().map(|(_, mapping)| mapping.process).collect();
    let executed = tables.processes.iter().filter(|(_, row)| row.image > 0 || row.parent.is_none());
    let mut silent: BTreeSet<_> =
        executed.filter(|(id, row)| row.end.is_some() && !mapped.contains(id)).map(|(id, _)| id).collect();
    if silent.is_empty() {
        return false;
    }
    let looked = store.visit(&mut |fault| {
        silent.remove(&tables.threads[fault.thread].process);
        Ok(())
    });
    if looked.is_err() || silent.is_empty() {
        return false;
    }
    let shown = |id| format!("{} (process {})", tables.processes[id].name, tables.processes[id].pid);
    let names: Vec<String> = silent.into_iter().map(shown).collect();
    let more = match names.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let summary = &mut tables.summary;
    summary.missing.push(format!(
        "the faults of {}{more}: the kernel ends the trace of a program that runs as another user, or may not be read",
        names[..names.len().min(NAMED)].join(", ")
    ));
    summary.remedy = Some("run neap as that user, or as root".to_owned());
    true
}

/// The fewest faults of any process other than the program; `None` where there are no others.
fn fewest_of_a_child(tables: &Tables, store: &Store) -> Option<u64> {
    let mut counts = HashMap::<u32, u64>::new();
    let counted = store.visit(&mut |fault| {
        let process = tables.threads[fault.thread].process;
        *counts.entry(tables.processes[process].pid).or_default() += 1;
        Ok(())
    });
    counted.ok()?;
    counts.remove(&tables.summary.pid);
    counts.into_values().min()
}

/// Fills in what applies to every trace.
pub fn common(tables: &mut Tables, facts: &Facts) {
    let summary = &mut tables.summary;
    summary.neap = env!("CARGO_PKG_VERSION").to_owned();
    summary.backend = match facts.kernel {
        Some(true) => Backend::Perf,
        Some(false) => Backend::PerfUser,
        None => Backend::Scan,
    };
    summary.lost += facts.malformed;
    if facts.kernel.is_some() && facts.detail == Detail::Begin && facts.rich {
        summary
            .missing
            .push("service times, sizes of pages, and whether a fault was refused; kinds are guesses".to_owned());
        summary.remedy = Some("neap pagein --detail full".to_owned());
    }
    match facts.kernel {
        Some(true) => {}
        Some(false) => {
            summary.missing.push("faults in kernel mode, when the system reads or writes for the program".to_owned());
            summary.remedy = Some("sudo sysctl kernel.perf_event_paranoid=1, or run neap as root".to_owned());
        }
        None => {
            let reason = facts.why.as_ref().map(reason).unwrap_or_default();
            let when = match facts.followed {
                true => "every 2 ms and at the end of each process",
                false => "every 2 ms, so what ended sooner was not seen",
            };
            summary.missing.push(format!(
                "perf events are denied here ({reason}): page tables were scanned instead, {when}; there are no instructions and no exact times, a page that faults again counts once, and new pages within 64 KiB of a file are one fault"
            ));
            if summary.sites.take().is_some() {
                summary.missing.push("allocation sites: they are found by the exact times of faults".to_owned());
            }
            summary.remedy = Some(remedy(facts.why.as_ref()));
        }
    }
}

/// Fills in what applies where fault-around should be off.
pub fn exact(tables: &mut Tables, inexact: Option<Inexact>) {
    let Some(Inexact { programs, mappings }) = inexact else { return };
    let summary = &mut tables.summary;
    summary.exact = true;
    if programs > 0 {
        summary.missing.push(format!(
            "fault-around stayed on in {programs} processes (of 32 bits, without userfaultfd, or with a seccomp filter of their own)"
        ));
    }
    if mappings > 0 {
        summary.missing.push(format!(
            "fault-around stayed on in {mappings} mappings (shared ones of files that may only be read)"
        ));
    }
}

/// Fills in that the program was ended at its time limit.
pub fn ended_by_limit(tables: &mut Tables, time: Duration) {
    tables.summary.missing.push(format!("all later faults: the program was ended with SIGTERM after {time:?}"));
}

/// Why events are denied.
pub fn reason(why: &Denied) -> String {
    let message = system_message(&why.error);
    match why.what {
        Refused::Event => message,
        Refused::Ring => format!("no memory for them, this user's other traces have it: {message}"),
        Refused::Descriptor(wanted) => format!("{message}: {wanted} are needed"),
    }
}

/// A command that would permit events, from the reason why they are denied.
pub fn remedy(why: Option<&Denied>) -> String {
    let paranoid = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
    match why.map(|why| why.what) {
        Some(Refused::Ring) => {
            let enough = perf::mlock_kb().unwrap_or(516) * 4;
            return format!(
                "sudo sysctl kernel.perf_event_mlock_kb={enough}, or wait until the other traces have ended"
            );
        }
        Some(Refused::Descriptor(wanted)) => return format!("sudo prlimit --nofile={wanted} --pid $$"),
        Some(Refused::Event) | None => {}
    }
    match (why.and_then(|why| why.error.raw_os_error()), paranoid.trim().parse::<i32>()) {
        (Some(libc::EACCES | libc::EPERM), Ok(level)) if level > 2 => {
            "sudo sysctl kernel.perf_event_paranoid=2".to_owned()
        }
        (Some(libc::ENOSYS), Err(_)) => "a kernel with CONFIG_PERF_EVENTS".to_owned(),
        _ => "allow the system call perf_event_open (docker run --security-opt seccomp=unconfined --cap-add PERFMON)"
            .to_owned(),
    }
}

/// The kernel's count and the trace's.
struct Count {
    total: u64,
    seen: u64,
    lost: u64,
    /// Faults that are known to be in only one of them.
    known: Vec<Difference>,
    /// Faults counted while the trace began or ended, which may be in either.
    edges: u64,
}

impl Count {
    /// Why they differ: the known causes, and then the rest, whose cause `special` may know.
    fn differences(self, facts: &Facts, special: impl FnOnce(i64) -> Option<Cause>) -> Vec<Difference> {
        let Self { total, seen, lost, known: mut list, edges } = self;
        list.push(Difference { cause: Cause::NotCompleted, count: -signed(facts.not_completed) });
        list.push(Difference { cause: Cause::NotWaitedFor, count: -signed(facts.not_waited_for) });
        let known: i64 = list.iter().map(|difference| difference.count).sum();
        let mut rest = signed(total) - signed(seen) - known;
        for (cause, most) in [(Cause::Edges, edges), (Cause::Lost, lost)] {
            let part = rest.clamp(0, signed(most));
            list.push(Difference { cause, count: part });
            rest -= part;
        }
        let usual = match (facts.kernel, rest) {
            // Without the ends of faults it is unknown which were refused.
            (Some(_), ..0) if facts.detail == Detail::Begin => Cause::NotCompleted,
            (Some(_), ..0) => Cause::Unexplained,
            (Some(true), _) => Cause::WithoutTrap,
            (Some(false), _) => Cause::KernelMode,
            (None, ..0) => Cause::AroundFaults,
            (None, _) => Cause::BetweenScans,
        };
        let cause = if rest == 0 { usual } else { special(rest).unwrap_or(usual) };
        match list.iter_mut().find(|difference| difference.cause == cause) {
            Some(difference) => difference.count += rest,
            None => list.push(Difference { cause, count: rest }),
        }
        list.retain(|difference| difference.count != 0);
        list
    }
}

fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn difference(cause: Cause, count: u64) -> Difference {
    Difference { cause, count: signed(count) }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn facts(kernel: Option<bool>, detail: Detail) -> Facts {
        Facts {
            not_completed: 2,
            not_waited_for: 5,
            running: 0,
            malformed: 0,
            kernel,
            detail,
            rich: true,
            why: None,
            followed: true,
        }
    }

    /// Catches differences that do not add up, or have the wrong cause.
    #[test]
    fn differences_add_up() {
        use Detail::{Begin, Full};
        for (total, lost, edges, kernel, detail, special, cause) in [
            (120, 0, 0, Some(true), Full, None, Cause::WithoutTrap),
            (120, 0, 0, Some(false), Full, None, Cause::KernelMode),
            (120, 0, 0, Some(false), Full, Some(Cause::Untraced), Cause::Untraced),
            (120, 40, 0, Some(false), Full, Some(Cause::Untraced), Cause::Lost),
            (120, 4, 0, Some(false), Full, None, Cause::KernelMode),
            (120, 0, 40, Some(true), Full, None, Cause::Edges),
            (80, 0, 40, Some(true), Full, None, Cause::Unexplained),
            (80, 0, 0, Some(true), Begin, None, Cause::NotCompleted),
            (80, 0, 0, Some(true), Full, Some(Cause::NotWaitedFor), Cause::NotWaitedFor),
            (120, 0, 0, None, Full, None, Cause::BetweenScans),
            (80, 0, 0, None, Full, None, Cause::AroundFaults),
        ] {
            let known = vec![difference(Cause::BeforeExec, 5), difference(Cause::Arguments, 2)];
            let count = Count { total, seen: 100, lost, known, edges };
            let list = count.differences(&facts(kernel, detail), |_| special);
            assert_eq!(100 + list.iter().map(|d| d.count).sum::<i64>(), total as i64);
            let largest = list.iter().max_by_key(|d| d.count.abs()).map(|d| d.cause);
            assert_eq!(largest, Some(cause), "{list:?}");
            let causes: HashSet<_> = list.iter().map(|d| d.cause).collect();
            assert_eq!(causes.len(), list.len(), "{list:?}");
        }
    }

    /// Catches a remedy that does not help against what was refused.
    #[test]
    fn remedies_fit_what_was_refused() {
        let denied = |what, errno| Denied { what, error: io::Error::from_raw_os_error(errno) };
        let ring = denied(Refused::Ring, libc::EPERM);
        assert!(remedy(Some(&ring)).contains("kernel.perf_event_mlock_kb="), "{}", remedy(Some(&ring)));
        assert!(reason(&ring).contains("other traces"), "{}", reason(&ring));
        let descriptors = denied(Refused::Descriptor(70_000), libc::EMFILE);
        assert!(remedy(Some(&descriptors)).contains("--nofile=70000"), "{}", remedy(Some(&descriptors)));
    }
}
