//! What would give memory back, how, and how much by which rule. What has been tried of it: `trial.rs`.

use crate::facts::{Facts, InHuge, is_glibc};
use crate::model::{Action, Cause, Kind, Remedy, Report};
use crate::runtime;
use crate::seen::{HeapPart, Seen};
use crate::units::{bytes, columns};
use crate::{held, shell, trial};
use std::collections::BTreeMap;

/// Remedies of less than this many bytes are left out.
const LEAST: u64 = 64 << 10;

impl Remedy {
    /// The command in a few words.
    pub fn short(&self) -> &str {
        match self.action {
            Action::Trim => "malloc_trim(0)",
            Action::NoHuge => "PR_SET_THP_DISABLE",
            Action::OnNeap if columns(&self.command) > 48 => "neap run",
            _ => &self.command,
        }
    }
}

/// All remedies, those that give back most first.
pub fn all(report: &Report, seen: &Seen, facts: &Facts) -> Vec<Remedy> {
    let mut all = Vec::new();
    glibc(report, seen, facts, &mut all);
    others(seen, &mut all);
    // Heaps and accounts were read at different moments: no remedy may give back more than the accounts have.
    for remedy in &mut all {
        remedy.bytes = remedy.bytes.min(facts.kept);
    }
    huge(seen, facts, &mut all);
    pages(report, facts, &mut all);
    for remedy in &mut all {
        remedy.bytes = remedy.bytes.min(report.rss_bytes);
        remedy.least_bytes = remedy.least_bytes.min(remedy.bytes);
    }
    held::apply(seen, &mut all);
    all.retain(|remedy| remedy.bytes >= LEAST && trial::is_proven(remedy.action));
    // Sure ones before those that only might, of equal size.
    all.sort_by_key(|remedy| (std::cmp::Reverse(remedy.bytes), std::cmp::Reverse(remedy.least_bytes)));
    questions(report, seen, &mut all);
    all
}

/// A remedy for the next start of the program.
fn at_start(action: Action, text: impl Into<String>, command: impl Into<String>, bytes: u64, rule: &str) -> Remedy {
    Remedy { command: command.into(), rule: rule.into(), now: false, ..Remedy::new(action, text, bytes) }
}

/// The same if the program decides how much it gives back: from nothing up to `bytes`.
fn at_most(of: Remedy) -> Remedy {
    Remedy { least_bytes: 0, ..of }
}

/// glibc's own controls.
fn glibc(report: &Report, seen: &Seen, facts: &Facts, all: &mut Vec<Remedy>) {
    let is_java = runtime::of(seen).iter().any(|of| of.name == "JVM");
    if facts.trimmable > 0 {
        let rule = "whole resident OS pages in free blocks of all arenas, and the end of the main one".to_owned();
        all.push(if is_java {
            Remedy {
                command: format!("jcmd {} System.trim_native_heap", seen.number()),
                rule,
                ..Remedy::new(
                    Action::TrimOfJava,
                    "Make glibc give free OS pages of native memory back once (Java 17 and later).",
                    facts.trimmable,
                )
            }
        } else if seen.is_stripped {
            let text = "Call malloc_trim(0) in the program: glibc then gives free OS pages back once.";
            at_start(Action::Trim, text, "", facts.trimmable, &rule)
        } else {
            Remedy {
                command: format!("gdb -p {} -batch -ex 'call (int)malloc_trim(0)'", seen.debugged()),
                rule,
                ..Remedy::new(
                    Action::Trim,
                    // gdb 13 cannot write the registers of processors with AMX: the process crashes.
                    "Make glibc give free OS pages back once (gdb 14 or newer; older versions can crash the process).",
                    facts.trimmable,
                )
            }
        });
    }
    if is_java {
        let text =
            "Start it with such a call every second (Java 17.0.15 has the option; a JVM without it does not start).";
        let rule = "the same, at the latest a second after it becomes free";
        let option = "-XX:TrimNativeHeapInterval=1000";
        all.push(at_start(Action::TrimsOfJava, text, option, facts.trimmable, rule));
    }
    let of_glibc = || report.heaps.iter().filter(|figures| is_glibc(&figures.allocator));
    let cached: u64 = of_glibc().map(|figures| figures.cached_bytes).sum();
    all.push(at_start(
        Action::NoThreadCaches,
        "Start it without caches of threads; then each call takes the lock of an arena.",
        "GLIBC_TUNABLES=glibc.malloc.tcache_count=0",
        cached,
        "resident blocks in the caches of threads and in quick lists",
    ));
    if !seen.is_closed {
        all.push(at_start(
            Action::OnNeap,
            "Start it on neap, which gives free OS pages back by itself, from the middle of heaps too.",
            format!("neap run -- {}", program(seen)),
            of_glibc().map(|figures| figures.kept_bytes).sum(),
            "free memory that glibc keeps in whole OS pages and in caches of threads",
        ));
    }
}

