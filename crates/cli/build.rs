//! Links the command statically where it can.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let out_dir = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let target = env::var("TARGET").expect("cargo sets TARGET");
    link_statically(&out_dir, &target);
    println!("cargo:rerun-if-changed=build.rs");
}

/// The libraries that rustc names on the link line of a glibc program, and the archives in their place. On Arm the C
/// library calls the compiler's own functions for atomic operations and long doubles.
const SYSTEM_LIBRARIES: &[(&str, &[&str])] = &[
    ("gcc_s", &["gcc_eh"]),
    ("util", &["util"]),
    ("rt", &["rt"]),
    ("pthread", &["pthread"]),
    ("m", &["m"]),
    ("dl", &["dl"]),
    ("c", &["c", "gcc"]),
];

/// Links the command (not the library) as static-pie where the C library's archives are installed, also for another
/// processor: it then starts without a dynamic linker, which is a third of what `neap run` adds to a program's start.
/// Nothing depends on it; where the archives are missing the command is linked as usual. NEAP_LINK_DYNAMIC=1 asks for
/// that everywhere.
///
/// rustc's own switch (`+crt-static`) is one for the whole build, and there it would take away libneap.so.
/// The same link line results from shadowing the shared libraries: a linker script `libc.so` in a directory
/// that is searched first names `libc.a`.
fn link_statically(out_dir: &Path, target: &str) {
    println!("cargo:rerun-if-env-changed=NEAP_LINK_DYNAMIC");
    let env_is = |name: &str, value: &str| env::var(name).is_ok_and(|v| v == value);
    let linker = env::var_os("RUSTC_LINKER");
    // For another processor the linker is a compiler that the build names; here it is the system's.
    let unusual = linker.is_some() == env_is("HOST", target)
        || env::var_os("CARGO_ENCODED_RUSTFLAGS").is_some_and(|flags| !flags.is_empty())
        || env::var_os("NEAP_LINK_DYNAMIC").is_some_and(|v| v != "0");
    if unusual || !env_is("CARGO_CFG_TARGET_ENV", "gnu") {
        return;
    }
    let compiler = linker.unwrap_or_else(|| "cc".into());
    let system_file = |name: &str| system_file(&compiler, name);
    let libc_found = ["rcrt1.o", "libc.a", "libgcc_eh.a", "libgcc.a"].iter().all(|file| system_file(file).is_some());
    if !libc_found {
        println!("cargo:warning=no static C library is installed; neap is linked dynamically and starts 0.2 ms later");
        return;
    }
    let shadows = out_dir.join("static");
    fs::create_dir_all(&shadows).expect("OUT_DIR is writable");
    for (shared, archives) in SYSTEM_LIBRARIES {
        let paths = archives.iter().map(|archive| system_file(&format!("lib{archive}.a")));
        // Since glibc 2.34 most of them are empty; where an archive is missing the name need not be shadowed.
        if let Some(paths) = paths.collect::<Option<Vec<_>>>() {
            let names: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
            let script = format!("GROUP ( {} )\n", names.join(" "));
            fs::write(shadows.join(format!("lib{shared}.so")), script).expect("OUT_DIR is writable");
        }
    }
    println!("cargo:rustc-link-arg-bin=neap=-L{}", shadows.display());
    println!("cargo:rustc-link-arg-bin=neap=-static-pie");
}

/// Where the C compiler, which is rustc's linker, finds a file of the system.
fn system_file(compiler: &OsStr, name: &str) -> Option<PathBuf> {
    let output = Command::new(compiler).arg(format!("-print-file-name={name}")).output().ok()?;
    let path = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
    // A file that is not found is printed as its bare name. Linker scripts split names at spaces.
    (path.is_absolute() && !path.to_str()?.contains(' ')).then(|| path.canonicalize().ok())?
}
