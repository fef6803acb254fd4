//! The files that neap writes, where something fails or neap is ended: a file has a whole result, what it had before, or is
//! not there; and no temporary file stays.

mod common;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{Neap, TempDir, compile, skip, stderr};

/// How long something may take that a test waits for.
const LIMIT: Duration = Duration::from_secs(30);

/// The names in a folder.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("it is there").map(|entry| entry.expect("it is there").file_name());
    let mut names: Vec<String> = entries.map(|name| name.to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// The children of a process.
fn children(pid: u32) -> Vec<u32> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// Waits until something holds.
fn wait(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < LIMIT, "{what}: not in {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn signal(pid: u32, number: i32) {
    // SAFETY: kill takes no pointers.
    unsafe { libc::kill(pid as i32, number) };
}

/// Catches an earlier file that is emptied, and a new one that is left empty, where nothing can be written into it.
#[test]
fn failures_leave_files_alone() {
    let neap = Neap::new();
    neap.file("broken", "neither a program nor a script\n", 0o755);
    for arguments in [
        "why -o A 4194305",
        "why --html A 4194305",
        "why -o A -- ./broken",
        "huge show -o A 4194305",
        "huge show -o A -- ./broken",
        "run --summary-file A -- ./broken",
        "pagein -o A -- ./broken",
        "pagein -o A --pid 4194305",
        "profile --heap --format json -o A -- ./broken",
        "profile --heap --format json -o A --pid 4194305",
        "profile --time --format json -o A -- ./broken",
    ] {
        let folder = TempDir::new();
        Command::new("cp").arg("-p").arg(neap.path("broken")).arg(folder.path()).status().expect("cp starts");
        for earlier in [None, Some("an earlier result")] {
            let file = folder.path().join("A");
            if let Some(text) = earlier {
                fs::write(&file, text).expect("writable");
            }
            let output = neap.command(arguments.split(' ')).current_dir(folder.path()).output().expect("neap starts");
            assert!(matches!(output.status.code(), Some(125 | 126)), "{arguments}: {output:?}");
            let left: &[&str] = if earlier.is_some() { &["A", "broken"] } else { &["broken"] };
            assert_eq!(names(folder.path()), left, "{arguments}");
            assert_eq!(fs::read_to_string(&file).ok().as_deref(), earlier, "{arguments}");
        }
    }
}

/// Catches a part of a result under its name, and an earlier result that is lost, where there is no room for a new one.
#[test]
fn no_room_leaves_files_alone() {
    let neap = Neap::new();
    for arguments in
        ["pagein --format json -o ../T -- true", "profile --heap --interval 1 --format json -o ../P -- true"]
    {
        let folder = neap.path("inputs");
        fs::create_dir_all(&folder).expect("writable");
        let output = neap.command(arguments.split(' ')).current_dir(folder).output().expect("neap starts");
        assert!(output.status.success(), "{arguments}: {output:?}");
    }
    for arguments in [
        "pagein --format html -o A -- true",
        "pagein show --format html -o A ../T",
        "profile --time --format html -o A -- true",
        "profile show --format html -o A ../P",
        "profile diff --format html -o A ../P ../P",
        "why --html A -- sleep 0.1",
        "why --json -o A -- sleep 0.1",
        "huge show --json --all -o A -- true",
    ] {
        for (number, earlier) in [None, Some("an earlier result")].into_iter().enumerate() {
            let folder = neap.path(&format!("{} {number}", arguments.replace('/', " ")));
            fs::create_dir(&folder).expect("writable");
            let file = folder.join("A");
            if let Some(text) = earlier {
                fs::write(&file, text).expect("writable");
            }
            let mut shell = Command::new("sh");
            shell.args(["-c", "ulimit -f 1; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_neap")]);
            let output = shell.args(arguments.split(' ')).current_dir(&folder).output().expect("sh starts");
            let text = stderr(&output);
            assert_eq!(output.status.code(), Some(125), "{arguments}: {text}");
            assert!(text.contains(": File too large") && !text.contains("it has"), "{arguments}: {text}");
            assert!(text.contains("cannot write ") && text.contains("hint: "), "{arguments}: {text}");
            assert_eq!(fs::read_to_string(&file).ok().as_deref(), earlier, "{arguments}");
            assert_eq!(names(&folder).len(), usize::from(earlier.is_some()), "{arguments}");
        }
    }
}

