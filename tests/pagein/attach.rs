//! `neap pagein --pid`: processes that end, that have ended, that make threads, and what the footer reports about them.

use std::path::Path;
use std::process::{Command, Stdio};

use neap_tests::command::{neap, need_events};
use neap_tests::sys::TempDir;
use neap_tests::{Case, Outcome, Run, Stop, expect, program};

use crate::started::{Started, attached};
use crate::trace::{ODD, Text};

/// The tests.
pub fn cases() -> Vec<Case> {
    vec![
        Case::new(
            "attach::counted",
            "an attached process without a count, or with differences without a reason",
            || counted(false),
        ),
        Case::new("attach::ended", "an ended process that is reported as running", || counted(true)),
        Case::new("attach::zombie", "neap that waits for a parent that does not reap the process", zombie),
        Case::new("attach::threads", "threads that come and go while neap attaches", threads),
        Case::new("attach::children", "earlier children that are not traced, or not counted", children),
        Case::new("attach::refused", "a file that is emptied although the process may not be traced", refused),
    ]
}

/// A process that touches 1000 pages while it is traced; then it ends, or neap gets a signal.
fn counted(ends: bool) -> Outcome {
    need_events()?;
    let dir = TempDir::new("neap-attach-")?;
    let file = dir.join("trace");
    let mut steps = Started::hard("steps")?;
    steps.line()?;
    let mut neap = attached(&[], steps.pid(), &file)?;
    steps.say("s")?;
    steps.line()?;
    if ends {
        // It becomes a zombie: neap must not wait until it is reaped.
        steps.say_no_more();
    } else {
        neap.signal(libc::SIGINT);
    }
    let status = neap.end()?;
    let trace = Text::read(&file)?;
    let said = if ends { ": ended, " } else { ": still running, " };
    let (seen, kernel) = (trace.faults.len() as i64, trace.says("user and kernel mode"));
    let rest = trace.counted()? - seen - trace.difference("while the trace began or ended");
    if !status.success() || !trace.says(said) || seen < 1000 || trace.says("not explained") || kernel && rest != 0 {
        return Err(trace.wrong(&format!("{status:?}, {rest} left")));
    }
    Ok(())
}

fn zombie() -> Outcome {
    need_events()?;
    let dir = TempDir::new("neap-attach-")?;
    let mut parent = Started::hard("zombie")?;
    let pid: u32 = parent.line()?.parse().map_err(|_| Stop::Fail("no process".into()))?;
    let file = dir.join("trace");
    let mut tracer = attached(&[], pid, &file)?;
    parent.say_no_more();
    let status = tracer.end()?;
    let trace = Text::read(&file)?;
    if !status.success() || !trace.says(": ended, ") {
        return Err(trace.wrong("it is not said that it ended"));
    }
    let done = Run::new(neap()?).args(["pagein", "--pid", &pid.to_string()]).dir(dir.path()).plain().run()?;
    let left = std::fs::read_dir(dir.path())?.count();
    expect(
        done.status.code() == Some(125) && done.stderr.contains("cannot trace") && left == 1,
        &done,
        "a process that has ended is traced",
    )
}

/// Attaches to a process whose first thread has ended while others keep making short threads.
fn threads() -> Outcome {
    need_events()?;
    let neap = neap()?;
    let mut program = Started::hard("threads")?;
    program.line()?;
    let pid = program.pid().to_string();
    let dir = TempDir::new("neap-attach-")?;
    let file = dir.join("trace");
    let options = ["pagein", "--duration", "1s", "--pid", &pid, "-o"];
    let done = Run::new(neap).args(options).arg(&file).plain().run()?.success()?;
    let trace = Text::read(&file)?;
    let (seen, counted) = (trace.faults.len() as i64, trace.counted()?);
    let rest = counted - seen - trace.difference("while the trace began or ended");
    let all = rest.abs() <= counted / 100 || trace.says("some threads that began while neap attached");
    let kernel = trace.says("user and kernel mode");
    let fits = seen > 100 && trace.says("still running") && trace.says("lost: 0") && (all || !kernel);
    expect(fits, &done, &format!("{seen} of {counted} faults; {:?}", trace.footer))
}

/// An earlier child, which executes a program while it is traced.
fn children() -> Outcome {
    need_events()?;
    let odd = ODD.build()?;
    let script = format!("exec 3<&0; (read word; exec {} touch) <&3 & echo ready; wait", odd.display());
    let mut parent = Started::new(Command::new("sh").args(["-c", &script]))?;
    parent.line()?;
    let dir = TempDir::new("neap-attach-")?;
    let file = dir.join("trace");
    let mut neap = attached(&[], parent.pid(), &file)?;
    parent.say("go\n")?;
    let status = neap.end()?;
    let trace = Text::read(&file)?;
    let of_child = trace.faults.iter().filter(|line| line.contains("odd-")).count();
    let explained = !trace.says("not explained") && !trace.says("were not waited for");
    if !status.success() || of_child < 1000 || !explained {
        return Err(trace.wrong(&format!("{of_child} faults of the child")));
    }
    Ok(())
}

fn refused() -> Outcome {
    if !neap_tests::is_root() {
        return Err(Stop::Skip("only root may become another user".into()));
    }
    let dir = TempDir::new("neap-attach-")?;
    let file = dir.join("trace");
    std::fs::write(&file, "precious")?;
    for (path, mode) in [(dir.path(), "755"), (Path::new(&file), "666")] {
        Run::new("chmod").arg(mode).arg(path).plain().run()?.success()?;
    }
    let tool = dir.join("neap");
    Run::new("install").args(["-m", "755"]).arg(neap()?).arg(&tool).plain().run()?.success()?;
    let mut sleeper = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn()?;
    let done = Run::new(program("setpriv")?)
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(&tool)
        .args(["pagein", "--pid", &sleeper.id().to_string(), "-o"])
        .arg(&file)
        .plain()
        .run();
    let _ = (sleeper.kill(), sleeper.wait());
    let done = done?;
    let kept = std::fs::read_to_string(&file)? == "precious";
    expect(done.status.code() == Some(125) && done.stderr.contains("another user") && kept, &done, "it was traced")
}
