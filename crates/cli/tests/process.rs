//! The program's process: exit status, signals, environment, terminal and descriptors, with and without a
//! summary.

mod common;

use std::fs;
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{Neap, assert_refused, default_signals, skip, stdout};

/// `neap run` in its two forms: as the program, and beside it.
const FORMS: [&[&str]; 2] = [&["run", "--"], &["run", "--summary", "--"]];

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(120), "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn signal(child: &Child, number: i32) {
    let pid = i32::try_from(child.id()).expect("a process id");
    // SAFETY: kill takes no pointers.
    assert_eq!(unsafe { libc::kill(pid, number) }, 0, "the process exists");
}

/// The state letter of a process: R, S, T, Z.
fn state(pid: u32) -> char {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()).unwrap_or('-')
}

/// Catches an exit status that is changed on the way.
#[test]
fn the_exit_status_is_the_programs() {
    let neap = Neap::new();
    for form in FORMS {
        for status in [0, 1, 3, 125, 255] {
            let script = format!("exit {status}");
            let output = neap.command(form).args(["sh", "-c", &script]).output().expect("neap starts");
            assert_eq!(output.status.code(), Some(status), "{form:?}");
        }
    }
}

/// Catches a death by signal that a shell would not see as one, and a core file of neap.
#[test]
fn death_by_signal_is_reproduced() {
    let neap = Neap::new();
    for form in FORMS {
        for number in [9, 11, 6, 15, 10] {
            let script = format!("kill -{number} $$");
            let output = neap.command(form).args(["sh", "-c", &script]).output().expect("neap starts");
            assert_eq!(output.status.signal(), Some(number), "{form:?}");
        }
    }
    let script = format!("{} run --summary -- sh -c 'kill -TERM $$' 2>/dev/null; echo $?", env!("CARGO_BIN_EXE_neap"));
    let output = Command::new("sh").args(["-c", &script]).env("HOME", neap.dir.path()).output().expect("a shell");
    assert_eq!(stdout(&output), "143\n");
}

/// Catches signals that stay with neap or arrive twice.
#[test]
fn signals_are_passed_on_once() {
    let neap = Neap::new();
    for form in FORMS {
        for (name, number) in [
            ("TERM", libc::SIGTERM),
            ("INT", libc::SIGINT),
            ("HUP", libc::SIGHUP),
            ("USR1", libc::SIGUSR1),
            ("WINCH", libc::SIGWINCH),
        ] {
            let (ready, log) = (neap.path("ready"), neap.path("log"));
            let _ = fs::remove_file(&ready);
            let _ = fs::remove_file(&log);
            // bash, not sh: dash runs a trap for WINCH only after a foreground command.
            let script = format!(
                "trap 'echo {name} >> \"{log}\"; n=1' {name}; n=0; : > \"{ready}\"; \
                 while [ $n = 0 ]; do sleep 0.01; done; sleep 0.1; exit 7",
                log = log.display(),
                ready = ready.display()
            );
            let mut child = neap
                .command(form)
                .args(["bash", "-c", &script])
                .stderr(Stdio::null())
                .process_group(0)
                .spawn()
                .expect("neap starts");
            wait_until("the trap", || ready.exists());
            signal(&child, number);
            let status = child.wait().expect("neap ends");
            assert_eq!(status.code(), Some(7), "{form:?} {name}");
            assert_eq!(fs::read_to_string(&log).expect("a log"), format!("{name}\n"), "{form:?}");
        }
    }
}

