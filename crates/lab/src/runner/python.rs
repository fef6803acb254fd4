//! Where Python is.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::interrupt;
use crate::toolchain::find_program;

/// Python's own program: `python3` may be a shell script that chooses one of several, and would be measured too.
pub(super) fn find() -> Option<PathBuf> {
    let mut command = Command::new(find_program("python3")?);
    let out =
        interrupt::output(command.args(["-c", "import sys; print(sys.executable)"]), Some(Duration::from_secs(10)));
    let path = PathBuf::from(out.ok()?.stdout.trim());
    path.is_file().then_some(path)
}
