//! libneap.so as built here, on other systems: with the oldest and the newest C library that debootstrap can install.
//! The tests of the surface and of life build and run their programs there (`neap_tests::system`).
//!
//! The folders with the systems are kept in `target/systems`. Mounts in them are visible to one test only, and end with
//! it.

use std::path::Path;
use std::process::{Command, ExitCode, Output};

use neap_tests::system::{tail, with_compilers};
use neap_tests::{Case, Outcome, Stop, library, program, suite, target_dir};

/// A system: its name, and Debian's release.
struct System {
    name: &'static str,
    release: &'static str,
}

/// glibc 2.31, in which threads and dlopen are libraries of their own.
const OLD: System = System { name: "old", release: "bullseye" };
/// glibc 2.43 or newer.
const NEW: System = System { name: "new", release: "sid" };

fn main() -> ExitCode {
    let case = |system: &'static System, test: &'static str, catches| {
        Case::new(format!("{}::{test}", system.name), catches, move || passes(system, test)).exclusive()
    };
    suite::main(vec![
        case(&OLD, "surface", "a function of the C library that older ones lack, or have in another object"),
        case(&OLD, "life", "a libpthread that is loaded late, and ends of threads that go unnoticed"),
        case(&NEW, "surface", "a promise that newer C libraries have withdrawn"),
        case(&NEW, "life", "the same for threads, forks and loaded libraries"),
    ])
}

/// Mounts what the tests need in the folder `$1`, and runs the rest.
const MOUNT: &str = r#"set -e
root=$1
shift
for folder in /tmp /proc /dev /sys "$WORKSPACE" "$TARGET"; do
    mkdir -p "$root$folder"
    mount --rbind "$folder" "$root$folder"
done
exec "$@""#;

/// Checks that all tests of a test program pass in the system.
fn passes(system: &System, test: &str) -> Outcome {
    let library = library::require_neap()?;
    let folder = with_compilers(system.release)?;
    let workspace = neap_tests::package_dir().parent().unwrap_or(Path::new("/"));
    let done = Command::new(program("unshare")?)
        .args(["--mount", "sh", "-c", MOUNT, "sh"])
        .arg(&folder)
        .arg(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["test", "-p", "neap-tests", "--test", test])
        .current_dir(workspace)
        .env("WORKSPACE", workspace)
        .env("TARGET", target_dir())
        .env("NEAP_TEST_ROOT", &folder)
        .env("NEAP_TEST_LIB", library)
        .env_remove("CC")
        .env_remove("CXX")
        .output()?;
    if done.status.success() {
        suite::note(format!("{} {test}: {}", system.name, result(&done)));
        Ok(())
    } else {
        Err(Stop::Fail(tail(&done)))
    }
}

/// The line with the counts of tests.
fn result(done: &Output) -> String {
    let text = String::from_utf8_lossy(&done.stdout);
    text.lines().filter(|line| line.starts_with("test result")).collect::<Vec<_>>().join("; ")
}