/// Catches a key on the terminal that reaches the program twice: once from the terminal, once from neap.
#[test]
fn terminal_keys_arrive_once() {
    let neap = Neap::new();
    let Ok(mut python) = Command::new("python3").arg("-c").arg("import pty").spawn() else {
        return skip("terminal_keys_arrive_once", "no python3 to make a terminal");
    };
    if !python.wait().is_ok_and(|s| s.success()) {
        return skip("terminal_keys_arrive_once", "no python3 with the module pty");
    }
    let log = neap.path("log");
    let script = format!(
        "trap 'echo INT >> \"{log}\"; n=1' INT; n=0; echo ready; while [ $n = 0 ]; do sleep 0.01; done; sleep 0.2; exit 7",
        log = log.display()
    );
    let driver = "
import os, pty, sys
pid, master = pty.fork()
if pid == 0:
    os.execv(sys.argv[1], sys.argv[1:])
seen = b''
while b'ready' not in seen:
    seen += os.read(master, 4096)
os.write(master, b'\\x03')
try:
    while os.read(master, 4096): pass
except OSError: pass
_, status = os.waitpid(pid, 0)
sys.exit(os.waitstatus_to_exitcode(status))
";
    for form in FORMS {
        let _ = fs::remove_file(&log);
        let mut python = Command::new("python3");
        python.args(["-c", driver, env!("CARGO_BIN_EXE_neap")]).args(form).args(["bash", "-c", &script]);
        default_signals(python.env("HOME", neap.dir.path()));
        let status = python.status().expect("python3 starts");
        assert_eq!(status.code(), Some(7), "{form:?}");
        assert_eq!(fs::read_to_string(&log).expect("a log"), "INT\n", "{form:?}");
    }
}

/// Catches a neap that goes on when its program stops, or that cannot be continued.
#[test]
fn stops_and_continues_with_the_program() {
    let neap = Neap::new();
    let ready = neap.path("ready");
    let script =
        format!("echo $$ > \"{0}.part\"; mv \"{0}.part\" \"{0}\"; sleep 0.2; kill -STOP $$; exit 5", ready.display());
    let mut child =
        neap.command(FORMS[1]).args(["sh", "-c", &script]).stderr(Stdio::null()).spawn().expect("neap starts");
    wait_until("the program", || ready.exists());
    let program: u32 = fs::read_to_string(&ready).expect("readable").trim().parse().expect("a process id");
    wait_until("the program to stop", || state(program) == 'T');
    wait_until("neap to stop", || state(child.id()) == 'T');
    signal(&child, libc::SIGCONT);
    assert_eq!(child.wait().expect("neap ends").code(), Some(5));
}

/// Catches a program that outlives a killed neap.
#[test]
fn the_program_does_not_outlive_neap() {
    let neap = Neap::new();
    let ready = neap.path("ready");
    let script = format!("echo $$ > \"{0}.part\"; mv \"{0}.part\" \"{0}\"; exec sleep 60", ready.display());
    let mut child = neap
        .command(FORMS[1])
        .args(["sh", "-c", &script])
        .env("TMPDIR", neap.dir.path())
        .stderr(Stdio::null())
        .spawn()
        .expect("neap starts");
    wait_until("the program", || ready.exists());
    let program: u32 = fs::read_to_string(&ready).expect("readable").trim().parse().expect("a process id");
    child.kill().expect("neap is there");
    child.wait().expect("neap ends");
    wait_until("the program to end", || matches!(state(program), '-' | 'Z'));
}

/// Catches dispositions and masks that the program does not find as neap's caller left them.
#[test]
fn ignored_signals_stay_ignored() {
    let neap = Neap::new();
    // dash cannot ignore SIGCHLD; bash can.
    let report = |trap: &str, form: &str| {
        let script = format!("{trap} exec {form} grep -E 'SigIgn|SigBlk' /proc/self/status");
        let mut command = Command::new("bash");
        let output = command.args(["-c", &script]).env("HOME", neap.dir.path()).output().expect("bash");
        stdout(&output)
    };
    for trap in ["", "trap '' PIPE;", "trap '' CHLD;", "trap '' INT HUP;"] {
        let alone = report(trap, "env");
        assert!(alone.contains("SigIgn"), "{alone}");
        for form in FORMS {
            let form = format!("{} {}", env!("CARGO_BIN_EXE_neap"), form.join(" "));
            assert_eq!(report(trap, &form), alone, "{form} {trap}");
        }
    }
}

