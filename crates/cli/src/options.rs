//! `neap options`, and the check of `--set NAME=VALUE`. Both come from the table of crates/options.

use std::ffi::OsStr;
use std::fs;
use std::io::IsTerminal;
use std::path::Path;

use clap::Args;
use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use neap_options::nearest::did_you_mean;
use neap_options::unknown::Unknown;
use neap_options::{Id, Kind, Opt, PREFAULT, TABLE};
use serde::Serialize;

use crate::values::{self, Now};
use neap_launch::Setting;
use neap_launch::error::{Error, tell};
use neap_launch::sys;

/// Arguments of `neap options`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  neap options                     for programs that this shell would start
  NEAP_PURGE=eager neap options    ... with a variable
  neap options --pid 4711          of a process that runs on neap
  neap options --json | jq -r '.options[].env'")]
pub struct OptionsArgs {
    /// Print the table as JSON
    #[arg(long)]
    pub json: bool,

    /// Show the values in the running process PID, and where they come from
    #[arg(long, value_name = "PID")]
    pub pid: Option<u32>,
}

/// The words of a [`Kind::Report`].
const REPORT: &[&str] = &["off", "exit"];

/// The parser of `--set`: checks, and tells shell completions what may be written.
#[derive(Clone, Debug)]
pub struct SettingParser;

impl TypedValueParser for SettingParser {
    type Value = Setting;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<Setting, clap::Error> {
        let check = |text: String| parse_setting(&text);
        StringValueParser::new().try_map(check).parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(TABLE.iter().flat_map(suggestions).map(PossibleValue::new)))
    }
}

/// The words that the option accepts.
fn words_of(opt: &Opt) -> &'static [&'static str] {
    match opt.kind {
        Kind::Choice(words) | Kind::Size { words, .. } => words,
        Kind::Directory | Kind::Duration { .. } => &[],
        Kind::Prefault { .. } => PREFAULT,
        Kind::Report => REPORT,
    }
}

/// `name=word` for each word that the option accepts, and `name=` where the rest is the user's.
fn suggestions(opt: &Opt) -> Vec<String> {
    let open = !matches!(opt.kind, Kind::Choice(_));
    let words = words_of(opt).iter().map(|word| format!("{}={word}", opt.name));
    words.chain(open.then(|| format!("{}=", opt.name))).collect()
}

/// The setting that `--prefault WHAT` stands for.
pub fn parse_prefault(text: &str) -> Result<Setting, String> {
    parse_setting(&format!("{}={text}", Id::Prefault.option().name))
}

/// Checks `NAME=VALUE` against the table. The error says what is allowed.
pub fn parse_setting(text: &str) -> Result<Setting, String> {
    let (name, value) = text.split_once('=').ok_or_else(|| "expected NAME=VALUE".to_owned())?;
    let opt = Opt::by_name(name).ok_or_else(|| {
        let names: Vec<_> = TABLE.iter().map(|opt| opt.name).collect();
        let meant = did_you_mean(name, names.iter().copied());
        format!("there is no option `{name}`; {meant}the options are {}", names.join(", "))
    })?;
    let value = check(opt, value).ok_or_else(|| {
        let words = words_of(opt).iter().filter(|word| !word.is_empty());
        let meant = did_you_mean(value, words.copied()).to_string();
        let meant = if meant.is_empty() { meant } else { format!("; {}", meant.trim_end()) };
        format!("{}{meant}", opt.refusal(value.as_bytes()))
    })?;
    Ok(Setting { name: opt.name, env: opt.env, value })
}

/// The value as the library should see it, if the option accepts it.
fn check(opt: &Opt, value: &str) -> Option<String> {
    opt.parse(value.as_bytes())?;
    if opt.kind != Kind::Directory {
        return Some(value.to_owned());
    }
    let path = fs::canonicalize(value).ok()?;
    Path::is_dir(&path).then(|| path.to_str().map(str::to_owned)).flatten()
}

