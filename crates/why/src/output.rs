//! The files of reports, and their form.

use crate::args::WhyArgs;
use crate::failed;
use neap_account::Report;
use neap_account::container::Container;
use neap_account::text::{self, Style};
use neap_launch::error::{Error, system_message};
use neap_launch::sys;
use serde_json::Error as JsonError;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::path::Path;

/// The output files, opened before the work begins. An existing file is emptied only when there is something to write.
pub struct Output {
    file: Target,
    page: Option<Target>,
    json: bool,
    style: Style,
}

impl Output {
    /// The file that the arguments name, or standard output.
    pub fn standard(args: &WhyArgs) -> Result<Self, Error> {
        Self::create(args, sys::standard_output)
    }

    /// The same for a command, which has standard output for itself.
    pub fn of_command(args: &WhyArgs) -> Result<Self, Error> {
        Self::create(args, || io::stderr().as_fd().try_clone_to_owned().map(Into::into))
    }

    fn create(args: &WhyArgs, standard: impl FnOnce() -> io::Result<File>) -> Result<Self, Error> {
        let cannot = |name: &str, error: &io::Error| {
            Error::failed(format!("cannot write to {name}: {}", system_message(error))).remedy("name another file")
        };
        let file = match &args.output {
            Some(path) if path.as_os_str() != "-" => {
                Target::open(path).map_err(|e| cannot(&path.display().to_string(), &e))
            }
            Some(_) => sys::standard_output().map(Target::now).map_err(|e| cannot("standard output", &e)),
            None => standard().map(Target::now).map_err(|e| cannot("standard output or error", &e)),
        }?;
        let page = match &args.html {
            Some(path) if path.as_os_str() == "-" => {
                Some(file.file.try_clone().map(Target::now).map_err(|e| cannot("standard output", &e))?)
            }
            Some(path) => Some(Target::open(path).map_err(|e| cannot(&path.display().to_string(), &e))?),
            None => None,
        };
        let colour = file.file.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Ok(Output { file, page, json: args.json, style: Style { colour, all: args.all } })
    }

    /// Writes the account of a process.
    pub fn report(&mut self, report: &Report) -> Result<(), Error> {
        if let Some(page) = &mut self.page {
            let mut bytes = Vec::new();
            return finished(neap_account::html::page(report, &mut bytes).and_then(|()| page.write(&bytes)));
        }
        let text = match self.json {
            true => pretty(serde_json::to_string_pretty(report)),
            false => Ok(text::text(report, self.style)),
        };
        self.write(text)
    }

    /// Writes the account of a cgroup.
    pub fn container(&mut self, container: &Container) -> Result<(), Error> {
        if let Some(page) = &mut self.page {
            let mut bytes = Vec::new();
            return finished(neap_account::html::container(container, &mut bytes).and_then(|()| page.write(&bytes)));
        }
        let text = match self.json {
            true => pretty(serde_json::to_string_pretty(container)),
            false => Ok(text::container(container, self.style)),
        };
        self.write(text)
    }

    /// Writes a text, or one line of JSON.
    pub fn line(&mut self, json: Result<String, JsonError>, text: String) -> Result<(), Error> {
        let text = if self.json { pretty(json) } else { Ok(text) };
        self.write(text)
    }

    fn write(&mut self, text: io::Result<String>) -> Result<(), Error> {
        finished(text.and_then(|text| self.file.write(text.as_bytes())))
    }
}

/// A file to write to.
struct Target {
    file: File,
    /// Whether it still has its old content.
    is_old: bool,
}

impl Target {
    /// Opens a file, and keeps its content until the first write.
    fn open(path: &Path) -> io::Result<Target> {
        let file = File::options().write(true).create(true).truncate(false).open(path)?;
        let is_old = file.metadata()?.is_file();
        Ok(Target { file, is_old })
    }

    /// A file that is not emptied first.
    fn now(file: File) -> Target {
        Target { file, is_old: false }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if std::mem::take(&mut self.is_old) {
            self.file.set_len(0)?;
        }
        self.file.write_all(bytes)
    }
}

fn pretty(json: Result<String, JsonError>) -> io::Result<String> {
    json.map(|text| text + "\n").map_err(io::Error::other)
}

fn finished(written: io::Result<()>) -> Result<(), Error> {
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            let made = Error::failed(format!("cannot write the report: {}", system_message(&error)));
            Err(made.remedy(failed::remedy(&error).unwrap_or("name another file: -o FILE")))
        }
        _ => Ok(()),
    }
}
