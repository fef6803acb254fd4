//! Heaps of running programs on glibc, walked from outside and compared with what `malloc_info` reports inside.

#[path = "../crates/heaps/tests/support/mod.rs"]
mod support;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use neap_heaps::{Heap, find};
use neap_tests::command::neap;
use neap_tests::{Case, Outcome, Source, Stop};
use support::Process;
use support::info::Info;

const BUSY: Source = Source::new("heaps/busy.c");
const SHAPES: Source = Source::new("heaps/shapes.c");
const ODD: Source = Source::new("heaps/odd.c");
const STATIC: Source = Source::with_flags("heaps/busy.c", &["-static"]);
const BIG: Source = Source::new("heaps/big.c");
const GROW: Source = Source::new("heaps/grow.c");
const CROSS: Source = Source::new("heaps/cross.c");
const PAUSE: Source = Source::with_flags("heaps/pause.c", &["-O2"]);

fn main() -> ExitCode {
    neap_tests::suite::main(vec![
        Case::new("glibc::at_rest", "figures that differ from malloc_info", || at_rest(BUSY, &["6", "20000"])),
        Case::new("glibc::one_thread", "a main arena that is read wrongly", || at_rest(BUSY, &["1", "40000"])),
        Case::new("glibc::static_program", "a heap that is found only where glibc is a library", || {
            at_rest(STATIC, &["3", "5000"])
        }),
        Case::new("glibc::after_frees", "figures that differ from malloc_info after most blocks were freed", || {
            shape("frees")
        }),
        Case::new("glibc::trimmed", "the same after malloc_trim", || shape("trimmed")),
        Case::new("glibc::full_caches", "caches of threads that are not found", || shape("caches")),
        Case::new("glibc::fastbins", "blocks in fastbins that count as kept twice", || shape("fastbins")),
        Case::new("glibc::full_bins", "an arena that is not found because no list of free blocks is empty", || {
            shape("bins")
        }),
        Case::new("glibc::python", "figures of a real program that differ from malloc_info", python),
        Case::new("glibc::trim", "a prediction of malloc_trim that does not come true", trim),
        Case::new("glibc::changing", "a walk that goes astray because the program runs", changing),
        Case::new("glibc::growing", "a main arena that is not found because it grows meanwhile", growing),
        Case::new("glibc::brk_of_others", "a heap that ends where another user of brk has memory", || odd("brk", 1)),
        Case::new("glibc::without_brk", "a main arena in mappings that is not found", || odd("nobrk", 1)),
        Case::new("glibc::two_copies", "a second copy of glibc that is not found", || odd("two", 2)),
        Case::new("jemalloc::freed_slabs", "a heap that is found only where the kernel placed it well", freed_slabs),
        Case::new("jemalloc::freed_by_others", "blocks in caches of threads that count as live", || {
            preloaded("jemalloc")
        }),
        Case::new("mimalloc::freed_by_others", "blocks that other threads freed and that count as live", || {
            preloaded("mimalloc")
        }),
        Case::new("releases::bullseye", "structures of 2.31 that are read wrongly", || release("bullseye", "2.31"))
            .ignored(),
        Case::new("releases::sid", "structures of the newest glibc that are read wrongly", || release("sid", ""))
            .ignored(),
        Case::new("pause::1_gib", "a process that pauses while `neap why` reads it", || pause("1024")).exclusive(),
        Case::new("pause::10_gib", "the same, where reading takes longer", || pause("10240")).exclusive().ignored(),
        Case::new("big::10_gib", "a walk of 50 million chunks that takes 2 s or 100 MiB", big).exclusive().ignored(),
    ])
}

/// The system's library of an allocator.
fn library(name: &str) -> Result<String, Stop> {
    let folders = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"];
    let endings = ["so.2", "so.2.0", "so.3"];
    let mut all = folders.iter().flat_map(|folder| endings.map(|ending| format!("{folder}/lib{name}.{ending}")));
    let found = all.find(|path| std::path::Path::new(path).exists());
    found.ok_or_else(|| Stop::Skip(format!("no lib{name}")))
}

