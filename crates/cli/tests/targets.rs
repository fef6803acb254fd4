//! Which programs `neap run` starts, and what it says about the others before anything runs.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;

use common::{Neap, assert_refused, compile, copy_program, is_root, skip, stderr, stdout};

/// Catches names that are looked up otherwise than a shell does.
#[test]
fn missing_programs_are_127() {
    let neap = Neap::new();
    assert_refused(&neap.run(["no-such-program"]), 127, &["no-such-program", "not found in PATH"]);
    assert_refused(&neap.run(["/no/such/program"]), 127, &["no such file"]);
    assert_refused(&neap.run([""]), 127, &["empty"]);
}

/// Catches directories and plain files that get as far as the kernel.
#[test]
fn what_cannot_be_executed_is_126() {
    let neap = Neap::new();
    assert_refused(&neap.run([neap.dir.path()]), 126, &["directory"]);
    let plain = neap.file("plain", "#!/bin/sh\n", 0o644);
    assert_refused(&neap.run([&plain]), 126, &["permission denied", "chmod +x"]);
    assert_refused(&neap.run(["/dev/null"]), 126, &["permission denied"]);
    let text = neap.file("text", "echo hello\n", 0o755);
    assert_refused(&neap.run([&text]), 126, &["neither an ELF program nor a script", "name its shell: sh "]);
    let empty = neap.file("empty", "", 0o755);
    assert_refused(&neap.run([&empty]), 126, &["neither"]);
}

/// Catches scripts that are refused, and interpreters that are not looked at.
#[test]
fn scripts_run_through_their_interpreter() {
    let neap = Neap::new();
    let direct = neap.file("direct", "#!/bin/sh\necho \"$LD_PRELOAD $1\"\n", 0o755);
    let output = neap.run([direct.to_str().expect("UTF-8"), "argument"]);
    assert!(stdout(&output).contains("libneap.so argument"), "{} {}", stdout(&output), stderr(&output));
    let through_env = neap.file("through-env", "#!/usr/bin/env sh\necho here\n", 0o755);
    assert_eq!(stdout(&neap.run([&through_env])), "here\n");
    let nested = neap.file("nested", format!("#!{}\n", direct.display()), 0o755);
    assert!(stdout(&neap.run([&nested])).contains("libneap.so"), "{}", stderr(&neap.run([&nested])));

    let broken = neap.file("broken", "#!/no/such/interpreter\n", 0o755);
    assert_refused(&neap.run([&broken]), 127, &["broken", "/no/such/interpreter", "No such file"]);
    let missing = neap.file("missing", "#!/usr/bin/env no-such-interpreter\n", 0o755);
    assert_refused(&neap.run([&missing]), 127, &["no-such-interpreter"]);
    let round = neap.path("round");
    neap.file("round", format!("#!{}\n", round.display()), 0o755);
    assert_refused(&neap.run([&round]), 126, &["too many levels"]);
}

/// Catches static programs that would silently run without the allocator.
#[test]
fn static_programs_are_refused() {
    let neap = Neap::new();
    let source = "#include <stdio.h>\nint main(void) { puts(\"ran\"); return 0; }\n";
    for (name, flags) in [("static", &["-static"][..]), ("static-pie", &["-static-pie"][..])] {
        let Some(program) = compile(neap.dir.path(), name, source, flags) else {
            skip("static_programs_are_refused", "no static C library (or no C compiler)");
            continue;
        };
        assert_refused(&neap.run([&program]), 126, &["statically linked", "libneap.a"]);
        let script = neap.file("script", format!("#!{}\n", program.display()), 0o755);
        assert_refused(&neap.run([&script]), 126, &["statically linked"]);
    }
}

/// Catches programs of another processor or of another word size.
#[test]
fn programs_for_other_machines_are_refused() {
    let neap = Neap::new();
    let mut file = fs::read("/bin/true").expect("/bin/true");
    file[18] = 243;
    let riscv = neap.file("riscv", &file, 0o755);
    assert_refused(&neap.run([&riscv]), 126, &["RISC-V", std::env::consts::ARCH]);
    let mut file = fs::read("/bin/true").expect("/bin/true");
    (file[4], file[18]) = (1, 3);
    let x86 = neap.file("x86", &file, 0o755);
    assert_refused(&neap.run([&x86]), 126, &["32-bit x86"]);
    let damaged = neap.file("damaged", &file[..30], 0o755);
    assert_eq!(neap.run([&damaged]).status.code(), Some(126));
}

