//! Why the process is so large: the cause that explains most, in one sentence with its numbers.
//!
//! **The rule.** Memory that could be given back, or is wasted, comes first: memory shared since a fork, or copied since
//! then, if that is half of all, unless the process has since taken memory that may be a leak ([`is_of_a_fork`]);
//! otherwise the largest of kept memory, fragmentation, zeros in huge pages, stacks that were touched once
//! and locked memory without contents, if it is at least [`LEAST`] percent of Rss. Otherwise the verdict names what
//! holds most.

use crate::facts::Facts;
use crate::model::{Cause, Kind, Report};
use crate::owner::Class;
use crate::seen::Seen;
use crate::units::{bytes, fit, percent};
use crate::{owner, remedy, runtime};

/// Waste is the verdict if it is at least this many percent of Rss,
const LEAST: u64 = 15;
/// and at least this many bytes.
const LEAST_BYTES: u64 = 1 << 20;

/// Sets the cause, the verdict and the remedies.
pub fn judge(report: &mut Report, seen: &Seen, zeros: &[(Class, u64)]) {
    let facts = Facts::of(report, seen, zeros);
    report.cause = cause(report, &facts, seen);
    report.remedies = remedy::all(report, seen, &facts);
    report.verdict = sentence(report, &facts, seen);
    beside(report);
}

/// What is not in Rss is the verdict from this part of Rss on: one half; otherwise a word in it from [`LEAST`] percent on.
const BESIDE: u64 = 50;
/// And at least this many bytes.
const BESIDE_BYTES: u64 = 4 << 20;

/// Says what the process causes beside Rss, if that is much.
fn beside(report: &mut Report) {
    let Some(most) = report.apart.iter().max_by_key(|apart| apart.bytes) else { return };
    let share = percent(most.bytes, report.rss_bytes);
    if most.bytes < BESIDE_BYTES || share < LEAST {
        return;
    }
    let (size, rest) = (bytes(most.bytes), report.verdict.trim_end_matches('.'));
    if share < BESIDE {
        report.verdict = format!("{rest}; Rss leaves out {size}: {}.", most.text);
        return;
    }
    let (cause, more) = match most.kind {
        "page-tables" => (
            Cause::PageTables,
            ", one OS page of them for each 2 MiB of addresses of which something was touched or read",
        ),
        "swap" => (Cause::Swap, ""),
        "hugetlb" => (Cause::Hugetlb, ""),
        "open-files" => (Cause::OpenFiles, ""),
        _ => (Cause::Kernel, ""),
    };
    report.verdict = format!("{size} that Rss leaves out are {}{more}; {rest}.", most.text);
    report.cause = cause;
}

/// The cause that explains most.
fn cause(report: &Report, facts: &Facts, seen: &Seen) -> Cause {
    if is_of_a_fork(facts, seen) {
        return Cause::CopyOnWrite;
    }
    let waste = [
        (facts.kept, kept_cause(report, facts)),
        (facts.fragmentation, Cause::Fragmentation),
        (facts.zeros, Cause::HugeZero),
        (facts.below, Cause::Stacks),
        (facts.locked_zeros, Cause::Locked),
        (facts.lazy, Cause::LazyFree),
    ];
    let most = waste.into_iter().max_by_key(|(bytes, _)| *bytes);
    match most.filter(|(bytes, _)| percent(*bytes, facts.rss) >= LEAST && *bytes >= LEAST_BYTES) {
        Some((_, cause)) => cause,
        None => match holder(report, seen).1 {
            Cause::Live if native(seen).is_some() => Cause::OffHeap,
            cause => cause,
        },
    }
}

/// Whether the verdict is that its memory comes from a fork. What is new since then is the process's own: if that is
/// [`LEAST`] percent of Rss, the verdict is about it.
fn is_of_a_fork(facts: &Facts, seen: &Seen) -> bool {
    let copied = if seen.fork.is_some() { facts.copied } else { 0 };
    let is_most = (facts.forked + copied).saturating_mul(2) >= facts.rss && facts.forked + copied >= LEAST_BYTES;
    is_most && (percent(facts.new, facts.rss) < LEAST || facts.new < facts.copied)
}

/// The runtime that has a heap besides malloc.
fn native(seen: &Seen) -> Option<(&'static str, runtime::Native)> {
    runtime::of(seen).into_iter().find_map(|of| Some((of.name, of.native?)))
}

/// The cause that says where kept memory is.
fn kept_cause(report: &Report, facts: &Facts) -> Cause {
    let half = |bytes: u64| bytes.saturating_mul(2) >= facts.kept && bytes > 0;
    let hole =
        report.heaps.iter().map(|figures| figures.largest_free_bytes.min(figures.pinned_bytes)).max().unwrap_or(0);
    if half(facts.cached) {
        Cause::ThreadCaches
    } else if half(facts.in_arenas) && facts.arenas > 2 {
        Cause::ArenaRetention
    } else if half(hole) {
        Cause::PinnedTop
    } else {
        Cause::Retention
    }
}

