//! The processes of a run: the command, and the processes that it started.
//!
//! A process whose parent ends becomes a child of neap (PR_SET_CHILD_SUBREAPER), so all of them are always descendants
//! of neap. A child that was not waited for keeps its number; neap sends signals only to such children.

use neap_launch::error::tell;
use neap_launch::signals;
use std::collections::BTreeMap;
use std::fs;
use std::ptr;
use std::time::{Duration, Instant};

/// How long the remaining processes of a run may take to end: before SIGKILL, and in all.
const GRACE: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(5);
/// Pause between two checks.
const NAP: Duration = Duration::from_millis(10);

/// The processes of the runs.
#[derive(Clone, Debug)]
pub struct Family {
    /// Children that neap had before: those of the program that executed neap.
    others: Vec<u32>,
}

/// Processor time of each process so far, and of the children that it waited for, in clock ticks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Times(BTreeMap<u32, u64>);

impl Family {
    /// Makes neap the subreaper; called before the first run.
    pub fn adopt() -> Family {
        // SAFETY: PR_SET_CHILD_SUBREAPER takes a number.
        unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1 as libc::c_ulong) };
        Family { others: children(std::process::id()) }
    }

    /// neap's children that are processes of a run.
    fn own(&self) -> Vec<u32> {
        let mut own = children(std::process::id());
        own.retain(|pid| !self.others.contains(pid));
        own
    }

    /// All of them.
    fn all(&self) -> Vec<u32> {
        let mut all = self.own();
        let mut at = 0;
        while at < all.len() {
            all.extend(children(all[at]));
            at += 1;
        }
        all
    }

    /// The one with the most resident memory.
    pub fn largest(&self) -> Option<u32> {
        let resident = |pid: &u32| {
            let text = fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
            text.split(' ').nth(1).and_then(|word| word.parse::<u64>().ok())
        };
        self.all().into_iter().max_by_key(resident)
    }

    /// Their processor time so far.
    pub fn times(&self) -> Times {
        let ticks = |pid| fs::read(format!("/proc/{pid}/stat")).map_or(0, |stat| ticks(&stat));
        // Parents last, because the time of a child that ends meanwhile is added to its parent's.
        Times(self.all().into_iter().rev().map(|pid| (pid, ticks(pid))).collect())
    }

    /// Ends the remaining processes of a run.
    pub fn end(&self) {
        let began = Instant::now();
        let mut asked = Vec::new();
        loop {
            // SAFETY: the status pointer may be null.
            while unsafe { libc::waitpid(-1, ptr::null_mut(), libc::WNOHANG) } > 0 {}
            let left = self.own();
            if left.is_empty() {
                return;
            }
            if began.elapsed() > LONGEST {
                return tell(format_args!("neap: these processes of the command do not end: {left:?}"));
            }
            for pid in left {
                if began.elapsed() > GRACE {
                    signals::send(pid as i32, libc::SIGKILL);
                } else if !asked.contains(&pid) {
                    signals::send(pid as i32, libc::SIGTERM);
                    asked.push(pid);
                }
            }
            std::thread::sleep(NAP);
        }
    }
}

impl Times {
    /// Processor time since `before`. The time of a process that ended is in that of its parent, which waited for it.
    pub fn since(&self, before: &Times) -> Duration {
        let used = |(pid, ticks): (&u32, &u64)| ticks.saturating_sub(before.0.get(pid).copied().unwrap_or(0));
        // SAFETY: sysconf takes a number.
        let second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1);
        Duration::from_secs_f64(self.0.iter().map(used).sum::<u64>() as f64 / second as f64)
    }
}

/// Children of a process, of all its threads.
fn children(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let texts = tasks.map(|task| fs::read_to_string(task.path().join("children")).unwrap_or_default());
    texts
        .flat_map(|text| text.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect::<Vec<u32>>())
        .collect()
}

/// utime, stime, cutime and cstime: fields 14 to 17 of `/proc/PID/stat`, proc_pid_stat(5). The name before them, in
/// brackets, may contain any bytes.
fn ticks(stat: &[u8]) -> u64 {
    let text = String::from_utf8_lossy(stat);
    let tail = text.rsplit_once(") ").map_or("", |(_, tail)| tail);
    tail.split(' ').skip(11).take(4).filter_map(|word| word.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::process::{Command, Stdio};

    /// Catches a server that counts as idle although its children work or because its name is not UTF-8; and a process
    /// that begins or ends and so takes from the time of others.
    #[test]
    fn the_time_of_all_counts() {
        let stat = b"7 (a \xff) b) S 1 7 7 0 -1 4194304 90 80 0 0 1 20 300 4000 20 0 1 0 5 6 7";
        assert_eq!(ticks(stat), 4321);
        let times = |pairs: &[(u32, u64)]| Times(pairs.iter().copied().collect());
        let (before, after) = (times(&[(1, 10), (2, 500)]), times(&[(1, 12), (3, 8)]));
        assert_eq!(after.since(&before), times(&[(1, 10)]).since(&Times::default()));
    }

    /// Catches work of an ended child that is not counted.
    #[test]
    fn work_of_ended_children_counts() {
        let work = "sh -c 'i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done'; echo; read x";
        let mut shell = Command::new("sh");
        shell.args(["-c", work]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = shell.spawn().expect("sh");
        let ended = child.stdout.as_mut().expect("it is a pipe").read(&mut [0]);
        let used = Family { others: Vec::new() }.times().since(&Times::default());
        let _ = child.kill().and_then(|()| child.wait());
        assert!(ended.is_ok_and(|count| count == 1) && used >= Duration::from_millis(50), "{used:?}");
    }
}
