//! The commands that documents and `--help` show: the parser must know each of them.

use std::fs;
use std::path::Path;

use clap::{CommandFactory, Parser};

use crate::args::Cli;
use neap_launch::fit::fit;

/// The words of a line of a shell, up to a pipe, a redirection or a comment. Two blanks end a command in a document: what
/// follows says what it does.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), String::new(), None);
    let mut letters = line.trim().chars().peekable();
    while let Some(letter) = letters.next() {
        match (quote, letter) {
            (Some(mark), _) if mark == letter => quote = None,
            (Some(_), _) => word.push(letter),
            (None, '\'' | '"') => quote = Some(letter),
            (None, ' ') if letters.peek() == Some(&' ') => break,
            (None, ' ') => words.push(std::mem::take(&mut word)),
            (None, '|' | '>' | '&' | ';' | '#') if word.is_empty() => break,
            (None, _) => word.push(letter),
        }
    }
    words.push(word);
    words.retain(|word| !word.is_empty());
    words
}

/// The commands of neap in a text, as words: `sudo` and a prompt may come before them.
fn commands(text: &str) -> Vec<Vec<String>> {
    let lines = text.lines().map(|line| line.trim_start_matches([' ', '$']).trim_start_matches("sudo "));
    lines.filter(|line| line.starts_with("neap ")).map(words).collect()
}

fn refused(words: &[String]) -> Option<String> {
    let error = Cli::try_parse_from(words).err().filter(clap::Error::use_stderr)?;
    // The library of an example need not be on this machine.
    if error.to_string().contains("there is no file ") {
        return None;
    }
    Some(format!("{}: {}", words.join(" "), error.to_string().lines().next().unwrap_or_default()))
}

/// Catches a document that shows an option which does not exist, or a command that was renamed.
#[test]
fn documents_show_commands_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = vec![root.join("README.md"), root.join("lab/README.md"), root.join("EXPERIMENTS.md")];
    let docs = fs::read_dir(root.join("docs")).expect("docs").map(|entry| entry.expect("an entry").path());
    files.extend(docs.filter(|path| path.extension().is_some_and(|end| end == "md")));
    let (mut all, mut faults) = (0, Vec::new());
    for file in files {
        let text = fs::read_to_string(&file).expect("readable");
        for block in text.split("```").skip(1).step_by(2) {
            // Behind the prompt of an example stands its command; the lines below are its output.
            let commands = commands(block);
            all += commands.len();
            faults.extend(commands.iter().filter_map(|words| refused(words)));
        }
    }
    assert!(all > 100 && faults.is_empty(), "{all} commands\n{}", faults.join("\n"));
}

/// Catches examples in `--help` that the command itself refuses.
#[test]
fn help_shows_commands_that_exist() {
    let (mut all, mut faults) = (0, Vec::new());
    let mut open = vec![Cli::command()];
    while let Some(command) = open.pop() {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let commands = commands(&help);
        all += commands.len();
        faults.extend(commands.iter().filter_map(|words| refused(words)));
        open.extend(command.get_subcommands().cloned());
    }
    assert!(all > 50 && faults.is_empty(), "{all} commands\n{}", faults.join("\n"));
}

/// Catches a command without examples, and examples that a terminal of 80 columns breaks.
#[test]
fn help_has_examples_that_fit() {
    let mut open: Vec<_> = Cli::command().get_subcommands().cloned().collect();
    open.push(Cli::command());
    while let Some(mut command) = open.pop() {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        assert!(help.starts_with("Examples:\n  "), "{}: {help}", command.get_name());
        let wide: Vec<_> = help.lines().filter(|line| line.chars().count() > 80).collect();
        assert!(wide.is_empty(), "{}: {wide:?}", command.get_name());
        let whole = fit(&command.render_long_help().to_string(), 80);
        let wide: Vec<_> = whole.lines().filter(|line| line.chars().count() > 80).collect();
        assert!(wide.is_empty(), "{}: {wide:?}", command.get_name());
        // The help has made the parser's own command of that name.
        open.extend(command.get_subcommands().filter(|sub| sub.get_name() != "help").cloned());
    }
}

/// Catches a line that is cut in the wrong place.
#[test]
fn lines_have_words() {
    let of = |line: &str| words(line).join("|");
    assert_eq!(of("neap top --match '^a b' | jq ."), "neap|top|--match|^a b");
    assert_eq!(of("neap why 12    a process # x"), "neap|why|12");
    assert_eq!(of("neap why 12 # x"), "neap|why|12");
}
