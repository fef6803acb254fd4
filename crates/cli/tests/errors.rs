//! What neap says when something is in its way: each error is one line with its cause, and nothing is lost without a word.

mod common;

use std::fs;
use std::process::{Command, Output};

use common::{Neap, assert_refused, default_signals, stderr, stdout};

/// Runs a line of sh in which `"$@"` is `neap ARGUMENTS`.
fn through_shell(neap: &Neap, line: &str, arguments: &[&str]) -> Output {
    let command = neap.command(arguments);
    let mut shell = Command::new("sh");
    shell.args(["-c", line, "sh"]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell.current_dir(neap.dir.path());
    default_signals(&mut shell);
    shell.output().expect("sh starts")
}

/// Catches texts that are lost, and neap says that all is well.
#[test]
fn texts_that_cannot_be_written_are_missed() {
    let neap = Neap::new();
    for arguments in [
        &["--help"][..],
        &["--version"],
        &["pagein", "diff", "--help"],
        &["man"],
        &["completions", "bash"],
        &["options"],
        &["options", "--json"],
        &["lab", "list"],
    ] {
        for (line, cause) in [("\"$@\" > /dev/full", "No space left on device\n"), ("\"$@\" >&-", "it is closed\n")] {
            let output = through_shell(&neap, line, arguments);
            assert_refused(&output, 125, &["neap: cannot write to standard output: ", cause]);
        }
    }
}

/// Catches a neap that aborts at its end, as a remark cannot be written to standard error.
#[test]
fn remarks_that_cannot_be_written_end_nothing() {
    let neap = Neap::new();
    let results = concat!(env!("CARGO_MANIFEST_DIR"), "/../../lab/results");
    let kept = fs::read_dir(results).expect("kept runs").map(|run| run.expect("a run").path());
    let kept = kept.filter(|run| run.join("run.json").exists()).min().expect("a kept run");
    let kept = kept.to_str().expect("UTF-8");
    for line in ["\"$@\" 2> /dev/full", "\"$@\" 2>&-"] {
        let output = through_shell(&neap, line, &["lab", "show", "--charts", "charts", kept]);
        assert_eq!(output.status.code(), Some(0), "{line}: {output:?}");
        fs::remove_dir_all(neap.path("charts")).expect("the charts are there");
    }
}

/// Catches what was meant for a closed standard descriptor in a file that neap opened.
#[test]
fn closed_descriptors_are_not_taken_for_files() {
    let neap = Neap::new();
    // Where events are denied, page tables are looked at while the program sleeps.
    for closed in ["0<&-", "1>&-", "2>&-", "1>&- 2>&-", "0<&- 1>&- 2>&-"] {
        let line = format!("exec {closed}; \"$@\"");
        let output = through_shell(
            &neap,
            &line,
            &["pagein", "--format", "csv", "-o", "trace", "--", "sh", "-c", "sleep 0.5; exit 3"],
        );
        assert_eq!(output.status.code(), Some(3), "{closed}: {output:?}");
        let trace = fs::read_to_string(neap.path("trace")).expect("a trace");
        let whole = trace.starts_with("number,time_ns,") && trace.lines().count() > 10;
        assert!(whole && !trace.contains("\n#") && !trace.contains("\nneap"), "{closed}: {trace}");
    }
}

/// Catches descriptors that neap's caller closed and the program finds open.
#[test]
fn the_program_finds_closed_what_was_closed() {
    let neap = Neap::new();
    let script = "for number in 0 1 2; do test -e /proc/$$/fd/$number && echo $number; done > found; exit 0";
    for form in [&["run", "--"][..], &["run", "--summary", "--"], &["pagein", "-o", "trace", "--"]] {
        for (closed, open) in [("0<&-", "1\n2\n"), ("2>&-", "0\n1\n"), ("0<&- 2>&-", "1\n")] {
            let line = format!("exec {closed}; \"$@\"");
            through_shell(&neap, &line, &[form, &["sh", "-c", script]].concat());
            assert_eq!(fs::read_to_string(neap.path("found")).expect("it ran"), open, "{form:?} {closed}");
        }
    }
}

/// Catches a run whose trace has nowhere to go.
#[test]
fn a_closed_output_is_seen_before_the_run() {
    let neap = Neap::new();
    let output = through_shell(&neap, "\"$@\" >&-", &["pagein", "-o", "-", "--", "sh", "-c", ": > ran"]);
    assert_refused(&output, 125, &["standard output: it is closed", "hint: name a file with -o"]);
    assert!(!neap.path("ran").exists(), "the program ran");
}

/// Catches names of files that break an error in two, or change the terminal.
#[test]
fn errors_are_one_line() {
    let neap = Neap::new();
    let output = neap.run(["./no\nsuch\u{1b}[31m"]);
    assert_refused(&output, 127, &["cannot run ./no\\nsuch\\u{1b}[31m: no such file"]);
    assert_eq!(stderr(&output).lines().count(), 1, "{}", stderr(&output));
    let output = neap.output(["run", "--summary-file", "/no/such/file", "true"]);
    assert_refused(&output, 125, &["/no/such/file: No such file or directory\n", "hint: name another file"]);
}

/// Catches a summary in a file called `-`.
#[test]
fn a_summary_is_not_for_standard_output() {
    let neap = Neap::new();
    let output = through_shell(&neap, "\"$@\"", &["run", "--summary-file", "-", "sh", "-c", "echo ran"]);
    assert_refused(&output, 125, &["standard output", "hint: leave --summary-file out"]);
    assert!(!neap.path("-").exists());
}

/// Catches programs that cannot be traced, and the kernel's word for it does not tell why.
#[test]
fn what_cannot_be_executed_is_explained() {
    let neap = Neap::new();
    let refused = |path: &std::path::Path, status, words: &[&str]| {
        let mut command = neap.command(["pagein", "-o", "-", "--"]);
        assert_refused(&command.arg(path).output().expect("neap starts"), status, words);
    };
    refused(&neap.file("text", "echo hello\n", 0o755), 126, &["neither an ELF program nor a script", "hint: if it is"]);
    let broken = neap.file("broken", "#!/no/such/interpreter\n", 0o755);
    refused(&broken, 127, &["its interpreter /no/such/interpreter", "hint: correct the first line"]);
    let round = neap.path("round");
    neap.file("round", format!("#!{}\n", round.display()), 0o755);
    refused(&round, 126, &["too many levels of interpreters", "hint: correct the first line"]);
    if let Some(program) = common::compile(
        neap.dir.path(),
        "alone",
        "int main(void) { return 0; }\n",
        &["-Wl,--dynamic-linker=/no/linker"],
    ) {
        refused(&program, 127, &["its dynamic linker /no/linker", "hint: install the C library"]);
    }
}

/// Catches processes that do not exist called files, and threads of the kernel that are watched for nothing.
#[test]
fn processes_that_cannot_be_traced_are_explained() {
    let neap = Neap::new();
    for pid in ["0", "2147483647", "4294967295"] {
        let output = neap.output(["pagein", "--pid", pid, "-o", "-"]);
        assert_refused(&output, 125, &[pid, "there is no such process", "hint: is it still running?"]);
    }
    if fs::read_to_string("/proc/2/comm").is_ok_and(|name| name == "kthreadd\n") {
        let output = neap.output(["pagein", "--pid", "2", "--duration", "10ms", "-o", "-"]);
        assert_refused(&output, 125, &["process 2: ", "hint: "]);
    }
}

/// Catches one standard input that is read for two traces.
#[test]
fn standard_input_is_one_trace() {
    let neap = Neap::new();
    assert_refused(&neap.output(["pagein", "diff", "-", "-"]), 125, &["both traces", "hint: name a file"]);
}

/// Catches a list whose columns begin here and there.
#[test]
fn allocators_are_listed_in_columns() {
    let neap = Neap::new();
    let list = stdout(&neap.output(["lab", "peers", "list"]));
    let columns = |line: &str| line.find("  ").map(|gap| gap + line[gap..].len() - line[gap..].trim_start().len());
    let mut starts: Vec<_> = list.lines().map(columns).collect();
    starts.dedup();
    assert_eq!(starts.len(), 1, "{list}");
}

/// Catches a help that has no help.
#[test]
fn help_has_help() {
    let neap = Neap::new();
    let output = neap.output(["help", "--help"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).contains("Usage: neap <COMMAND>"), "{}", stdout(&output));
}

/// Catches a typo without the word that was meant.
#[test]
fn typos_are_named_with_what_was_meant() {
    let neap = Neap::new();
    for (line, wanted) in [
        (&["rnu", "--", "true"][..], "a similar subcommand exists: 'run'"),
        (&["run", "--sumary", "--", "true"], "a similar argument exists: '--summary'"),
        (&["run", "--set", "purg=eager", "--", "true"], "there is no option `purg`; did you mean `purge`?"),
        (&["run", "--set", "purge=eagr", "--", "true"], "not `eagr`; did you mean `eager`?"),
        (&["pagein", "--format", "tabel", "--", "true"], "did you mean `table`?"),
        (&["profile", "--heap", "--format", "ppof", "--", "true"], "did you mean `pprof`?"),
        (&["lab", "run", "caloc"], "did you mean `calloc`? the experiments are "),
        (&["lab", "run", "calloc", "--allocators", "jemaloc"], "did you mean `jemalloc`? the allocators are "),
        (&["lab", "peers", "build", "--only", "rpmaloc"], "did you mean `rpmalloc`? the peers are "),
        (&["man", "rnu"], "did you mean `run`? the commands are "),
        (&["completions", "bsh"], "a similar value exists: 'bash'"),
    ] {
        assert_refused(&neap.output(line), 125, &[wanted]);
    }
}

/// Catches a hint at another view than the one that was named.
#[test]
fn a_profile_of_nothing_is_explained() {
    let neap = Neap::new();
    for view in ["--heap", "--allocs", "--pinned", "--time"] {
        let hint = format!("hint: neap profile {view} -- PROGRAM");
        assert_refused(&neap.output(["profile", view]), 125, &["neither a program nor a process is given", &hint]);
    }
}

/// Catches a trace given as a profile, or the other way round, and only a field is said to be missing.
#[test]
fn files_of_other_commands_are_named() {
    let neap = Neap::new();
    neap.file(
        "profile.json",
        r#"{"schema":"neap-profile","version":1,"command":["x"],"mappings":[{"start":1}]}"#,
        0o644,
    );
    neap.file("trace.json", r#"{"neap_trace":1,"summary":{}}"#, 0o644);
    let (profile, trace) = (neap.path("profile.json"), neap.path("trace.json"));
    let output = neap.command(["pagein", "show"]).arg(&profile).output().expect("neap starts");
    assert_refused(&output, 125, &["it is a profile, and no trace: neap profile reads it"]);
    let output = neap.command(["profile", "show"]).arg(&trace).output().expect("neap starts");
    assert_refused(&output, 125, &["it is a trace: neap pagein reads it"]);
}

/// Catches the parser's own words for a number, which say nothing of processes.
#[test]
fn a_pid_that_is_none_is_named() {
    let neap = Neap::new();
    for line in [&["pagein", "--pid", "abc"][..], &["options", "--pid", "abc"], &["profile", "--heap", "--pid", "-"]] {
        assert_refused(&neap.output(line), 125, &["'--pid <PID>': a PID is a number, as `neap top`"]);
    }
    assert_refused(&neap.output(["stats", "python3"]), 125, &["'<PID>': a PID is a number, as `neap top`"]);
    let words = ["a PID is a number", "to start a command, write -- in front of it: -- python3"];
    assert_refused(&neap.output(["why", "python3"]), 125, &words);
}

/// Catches a missing interpreter without the script that names it: env says only what it did not find.
#[test]
fn a_script_is_named_with_its_missing_interpreter() {
    let neap = Neap::new();
    let forms: [&[&str]; 10] = [
        &["run"],
        &["run", "--summary"],
        &["pagein", "-o", "-"],
        &["pagein", "--sites", "-o", "-"],
        &["why"],
        &["profile", "--heap"],
        &["profile", "--time"],
        &["order", "trace"],
        &["huge", "show"],
        &["advise"],
    ];
    for (first, missing, hint) in [
        ("#!/no/such/perl", "/no/such/perl: No such file or directory", "correct the first line"),
        ("#!/usr/bin/env no-such-perl", "no-such-perl is not found in PATH", "install no-such-perl, or correct"),
        ("#!/usr/bin/env -S A=1 /no/such/perl -x", "/no/such/perl is not found", "install /no/such/perl, or correct"),
    ] {
        let script = neap.file("script", format!("{first}\nexit 0\n"), 0o755);
        let cause = format!("cannot run {}: its interpreter {missing}\n", script.display());
        for form in forms {
            let output = neap.command(form).arg("--").arg(&script).output().expect("neap starts");
            assert_refused(&output, 127, &[&cause, &format!("hint: {hint}")]);
            assert_eq!(stderr(&output).lines().count(), 2, "{form:?}: {}", stderr(&output));
        }
    }
}
