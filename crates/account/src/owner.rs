//! Finds the owner of a mapping from the kernel's list of mappings: the mapping itself and its neighbours.

use crate::model::Kind;
use crate::runtime::{self, Runtime};
use crate::seen::{Mapping, Seen, is_in};
use std::collections::HashMap;

const MIB: u64 = 1 << 20;
/// The size and alignment of glibc's arenas.
const ARENA: u64 = 64 * MIB;

/// The owner of memory of arenas beside what was found in them.
const ARENAS: &str = "glibc, arenas of threads";

/// Use and owner of a mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class {
    /// What it is used for.
    pub kind: Kind,
    /// Its owner.
    pub owner: String,
}

fn class(kind: Kind, owner: impl Into<String>) -> Class {
    Class { kind, owner: owner.into() }
}

/// Each mapping's class, in their order.
pub fn classes(seen: &Seen) -> Vec<Class> {
    let runtimes = runtime::of(seen);
    let special = special(seen);
    let mut all: Vec<Class> = Vec::with_capacity(seen.mappings.len());
    for (at, mapping) in seen.mappings.iter().enumerate() {
        let before = at.checked_sub(1).map(|before| (&seen.mappings[before], &all[before]));
        let next = seen.mappings.get(at + 1);
        let named = match special.get(&mapping.range.start) {
            Some(known) => known.clone(),
            None => of_name(mapping, seen).unwrap_or_else(|| nameless(mapping, before, next, &runtimes, seen)),
        };
        all.push(named);
    }
    all
}

/// Mappings of which more is known than their names and neighbours, by their starts: stacks and data of files.
fn special(seen: &Seen) -> HashMap<u64, Class> {
    let mut found = HashMap::new();
    let at = |address: u64| seen.mappings.partition_point(|mapping| mapping.range.end <= address);
    for of in &seen.stacks {
        if seen.mappings.get(at(of.range.start)).is_some_and(|mapping| mapping.range == of.range) {
            found.entry(of.range.start).or_insert_with(|| class(Kind::Stack, stack_owner(seen, of.tid, of.is_sure)));
        }
    }
    for of in seen.bss.iter().flatten() {
        let start = of.piece.range.start;
        if seen.mappings.get(at(start)).is_some_and(|mapping| mapping.range == of.piece.range) {
            found.entry(start).or_insert_with(|| class(Kind::Anonymous, bss_owner(&of.file)));
        }
    }
    // A stack pointer in memory of which nothing says that it is a stack: the rest of it may be anything.
    let mut known: Vec<_> = seen.stacks.iter().map(|of| of.range.clone()).collect();
    known.sort_unstable_by_key(|range| range.start);
    let heaps = seen.heap_ranges();
    for thread in &seen.threads {
        let Some(pointer) = thread.stack_pointer else { continue };
        let Some(mapping) = seen.mappings.get(at(pointer)).filter(|of| of.range.contains(&pointer)) else { continue };
        // Stacks of goroutines are in Go's heap, and some stacks are blocks of malloc.
        if mapping.is_nameless()
            && !runtime::is_go_heap(seen, mapping)
            && !is_in(&heaps, pointer)
            && !is_in(&known, pointer)
        {
            let owner = format!("private memory with the stack of {}", stack_owner(seen, thread.tid, true));
            found.entry(mapping.range.start).or_insert_with(|| class(Kind::Anonymous, owner));
        }
    }
    found
}

/// The owner of a thread's stack. Threads with one name are one account.
pub fn stack_owner(seen: &Seen, tid: u32, is_sure: bool) -> String {
    let owner = match seen.threads.iter().find(|thread| thread.tid == tid) {
        Some(_) if tid == seen.pid => "thread 1".to_owned(),
        Some(thread) => format!("threads named {}", pool_name(&thread.name)),
        None => "threads that have ended".to_owned(),
    };
    if is_sure { owner } else { format!("{owner}, or private memory") }
}

/// The owner of the data of a file beyond the file's contents.
pub fn bss_owner(file: &str) -> String {
    format!("{file} (.bss)")
}

