//! Another system for the test programs: a folder made by debootstrap, named by `NEAP_TEST_ROOT`. The programs are
//! compiled (unless `CC` and `CXX` name compilers of this system) and run there. `tests/systems.rs` prepares such
//! folders; neap's folders, the kernel's and the temporary ones are mounted there under the same names.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::{Outcome, Stop, library, program, target_dir};

/// The folder, if the tests have one.
pub fn root() -> Option<PathBuf> {
    std::env::var_os("NEAP_TEST_ROOT").filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// Makes `command` run in the other system, if there is one.
pub fn enter(command: &mut Command) {
    if let Some(root) = root() {
        // SAFETY: between fork and exec it only makes two system calls.
        unsafe {
            command.pre_exec(move || {
                std::os::unix::fs::chroot(&root)?;
                std::env::set_current_dir("/")
            });
        }
    }
}

/// Whether a program runs in the other system: it was built for the tests.
pub fn has(program: &Path) -> bool {
    root().is_some() && program.starts_with(crate::target_dir())
}

/// The folder with the system `name`, made by debootstrap with these options on first use and kept in `target/systems`.
/// `finish` gets it before it is complete.
pub fn made(name: &str, options: &[&str], finish: impl FnOnce(&Path) -> Outcome) -> Result<PathBuf, Stop> {
    if !crate::is_root() {
        return Err(Stop::Skip("making a system needs root".into()));
    }
    let all = target_dir().join("systems");
    let (folder, partial) = (all.join(name), all.join(format!("{name}.partial")));
    if folder.exists() {
        return Ok(folder);
    }
    std::fs::create_dir_all(&all)?;
    if partial.exists() {
        std::fs::remove_dir_all(&partial)?;
    }
    // The release is the last option, and the folder comes behind it.
    let done = Command::new(program("debootstrap")?).arg("--variant=minbase").args(options).arg(&partial).output()?;
    if !done.status.success() {
        return Err(Stop::Skip(format!("debootstrap cannot make the system {name}: {}", tail(&done))));
    }
    finish(&partial)?;
    std::fs::rename(&partial, &folder)?;
    Ok(folder)
}

/// The system of a release of Debian, with compilers.
pub fn with_compilers(release: &str) -> Result<PathBuf, Stop> {
    made(release, &["--include=gcc,g++,libc6-dev", release], |_| Ok(()))
}

/// The end of a program's output, without the names of passed tests.
pub fn tail(done: &Output) -> String {
    const LINES: usize = 80;
    let text = [&done.stdout[..], &done.stderr[..]].map(String::from_utf8_lossy).concat();
    let lines: Vec<&str> = text.lines().filter(|line| !line.ends_with("... ok")).collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}

/// Skips the test where the library under test is for another processor than this program.
pub fn need_native() -> Result<(), Stop> {
    /// Bytes of an ELF file up to the processor's number.
    const HEADER: usize = 20;
    let machine = |path: &Path| std::fs::read(path).ok()?.get(HEADER - 2..HEADER).map(<[u8]>::to_vec);
    let Some(library) = library::under_test()?.path() else { return Ok(()) };
    if machine(library) == machine(&std::env::current_exe()?) {
        Ok(())
    } else {
        Err(Stop::Skip("the library under test is for another processor".into()))
    }
}