/// Words for data of files.
const DATA: &str = "data of programs and libraries, and other OS pages of files that it has changed for itself";

/// What takes most: bytes, cause, words for it, and the kind whose largest account is named.
fn holder(report: &Report, seen: &Seen) -> (u64, Cause, &'static str, Option<Kind>) {
    let of = |kind: Kind| report.of(kind);
    let data = report.accounts.iter().filter(|of| of.kind == Kind::Anonymous && owner::is_data(&of.owner));
    let data: u64 = data.map(|of| of.bytes).sum();
    let private = match seen.other_malloc {
        Some(_) => "memory of an allocator that neap does not know, or mappings of the program",
        None => "private memory outside of all heaps that neap knows",
    };
    let all = [
        (of(Kind::HeapLive), Cause::Live, "blocks of malloc that the program holds", None),
        (of(Kind::Heap), Cause::Undivided, "memory of malloc; how much of it is free is not known", Some(Kind::Heap)),
        (of(Kind::RuntimeHeap), Cause::RuntimeHeap, "memory of a runtime with its own heap", Some(Kind::RuntimeHeap)),
        (
            of(Kind::Jit),
            Cause::Anonymous,
            "memory that may be executed: generated code, or data beside it",
            Some(Kind::Jit),
        ),
        (of(Kind::Guard), Cause::Anonymous, "memory that was touched and has no access now (PROT_NONE)", None),
        (
            of(Kind::Other),
            Cause::Anonymous,
            "mappings of other kinds, such as memory that the program takes by brk",
            Some(Kind::Other),
        ),
        (of(Kind::File), Cause::Files, "programs, libraries and other files", Some(Kind::File)),
        (of(Kind::Shared), Cause::Shared, "shared memory", Some(Kind::Shared)),
        (of(Kind::Anonymous) - data, Cause::Anonymous, private, Some(Kind::Anonymous)),
        (data, Cause::Anonymous, DATA, Some(Kind::Anonymous)),
        (of(Kind::Stack) + of(Kind::ThreadLocal), Cause::Stacks, "stacks of threads", None),
    ];
    all.into_iter().max_by_key(|of| of.0).filter(|of| of.0 > 0).unwrap_or((
        0,
        Cause::Nothing,
        "nothing that stands out",
        None,
    ))
}

/// The sentence.
fn sentence(report: &Report, facts: &Facts, seen: &Seen) -> String {
    let rss = bytes(facts.rss);
    let keeper = &facts.keeper;
    let kept = bytes(facts.kept);
    let first = match report.cause {
        Cause::ArenaRetention => {
            format!("{kept} of {rss} are free blocks that {keeper} keeps in {} arenas", facts.arenas)
        }
        Cause::PinnedTop => {
            let pin = report.heaps.iter().max_by_key(|figures| figures.pinned_bytes.min(figures.largest_free_bytes));
            let pin = pin.map_or(0, |figures| figures.pin_bytes);
            format!(
                "{kept} of {rss} are free blocks that {keeper} keeps below one live block of {} at the end of its heap",
                bytes(pin)
            )
        }
        Cause::ThreadCaches => {
            format!(
                "{} of {rss} are free blocks in the caches of {} threads: {keeper}",
                bytes(facts.cached),
                report.threads
            )
        }
        Cause::Retention => format!("{kept} of {rss} are free blocks that {keeper} keeps"),
        Cause::Fragmentation => format!(
            "{} of {rss} are free, in pieces on OS pages that live blocks keep (fragmentation)",
            bytes(facts.fragmentation)
        ),
        Cause::HugeZero => {
            let zeros = bytes(facts.zeros);
            format!("{zeros} of {rss} are zeros in transparent huge pages: never used, or written by the program")
        }
        Cause::Stacks => stacks(report, facts, seen),
        Cause::LazyFree => format!(
            "{} of {rss} were given back lazily (MADV_FREE): Rss counts them until the kernel takes them, when memory \
             is short",
            bytes(facts.lazy)
        ),
        Cause::Locked => format!(
            "{} of {rss} are locked in memory (mlock), {} of it zeros: never used, or written by the program",
            bytes(report.locked_bytes),
            bytes(facts.locked_zeros)
        ),
        Cause::CopyOnWrite => format!(
            "{} of {rss} are shared with its parent or children since a fork: {} are its own, {} of that copied when \
             written{}",
            bytes(facts.forked),
            bytes(report.private_bytes),
            bytes(facts.copied),
            if seen.fork.is_some() { "" } else { ", or new" }
        ),
        Cause::OffHeap => off_heap(report, facts, seen),
        _ => holding(report, facts, seen),
    };
    format!("{first}{}{}{}.", since_fork(report, facts), remedies(report), again(report))
}

