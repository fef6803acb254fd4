//! The counters pages of whole programs, read from outside while they run.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use neap_counters::{Gauges, Snapshot};
use neap_observe::{Error, Page};
use neap_tests::{Case, Outcome, Run, Source, Stop, library, sys};

const STAGES: Source = Source::new("counters/stages.c");

/// The C library's own blocks.
const STRAY: u64 = 64 << 10;
const MIB: u64 = 1 << 20;
/// How far a page may lag behind where there is a helper: a tick of 100 ms, on a very busy machine.
const LAG: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    neap_tests::suite::main(vec![
        Case::new("page::stages", "gauges that disagree with what the program holds", stages),
        Case::new("page::eager", "gauges that are not updated without a helper", eager),
        Case::new("page::small", "a page in a small program", small),
        Case::new("page::fork", "a child that writes into its parent's page", || forked("forks")),
        Case::new("page::fork_raw", "the same without fork handlers", || forked("forks_raw")),
        Case::new("page::filtered", "a system call for which a filter ends the process", || nameless("filtered")),
        Case::new("page::no_files", "SIGXFSZ under a limit of file sizes", || nameless("no_files")),
        Case::new("page::keeps_no_file", "a file that stays open", keeps_no_file),
        Case::new("exact::long_files", "SIGXFSZ under a limit of file sizes, where calls are counted", || {
            exact_without_file(&["sh"], "ulimit -f 1")
        }),
        Case::new("exact::full_disk", "SIGBUS where there is no room for the page of counts", full_disk),
        Case::new("exact::child_without_file", "a child that counts in its parent's page", || {
            uncounted_child("child_without_file")
        }),
        Case::new("exact::child_under_filter", "a child that its filter ends for making its file of counts", || {
            uncounted_child("child_under_filter")
        }),
        Case::new(
            "exact::started_under_filter",
            "a program that its filter ends for making its file of counts",
            started_under_filter,
        ),
        Case::new("exact::bare_child", "a child made without fork handlers that counts in its parent's page", || {
            uncounted_child("bare_child")
        }),
        Case::new("sites::child_under_filter", "a child that its filter ends for making its file of sites", || {
            unrecorded_child("child_under_filter")
        }),
        Case::new("table::complete", "a case that is written but never run", || {
            let cases = ["stages", "small_program", "forks", "forks_raw", "filtered", "no_files", "keeps_no_file"];
            let cases = cases
                .iter()
                .chain(&["child_without_file", "child_under_filter", "started_under_filter", "bare_child"])
                .map(|&c| ("stages", c))
                .collect::<Vec<_>>();
            neap_tests::all_cases_named(&[STAGES], &cases)
        }),
    ])
}

/// What a program reports that it holds.
#[derive(Clone, Copy, Debug)]
struct Says {
    pid: u32,
    bytes: u64,
    blocks: u64,
}

/// A running case of STAGES.
struct Program {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Program {
    /// Without huge pages: otherwise growth alone starts a helper, and many stages rely on none.
    fn start(case: &str, variables: &[(&str, &str)]) -> Result<Self, Stop> {
        let mut child = Command::new(STAGES.build()?)
            .arg(case)
            .env("LD_PRELOAD", library::require_neap()?)
            .env("NEAP_HUGE", "off")
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let output = output.ok_or_else(|| Stop::Fail("no output".into()))?;
        Ok(Program { child, input, output: BufReader::new(output) })
    }

    /// Waits for the next stage.
    fn stage(&mut self) -> Result<Says, Stop> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        let words: Vec<u64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        match words[..] {
            [pid, bytes, blocks] => Ok(Says { pid: pid as u32, bytes, blocks }),
            _ => Err(Stop::Fail(format!("the program says {line:?}"))),
        }
    }

