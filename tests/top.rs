//! `neap top` on a terminal: what it shows, what keys do, and how it leaves the terminal. `neap why` and related
//! commands on a terminal of 80 columns, and the page of `neap why --html` in a browser, with long and odd names.

#[path = "top/views.rs"]
mod views;

use std::ffi::OsStr;
use std::process::ExitCode;
use std::time::Duration;

use neap_tests::command::neap;
use neap_tests::terminal::Terminal;
use neap_tests::{Case, Outcome, Stop};

/// For the slowest machine.
const LIMIT: Duration = Duration::from_secs(60);
/// The head of the table, sorted by what could go back.
const HEAD: &str = "BACK*";
/// Restores the cursor and the previous screen.
const LEFT: &str = "\x1b[?25h\x1b[?1049l";

fn main() -> ExitCode {
    neap_tests::suite::main(vec![
        Case::new(
            "top::keys",
            "a screen without a table, keys that do nothing, or a terminal that is not restored",
            keys,
        ),
        Case::new("top::ends", "a screen that Ctrl-C does not end", || ends_with("\x03")),
        Case::new("top::narrow", "a window in which nothing can be drawn", narrow),
        Case::new("top::vast", "a terminal that reports a size for which there is no memory", vast),
        Case::new("columns::why", "a line longer than 80 columns", views::lines_of_why),
        Case::new("columns::others", "the same for `neap top`, `stats` and `advise`", views::lines_of_others),
        Case::new(
            "page::why",
            "a page that is wider than a phone, hard to read, or asks the network",
            views::page_of_a_process,
        ),
        Case::new("page::container", "the same for the page of a container", views::page_of_a_container),
    ])
}

/// Fails, with the reason, unless something holds.
fn expect(condition: bool, why: impl FnOnce() -> String) -> Outcome {
    if condition { Ok(()) } else { Err(Stop::Fail(why())) }
}

/// `neap top` in a terminal of this size.
fn start(size: &str) -> Result<Terminal, Stop> {
    let script = format!("stty {size}; exec \"$0\" top --interval 300ms");
    let words = [OsStr::new("/bin/sh"), "-c".as_ref(), script.as_ref(), neap()?.as_os_str()];
    Terminal::run(&words)
}

/// Waits until a line of the screen has some words.
fn shows(terminal: &mut Terminal, words: &str) -> Outcome {
    terminal.wait_until(words, LIMIT, |lines| lines.iter().any(|line| line.contains(words)))
}

fn keys() -> Outcome {
    let mut terminal = start("cols 80 rows 24")?;
    shows(&mut terminal, HEAD)?;
    for (key, words) in [("M", " RSS*"), ("r", " RSS^"), (">", " PSS^"), ("h", "PgUp, PgDn")] {
        terminal.press(key)?;
        shows(&mut terminal, words)?;
    }
    // Any key closes the list.
    terminal.press("x")?;
    terminal.press("/no-such-program")?;
    shows(&mut terminal, "filter: no-such-program_")?;
    terminal.press("\r")?;
    shows(&mut terminal, "neap top: 0 processes")?;
    let too_wide = |lines: &[String]| lines.iter().any(|line| line.chars().count() > 80);
    terminal.wait_until("nothing behind the 80th column", LIMIT, |lines| !too_wide(lines))?;
    terminal.press("q")?;
    let (status, shown) = terminal.end(LIMIT)?;
    expect(status.success() && shown.ends_with(LEFT), || format!("{status}: {shown:?}"))
}

fn ends_with(key: &str) -> Outcome {
    let mut terminal = start("cols 80 rows 24")?;
    shows(&mut terminal, HEAD)?;
    terminal.press(key)?;
    let (status, shown) = terminal.end(LIMIT)?;
    expect(status.success() && shown.ends_with(LEFT), || format!("{status}: {shown:?}"))
}

fn vast() -> Outcome {
    let mut terminal = start("cols 60000 rows 60000")?;
    shows(&mut terminal, HEAD)?;
    terminal.press("q")?;
    let (status, shown) = terminal.end(LIMIT)?;
    expect(status.success() && shown.ends_with(LEFT), || format!("{status}: {} bytes", shown.len()))
}

fn narrow() -> Outcome {
    let mut terminal = start("cols 12 rows 3")?;
    shows(&mut terminal, "neap top:")?;
    terminal.press("hq\x1b[Bq")?;
    let (status, shown) = terminal.end(LIMIT)?;
    expect(status.success() && shown.ends_with(LEFT), || format!("{status}: {shown:?}"))
}
