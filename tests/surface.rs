//! The C and C++ surface: every function, every error, and the form of libneap.so itself.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::Duration;

use neap_tests::{Case, Outcome, Run, Source, Stop, judge_case, library, package_dir, program, run_case};

const ALLOC: Source = Source::new("surface/alloc.c");
const REALLOC: Source = Source::new("surface/realloc.c");
const ZERO: Source = Source::new("surface/zero.c");
const ALIGNED: Source = Source::new("surface/aligned.c");
const ALIASES: Source = Source::new("surface/aliases.c");
const LIMITS: Source = Source::new("surface/limits.c");
const RIGHTS: Source = Source::new("surface/rights.c");
const NEW: Source = Source::with_flags("surface/new.cc", &["-std=c++17"]);

/// Program, case, and what the case would catch.
const CASES: &[(Source, &str, &str)] = &[
    (ALLOC, "preload_in_effect", "tests that run on another allocator than neap"),
    (ALLOC, "zero_size_unique", "malloc(0) or calloc(n, 0) that is NULL or the same block twice"),
    (ALLOC, "alignment", "a size whose blocks are aligned to less than 16 (8 below 16 bytes)"),
    (RIGHTS, "all_functions", "a change of user or groups that does something else than the C library's"),
    (ALLOC, "too_large", "a size near PTRDIFF_MAX or SIZE_MAX that wraps around when rounded"),
    (ALLOC, "calloc_overflow", "a product of count and size that wraps around"),
    (ALLOC, "free_keeps_errno", "free that lets munmap or madvise change errno"),
    (ALLOC, "calloc_zero", "calloc that treats a dirty block of some size as zero"),
    (ALLOC, "calloc_zero_large", "large blocks whose known-zero pages are wrong after split, merge or reuse"),
    (ALLOC, "no_overlap", "two live blocks that share a byte"),
    (ALLOC, "many_blocks", "a table of metadata that ends at some number of small blocks"),
    (ALLOC, "many_large_blocks", "one mapping per large block, which ends at vm.max_map_count"),
    (
        ALLOC,
        "copies_of_stale_bytes",
        "bytes that free left in a block, and that count as the tag of a free one in a copy",
    ),
    (ZERO, "where_blocks_moved", "calloc that trusts memory which moved blocks left, where a system does not clear it"),
    (ZERO, "where_parts_went_back", "calloc that trusts OS pages which a system gives back only with their neighbours"),
    (ZERO, "histories", "calloc that treats dirty memory as zero after some history of several threads"),
    (REALLOC, "null_is_malloc", "realloc(NULL, n) that is not malloc(n)"),
    (REALLOC, "to_zero_frees", "realloc(p, 0) that keeps the block or returns one"),
    (REALLOC, "grow", "contents lost when a block grows into another size class or kind"),
    (REALLOC, "grow_by_one", "contents lost when a block grows byte by byte"),
    (REALLOC, "shrink", "contents lost when a block shrinks"),
    (REALLOC, "huge", "contents lost or neighbours hit when a huge mapping moves"),
    (REALLOC, "failure_keeps_block", "realloc that frees the block although it fails"),
    (REALLOC, "usable_in_place", "a block that moves although the new size fits"),
    (REALLOC, "array_overflow", "reallocarray with a product that wraps around"),
    (REALLOC, "random_sizes", "an order of growing and shrinking that corrupts a block"),
    (ALIGNED, "every_alignment", "an alignment up to 1 GiB that is not kept, or that changes errno in free"),
    (ALIGNED, "no_overlap", "aligned blocks that overlap their neighbours"),
    (ALIGNED, "three_of_1_gib", "only one live block of the largest alignment"),
    (
        ALIGNED,
        "posix_memalign_errors",
        "a bad alignment accepted, the pointer changed, or errno not that of other allocators",
    ),
    (ALIGNED, "errno_of_each_call", "a call that leaves an errno other than glibc's, on failure or on success"),
    (ALIGNED, "too_large", "size plus alignment that wraps around"),
    (ALIGNED, "odd_alignment", "an alignment that is no power of two and is not rounded up"),
    (ALIGNED, "page_aligned", "valloc or pvalloc off an OS page border, or pvalloc with less than whole OS pages"),
    (ALIGNED, "realloc_keeps", "realloc of an aligned block that loses its contents"),
    (ALIGNED, "usable", "malloc_usable_size that changes, or promises bytes that are not there"),
    (ALIGNED, "freeing_kin", "cfree, free_sized or free_aligned_sized that leaks or changes errno"),
    (ALIASES, "libc_names", "a __libc_ name that reaches another allocator's heap"),
    (ALIASES, "blocks_of_the_c_library", "blocks made inside the C library by another malloc"),
    (LIMITS, "family", "a function that crashes or forgets ENOMEM when address space ends"),
    (LIMITS, "exhaust_small", "a heap that no longer works after small blocks used up memory"),
    (LIMITS, "exhaust_medium", "the same for blocks of some KiB"),
    (LIMITS, "exhaust_large", "the same for blocks of whole OS pages"),
    (LIMITS, "from_the_start", "a reservation so large that a limited program cannot start"),
    (NEW, "all_forms", "a form of new or delete that is missing or misaligned"),
    (NEW, "sized_deletes", "a sized delete that does not free"),
    (NEW, "delete_null", "a form of delete that fails for NULL"),
    (NEW, "bad_alloc", "new that returns NULL, or nothrow new that throws"),
    (NEW, "odd_alignment", "an alignment that is no power of two and ends the process or calls the new-handler"),
    (NEW, "handler_throws", "a new-handler that is not called, or not called until it throws"),
    (NEW, "handler_resets", "a new-handler that is called after it removed itself"),
    (NEW, "handler_frees", "memory freed by the new-handler that new does not use"),
    (NEW, "handler_own_exception", "an exception of the handler that does not reach the program"),
    (NEW, "containers", "the standard library's blocks on another heap than the program's"),
];

