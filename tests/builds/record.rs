//! Writes results to tables in documents.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;

use neap_tests::{Outcome, Stop, package_dir};

fn path(file: &str) -> PathBuf {
    package_dir().join("..").join(file)
}

/// Whether results are recorded.
pub fn is_on() -> bool {
    std::env::var_os("NEAP_RECORD").is_some()
}

/// Today, `2026-11-28`.
pub fn today() -> Result<String, Stop> {
    Ok(String::from_utf8_lossy(&Command::new("date").args(["-u", "+%F"]).output()?.stdout).trim().to_owned())
}

/// Puts a row into a table of each of the files, in place of the one with the same beginning; a new row goes behind the
/// last one of that table. A row of the table begins with `mark`, such as "| `".
pub fn row(files: &[&str], mark: &str, beginning: &str, row: &str) -> Outcome {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock();
    for file in files {
        let path = path(file);
        let text = std::fs::read_to_string(&path)?;
        let mut lines: Vec<&str> = text.lines().collect();
        match lines.iter().position(|line| line.starts_with(beginning)) {
            Some(at) => lines[at] = row,
            None => {
                let last = lines.iter().rposition(|line| line.starts_with(mark));
                let last = last.ok_or_else(|| Stop::Fail(format!("{file} has no row that begins with {mark}")))?;
                lines.insert(last + 1, row);
            }
        }
        std::fs::write(&path, lines.join("\n") + "\n")?;
    }
    Ok(())
}
