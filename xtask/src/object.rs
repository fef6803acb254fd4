//! `cargo xtask object`: makes `neap.o`. A static program has neap's malloc if this file is on its linker's command
//! line.
//!
//! `libneap.a` serves static programs with glibc. With musl the position of the archive on the command line would
//! decide whose malloc is linked. So neap is one object there, and the linker takes from `libc.a` only what that lacks.
//! Functions outside of the malloc family are weak in it, because programs may define them.

use crate::place::root;
use anyhow::{Context, Result, ensure};
use clap::Args as ClapArgs;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Options of `cargo xtask object`.
#[derive(ClapArgs)]
pub struct Args {
    /// Folder with libneap.so and libneap.a, where neap.o will lie
    #[arg(long, default_value = "target/release")]
    dir: PathBuf,

    /// In front of the names of binutils: aarch64-linux-gnu-
    #[arg(long, default_value = "")]
    tools: String,
}

/// Runs `cargo xtask object`.
pub fn main(args: &Args) -> Result<()> {
    make(&root().join(&args.dir), &args.tools)
}

/// The functions that must not come from libc.a.
const FAMILY: [&str; 11] = [
    "malloc",
    "free",
    "calloc",
    "realloc",
    "reallocarray",
    "memalign",
    "aligned_alloc",
    "posix_memalign",
    "valloc",
    "pvalloc",
    "malloc_usable_size",
];

/// A reference to the function that neap refers to weakly (`crates/sys/src/musl.rs`), and a mark for a non-executable
/// stack.
const NEEDS: &str =
    ".section .neap.needs,\"\",%progbits\n.quad pthread_atfork\n.section .note.GNU-stack,\"\",%progbits\n";

/// Makes `neap.o` in the folder of the library.
pub fn make(dir: &Path, tools: &str) -> Result<()> {
    let at = |name: &str| dir.join(name).to_string_lossy().into_owned();
    let tool = |name: &str, args: &[&str]| -> Result<String> {
        let name = format!("{tools}{name}");
        let done = Command::new(&name).args(args).output().with_context(|| format!("cannot run {name}"))?;
        ensure!(done.status.success(), "{name} failed: {}", String::from_utf8_lossy(&done.stderr));
        Ok(String::from_utf8_lossy(&done.stdout).into_owned())
    };
    let table = tool("nm", &["-D", "--defined-only", &at("libneap.so")])?;
    // Names of the C library itself come from libc.a.
    let names = table.lines().filter_map(|line| line.split_whitespace().last()).filter(|name| !name.starts_with("__"));
    let names: Vec<&str> = names.collect();
    ensure!(FAMILY.iter().all(|name| names.contains(name)), "libneap.so lacks functions of malloc");
    let weak = names.iter().filter(|name| !FAMILY.contains(name) && !name.starts_with("_Z")).copied();
    fs::write(at("neap.kept"), names.join("\n"))?;
    fs::write(at("neap.weak"), weak.collect::<Vec<_>>().join("\n"))?;
    fs::write(at("neap.s"), NEEDS)?;
    tool("as", &["-o", &at("neap.needs.o"), &at("neap.s")])?;
    tool("ld", &["-r", "-u", "malloc", "-o", &at("neap.all.o"), &at("neap.needs.o"), &at("libneap.a")])?;
    let (kept, weak) =
        (format!("--keep-global-symbols={}", at("neap.kept")), format!("--weaken-symbols={}", at("neap.weak")));
    let partial = at("neap.o.partial");
    tool("objcopy", &["--strip-debug", &kept, &weak, &at("neap.all.o"), &partial])?;
    for name in ["neap.kept", "neap.weak", "neap.s", "neap.needs.o", "neap.all.o"] {
        fs::remove_file(at(name))?;
    }
    fs::rename(partial, at("neap.o"))?;
    Ok(())
}