/// The sentence for stacks.
fn stacks(report: &Report, facts: &Facts, seen: &Seen) -> String {
    let threads = if report.threads == 1 { "1 thread".to_owned() } else { format!("{} threads", report.threads) };
    let first = format!(
        "{} of {} are stacks of {threads}",
        bytes(report.of(Kind::Stack) + report.of(Kind::ThreadLocal)),
        bytes(facts.rss)
    );
    let unknown: u64 = seen.stacks.iter().map(|of| of.unknown).sum();
    if facts.below.saturating_mul(20) >= report.of(Kind::Stack).saturating_sub(unknown) && facts.below > unknown {
        format!("{first}, {} of it touched once and not in use", bytes(facts.below))
    } else if unknown > 0 {
        format!("{first}, {} of it of threads that run: how much of that is in use is not known", bytes(unknown))
    } else {
        first
    }
}

/// Says how much of the memory is older than a fork, if the verdict is about something else.
fn since_fork(report: &Report, facts: &Facts) -> String {
    match report.cause != Cause::CopyOnWrite && percent(facts.forked, facts.rss) >= LEAST {
        true => format!(
            "; {} are its own, {} are shared with its parent or children since a fork",
            bytes(report.private_bytes),
            bytes(facts.forked)
        ),
        false => String::new(),
    }
}

/// Says that Rss counts some memory more than once.
fn again(report: &Report) -> String {
    match percent(report.repeated_bytes, report.rss_bytes) >= 5 {
        true => format!(
            "; {} are counted more than once, because they are mapped at several addresses",
            bytes(report.repeated_bytes)
        ),
        false => String::new(),
    }
}

/// The sentence for blocks of malloc besides the heap of a runtime.
fn off_heap(report: &Report, facts: &Facts, seen: &Seen) -> String {
    let Some((name, native)) = native(seen) else { return holding(report, facts, seen) };
    format!(
        "{} of {} are native memory of {}: blocks of malloc that it holds outside its heap of {} ({}){}",
        bytes(holder(report, seen).0),
        bytes(facts.rss),
        if name == "JVM" { "the JVM" } else { name },
        bytes(report.of(Kind::RuntimeHeap)),
        native.holds,
        match native.is_tracked(seen) {
            true => {
                let counts = if name == "JVM" { "divides what the JVM itself counts" } else { "counts most of it" };
                format!("; `{}` {counts}", native.command.replace("PID", &seen.number()))
            }
            false => String::new(),
        }
    )
}

/// The sentence if nothing is wasted.
fn holding(report: &Report, facts: &Facts, seen: &Seen) -> String {
    let (held, cause, words, kind) = holder(report, seen);
    let first = format!("{} of {} are {words}", bytes(held), bytes(facts.rss));
    match cause {
        Cause::Live => format!(
            "{first}{}: what it needs, or a leak, which `neap why --watch {}` tells apart",
            runtime::of(seen).first().map_or(String::new(), |of| match of.is_in_malloc() {
                true => format!(", the heap of {}'s collector among them", of.name),
                false => format!(", beside what {} has", of.name),
            }),
            seen.number()
        ),
        Cause::RuntimeHeap => {
            let owner = report.accounts.iter().find(|account| account.kind == Kind::RuntimeHeap);
            let name = owner.map_or("", |account| account.owner.as_str());
            // A reader that has looked into it has left a note.
            let note = owner.and_then(|account| account.note.as_deref());
            let is_read = note.is_some_and(|note| !note.starts_with("more: "));
            let free = if is_read { "" } else { "; how much of it is free is not known from outside" };
            match name.split_once(", or ") {
                Some((name, _)) => {
                    format!("{first} ({name}), by its place; the program's own mappings may be part of it{free}")
                }
                None => format!("{first} ({name}){free}"),
            }
        }
        _ => match report
            .accounts
            .iter()
            .find(|of| Some(of.kind) == kind && owner::is_data(&of.owner) == (words == DATA))
        {
            Some(account) => format!("{first}, most of it {} ({})", fit(&account.owner, 48), bytes(account.bytes)),
            None => first,
        },
    }
}