/// Catches a result that is lost where its file cannot be replaced: a mount point, one with two names, and one behind a link.
#[test]
fn what_cannot_be_replaced_is_written_where_it_is() {
    let neap = Neap::new();
    let folder = TempDir::new();
    let file = |name: &str| {
        let path = folder.path().join(name);
        fs::write(&path, "an earlier result").expect("writable");
        path
    };
    let (mounted, real, second) = (file("mounted"), file("real"), file("second"));
    fs::hard_link(&second, folder.path().join("name")).expect("a second name");
    std::os::unix::fs::symlink(&real, folder.path().join("link")).expect("a link");
    let before = names(folder.path());
    let write = |command: &mut Command| {
        let output = command.output().expect("it starts");
        assert!(output.status.success(), "{output:?}");
    };
    write(neap.command(["pagein", "--format", "json", "-o"]).arg(folder.path().join("link")).args(["--", "true"]));
    write(neap.command(["pagein", "--format", "json", "-o"]).arg(&second).args(["--", "true"]));
    if common::is_root() {
        let script = "mount --bind \"$1\" \"$1\" && exec \"$0\" pagein --format json -o \"$1\" -- true";
        write(Command::new("unshare").args(["-m", "sh", "-c", script, env!("CARGO_BIN_EXE_neap")]).arg(&mounted));
        // Each report of several goes there.
        let reports = file("reports");
        let script = "mount --bind \"$1\" \"$1\" && \
            exec \"$0\" why --watch --json --interval 100ms --duration 3s -o \"$1\" $$";
        write(Command::new("unshare").args(["-m", "sh", "-c", script, env!("CARGO_BIN_EXE_neap")]).arg(&reports));
        let text = fs::read_to_string(&reports).expect("text");
        assert!(text.lines().count() > 2 && text.lines().all(|line| line.starts_with('{')), "{text}");
        fs::remove_file(reports).expect("writable");
    } else {
        fs::copy(&real, &mounted).expect("writable");
    }
    for path in [real, second, mounted] {
        let text = fs::read_to_string(&path).expect("text");
        assert!(text.starts_with("{\n\"neap_trace\"") && text.ends_with("]\n}\n"), "{}: {text}", path.display());
    }
    assert_eq!(names(folder.path()), before);
    assert_eq!(
        fs::metadata(folder.path().join("name")).map(|found| std::os::unix::fs::MetadataExt::nlink(&found)).ok(),
        Some(2)
    );
}

/// Catches a program that runs although its profile cannot be written.
#[test]
fn profiles_have_a_place_before_the_program_runs() {
    let neap = Neap::new();
    let ran = neap.path("ran");
    for view in ["--heap", "--allocs", "--pinned", "--time"] {
        let mut command =
            neap.command(["profile", view, "--format", "json", "-o", "/proc/none/profile", "--", "touch"]);
        let output = command.arg(&ran).output().expect("neap starts");
        assert_eq!(output.status.code(), Some(125), "{view}: {output:?}");
        assert!(stderr(&output).contains("cannot write to /proc/none/profile"), "{view}: {output:?}");
        assert!(!ran.exists(), "{view}: the program ran");
    }
}

/// Catches an empty file, or a temporary one, of a neap that is killed before it has a result.
#[test]
fn a_killed_neap_leaves_no_file() {
    let neap = Neap::new();
    for arguments in ["pagein --format json -o A -- sleep 60", "why -o - -- sleep 60"] {
        let folder = TempDir::new();
        let mut command = neap.command(arguments.split(' '));
        let mut running = command.current_dir(folder.path()).stdout(Stdio::null()).spawn().expect("neap starts");
        let comm = |pid: u32| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        wait(arguments, || children(running.id()).into_iter().any(|child| comm(child) == "sleep\n"));
        running.kill().expect("it runs");
        running.wait().expect("it ended");
        assert_eq!(names(folder.path()), [""; 0], "{arguments}");
    }
}