/// Catches programs for another C library, and a missing dynamic linker reported as a missing program.
#[test]
fn programs_for_other_c_libraries_are_refused() {
    let neap = Neap::new();
    let source = "int main(void) { return 0; }\n";
    for (name, linker, status, words) in [
        ("other", "/lib/ld-uClibc.so.1", 126, ["neither glibc nor musl", "ld-uClibc"]),
        ("absent", "/no/such/ld-linux.so.2", 127, ["dynamic linker", "/no/such"]),
    ] {
        let flag = format!("-Wl,--dynamic-linker={linker}");
        match compile(neap.dir.path(), name, source, &[&flag]) {
            Some(program) => assert_refused(&neap.run([&program]), status, &words),
            None => skip("programs_for_other_c_libraries_are_refused", "no C compiler"),
        }
    }
}

/// Catches programs with a sanitizer that abort, hang or find nothing because another malloc is in front of its own; and
/// those refused whose sanitizer has none.
#[test]
fn programs_with_a_sanitizer_are_refused() {
    let neap = Neap::new();
    let source = "#include <stdio.h>\nint main(void) { puts(\"ran\"); return 0; }\n";
    for (flag, name) in [
        ("-fsanitize=address", "AddressSanitizer"),
        ("-fsanitize=thread", "ThreadSanitizer"),
        ("-fsanitize=leak", "LeakSanitizer"),
    ] {
        // Clang links the runtime statically unless asked otherwise, GCC dynamically.
        for (kind, linked) in [("", None), ("static", Some("-static-lib")), ("stripped", Some("-s"))] {
            let short = flag.trim_start_matches("-fsanitize=").chars().next().expect("a name");
            let linked = linked.map(|l| if l == "-s" { l.to_owned() } else { format!("{l}{short}san") });
            let flags: Vec<&str> = [flag].into_iter().chain(linked.as_deref()).collect();
            match compile(neap.dir.path(), &format!("{name}{kind}"), source, &flags) {
                Some(program) => {
                    let what = if kind == "static" { "anitizer" } else { name };
                    assert_refused(&neap.run([&program]), 126, &["built with", what, "its own malloc", "hint: "]);
                }
                None => skip("programs_with_a_sanitizer_are_refused", &format!("no runtime for {flags:?}")),
            }
        }
    }
    match compile(neap.dir.path(), "undefined", source, &["-fsanitize=undefined"]) {
        Some(program) => assert_eq!(stdout(&neap.run([&program])), "ran\n"),
        None => skip("programs_with_a_sanitizer_are_refused", "no runtime for -fsanitize=undefined"),
    }
}

/// Catches a runtime in LD_PRELOAD that neap would be put in front of.
#[test]
fn a_preloaded_sanitizer_is_refused() {
    let neap = Neap::new();
    for list in ["/usr/lib/libasan.so.8", "libc.so.6 libtsan.so.2"] {
        let output = neap.command(["run", "--", "/bin/true"]).env("LD_PRELOAD", list).output().expect("neap starts");
        assert_refused(&output, 126, &["LD_PRELOAD has", "Sanitizer", "own malloc", "take the runtime out"]);
    }
}

/// Catches set-user-id programs that would run without the allocator, and refusals of those that would not.
#[test]
fn setuid_programs_are_refused_where_they_change_the_user() {
    if !is_root() {
        return skip("setuid_programs_are_refused_where_they_change_the_user", "needs root to make one");
    }
    let neap = Neap::new();
    let program = neap.path("setuid");
    copy_program("/bin/true", &program);
    std::os::unix::fs::chown(&program, Some(65534), None).expect("chown");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).expect("chmod");
    assert_refused(&neap.run([&program]), 126, &["user 65534", "set-user-id", "LD_PRELOAD"]);
    std::os::unix::fs::chown(&program, Some(0), None).expect("chown");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).expect("chmod");
    assert_eq!(neap.run([&program]).status.code(), Some(0));
}

/// Catches an execve that is made although the inspection could not be.
#[test]
fn unreadable_programs_run() {
    if is_root() {
        return skip("unreadable_programs_run", "root can read everything");
    }
    let neap = Neap::new();
    let program = neap.path("unreadable");
    copy_program("/bin/true", &program);
    fs::set_permissions(&program, fs::Permissions::from_mode(0o111)).expect("chmod");
    assert_eq!(neap.run([&program]).status.code(), Some(0));
}
