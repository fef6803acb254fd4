//! Runs a real program under an allocator, and checks its output.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::launch::{Launcher, status_of};
use super::python;
use crate::allocators::Allocator;
use crate::failure::failure;
use crate::interrupt;
use crate::outcome::{Launched, Outcome};
use crate::place::Place;
use crate::real::{Real, named};
use crate::sources::{Hash, write_below};
use crate::toolchain::{find_program, shell_word};

/// Time limit of short commands.
const SOON: Duration = Duration::from_secs(20);

/// The name of glibc's library for the dynamic linker.
const GLIBC_LIBRARY: &str = "libc.so.6";

/// What is known about programs.
#[derive(Default)]
pub(super) struct Programs {
    /// Where they are, by case.
    found: RefCell<BTreeMap<&'static str, PathBuf>>,
    /// Whether a preloaded library replaces their malloc, by case.
    open: RefCell<BTreeMap<&'static str, bool>>,
    /// The hash of the first output, by case and amount of work.
    outputs: RefCell<BTreeMap<(&'static str, u32), u64>>,
}

impl Programs {
    /// Finds the program and writes its input; fails if it is not installed.
    pub(super) fn prepare(&self, place: &Place, name: &str, count: u32) -> Result<()> {
        let real = named(name).context("a program of the table")?;
        let Some(program) = find(real) else {
            let package = real.package;
            return Err(failure(
                format!("{} is not installed", real.programs[0]),
                format!("Debian: apt install {package}"),
            ));
        };
        self.found.borrow_mut().insert(real.name, program);
        input(place, real, count).map(drop)
    }

