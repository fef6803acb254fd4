//! `neap options`, and the check of `--set NAME=VALUE`. Both come from the table of crates/options.

use std::fs;
use std::io::{IsTerminal, Write};
use std::path::Path;

use neap_options::{Kind, Opt, TABLE};
use serde::Serialize;

use crate::error::Error;

/// A checked `NAME=VALUE`, as the environment variable that it becomes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The option's name in the table.
    pub name: &'static str,
    /// The environment variable.
    pub env: &'static str,
    /// Its value; a directory is absolute, as the program may change its own.
    pub value: String,
}

/// Checks `NAME=VALUE` against the table. The error says what is allowed.
pub fn parse_setting(text: &str) -> Result<Setting, String> {
    let (name, value) = text.split_once('=').ok_or_else(|| "expected NAME=VALUE".to_owned())?;
    let opt = TABLE.iter().find(|opt| opt.name == name).ok_or_else(|| {
        let names: Vec<_> = TABLE.iter().map(|opt| opt.name).collect();
        format!("there is no option `{name}`; the options are {}", names.join(", "))
    })?;
    let value = check(opt, value)?;
    Ok(Setting { name: opt.name, env: opt.env, value })
}

/// The value as the library should see it, or what the option accepts.
fn check(opt: &Opt, value: &str) -> Result<String, String> {
    let refuse = || format!("option `{}` accepts {}, not `{value}`", opt.name, allowed(&opt.kind));
    match opt.kind {
        Kind::Choice(words) => words.contains(&value).then(|| value.to_owned()).ok_or_else(refuse),
        Kind::Directory => {
            let path = fs::canonicalize(value).map_err(|_| refuse())?;
            let usable = Path::is_dir(&path).then(|| path.to_str().map(str::to_owned)).flatten();
            usable.ok_or_else(refuse)
        }
    }
}

/// What an option of this kind accepts, in words.
fn allowed(kind: &Kind) -> String {
    match kind {
        Kind::Choice(words) => words.join(" or "),
        Kind::Directory => "the path of an existing directory".to_owned(),
    }
}

/// An option as `neap options --json` shows it.
#[derive(Serialize)]
struct Entry {
    name: &'static str,
    env: &'static str,
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    values: Option<&'static [&'static str]>,
    default: &'static str,
    doc: &'static str,
}

impl From<&Opt> for Entry {
    fn from(opt: &Opt) -> Self {
        let (kind, values) = match opt.kind {
            Kind::Choice(words) => ("choice", Some(words)),
            Kind::Directory => ("directory", None),
        };
        Self { name: opt.name, env: opt.env, kind, values, default: opt.default, doc: opt.doc }
    }
}

/// Prints the table.
pub fn list(json: bool) -> Result<u8, Error> {
    let mut out = std::io::stdout().lock();
    let text = if json {
        let entries: Vec<Entry> = TABLE.iter().map(Entry::from).collect();
        let value = serde_json::json!({ "schema": "neap.options/1", "options": entries });
        format!("{value:#}\n")
    } else {
        let colour = out.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
        table_text(colour)
    };
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|e| Error::failed(format!("cannot write to standard output: {e}")))?;
    Ok(0)
}

/// The table for people: a paragraph for each option.
pub fn table_text(colour: bool) -> String {
    let (bold, plain) = if colour { ("\x1b[1m", "\x1b[0m") } else { ("", "") };
    let mut text = String::new();
    for opt in TABLE {
        let default = if opt.default.is_empty() { "not set" } else { opt.default };
        text.push_str(&format!(
            "{bold}{}{plain}\n    {}\n    environment  {}\n    values       {}\n    default      {default}\n",
            opt.name,
            opt.doc,
            opt.env,
            allowed(&opt.kind),
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
            if let Kind::Choice(words) = opt.kind {
                for word in words {
                    let setting = parse_setting(&format!("{}={word}", opt.name)).expect("a value of the table");
                    assert_eq!((setting.env, setting.value.as_str()), (opt.env, *word));
                }
            }
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
        let text = table_text(false);
        for opt in TABLE {
            assert!(text.contains(opt.name) && text.contains(opt.env) && text.contains(opt.doc));
        }
    }
}
