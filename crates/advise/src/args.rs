//! The arguments of `neap advise`.

use clap::Args;
use neap_launch::units::parse_duration;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  neap advise -- python3 report.py
  neap advise --for 60s -- ./server    a server: a minute of work, then idle
  neap advise --load 'wrk -d 20s http://localhost:8080/' -- ./server
  neap advise --runs 3 --allocators jemalloc=/opt/libjemalloc.so.2 -- ./batch

The command runs at least once under each allocator, so it must be safe to
repeat. Its standard input is empty; its standard output goes to standard error.";

/// Arguments of `neap advise`.
#[derive(Clone, Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct AdviseArgs {
    /// More allocators: libraries to preload
    #[arg(long, value_name = "NAME=PATH,...", value_delimiter = ',', value_parser = allocator)]
    pub allocators: Vec<(String, PathBuf)>,

    /// The command is a server: let it work for TIME, then idle, then end it
    #[arg(long = "for", value_name = "TIME", value_parser = parse_duration)]
    pub time: Option<Duration>,

    /// The command is a server: run this with sh while it works; then let it idle, and end it
    #[arg(long, value_name = "COMMAND", conflicts_with = "time")]
    pub load: Option<OsString>,

    /// Idle time of a server before it is measured
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = parse_duration)]
    pub idle: Duration,

    /// Runs under each allocator; the run with the median time is shown. Times are compared from 3 on
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u8).range(1..))]
    pub runs: u8,

    /// Print everything as JSON
    #[arg(long)]
    pub json: bool,

    /// The command and its arguments, after `--`
    #[arg(last = true, required = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

/// `NAME=PATH` of an existing library.
fn allocator(text: &str) -> Result<(String, PathBuf), String> {
    let (name, path) = text.split_once('=').ok_or("an allocator is NAME=PATH of its library")?;
    if name.is_empty() || name == "glibc" || name == "neap" {
        return Err("use another name, as in jemalloc=/usr/lib/libjemalloc.so.2".to_owned());
    }
    // Absolute, because the program may change its working directory.
    let path = std::path::absolute(path).map_err(|error| error.to_string())?;
    if path.is_file() { Ok((name.to_owned(), path)) } else { Err(format!("there is no file {}", path.display())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a missing library, which the dynamic linker would ignore: the run would be glibc's.
    #[test]
    fn libraries_are_there() {
        let own = std::env::current_exe().expect("this program");
        assert!(allocator(&format!("x={}", own.display())).is_ok());
        for bad in ["x", "x=/no/such/library.so", "=/bin/sh", "neap=/bin/sh"] {
            assert!(allocator(bad).is_err(), "{bad}");
        }
    }
}
