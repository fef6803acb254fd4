//! Another system for the test programs: a folder with one, as debootstrap makes it, named by `NEAP_TEST_ROOT`. There
//! they are compiled (unless `CC` and `CXX` name compilers of this system) and run. `tests/systems.rs` prepares such
//! folders; the folders of neap, the kernel's and the temporary ones are mounted there under the same names.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Stop, library};

/// The folder, if the tests have one.
pub fn root() -> Option<PathBuf> {
    std::env::var_os("NEAP_TEST_ROOT").filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// Has `command` run in the other system, if there is one.
pub fn enter(command: &mut Command) {
    if let Some(root) = root() {
        // SAFETY: between fork and exec two system calls are made.
        unsafe {
            command.pre_exec(move || {
                std::os::unix::fs::chroot(&root)?;
                std::env::set_current_dir("/")
            });
        }
    }
}

/// Whether a program belongs to the other system: it was built for the tests.
pub fn has(program: &Path) -> bool {
    root().is_some() && program.starts_with(crate::target_dir())
}

/// Stops the test where the library under test is for another processor than this program.
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