fn main() -> ExitCode {
    let mut cases: Vec<Case> = CASES
        .iter()
        .map(|(source, case, catches)| {
            Case::new(format!("{}::{case}", source.stem()), catches, move || {
                run_case(source, case, Duration::from_secs(180))?.no_complaint()?;
                Ok(())
            })
        })
        .collect();
    cases.push(Case::new("table::complete", "a case that is written but never run", || {
        let named: Vec<_> = CASES.iter().map(|(source, case, _)| (source.stem(), *case)).collect();
        neap_tests::all_cases_named(&[ALLOC, ZERO, REALLOC, ALIGNED, ALIASES, LIMITS, RIGHTS, NEW], &named)
    }));
    cases.push(Case::new(
        "object::exports",
        "a symbol that is missing, or one that leaks out and shadows a program's own",
        exports,
    ));
    cases.push(Case::new(
        "object::imports",
        "a call inside libneap.so that a program or another library can interpose, or a new import from the C library",
        imports,
    ));
    cases.push(Case::new(
        "object::versions",
        "a library that glibc 2.17 cannot load, or a command that it cannot run",
        versions,
    ));
    cases.push(Case::new(
        "object::tls",
        "thread storage that is large or needs __tls_get_addr, which itself allocates",
        tls,
    ));
    cases.push(Case::new(
        "object::needs",
        "libraries pulled into every process, text relocations, or an executable stack",
        needs,
    ));
    for (kind, flags, catches) in ARCHIVE_KINDS {
        for (source, case) in ARCHIVE {
            let name = format!("archive::{kind}::{}_{case}", source.stem());
            cases.push(Case::new(name, catches, move || archive(source, case, flags)));
        }
    }
    neap_tests::suite::main(cases)
}

/// Output of a binutils tool on the library under test.
fn inspect(tool: &str, args: &[&str]) -> Result<String, Stop> {
    let path = library::require_neap()?;
    let done = Run::new(program(tool)?).args(args).arg(path).plain().run()?;
    Ok(done.success()?.stdout)
}

/// Checks that the defined dynamic symbols are exactly those of surface/exports.txt.
fn exports() -> Outcome {
    let table = inspect("nm", &["-D", "--defined-only"])?;
    let found: BTreeSet<&str> = table
        .lines()
        .filter_map(|line| line.split_whitespace().last())
        .map(|name| name.split('@').next().unwrap_or(name))
        .collect();
    let list = std::fs::read_to_string(package_dir().join("surface/exports.txt"))?;
    let wanted: BTreeSet<&str> =
        list.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    if found == wanted {
        return Ok(());
    }
    let missing: Vec<_> = wanted.difference(&found).collect();
    let more: Vec<_> = found.difference(&wanted).collect();
    Err(Stop::Fail(format!("missing: {missing:?}\n  not in surface/exports.txt: {more:?}")))
}

