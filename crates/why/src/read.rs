//! Reads a process: from `/proc` to [`Seen`].

use crate::memory::Process;
use crate::priority::Priority;
use crate::sys;
use crate::{beside, failed, fork, heaps, held, python, repeated, segments, slices, stacks, zeros};
use neap_account::parse;
use neap_account::seen::{Figures, Mapping, Seen, Thread};
use neap_launch::error::Error;
use neap_launch::mounts::{self, Line};
use neap_launch::target::{self, Linked};
use neap_process::kernel_file;
use neap_process::maps;
use neap_process::{command, identity, living, name, text, threads as threads_of};
use neap_survey::Fuel;
use std::fs;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often a process is read if its Rss changes meanwhile.
const TRIES: u32 = 4;
const PAUSE: Duration = Duration::from_millis(20);
/// A process that takes longer to read is read once.
const LONG: Duration = Duration::from_secs(2);

/// Limit on the length of a program's section names.
const NAMES: u64 = 1 << 20;

/// How much of a process is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// The kernel's lists only: some milliseconds for a large process. Heaps are not split.
    Light,
    /// Also heaps, stacks, pools and huge pages.
    Full,
    /// The same, but a large process is not held up: its figures are from its page map, see `slices.rs`.
    Gentle,
}

impl Effort {
    /// Whether heaps, stacks, pools and huge pages are read.
    fn is_deep(self) -> bool {
        self != Effort::Light
    }
}

/// The account of a process.
pub fn look(pid: u32, effort: Effort) -> Result<neap_account::Report, Error> {
    look_until(pid, effort, || false)
}

/// The account of a command that neap started.
pub fn look_at_command(pid: u32) -> Result<neap_account::Report, Error> {
    account(pid, Effort::Full, true, || false)
}

/// The account of a process; ends early when `stop` returns true.
pub fn look_until(pid: u32, effort: Effort, stop: fn() -> bool) -> Result<neap_account::Report, Error> {
    account(pid, effort, false, stop)
}

fn account(pid: u32, effort: Effort, ends: bool, stop: fn() -> bool) -> Result<neap_account::Report, Error> {
    let via = living(pid);
    let is_sliced = effort == Effort::Gentle && slices::is_large(via).unwrap_or(false);
    let fuel = Fuel::of(via, stop);
    let fuel = if is_sliced { fuel.with_rests() } else { fuel };
    let _priority = if is_sliced { Priority::raise() } else { None };
    let seen = read(via, effort, is_sliced, &Arc::new(fuel))?;
    let living = (via != pid).then_some(via);
    Ok(neap_account::report(&Seen { pid, living, ends, ..seen }))
}

/// Reads process `pid` within the limits of `fuel`.
fn read(pid: u32, effort: Effort, is_sliced: bool, fuel: &Arc<Fuel>) -> Result<Seen, Error> {
    let (mut last, began) = (None, Instant::now());
    let (mut low, mut high) = (u64::MAX, 0);
    for _ in 0..TRIES {
        let identity = identity::of(pid);
        let seen = match once(pid, effort, is_sliced, fuel) {
            // It executes another program at this moment.
            Err(_) if identity::of(pid) != identity && failed::has_memory(pid) => continue,
            seen => seen?,
        };
        let after = if is_sliced { seen.total } else { rollup(pid)? };
        // It has executed another program, which is then read.
        let now = identity::of(pid);
        if !now.is_some_and(|now| identity.as_ref().is_some_and(|before| now.is_of(before))) {
            (last, low, high) = (None, u64::MAX, 0);
            continue;
        }
        let listed: u64 = seen.mappings.iter().map(|mapping| mapping.figures.rss).sum();
        // No reading before: each makes the kernel walk all page tables, and the process waits if it maps memory
        // meanwhile.
        let all = [listed, seen.total.rss, after.rss];
        let (least, most) = (all.into_iter().min().unwrap_or(0), all.into_iter().max().unwrap_or(0));
        (low, high) = (low.min(least), high.max(most));
        last = Some(of_one_moment(seen));
        if most - least <= most / 100 {
            return last.ok_or_else(|| Error::failed("nothing was read"));
        }
        if began.elapsed() > LONG || fuel.is_over() {
            break;
        }
        std::thread::sleep(PAUSE);
    }
    let mut seen = last.ok_or_else(|| {
        Error::failed(format!("process {pid} executes one program after another")).remedy("try again when it runs")
    })?;
    seen.range = Some((low, high));
    Ok(seen)
}

