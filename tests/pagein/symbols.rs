//! Symbols, lines and callers of programs with known faults.

use std::path::PathBuf;

use neap_tests::command::need_events;
use neap_tests::{Case, Outcome, Run, Source, Stop, program};

use crate::trace::{KNOWN_STATIC, Trace, in_function, table, words};

const KNOWN_C: Source = Source::new("pagein/known.c");
const KNOWN_CXX: Source = Source::new("pagein/known.cc");
const CALLERS: Source =
    Source::with_flags("pagein/callers.c", &["-fno-omit-frame-pointer", "-fno-optimize-sibling-calls"]);

/// The tests.
pub fn cases() -> Vec<Case> {
    vec![
        Case::new("symbols::c", "a wrong function or variable in a dynamic C program", || known_c(&KNOWN_C)),
        Case::new("symbols::c_static", "the same in a static program", || known_c(&KNOWN_STATIC)),
        Case::new("symbols::cxx", "names of C++ that stay mangled", known_cxx),
        Case::new("symbols::rust", "names of Rust that stay mangled", known_rust),
        Case::new("symbols::jit", "code of a JIT compiler without names", jit),
        Case::new("symbols::go", "a Go program", go),
        Case::new("callers::fp", "callers by frame pointers that are missing", || callers("fp")),
        Case::new("callers::dwarf", "callers by unwinding that are missing", || callers("dwarf")),
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
    // Code that is a fault's distance away can come with what is next to it: the kernel maps what the page cache holds
    // in one piece, as much as that is.
    if starts < 3 {
        return Err(trace.fail(&format!("only {starts} of 8 functions with a fault at their start")));
    }
    // Lines of source: the programs are built with -g.
    if !trace.faults.iter().any(|line| line.contains("known.c:")) {
        return Err(trace.fail("no line of source"));
    }
    Ok(())
}

fn known_cxx() -> Outcome {
    let trace = table(&KNOWN_CXX.build()?, &[])?;
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
    let result: PathBuf = neap_tests::target_dir().join(format!("pagein-{source}-{}", std::process::id()));
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

fn known_rust() -> Outcome {
    let trace = built_by("rustc", &["--edition", "2021", "-O", "--crate-name", "known"], "known.rs")?;
    for (function, data) in [("touch_first", "known::FIRST+0x3"), ("touch_second", "known::SECOND+0x4")] {
        let fits = |line: &String| in_function(line, &format!("known::{function}")) && line.contains(data);
        if !trace.faults.iter().any(fits) {
            return Err(trace.fail(&format!("no fault of {function}")));
        }
    }
    Ok(())
}

fn jit() -> Outcome {
    let script = "function hot(a){let s=0;for(let i=0;i<a.length;i++)s+=a[i];return s}
        for(let k=0;k<300;k++){let a=new Float64Array(20000);hot(a);a.fill(k)}";
    let trace = table(
        &program("node")?,
        &["--perf-basic-prof", "--no-logfile-per-isolate", "--logfile=/dev/null", "-e", script],
    )?;
    // node leaves its map behind.
    let process = trace.footer.iter().find_map(|line| line.strip_prefix("# process ")?.split(':').next());
    let _ = std::fs::remove_file(format!("/tmp/perf-{}.map", process.unwrap_or_default()));
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

/// The stack of the deepest function of `callers.c`, without the C library's part.
fn callers(how: &str) -> Outcome {
    need_events()?;
    let trace = Trace::of(&["--callgraph", how, "--format", "table"], &words(&CALLERS.build()?, &[]))?;
    let fits = |line: &String| {
        in_function(line, "innermost")
            && line.contains("<- middle+0x")
            && line.contains("<- outermost+0x")
            && line.contains("<- main+0x")
    };
    if !trace.faults.iter().any(fits) {
        return Err(trace.fail("no stack of innermost, middle, outermost, main"));
    }
    Ok(())
}