/// Catches a process between the caller and the program where none is needed, and leaked descriptors.
#[test]
fn without_a_summary_neap_becomes_the_program() {
    let neap = Neap::new();
    let mut child =
        neap.command(["run", "--", "sh", "-c", "echo $$"]).stdout(Stdio::piped()).spawn().expect("neap starts");
    let mut text = String::new();
    child.stdout.take().expect("piped").read_to_string(&mut text).expect("readable");
    child.wait().expect("neap ends");
    assert_eq!(text, format!("{}\n", child.id()));
}

/// Catches descriptors of neap that leak into the program.
#[test]
fn the_program_has_the_descriptors_of_neaps_caller() {
    let neap = Neap::new();
    let list = "for f in /proc/self/fd/*; do echo ${f##*/}; done";
    let alone = stdout(&Command::new("bash").args(["-c", list]).output().expect("bash"));
    for form in FORMS {
        let output = neap.command(form).args(["bash", "-c", list]).output().expect("neap starts");
        assert_eq!(stdout(&output), alone, "{form:?}");
    }
}

/// Catches standard input or output that neap touches.
#[test]
fn input_and_output_are_the_programs() {
    let neap = Neap::new();
    for form in FORMS {
        let input = neap.file("input", "one\ntwo\n", 0o644);
        let output = neap
            .command(form)
            .arg("cat")
            .stdin(fs::File::open(input).expect("readable"))
            .output()
            .expect("neap starts");
        assert_eq!(stdout(&output), "one\ntwo\n", "{form:?}");
    }
}

/// Catches a preload of the user's that is lost, and a library that is not loaded.
#[test]
fn an_existing_preload_is_kept() {
    let neap = Neap::new();
    let linker_list = "cat /proc/self/maps; echo \"preload=$LD_PRELOAD\"";
    let Some(extra) =
        common::compile(neap.dir.path(), "extra.so", "int extra(void) { return 1; }\n", &["-shared", "-fPIC"])
    else {
        return skip("an_existing_preload_is_kept", "no C compiler");
    };
    for form in FORMS {
        let output =
            neap.command(form).args(["sh", "-c", linker_list]).env("LD_PRELOAD", &extra).output().expect("neap starts");
        let text = stdout(&output);
        let list = text.lines().find_map(|line| line.strip_prefix("preload=")).expect("the variable is set");
        let (first, second) = list.split_once(':').expect("two entries");
        assert!(first.ends_with("/libneap.so") && Path::new(second) == extra, "{list}");
        assert!(text.lines().any(|line| line.ends_with(first)), "libneap.so is not mapped: {text}");
        assert!(text.lines().any(|line| line.ends_with("/extra.so")), "extra.so is not mapped");
    }
}

/// Catches options that do not reach the program, and values that are not checked.
#[test]
fn settings_are_checked_and_passed() {
    let neap = Neap::new();
    let output = neap.output(["run", "--set", "foreign=abort", "--", "sh", "-c", "echo $NEAP_FOREIGN"]);
    assert_eq!(stdout(&output), "abort\n");
    assert_refused(&neap.output(["run", "--set", "foreign=x", "--", "true"]), 125, &["pass or abort"]);
    assert_refused(&neap.output(["run", "--set", "colour=x", "--", "true"]), 125, &["no option `colour`", "counters"]);
    assert_refused(&neap.output(["run", "--set", "foreign", "--", "true"]), 125, &["NAME=VALUE"]);
    assert_refused(&neap.output(["run", "--set", "counters=/no/such", "--", "true"]), 125, &["existing directory"]);
    assert_refused(
        &neap.output(["run", "--summary", "--set", "counters=/tmp", "--", "true"]),
        125,
        &["counters directory of its own"],
    );
}