/// Limit on the length of a program's arguments in a command.
const ARGUMENTS: usize = 1000;

/// The program with its arguments, as words of a command; `CMD` if they are not known: servers overwrite their arguments
/// with a status, such as `nginx: worker process`. The file may be another program under another name. Nor are they
/// known where the path of the program leads elsewhere.
fn program(seen: &Seen) -> String {
    let known = || {
        if seen.is_elsewhere {
            return None;
        }
        let first = seen.command.first().filter(|name| !name.contains(' ') || **name == seen.exe)?;
        let rest = seen.command[1..].iter().map(|argument| shell::argument(argument));
        let words: Option<Vec<String>> = std::iter::once(shell::word(first)).chain(rest).collect();
        words.map(|words| words.join(" ")).filter(|words| words.len() <= ARGUMENTS)
    };
    known().unwrap_or_else(|| "CMD".into())
}

/// A setting that makes an allocator give memory back: action, allocator, usual variable, value, effect.
type Control = (Action, &'static str, &'static str, &'static str, &'static str);

/// neap has none: it gives back what a program has freed half a second later.
const CONTROLS: &[Control] = &[
    (
        Action::JemallocDecay,
        "jemalloc",
        "MALLOC_CONF",
        "background_thread:true,dirty_decay_ms:0,muzzy_decay_ms:0",
        "Make jemalloc give free memory back at once.",
    ),
    (Action::MimallocPurge, "mimalloc 3", "MIMALLOC_PURGE_DELAY", "0", "Make mimalloc give free memory back at once."),
    // Version 2.0 has the first variable only; later versions have the second, and do not look at the first then.
    (
        Action::MimallocPurge,
        "mimalloc 2",
        "MIMALLOC_RESET_DELAY=0 MIMALLOC_PURGE_DELAY",
        "0",
        "Make mimalloc give free memory back at once.",
    ),
    // TCMALLOC_RELEASE_RATE has given nothing back in a program that frees and then waits.
    (
        Action::TcmallocDecommit,
        "tcmalloc",
        "TCMALLOC_AGGRESSIVE_DECOMMIT",
        "1",
        "Make tcmalloc (of gperftools) give free memory back at once; in the program, \
         MallocExtension_ReleaseFreeMemory() does it once.",
    ),
];

/// Settings of other allocators. A copy of an allocator may have another variable.
fn others(seen: &Seen, all: &mut Vec<Remedy>) {
    for (action, name, usual, value, text) in CONTROLS {
        let mut kept: BTreeMap<&str, u64> = BTreeMap::new();
        for part in seen.heaps.iter().filter(|part| part.figures.allocator.starts_with(name)) {
            // Caches of threads stay.
            let bytes = part.figures.kept_bytes.saturating_sub(part.figures.cached_bytes);
            *kept.entry(part.settings.as_deref().unwrap_or(usual)).or_default() += bytes;
        }
        all.extend(kept.into_iter().map(|(variable, bytes)| {
            at_start(*action, *text, format!("{variable}={value}"), bytes, "free memory that it keeps")
        }));
    }
    let of_pyarrow = |part: &&HeapPart| part.inside.as_ref().is_some_and(|file| file.starts_with("libarrow.so"));
    let of_mimalloc = |part: &&HeapPart| part.figures.allocator.starts_with("mimalloc");
    let kept: u64 = seen.heaps.iter().filter(of_pyarrow).filter(of_mimalloc).map(|part| part.figures.kept_bytes).sum();
    all.extend((kept > 0).then(|| Remedy {
        command: "pyarrow.default_memory_pool().release_unused() (inside the program)".into(),
        rule: "free memory that the pool keeps".into(),
        ..Remedy::new(Action::PyarrowRelease, "Make pyarrow's pool give free memory back once.", kept)
    }));
}

