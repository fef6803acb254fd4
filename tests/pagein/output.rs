//! Where the trace goes when something is in the way, what is lost, and what a terminal shows.

use std::ffi::OsStr;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::{Duration, Instant};

use neap_tests::command::{neap, need_events};
use neap_tests::sys::TempDir;
use neap_tests::terminal::Terminal;
use neap_tests::{Case, Outcome, Run, Source, Stop, expect, program, suite};

use crate::started::{HARD, LIMIT, Started};
use crate::trace::{ODD, Text};

/// The tests.
pub fn cases() -> Vec<Case> {
    vec![
        Case::new(
            "output::readonly",
            "a run that finds out only at its end that its trace cannot be written",
            readonly,
        ),
        Case::new("output::kept", "a file that is truncated although the program does not run", kept),
        Case::new("output::full", "a full disk without a message of how much was written", full),
        Case::new("output::interrupted", "neap that cannot be stopped while it writes", interrupted),
        Case::new("lost::begin", "lost events that are not counted", || lost("begin")),
        Case::new("lost::full", "the same where each fault is two events", || lost("full")),
        Case::new("terminal::progress", "a long run without progress", progress),
        Case::new(
            "terminal::summary",
            "a trace without a summary on the terminal, or with lines that are too wide",
            summary,
        ),
        Case::new("time::limit", "a program that runs on after its time limit", time_limit),
        Case::new("terminal::interrupt", "a Ctrl-C that ends neap before the trace is written", interrupt),
        Case::new("time::ls", "a trace of ls that takes too long", ls).exclusive(),
    ]
}

/// Checks the functions and mappings with most faults, in 80 columns; with and without events.
fn summary() -> Outcome {
    need_events()?;
    let (dir, deny) = (TempDir::new("neap-output-")?, Source::new("pagein/deny.c").build()?);
    let (file, odd) = (dir.join("trace"), ODD.build()?);
    for before in [&["env"][..], &[&deny.to_string_lossy()]] {
        let words = before.iter().map(OsStr::new).chain([neap()?.as_os_str()]);
        let options = ["pagein", "-o"].map(OsStr::new);
        let command: Vec<&OsStr> = words
            .chain(options)
            .chain([file.as_os_str(), OsStr::new("--"), odd.as_os_str(), OsStr::new("touch")])
            .collect();
        let (status, shown) = Terminal::run(&command)?.end(LIMIT)?;
        let lists = shown.contains("FUNCTION") && shown.contains("MAPPING") && shown.contains("  [anon]");
        let narrow = shown.lines().all(|line| line.trim_end().chars().count() <= 80);
        if !status.success() || !lists || !narrow {
            return Err(Stop::Fail(format!("{status:?}: no summary, or a wide one:\n{shown}")));
        }
    }
    Ok(())
}

fn time_limit() -> Outcome {
    let run = Run::new(neap()?).args(["pagein", "-o", "-", "--duration", "300ms", "--", "sleep", "60"]);
    let started = Instant::now();
    let done = run.plain().run()?;
    let ended = done.status.signal() == Some(libc::SIGTERM) && started.elapsed() < Duration::from_secs(30);
    expect(ended && done.stdout.contains("SIGTERM after 300ms"), &done, "it was not ended, or that is not said")?;
    let run = Run::new(neap()?).args(["pagein", "-o", "-", "--duration", "30s", "--", "true"]);
    let done = run.plain().run()?.success()?;
    expect(!done.stdout.contains("SIGTERM"), &done, "it ended by itself")
}

fn readonly() -> Outcome {
    let setpriv = if neap_tests::is_root() { program("setpriv")? } else { "env".into() };
    let dir = TempDir::new("neap-output-")?;
    let tool = dir.join("neap");
    Run::new("install").args(["-m", "755"]).arg(neap()?).arg(&tool).plain().run()?.success()?;
    Run::new("chmod").arg("555").arg(dir.path()).plain().run()?.success()?;
    let who: &[&str] = if neap_tests::is_root() { &["--reuid=65534", "--regid=65534", "--clear-groups"] } else { &[] };
    let done =
        Run::new(setpriv).args(who).arg(&tool).args(["pagein", "--", "echo", "ran"]).dir(dir.path()).plain().run()?;
    expect(
        done.status.code() == Some(125) && done.stdout.is_empty() && done.stderr.contains("another file with -o"),
        &done,
        "it should not have run",
    )
}

