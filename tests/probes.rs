//! OpenTelemetry's heap probes: the notes, and the events that an attached tool gets.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use neap_tests::sys::TempDir;
use neap_tests::{Case, Daemon, Outcome, Run, Source, Stop, library, package_dir, program};

const PROGRAM: Source = Source::new("probes/probes.c");
/// The mean distance between samples, in bytes.
const INTERVAL: f64 = 524_288.0;

fn main() -> ExitCode {
    neap_tests::suite::main(vec![
        Case::new("notes::of_the_library", "a note that tools cannot read, or that points elsewhere", || {
            notes_of(library::require_neap()?).map(drop)
        }),
        Case::new("notes::of_a_static_program", "probes that are missing where neap is linked in", static_program),
        Case::new(
            "attach::events",
            "arguments at the wrong place, weights that are biased, frees that are missing",
            events,
        ),
        Case::new(
            "attach::from_the_start",
            "a program that does not start where a tool is attached already",
            from_start,
        ),
        Case::new("attach::storm", "a hang or a crash of handlers, threads and children beside a tool", storm),
    ])
}

fn fail<T>(why: String) -> Result<T, Stop> {
    Err(Stop::Fail(why))
}

/// A probe, as offsets in the file.
#[derive(Clone, Copy, Debug)]
struct Probe {
    place: u64,
    semaphore: u64,
}

fn hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text.trim_end_matches(',').trim_start_matches("0x"), 16).ok()
}

/// The probes of a file, as readelf shows them: `alloc`, `free`.
fn notes_of(file: &Path) -> Result<[Probe; 2], Stop> {
    let readelf = |flags: &str| -> Result<String, Stop> {
        Ok(Run::new(program("readelf")?).args([flags, "-W"]).arg(file).plain().run()?.success()?.stdout)
    };
    let (notes, headers) = (readelf("-n")?, readelf("-l")?);
    // Offset, address, length in the file, flags.
    let loads: Vec<(u64, u64, u64, String)> = headers
        .lines()
        .filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let ["LOAD", offset, start, _, length, _, flags @ .., _] = words.as_slice() else { return None };
            Some((hex(offset)?, hex(start)?, hex(length)?, flags.concat()))
        })
        .collect();
    let offset = |address: u64, flag: char| {
        let load = loads
            .iter()
            .find(|(_, start, length, flags)| (*start..start + length).contains(&address) && flags.contains(flag));
        load.map(|(offset, start, ..)| address - start + offset)
    };
    let (mut found, mut arguments, mut name) = (HashMap::new(), HashMap::new(), "");
    for line in notes.lines().map(str::trim) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["Name:", rest] => name = rest,
            ["Location:", place, "Base:", base, "Semaphore:", semaphore] => {
                let of = |text: &str, flag| hex(text).and_then(|address| offset(address, flag));
                let (Some(place), Some(semaphore)) = (of(place, 'E'), of(semaphore, 'W')) else {
                    return fail(format!("not in segments of the file: {line}\n{headers}"));
                };
                if hex(base).is_none_or(|base| base == 0) || semaphore % 2 != 0 {
                    return fail(format!("no base, or a semaphore that is not aligned: {line}"));
                }
                found.insert(name, Probe { place, semaphore });
            }
            ["Arguments:", rest @ ..] => {
                arguments.insert(name, rest.join(" "));
            }
            _ => {}
        }
    }
    let is_arm = readelf("-h")?.contains("AArch64");
    let places = if is_arm { ["8@x0", "8@x1", "8@x2"] } else { ["8@%rdi", "8@%rsi", "8@%rdx"] };
    let wanted = [("alloc", places.join(" ")), ("free", places[0].to_string())];
    let good = wanted.iter().all(|(name, rest)| arguments.get(name).is_some_and(|found| found == rest));
    let once = notes.matches("otel_memory").count() == 2;
    match (found.get("alloc"), found.get("free")) {
        (Some(&alloc), Some(&free)) if good && once => Ok([alloc, free]),
        _ => fail(notes),
    }
}

fn static_program() -> Outcome {
    let archive = library::require_neap()?.with_file_name("libneap.a");
    if !archive.exists() {
        return Err(Stop::Skip(format!("{} is not built", archive.display())));
    }
    let include = format!("-I{}", package_dir().join("../include").display());
    for flags in [&["-static"][..], &["-Wl,--gc-sections"]] {
        let flags: Vec<&str> = flags.iter().copied().chain([include.as_str()]).collect();
        notes_of(&PROGRAM.build_with(&[&archive], &flags)?)?;
    }
    Ok(())
}

/// One test attaches at a time: the kernel counts all users of a file.
static ALONE: Mutex<()> = Mutex::new(());