    fn go_on(&mut self) -> Outcome {
        if let Some(input) = &mut self.input {
            input.write_all(b"\n")?;
        }
        Ok(())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Processes that it forked end as well when their input closes.
        self.input = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read(pid: u32) -> Result<Snapshot, Stop> {
    neap_observe::read(pid).map_err(|e| Stop::Fail(format!("process {pid}: {e}")))
}

/// Reads the page until it is `good`, at most as long as it may lag behind.
fn read_until(pid: u32, good: impl Fn(&Gauges) -> bool) -> Result<Gauges, Stop> {
    let started = Instant::now();
    loop {
        let gauges = read(pid)?.gauges;
        if good(&gauges) {
            return Ok(gauges);
        }
        if started.elapsed() > LAG {
            return Err(Stop::Fail(format!("still {gauges:#?}")));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn check(what: &str, holds: bool, says: Says, gauges: &Gauges) -> Outcome {
    if holds { Ok(()) } else { Err(Stop::Fail(format!("{what}: {says:?}, {gauges:#?}"))) }
}

/// Whether the live gauges equal the program's figures, apart from the C library's own blocks.
fn exact(says: Says, g: &Gauges) -> bool {
    (says.bytes..=says.bytes + STRAY).contains(&g.live_bytes)
        && (says.blocks..=says.blocks + 100).contains(&g.live_blocks)
}

fn stages() -> Outcome {
    let mut program = Program::start("stages", &[])?;
    // Without a helper: correct to the last megabyte, apart from free blocks in slabs.
    let says = program.stage()?;
    let g = read(says.pid)?.gauges;
    let off = MIB + 64 * 1024 * g.heaps;
    check("growing", g.live_bytes.abs_diff(says.bytes) <= off + g.slab_free_bytes, says, &g)?;
    let sum = g.live_bytes + g.cached_bytes + g.slab_free_bytes + g.dirty_bytes;
    check("sum of growing", sum + off >= says.bytes && sum <= says.bytes + off + g.slab_free_bytes, says, &g)?;
    check("heaps and OS pages", g.heaps == 4 && g.page_size.is_power_of_two(), says, &g)?;
    check("cleared and skipped", g.skipped_bytes >= 15 * MIB, says, &g)?;
    let before = g;
    program.go_on()?;
    // With a helper: exact.
    let says = program.stage()?;
    let g = read_until(says.pid, |g| exact(says, g))?;
    check("large", g.large_bytes == 10 * MIB && g.large_blocks == 10, says, &g)?;
    let page = Page::find(says.pid).map_err(|e| Stop::Fail(e.to_string()))?;
    let started = Instant::now();
    let g = loop {
        let g = page.read().map_err(|e| Stop::Fail(e.to_string()))?.gauges;
        let rests = exact(says, &g) && g.dirty_bytes == 0 && g.cached_bytes <= STRAY;
        if rests || started.elapsed() > LAG {
            check("idle", rests, says, &g)?;
            break g;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    check("purged", g.purged_bytes >= before.purged_bytes + 30 * MIB, says, &g)?;
    check("purge calls", g.purge_calls > before.purge_calls && g.ticks > before.ticks, says, &g)?;
    check("clean", g.clean_bytes >= 30 * MIB, says, &g)?;
    program.go_on()?;
    let says = program.stage()?;
    read_until(says.pid, |g| g.live_bytes.abs_diff(says.bytes) <= off && g.purger <= 2)?;
    program.go_on()?;
    drop(program);
    match page.read() {
        Err(Error::NoProcess) => Ok(()),
        other => Err(Stop::Fail(format!("the page of a process that has ended: {other:?}"))),
    }
}

fn eager() -> Outcome {
    let mut program = Program::start("stages", &[("NEAP_PURGE", "eager"), ("NEAP_PURGE_DELAY", "1h")])?;
    program.stage()?;
    program.go_on()?;
    let says = program.stage()?;
    let g = read(says.pid)?.gauges;
    check("policy", g.policy == 1 && g.purge_delay == 3_600_000, says, &g)?;
    check(
        "purged at once",
        g.purged_bytes >= 20 * MIB && g.dirty_bytes <= MIB && g.live_bytes <= 2 * says.bytes,
        says,
        &g,
    )
}

fn small() -> Outcome {
    let mut program = Program::start("small_program", &[])?;
    let says = program.stage()?;
    match neap_observe::read(says.pid) {
        Err(Error::NoPage) => Ok(()),
        other => Err(Stop::Fail(format!("{other:?}"))),
    }
}

fn forked(case: &str) -> Outcome {
    let mut program = Program::start(case, &[("NEAP_PREFAULT", "4M")])?;
    let parent = program.stage()?;
    let before = read(parent.pid)?;
    check("what was prefaulted", before.gauges.prefault_bytes == 4 * MIB, parent, &before.gauges)?;
    program.go_on()?;
    let child = program.stage()?;
    // Without fork handlers, the first tick makes the page.
    let started = Instant::now();
    while neap_observe::read(child.pid).is_err() && started.elapsed() < LAG {
        std::thread::sleep(Duration::from_millis(20));
    }
    let (in_child, after) = (read(child.pid)?, read(parent.pid)?);
    if child.pid == parent.pid || in_child.pid != child.pid || after.pid != parent.pid {
        return Err(Stop::Fail(format!("pages of {} and {}", in_child.pid, after.pid)));
    }
    check("the parent's page", before == after, parent, &after.gauges)?;
    let off = MIB + 64 * 1024 * in_child.gauges.heaps;
    let g = read_until(child.pid, |g| g.live_bytes.abs_diff(child.bytes) <= off + g.slab_free_bytes)?;
    check("what the child prefaulted", g.prefault_bytes == 0, child, &g)?;
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", child.pid))?;
    check("pages of the child", maps.matches("neap-counters").count() == 1, child, &g)?;
    program.go_on()?;
    program.stage()?;
    Ok(())
}

fn nameless(case: &str) -> Outcome {
    let mut program = Program::start(case, &[])?;
    let says = program.stage()?;
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", says.pid))?;
    if maps.contains("neap-counters") {
        return Err(Stop::Fail("there is a memory file".into()));
    }
    let g = read(says.pid)?.gauges;
    check("a page without a name", g.live_bytes + 2 * MIB + g.slab_free_bytes >= says.bytes, says, &g)
}

fn keeps_no_file() -> Outcome {
    let mut program = Program::start("keeps_no_file", &[])?;
    let says = program.stage()?;
    read(says.pid).map(|_| ())
}

/// A program that counts its calls but gets no file for them still runs. `shell`: runs a script that begins with
/// `before`, which makes the obstacle.
fn exact_without_file(shell: &[&str], before: &str) -> Outcome {
    let dir = sys::TempDir::new("neap-exact")?;
    let script = format!("{before} || exit 77; LD_PRELOAD=$LIBRARY exec true");
    let run = Run::new(shell[0]).args(&shell[1..]).args(["-c", &script]).plain();
    let done = run.env("NEAP_COUNTERS", dir.path()).env("LIBRARY", library::require_neap()?).run()?;
    match done.status.code() {
        Some(77) => Err(Stop::Skip(format!("refused: {before}"))),
        Some(0) if done.stderr.contains("NEAP_COUNTERS") => Ok(()),
        _ => Err(done.fail("not run, or nothing said")),
    }
}

fn full_disk() -> Outcome {
    if !neap_tests::is_root() {
        return Err(Stop::Skip("only root may mount".into()));
    }
    let fill = "mount -t tmpfs -o size=4k none $NEAP_COUNTERS && head -c 4096 /dev/zero > $NEAP_COUNTERS/full";
    // The mount ends with its namespace.
    exact_without_file(&["unshare", "--mount", "sh"], fill)
}

fn uncounted_child(case: &str) -> Outcome {
    let dir = sys::TempDir::new("neap-exact")?;
    let mut program = Program::start(case, &[("NEAP_COUNTERS", &dir.path().to_string_lossy())])?;
    let before = read(program.stage()?.pid)?;
    program.go_on()?;
    let says = program.stage()?;
    let after = read(says.pid)?;
    let more = after.blocks_allocated - before.blocks_allocated;
    check("the child's blocks", more < 1000, says, &after.gauges)
}

fn started_under_filter() -> Outcome {
    let dir = sys::TempDir::new("neap-exact")?;
    let mut program = Program::start("started_under_filter", &[("NEAP_COUNTERS", &dir.path().to_string_lossy())])?;
    program.stage()?;
    // One for the program, one for its child, and one for the program that the child executed.
    let files = std::fs::read_dir(dir.path())?.count();
    if files == 3 { Ok(()) } else { Err(Stop::Fail(format!("{files} files"))) }
}

fn unrecorded_child(case: &str) -> Outcome {
    let dir = sys::TempDir::new("neap-sites")?;
    let mut program = Program::start(case, &[("NEAP_SITES", &dir.path().to_string_lossy())])?;
    program.stage()?;
    program.go_on()?;
    // The program reports this stage only if its child succeeded.
    program.stage()?;
    let files = std::fs::read_dir(dir.path())?.count();
    if files == 1 { Ok(()) } else { Err(Stop::Fail(format!("{files} files"))) }
}