/// A program with an allocator preloaded, and its heap.
fn heap_of(name: &str, arguments: &[&str]) -> Result<(Running, Heap), Stop> {
    let mut command = Command::new(CROSS.build()?);
    command.args(arguments);
    let library = library(name)?;
    let running = Running::under(command, Some(&library))?;
    let heap = running.heaps()?.into_iter().find(|heap| heap.allocator.starts_with(name));
    let heap = heap.ok_or_else(|| Stop::Fail(format!("no heap of {name} was found")))?;
    Ok((running, heap))
}

/// Live blocks of threads that free blocks of each other: within 2 %.
fn preloaded(name: &str) -> Outcome {
    let (running, heap) = heap_of(name, &["6", "20000"])?;
    let said = Info::parse(&running.said).live;
    let live: u64 = heap.parts.iter().filter_map(|part| part.split.as_ref()).map(|split| split.live.bytes).sum();
    println!("{}: {live} live bytes, the program has {said:?}", heap.allocator);
    if live.abs_diff(said.1) > said.1 / 50 {
        return fail(format!("{live} live bytes, not {said:?}: {heap:#?}"));
    }
    Ok(())
}

/// A heap most of whose slabs are free is found in each of six runs.
fn freed_slabs() -> Outcome {
    for _ in 0..6 {
        let (running, heap) = heap_of("jemalloc", &["1", "200000", "slabs"])?;
        let said = Info::parse(&running.said).live;
        let live: u64 = heap.parts.iter().filter_map(|part| part.split.as_ref()).map(|split| split.live.blocks).sum();
        if live.abs_diff(said.0) > said.0 / 50 {
            return fail(format!("{live} live blocks, not {said:?}"));
        }
    }
    Ok(())
}

/// A program that has printed "ready".
struct Running {
    child: Child,
    output: BufReader<ChildStdout>,
    said: String,
}

impl Running {
    fn start(source: Source, arguments: &[&str]) -> Result<Self, Stop> {
        let program = source.build()?;
        let mut command = Command::new(program);
        command.args(arguments);
        Self::of(command)
    }

    fn of(command: Command) -> Result<Self, Stop> {
        Self::under(command, None)
    }

    /// The same with a library preloaded.
    fn under(mut command: Command, library: Option<&str>) -> Result<Self, Stop> {
        let command = command.env_remove("LD_PRELOAD");
        let command = library.into_iter().fold(command, |command, library| command.env("LD_PRELOAD", library));
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let output = child.stdout.take().ok_or_else(|| Stop::Fail("no output".to_string()))?;
        let mut running = Running { child, output: BufReader::new(output), said: String::new() };
        running.said = running.until("ready")?;
        Ok(running)
    }

    fn until(&mut self, word: &str) -> Result<String, Stop> {
        let mut all = String::new();
        loop {
            let before = all.len();
            if self.output.read_line(&mut all)? == 0 {
                return Err(Stop::Fail(format!("the program ended: {all}")));
            }
            if all[before..].trim() == word {
                return Ok(all);
            }
        }
    }

    fn heaps(&self) -> Result<Vec<Heap>, Stop> {
        let process = Process::open(self.child.id())?;
        Ok(find(&process, &process.mappings, &process))
    }

    /// The longest pause that `pause.c` reports since the last request.
    fn longest(&mut self) -> Result<Duration, Stop> {
        self.child.stdin.as_mut().ok_or_else(|| Stop::Fail("no input".to_string()))?.write_all(b"?")?;
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        let number = line.trim().parse().map_err(|_| Stop::Fail(format!("no number: {line}")))?;
        Ok(Duration::from_micros(number))
    }