/// What libneap.so imports from other objects, and why. A new name needs a reason here: none may allocate, wait for a
/// lock or change errno where neap calls it. A library in front of the C library may replace each of them, so the
/// helper thread calls only the plain memory functions.
const IMPORTS: &[(&str, &str)] = &[
    ("__cxa_finalize", "the compiler's start-up code; weak"),
    ("__dls3", "whether a dynamic program has musl; weak"),
    ("__environ", "the environment, which musl does not pass to constructors; weak"),
    ("__errno_location", "errno on failure"),
    ("__gmon_start__", "the compiler's start-up code; weak"),
    ("__libc_setup_tls", "whether a static program has glibc; weak"),
    ("__register_atfork", "fork handlers, once, outside of calls; weak, as musl has none"),
    ("_ITM_deregisterTMCloneTable", "the compiler's start-up code; weak"),
    ("_ITM_registerTMCloneTable", "the compiler's start-up code; weak"),
    ("_ZSt15get_new_handlerv", "the program's new handler; weak"),
    ("_ZSt17__throw_bad_allocv", "bad_alloc; weak"),
    ("_r_debug", "the C library's own dl_iterate_phdr, behind another library's; weak"),
    ("abort", "operator new without memory and without a C++ library"),
    ("bcmp", "plain memory"),
    ("dl_iterate_phdr", "functions that older C libraries have elsewhere; once for each, outside of calls"),
    ("fwrite", "malloc_info, which writes to a stream of the program's"),
    ("getauxval", "the OS page size, secure execution"),
    ("memcpy", "plain memory"),
    ("memmove", "plain memory"),
    ("memset", "plain memory"),
    ("pthread_setcancelstate", "neap_prefault, which waits for its threads"),
    ("sbrk", "free of a foreign block: where the C library's heap lies"),
    (
        "sigaction",
        "the handler of option profile_signal; what stands in front of the C library sees it as the program's",
    ),
    ("strlen", "strings of the environment"),
];

/// Checks that no relocation names a symbol that the library itself exports, and that all others are in [`IMPORTS`].
fn imports() -> Outcome {
    let name = |word: &str| word.split('@').next().unwrap_or(word).to_string();
    let table = inspect("nm", &["-D", "--defined-only"])?;
    let own: BTreeSet<String> = table.lines().filter_map(|line| line.split_whitespace().last()).map(name).collect();
    let relocations = inspect("readelf", &["-rW"])?;
    // Offset  Info  Type  Value  Name + Addend: relocations without a symbol have no value.
    let rows = relocations.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let named: BTreeSet<String> =
        rows.filter(|words| words.len() == 7 && words[2].starts_with("R_")).map(|words| name(words[4])).collect();
    let through: Vec<_> = named.intersection(&own).collect();
    if !through.is_empty() {
        return Err(Stop::Fail(format!("calls that another object may take over: {through:?}")));
    }
    let undefined = inspect("nm", &["-D", "--undefined-only"])?;
    let found: BTreeSet<String> =
        undefined.lines().filter_map(|line| line.split_whitespace().last()).map(name).collect();
    if named.is_empty() || !named.is_subset(&found) {
        return Err(Stop::Fail(format!("relocations of {named:?}, but undefined are {found:?}")));
    }
    let allowed: BTreeSet<String> = IMPORTS.iter().map(|(name, _)| name.to_string()).collect();
    let (more, gone): (Vec<_>, Vec<_>) = (found.difference(&allowed).collect(), allowed.difference(&found).collect());
    if more.is_empty() && gone.is_empty() {
        return Ok(());
    }
    Err(Stop::Fail(format!("imports without a reason in surface.rs: {more:?}\n  no longer imported: {gone:?}")))
}

/// The newest version of the C library's interfaces that may be needed.
const NEWEST: [u32; 2] = [2, 17];

