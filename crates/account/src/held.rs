//! What keeps calls from being made in a running process, and so from remedies that are calls.

use crate::model::{Action, Remedy};
use crate::seen::{Held, Seen};

/// The mode of seccomp in which a thread may only read, write and end: the kernel ends it for any call of madvise.
const STRICT: u64 = 1;

/// Says what has to be done before remedies for the running process, and leaves out those that would end it.
pub fn apply(seen: &Seen, all: &mut Vec<Remedy>) {
    let is_debuggers = |remedy: &Remedy| remedy.command.starts_with("gdb ");
    all.retain(|remedy| seen.seccomp != STRICT || remedy.action != Action::Trim);
    // A debugger would look the function up in another C library, and call what is at that address.
    all.retain(|remedy| !seen.is_rooted || !is_debuggers(remedy));
    for remedy in all.iter_mut().filter(|remedy| remedy.now && !remedy.command.is_empty()) {
        let is_debugger = is_debuggers(remedy);
        let first = match seen.held {
            Some(Held::Traced(tracer)) if is_debugger => {
                format!(" First end the trace by process {tracer}: the kernel allows one debugger.")
            }
            Some(Held::Stopped) => format!(" First continue it (kill -CONT {}): it is stopped.", seen.number()),
            Some(Held::Frozen) => " First thaw its cgroup: it is frozen.".into(),
            _ => String::new(),
        };
        remedy.text.push_str(&first);
        if seen.seccomp > STRICT && remedy.action == Action::Trim {
            remedy.text.push_str(" Its seccomp filter has to allow madvise.");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches commands that hang, fail, or end the process: a call by a debugger in a process that is stopped, frozen,
    /// traced already, or may not give memory back.
    #[test]
    fn commands_fit_the_state() {
        let of = |held, seccomp| {
            let gdb = Remedy { command: "gdb -p 7".into(), ..Remedy::new(Action::Trim, "Trim.", 1) };
            let jcmd = Remedy { command: "jcmd 7".into(), ..Remedy::new(Action::TrimOfJava, "Trim.", 1) };
            let later =
                Remedy { command: "A=1".into(), now: false, ..Remedy::new(Action::NoThreadCaches, "Start.", 1) };
            let mut all = vec![gdb, jcmd, later];
            apply(&Seen { pid: 7, held, seccomp, ..Seen::default() }, &mut all);
            all.into_iter().map(|remedy| remedy.text).collect::<Vec<_>>()
        };
        assert_eq!(of(None, 0), ["Trim.", "Trim.", "Start."]);
        let stopped = "Trim. First continue it (kill -CONT 7): it is stopped.";
        assert_eq!(of(Some(Held::Stopped), 0), [stopped, stopped, "Start."]);
        let frozen = "Trim. First thaw its cgroup: it is frozen.";
        assert_eq!(of(Some(Held::Frozen), 0), [frozen, frozen, "Start."]);
        let traced = "Trim. First end the trace by process 9: the kernel allows one debugger.";
        assert_eq!(of(Some(Held::Traced(9)), 0), [traced, "Trim.", "Start."]);
        assert_eq!(of(None, 1), ["Trim.", "Start."]);
        let gdb = || vec![Remedy { command: "gdb -p 7".into(), ..Remedy::new(Action::Trim, "Trim.", 1) }];
        let (mut here, mut rooted) = (gdb(), gdb());
        apply(&Seen::default(), &mut here);
        apply(&Seen { is_rooted: true, ..Seen::default() }, &mut rooted);
        assert_eq!((here.len(), rooted.len()), (1, 0));
        assert_eq!(of(None, 2)[0], "Trim. Its seccomp filter has to allow madvise.");
    }
}