/// The owner of OS pages of a file or of shared memory that the process has changed for itself.
pub fn changed_owner(owner: &str) -> String {
    format!("{owner} (changed)")
}

/// Whether memory without a name is data of a file, or pages of one that were changed.
pub fn is_data(owner: &str) -> bool {
    owner.ends_with(" (.bss)") || owner.ends_with(" (changed)")
}

/// Whether an owner is known by its place only.
pub fn is_unsure(owner: &str) -> bool {
    owner.contains(", or ")
}

/// The name of a thread without its number in a pool: `worker-` for `worker-12`.
fn pool_name(name: &str) -> &str {
    let base = name.trim_end_matches(|c: char| c.is_ascii_digit());
    if base.is_empty() { name } else { base }
}

/// The class of a mapping with a name or a file.
fn of_name(mapping: &Mapping, seen: &Seen) -> Option<Class> {
    let name = mapping.name.as_str();
    if let Some(given) = name.strip_prefix("[anon:").or_else(|| name.strip_prefix("[anon_shmem:")) {
        return Some(of_given_name(given.trim_end_matches(']').trim(), mapping));
    }
    Some(match name {
        // What no heap that was walked has of it.
        "[heap]" if !seen.heaps.is_empty() => class(Kind::Anonymous, "[heap] (brk), in no heap that neap knows"),
        "[heap]" => class(Kind::Heap, "[heap]: of malloc, or taken by brk"),
        "[stack]" => class(Kind::Stack, "thread 1"),
        _ if name.starts_with("[vdso") || name.starts_with("[vvar") || name.starts_with("[vsyscall") => {
            class(Kind::Vdso, "kernel")
        }
        _ if name.starts_with("/memfd:") => memory_file(name, mapping, seen),
        // memfd_secret(2) has an inode, but its file system is not mounted.
        _ if name.starts_with("/secretmem") && mapping.shared => class(Kind::Shared, "secretmem"),
        _ if name.starts_with("/SYSV") => {
            class(Kind::Shared, format!("System V {}", name[1..].trim_end_matches(" (deleted)")))
        }
        _ if name.starts_with("/dev/zero") && mapping.shared => class(Kind::Shared, "shared anonymous mappings"),
        _ if name.starts_with("/dev/zero") => class(Kind::Anonymous, "private mappings of /dev/zero"),
        _ if name.starts_with("/dev/shm/") => class(Kind::Shared, name),
        _ if name.starts_with("/dev/") || name.starts_with("anon_inode:") => class(Kind::Shared, name),
        _ if name.starts_with('/') && seen.memory_devices.contains(&mapping.device) => class(Kind::Shared, name),
        _ if name.starts_with('/') => class(Kind::File, name),
        "" if mapping.inode != 0 || mapping.shared => class(Kind::Shared, "shared anonymous mappings"),
        "" => return None,
        // A name from the kernel or a driver.
        _ => class(Kind::Other, name),
    })
}

/// Names that allocators give to their memory: prefix and allocator. Google's tcmalloc names its regions; that of
/// gperftools does not.
const GIVEN: &[(&str, &str)] = &[
    ("tcmalloc", "tcmalloc"),
    ("jemalloc", "jemalloc"),
    ("scudo", "scudo"),
    ("partition_alloc", "PartitionAlloc"),
    ("mimalloc", "mimalloc"),
];

