//! How outside programs are found and called.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::failure::failure;

/// The path of a program on the PATH.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file())
}

/// The C compiler: `$CC` or `cc`. It may have options, see [`command`].
pub fn cc() -> String {
    named("CC", "cc")
}

/// The C++ compiler: `$CXX` or `c++`.
pub fn cxx() -> String {
    named("CXX", "c++")
}

fn named(variable: &str, default: &str) -> String {
    std::env::var(variable).ok().filter(|name| !name.trim().is_empty()).unwrap_or_else(|| default.into())
}

/// A program that may have options behind it, as in make's `CC`: `ccache gcc`, `gcc -m64`. If a file has the whole text
/// as its name, the text is one word.
pub fn command(words: &str) -> Command {
    let mut rest = words.split_whitespace();
    match rest.next() {
        Some(program) if !Path::new(words).is_file() => {
            let mut command = Command::new(program);
            command.args(rest);
            command
        }
        _ => Command::new(words),
    }
}

/// Checks that `program` can be started; the error says what to install.
pub fn need(program: &str, remedy: &str) -> Result<()> {
    if available(program) {
        return Ok(());
    }
    Err(failure(format!("`{program}` is not installed or does not start"), remedy))
}

/// Whether `program --version` can be started.
pub fn available(program: &str) -> bool {
    command(program).arg("--version").output().is_ok_and(|out| out.status.success())
}

/// The first line of `program --version`.
pub fn version_line(program: &str) -> String {
    let Ok(out) = command(program).arg("--version").output() else {
        return format!("{program}: not available");
    };
    let text = String::from_utf8_lossy(&out.stdout);
    text.lines().next().unwrap_or_default().to_owned()
}

/// Runs `command` to its end; if it fails, the error has the command and the end of its standard error.
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

/// A word for a shell: in quotes if it has special characters.
pub fn shell_word(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-+=,./:@%".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

/// The command and its arguments in one line.
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

    // Would catch options of a compiler that are taken as part of its name, and a name with blanks that is split.
    #[test]
    fn compilers_may_have_options() {
        let scratch = crate::scratch::Scratch::new("compiler").unwrap();
        let spaced = scratch.join("my compiler");
        std::fs::write(&spaced, "").unwrap();
        let spaced = spaced.to_str().unwrap();
        for (words, program, arguments) in [
            ("cc", "cc", &[][..]),
            (" ccache  gcc -m64", "ccache", &["gcc", "-m64"]),
            (spaced, spaced, &[]),
            ("", "", &[]),
        ] {
            let command = command(words);
            assert_eq!(command.get_program(), program);
            assert_eq!(command.get_args().collect::<Vec<_>>(), arguments);
        }
        assert!(available("env true") && !available("no-such-compiler -m64"));
    }

    // Would catch a command for the record that a shell splits differently.
    #[test]
    fn words_are_quoted_for_a_shell() {
        let words = ["trees,1", "two words", "it's", "", "mine=/tmp/a.so"].map(shell_word);
        assert_eq!(words, ["trees,1", "'two words'", "'it'\\''s'", "''", "mine=/tmp/a.so"]);
    }
}