/// Starts a program without huge pages of this kind; programs that it starts inherit it.
const NO_HUGE: &str = "python3 -c 'import ctypes, os, sys; ctypes.CDLL(None).prctl(41, 1, 0, 0, 0); \
                       os.execvp(sys.argv[1], sys.argv[1:])'";

/// Zeros in huge pages, by who has asked for these. Never a setting of the whole machine.
fn huge(seen: &Seen, facts: &Facts, all: &mut Vec<Remedy>) {
    let has_numpy = seen.mappings.iter().any(|mapping| mapping.name.contains("/_multiarray_umath."));
    let mut sums: BTreeMap<&str, (Action, String, u64)> = BTreeMap::new();
    for InHuge { owner, bytes } in &facts.in_huge {
        let (key, action, command) = match owner.as_str() {
            of if of.starts_with("neap") => ("neap", Action::NeapNoHuge, "NEAP_HUGE=off".to_owned()),
            of if of.starts_with("mimalloc 3") => {
                ("mimalloc", Action::MimallocNoHuge, "MIMALLOC_ALLOW_THP=0".to_owned())
            }
            of if is_glibc(of) && has_numpy => ("numpy", Action::NumpyNoHuge, "NUMPY_MADVISE_HUGEPAGE=0".to_owned()),
            _ => ("", Action::NoHuge, format!("{NO_HUGE} {}", program(seen))),
        };
        sums.entry(key).or_insert((action, command, 0)).2 += bytes;
    }
    all.extend(sums.into_values().map(|(action, command, bytes)| {
        let text = "Start it without huge pages: then only what it touches is resident. It saves nothing of what the \
                    program itself filled with zeros.";
        at_most(at_start(action, text, command, bytes, "OS pages of zeros in huge pages that have other contents too"))
    }));
}

/// Stacks, locked memory.
fn pages(report: &Report, facts: &Facts, all: &mut Vec<Remedy>) {
    let text = match report.threads {
        1 => "Let it give the unused part of its stack back (madvise MADV_DONTNEED below the stack pointer).".into(),
        threads => format!(
            "End idle threads, or let each give its unused stack back (madvise MADV_DONTNEED below the stack pointer); \
             threads: {threads}."
        ),
    };
    let rule = "resident OS pages of stacks below the stack pointer";
    all.push(at_start(Action::Stacks, text, "", facts.below, rule));
    let text = "Lock memory when it is first used: mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT), \
                mlock2(MLOCK_ONFAULT). It saves nothing of what the program itself filled with zeros.";
    let rule = "OS pages of locked memory that hold only zeros";
    all.push(at_most(at_start(Action::LockOnFault, text, "", facts.locked_zeros, rule)));
}

/// What shows more, or bounds the memory, where no figure can be given.
fn look(text: impl Into<String>, command: String, rule: &str, now: bool) -> Remedy {
    Remedy { command, rule: rule.into(), now, ..Remedy::new(Action::Look, text, 0) }
}

