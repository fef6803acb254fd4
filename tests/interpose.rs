//! Other definitions of malloc's family in the process, in front of neap and behind it: in the program, in a library
//! that wraps them, in a second allocator, in glibc's checker. No order may cause recursion, mixed or lost blocks.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use neap_tests::sys::TempDir;
use neap_tests::{Case, Finished, Outcome, Run, Source, Stop, expect, judge_case, library, package_dir, program};

/// The functions that a program defines itself: a name, and the flags that select them.
const OWN: &[(&str, &[&str])] = &[
    ("nothing", &["-DOWN_NOTHING"]),
    ("memalign", &["-DOWN_MEMALIGN"]),
    ("memalign_by_posix", &["-DOWN_MEMALIGN_BY_POSIX"]),
    ("realloc", &["-DOWN_REALLOC"]),
    ("realloc_by_malloc", &["-DOWN_REALLOC_BY_MALLOC"]),
    ("calloc", &["-DOWN_CALLOC"]),
    ("malloc_and_free", &["-DOWN_MALLOC", "-DOWN_FREE"]),
    ("all", &["-DOWN_MALLOC", "-DOWN_FREE", "-DOWN_CALLOC", "-DOWN_REALLOC", "-DOWN_MEMALIGN"]),
];

const PROGRAM: Source = Source::new("interpose/own.c");
const IDLE: Source = Source::new("interpose/idle.c");
const CALLS: Source = Source::with_flags("interpose/calls.c", &["-shared", "-fPIC"]);
const CALLER: Source = Source::with_flags("interpose/calls.c", &["-DPROGRAM"]);
const OBJECTS: Source = Source::with_flags("interpose/objects.c", &["-shared", "-fPIC"]);
const CLOCK: Source = Source::with_flags("interpose/clock.c", &["-shared", "-fPIC"]);
const LOADER: Source = Source::new("interpose/loader.c");
const SECOND: Source = Source::with_flags("interpose/second.c", &["-shared"]);
const TRACER: Source = Source::with_flags("interpose/tracer.c", &["-shared"]);
const TRACER_BY_NAMES: Source = Source::with_flags("interpose/tracer.c", &["-shared", "-DBY_LIBC_NAMES"]);

/// Which of the two libraries comes first in LD_PRELOAD.
#[derive(Clone, Copy)]
enum Place {
    InFront,
    Behind,
}

fn main() -> ExitCode {
    let mut cases = Vec::new();
    for &(name, flags) in OWN {
        cases.push(Case::new(
            format!("own::{name}"),
            "a call inside neap that reaches a function which the program defines itself",
            move || judge_case(Run::new(PROGRAM.build_with(&[], flags)?).arg("all_calls"))?.no_complaint().map(drop),
        ));
    }
    cases.push(Case::new(
        "preloaded::late_heap_on_musl",
        "a handshake with an ended thread on musl that got its heap after its last destructor",
        late_heap_on_musl,
    ));
    cases.push(Case::new(
        "preloaded::glibc_names_on_musl",
        "musl that passes for glibc because a compatibility layer defines glibc's names",
        glibc_names_on_musl,
    ));
    for (place, word) in [(Place::InFront, "in_front"), (Place::Behind, "behind")] {
        for (name, source, said) in [
            ("tracer", TRACER, "tracer: "),
            ("tracer_by_names", TRACER_BY_NAMES, "tracer: "),
            ("second_allocator", SECOND, "second: "),
        ] {
            cases.push(Case::new(
                format!("preloaded::{name}_{word}"),
                "two definitions of malloc's family that call each other without end, or free each other's blocks",
                move || beside(&source.build()?, place, "")?.contains(said).map(drop),
            ));
        }
        cases.push(Case::new(
            format!("preloaded::calls_{word}"),
            "a program's system call that is hidden from a library which records or redirects it",
            move || calls_beside(place),
        ));
        cases.push(Case::new(
            format!("preloaded::objects_{word}"),
            "a dlsym that needs another library's list of objects, which needs dlsym",
            move || beside(&OBJECTS.build()?, place, "").map(drop),
        ));
        cases.push(Case::new(
            format!("preloaded::clock_{word}"),
            "a helper that calls a function which needs the C library's thread storage, or a lock under which others allocate",
            move || idle_beside(&CLOCK.build()?, place).map(drop),
        ));
        cases.push(Case::new(
            format!("preloaded::faketime_{word}"),
            "the same with a library that fakes the time",
            move || idle_beside(&installed("faketime/libfaketime.so.1")?, place).map(drop),
        ));
        for name in ["libjemalloc.so.2", "libmimalloc.so.2"] {
            cases.push(Case::new(
                format!("preloaded::{}_{word}", name.split('.').next().unwrap_or(name)),
                "a block that goes from one allocator to the other",
                move || beside(&installed(name)?, place, "").map(drop),
            ));
        }
        for level in ["0", "3"] {
            cases.push(Case::new(
                format!("preloaded::malloc_debug_{level}_{word}"),
                "glibc's checker of the heap, which wraps malloc and its hooks, on neap's blocks",
                move || beside(&installed("libc_malloc_debug.so.0")?, place, level).map(drop),
            ));
        }
    }
    for case in ["local", "local_deepbind", "global", "global_deepbind", "plugin_with_allocator"] {
        cases.push(Case::new(
            format!("loaded::{case}"),
            "a library that a running program opens, and that mixes its blocks with the C library's",
            move || loaded(case),
        ));
    }
    cases.push(Case::new("table::complete", "a case that is written but never run", || {
        let cases = ["local", "local_deepbind", "global", "global_deepbind", "plugin_with_allocator"];
        neap_tests::all_cases_named(&[LOADER], &cases.map(|case| (LOADER.stem(), case)))
    }));
    neap_tests::suite::main(cases)
}