/// An option as `neap options --json` shows it.
#[derive(Serialize)]
struct Entry {
    name: &'static str,
    env: &'static str,
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    values: Option<&'static [&'static str]>,
    #[serde(flatten)]
    range: Option<Range>,
    default: &'static str,
    doc: &'static str,
    start_only: bool,
    value: String,
    origin: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    invalid: Option<String>,
}

/// What a size or a duration may be.
#[derive(Serialize)]
struct Range {
    unit: &'static str,
    minimum: u64,
    maximum: u64,
    /// In place of a number.
    words: &'static [&'static str],
}

impl Entry {
    fn new(opt: &Opt, now: &Now) -> Self {
        let (kind, values, range) = match opt.kind {
            Kind::Choice(words) => ("choice", Some(words), None),
            Kind::Directory => ("directory", None, None),
            Kind::Prefault { .. } => ("prefault", Some(PREFAULT), None),
            Kind::Report => ("report", Some(REPORT), None),
            Kind::Size { words, min, max } => {
                ("size", None, Some(Range { unit: "bytes", minimum: min, maximum: max, words }))
            }
            Kind::Duration { min, max } => {
                let (minimum, maximum) = (min.into(), max.into());
                ("duration", None, Some(Range { unit: "milliseconds", minimum, maximum, words: &[] }))
            }
        };
        let Opt { name, env, default, start_only, .. } = *opt;
        let (value, origin, invalid) = (now.value.clone(), now.origin.name(), now.invalid.clone());
        Self { name, env, kind, values, range, default, doc: opt.doc(), start_only, value, origin, invalid }
    }
}

/// Prints the table, with the values for programs started from here, or those in the process `pid`.
pub fn list(json: bool, pid: Option<u32>) -> Result<u8, Error> {
    let now = match pid {
        Some(pid) => values::of_process(pid)?,
        None => {
            // As programs report them when they start.
            let names = std::env::vars_os().map(|(name, _)| name.into_encoded_bytes());
            names.filter_map(|name| Unknown::of(&name).map(|line| line.to_string())).for_each(tell);
            values::from_environment(|name| std::env::var_os(name))
        }
    };
    if json {
        let entries: Vec<Entry> = TABLE.iter().zip(&now).map(|(opt, now)| Entry::new(opt, now)).collect();
        let value = serde_json::json!({ "schema": "neap.options/1", "options": entries });
        return sys::print(format!("{value:#}\n").as_bytes());
    }
    let colour = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
    sys::print_fitted(&table_text(colour, Some(&now)))
}

/// The table for people: a paragraph for each option, with its value where there is one.
pub fn table_text(colour: bool, now: Option<&[Now]>) -> String {
    let (bold, plain) = if colour { ("\x1b[1m", "\x1b[0m") } else { ("", "") };
    let mut text = String::new();
    for (i, opt) in TABLE.iter().enumerate() {
        let default = if opt.default.is_empty() { "not set" } else { opt.default };
        text.push_str(&format!(
            "{bold}{}{plain}\n    {}\n    environment  {}\n    values       {}\n    default      {default}\n",
            opt.name,
            opt.doc(),
            opt.env,
            opt.kind,
        ));
        if let Some(now) = now.and_then(|now| now.get(i)) {
            let value = if now.value.is_empty() { "not set" } else { &now.value };
            let by = now.variable.map_or_else(String::new, |variable| format!(": {variable}"));
            let env = opt.env;
            let invalid = now.invalid.as_ref().map_or_else(String::new, |text| format!("; {env}={text} is invalid"));
            text.push_str(&format!("    value        {value} ({}{by}{invalid})\n", now.origin));
        }
    }
    text
}

