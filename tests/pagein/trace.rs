//! A trace that a test made, and queries on it.

use std::ops::Deref;
use std::path::Path;

use neap_tests::command::{neap, need_events};
use neap_tests::{Finished, Run, Source, Stop};

/// A static program that touches its own functions and variables, a page each.
pub const KNOWN_STATIC: Source = Source::with_flags("pagein/known.c", &["-static", "-no-pie"]);
/// Programs that are hard to trace.
pub const ODD: Source = Source::new("pagein/odd.c");

/// A trace that neap wrote, in lines.
pub struct Text {
    /// The lines of faults.
    pub faults: Vec<String>,
    /// The lines of the footer.
    pub footer: Vec<String>,
}

/// A trace of a program that a test ran.
pub struct Trace {
    /// How neap ended.
    pub done: Finished,
    text: Text,
}

impl Deref for Trace {
    type Target = Text;

    fn deref(&self) -> &Text {
        &self.text
    }
}

impl Trace {
    /// Runs `neap pagein OPTIONS -- COMMAND`.
    pub fn of(options: &[&str], command: &[&std::ffi::OsStr]) -> Result<Self, Stop> {
        static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let file = neap_tests::target_dir().join(format!("pagein-test-{}-{number}", std::process::id()));
        let done = Run::new(neap()?)
            .args(["pagein", "-o"])
            .arg(&file)
            .args(options)
            .arg("--")
            .args(command)
            .dir(neap_tests::package_dir().parent().unwrap_or(Path::new(".")))
            .plain()
            .run()?;
        let text = Text::read(&file);
        let _ = std::fs::remove_file(&file);
        match text {
            Ok(text) => Ok(Self { done, text }),
            Err(_) => Err(done.fail("no trace was written")),
        }
    }

    /// A failure that shows the whole trace.
    pub fn fail(&self, why: &str) -> Stop {
        self.done.fail(&format!("{why}\n{}\n{}", self.faults.join("\n"), self.footer.join("\n")))
    }
}

impl Text {
    /// Reads a trace.
    pub fn read(file: &Path) -> Result<Self, Stop> {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        if text.is_empty() {
            return Err(Stop::Fail("no trace was written".into()));
        }
        let (footer, faults) = text.lines().map(str::to_owned).partition(|line| line.starts_with('#'));
        Ok(Self { faults, footer })
    }

    /// A failure that shows the footer.
    pub fn wrong(&self, why: &str) -> Stop {
        Stop::Fail(format!("{why}; {} faults\n{}", self.faults.len(), self.footer.join("\n")))
    }

    /// Whether the footer contains these words.
    pub fn says(&self, words: &str) -> bool {
        self.footer.iter().any(|line| line.contains(words))
    }

    /// The count of a cause in the footer; 0 where the footer does not name it.
    pub fn difference(&self, cause: &str) -> i64 {
        let line = self.footer.iter().find(|line| line.contains("the kernel counts")).map_or("", String::as_str);
        let parts = line.rsplit(": ").next().unwrap_or_default().split(", ");
        parts
            .filter_map(|part| part.split_once(' '))
            .find(|(_, c)| c == &cause)
            .map_or(0, |(n, _)| n.parse().unwrap_or(0))
    }

    /// Number of faults that the kernel counts.
    pub fn counted(&self) -> Result<i64, Stop> {
        let line = self.footer.iter().find_map(|line| line.strip_prefix("# the kernel counts "));
        let number = line.and_then(|line| line.split(' ').next()).and_then(|number| number.parse().ok());
        number.ok_or_else(|| self.wrong("no count of the kernel's"))
    }
}

/// A program and its arguments.
pub fn words<'a>(program: &'a Path, arguments: &[&'a str]) -> Vec<&'a std::ffi::OsStr> {
    std::iter::once(program.as_os_str()).chain(arguments.iter().map(|a| std::ffi::OsStr::new(*a))).collect()
}

/// Runs a program with the format `table`, which has a line for each fault.
pub fn table(program: &Path, arguments: &[&str]) -> Result<Trace, Stop> {
    need_events()?;
    Trace::of(&["--format", "table"], &words(program, arguments))
}

/// Whether a line's instruction is in that function.
pub fn in_function(line: &str, name: &str) -> bool {
    [" ", "+0x"].iter().any(|behind| line.contains(&format!(" {name}{behind}")))
}