/// Allocators that are known from names of mappings or libraries, and of which no heap was walked; and whether their
/// memory is named (otherwise it counts as private memory without a name). Empty if the memory of the process was not
/// read.
pub fn not_walked(seen: &Seen) -> Vec<(&'static str, bool)> {
    if seen.heaps.is_empty() && seen.stacks.is_empty() {
        return Vec::new();
    }
    let is_walked = |name: &str| seen.allocators.iter().any(|walked| walked.starts_with(name));
    let given = |mapping: &Mapping| mapping.name.strip_prefix("[anon:").map(|name| name.trim_start().to_owned());
    let mut all: Vec<(&'static str, bool)> = Vec::new();
    for (start, name) in GIVEN.iter().filter(|(_, name)| !is_walked(name)) {
        let is_named = seen.mappings.iter().any(|of| given(of).is_some_and(|name| name.starts_with(start)));
        let library = format!("/lib{start}");
        if is_named || seen.mappings.iter().any(|mapping| mapping.name.contains(&library)) {
            all.push((name, is_named));
        }
    }
    all
}

/// The class of a name that the program gave (prctl PR_SET_VMA).
fn of_given_name(name: &str, mapping: &Mapping) -> Class {
    let heap = ["glibc: malloc arena", "glibc: malloc", "glibc: loader malloc"];
    if let Some(heap) = heap.iter().find(|heap| name.starts_with(**heap)) {
        return class(Kind::Heap, *heap);
    }
    if name.starts_with("tcmalloc_region_METADATA") {
        return class(Kind::HeapMetadata, "tcmalloc");
    }
    if let Some((_, allocator)) = GIVEN.iter().find(|(start, _)| name.starts_with(start)) {
        return class(Kind::Heap, *allocator);
    }
    match name {
        _ if name.starts_with("glibc: pthread") => class(Kind::Stack, "threads"),
        _ if name.starts_with("Go:") => class(Kind::RuntimeHeap, name),
        _ if name.starts_with("v8") || name.starts_with("V8") => class(Kind::RuntimeHeap, "V8"),
        _ if mapping.execute => class(Kind::Jit, name),
        _ => class(Kind::Anonymous, name),
    }
}

/// The class of a memory file. A program or library in one is mapped privately, as from any file; code that is made at
/// run time is shared, because it is written at another address.
fn memory_file(name: &str, mapping: &Mapping, seen: &Seen) -> Class {
    let is_same = |of: &&Mapping| of.inode == mapping.inode && of.device == mapping.device;
    let is_loaded = seen.mappings.iter().filter(is_same).any(|of| of.execute && !of.shared);
    let name = name.trim_end_matches(" (deleted)").trim_start_matches('/');
    match name {
        _ if is_loaded => class(Kind::File, name),
        // ZGC maps its heap several times.
        "memfd:java_heap" => class(Kind::RuntimeHeap, "JVM"),
        _ if mapping.execute || name.starts_with("memfd:doublemapper") => class(Kind::Jit, name),
        _ => class(Kind::Shared, name),
    }
}

/// The class of private memory without a name.
fn nameless(
    mapping: &Mapping,
    before: Option<(&Mapping, &Class)>,
    next: Option<&Mapping>,
    runtimes: &[&Runtime],
    seen: &Seen,
) -> Class {
    if mapping.is_closed() {
        return class(Kind::Guard, "areas without access");
    }
    if mapping.execute {
        if runtimes.iter().any(|of| of.is_executable() && of.owns(mapping, next)) {
            return class(Kind::RuntimeHeap, "SBCL");
        }
        let owner = runtimes.first().map_or("the program's".to_owned(), |of| format!("{}, or a library", of.name));
        return class(Kind::Jit, owner);
    }
    if is_arena(mapping, next, seen) {
        let is_walked = seen.has_walked("glibc");
        return class(Kind::Heap, if is_walked { ARENAS } else { "arenas of glibc, or private memory" });
    }
    if let Some((before, of)) = before.filter(|(before, _)| before.range.end == mapping.range.start) {
        // A mapping right after the data of a program or library, without a file. The sizes in the file's program
        // headers say how much of it is .bss, if they could be read.
        let is_data = before.write && !before.shared && of.kind == Kind::File && !of.owner.contains("(.bss)");
        if seen.bss.is_none() && is_data {
            return class(Kind::Anonymous, format!("{} (.bss), or private memory", of.owner));
        }
        if is_stack(before, mapping, seen) {
            return class(Kind::Stack, "threads, or private memory");
        }
    }
    match runtimes.iter().find(|runtime| runtime.owns(mapping, next)) {
        Some(runtime) => class(Kind::RuntimeHeap, runtime.owner()),
        None => class(Kind::Anonymous, private(seen)),
    }
}

/// The owner of private memory of which only that is known.
fn private(seen: &Seen) -> String {
    match &seen.other_malloc {
        Some(other) => format!("{other}, or the program's"),
        None => "private memory without a name".to_owned(),
    }
}

/// Whether a mapping may be an arena of glibc whose heap was not walked (otherwise its arenas are known). An arena begins
/// at a multiple of 64 MiB; its unused part has no access and ends at the next multiple. Any mapping may be placed there,
/// so the account says that this is unsure.
fn is_arena(mapping: &Mapping, next: Option<&Mapping>, seen: &Seen) -> bool {
    let start = mapping.range.start;
    let end = match next {
        Some(next) if next.range.start == mapping.range.end && next.is_closed() => next.range.end,
        _ => mapping.range.end,
    };
    mapping.write
        && start.is_multiple_of(ARENA)
        && start > ARENA
        && end >= start + ARENA
        && mapping.bytes() <= ARENA
        && {
            // The part without access may be longer if the next mapping without access joins it.
            end == start + ARENA || mapping.range.end != end
        }
        && !runtime::is_go_heap(seen, mapping)
        && (if seen.has_walked("glibc") { is_in(&seen.heap_ranges(), start) } else { may_have_glibc(seen) })
}

/// Whether glibc is in the process, or in a program without libraries.
fn may_have_glibc(seen: &Seen) -> bool {
    let of = |mapping: &Mapping| mapping.name.rsplit('/').next().unwrap_or_default().to_owned();
    let is_libc = |name: &str| name.starts_with("libc.so.6") || name.starts_with("libc-2.");
    let mut names = seen.mappings.iter().filter(|mapping| mapping.inode != 0).map(of);
    let is_library = |name: &str| name.contains(".so");
    names.clone().any(|name| is_libc(&name)) || !names.any(|name| is_library(&name))
}

/// What may be the stack of a running thread, or one that is kept for the next thread: a small guard below it, and a
/// usual size. The account says that this is unsure.
fn is_stack(guard: &Mapping, mapping: &Mapping, seen: &Seen) -> bool {
    const USUAL: [u64; 3] = [8 * MIB, 2 * MIB, MIB];
    let whole = guard.bytes() + mapping.bytes();
    let usual = USUAL.contains(&whole) || USUAL.contains(&mapping.bytes());
    guard.is_closed() && guard.is_nameless() && guard.bytes() <= 64 << 10 && usual && seen.threads.len() > 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::HeapFigures;
    use crate::seen::{Bss, HeapPart, Piece, StackUse, Thread};
    use crate::testing::mapping;

    fn closed(start: u64, bytes: u64) -> Mapping {
        Mapping { read: false, write: false, figures: Default::default(), ..mapping(start, bytes, "") }
    }

    fn classes_of(mappings: Vec<Mapping>, threads: Vec<Thread>) -> Vec<(Kind, String)> {
        let seen = Seen { pid: 1, mappings, threads, ..Seen::default() };
        classes(&seen).into_iter().map(|class| (class.kind, class.owner)).collect()
    }

    /// Catches arenas of threads, stacks and .bss without an owner.
    #[test]
    fn neighbours_determine_the_owner() {
        let arena = 1000 * ARENA;
        let mappings = vec![
            mapping(0x40_0000, 0x1000, "/bin/p"),
            mapping(0x40_1000, 0x1000, ""),
            mapping(0x50_0000, 0x1000, "[heap]"),
            mapping(arena, MIB, ""),
            closed(arena + MIB, ARENA - MIB),
            closed(0x7000_0000_0000, 0x1000),
            mapping(0x7000_0000_1000, 8 * MIB - 0x1000, ""),
            mapping(0x7000_1000_0000, MIB, ""),
        ];
        let thread = |tid, name: &str, at| Thread { tid, name: name.into(), stack_pointer: Some(at) };
        let found = classes_of(
            mappings,
            vec![thread(1, "p", 0x7fff_0000_0000), thread(2, "w-7", 0x7000_1000_0800), thread(3, "x", 0)],
        );
        let expected = [
            (Kind::File, "/bin/p"),
            (Kind::Anonymous, "/bin/p (.bss), or private memory"),
            (Kind::Heap, "[heap]: of malloc, or taken by brk"),
            (Kind::Heap, "arenas of glibc, or private memory"),
            (Kind::Guard, "areas without access"),
            (Kind::Guard, "areas without access"),
            (Kind::Stack, "threads, or private memory"),
            (Kind::Anonymous, "private memory with the stack of threads named w-"),
        ];
        assert_eq!(found, expected.map(|(kind, owner)| (kind, owner.to_owned())));
    }

    /// Catches memory that Google's tcmalloc names and that counts as another owner's, and libraries whose heap was not
    /// walked and that no note names.
    #[test]
    fn allocators_name_their_memory() {
        let mappings = vec![
            mapping(0x1000, 0x1000, "[anon:tcmalloc_region_NORMAL]"),
            mapping(0x3000, 0x1000, "[anon:tcmalloc_region_METADATA]"),
            mapping(0x5000, 0x1000, "/usr/lib/libjemalloc.so.1"),
        ];
        let mut seen = Seen { mappings, ..Seen::default() };
        let found = classes(&seen);
        assert_eq!(found[..2], [class(Kind::Heap, "tcmalloc"), class(Kind::HeapMetadata, "tcmalloc")]);
        assert_eq!(not_walked(&seen), []);
        seen.stacks = vec![Default::default()];
        assert_eq!(not_walked(&seen), [("tcmalloc", true), ("jemalloc", false)]);
        seen.allocators = vec!["jemalloc 5.3".into()];
        assert_eq!(not_walked(&seen), [("tcmalloc", true)]);
    }

    /// Catches a heap of Go at a random place that is taken for an arena of glibc.
    #[test]
    fn goes_heap_is_no_arena() {
        let start = 0x5a0_0000 * ARENA / MIB;
        let mappings = vec![mapping(start, 4 * MIB, ""), closed(start + 4 * MIB, 60 * MIB)];
        let seen = Seen { mappings, is_go: true, ..Seen::default() };
        assert_eq!(classes(&seen)[0], class(Kind::RuntimeHeap, "Go"));
    }

    /// Catches a mapping that the kernel placed at a multiple of 64 MiB and that is taken for an arena of glibc, which
    /// was walked and does not have it; and an arena that it has and that is not taken for one.
    #[test]
    fn an_arena_is_one_that_glibc_has() {
        let (own, other) = (1000 * ARENA, 1002 * ARENA);
        let mappings = vec![mapping(own, MIB, ""), closed(own + MIB, ARENA - MIB), mapping(other, ARENA, "")];
        let mut seen = Seen { mappings, ..Seen::default() };
        let arena = class(Kind::Heap, "arenas of glibc, or private memory");
        assert_eq!([&classes(&seen)[0], &classes(&seen)[2]], [&arena, &arena]);
        let figures = HeapFigures { allocator: "glibc 2.36".into(), part: "arena 1".into(), ..HeapFigures::default() };
        let piece = Piece { range: own..own + MIB, resident: MIB };
        seen.heaps = vec![HeapPart { figures, pieces: vec![piece], ..HeapPart::default() }];
        assert_eq!([&classes(&seen)[0].kind, &classes(&seen)[2].kind], [&Kind::Heap, &Kind::Anonymous]);
    }

    /// Catches owners that are found by place although it is known what is there: data of a file by its sizes, a stack by
    /// its thread's record; and memory behind data that is none.
    #[test]
    fn evidence_comes_before_place() {
        let data = mapping(0x40_0000, 0x1000, "/bin/p");
        let mappings = vec![data, mapping(0x40_1000, MIB, ""), mapping(0x7000_0000_0000, 3 * MIB, "")];
        let threads = vec![Thread { tid: 7, name: "w-7".into(), stack_pointer: Some(0x7000_0010_0000) }];
        let stacks = vec![StackUse { range: mappings[2].range.clone(), tid: 7, is_sure: true, ..StackUse::default() }];
        let piece = Piece { range: mappings[1].range.clone(), resident: MIB };
        let mut seen = Seen { mappings, threads, stacks, bss: Some(Vec::new()), ..Seen::default() };
        let found = |seen: &Seen| classes(seen).into_iter().skip(1).map(|of| of.owner).collect::<Vec<_>>();
        assert_eq!(found(&seen), ["private memory without a name", "threads named w-"]);
        seen.bss = Some(vec![Bss { file: "/bin/p".into(), piece }]);
        assert_eq!(found(&seen)[0], "/bin/p (.bss)");
    }

    /// Catches a program that runs from a memory file and counts as code made at run time.
    #[test]
    fn programs_in_memory_files_are_files() {
        let of = |shared: bool| {
            let code = Mapping { execute: true, write: false, shared, ..mapping(0x1000, 0x1000, "/memfd:x (deleted)") };
            let data = Mapping { shared, ..mapping(0x2000, 0x1000, "/memfd:x (deleted)") };
            let seen = Seen { mappings: vec![code, data], ..Seen::default() };
            classes(&seen).into_iter().map(|of| of.kind).collect::<Vec<_>>()
        };
        assert_eq!((of(false), of(true)), (vec![Kind::File, Kind::File], vec![Kind::Jit, Kind::Shared]));
    }

    /// Catches what a heap that was walked leaves of [heap] and that counts as malloc's.
    #[test]
    fn brk_is_not_always_mallocs() {
        let mut seen = Seen { mappings: vec![mapping(0x1000, 0x1000, "[heap]")], ..Seen::default() };
        assert!(is_unsure(&classes(&seen)[0].owner));
        seen.heaps = vec![HeapPart::default()];
        assert_eq!(classes(&seen)[0].kind, Kind::Anonymous);
    }

    /// Catches arenas of glibc that are taken for heaps of a runtime, and a heap that is taken for an arena.
    #[test]
    fn arenas_beside_a_runtime_are_glibcs() {
        let start = 1000 * ARENA;
        for file in ["/bin/java", "/bin/node", "/bin/ruby", "/bin/php", "/lib/libcoreclr.so", "/bin/beam.smp"] {
            let mut mappings = vec![mapping(0x1000, 0x1000, file), mapping(start, MIB, "")];
            mappings.push(closed(start + MIB, ARENA - MIB));
            mappings.push(mapping(start + ARENA, 0x1000, "/lib/libc.so.6"));
            assert_eq!(classes_of(mappings, Vec::new())[1].0, Kind::Heap, "{file}");
        }
        let mappings = vec![mapping(0x1000, 0x1000, "/bin/node"), mapping(start, MIB, "")];
        assert_eq!(classes_of(mappings, Vec::new())[1].0, Kind::RuntimeHeap);
    }

    /// Catches names of the kernel, of programs and of file systems in memory that go to the wrong kind.
    #[test]
    fn names_determine_the_kind() {
        let of = |name: &str, shared, execute| {
            let device = if name.starts_with("/run/") { (0, 25) } else { (8, 1) };
            let one = Mapping { shared, execute, device, ..mapping(0x1000, 0x1000, name) };
            let seen = Seen { mappings: vec![one], memory_devices: vec![(0, 25)], ..Seen::default() };
            classes(&seen).remove(0)
        };
        for (name, shared, execute, kind) in [
            ("[vdso]", false, true, Kind::Vdso),
            ("[vvar_vclock]", false, false, Kind::Vdso),
            ("/memfd:x (deleted)", true, false, Kind::Shared),
            ("/memfd:jit (deleted)", true, true, Kind::Jit),
            ("/SYSV00000000 (deleted)", true, false, Kind::Shared),
            ("/dev/zero (deleted)", true, false, Kind::Shared),
            ("/secretmem (deleted)", true, false, Kind::Shared),
            ("/run/tmp/x", true, false, Kind::Shared),
            ("/var/lib/x.db", true, false, Kind::File),
            ("[anon:cache of blobs]", false, false, Kind::Anonymous),
            ("[anon: glibc: malloc]", false, false, Kind::Heap),
            ("[anon: Go: heap]", false, false, Kind::RuntimeHeap),
            ("[uprobes]", false, true, Kind::Other),
        ] {
            assert_eq!(of(name, shared, execute).kind, kind, "{name}");
        }
        assert_eq!(of("[anon:cache of blobs]", false, false).owner, "cache of blobs");
        assert_eq!(of("/memfd:x (deleted)", true, false).owner, "memfd:x");
    }
}
