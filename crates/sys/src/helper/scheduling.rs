//! How the system schedules the helper. A thread inherits policy, priority, processors and timer slack from the thread
//! that starts it. That may be one which polls in real time on a processor of its own, or one of the lowest priority. So
//! what the helper inherits is changed:
//!
//! | attribute | from then on |
//! |---|---|
//! | policy | the default one; the starter's batch or idle policy if the first thread has the same |
//! | nice value | the nearest to the starter's that lies between 0 and the first thread's |
//! | processors | those of the first thread; the starter's if these are more |
//! | timer slack | the kernel's default |
//! | name | `neap-helper` |
//!
//! The first thread stands for the process: the tools that start programs set its attributes (`taskset`, `nice`,
//! `chrt`, service managers), and the other threads inherit them. The kernel cuts the processors down to those of the
//! cgroup.
//!
//! The starter makes the calls, except the last two: with the policy that it inherits, the helper may never run. Calls
//! that are refused change nothing (a lower nice value needs CAP_SYS_NICE or RLIMIT_NICE). Under a filter that the
//! program was started with, none is made.

use crate::arch;
use crate::system::call::{self, Plain, plain};
use core::ffi::CStr;

/// More processors than any machine has. Few, as the stack may be short.
const PROCESSORS: usize = 4096;

/// A set of processors, one bit for each.
type Set = [u64; PROCESSORS / 64];

/// The name, as `top -H` and /proc/PID/task/TID/comm show it.
const NAME: &CStr = c"neap-helper";
/// Timer slack in nanoseconds: `init_task.timer_slack_ns` of the kernel.
const SLACK: usize = 50_000;
/// The kernel's getpriority returns 20 minus the nice value.
const NICE_ZERO: isize = 20;

/// Changes what `helper` has inherited from the calling thread, which has just started it.
pub(super) fn settle(helper: usize) {
    let first = call::process() as usize;
    set_policy(helper, first);
    set_nice(helper, first);
    set_processors(helper, first);
}

/// The same for what only the helper can change, the calling thread.
pub(super) fn settle_self() {
    control(libc::PR_SET_TIMERSLACK, SLACK);
    control(libc::PR_SET_NAME, NAME.as_ptr().expose_provenance());
}

/// A prctl of the calling thread. `value` is a number, or the address of a name.
fn control(option: libc::c_int, value: usize) {
    // SAFETY: the kernel reads at most the name, a string that ends with 0.
    unsafe { arch::syscall(libc::SYS_prctl as usize, [option as usize, value, 0, 0, 0, 0]) };
}

fn set_policy(helper: usize, first: usize) {
    let [own, firsts] = [0, first].map(|thread| plain(Plain::SchedGetscheduler, [thread]) as libc::c_int);
    let is_background = matches!(own, libc::SCHED_BATCH | libc::SCHED_IDLE);
    if own != libc::SCHED_OTHER && !(is_background && own == firsts) {
        let priority = 0i32;
        let at = (&raw const priority).expose_provenance();
        // SAFETY: the kernel reads a `struct sched_param`, which is one int.
        unsafe {
            arch::syscall(libc::SYS_sched_setscheduler as usize, [helper, libc::SCHED_OTHER as usize, at, 0, 0, 0])
        };
    }
}

fn set_nice(helper: usize, first: usize) {
    let [own, firsts] = [0, first].map(|thread| plain(Plain::Getpriority, [libc::PRIO_PROCESS as usize, thread]));
    if arch::is_error(own) || arch::is_error(firsts) {
        return;
    }
    let wanted = wanted_nice(NICE_ZERO - own, NICE_ZERO - firsts);
    if wanted != NICE_ZERO - own {
        plain(Plain::Setpriority, [libc::PRIO_PROCESS as usize, helper, wanted.cast_unsigned()]);
    }
}

/// The nice value of a helper that inherited `own`, in a process whose first thread has `firsts`.
fn wanted_nice(own: isize, firsts: isize) -> isize {
    own.clamp(firsts.min(0), firsts.max(0))
}

fn set_processors(helper: usize, first: usize) {
    let (mut own, mut firsts): (Set, Set) = ([0; _], [0; _]);
    let (Some(_), Some(bytes)) = (processors(0, &mut own), processors(first, &mut firsts)) else { return };
    let count = |set: &Set| set.iter().map(|word| word.count_ones()).sum::<u32>();
    if own != firsts && count(&own) <= count(&firsts) {
        let at = (&raw const firsts).expose_provenance();
        // SAFETY: the kernel reads as many bytes as it wrote.
        unsafe { arch::syscall(libc::SYS_sched_setaffinity as usize, [helper, bytes, at, 0, 0, 0]) };
    }
}

/// Writes the processors that a thread may use to `set`; returns the number of bytes.
fn processors(thread: usize, set: &mut Set) -> Option<usize> {
    let (len, at) = (size_of_val(set), set.as_mut_ptr().expose_provenance());
    // SAFETY: the kernel writes at most `len` bytes.
    let bytes = unsafe { arch::syscall(libc::SYS_sched_getaffinity as usize, [thread, len, at, 0, 0, 0]) };
    (!arch::is_error(bytes)).then_some(bytes.cast_unsigned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a helper with a worse or a much better right to a processor than the process.
    #[test]
    fn nice_values() {
        let cases =
            [(0, 0, 0), (19, 0, 0), (-20, 0, 0), (0, 19, 0), (19, 19, 19), (-20, 19, 0), (19, -5, 0), (-20, -5, -5)];
        for (own, firsts, wanted) in cases {
            assert_eq!(wanted_nice(own, firsts), wanted, "{own} {firsts}");
        }
    }
}
