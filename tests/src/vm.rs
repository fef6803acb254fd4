//! A virtual machine for another processor: a kernel, and a file system in memory with programs, which
//! `tests/vm/init.c` runs one after another.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::{Finished, Run, Stop, target_dir};

/// Time limit for all programs: qemu translates each instruction, also the kernel's.
const LIMIT: Duration = Duration::from_secs(1800);

/// All extensions. Signed addresses use qemu's own cipher: Arm's would take most of the time.
const CPU: &str = "max,pauth-impdef=on";

/// The kernel and the files of a machine: name without the first slash, content.
#[derive(Debug)]
pub struct Machine {
    qemu: PathBuf,
    kernel: PathBuf,
    files: Vec<(String, Vec<u8>)>,
}

impl Machine {
    /// A machine without files, which `qemu` runs.
    pub fn new(qemu: PathBuf, kernel: PathBuf) -> Self {
        Machine { qemu, kernel, files: Vec::new() }
    }

    /// Adds the file `from` as `name`.
    pub fn add(&mut self, name: &str, from: &Path) -> Result<(), Stop> {
        self.files.push((name.to_string(), std::fs::read(from)?));
        Ok(())
    }

    /// Runs `lines` (variables, program, arguments) one after another. Fails unless each ends with status 0.
    pub fn run(mut self, lines: &[String]) -> Result<Finished, Stop> {
        self.files.push(("tests".into(), lines.join("\n").into_bytes()));
        let archive = target_dir().join(format!("cross/machine-{}", std::process::id()));
        std::fs::write(&archive, newc(&["lib"], &self.files))?;
        let done = Run::new(self.qemu)
            .args(["-M", "virt", "-cpu", CPU, "-m", "2048", "-smp", "2", "-nographic", "-no-reboot", "-nic", "none"])
            .args(["-append", "console=ttyAMA0 panic=-1 quiet", "-kernel"])
            .arg(self.kernel)
            .arg("-initrd")
            .arg(&archive)
            .plain()
            .timeout(LIMIT)
            .run();
        std::fs::remove_file(&archive)?;
        let done = done?;
        let ended =
            |line: &&String| done.stdout.lines().any(|said| said.trim_end().ends_with(&format!("ENDED 0 {line}")));
        let not: Vec<_> = lines.iter().filter(|line| !ended(line)).collect();
        if not.is_empty() { Ok(done) } else { Err(done.fail(&format!("these did not end well: {not:#?}"))) }
    }
}

/// An archive of folders and files in the form that the kernel unpacks into its first file system (cpio's `newc`).
fn newc(folders: &[&str], files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut archive = Vec::new();
    let mut add = |number: usize, name: &str, mode: usize, content: &[u8]| {
        let fields = [number, mode, 0, 0, 1, 0, content.len(), 0, 0, 0, 0, name.len() + 1, 0];
        archive.extend_from_slice(b"070701");
        archive.extend(fields.iter().flat_map(|field| format!("{field:08x}").into_bytes()));
        archive.extend_from_slice(name.as_bytes());
        archive.push(0);
        archive.resize(archive.len().next_multiple_of(4), 0);
        archive.extend_from_slice(content);
        archive.resize(archive.len().next_multiple_of(4), 0);
    };
    let folders = folders.iter().map(|name| (*name, 0o40755, &[][..]));
    let files = files.iter().map(|(name, content)| (name.as_str(), 0o100755, &content[..]));
    for (number, (name, mode, content)) in folders.chain(files).chain([("TRAILER!!!", 0, &[][..])]).enumerate() {
        add(number + 1, name, mode, content);
    }
    archive
}
