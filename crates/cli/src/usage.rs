//! The parser's errors, in the form of neap's own: a line with the cause, lines with hints, then the usage.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use neap_launch::fit::fit;
use neap_launch::sys;

use crate::completions;

/// The columns of the help, at most.
const HELP_WIDTH: usize = 100;

/// What Rust's library says of a number that it cannot read, and neap's words for it.
const NUMBERS: [(&str, &str); 4] = [
    ("invalid digit found in string", "it is not a whole number"),
    ("cannot parse integer from empty string", "it is not a whole number"),
    ("number too large to fit in target type", "the number is too large"),
    ("invalid float literal", "it is not a number"),
];

/// The text for standard error, without the end of its last line. A command that lacks the name of one of its own gets
/// its help.
pub fn error(message: clap::Error) -> String {
    match message.kind() {
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => help(&message).trim_end().to_owned(),
        _ => in_lines(&with_nearest(message).to_string()),
    }
}

/// The help in a message, in lines as wide as the terminal.
pub fn help(message: &clap::Error) -> String {
    let width = sys::terminal_width().map_or(HELP_WIDTH, |width| width.min(HELP_WIDTH));
    fit(&message.to_string(), width)
}

/// Adds the nearest command to the error for a mistyped one, where the parser found none: it takes `rnu` for something
/// else than `run`.
fn with_nearest(mut message: clap::Error) -> clap::Error {
    let found = message.get(ContextKind::SuggestedSubcommand).is_some();
    if let Some(ContextValue::String(name)) = message.get(ContextKind::InvalidSubcommand).cloned().filter(|_| !found) {
        let command = completions::definition();
        let names = command.get_subcommands().map(clap::Command::get_name);
        if let Some(nearest) = neap_options::nearest::nearest(name, names) {
            let nearest = ContextValue::Strings(vec![nearest.to_owned()]);
            message.insert(ContextKind::SuggestedSubcommand, nearest);
        }
    }
    message
}

/// The parser's text has empty lines, and tips and values in forms of its own.
fn in_lines(text: &str) -> String {
    // What the user typed is in it.
    let text = text.replace(|letter: char| letter.is_control() && letter != '\n', "?");
    let (mut cause, mut hints, mut usage) = (String::new(), Vec::new(), Vec::new());
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let words = line.trim();
        if let Some(tip) = words.strip_prefix("tip: ") {
            hints.push(tip);
        } else if let Some(values) = words.strip_prefix('[').and_then(|words| words.strip_suffix(']')) {
            hints.push(values);
        } else if words.starts_with("Usage:") || (!usage.is_empty() && line.starts_with(' ')) {
            usage.push(line);
        } else if !words.starts_with("For more information") {
            cause.push_str(if cause.is_empty() { "neap: " } else { " " });
            cause.push_str(words.strip_prefix("error: ").unwrap_or(words));
        }
    }
    for (theirs, ours) in NUMBERS {
        if let Some(before) = cause.strip_suffix(theirs) {
            cause = format!("{before}{ours}");
        }
    }
    // That an unknown option could also be a value helps only where no option is like it.
    let known = hints.iter().any(|hint| hint.contains("similar"));
    hints.retain(|hint| !known || !hint.starts_with("to pass"));
    if cause.contains("'--pid' found") && usage.iter().any(|line| line.contains("PID")) {
        hints.retain(|hint| !hint.starts_with("to pass"));
        hints.push("the number of the process is given without --pid");
    }
    if hints.is_empty() {
        hints.push("for more information, try --help");
    }
    let hints = hints.iter().map(|hint| format!("neap: hint: {hint}"));
    [cause].into_iter().chain(hints).chain(usage.iter().map(|line| (*line).to_owned())).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(line: &[&str]) -> String {
        match completions::definition().try_get_matches_from(line) {
            Err(message) => error(message),
            Ok(_) => panic!("{line:?} is accepted"),
        }
    }

    /// Catches errors of the parser that look otherwise than neap's own, and parts of them that are lost.
    #[test]
    fn errors_of_the_parser_look_like_neaps() {
        assert_eq!(
            lines(&["neap", "top", "--sort", "rs"]),
            "neap: invalid value 'rs' for '--sort <COLUMN>'\nneap: hint: possible values: pid, rss, pss, back, live, \
             kept, frag, huge, swap, allocator, container, command\nneap: hint: a similar value exists: 'rss'"
        );
        assert_eq!(
            lines(&["neap", "run", "--sumary", "--", "ls"]),
            "neap: unexpected argument '--sumary' found\nneap: hint: a similar argument exists: '--summary'\n\
             Usage: neap run --summary <CMD>..."
        );
        assert_eq!(
            lines(&["neap", "lab", "compare", "a"]),
            "neap: the following required arguments were not provided: <DIR2>\n\
             neap: hint: for more information, try --help\nUsage: neap lab compare <DIR1> <DIR2>"
        );
        assert!(lines(&["neap", "rnu"]).contains("\nneap: hint: a similar subcommand exists: 'run'\n"));
    }

    /// Catches the help of a command without one of its own squeezed into one line, as if it were an error.
    #[test]
    fn a_command_that_is_missing_gets_the_help() {
        for line in [&["neap"][..], &["neap", "huge"], &["neap", "lab"], &["neap", "lab", "peers"], &["neap", "order"]]
        {
            let text = lines(line);
            assert!(text.contains(&format!("\n\nUsage: {} <COMMAND>\n\nCommands:\n  ", line.join(" "))), "{text}");
            assert!(text.contains("\nExamples:\n  neap ") && !text.contains("hint"), "{text}");
        }
    }

    /// Catches words of Rust's library for a number that is none.
    #[test]
    fn numbers_are_explained() {
        assert_eq!(
            lines(&["neap", "huge", "reserve", "5x", "--", "true"]),
            "neap: invalid value '5x' for '<N>': it is not a whole number\n\
             neap: hint: for more information, try --help"
        );
        for option in [&["advise", "--runs"][..], &["lab", "compare", "--limit"], &["profile", "--limit"]] {
            for (value, words) in
                [("x", "it is not a whole number"), ("9".repeat(30).as_str(), "the number is too large")]
            {
                let text = lines(&[&["neap"], option, &[value]].concat());
                assert!(text.contains(&format!(": {words}\n")), "{text}");
            }
        }
    }

    /// Catches the option of other commands refused without a word on how a process is named here.
    #[test]
    fn a_process_without_an_option_is_explained() {
        for command in [&["why"][..], &["stats"], &["huge", "show"]] {
            let text = lines(&[&["neap"], command, &["--pid", "1"]].concat());
            assert!(text.contains("\nneap: hint: the number of the process is given without --pid\n"), "{text}");
            assert!(!text.contains("to pass"), "{text}");
        }
        let text = lines(&["neap", "run", "--pid", "1"]);
        assert!(!text.contains("without --pid"), "{text}");
    }
}