/// Catches a trace's folder that stays in the temporary folder when a signal ends neap, while it runs a program by itself.
#[test]
fn signals_leave_no_temporary_folder() {
    let neap = Neap::new();
    for number in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        let temporary = TempDir::new();
        let sleep = ["order", "verify", "--before", "/bin/sleep", "--after", "/bin/sleep", "--pairs", "1", "--", "60"];
        let mut command = neap.command(sleep);
        command.env("TMPDIR", temporary.path()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut running = command.spawn().expect("neap starts");
        // neap, the neap that traces, and the program.
        wait("a traced program", || children(running.id()).into_iter().any(|tracer| !children(tracer).is_empty()));
        signal(running.id(), number);
        running.wait().expect("it ended");
        assert_eq!(names(temporary.path()), [""; 0], "signal {number}");
    }
}

/// Catches errors that do not say what helps where there is no place for temporary files.
#[test]
fn no_temporary_folder() {
    let neap = Neap::new();
    let source = "int main(void) { return 3; }\n";
    let compiled = compile(neap.dir.path(), "one", source, &[]);
    if compiled.is_none() || !common::is_root() {
        return skip("no_temporary_folder", "needs root and a C compiler");
    }
    common::copy_program(env!("CARGO_BIN_EXE_neap"), &neap.path("neap"));
    let script = "mount --bind \"$0\" /mnt && cd /mnt || exit 77
        for folder in /tmp /dev/shm /var/tmp; do mount -t tmpfs -o ro none $folder || exit 77; done
        export HOME=/mnt; unset XDG_CACHE_HOME XDG_RUNTIME_DIR TMPDIR
        exec ./neap \"$@\"";
    for arguments in [
        "run --summary -- true",
        "profile --heap -- true",
        "pagein --sites -o - -- true",
        "order trace --source faults -o - -- ./one",
    ] {
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", script]).arg(neap.dir.path()).args(arguments.split(' '));
        let output = command.output().expect("unshare starts");
        let text = stderr(&output);
        if matches!(output.status.code(), Some(1 | 77)) {
            return skip("no_temporary_folder", &text);
        }
        assert_eq!(output.status.code(), Some(125), "{arguments}: {text}");
        assert!(text.contains("/tmp: Read-only file system"), "{arguments}: {text}");
        assert!(text.contains("hint: set TMPDIR to a directory"), "{arguments}: {text}");
    }
}

/// Catches an empty trace of a program that never had the binary.
#[test]
fn no_trace_of_what_was_not_entered() {
    let neap = Neap::new();
    let source = "int main(void) { return 3; }\n";
    let Some(program) = compile(neap.dir.path(), "one", source, &[]) else {
        return skip("no_trace_of_what_was_not_entered", "no C compiler");
    };
    let trace = neap.path("trace");
    for source in ["breakpoints", "faults"] {
        let mut command = neap.command(["order", "trace", "--source", source, "-o"]);
        let output =
            command.arg(&trace).arg("--binary").arg(&program).args(["--", "true"]).output().expect("it starts");
        assert_eq!(output.status.code(), Some(125), "{source}: {output:?}");
        assert!(!trace.exists(), "{source}: a trace is there");
    }
}

/// Catches a process that is taken for one that has ended, as its first thread has.
#[test]
fn the_first_thread_may_have_ended() {
    let neap = Neap::new();
    let source = "#include <pthread.h>\n#include <stdlib.h>\n#include <string.h>\n#include <unistd.h>\n
        static void *run(void *unused) {
            for (;;) {
                for (int i = 0; i < 300; i++) memset(malloc(20000 + 10 * i), 1, 100);
                usleep(10000);
            }
        }
        int main(void) {
            pthread_t thread;
            pthread_create(&thread, 0, run, 0);
            pthread_exit(0);
        }\n";
    let Some(program) = compile(neap.dir.path(), "first", source, &["-pthread"]) else {
        return skip("the_first_thread_may_have_ended", "no C compiler");
    };
    let mut running = neap.command(["run", "--"]).arg(&program).spawn().expect("neap starts");
    let pid = running.id().to_string();
    let status = || fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    wait("its first thread ends", || status().contains("State:\tZ"));
    // Until it has a counters page.
    wait("it has some memory", || neap.output(["stats", &pid]).status.success());
    for arguments in [
        &["options", "--pid", &pid][..],
        &["huge", "show", &pid],
        &["profile", "--heap", "--duration", "500ms", "--pid", &pid],
        &["why", &pid],
    ] {
        let output = neap.output(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        let shown = [output.stdout, output.stderr].concat();
        assert!(!shown.is_empty(), "{arguments:?}");
    }
    running.kill().expect("it runs");
    running.wait().expect("it ended");
}