/// Checks a file that is executable but that the kernel cannot execute.
fn kept() -> Outcome {
    let dir = TempDir::new("neap-output-")?;
    let (text, broken, old) = (dir.join("text"), dir.join("broken"), dir.join("old"));
    std::fs::write(&text, "neither a program nor a script\n")?;
    std::fs::write(&old, "precious")?;
    Run::new("install").args(["-m", "755"]).args([&text, &broken]).plain().run()?.success()?;
    for output in [Some(&old), None] {
        let run = Run::new(neap()?).arg("pagein").args(output.map(|_| "-o")).args(output);
        let done = run.arg("--").arg(&broken).dir(dir.path()).plain().run()?;
        let left = std::fs::read_dir(dir.path())?.count();
        let kept = std::fs::read_to_string(&old)? == "precious";
        expect(done.status.code() == Some(126) && left == 3 && kept, &done, "a file was made, or emptied")?;
    }
    Ok(())
}

fn full() -> Outcome {
    let done = Run::new(neap()?).args(["pagein", "-o", "/dev/full", "--", "true"]).plain().run()?;
    let said = done.stderr.contains("No space left on device; it has the first 0 bytes");
    expect(done.status.code() == Some(125) && said, &done, "a full disk is not reported")?;
    if !neap_tests::is_root() {
        return Err(Stop::Skip("only root may make a small disk".into()));
    }
    let dir = TempDir::new("neap-output-")?;
    let script = "mount -t tmpfs -o size=64k none \"$1\" || exit 77
        echo precious > \"$1/old\"
        for file in old new; do \"$2\" pagein --format table -o \"$1/$file\" -- \"$3\" touch; done; status=$?
        cat \"$1\"/*; ls -A \"$1\"; exit $status";
    let done = Run::new(program("unshare")?)
        .args(["--mount", "sh", "-c", script, "sh"])
        .args([dir.path(), neap()?, &ODD.build()?])
        .plain()
        .run()?;
    if matches!(done.status.code(), Some(1 | 77)) {
        return Err(Stop::Skip(format!("no small disk can be mounted: {}", done.stderr)));
    }
    let said = done.stderr.matches("No space left on device\n").count() == 2;
    let right = done.status.code() == Some(125) && said && done.stdout.ends_with("precious\nold\n");
    expect(right, &done, "the earlier trace is lost, or a part of a trace is there")
}

/// Writes the trace into a pipe that is never read, so that neap is still writing after the program has ended.
fn interrupted() -> Outcome {
    need_events()?;
    let dir = TempDir::new("neap-output-")?;
    let pipe = dir.join("pipe");
    Run::new("mkfifo").arg(&pipe).plain().run()?.success()?;
    let mut keeper = Started::new(Command::new("sh").args(["-c", "exec 3<> \"$0\"; echo open; cat"]).arg(&pipe))?;
    keeper.line()?;
    let mut command = Command::new(neap()?);
    command.args(["pagein", "--format", "table", "-o"]).arg(&pipe).arg("--").arg(ODD.build()?).arg("touch");
    let mut neap = Started::new(&mut command)?;
    let children = format!("/proc/{0}/task/{0}/children", neap.pid());
    let started = Instant::now();
    // Waits for the program's end: until then signals are passed on to it.
    while std::fs::read_to_string(&children).is_ok_and(|list| !list.is_empty()) && started.elapsed() < LIMIT {
        std::thread::sleep(Duration::from_millis(5));
    }
    while started.elapsed() < LIMIT {
        neap.signal(libc::SIGTERM);
        std::thread::sleep(Duration::from_millis(50));
        if let Some(status) = neap.ended()? {
            let right = status.signal() == Some(libc::SIGTERM);
            return if right { Ok(()) } else { Err(Stop::Fail(format!("it ended with {status:?}"))) };
        }
    }
    Err(Stop::Fail("neap does not end by SIGTERM".into()))
}