    /// Runs it once.
    pub(super) fn run(
        &self,
        place: &Place,
        launcher: &Launcher,
        (name, count): (&str, u32),
        allocator: &Allocator,
        timeout: Duration,
    ) -> Result<Outcome> {
        let real = named(name).context("a program of the table")?;
        let program = self.found.borrow().get(real.name).context("it was found before")?.clone();
        let mut variables = allocator.variables();
        variables.extend(real.env.iter().map(|(name, value)| format!("{name}={value}")));
        // A program may be linked with another allocator: preloading glibc replaces that.
        let library = allocator.library.clone().unwrap_or_else(|| GLIBC_LIBRARY.into());
        if allocator.library.is_none() {
            variables.push(format!("LD_PRELOAD={GLIBC_LIBRARY}"));
        }
        let known = self.open.borrow().get(real.name).copied();
        let open = match known {
            Some(open) => open,
            None => takes(&program, &library)?,
        };
        self.open.borrow_mut().insert(real.name, open);
        if !open {
            return Ok(Outcome::skipped(format!("{} has an allocator of its own inside", real.programs[0])));
        }
        let input = input(place, real, count)?;
        let mut command: Vec<OsString> = Vec::new();
        if real.shell {
            command.push("/bin/sh".into());
        } else {
            command.push(program.clone().into());
        }
        let fill = |word: &&str| {
            let word = word.replace("{input}", &input.to_string_lossy()).replace("{count}", &count.to_string());
            OsString::from(word.replace("{program}", &program.to_string_lossy()))
        };
        command.extend(real.arguments.iter().map(fill));
        let (text, stderr) = launcher.launch(&variables, &command, timeout)?;
        let launched = Launched::parse(&text)?;
        let status = status_of(launched.status, &stderr);
        if status != "ok" {
            return Ok(Outcome::failed(status));
        }
        if launched.output.trim().is_empty() {
            return Ok(Outcome::failed("no-output"));
        }
        let mut hash = Hash::default();
        hash.add(launched.output);
        let mut outputs = self.outputs.borrow_mut();
        match *outputs.entry((real.name, count)).or_insert(hash.0) == hash.0 {
            true => Ok(Outcome::good(launched.costs)),
            false => Ok(Outcome::failed("wrong-output")),
        }
    }
}

/// The command for a shell, with the name of the input without its folder.
pub(super) fn words(name: &str, count: u32) -> Vec<String> {
    let Some(real) = named(name) else {
        return Vec::new();
    };
    let (input, _) = real.input.file(count);
    let file = input.rsplit('/').next().unwrap_or_default();
    let program = real.programs[0];
    let fill = |word: &&str| {
        let word = word.replace("{input}", file).replace("{count}", &count.to_string());
        shell_word(&word.replace("{program}", program))
    };
    let first = if real.shell { "sh" } else { program };
    let env = real.env.iter().map(|(name, value)| format!("{name}={value}"));
    env.chain([first.into()]).chain(real.arguments.iter().map(fill)).collect()
}

/// Writes the program's input, unless it exists.
fn input(place: &Place, real: &Real, count: u32) -> Result<PathBuf> {
    let (path, text) = real.input.file(count);
    write_below(&place.cache.join("sources"), &(&path, &text))
}

/// The program itself: the name on the PATH may be that of a script that chooses one of several.
fn find(real: &Real) -> Option<PathBuf> {
    match real.programs[0] {
        "python3" => python::find(),
        "rustc" => {
            let rustc = find_program("rustc")?;
            let out = interrupt::output(Command::new(&rustc).args(["--print", "sysroot"]), Some(SOON)).ok()?;
            let own = Path::new(out.stdout.trim()).join("bin/rustc");
            Some(if own.is_file() { own } else { rustc })
        }
        _ => real.programs.iter().find_map(|name| find_program(name)),
    }
}

/// Whether the program's calls of malloc go to a preloaded library, according to the dynamic linker.
fn takes(program: &Path, library: &Path) -> Result<bool> {
    let mut command = Command::new(program);
    command.arg("--version").env("LD_DEBUG", "bindings").env("LD_BIND_NOW", "1").env("LD_PRELOAD", library);
    let out = interrupt::output(&mut command, Some(SOON))?;
    Ok(binds_malloc(&out.stderr, &library.to_string_lossy()))
}

/// Reads the dynamic linker's report of its bindings. In a program at a fixed address some bindings are to the program
/// itself, so one to the library is enough.
///
/// ```text
///  16841:    binding file /usr/bin/perl [0] to /x/libneap.so [0]: normal symbol `malloc' [GLIBC_2.2.5]
/// ```
fn binds_malloc(text: &str, library: &str) -> bool {
    let to = format!("{library} [");
    let target = |line: &str| line.split_once(" to ").is_some_and(|(_, target)| target.contains(&to));
    text.lines().any(|line| line.contains("symbol `malloc'") && target(line))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::for_test;
    use crate::real::REALS;

    // Would catch a program with an allocator of its own that is measured as another one.
    #[test]
    fn bindings_of_malloc_are_read() {
        let own = "  7:\tbinding file /lib/libc.so.6 [0] to /bin/rustc [0]: normal symbol `malloc' [GLIBC_2.2.5]\n";
        let taken = "  7:\tbinding file /bin/perl [0] to /x/libneap.so [0]: normal symbol `malloc' [GLIBC_2.2.5]\n";
        let other = "  7:\tbinding file /bin/perl [0] to /x/libneap.so [0]: normal symbol `free' [GLIBC_2.2.5]\n";
        assert!(binds_malloc(&format!("{own}{taken}"), "/x/libneap.so"));
        assert!(!binds_malloc(&format!("{own}{other}"), "/x/libneap.so"));
        assert!(!binds_malloc(own, "libc.so.6"));
    }

    // Would catch a script or an input that its program rejects, output that changes from run to run, and a wrong
    // result that counts as good.
    #[test]
    fn programs_that_are_there_run_alike() {
        let place = for_test();
        let (launcher, programs) = (Launcher::build(&place).unwrap(), Programs::default());
        let limit = Duration::from_secs(60);
        let mut run = 0;
        for real in &REALS {
            // Few rows, functions, objects.
            let count = (real.count / 200).max(1);
            if programs.prepare(&place, real.name, count).is_err() {
                continue;
            }
            let once = || {
                let work = (real.name, count);
                programs.run(&place, &launcher, work, &Allocator::default(), limit).unwrap()
            };
            let first = once();
            if first.is_skipped() {
                continue;
            }
            assert_eq!([first.status, once().status], ["ok", "ok"], "{}", real.name);
            programs.outputs.borrow_mut().insert((real.name, count), 0);
            assert_eq!(once().status, "wrong-output", "{}", real.name);
            run += 1;
        }
        assert!(run > 0, "no program of the table is installed");
    }
}