/// Catches sizes and times that are passed on unchecked, or changed on their way.
#[test]
fn settings_of_returning_memory() {
    let neap = Neap::new();
    let settings =
        ["purge=lazy", "purge_delay=2s", "purge_bytes=64MiB", "zero=always", "mmap_threshold=1m", "limit=off"];
    let arguments = settings.iter().flat_map(|setting| ["--set", setting]);
    let output = neap.output(["run"].into_iter().chain(arguments).chain(["--", "env"]));
    let text = stdout(&output);
    for setting in settings {
        let (name, value) = setting.split_once('=').expect("a value");
        let line = format!("NEAP_{}={value}", name.to_uppercase());
        assert!(text.lines().any(|l| l == line), "no {line} in {text}");
    }
    assert_eq!(common::stderr(&output), "", "the library understands what the command lets through");
    for (setting, words) in [
        ("purge=sometimes", ["`sometimes`", "decay, eager, lazy or never"]),
        ("purge_delay=2h", ["`2h`", "from 0 to 1h"]),
        ("purge_bytes=-1", ["`-1`", "from 0 to 128T"]),
        ("zero=", ["``", "resident or always"]),
        ("mmap_threshold=off", ["`off`", "or none"]),
        ("limit=99999999999999999999", ["`99999999999999999999`", "auto or off"]),
    ] {
        assert_refused(&neap.output(["run", "--set", setting, "--", "echo", "ran"]), 125, &words);
    }
}

/// Catches a bad value in the environment that the library swallows, or that stops the program.
#[test]
fn a_bad_variable_is_told_and_ignored() {
    let neap = Neap::new();
    let mut command = neap.command(["run", "--", "echo", "ran"]);
    let output = command.env("NEAP_PURGE", "sometimes").output().expect("neap starts");
    assert_eq!((stdout(&output).as_str(), output.status.code()), ("ran\n", Some(0)));
    assert_eq!(
        common::stderr(&output),
        "neap: NEAP_PURGE=sometimes is invalid; use decay, eager, lazy or never; \
         the default is used: decay\n"
    );
}

/// Catches usage errors that look like the program's.
#[test]
fn usage_errors_are_125() {
    let neap = Neap::new();
    assert_refused(&neap.output(["run"]), 125, &["CMD"]);
    assert_refused(&neap.output(["run", "--sumary", "--", "true"]), 125, &["--sumary"]);
    assert_refused(&neap.output(["walk"]), 125, &["walk"]);
}

/// Catches a profile that goes on when its time is over, or does not say that neap ended the program.
#[test]
fn a_profile_has_an_end() {
    let neap = Neap::new();
    for view in ["--heap", "--allocs", "--time"] {
        let output = neap.output(["profile", view, "--duration", "300ms", "--", "sleep", "600"]);
        let text = common::stderr(&output);
        if text.contains("the kernel denies the clock") {
            skip("a_profile_has_an_end", "no perf events");
            continue;
        }
        assert_eq!(output.status.signal(), Some(libc::SIGTERM), "{text}");
        assert!(text.contains("SIGTERM at the end of --duration"), "{text}");
    }
}

/// Catches an empty heap without a word on what would show more, and one of another malloc ("No block was live", of 95
/// MiB under valgrind).
#[test]
fn an_empty_heap_is_explained() {
    let neap = Neap::new();
    let text = |interval: &str, command: &[&str]| {
        let start = ["profile", "--heap", "--interval", interval, "--"];
        common::stderr(&neap.output(start.iter().chain(command)))
    };
    // So large an interval that no block of a short program is sampled.
    let none = text("64G", &["sleep", "0"]);
    assert!(none.contains("live: 0 B in 0 blocks") && none.contains("# No block was sampled"), "{none}");
    assert!(!none.contains("No block was live"), "{none}");
    let source = "#include <stdlib.h>\nint main(void) { free(malloc(100)); }";
    match common::compile(neap.dir.path(), "frees", source, &["-O0", "-fno-builtin"]) {
        Some(program) => {
            let freed = text("1", &[&program.to_string_lossy()]);
            assert!(freed.contains("# No block was live at the end: --allocs"), "{freed}");
        }
        None => skip("an_empty_heap_is_explained", "needs a C compiler"),
    }
}