    fn resident(&self) -> Result<u64, Stop> {
        let text = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", self.child.id()))?;
        let line = text.lines().find_map(|line| line.strip_prefix("Rss:")).unwrap_or("0 kB");
        let number: u64 = line.trim().trim_end_matches(" kB").parse().unwrap_or(0);
        Ok(number << 10)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn fail<T>(why: String) -> Result<T, Stop> {
    Err(Stop::Fail(why))
}

/// Compares the figures exactly.
fn at_rest(source: Source, arguments: &[&str]) -> Outcome {
    let running = Running::start(source, arguments)?;
    let heaps = running.heaps()?;
    let [heap] = &heaps[..] else { return fail(format!("one heap, not {heaps:#?}")) };
    let info = Info::parse(&running.said);
    if info.live.0 < 1000 || !heap.doubts.is_empty() {
        return fail(format!("{info:?}: {:?}", heap.doubts));
    }
    info.check(heap).map_err(Stop::Fail)
}

/// Compares a heap of one shape exactly.
fn shape(kind: &str) -> Outcome {
    let running = Running::start(SHAPES, &[kind])?;
    let heaps = running.heaps()?;
    let [heap] = &heaps[..] else { return fail(format!("one heap, not {heaps:#?}")) };
    let info = Info::parse(&running.said);
    let off = info.distance(heap);
    println!("{kind}: used {:.3} % off, free {:.3} % off", 100.0 * off.0, 100.0 * off.1);
    if info.live.0 < 1000 || info.mallinfo.is_none() || !heap.doubts.is_empty() {
        return fail(format!("{info:?}: {:?}", heap.doubts));
    }
    let cached: u64 = heap.parts.iter().filter_map(|part| part.split.as_ref()).map(|split| split.cached.blocks).sum();
    let least = match kind {
        "caches" => 8 * 7 * 64,
        "fastbins" => 8 * 18_000,
        _ => 0,
    };
    if cached < least {
        return fail(format!("{cached} blocks in caches, not {least}: {heap:#?}"));
    }
    info.check(heap).map_err(Stop::Fail)
}

/// The same programs in another release of Debian. `version` is that of its glibc, if it is known.
fn release(name: &str, version: &str) -> Outcome {
    let root = neap_tests::system::with_compilers(name)?;
    let runs: &[(&str, &[&str])] = &[
        ("busy", &["6", "20000"]),
        ("busy", &["1", "40000"]),
        ("shapes", &["frees"]),
        ("shapes", &["trimmed"]),
        ("shapes", &["caches"]),
        ("shapes", &["fastbins"]),
        ("shapes", &["bins"]),
    ];
    for (program, arguments) in runs {
        let source = neap_tests::package_dir().join(format!("heaps/{program}.c"));
        std::fs::copy(source, root.join(format!("tmp/{program}.c")))?;
        let chroot = || {
            let mut command = Command::new("chroot");
            command.arg(&root);
            command
        };
        let flags = ["-O1", "-fno-builtin", "-pthread", "-o"];
        let built =
            chroot().arg("gcc").args(flags).args([format!("/tmp/{program}"), format!("/tmp/{program}.c")]).status();
        if !built?.success() {
            return fail(format!("{program}.c does not compile in {name}"));
        }
        let mut command = chroot();
        command.arg(format!("/tmp/{program}")).args(*arguments);
        let running = Running::of(command)?;
        let heaps = running.heaps()?;
        let [heap] = &heaps[..] else { return fail(format!("one heap, not {heaps:#?}")) };
        let info = Info::parse(&running.said);
        let off = info.distance(heap);
        let (used, free) = (100.0 * off.0, 100.0 * off.1);
        println!("{name}, {}: {program} {}: used {used:.3} % off, free {free:.3} % off", heap.allocator, arguments[0]);
        if !heap.allocator.starts_with(&format!("glibc {version}")) || !heap.doubts.is_empty() {
            return fail(format!("{}: {:?}", heap.allocator, heap.doubts));
        }
        info.check(heap).map_err(|why| Stop::Fail(format!("{program} {arguments:?}: {why}")))?;
    }
    Ok(())
}

/// Compares a Python with all blocks from malloc, which reports through ctypes: within 2 %, in one of three runs, as it
/// may allocate between its report and the walk.
fn python() -> Outcome {
    (0..2).find_map(|_| compare_python().ok()).map_or_else(compare_python, Ok)
}

fn compare_python() -> Outcome {
    let mut command = Command::new(neap_tests::program("/usr/bin/python3")?);
    command.arg(neap_tests::package_dir().join("heaps/info.py")).env("PYTHONMALLOC", "malloc");
    let running = Running::of(command)?;
    let heaps = running.heaps()?;
    let [heap] = &heaps[..] else { return fail(format!("one heap, not {heaps:#?}")) };
    // malloc_info was called twice.
    let second = running.said.match_indices("<malloc ").nth(1).map_or(0, |(at, _)| at);
    let info = Info::parse(&running.said[second..]);
    let off = info.distance(heap);
    println!("{} bytes: used {:.3} % off, free {:.3} % off", info.system, 100.0 * off.0, 100.0 * off.1);
    if info.system < 20 << 20 || off.0 > 0.02 || off.1 > 0.02 {
        return fail(format!("{off:?}: {info:?}, {heap:#?}"));
    }
    Ok(())
}

/// Checks that malloc_trim gives back what was predicted, within 10 %.
fn trim() -> Outcome {
    let mut running = Running::start(BUSY, &["4", "30000"])?;
    let parts: Vec<_> = running.heaps()?.into_iter().flat_map(|heap| heap.parts).collect();
    let predicted: u64 = parts.iter().filter_map(|part| part.split.as_ref()).map(|split| split.trimmable_bytes).sum();
    let before = running.resident()?;
    running.child.stdin.as_mut().ok_or_else(|| Stop::Fail("no input".to_string()))?.write_all(b"t")?;
    running.until("trimmed")?;
    let given = before.saturating_sub(running.resident()?);
    println!("predicted {predicted}, given back {given}");
    if predicted < 1 << 20 || given.abs_diff(predicted) > predicted / 10 {
        return fail(format!("predicted {predicted}, given back {given}"));
    }
    Ok(())
}

/// Checks that live bytes stay the same within 2 % while threads replace blocks by others of the same size.
fn changing() -> Outcome {
    let running = Running::start(BUSY, &["4", "20000", "run"])?;
    let said = Info::parse(&running.said).live;
    let (mut worst, mut most_unsure) = (0.0_f64, 0.0_f64);
    for _ in 0..20 {
        let heaps = running.heaps()?;
        let parts = heaps.iter().flat_map(|heap| &heap.parts).filter(|part| part.name != "mmapped blocks");
        let splits: Vec<_> = parts.filter_map(|part| part.split.as_ref()).collect();
        let (live, unsure) =
            splits.iter().fold((0, 0), |(live, unsure), split| (live + split.live.bytes, unsure + split.unsure.bytes));
        // Unsure bytes may be live.
        let off = if live < said.1 { said.1 - (live + unsure).min(said.1) } else { live - said.1 };
        worst = worst.max(off as f64 / said.1 as f64);
        most_unsure = most_unsure.max(unsure as f64 / said.1 as f64);
    }
    println!("at most {:.2} % off, {:.2} % unsure", 100.0 * worst, 100.0 * most_unsure);
    if worst > 0.02 || most_unsure > 0.02 {
        fail(format!("{:.2} % off, {:.2} % unsure", 100.0 * worst, 100.0 * most_unsure))
    } else {
        Ok(())
    }
}

/// Checks that the main arena is always found, with a list of mappings that is older than the arena.
fn growing() -> Outcome {
    const WALKS: usize = 100;
    let running = Running::start(GROW, &[])?;
    let mut missed = 0;
    for _ in 0..WALKS {
        let heaps = running.heaps()?;
        let is_found =
            heaps.iter().flat_map(|heap| &heap.parts).any(|part| part.name == "main arena" && part.split.is_some());
        missed += usize::from(!is_found);
    }
    println!("{missed} of {WALKS} walks missed it");
    if missed == 0 { Ok(()) } else { fail(format!("{missed} of {WALKS} walks missed the main arena")) }
}

/// A heap of an odd shape: the live blocks of all copies are what the program has, within 2 %; with a second copy
/// within 5 %, because the caches of its threads and the C library's own blocks count as live there.
fn odd(kind: &str, copies: usize) -> Outcome {
    let running = Running::start(ODD, &[kind])?;
    let heaps = running.heaps()?;
    if heaps.len() != copies {
        return fail(format!("{copies} heaps, not {heaps:#?}"));
    }
    let said = Info::parse(&running.said).live;
    let (mut live, mut cached) = ((0, 0), 0);
    for split in heaps.iter().flat_map(|heap| &heap.parts).filter_map(|part| part.split.as_ref()) {
        live = (live.0 + split.live.blocks, live.1 + split.live.bytes);
        cached += split.cached.bytes;
    }
    println!("{kind}: live {live:?}, the program has {said:?}; {cached} bytes in caches");
    if live.1.abs_diff(said.1) > said.1 / if copies > 1 { 20 } else { 50 } {
        fail(format!("live {live:?}, not {said:?}: {heaps:#?}"))
    } else {
        Ok(())
    }
}

/// 10 GiB in 50 million chunks.
fn big() -> Outcome {
    let running = Running::start(BIG, &["50000000"])?;
    let process = Process::open(running.child.id())?;
    let start = Instant::now();
    let heaps = find(&process, &process.mappings, &process);
    let took = start.elapsed();
    let own = std::fs::read_to_string("/proc/self/status")?;
    let peak = own.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or("").trim().to_string();
    let live: u64 = heaps
        .iter()
        .flat_map(|heap| &heap.parts)
        .filter_map(|part| part.split.as_ref())
        .map(|split| split.live.blocks)
        .sum();
    println!("{live} live blocks in {took:?}, peak {peak}");
    let peak: u64 = peak.trim_end_matches(" kB").parse().unwrap_or(u64::MAX);
    if live < 50_000_000 || took.as_secs_f64() > 2.0 || peak > 100 << 10 {
        return fail(format!("{live} live blocks in {took:?}, peak {peak} kB"));
    }
    Ok(())
}

/// Checks that a thread that computes and has page faults never waits for a millisecond while `neap why` reads its
/// process. A run of the same length without `neap why` shows what the machine itself does to the thread.
fn pause(mebibytes: &str) -> Outcome {
    const LIMIT: Duration = Duration::from_millis(1);
    let neap = neap()?;
    let mut running = Running::start(PAUSE, &[mebibytes, "touch"])?;
    let mut tries = Vec::new();
    for _ in 0..4 {
        running.longest()?;
        let start = Instant::now();
        let account = Command::new(neap).args(["why", "--json", &running.child.id().to_string()]).output()?;
        let (took, beside) = (start.elapsed(), running.longest()?);
        let text = String::from_utf8_lossy(&account.stdout);
        if !account.status.success() || !text.contains("heap-live") {
            return fail(format!("{}: {text}{}", account.status, String::from_utf8_lossy(&account.stderr)));
        }
        std::thread::sleep(took);
        let alone = running.longest()?;
        println!("{mebibytes} MiB read in {took:?}: at most {beside:?}, alone {alone:?}");
        if beside < LIMIT || beside < alone {
            return Ok(());
        }
        tries.push((beside, alone));
    }
    fail(format!("the longest pauses, with and without `neap why`: {tries:?}"))
}
