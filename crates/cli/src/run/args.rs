//! The arguments of `neap run`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use crate::options::{self, SettingParser, parse_prefault};
use neap_launch::Setting;

/// Examples of the help and of the manual page.
pub const RUN_EXAMPLES: &str = "\
Examples:
  neap run -- redis-server --port 7000
  neap run --summary -- make -j4
  neap run --summary-file summary.json --json -- ./batch input
  neap run --set foreign=abort -- ./program
  neap run --set purge=eager --set limit=512M -- ./server
  neap run --prefault 256M --summary -- ./batch
  neap run --prefault all -- ./server
  neap run --prefault 'file:libpython*' -- python3 script.py

Exit status: that of the program (128+N where a shell shows death by signal N);
125 when neap itself fails, 126 when the program cannot be run, 127 when it is
not found.

Without a summary neap becomes the program: same process, terminal and signals.";

/// Arguments of `neap run`.
#[derive(Debug, Args)]
#[command(after_help = RUN_EXAMPLES, after_long_help = run_long_help())]
pub struct RunArgs {
    /// Print a summary on standard error when the program has ended
    #[arg(long)]
    pub summary: bool,

    /// Write the summary to FILE (it is opened before the program starts)
    #[arg(long, value_name = "FILE")]
    pub summary_file: Option<PathBuf>,

    /// Write the summary as JSON; implies --summary
    #[arg(long)]
    pub json: bool,

    /// Set an option of neap (see `neap options`); may be given several times
    // The table of options follows at the end of the long help; the bare list of values would only repeat it.
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = SettingParser, hide_possible_values = true)]
    pub settings: Vec<Setting>,

    /// Make memory resident at the start: SIZE of the heap, `all` mapped files, or those that match PATTERN (`*`, `?`)
    #[arg(long, value_name = "SIZE|all|file:PATTERN", value_parser = parse_prefault)]
    pub prefault: Option<Setting>,

    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

impl RunArgs {
    /// The arguments of `neap run -- CMD ...` and `neap run CMD ...`, where no option of neap is given. They
    /// need no parser, and building it would be a tenth of what neap adds to the start of a program.
    pub fn without_options(arguments: &[OsString]) -> Option<Self> {
        let [_, run, rest @ ..] = arguments else { return None };
        let command = match rest {
            [separator, command @ ..] if separator == "--" => command,
            command => command.first().filter(|first| !first.as_encoded_bytes().starts_with(b"-")).map(|_| command)?,
        };
        (run == "run" && !command.is_empty()).then(|| Self {
            summary: false,
            summary_file: None,
            json: false,
            settings: Vec::new(),
            prefault: None,
            command: command.to_vec(),
        })
    }

    /// Whether a summary is wanted in any form.
    pub fn wants_summary(&self) -> bool {
        self.summary || self.json || self.summary_file.is_some()
    }
}

/// The examples, and the table of options.
fn run_long_help() -> String {
    format!("{RUN_EXAMPLES}\n\nOptions for --set:\n\n{}", options::table_text(false, None))
}