/// The kernel's tracing, with probes of this test only, in a trace instance of its own.
struct Tracing {
    _alone: MutexGuard<'static, ()>,
    folder: TempDir,
    group: String,
    instance: PathBuf,
}

impl Tracing {
    /// Defines both probes of the library.
    fn start(name: &str) -> Result<Self, Stop> {
        if !neap_tests::is_root() {
            return Err(Stop::Skip("to attach to a probe takes root".into()));
        }
        let [alloc, free] = notes_of(library::require_neap()?)?;
        let folder = TempDir::new("neap-tracefs")?;
        let mounted = Run::new("mount").args(["-t", "tracefs", "none"]).arg(folder.path()).plain().run()?;
        if !mounted.status.success() || !folder.join("uprobe_events").exists() {
            return Err(Stop::Skip("the kernel has no uprobe_events".into()));
        }
        let group = format!("neap_{name}_{}", std::process::id());
        let instance = folder.join("instances").join(&group);
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let tracing = Tracing { _alone, folder, group, instance };
        std::fs::create_dir(&tracing.instance)?;
        std::fs::write(tracing.instance.join("trace_clock"), "mono")?;
        std::fs::write(tracing.instance.join("buffer_size_kb"), "16384")?;
        let library = library::require_neap()?.display();
        for (name, probe, arguments) in
            [("alloc", alloc, "ptr=%di:x64 size=%si:u64 weight=%dx:u64"), ("free", free, "ptr=%di:x64")]
        {
            let Probe { place, semaphore } = probe;
            let line = format!("p:{}/{name} {library}:{place:#x}({semaphore:#x}) {arguments}\n", tracing.group);
            tracing.define(&line)?;
        }
        Ok(tracing)
    }

    fn define(&self, line: &str) -> Outcome {
        use std::io::Write;
        let file = std::fs::File::options().append(true).open(self.folder.join("uprobe_events"));
        file.and_then(|mut file| file.write_all(line.as_bytes())).map_err(|e| Stop::Fail(format!("{line}: {e}")))
    }

    fn attach(&self, on: bool) -> Outcome {
        for name in ["alloc", "free"] {
            let file = self.instance.join("events").join(&self.group).join(name).join("enable");
            std::fs::write(file, if on { "1" } else { "0" })?;
        }
        Ok(())
    }

    /// The recorded events: seconds, `alloc` or `free`, arguments.
    fn events(&self) -> Result<Vec<(f64, String, Vec<u64>)>, Stop> {
        let text = std::fs::read_to_string(self.instance.join("trace"))?;
        let number = |text: &str| match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        };
        let event = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let at = words.iter().position(|word| *word == "alloc:" || *word == "free:")?;
            let time = words.get(at.checked_sub(1)?)?.trim_end_matches(':').parse().ok()?;
            let values = words[at + 1..].iter().filter_map(|word| number(word.split_once('=')?.1)).collect();
            Some((time, words[at].trim_end_matches(':').to_owned(), values))
        };
        let events = text.lines().filter(|line| !line.starts_with('#')).filter_map(event).collect();
        Ok(events)
    }
}

impl Drop for Tracing {
    fn drop(&mut self) {
        let _ = self.attach(false);
        let _ = std::fs::remove_dir(&self.instance);
        for name in ["alloc", "free"] {
            let _ = self.define(&format!("-:{}/{name}\n", self.group));
        }
        let _ = Run::new("umount").arg("-l").arg(self.folder.path()).plain().run();
    }
}

fn start(case: &str) -> Result<Daemon, Stop> {
    Run::new(PROGRAM.build()?).arg(case).daemon()
}

/// Waits for a program that ends by itself.
fn end(mut daemon: Daemon) -> Outcome {
    match daemon.wait_until(Duration::from_secs(60), || false) {
        Err(Stop::Fail(why)) if why.contains("the server ended: exit status: 0") => Ok(()),
        other => fail(format!("{other:?}")),
    }
}

/// The semaphores of a process, as its memory has them.
fn semaphores(pid: u32) -> Result<[u16; 2], Stop> {
    use std::os::unix::fs::FileExt;
    let library = library::require_neap()?;
    let name = library.to_string_lossy();
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let memory = std::fs::File::open(format!("/proc/{pid}/mem"))?;
    let probes = notes_of(library)?;
    let mut values = [0; 2];
    for (value, probe) in values.iter_mut().zip(probes) {
        let address = maps.lines().filter(|line| line.ends_with(&*name)).find_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let (start, end) = words.first()?.split_once('-')?;
            let (start, end, offset) = (hex(start)?, hex(end)?, hex(words.get(2)?)?);
            let inside = (offset..offset + end - start).contains(&probe.semaphore) && words.get(1)?.contains('w');
            inside.then(|| start + probe.semaphore - offset)
        });
        let mut bytes = [0; 2];
        memory.read_exact_at(&mut bytes, address.ok_or_else(|| Stop::Fail(maps.clone()))?)?;
        *value = u16::from_ne_bytes(bytes);
    }
    Ok(values)
}

