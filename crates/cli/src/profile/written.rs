//! How a profile is written: to which file, in which format.

use std::io::{self, Write};

use neap_launch::error::{Error, tell};
use neap_launch::fit::fit;
use neap_launch::output::Output;
use neap_launch::sys;
use neap_profile::pprof::Symbols;
use neap_profile::{Options, Profile};

use super::args::Written;

/// The file of a profile of a process: opened before there is one. Text goes to standard error.
pub fn output(written: &Written, pid: u32) -> Result<Option<Output>, Error> {
    if written.output.is_none() && written.format().name == "text" {
        return Ok(None);
    }
    let otherwise = format!("profile.{pid}{}", written.format().ending);
    Output::create(written.output.as_deref(), &otherwise).map(Some)
}

/// Writes a profile; without an output, as text on standard error.
pub fn write(profile: &Profile, column: usize, written: &Written, output: Option<Output>) -> Result<(), Error> {
    let symbols = if written.no_symbols { Symbols::Addresses } else { Symbols::Named };
    let options = Options { column, symbols, limit: written.limit };
    let Some(mut output) = output else {
        let mut text = Vec::new();
        let _ = (written.format().write)(profile, options, &mut text);
        let text = String::from_utf8_lossy(&text);
        match sys::width_of(libc::STDERR_FILENO) {
            Some(width) => fit(&text, width).lines().for_each(tell),
            None => text.lines().for_each(tell),
        }
        return Ok(());
    };
    let format = written.format();
    let as_text = format.name == "text" && output.is_standard();
    output.write("the profile", |out| fitted(&|out| (format.write)(profile, options, out), as_text, out))?;
    if written.output.is_none() && output.path().as_os_str() != "-" {
        tell(format_args!("neap: {} stacks in {}", profile.samples.len(), output.path().display()));
    }
    Ok(())
}

/// Writes text; where `as_text` and standard output is a terminal, in lines as wide as that.
pub fn fitted(write: &WriteText<'_>, as_text: bool, out: &mut dyn Write) -> io::Result<()> {
    let Some(width) = as_text.then(|| sys::width_of(libc::STDOUT_FILENO)).flatten() else { return write(out) };
    let mut text = Vec::new();
    write(&mut text)?;
    out.write_all(fit(&String::from_utf8_lossy(&text), width).as_bytes())
}

/// Writes a text somewhere.
type WriteText<'w> = dyn Fn(&mut dyn Write) -> io::Result<()> + 'w;
