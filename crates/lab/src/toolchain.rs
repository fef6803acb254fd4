//! How outside programs are found and called.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::failure::failure;

/// Where a program lies on the PATH.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file())
}

/// The C compiler: `$CC` or `cc`.
pub fn cc() -> String {
    std::env::var("CC").unwrap_or_else(|_| "cc".into())
}

/// The C++ compiler: `$CXX` or `c++`.
pub fn cxx() -> String {
    std::env::var("CXX").unwrap_or_else(|_| "c++".into())
}

/// Checks that `program` can be started, and says what to install where it cannot.
pub fn need(program: &str, remedy: &str) -> Result<()> {
    if available(program) {
        return Ok(());
    }
    Err(failure(format!("`{program}` is not installed or does not start"), remedy))
}

/// Whether `program --version` can be started.
pub fn available(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|out| out.status.success())
}

/// The first line of `program --version`.
pub fn version_line(program: &str) -> String {
    let Ok(out) = Command::new(program).arg("--version").output() else {
        return format!("{program}: not available");
    };
    let text = String::from_utf8_lossy(&out.stdout);
    text.lines().next().unwrap_or_default().to_owned()
}

/// Runs `command` to its end; on failure the error carries the command and the end of its stderr.
pub fn run(command: &mut Command) -> Result<String> {
    let line = shell_line(command);
    let out = command.output().with_context(|| format!("cannot start: {line}"))?;
    if !out.status.success() {
        let stderr = String::from_utf8_lossy(&out.stderr);
        let tail: Vec<&str> = stderr.lines().rev().take(20).collect();
        let tail: Vec<&str> = tail.into_iter().rev().collect();
        bail!("{} from: {line}\n{}", out.status, tail.join("\n"));
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// A word for a shell: in quotes where it has characters that mean something there.
pub fn shell_word(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-+=,./:@%".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

/// The command as one would type it.
pub fn shell_line(command: &Command) -> String {
    let mut line = command.get_program().to_string_lossy().into_owned();
    for arg in command.get_args() {
        line.push(' ');
        line.push_str(&arg.to_string_lossy());
    }
    line
}

/// Whether `target` is missing or older than one of `sources`.
pub fn is_stale<S: AsRef<OsStr>>(target: &Path, sources: &[S]) -> bool {
    let modified = |path: &Path| path.metadata().and_then(|m| m.modified()).ok();
    let Some(built) = modified(target) else {
        return true;
    };
    sources.iter().any(|source| modified(Path::new(source)).is_none_or(|time| time > built))
}

#[cfg(test)]
mod tests {
    use super::*;

    // Would catch a command for the record that a shell takes apart in another way.
    #[test]
    fn words_are_quoted_for_a_shell() {
        let words = ["trees,1", "two words", "it's", "", "mine=/tmp/a.so"].map(shell_word);
        assert_eq!(words, ["trees,1", "'two words'", "'it'\\''s'", "''", "mine=/tmp/a.so"]);
    }
}