/// The two best remedies in the sentence.
fn remedies(report: &Report) -> String {
    let of = |remedy: &crate::Remedy| {
        let verb = if remedy.now { "would give back" } else { "would save" };
        let most = if remedy.least_bytes < remedy.bytes { "up to " } else { "" };
        format!("`{}` {verb} {most}{}", remedy.short(), bytes(remedy.bytes))
    };
    let worth = |remedy: &&crate::Remedy| percent(remedy.bytes, report.rss_bytes) >= 5 && !remedy.command.is_empty();
    let best: Vec<String> = report.remedies.iter().filter(worth).take(2).map(of).collect();
    if best.is_empty() { String::new() } else { format!("; {}", best.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::mapping;

    fn verdict(mappings: Vec<crate::seen::Mapping>) -> (Cause, String) {
        let rss = mappings.iter().map(|mapping| mapping.figures.rss).sum();
        let mut seen = Seen { mappings, pid: 7, ..Seen::default() };
        (seen.total.rss, seen.total.anonymous) = (rss, rss);
        let report = crate::report(&seen);
        (report.cause, report.verdict)
    }

    /// Catches memory of an allocator that is not known and that is called the program's own, and a claim on memory of
    /// which only the place is known.
    #[test]
    fn memory_of_unknown_allocators() {
        let of = |other_malloc: Option<String>| {
            let mappings = vec![mapping(0x10_0000, 64 << 20, "")];
            let mut seen = Seen { mappings, pid: 7, other_malloc, ..Seen::default() };
            (seen.total.rss, seen.total.anonymous) = (64 << 20, 64 << 20);
            crate::report(&seen)
        };
        let named = of(Some("malloc of librpmalloc.so.1".into()));
        let owner = &named.accounts[0].owner;
        assert_eq!(owner, "malloc of librpmalloc.so.1, or the program's");
        assert!(named.verdict.contains("an allocator that neap does not know"), "{}", named.verdict);
        assert!(named.verdict.contains("malloc of librpmalloc.so.1"), "{}", named.verdict);
        let unnamed = of(None).verdict;
        assert!(unnamed.contains("private memory outside of all heaps that neap knows"), "{unnamed}");
    }

    /// Catches memory that Rss leaves out and that the verdict does not have, or that hides what is in Rss.
    #[test]
    fn what_rss_leaves_out_is_in_the_verdict() {
        let of = |kind: &'static str, size: u64| {
            let mut seen = Seen { mappings: vec![mapping(0x10_0000, 40 << 20, "/lib/x.so")], ..Seen::default() };
            (seen.total.rss, seen.mappings[0].figures.anonymous) = (40 << 20, 0);
            match kind {
                "page-tables" => seen.page_tables = size,
                "swap" => seen.total.swap = size,
                "hugetlb" => seen.mappings[0].figures.hugetlb = size,
                _ => seen.beside = vec![crate::model::Apart { kind, bytes: size, text: "WORDS".into() }],
            }
            let report = crate::report(&seen);
            assert!(report.verdict.contains("/lib/x.so (40.0 MiB)"), "{}", report.verdict);
            (report.cause, report.verdict)
        };
        let kinds = [
            ("page-tables", Cause::PageTables, "1.0 GiB that Rss leaves out are page tables, one OS page"),
            ("swap", Cause::Swap, "1.0 GiB that Rss leaves out are swapped out; 40.0 MiB"),
            ("hugetlb", Cause::Hugetlb, "1.0 GiB that Rss leaves out are pages of the kernel's pools; 40.0 MiB"),
            ("open-files", Cause::OpenFiles, "1.0 GiB that Rss leaves out are WORDS; 40.0 MiB"),
            ("pipes", Cause::Kernel, "1.0 GiB that Rss leaves out are WORDS; 40.0 MiB"),
        ];
        for (kind, cause, words) in kinds {
            let (found, verdict) = of(kind, 1 << 30);
            assert!(found == cause && verdict.starts_with(words), "{verdict}");
            let (found, verdict) = of(kind, 8 << 20);
            assert!(found == Cause::Files && verdict.contains("; Rss leaves out 8.0 MiB: "), "{verdict}");
            assert!(!of(kind, 3 << 20).1.contains("leaves out"));
        }
    }

    /// Catches heaps that could not be read and are called live, generated code that is called a collector's heap, and
    /// a largest account that the sentence does not name.
    #[test]
    fn the_largest_account_is_named_for_what_it_is() {
        let (cause, text) = verdict(vec![mapping(0x10_0000, 64 << 20, "[heap]")]);
        assert!(cause == Cause::Undivided && text.contains("how much of it is free is not known"), "{text}");
        let mut code = mapping(0x10_0000, 64 << 20, "");
        code.execute = true;
        let (cause, text) = verdict(vec![code]);
        assert!(cause == Cause::Anonymous && text.contains("may be executed"), "{text}");
        let mut closed = mapping(0x10_0000, 64 << 20, "");
        (closed.read, closed.write) = (false, false);
        let (_, text) = verdict(vec![closed, mapping(0x1000_0000, 1 << 20, "/bin/x")]);
        assert!(text.contains("64.0 MiB") && text.contains("PROT_NONE"), "{text}");
    }
}
