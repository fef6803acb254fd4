//! The files of `cargo xtask install` are enough to build and run C and C++ programs with neap.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const PROGRAM: &str = r#"
#include <neap.h>
#include <stdio.h>
#include <stdlib.h>
int main(void) {
    free_sized(malloc(5), 5);
    void *large = malloc(1 << 20);
    free(large);
    printf("%s %d.%d.%d %d\n", neap_version(), NEAP_VERSION_MAJOR, NEAP_VERSION_MINOR, NEAP_VERSION_PATCH,
           neap_purge() > 0);
    return 0;
}
"#;

struct Prefix(PathBuf);

impl Drop for Prefix {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn installed() -> Prefix {
    let prefix = Prefix(std::env::temp_dir().join(format!("neap-install-{}", std::process::id())));
    let output =
        Command::new(env!("CARGO_BIN_EXE_xtask")).args(["install", "--prefix"]).arg(&prefix.0).output().expect("xtask");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    prefix
}

fn ran(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|e| panic!("cannot start {command:?}: {e}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// Compiles the program with `compiler` and runs it.
fn check(prefix: &Path, name: &str, compiler: &[&str], libraries: &[String]) {
    let program = prefix.join(name);
    ran(Command::new(compiler[0])
        .args(&compiler[1..])
        .arg(prefix.join("program.c"))
        .arg(format!("-I{}", prefix.join("include").display()))
        .args(libraries)
        .arg("-o")
        .arg(&program));
    let output = ran(Command::new(&program).env("LD_LIBRARY_PATH", prefix.join("lib")));
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{version} {version} 1\n"), "{name}");
}

/// Catches a header that some standard refuses, a missing or misnamed file, a soname without a file, and an archive
/// that cannot be linked into a static program.
#[test]
fn programs_build_and_run() {
    let prefix = installed();
    let prefix = prefix.0.as_path();
    std::fs::write(prefix.join("program.c"), PROGRAM).expect("writable");
    let strict = ["-Wall", "-Wextra", "-Werror", "-pedantic"];
    let flags = |compiler: &'static str, more: &[&'static str]| [&[compiler], more, &strict[..]].concat();
    let shared = [format!("-L{}", prefix.join("lib").display()), "-lneap".to_owned()];
    let archive = [prefix.join("lib/libneap.a").display().to_string()];
    check(prefix, "c11", &flags("cc", &["-std=c11"]), &shared);
    check(prefix, "c23", &flags("cc", &["-std=gnu2x", "-Wno-pedantic"]), &shared);
    check(prefix, "c++17", &flags("c++", &["-std=c++17", "-x", "c++"]), &shared);
    check(prefix, "archive", &flags("cc", &["-std=c11"]), &archive);
    // Skipped if there is no compiler for musl.
    if Command::new("musl-gcc").arg("--version").output().is_ok() {
        check(prefix, "musl", &["musl-gcc", "-static", "-std=c11"], &[prefix.join("lib/neap.o").display().to_string()]);
    }
    check(prefix, "static", &["cc", "-static", "-std=c11"], &archive);
    let config = std::fs::read_to_string(prefix.join("lib/pkgconfig/neap.pc")).expect("neap.pc");
    assert!(config.contains(&format!("prefix={}\n", prefix.display())) && !config.contains('@'), "{config}");
    for file in ["man/man1/neap.1", "man/man1/neap-why.1", "bash-completion/completions/neap"] {
        assert!(prefix.join("share").join(file).is_file(), "{file}");
    }
    ran(Command::new(prefix.join("bin/neap")).args(["run", "--", "true"]).env("HOME", prefix));
    exports_are_declared(prefix);
}

/// All of neap's own functions are in the header, and nothing else is.
fn exports_are_declared(prefix: &Path) {
    let output = ran(Command::new("nm").args(["-D", "--defined-only"]).arg(prefix.join("lib/libneap.so")));
    let symbols = String::from_utf8_lossy(&output.stdout).into_owned();
    let exported: BTreeSet<&str> = symbols.split_whitespace().filter(|word| word.starts_with("neap_")).collect();
    let header = std::fs::read_to_string(prefix.join("include/neap.h")).expect("the header");
    // Only names before a parenthesis, because types have neap's prefix too.
    let declared: BTreeSet<&str> = header
        .split('(')
        .filter_map(|text| text.rsplit(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).next())
        .filter(|word| word.starts_with("neap_"))
        .collect();
    assert_eq!(exported, declared);
    assert!(!exported.is_empty());
}