/// Commands that show more if no figure can be given.
fn questions(report: &Report, seen: &Seen, all: &mut Vec<Remedy>) {
    for account in report.accounts.iter().filter(|account| account.kind == Kind::RuntimeHeap) {
        let name = account.owner.split([',', ':']).next().unwrap_or("");
        let Some(runtime) = runtime::named(seen, name) else { continue };
        let command = runtime.command.replace("PID", &seen.number());
        if all.iter().any(|remedy| remedy.command == command) {
            continue;
        }
        let rule = "not known from outside; the runtime's own command shows what is free";
        all.push(look(format!("{}: {}.", runtime.name, runtime.advice), command, rule, true));
    }
    if report.cause == Cause::OffHeap {
        for native in runtime::of(seen).iter().filter_map(|of| of.native) {
            let rule = "not known from outside; the runtime's own command divides what the runtime counts";
            if native.is_tracked(seen) {
                let command = native.command.replace("PID", &seen.number());
                all.push(look("See what holds the native memory.", command, rule, true));
            }
            if let Some((command, text)) = native.bound {
                all.push(look(format!("{text}."), command.to_owned(), rule, false));
            }
        }
    }
    let on_neap = report.allocators.iter().any(|name| name.starts_with("neap"));
    let is_held = matches!(report.cause, Cause::Live | Cause::Undivided | Cause::OffHeap);
    let (mut shown, mut hidden) = (0, BTreeMap::<&str, u64>::new());
    for part in &seen.heaps {
        match &part.inside {
            Some(file) => *hidden.entry(file).or_default() += part.figures.resident_bytes,
            None => shown += part.figures.live_bytes.min(part.figures.resident_bytes),
        }
    }
    let most = hidden.into_iter().max_by_key(|(_, bytes)| *bytes);
    if let Some((file, hidden)) = most.filter(|(_, hidden)| is_held && *hidden > shown) {
        let text = format!(
            "Look with {file}'s own means: it has an allocator of its own with {}, which `neap profile` and `neap run` \
             do not reach; they show {}.",
            bytes(hidden),
            bytes(shown)
        );
        all.push(look(text, String::new(), "live memory goes back when the program frees it", false));
    } else if is_held && (on_neap || !seen.is_closed) {
        let command = match on_neap {
            true => format!("neap profile --heap --pid {}", seen.number()),
            false => format!("neap profile --heap -- {}", program(seen)),
        };
        let rule = "live memory goes back when the program frees it";
        all.push(look("See which code holds the live blocks.", command, rule, on_neap));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::HeapFigures;
    use crate::seen::HeapPart;

    /// Catches commands that start a server's status text.
    #[test]
    fn titles_are_no_programs() {
        let of = |first: &str, exe: &str| {
            program(&Seen { command: vec![first.into(), "-x".into()], exe: exe.into(), ..Seen::default() })
        };
        assert_eq!(of("nginx: worker process", "/usr/sbin/nginx"), "CMD");
        assert_eq!(of("redis-server *:6379", "/usr/bin/redis-check-rdb"), "CMD");
        assert_eq!(of("./server", "/srv/server"), "./server -x");
        assert_eq!(of("/srv/a b", "/srv/a b"), "'/srv/a b' -x");
    }

    /// Catches arguments that are lost, that run other commands, or that are too long to be copied.
    #[test]
    fn arguments_are_kept() {
        let of = |command: &[&str]| {
            let command = command.iter().map(|word| (*word).to_owned()).collect();
            program(&Seen { command, ..Seen::default() })
        };
        assert_eq!(
            of(&["node", "--max-old-space-size=64", "app.js", "a b", ""]),
            "node --max-old-space-size=64 app.js 'a b' ''"
        );
        assert_eq!(of(&["p", "$(id)"]), "p '$(id)'");
        assert_eq!((of(&["p", "a\nb"]), of(&["p", &"x".repeat(2000)])), ("CMD".into(), "CMD".into()));
    }

    /// Catches a program with one thread that is to end idle threads.
    #[test]
    fn the_only_thread_is_not_ended() {
        let text = |threads: usize| {
            let threads = (1..=threads).map(|tid| crate::Thread { tid: tid as u32, ..Default::default() }).collect();
            let report = crate::report(&Seen { threads, ..Seen::default() });
            let mut all = Vec::new();
            pages(&report, &Facts { below: 1 << 20, ..Facts::default() }, &mut all);
            all.swap_remove(0).text
        };
        assert!(text(2).starts_with("End idle threads") && text(2).ends_with("threads: 2."), "{}", text(2));
        assert!(text(1).starts_with("Let it give the unused part of its stack back"), "{}", text(1));
    }

    /// Catches commands that refuse the process: neap in a static program, a debugger where the first thread has ended,
    /// or where no function has a name.
    #[test]
    fn commands_fit_the_program() {
        let of = |seen: &Seen| -> Vec<String> {
            let figures = HeapFigures { allocator: "glibc 2.36".into(), kept_bytes: 1 << 20, ..HeapFigures::default() };
            let report = Report { heaps: vec![figures], cause: Cause::Live, ..crate::report(seen) };
            let facts = Facts { trimmable: 1 << 20, ..Facts::default() };
            let mut all = Vec::new();
            glibc(&report, seen, &facts, &mut all);
            questions(&report, seen, &mut all);
            all.retain(|of| of.bytes > 0 || of.action == Action::Look);
            all.into_iter().map(|of| of.command).collect()
        };
        let seen = Seen { pid: 7, command: vec!["p".into()], ..Seen::default() };
        let trim = |pid: u32| format!("gdb -p {pid} -batch -ex 'call (int)malloc_trim(0)'");
        let with_neap = ["neap run -- p".to_owned(), "neap profile --heap -- p".to_owned()];
        assert_eq!(of(&seen), [[trim(7)].as_slice(), &with_neap].concat());
        assert_eq!(of(&Seen { living: Some(8), ..seen.clone() })[0], trim(8));
        let closed = Seen { is_closed: true, ..seen };
        assert_eq!(of(&closed), [trim(7)]);
        assert_eq!(of(&Seen { is_stripped: true, ..closed }), [""]);
    }

    /// Catches settings of the whole machine, and zeros whose remedy is another program's.
    #[test]
    fn huge_pages_are_turned_off_where_they_are_asked_for() {
        let of = |owner: &str, library: &str| {
            let in_huge = vec![InHuge { owner: owner.into(), bytes: 1 << 20 }];
            let mappings = vec![crate::testing::mapping(0x1000, 0x1000, library)];
            let seen = Seen { mappings, command: vec!["p".into(), "-x".into()], ..Seen::default() };
            let mut all = Vec::new();
            huge(&seen, &Facts { in_huge, ..Facts::default() }, &mut all);
            assert_eq!((all.len(), all[0].least_bytes, all[0].bytes), (1, 0, 1 << 20));
            assert!(!all[0].command.contains("/sys/"), "{}", all[0].command);
            all.remove(0).command
        };
        assert_eq!(of("neap, heap", "/lib/libneap.so"), "NEAP_HUGE=off");
        let numpy = "/usr/lib/numpy/core/_multiarray_umath.cpython-311-x86_64-linux-gnu.so";
        assert_eq!(of("glibc 2.36, mmapped blocks", numpy), "NUMPY_MADVISE_HUGEPAGE=0");
        assert_eq!(of("mimalloc 3, arenas", "/lib/x"), "MIMALLOC_ALLOW_THP=0");
        for other in [("glibc 2.36, mmapped blocks", "/lib/x"), ("private memory without a name", numpy)] {
            assert!(of(other.0, other.1).ends_with("sys.argv[1:])' p -x"));
        }
    }

    /// Catches a profile that would show next to nothing of what the program holds, as its memory is that of an allocator
    /// inside a library; and pyarrow's pool without its own means.
    #[test]
    fn allocators_inside_libraries() {
        let part = |name: &str, bytes: u64, inside: Option<&str>| HeapPart {
            figures: HeapFigures {
                allocator: name.into(),
                resident_bytes: bytes,
                live_bytes: bytes,
                kept_bytes: bytes / 2,
                ..HeapFigures::default()
            },
            inside: inside.map(str::to_owned),
            ..HeapPart::default()
        };
        let of = |inside: u64, glibc: u64| {
            let heaps = vec![part("mimalloc 3", inside, Some("libarrow.so.2600")), part("glibc 2.36", glibc, None)];
            let seen = Seen { heaps, command: vec!["python3".into()], ..Seen::default() };
            let report = Report { cause: Cause::Live, ..crate::report(&seen) };
            let mut all = Vec::new();
            others(&seen, &mut all);
            questions(&report, &seen, &mut all);
            all
        };
        let all = of(700 << 20, 4 << 20);
        let release = all.iter().find(|of| of.action == Action::PyarrowRelease).expect("a remedy");
        assert_eq!((release.bytes, release.now), (350 << 20, true));
        assert!(!all.iter().any(|of| of.command.contains("neap profile")));
        let text = &all.last().expect("a remark").text;
        assert!(
            text.contains("libarrow.so.2600") && text.contains("700.0 MiB") && text.ends_with("show 4.0 MiB."),
            "{text}"
        );
        assert!(of(1 << 20, 4 << 20).iter().any(|of| of.command == "neap profile --heap -- python3"));
    }

    /// Catches a variable that a prefixed copy of jemalloc does not read, and copies that are not separated.
    #[test]
    fn each_copy_has_its_variable() {
        let part = |kept: u64, settings: Option<&str>| HeapPart {
            figures: HeapFigures { allocator: "jemalloc 5.3".into(), kept_bytes: kept, ..HeapFigures::default() },
            settings: settings.map(str::to_owned),
            ..HeapPart::default()
        };
        let heaps = vec![part(1, None), part(2, Some("_RJEM_MALLOC_CONF")), part(4, Some("_RJEM_MALLOC_CONF"))];
        let mut all = Vec::new();
        others(&Seen { heaps, ..Seen::default() }, &mut all);
        let found: Vec<(&str, u64)> =
            all.iter().map(|of| (of.command.split('=').next().unwrap_or(""), of.bytes)).collect();
        assert_eq!(found, [("MALLOC_CONF", 1), ("_RJEM_MALLOC_CONF", 6)]);
    }
}