/// The table as a section of the manual page.
pub fn man_section() -> String {
    let escape = |text: &str| text.replace('\\', "\\e").replace('-', "\\-");
    let mut text = ".SH OPTIONS OF NEAP\nFor \\fB\\-\\-set\\fR, and as environment variables.\n".to_owned();
    for opt in TABLE {
        let default = if opt.default.is_empty() { "not set" } else { opt.default };
        text.push_str(&format!(
            ".TP\n\\fB{}\\fR (\\fB{}\\fR)\n{}\nIt may be {}. Default: {}.\n",
            opt.name,
            opt.env,
            escape(opt.doc()),
            escape(&opt.kind.to_string()),
            escape(default),
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a value that the table allows and the check refuses, for every choice in the table.
    #[test]
    fn every_choice_is_accepted() {
        for opt in TABLE {
            if let Kind::Choice(words) | Kind::Size { words, .. } = opt.kind {
                for word in words {
                    let setting = parse_setting(&format!("{}={word}", opt.name)).expect("a value of the table");
                    assert_eq!((setting.env, setting.value.as_str()), (opt.env, *word));
                }
            }
        }
    }

    /// Catches a suggestion of shell completions that is refused, and an option without one.
    #[test]
    fn suggestions_are_accepted() {
        for opt in TABLE {
            let suggestions = suggestions(opt);
            assert!(!suggestions.is_empty(), "{}", opt.name);
            for text in suggestions {
                assert!(text.ends_with('=') || parse_setting(&text).is_ok(), "{text}");
            }
        }
    }

    /// Catches a value that is written again on its way to the library, and one that the library would refuse.
    #[test]
    fn numbers_are_checked_and_kept() {
        for text in ["limit=512MiB", "purge_bytes=0", "mmap_threshold=128k", "purge_delay=2s", "purge_delay=0"] {
            let (_, value) = text.split_once('=').expect("a value");
            assert_eq!(parse_setting(text).expect(text).value, value);
        }
        for text in ["limit=0", "limit=512", "purge_bytes=-1", "purge_bytes=1.5G", "purge_delay=2h", "purge_delay="] {
            let refusal = parse_setting(text).expect_err(text);
            let (name, value) = text.split_once('=').expect("a value");
            assert!(refusal.contains(&format!("`{value}`")) && refusal.contains(name), "{refusal}");
            assert!(refusal.contains(" from ") && refusal.contains(" to "), "{refusal}");
        }
    }

    /// Catches errors that leave the user to guess.
    #[test]
    fn refusals_say_what_is_allowed() {
        let unknown = parse_setting("colour=red").expect_err("no such option");
        for opt in TABLE {
            assert!(unknown.contains(opt.name), "{unknown}");
        }
        let bad = parse_setting("foreign=maybe").expect_err("no such word");
        assert!(bad.contains("pass or abort") && bad.contains("maybe"), "{bad}");
        assert!(parse_setting("foreign").expect_err("no value").contains("NAME=VALUE"));
        assert!(parse_setting("counters=/nonexistent/dir").expect_err("missing").contains("existing directory"));
        assert!(parse_setting("counters=/dev/null").expect_err("a file").contains("existing directory"));
    }

    /// Catches a relative directory handed to a program that changes its own.
    #[test]
    fn directories_become_absolute() {
        let setting = parse_setting("counters=.").expect("the current directory exists");
        assert!(setting.value.starts_with('/'), "{}", setting.value);
    }

    /// Catches an option that the listing leaves out.
    #[test]
    fn the_listing_has_every_option() {
        let now = values::from_environment(|name| (name == "NEAP_ZERO").then(|| "always".into()));
        let text = table_text(false, Some(&now));
        assert!(text.contains("value        always (environment: NEAP_ZERO)"), "{text}");
        assert_eq!(text.matches(" (default)\n").count(), TABLE.len() - 1, "{text}");
        let man = man_section();
        for opt in TABLE {
            assert!(man.contains(&format!(".TP\n\\fB{}\\fR (\\fB{}\\fR)\n", opt.name, opt.env)), "{man}");
            assert!(text.contains(opt.name) && text.contains(opt.env) && text.contains(opt.doc()));
            assert!(text.contains(&opt.kind.to_string()), "{}", opt.kind);
        }
    }
}