/// Checks that the library and the command need no interface version newer than [`NEWEST`].
fn versions() -> Outcome {
    let (library, command) = (library::require_neap()?, neap_tests::command::neap()?);
    for object in [library, command] {
        let needs = Run::new(program("readelf")?).args(["-VW"]).arg(object).plain().run()?.success()?.stdout;
        let names = || needs.lines().filter_map(|line| line.split_once("Name: ")?.1.split_whitespace().next());
        let newer = |name: &&str| {
            let numbers = name.strip_prefix("GLIBC_").map(|text| text.split('.').map(str::parse).collect());
            // A version that is not a number (such as GLIBC_PRIVATE) is one that no program may need.
            !numbers.is_some_and(|numbers: Result<Vec<u32>, _>| numbers.is_ok_and(|numbers| numbers[..] <= NEWEST[..]))
        };
        if let Some(name) = names().find(newer) {
            return Err(Stop::Fail(format!("{} asks for {name}", object.display())));
        }
        // A statically linked command needs none.
        if names().count() == 0 && object == library {
            return Err(Stop::Fail(format!("no versions in what readelf says: {needs}")));
        }
    }
    Ok(())
}

/// Limit on the TLS block: all preload libraries share the static surplus.
const TLS_LIMIT: u64 = 256;

/// Checks that TLS is initial-exec and small.
fn tls() -> Outcome {
    let headers = inspect("readelf", &["-lW"])?;
    if let Some(line) = headers.lines().find(|l| l.trim_start().starts_with("TLS ")) {
        // TLS  Offset  VirtAddr  PhysAddr  FileSiz  MemSiz  Flg  Align
        let size = line.split_whitespace().nth(5).unwrap_or_default();
        let size = u64::from_str_radix(size.trim_start_matches("0x"), 16)
            .map_err(|e| Stop::Fail(format!("{e} in: {line}")))?;
        if size > TLS_LIMIT {
            return Err(Stop::Fail(format!("{size} bytes of TLS; {TLS_LIMIT} at most")));
        }
    }
    let undefined = inspect("nm", &["-D", "--undefined-only"])?;
    let relocations = inspect("readelf", &["-rW"])?;
    for (text, word) in [(&undefined, "__tls_get_addr"), (&relocations, "DTPMOD"), (&relocations, "TLSDESC")] {
        if text.contains(word) {
            return Err(Stop::Fail(format!("{word}: TLS is not initial-exec")));
        }
    }
    Ok(())
}

/// Checks that the library needs at most the C library, and neither text relocations nor an executable stack.
fn needs() -> Outcome {
    let dynamic = inspect("readelf", &["-dW"])?;
    for line in dynamic.lines().filter(|line| line.contains("(NEEDED)")) {
        if !["[libc.so.6]", "[ld-linux-x86-64.so.2]", "[ld-linux-aarch64.so.1]"].iter().any(|name| line.contains(name))
        {
            return Err(Stop::Fail(format!("pulled into every process: {line}")));
        }
    }
    if dynamic.contains("TEXTREL") {
        return Err(Stop::Fail("it has text relocations".into()));
    }
    let headers = inspect("readelf", &["-lW"])?;
    match headers.lines().find(|line| line.contains("GNU_STACK")) {
        Some(line) if line.contains("RWE") => Err(Stop::Fail("executable stack".into())),
        Some(_) => Ok(()),
        None => Err(Stop::Fail("no GNU_STACK header".into())),
    }
}

/// How programs are linked with libneap.a: name, flags, and what their tests would catch.
const ARCHIVE_KINDS: &[(&str, &[&str], &str)] = &[
    ("dynamic_program", &[], "libneap.a that does not link, or not in place of the C library's malloc"),
    ("static_program", &["-static"], "libneap.a that needs dynamic linking, or start-up code that allocates too early"),
];
/// The programs and cases that run so.
const ARCHIVE: &[(Source, &str)] = &[
    (ALLOC, "no_overlap"),
    (ALLOC, "calloc_zero"),
    (ALIGNED, "usable"),
    (NEW, "all_forms"),
    (NEW, "containers"),
    (NEW, "bad_alloc"),
    (NEW, "handler_resets"),
    (NEW, "handler_own_exception"),
    (Source::new("life/threads.c"), "storm"),
    (Source::new("life/fork.c"), "from_four_threads"),
    (Source::new("life/soak.c"), "3"),
    (RIGHTS, "all_functions"),
];

/// A program linked with libneap.a, run without preload.
fn archive(source: &Source, case: &str, flags: &[&str]) -> Outcome {
    let library = library::require_neap()?.with_file_name("libneap.a");
    let program = source.build_with(&[&library], flags)?;
    judge_case(Run::new(&program).arg(case).plain())?.no_complaint()?;
    let symbols = Run::new(neap_tests::program("nm")?).arg("--defined-only").arg(&program).plain().run()?;
    symbols.success()?.contains("neap_version")?;
    Ok(())
}
