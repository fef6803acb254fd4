//! The files of reports, and their form.

use crate::args::WhyArgs;
use crate::failed;
use neap_account::Report;
use neap_account::container::Container;
use neap_account::text::{self, Style};
use neap_launch::error::{Error, system_message};
use neap_launch::output;
use neap_launch::sys;
use serde_json::Error as JsonError;
use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;

/// The output files, opened before the work begins. An existing file is emptied only when there is something to write.
pub struct Output {
    file: output::Output,
    /// Whether it is a page of HTML.
    page: bool,
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
        let page = args.html.as_deref();
        let file = match page.filter(|path| path.as_os_str() != "-").or(args.output.as_deref()) {
            Some(path) if path.as_os_str() == "-" => output::Output::standard()?,
            Some(path) => output::Output::at(path).map_err(|e| cannot(&path.display().to_string(), &e))?,
            None => standard().map(output::Output::stream).map_err(|e| cannot("standard output or error", &e))?,
        };
        let colour = file.file().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Ok(Output {
            file,
            page: page.is_some(),
            json: args.json,
            style: Style { colour, all: args.all, check: args.check },
        })
    }

    /// Writes the account of a process.
    pub fn report(&mut self, report: &Report) -> Result<(), Error> {
        if self.page {
            let mut bytes = Vec::new();
            return finished(neap_account::html::page(report, &mut bytes).and_then(|()| self.file.append(&bytes)));
        }
        let text = match self.json {
            true => pretty(serde_json::to_string_pretty(report)),
            false => Ok(text::text(report, self.style)),
        };
        self.write(text)
    }

    /// Writes the account of a cgroup.
    pub fn container(&mut self, container: &Container) -> Result<(), Error> {
        if self.page {
            let mut bytes = Vec::new();
            return finished(
                neap_account::html::container(container, &mut bytes).and_then(|()| self.file.append(&bytes)),
            );
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
        finished(text.and_then(|text| self.file.append(text.as_bytes())))
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