/// The list of mappings and the kernel's sums are of different moments. The accounts are made of the list: where the
/// process has changed between the two, the sums are those of the list.
fn of_one_moment(mut seen: Seen) -> Seen {
    let listed = seen.mappings.iter().fold(Figures::default(), |sum, mapping| sum.plus(&mapping.figures));
    if listed.rss != seen.total.rss {
        seen.total = listed;
    }
    seen
}

/// The kernel's figures of the whole process.
fn rollup(pid: u32) -> Result<Figures, Error> {
    match text(format!("/proc/{pid}/smaps_rollup")) {
        Ok(text) if !text.is_empty() => Ok(maps::rollup(&text)),
        Ok(_) => Err(failed::no_memory(pid)),
        Err(error) => Err(failed::unreadable(pid, &error)),
    }
}

/// Reads it once.
fn once(pid: u32, effort: Effort, is_sliced: bool, fuel: &Arc<Fuel>) -> Result<Seen, Error> {
    let unreadable = |error: io::Error| failed::unreadable(pid, &error);
    let (mappings, total) = match is_sliced {
        true => {
            let (mappings, _) = slices::mappings(pid, fuel).map_err(unreadable)?;
            let total = slices::sum(&mappings);
            (mappings, total)
        }
        false => {
            let smaps = kernel_file(format!("/proc/{pid}/smaps")).map_err(unreadable)?;
            let total = rollup(pid)?;
            (parse::smaps(&String::from_utf8_lossy(&smaps)), total)
        }
    };
    if mappings.is_empty() {
        return Err(failed::no_memory(pid));
    }
    let status = text(format!("/proc/{pid}/status")).map_err(unreadable)?;
    let mounts = text(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
    let in_memory = |line: &Line| matches!(line.kind.as_str(), "tmpfs" | "ramfs" | "hugetlbfs" | "devtmpfs");
    let program = format!("/proc/{pid}/exe");
    let linked = target::linked(Path::new(&program));
    let mut seen = Seen {
        pid,
        is_closed: linked != Linked::Open,
        is_stripped: linked == Linked::Static && !has_symbols(pid),
        held: held::of(pid, &status),
        locked: parse::value(&status, "VmLck").unwrap_or(0),
        seccomp: parse::value(&status, "Seccomp").unwrap_or(0),
        command: command(pid),
        exe: fs::read_link(&program).map_or_else(|_| String::new(), |path| path.display().to_string()),
        is_elsewhere: is_elsewhere(Path::new(&program)),
        is_rooted: is_rooted(pid),
        total,
        mappings,
        threads: threads(pid, effort),
        page_tables: parse::value(&status, "VmPTE").unwrap_or(0),
        is_go: effort.is_deep() && is_go(pid),
        settings: settings(pid),
        memory_devices: mounts::parse(&mounts).iter().filter(|line| in_memory(line)).map(|line| line.device).collect(),
        ..Seen::default()
    };
    let parent = parse::value(&status, "PPid").and_then(|parent| u32::try_from(parent).ok()).unwrap_or(0);
    if effort.is_deep() && parent > 0 && sys::have_same_memory(pid, parent) {
        seen.notes.push(format!("it shares the memory of its parent, process {parent} (vfork): both have all of this"));
    }
    if seen.threads.is_empty() {
        seen.notes.push("its threads cannot be listed: their stacks are not known".into());
    }
    if effort.is_deep() {
        let is_forked = seen.mappings.iter().any(|mapping| mapping.forked() > 0);
        match if is_forked { Process::open_forked(pid, fuel) } else { Process::open(pid, fuel) } {
            Ok(memory) => {
                fork::read(&mut seen, parent, &memory);
                deep(&mut seen, &memory);
                beside::read(&mut seen);
            }
            Err(error) => {
                seen.notes.push(format!("its memory cannot be read ({}): heaps are not split", failed::words(&error)))
            }
        }
    }
    Ok(seen)
}

/// Reads what is in its memory.
fn deep(seen: &mut Seen, memory: &Process) {
    let mut probe = [0; 1];
    let may_be = |mapping: &&Mapping| mapping.read && mapping.figures.rss > 0 && !mapping.name.starts_with("[v");
    // Probes a resident page: reading another one would make it resident, and that fault may wait for another program.
    let first = seen
        .mappings
        .iter()
        .filter(may_be)
        .find_map(|mapping| memory.regions(mapping.range.clone()).into_iter().find(|region| !region.swapped));
    if first.is_some_and(|region| !memory.copy(region.range.start, &mut probe)) && !memory.fuel.is_over() {
        seen.notes.push(failed::not_readable(seen.pid));
        return;
    }
    repeated::read(seen, memory);
    segments::read(seen, memory);
    if is_32_bit(seen.pid) {
        seen.notes.push("it is a 32-bit program: its heaps are not split".into());
    } else {
        heaps::read(seen, memory);
        python::read(seen, memory);
    }
    // After the heaps, because blocks of malloc may be stacks.
    stacks::read(seen, memory);
    zeros::read(seen, memory);
    if memory.fuel.is_over() {
        seen.notes.push("reading took too long and was cut short: heaps and pools are only partly known".into());
    }
}

/// Whether the path in a link of `/proc/PID` does not lead to the file behind the link: that is in another root or mount
/// namespace, deleted or replaced, or in no folder.
fn is_elsewhere(link: &Path) -> bool {
    let id = |path: &Path| fs::metadata(path).map(|of| (of.dev(), of.ino()));
    // A file that may not be looked at is taken for the one at its path.
    id(link).is_ok_and(|behind| fs::read_link(link).is_ok_and(|path| id(&path).ok() != Some(behind)))
}

/// Whether its root is another than this process's, in one mount namespace. Debuggers enter another namespace.
fn is_rooted(pid: u32) -> bool {
    let root = |of: &str| fs::metadata(format!("/proc/{of}/root")).map(|root| (root.dev(), root.ino())).ok();
    let mounts = |of: &str| fs::read_link(format!("/proc/{of}/ns/mnt")).ok();
    let pid = pid.to_string();
    mounts(&pid) == mounts("self") && root(&pid).is_some_and(|other| root("self") != Some(other))
}

/// Variables that give a JVM options.
const SETTINGS: [&[u8]; 3] = [b"JAVA_TOOL_OPTIONS=", b"JDK_JAVA_OPTIONS=", b"_JAVA_OPTIONS="];

/// These variables of the environment with which it was started.
fn settings(pid: u32) -> Vec<String> {
    let bytes = kernel_file(format!("/proc/{pid}/environ")).unwrap_or_default();
    let is_one = |of: &&[u8]| SETTINGS.iter().any(|name| of.starts_with(name));
    bytes.split(|&byte| byte == 0).filter(is_one).map(|of| String::from_utf8_lossy(of).into_owned()).collect()
}

/// The threads.
fn threads(pid: u32, effort: Effort) -> Vec<Thread> {
    let thread = |tid: u32| match effort {
        Effort::Light => Thread { tid, ..Thread::default() },
        Effort::Full | Effort::Gentle => {
            let call = text(format!("/proc/{tid}/syscall")).unwrap_or_default();
            Thread { tid, name: name(tid), stack_pointer: stack_pointer(&call) }
        }
    };
    // The first thread first.
    let mut tids: Vec<u32> = threads_of(pid).unwrap_or_default().into_iter().collect();
    tids.sort_by_key(|&tid| tid != pid);
    tids.into_iter().map(thread).collect()
}

/// The stack pointer in `/proc/PID/task/TID/syscall`: the second to last word; none if the thread runs.
///
/// ```text
/// 202 0x7f5c0e0b9990 0x189 0x0 0x0 0x0 0x0 0x7f5c0e0b9930 0x7f5c0e13d117
/// ```
fn stack_pointer(call: &str) -> Option<u64> {
    let pointer = call.split_ascii_whitespace().rev().nth(1)?;
    u64::from_str_radix(pointer.strip_prefix("0x")?, 16).ok()
}

/// Whether the program was built with Go, whose linker adds a section.
fn is_go(pid: u32) -> bool {
    fs::File::open(format!("/proc/{pid}/exe"))
        .is_ok_and(|file| has_section(&file, b"\0.go.buildinfo\0").unwrap_or(false))
}

/// Whether the program has a table of all its symbols, which debuggers use.
fn has_symbols(pid: u32) -> bool {
    fs::File::open(format!("/proc/{pid}/exe")).is_ok_and(|file| has_section(&file, b"\0.symtab\0").unwrap_or(false))
}

/// Whether the section names of an ELF file have `name`, with the zeros around it. The file's fields are not trusted.
fn has_section(file: &fs::File, name: &[u8]) -> Option<bool> {
    let (mut header, mut section) = ([0; 64], [0; 64]);
    file.read_exact_at(&mut header, 0).ok()?;
    let half = |at: usize| Some(u64::from(u16::from_le_bytes(*header.get(at..)?.first_chunk()?)));
    let word = |bytes: &[u8], at: usize| Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
    let (table, size, names) = (word(&header, 40)?, half(58)?, half(62)?);
    if !header.starts_with(b"\x7fELF\x02\x01") || size != 64 {
        return None;
    }
    file.read_exact_at(&mut section, table.checked_add(size * names)?).ok()?;
    let (offset, length) = (word(&section, 24)?, word(&section, 32)?);
    if length > NAMES {
        return None;
    }
    let mut bytes = vec![0; length as usize];
    file.read_exact_at(&mut bytes, offset).ok()?;
    Some(bytes.windows(name.len()).any(|window| window == name))
}

/// Whether it is a 32-bit program.
fn is_32_bit(pid: u32) -> bool {
    let mut head = [0; 5];
    let read = fs::File::open(format!("/proc/{pid}/exe")).and_then(|file| file.read_exact_at(&mut head, 0));
    read.is_ok() && head == *b"\x7fELF\x01"
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches the instruction pointer that is taken for the stack pointer, and a running thread with a stack pointer.
    #[test]
    fn stack_pointers() {
        assert_eq!(stack_pointer("202 0x1 0x2 0x3 0x4 0x5 0x6 0x7ff0 0x7f5c\n"), Some(0x7ff0));
        assert_eq!(stack_pointer("-1 0x7ff0 0x7f5c\n"), Some(0x7ff0));
        assert_eq!((stack_pointer("running\n"), stack_pointer("")), (None, None));
    }

    /// Catches a sum of another moment than the list: accounts of 101 % of Rss, "84.3 MiB of 83.2 MiB".
    #[test]
    fn accounts_are_of_one_moment() {
        let mapping = |start: u64, rss: u64| Mapping {
            range: start..start + rss,
            read: true,
            write: true,
            figures: Figures { rss, pss: rss, anonymous: rss, ..Figures::default() },
            ..Mapping::default()
        };
        let total = Figures { rss: 83 << 20, ..Figures::default() };
        let seen =
            Seen { total, mappings: vec![mapping(1 << 30, 80 << 20), mapping(2 << 30, 4 << 20)], ..Seen::default() };
        let report = neap_account::report(&of_one_moment(seen.clone()));
        assert_eq!((report.sum(), report.rss_bytes), (84 << 20, 84 << 20));
        assert!(report.verdict.starts_with("84.0 MiB of 84.0 MiB"), "{}", report.verdict);
        let same = Seen { total: Figures { rss: 84 << 20, pss: 7, ..Figures::default() }, ..seen };
        assert_eq!(of_one_moment(same.clone()).total, same.total);
    }

    /// Catches a program that was deleted, or has another file at its path, and whose path stands in a command.
    #[test]
    fn programs_elsewhere_are_known() {
        assert!(!is_elsewhere(Path::new("/proc/self/exe")));
        let path = std::env::temp_dir().join(format!("neap-why-elsewhere-{}", std::process::id()));
        let file = fs::File::create(&path).expect("a file");
        let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        assert!(!is_elsewhere(Path::new(&link)));
        fs::remove_file(&path).expect("the file");
        assert!(is_elsewhere(Path::new(&link)));
        fs::write(&path, "another").expect("a file");
        assert!(is_elsewhere(Path::new(&link)));
        fs::remove_file(&path).expect("the file");
    }

    /// Catches accounts of this process that do not add up, and threads that are not found.
    #[test]
    fn this_process_adds_up() {
        let fuel = Arc::new(Fuel::of(std::process::id(), || false));
        let seen = read(std::process::id(), Effort::Full, false, &fuel).expect("this process");
        assert!(!fuel.is_over());
        let report = neap_account::report(&seen);
        let off = report.sum().abs_diff(report.rss_bytes);
        assert!(off * 50 <= report.rss_bytes, "{} of {}", report.sum(), report.rss_bytes);
        assert!(report.threads >= 1 && !report.command.is_empty());
    }

    /// Catches a reading that is cut short without a note, and one that is not cut short.
    #[test]
    fn a_look_that_is_cut_short_says_so() {
        let fuel = Arc::new(Fuel::new(Duration::from_secs(100), 100));
        let seen = read(std::process::id(), Effort::Full, false, &fuel).expect("this process");
        assert!(fuel.is_over() && seen.notes.iter().any(|note| note.contains("cut short")), "{:?}", seen.notes);
    }

    /// Catches a name that is not found, and a length that is trusted: the section of names says 3 GiB.
    #[test]
    fn names_of_sections() {
        let path = std::env::temp_dir().join(format!("neap-sections-{}", std::process::id()));
        let file = fs::File::options().read(true).write(true).create(true).truncate(true).open(&path).expect("a file");
        fs::remove_file(&path).expect("a file");
        let put = |at: u64, bytes: &[u8]| file.write_all_at(bytes, at).expect("a file");
        put(0, b"\x7fELF\x02\x01");
        put(40, &64u64.to_le_bytes());
        put(58, &[64, 0, 0, 0, 1, 0]);
        put(64 + 64 + 24, &1024u64.to_le_bytes());
        put(64 + 64 + 32, &100u64.to_le_bytes());
        put(1024, &[0; 200]);
        assert_eq!(has_section(&file, b"\0.go\0"), Some(false));
        put(1050, b".go\0");
        assert_eq!(has_section(&file, b"\0.go\0"), Some(true));
        put(64 + 64 + 32, &(3u64 << 30).to_le_bytes());
        file.set_len(4 << 30).expect("a sparse file");
        assert_eq!(has_section(&file, b"\0.go\0"), None);
        put(62, &[0xff, 0xff]);
        assert_eq!(has_section(&file, b"\0.gox\0"), Some(false));
        put(0, b"#!/bin/sh");
        assert_eq!(has_section(&file, b"\0.go\0"), None);
    }
}
