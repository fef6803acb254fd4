//! neap in programs on musl: `libneap.so`, the same file as for glibc, preloaded; `neap.o` linked into a static
//! program; the Rust crate in a static program. `docs/platforms.md` has more.
//!
//! Some tests fail on musl with or without neap: [`SURFACE`] and [`LIFE`] name them.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use neap_tests::system::tail;
use neap_tests::{Case, Outcome, Run, Stop, expect, library, package_dir, program, suite, target_dir};

const TARGET: &str = "x86_64-unknown-linux-musl";

/// Tests of the surface that are left out: programs in C++, for which there is no compiler for musl here; the format of
/// the library file; and libneap.a, which other runs test.
const SURFACE: &[&str] = &["new::", "object::", "archive::", "table::complete"];
/// Tests of life that are left out.
const LIFE: &[&str] = &[
    // musl does not call functions before constructors, from which this program learns its case.
    "start::",
    // The filter permits glibc's calls: musl's printf makes another one (writev), also without neap.
    "limits::seccomp_",
    // fork deadlocks in musl itself, also without neap.
    "fork::while_streams_are_flushed",
    // musl has neither, and no blocks of another allocator that could be asked about.
    "dl::deepbind",
    "dl::dlmopen_namespace",
    "dl::foreign_under_filter",
    "dl::by_dlsym",
    "dl::by_library_first_in_threads",
    "dl::by_rtld_next",
    // A library with initial-exec storage cannot be loaded late.
    "dl::library_loaded_late",
    "unload::",
    // C++.
    "dl::operators_of_a_plugin",
    "tls::",
    "table::complete",
];

fn main() -> ExitCode {
    let whole = |name: &'static str, catches, test: &'static str, left_out: &'static [&'static str]| {
        Case::new(name, catches, move || passes(test, left_out)).exclusive()
    };
    suite::main(vec![
        Case::new("smoke::preload", "a libneap.so that musl cannot load, or that works with glibc only", preload),
        Case::new("smoke::object", "a neap.o that does not link before libc.a, or not in place of its malloc", object),
        Case::new("smoke::crate", "a Rust crate that needs glibc", rust),
        Case::new("smoke::command", "neap run that refuses programs on musl", command),
        Case::new("smoke::summary", "blocks of the loader that count as inherited at a fork", summary),
        whole("whole::surface", "a function that differs on musl", "surface", SURFACE),
        whole("whole::life", "start, threads, forks and loaded libraries", "life", LIFE),
        Case::new("whole::threads", "a job that is slower on musl than on glibc", job).exclusive(),
    ])
}

/// A program of `tests/musl`, compiled by `compiler` with more arguments.
fn compiled(compiler: &str, source: &str, name: &str, arguments: &[&str]) -> Result<PathBuf, Stop> {
    let folder = target_dir().join("musl");
    std::fs::create_dir_all(&folder)?;
    let to = folder.join(name);
    let flags = ["-O1", "-pthread", "-fno-builtin", "-Wall", "-Wextra", "-D_GNU_SOURCE", "-Wno-sign-compare"];
    let mut command = Command::new(program(compiler)?);
    command.args(flags).arg("-I").arg(package_dir().join("include")).arg(package_dir().join("musl").join(source));
    let done = command.args(arguments).arg("-o").arg(&to).output()?;
    if done.status.success() { Ok(to) } else { Err(Stop::Fail(format!("{source} does not compile: {}", tail(&done)))) }
}

/// Runs the small program: it ends well, reads neap's options, and misuse is named.
fn small(run: impl Fn() -> Run) -> Outcome {
    let done = run().env("NEAP_FOREIGN", "perhaps").timeout(Duration::from_secs(60)).run()?.success()?;
    expect(done.stdout.ends_with("ok\n"), &done, "the handler at exit did not run")?;
    done.contains("NEAP_FOREIGN")?;
    run().arg("misuse").run()?.contains("double free")?;
    Ok(())
}

fn preload() -> Outcome {
    library::require_neap()?;
    let program = compiled("musl-gcc", "small.c", "small", &[])?;
    small(|| Run::new(&program))
}

/// `neap.o`, built afresh.
fn made_object() -> Result<PathBuf, Stop> {
    let folder = library::require_neap()?.parent().map(Path::to_path_buf).unwrap_or_default();
    let done = cargo().args(["run", "-q", "-p", "xtask", "--", "object", "--dir"]).arg(&folder).output()?;
    if !done.status.success() {
        return Err(Stop::Fail(format!("cannot make neap.o: {}", tail(&done))));
    }
    Ok(folder.join("neap.o"))
}

fn object() -> Outcome {
    let object = made_object()?;
    let program = compiled("musl-gcc", "small.c", "small-static", &["-static", &object.to_string_lossy()])?;
    small(|| Run::new(&program).plain())
}

fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(package_dir());
    command
}

