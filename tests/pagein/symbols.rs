//! Symbols, lines and callers of programs with known faults.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use neap_tests::command::need_events;
use neap_tests::{Case, Outcome, Run, Source, Stop, program};

use crate::trace::{KNOWN_STATIC, Trace, in_function, table, words};

const KNOWN_C: Source = Source::new("pagein/known.c");
const ODD_STATIC: Source = Source::with_flags("pagein/odd.c", &["-static"]);
const KNOWN_32: Source = Source::with_flags("pagein/known.c", &["-m32"]);
const KNOWN_CXX: Source = Source::new("pagein/known.cc");
const KNOWN_CXX_STATIC: Source = Source::with_flags("pagein/known.cc", &["-static"]);
const NO_FRAME_POINTERS: &[&str] = &["-fomit-frame-pointer", "-fno-optimize-sibling-calls"];
const CALLERS_WITHOUT: Source = Source::with_flags("pagein/callers.c", NO_FRAME_POINTERS);
const CALLBACK: Source = Source::with_flags("pagein/callback.c", NO_FRAME_POINTERS);
const CALLERS: Source =
    Source::with_flags("pagein/callers.c", &["-fno-omit-frame-pointer", "-fno-optimize-sibling-calls"]);

/// The tests.
pub fn cases() -> Vec<Case> {
    vec![
        Case::new("symbols::c", "a wrong function or variable in a dynamic C program", || known_c(&KNOWN_C)),
        Case::new("symbols::c_static", "the same in a static program", || known_c(&KNOWN_STATIC)),
        Case::new("symbols::cxx", "names of C++ that stay mangled", || known_cxx(&KNOWN_CXX)),
        Case::new("symbols::cxx_static", "the same in a static program", || known_cxx(&KNOWN_CXX_STATIC)),
        Case::new("symbols::rust", "names of Rust that stay mangled", || known_rust(&[])),
        Case::new("symbols::rust_static", "the same in a static program", || {
            known_rust(&["-C", "target-feature=+crt-static"])
        }),
        Case::new("symbols::replaced", "symbols of a file that has replaced the program's", replaced),
        Case::new("symbols::elsewhere", "symbols of the file at the program's path as neap sees it", elsewhere),
        Case::new("symbols::m32", "a wrong function or variable in a 32-bit program", || match KNOWN_32.build() {
            Ok(_) => known_c(&KNOWN_32),
            Err(_) => Err(Stop::Skip("the compiler makes no 32-bit programs (gcc-multilib)".into())),
        }),
        Case::new("symbols::perf_map", "names of compiled code from another user's file, or none", perf_map),
        Case::new("symbols::jit", "code of a JIT compiler without names", jit),
        Case::new("symbols::go", "a Go program without names", go),
        Case::new("callers::fp", "callers by frame pointers that are missing", || callers(&CALLERS, "fp", STACK)),
        Case::new("callers::dwarf", "callers by unwind tables that are missing", || callers(&CALLERS, "dwarf", STACK)),
        Case::new("callers::tables", "callers that are found only by frame pointers", || {
            callers(&CALLERS_WITHOUT, "dwarf", STACK)
        }),
        Case::new("callers::callback", "missing callers beyond a function of the C library", || {
            callers(&CALLBACK, "dwarf", &["compare", "sort_them", "main"])
        }),
    ]
}

fn known_c(source: &Source) -> Outcome {
    let trace = table(&source.build()?, &[])?;
    let mut starts = 0;
    for n in ["one", "two", "three", "four", "five", "six", "seven", "eight"] {
        let code = |line: &String| line.contains(" C user") && line.contains(&format!(" function_{n} ("));
        let data = |kind: &str, offset: &str| {
            let wanted = format!("({kind}_{n}+{offset})");
            trace.faults.iter().any(|line| {
                line.contains(" D user") && in_function(line, &format!("function_{n}")) && line.ends_with(&wanted)
            })
        };
        starts += u32::from(trace.faults.iter().any(code));
        if !data("data", "0x7") || !data("bss", "0x9") {
            return Err(trace.fail(&format!("no fault of function_{n} at its variables")));
        }
    }
    // A function within reach of another fault may fault with it: the kernel maps as much around a fault as the page
    // cache holds in one piece.
    if starts < 3 {
        return Err(trace.fail(&format!("only {starts} of 8 functions with a fault at their start")));
    }
    // Source lines: the programs are built with -g.
    if !trace.faults.iter().any(|line| line.contains("known.c:")) {
        return Err(trace.fail("no line of source"));
    }
    Ok(())
}