fn sleep(milliseconds: u64) {
    std::thread::sleep(Duration::from_millis(milliseconds));
}

fn events() -> Outcome {
    let tracing = Tracing::start("events")?;
    let folder = TempDir::new("neap-probes")?;
    let out = folder.join("out");
    let daemon = Run::new(PROGRAM.build()?).arg("threads").env("OUT", &out).daemon()?;
    sleep(500);
    tracing.attach(true)?;
    sleep(2000);
    let attached = semaphores(daemon.pid())?;
    tracing.attach(false)?;
    let after = semaphores(daemon.pid())?;
    let events = tracing.events()?;
    sleep(300);
    let later = tracing.events()?.len();
    end(daemon)?;
    let said = std::fs::read_to_string(&out)?;
    if (attached, after) != ([1, 1], [0, 0]) || later != events.len() {
        return fail(format!("semaphores {attached:?}, then {after:?}; {} events, then {later}", events.len()));
    }
    check_events(&events, &said)
}

/// Checks that each sample has the weight of its size and is freed once, and that the weights add up to what the
/// program requested.
fn check_events(events: &[(f64, String, Vec<u64>)], said: &str) -> Outcome {
    let (mut live, mut strangers, mut allocated) = (HashMap::new(), 0, 0);
    let mut sum = 0.0;
    for (_, kind, values) in events {
        match (kind.as_str(), values.as_slice()) {
            ("alloc", &[block, size, weight]) => {
                let wanted = size as f64 / (1.0 - (-(size as f64) / INTERVAL).exp());
                if (weight as f64 - wanted).abs() > 2.0 + wanted / 1000.0 || size == 0 {
                    return fail(format!("a block of {size} bytes stands for {weight}, not {wanted}"));
                }
                if live.insert(block, size).is_some() {
                    return fail(format!("{block:#x} is allocated twice"));
                }
                allocated += 1;
                sum += weight as f64;
            }
            ("free", &[block]) => strangers += usize::from(live.remove(&block).is_none()),
            other => return fail(format!("{other:?}")),
        }
    }
    let (Some(first), Some(last)) = (events.first(), events.last()) else { return fail("no events".into()) };
    // What the program printed about the time before and after.
    let says: Vec<(f64, f64)> = said
        .lines()
        .filter_map(|line| {
            let (time, bytes) = line.strip_prefix("at ")?.split_once(" requested ")?;
            Some((time.parse().ok()?, bytes.parse().ok()?))
        })
        .collect();
    let at = |time: f64| -> Option<f64> {
        let place = says.windows(2).find(|pair| (pair[0].0..=pair[1].0).contains(&time))?;
        let part = (time - place[0].0) / (place[1].0 - place[0].0);
        Some(place[0].1 + part * (place[1].1 - place[0].1))
    };
    let (Some(before), Some(after)) = (at(first.0), at(last.0)) else { return fail(format!("{first:?} {said}")) };
    let (requested, spread) = (after - before, 4.0 / f64::from(allocated).sqrt() + 0.03);
    println!("{allocated} samples of {requested} bytes: {sum} ({:+.1} %)", (sum / requested - 1.0) * 100.0);
    // A sample may be live when the tool attaches or detaches; a thread may be in the middle of a round.
    if (sum / requested - 1.0).abs() > spread || strangers > 200 || live.len() > 200 || allocated < 500 {
        return fail(format!(
            "{allocated} samples stand for {sum} bytes, not {requested}; {strangers} frees of none, {} not freed",
            live.len()
        ));
    }
    Ok(())
}

fn from_start() -> Outcome {
    let tracing = Tracing::start("start")?;
    tracing.attach(true)?;
    let daemon = start("threads")?;
    sleep(1000);
    let attached = semaphores(daemon.pid())?;
    let events = tracing.events()?.len();
    tracing.attach(false)?;
    end(daemon)?;
    if attached == [1, 1] && events > 100 { Ok(()) } else { fail(format!("{attached:?}, {events} events")) }
}

fn storm() -> Outcome {
    let tracing = Tracing::start("storm")?;
    let daemon = start("storm")?;
    for _ in 0..8 {
        sleep(100);
        tracing.attach(true)?;
        sleep(200);
        tracing.attach(false)?;
    }
    let events = tracing.events()?.len();
    end(daemon)?;
    if events > 100 { Ok(()) } else { fail(format!("{events} events")) }
}