/// Stops neap while the program has more faults than the rings hold.
fn lost(detail: &str) -> Outcome {
    need_events()?;
    let dir = TempDir::new("neap-output-")?;
    let file = dir.join("trace");
    let mut command = Command::new(neap()?);
    command.args(["pagein", "--detail", detail, "-o"]).arg(&file).arg("--").arg(HARD.build()?).arg("steps");
    let mut neap = Started::new(&mut command)?;
    neap.line()?;
    neap.signal(libc::SIGSTOP);
    neap.say("l")?;
    neap.line()?;
    neap.signal(libc::SIGCONT);
    neap.say_no_more();
    let status = neap.end()?;
    let trace = Text::read(&file)?;
    let lost = trace.footer.iter().find_map(|line| line.strip_prefix("# lost: ")?.parse::<i64>().ok()).unwrap_or(0);
    let (seen, counted) = (trace.faults.len() as i64, trace.counted()?);
    // A fault is one event, or two of which either can be lost.
    let right = seen + lost >= counted * 99 / 100 - 100 && (detail == "full" || seen + lost <= counted);
    if !status.success() || lost == 0 || !right || trace.difference("lost") <= 0 || trace.says("not explained") {
        return Err(Stop::Fail(format!("{seen} seen, {lost} lost, {counted} counted: {:?}", trace.footer)));
    }
    Ok(())
}

fn progress() -> Outcome {
    need_events()?;
    let dir = TempDir::new("neap-output-")?;
    let file = dir.join("trace");
    let command = [neap()?.as_os_str(), "pagein".as_ref(), "-o".as_ref(), file.as_os_str(), "--".as_ref()];
    let sleep = ["sleep", "4"].map(OsStr::new);
    let (status, shown) = Terminal::run(&[&command[..], &sleep].concat())?.end(LIMIT)?;
    let line = shown.split('\r').any(|line| line.starts_with("neap: ") && line.contains(" faults\u{1b}[K"));
    if status.success() && line {
        Ok(())
    } else {
        Err(Stop::Fail(format!("{status:?}, no line of progress: {shown:?}")))
    }
}

/// Ctrl-C on a terminal reaches both neap and the program.
fn interrupt() -> Outcome {
    need_events()?;
    let dir = TempDir::new("neap-output-")?;
    let file = dir.join("trace");
    let odd = ODD.build()?;
    let command = [neap()?.as_os_str(), "pagein".as_ref(), "-o".as_ref(), file.as_os_str(), "--".as_ref()];
    let mut terminal = Terminal::run(&[&command[..], &[odd.as_os_str(), "interrupt".as_ref()]].concat())?;
    terminal.wait_for("ready", LIMIT)?;
    terminal.press("\x03")?;
    let (status, shown) = terminal.end(LIMIT)?;
    let trace = Text::read(&file)?;
    if status.code() != Some(7) || !trace.says("exit status 7") || trace.faults.len() < 100 {
        return Err(Stop::Fail(format!("{status:?}, {shown:?}, {:?}", trace.footer)));
    }
    Ok(())
}

/// From the start to the written file: the fastest of some runs of an unoptimised build.
fn ls() -> Outcome {
    need_events()?;
    let dir = TempDir::new("neap-output-")?;
    let file = dir.join("trace");
    let mut least = Duration::MAX;
    for _ in 0..5 {
        let done =
            Run::new(neap()?).args(["pagein", "-o"]).arg(&file).args(["--", "ls", "/"]).plain().run()?.success()?;
        least = least.min(done.wall);
        let whole = std::fs::read_to_string(&file)?.lines().any(|line| line == "# lost: 0");
        expect(whole, &done, "the trace is not whole")?;
    }
    suite::note(format!("pagein ls: {:.3} s from start to written file (debug build; goal 0.3)", least.as_secs_f64()));
    if least < Duration::from_secs(10) { Ok(()) } else { Err(Stop::Fail(format!("ls takes {least:?}"))) }
}
