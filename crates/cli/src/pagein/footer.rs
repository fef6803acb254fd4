//! What a trace covers, and what it does not.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;

use neap_trace::{Backend, Cause, Difference, End, Tables, Usage};

use super::exact::Inexact;
use super::perf::Detail;
use crate::error::system_message;
use crate::run::child::Ended;

/// What the watcher knows beside the faults.
pub struct Facts {
    /// Faults without an end.
    pub not_completed: u64,
    /// Faults of processes that nobody can have waited for.
    pub not_waited_for: u64,
    /// Processes that are still there.
    pub running: usize,
    /// Records that could not be read.
    pub malformed: u64,
    /// Whether faults in kernel mode were seen; none for scans.
    pub kernel: Option<bool>,
    /// Which events were traced.
    pub detail: Detail,
    /// Whether the format shows more than the beginnings of faults tell.
    pub rich: bool,
    /// Why there were no events.
    pub why: Option<io::Error>,
}

/// Fills in the summary of a program that was run.
pub fn of_program(tables: &mut Tables, facts: &Facts, command: &[OsString], ended: &Ended) {
    common(tables, facts);
    let summary = &mut tables.summary;
    summary.command = super::shown(command);
    summary.pid = ended.pid;
    summary.end = match (ended.status.code(), ended.status.signal()) {
        (Some(status), _) => End::Exited(status),
        (None, signal) => End::Signal(signal.unwrap_or(0)),
    };
    summary.duration = u64::try_from(ended.wall.as_nanos()).unwrap_or(u64::MAX);
    let count = |value: libc::c_long| u64::try_from(value).unwrap_or(0);
    let usage = Usage { minor: count(ended.usage.ru_minflt), major: count(ended.usage.ru_majflt) };
    summary.usage = Some(usage);
    let before = Before { exec: ended.faults_before_exec, arguments: ended.argument_pages };
    summary.differences = differences(usage.total(), summary.faults, summary.lost, before, facts);
    if facts.running > 0 {
        summary.missing.push(format!(
            "{} of its processes were still running when the program ended: their later faults",
            facts.running
        ));
    }
}

/// Fills in what holds for every trace.
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
            let reason = facts.why.as_ref().map(system_message).unwrap_or_default();
            summary.missing.push(format!(
                "perf events are denied here ({reason}): page tables were looked at every few milliseconds instead, so there are no instructions, no exact order, no repeated faults, and no pages that came and went in between"
            ));
            if summary.sites.take().is_some() {
                summary.missing.push("allocation sites: they are found by the exact times of faults".to_owned());
            }
            summary.remedy = Some(remedy(facts.why.as_ref()));
        }
    }
}

/// Fills in what holds where fault-around was to be off.
pub fn exact(tables: &mut Tables, inexact: Option<Inexact>) {
    let Some(Inexact { programs, mappings }) = inexact else { return };
    let summary = &mut tables.summary;
    summary.exact = true;
    if programs > 0 {
        summary
            .missing
            .push(format!("fault-around stayed on in {programs} programs (of 32 bits, or without userfaultfd)"));
    }
    if mappings > 0 {
        summary.missing.push(format!(
            "fault-around stayed on in {mappings} mappings (shared ones of files that may only be read)"
        ));
    }
}

/// What would allow events, from why they are denied.
fn remedy(why: Option<&io::Error>) -> String {
    let paranoid = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
    match (why.and_then(io::Error::raw_os_error), paranoid.trim().parse::<i32>()) {
        (Some(libc::EACCES | libc::EPERM), Ok(level)) if level > 2 => {
            "sudo sysctl kernel.perf_event_paranoid=2".to_owned()
        }
        (Some(libc::ENOSYS), Err(_)) => "a kernel with CONFIG_PERF_EVENTS".to_owned(),
        (Some(libc::EMFILE), _) => "ulimit -n 4096".to_owned(),
        _ => "allow the system call perf_event_open (docker run --security-opt seccomp=unconfined --cap-add PERFMON)"
            .to_owned(),
    }
}

/// Faults that are counted for the program, and happened before it began.
#[derive(Clone, Copy)]
struct Before {
    /// In neap's own child.
    exec: u64,
    /// For the arguments.
    arguments: u64,
}

/// Why the kernel's count differs from the trace's: what is known, and then what is left.
fn differences(counted: u64, seen: u64, lost: u64, before: Before, facts: &Facts) -> Vec<Difference> {
    let signed = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    let mut list = vec![
        Difference { cause: Cause::BeforeExec, count: signed(before.exec) },
        Difference { cause: Cause::Arguments, count: signed(before.arguments) },
        Difference { cause: Cause::NotCompleted, count: -signed(facts.not_completed) },
        Difference { cause: Cause::NotWaitedFor, count: -signed(facts.not_waited_for) },
    ];
    let known: i64 = list.iter().map(|difference| difference.count).sum();
    let rest = signed(counted) - signed(seen) - known;
    let cause = match facts.kernel {
        // Without the ends of faults nobody knows which were refused.
        Some(_) if rest < 0 && facts.detail == Detail::Begin => Cause::NotCompleted,
        _ if rest < 0 => Cause::Unexplained,
        // Each fault is two records.
        _ if lost > 0 && rest <= signed(lost) => Cause::Lost,
        Some(true) => Cause::WithoutTrap,
        Some(false) => Cause::KernelMode,
        None => Cause::Unexplained,
    };
    list.push(Difference { cause, count: rest });
    list.retain(|difference| difference.count != 0);
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(kernel: Option<bool>) -> Facts {
        Facts {
            not_completed: 2,
            not_waited_for: 5,
            running: 0,
            malformed: 0,
            kernel,
            detail: Detail::Full,
            rich: true,
            why: None,
        }
    }

    /// Catches differences that do not add up, or are blamed on the wrong cause.
    #[test]
    fn differences_add_up() {
        for (counted, lost, kernel, cause) in [
            (120, 0, Some(true), Cause::WithoutTrap),
            (120, 0, Some(false), Cause::KernelMode),
            (120, 40, Some(false), Cause::Lost),
            (80, 0, Some(true), Cause::Unexplained),
            (120, 0, None, Cause::Unexplained),
        ] {
            let list = differences(counted, 100, lost, Before { exec: 5, arguments: 2 }, &facts(kernel));
            assert_eq!(100 + list.iter().map(|d| d.count).sum::<i64>(), counted as i64);
            assert_eq!(list.last().map(|d| d.cause), Some(cause), "{list:?}");
        }
    }
}
