//! What would give memory back, how, and how much by which rule.

use crate::facts::{Facts, is_glibc};
use crate::model::{Cause, Kind, Remedy, Report};
use crate::runtime;
use crate::seen::Seen;
use crate::shell;
use crate::units::{bytes, columns};
use std::collections::BTreeMap;

/// Remedies of less than this many bytes are left out.
const LEAST: u64 = 64 << 10;

impl Remedy {
    /// The command in a few words.
    pub fn short(&self) -> &str {
        match self.command.as_str() {
            trim if trim.contains("malloc_trim") => "malloc_trim(0)",
            long if long.starts_with("neap run -- ") && columns(long) > 48 => "neap run",
            command => command,
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
    pages(report, facts, &mut all);
    all.retain(|remedy| remedy.bytes >= LEAST);
    if report.cause == Cause::CopyOnWrite {
        all.push(Remedy {
            text: "End this process: what it shares since the fork stays with the others.".into(),
            command: format!("kill {}", seen.number()),
            bytes: report.private_bytes,
            rule: "its private memory".into(),
            now: true,
        });
    }
    all.sort_by_key(|remedy| std::cmp::Reverse(remedy.bytes));
    questions(report, seen, &mut all);
    all
}

/// glibc's own controls.
fn glibc(report: &Report, seen: &Seen, facts: &Facts, all: &mut Vec<Remedy>) {
    if facts.trimmable > 0 {
        all.push(Remedy {
            // gdb 13 cannot write the registers of processors with AMX: the process crashes.
            text: format!(
                "Make glibc give free OS pages back once: {} (gdb 14 or newer; older versions can crash the process).",
                bytes(facts.trimmable)
            ),
            command: format!("gdb -p {} -batch -ex 'call (int)malloc_trim(0)'", seen.number()),
            bytes: facts.trimmable,
            rule: "whole resident OS pages in free blocks of all arenas, and the end of the main one".into(),
            now: true,
        });
    }
    let mut kept: Vec<u64> = seen
        .heaps
        .iter()
        .filter(|part| !part.mapped && is_glibc(&part.figures.allocator))
        .map(|p| p.figures.kept_bytes.saturating_sub(p.figures.cached_bytes))
        .collect();
    kept.sort_unstable_by_key(|bytes| std::cmp::Reverse(*bytes));
    let beyond: u64 = kept.iter().skip(2).sum();
    if kept.len() > 2 {
        all.push(Remedy {
            text: format!(
                "Start it with two arenas in place of {}: threads reuse each other's free blocks.",
                kept.len()
            ),
            command: "MALLOC_ARENA_MAX=2".into(),
            bytes: beyond,
            rule: "what all arenas but the two largest keep, without the caches of threads".into(),
            now: false,
        });
    }
    let cached: u64 = report.heaps.iter().filter(|f| is_glibc(&f.allocator)).map(|f| f.cached_bytes).sum();
    if cached > 0 {
        all.push(Remedy {
            text: "Start it without caches of threads; then each call takes the lock of an arena.".into(),
            command: "GLIBC_TUNABLES=glibc.malloc.tcache_count=0".into(),
            bytes: cached,
            rule: "resident blocks in the caches of threads and in quick lists".into(),
            now: false,
        });
    }
    let kept: u64 = report.heaps.iter().filter(|f| is_glibc(&f.allocator)).map(|f| f.kept_bytes).sum();
    if kept > 0 {
        all.push(Remedy {
            text: "Start it on neap, which gives free OS pages back by itself, from the middle of heaps too.".into(),
            command: format!("neap run -- {}", program(seen)),
            bytes: kept,
            rule: "free memory that glibc keeps in whole OS pages and in caches of threads".into(),
            now: false,
        });
    }
}

/// The program, as one word of a command; `CMD` if it is not known: servers overwrite their arguments with a status,
/// such as `nginx: worker process`. The file may be another program under another name.
fn program(seen: &Seen) -> String {
    let first = seen.command.first().filter(|name| !name.contains(' ') || **name == seen.exe);
    first.and_then(|name| shell::word(name)).unwrap_or_else(|| "CMD".into())
}

/// A setting that makes an allocator give memory back: allocator, usual variable, value, effect.
type Control = (&'static str, &'static str, &'static str, &'static str);

const CONTROLS: &[Control] = &[
    ("neap", "neap run --set purge", "eager", "Make neap give free memory back at once, not after half a second."),
    (
        "jemalloc",
        "MALLOC_CONF",
        "background_thread:true,dirty_decay_ms:0,muzzy_decay_ms:0",
        "Make jemalloc give free memory back at once.",
    ),
    ("mimalloc", "MIMALLOC_PURGE_DELAY", "0", "Make mimalloc give free memory back at once."),
    ("tcmalloc", "TCMALLOC_RELEASE_RATE", "10", "Make tcmalloc give free memory back sooner."),
];

/// Settings of other allocators. A copy of an allocator may have another variable.
fn others(seen: &Seen, all: &mut Vec<Remedy>) {
    for (name, usual, value, text) in CONTROLS {
        let mut kept: BTreeMap<&str, u64> = BTreeMap::new();
        for part in seen.heaps.iter().filter(|part| part.figures.allocator.starts_with(name)) {
            // Caches of threads stay.
            let bytes = part.figures.kept_bytes.saturating_sub(part.figures.cached_bytes);
            *kept.entry(part.settings.as_deref().unwrap_or(usual)).or_default() += bytes;
        }
        all.extend(kept.into_iter().map(|(variable, bytes)| Remedy {
            text: (*text).into(),
            command: format!("{variable}={value}"),
            bytes,
            rule: "free memory that it keeps".into(),
            now: false,
        }));
    }
}

/// Huge pages, stacks, locked memory.
fn pages(report: &Report, facts: &Facts, all: &mut Vec<Remedy>) {
    all.push(Remedy {
        text: "Run it without huge pages: with ordinary OS pages only what it touches is resident.".into(),
        command: "echo never > /sys/kernel/mm/transparent_hugepage/enabled".into(),
        bytes: facts.zeros,
        rule: "OS pages of its huge pages that hold only zeros".into(),
        now: false,
    });
    all.push(Remedy {
        text: format!(
            "End idle threads, or let each give its unused stack back (madvise MADV_DONTNEED below the stack pointer); \
             threads: {}.",
            report.threads
        ),
        command: String::new(),
        bytes: facts.below,
        rule: "resident OS pages of stacks below the stack pointer".into(),
        now: false,
    });
    all.push(Remedy {
        text: "Lock memory when it is first used: mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT), \
               mlock2(MLOCK_ONFAULT)."
            .into(),
        command: String::new(),
        bytes: facts.locked_zeros,
        rule: "OS pages of locked memory that hold only zeros".into(),
        now: false,
    });
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
        all.push(Remedy {
            text: format!("{}: {}.", runtime.name, runtime.advice),
            command,
            bytes: 0,
            rule: "not known from outside; the runtime's own command shows what is free".into(),
            now: true,
        });
    }
    if report.cause == Cause::OffHeap {
        for native in runtime::of(seen).iter().filter_map(|of| of.native) {
            let rule = "not known from outside; the runtime's own command divides it";
            let all_of =
                [(native.command, "See what holds the native memory", true), (native.bound.0, native.bound.1, false)];
            all.extend(all_of.map(|(command, text, now)| Remedy {
                text: format!("{text}."),
                command: command.replace("PID", &seen.number()),
                bytes: 0,
                rule: rule.into(),
                now,
            }));
        }
    }
    if matches!(report.cause, Cause::Live | Cause::Undivided | Cause::OffHeap) {
        let on_neap = report.allocators.iter().any(|name| name.starts_with("neap"));
        let command = match on_neap {
            true => format!("neap profile --heap --pid {}", seen.number()),
            false => format!("neap profile --heap -- {}", program(seen)),
        };
        all.push(Remedy {
            text: "See which code holds the live blocks.".into(),
            command,
            bytes: 0,
            rule: "live memory goes back when the program frees it".into(),
            now: on_neap,
        });
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
        assert_eq!(of("./server", "/srv/server"), "./server");
        assert_eq!(of("/srv/a b", "/srv/a b"), "'/srv/a b'");
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
