//! What `harden=on` promises, checked in whole programs.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitCode;

use neap_tests::{Case, Outcome, Run, Source, Stop, library, program, suite};
use regex::Regex;

const HARD: Source = Source::with_flags("harden/hard.c", &["-w", "-O0", "-fno-builtin"]);

fn main() -> ExitCode {
    suite::main(vec![
        Case::new("zeroed", "a freed block whose contents can still be read", || done("zeroed")),
        Case::new("random", "blocks at predictable addresses", || done("random")),
        Case::new("resized", "realloc that copies a guard, or loses it", || done("resized")),
        Case::new("many", "more guards than the kernel's limit on mappings", || done("many")),
        Case::new("written_after_free", "a freed block that was written and is handed out again", || {
            message("after-free", r"neap: corrupted free block ADDR \(\d+-byte block\): written after free")
        }),
        Case::new("twice", "a double free that is not detected at once", || {
            message("twice", r"neap: double free of ADDR \(\d+-byte block, by thread \d+\)")
        }),
        Case::new("over_slab", "writes that leave their slab", || crashes("over-slab")),
        Case::new("over_large", "a write behind a large block", || crashes("over-large")),
        Case::new("programs", "correct programs that hardening breaks", programs),
    ])
}

fn hard(mode: &str) -> Result<Run, Stop> {
    library::require_neap()?;
    Ok(Run::new(HARD.build()?).arg(mode).env("NEAP_HARDEN", "on"))
}

fn done(mode: &str) -> Outcome {
    let run = hard(mode)?.run()?.success()?;
    if run.stdout == "done\n" && run.stderr.is_empty() { Ok(()) } else { Err(run.fail("it did not come to its end")) }
}

/// The program ends by SIGABRT with one line and a stack behind it; ADDR in `says` stands for the address that it
/// printed.
fn message(mode: &str, says: &str) -> Outcome {
    let run = hard(mode)?.run()?;
    let wanted = format!("^{}\n(    .*\n)*$", says.replace("ADDR", run.stdout.trim()));
    if run.status.signal() == Some(libc::SIGABRT) && Regex::new(&wanted).is_ok_and(|r| r.is_match(&run.stderr)) {
        Ok(())
    } else {
        Err(run.fail(&format!("expected SIGABRT and {wanted}")))
    }
}

/// The program ends by SIGSEGV at a guard.
fn crashes(mode: &str) -> Outcome {
    let run = hard(mode)?.run()?;
    if run.status.signal() == Some(libc::SIGSEGV) && run.stdout == "writing\n" {
        Ok(())
    } else {
        Err(run.fail("expected SIGSEGV at the guard"))
    }
}

fn programs() -> Outcome {
    library::require_neap()?;
    let python = "import json, re, threading\n\
        d = {str(i): [i] * (i % 50) for i in range(20000)}\n\
        t = [threading.Thread(target=lambda: json.loads(json.dumps(d))) for _ in range(4)]\n\
        [x.start() for x in t]; [x.join() for x in t]\n\
        print(len(re.findall('1+', json.dumps(d))) > 0)";
    let mut ran = 0;
    for (name, arguments, wanted) in [
        ("python3", vec!["-c", python], "True\n"),
        (
            "perl",
            vec!["-e", "my %h; $h{$_} = 'x' x ($_ % 300) for 1..50000; print scalar(keys %h), \"\\n\""],
            "50000\n",
        ),
        ("sh", vec!["-c", "seq 100000 | sort -r | sort -n | tail -1"], "100000\n"),
    ] {
        let Ok(path) = program(name) else { continue };
        let run = Run::new(path).args(&arguments).env("NEAP_HARDEN", "on").env("PYTHONMALLOC", "malloc");
        let run = run.run()?.success()?;
        if run.stdout != wanted || !run.stderr.is_empty() {
            return Err(run.fail(&format!("{name} does not work")));
        }
        ran += 1;
    }
    if ran == 0 { Err(Stop::Skip("none of the programs is installed".into())) } else { Ok(()) }
}