/// A library of the system, by its file name.
fn installed(name: &str) -> Result<PathBuf, Stop> {
    let dirs = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"];
    let found = dirs.iter().map(|dir| Path::new(dir).join(name)).find(|path| path.exists());
    found.ok_or_else(|| Stop::Skip(format!("{name} is not installed (tests/setup.sh installs it)")))
}

/// What to preload: neap and another library.
fn order(other: &Path, place: Place) -> Result<PathBuf, Stop> {
    let neap = library::require_neap()?;
    let (first, second) = match place {
        Place::InFront => (other, neap),
        Place::Behind => (neap, other),
    };
    Ok(PathBuf::from(format!("{}:{}", first.display(), second.display())))
}

/// The program that rests, with neap and another library preloaded.
fn idle_beside(other: &Path, place: Place) -> Result<Finished, Stop> {
    judge_case(Run::new(IDLE.build()?).arg("rest_after_work").preload(Some(order(other, place)?)))?.no_complaint()
}

/// A program that makes each system call for which neap defines a function, beside a library that defines them too.
fn calls_beside(place: Place) -> Outcome {
    let done = Run::new(CALLER.build()?).preload(Some(order(&CALLS.build()?, place)?)).run()?.success()?;
    for name in [
        "unshare",
        "setns",
        "prctl",
        "prlimit",
        "prlimit64",
        "setrlimit",
        "setrlimit64",
        "mmap",
        "mmap64",
        "munmap",
        "mprotect",
        "pkey_mprotect",
        "madvise",
        "mlock",
        "mlock2",
        "mlockall",
        "ioctl",
        "mremap",
        "clone",
        "syscall",
    ] {
        expect(done.stderr.lines().any(|line| line == name), &done, &format!("the library does not see {name}"))?;
    }
    Ok(())
}

/// The program without functions of its own, with neap and another library preloaded.
fn beside(other: &Path, place: Place, check: &str) -> Result<Finished, Stop> {
    let program = PROGRAM.build_with(&[], &["-DOWN_NOTHING"])?;
    let mut run = Run::new(program).arg("all_calls").preload(Some(order(other, place)?));
    if !check.is_empty() {
        run = run.env("MALLOC_CHECK_", check);
    }
    judge_case(run)?.no_complaint()
}

/// A program that opens a library while it runs.
fn loaded(case: &str) -> Outcome {
    let neap = library::require_neap()?;
    let mut run = Run::new(LOADER.build()?).arg(case).env("LIBRARY", neap).env("SECOND", SECOND.build()?);
    if case != "plugin_with_allocator" {
        run = run.plain();
    }
    judge_case(run)?.no_complaint()?;
    Ok(())
}

/// Compiles a program of `tests/interpose` for musl.
fn for_musl(source: &str, flags: &[&str], to: &Path) -> Outcome {
    let source = package_dir().join("interpose").join(source);
    let compiler = Run::new(program("musl-gcc")?).args(["-fno-builtin", "-pthread"]).args(flags);
    compiler.args([source.as_path(), Path::new("-o"), to]).plain().run()?.success().map(drop)
}

fn late_heap_on_musl() -> Outcome {
    library::require_neap()?;
    let dir = TempDir::new("neap-musl-")?;
    let main = dir.join("main");
    for_musl("late_heap.c", &[], &main)?;
    Run::new(&main).run()?.success()?.contains("ok").map(drop)
}

/// A program on musl, with a library in front that defines functions under glibc's names, as gcompat does.
fn glibc_names_on_musl() -> Outcome {
    library::require_neap()?;
    let dir = TempDir::new("neap-musl-")?;
    let (names, main) = (dir.join("names.so"), dir.join("main"));
    for_musl("glibc_names.c", &["-shared", "-fPIC"], &names)?;
    for_musl("glibc_names.c", &["-DPROGRAM"], &main)?;
    let run = Run::new(&main).preload(Some(order(&names, Place::InFront)?)).env("NEAP_FOREIGN", "perhaps");
    let done = run.run()?.success()?;
    expect(done.stdout == "a block\n", &done, "realloc(p, 0) did as glibc's")?;
    done.contains("NEAP_FOREIGN").map(drop)
}