fn known_cxx(source: &Source) -> Outcome {
    let trace = table(&source.build()?, &[])?;
    for n in 1..=4 {
        let wanted = format!("(outer::Page<{n}>::data+0x5)");
        let fits = |line: &String| in_function(line, &format!("void outer::touch<{n}>()")) && line.ends_with(&wanted);
        if !trace.faults.iter().any(fits) {
            return Err(trace.fail(&format!("no fault of touch<{n}> at its page")));
        }
    }
    Ok(())
}

/// Builds a source with a compiler of another language, and traces the program.
fn built_by(compiler: &str, options: &[&str], source: &str) -> Result<Trace, Stop> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    // Without a dot: rustc derives its temporary names from what is before it, and two of them run at the same time.
    let name = format!("pagein-{}-{}-{number}", source.replace('.', "-"), std::process::id());
    let result: PathBuf = neap_tests::target_dir().join(name);
    let built = Run::new(program(compiler)?)
        .args(options)
        .arg("-o")
        .arg(&result)
        .arg(neap_tests::package_dir().join("pagein").join(source))
        .plain()
        .run();
    built?.success()?;
    let trace = table(&result, &[]);
    let _ = std::fs::remove_file(&result);
    trace
}

fn known_rust(options: &[&str]) -> Outcome {
    let options = [&["--edition", "2021", "-O", "--crate-name", "known"], options].concat();
    let trace = built_by("rustc", &options, "known.rs")?;
    for (function, data) in [("touch_first", "known::FIRST+0x3"), ("touch_second", "known::SECOND+0x4")] {
        let fits = |line: &String| in_function(line, &format!("known::{function}")) && line.contains(data);
        if !trace.faults.iter().any(fits) {
            return Err(trace.fail(&format!("no fault of {function}")));
        }
    }
    Ok(())
}

/// A copy of a program in a folder of its own; both are removed with this.
struct Copy {
    folder: PathBuf,
    program: PathBuf,
}