fn rust() -> Outcome {
    let rustc = Command::new("rustc").args(["--print", "target-libdir", "--target", TARGET]).output()?;
    if !Path::new(String::from_utf8_lossy(&rustc.stdout).trim()).exists() {
        return Err(Stop::Skip(format!("no Rust for musl here: rustup target add {TARGET}")));
    }
    let example = ["build", "-q", "-p", "neap", "--example", "everywhere", "--target", TARGET, "--target-dir"];
    let done = cargo().args(example).arg(target_dir()).output()?;
    if !done.status.success() {
        return Err(Stop::Fail(format!("cannot build for musl: {}", tail(&done))));
    }
    let program = target_dir().join(TARGET).join("debug/examples/everywhere");
    let done = Run::new(program).plain().timeout(Duration::from_secs(60)).run()?.success()?;
    expect(done.stdout.ends_with("bytes went back\n"), &done, "the program ended early")
}

fn command() -> Outcome {
    let neap = neap_tests::command::neap()?;
    let program = compiled("musl-gcc", "small.c", "small-run", &[])?;
    let done = Run::new(neap).args(["run", "--"]).arg(program).plain().timeout(Duration::from_secs(60)).run()?;
    let done = done.success()?;
    expect(done.stdout.ends_with("ok\n"), &done, "the handler at exit did not run")
}

/// Catches blocks of musl's loader that count as a parent's at a fork.
fn summary() -> Outcome {
    let neap = neap_tests::command::neap()?;
    let program = compiled("musl-gcc", "nothing.c", "nothing", &[])?;
    let run = Run::new(neap).args(["run", "--summary", "--"]).arg(program).plain();
    let done = run.timeout(Duration::from_secs(60)).run()?.success()?;
    let counts = done.stderr.contains("  allocated ") && !done.stderr.contains("inherited");
    expect(counts, &done, "it has inherited blocks without a fork")
}

/// A compiler for musl that also declares glibc's functions of malloc that neap has; they come from the library in
/// `LD_PRELOAD`. For the linker, a stub library under musl's name defines them, so that musl loads nothing for it.
fn compiler() -> Result<PathBuf, Stop> {
    let (gcc, folder) = (program("musl-gcc")?, target_dir().join("musl"));
    std::fs::create_dir_all(&folder)?;
    let (stub, source) = (folder.join("more.so"), folder.join("more.c"));
    let names = ["pvalloc", "malloc_info", "malloc_trim", "mallopt", "malloc_stats"];
    std::fs::write(&source, names.map(|name| format!("void {name}(void) {{}}\n")).concat())?;
    let done = Command::new(&gcc)
        .args(["-shared", "-fno-builtin", "-w", "-Wl,-soname,libc.musl.so.1", "-o"])
        .args([&stub, &source])
        .output()?;
    if !done.status.success() {
        return Err(Stop::Fail(tail(&done)));
    }
    let path = folder.join("musl-cc");
    let header = package_dir().join("musl/glibc.h");
    // The kernel's headers lie among glibc's.
    let headers = "-idirafter /usr/include -idirafter /usr/include/x86_64-linux-gnu";
    let (gcc, header, stub) = (gcc.display(), header.display(), stub.display());
    let text = format!("#!/bin/sh\nexec '{gcc}' -include '{header}' {headers} \"$@\" '{stub}'\n");
    std::fs::write(&path, text)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
    Ok(path)
}

/// The tests of the test program `test` pass on musl, except those that are left out.
fn passes(test: &str, left_out: &[&str]) -> Outcome {
    let library = library::require_neap()?;
    let skips = left_out.iter().flat_map(|&skip| ["--skip", skip]);
    let mut command = cargo();
    command.args(["test", "-p", "neap-tests", "--test", test, "--"]).args(skips);
    let done = command.env("NEAP_TEST_LIB", library).env("CC", compiler()?).env("CXX", "false").output()?;
    let text = String::from_utf8_lossy(&done.stdout);
    let result = text.lines().find(|line| line.starts_with("test result")).unwrap_or("no result");
    if !done.status.success() || result.contains(" 0 passed") {
        return Err(Stop::Fail(tail(&done)));
    }
    suite::note(format!("{test}: {result}"));
    Ok(())
}

/// Limit on the time of the job on musl with neap, relative to its time on glibc with neap.
const MOST: f64 = 1.05;

/// The job of 32 threads is as fast on musl with neap as on glibc with neap: the shortest of some runs, in turns.
fn job() -> Outcome {
    library::require_neap()?;
    let (glibc, musl) = (compiled("cc", "job.c", "job-glibc", &[])?, compiled("musl-gcc", "job.c", "job-musl", &[])?);
    let time = |run: Run| -> Result<f64, Stop> {
        let done = run.timeout(Duration::from_secs(300)).run()?.success()?;
        done.stdout.trim().parse().map_err(|_| done.fail("no number"))
    };
    let own = time(Run::new(&musl).plain())?;
    let (mut on_glibc, mut on_musl) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..15 {
        on_glibc = on_glibc.min(time(Run::new(&glibc))?);
        on_musl = on_musl.min(time(Run::new(&musl))?);
    }
    let text =
        format!("32 threads: neap on glibc {on_glibc:.0} ms, neap on musl {on_musl:.0} ms, musl's own {own:.0} ms");
    suite::note(text.clone());
    if on_musl <= on_glibc * MOST { Ok(()) } else { Err(Stop::Fail(text)) }
}