impl Copy {
    /// Copies `from` to the path `name` below a new folder.
    fn new(from: &Path, name: &str) -> Result<Self, Stop> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = neap_tests::target_dir().join(format!("pagein-copy-{}-{number}", std::process::id()));
        let program = folder.join(name);
        std::fs::create_dir_all(program.parent().unwrap_or(&folder))?;
        neap_tests::install(from, &program)?;
        Ok(Self { folder, program })
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// The program is replaced after it has run, and before neap reads its symbols.
fn replaced() -> Outcome {
    let copy = Copy::new(&ODD_STATIC.build()?, "program")?;
    let other = KNOWN_STATIC.build()?;
    let script = "\"$1\" touch; cp \"$2\" \"$1.new\"; mv \"$1.new\" \"$1\"";
    let (program, other) = (copy.program.to_string_lossy().into_owned(), other.to_string_lossy().into_owned());
    let trace = table(&neap_tests::program("sh")?, &["-c", script, "sh", &program, &other])?;
    let of_it: Vec<&String> = trace.faults.iter().filter(|line| line.contains(&format!(" in {program} "))).collect();
    let named = of_it.iter().filter(|line| !line.contains("  0x")).count();
    if of_it.len() < 1000 || named > 0 || !trace.says(&format!("missing: symbols of {program}: ")) {
        return Err(trace.fail(&format!("{} faults of the program, {named} with a symbol", of_it.len())));
    }
    Ok(())
}

/// A process in a mount namespace of its own, as in a container: the program's path names another file there than for
/// neap.
fn elsewhere() -> Outcome {
    need_events()?;
    if !neap_tests::is_root() {
        return Err(Stop::Skip("only root may mount".into()));
    }
    // Before the program, which runs for a limited time: neap may have to be built first.
    let neap = neap_tests::command::neap()?;
    let (here, there) = (Copy::new(&KNOWN_STATIC.build()?, "program")?, Copy::new(&ODD_STATIC.build()?, "program")?);
    let mut child = Command::new(program("unshare")?)
        .args(["--mount", "sh", "-c", "mount --bind \"$1\" \"$2\" && echo mounted && exec \"$2\" works", "sh"])
        .args([&there.program, &here.program])
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    if let Some(output) = child.stdout.take() {
        BufReader::new(output).read_line(&mut line)?;
    }
    // Waits until the shell has executed the program.
    let exe = PathBuf::from(format!("/proc/{}/exe", child.id()));
    while std::fs::read_link(&exe).is_ok_and(|path| path != here.program) && child.try_wait()?.is_none() {
        std::thread::yield_now();
    }
    let done = Run::new(neap)
        .args(["pagein", "--format", "table", "-o", "-", "--duration", "1s", "--pid", &child.id().to_string()])
        .plain()
        .run();
    let _ = (child.kill(), child.wait());
    if line.is_empty() {
        return Err(Stop::Skip("mounts are denied here".into()));
    }
    let done = done?.success()?;
    let object = format!(" in {} ", here.program.display());
    let lines = done.stdout.lines().filter(|line| line.contains(" touch+0x") && line.contains(&object)).count();
    neap_tests::expect(lines > 30, &done, &format!("{lines} faults in touch"))
}

/// Checks that a perf map of the user's own is used, and that another user's is not, as the footer says.
#[cfg(target_arch = "x86_64")]
fn perf_map() -> Outcome {
    let odd = Source::new("pagein/odd.c").build()?;
    let own = table(&odd, &["compile"])?;
    remove_perf_map(&own);
    let named = |trace: &Trace| trace.faults.iter().any(|line| line.contains(" compiled in [jit]"));
    if own.done.status.code() != Some(0) || !named(&own) || own.says("names of compiled code") {
        return Err(own.fail("no fault of the compiled function"));
    }
    if !neap_tests::is_root() {
        return Err(Stop::Skip("only root may give files away".into()));
    }
    let strange = table(&odd, &["compile", "65534"])?;
    remove_perf_map(&strange);
    if strange.done.status.code() != Some(0)
        || named(&strange)
        || !strange.says("missing: names of compiled code in /tmp/")
    {
        return Err(strange.fail("a stranger's map is believed"));
    }
    Ok(())
}

#[cfg(not(target_arch = "x86_64"))]
fn perf_map() -> Outcome {
    Err(Stop::Skip("the compiled function is one of x86-64".into()))
}

/// Removes the perf map that a program leaves behind.
fn remove_perf_map(trace: &Trace) {
    let process = trace.footer.iter().find_map(|line| line.strip_prefix("# process ")?.split(':').next());
    let _ = std::fs::remove_file(format!("/tmp/perf-{}.map", process.unwrap_or_default()));
}

fn jit() -> Outcome {
    let script = "function hot(a){let s=0;for(let i=0;i<a.length;i++)s+=a[i];return s}
        for(let k=0;k<300;k++){let a=new Float64Array(20000);hot(a);a.fill(k)}";
    let trace = table(
        &program("node")?,
        &["--perf-basic-prof", "--no-logfile-per-isolate", "--logfile=/dev/null", "-e", script],
    )?;
    remove_perf_map(&trace);
    if !trace.faults.iter().any(|line| line.contains("hot ") && line.contains(" in [jit]")) {
        return Err(trace.fail("no fault of the compiled function"));
    }
    Ok(())
}

fn go() -> Outcome {
    let trace = built_by("go", &["build"], "known.go")?;
    if trace.faults.iter().filter(|line| in_function(line, "main.touch")).count() < 1024 {
        return Err(trace.fail("not a fault for each page"));
    }
    Ok(())
}

/// The functions of `callers.c`, innermost first.
const STACK: &[&str] = &["innermost", "middle", "outermost", "main"];

/// Checks that a fault in the first of these functions has the others as callers, in this order. Functions of the C
/// library may come between.
fn callers(source: &Source, how: &str, stack: &[&str]) -> Outcome {
    need_events()?;
    let trace = Trace::of(&["--callgraph", how, "--format", "table"], &words(&source.build()?, &[]))?;
    let fits = |line: &String| {
        let mut rest = line.as_str();
        in_function(line, stack[0])
            && stack[1..].iter().all(|function| match rest.split_once(&format!("<- {function}+0x")) {
                Some((_, behind)) => {
                    rest = behind;
                    true
                }
                None => false,
            })
    };
    if !trace.faults.iter().any(fits) {
        return Err(trace.fail(&format!("no stack of {stack:?}")));
    }
    Ok(())
}
