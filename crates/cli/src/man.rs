//! The manual pages, from the definition of the command line: all on one page, or one for each command.

use std::fs;
use std::path::Path;

use clap::CommandFactory;

use crate::args::Cli;
use crate::options;
use crate::run::args::RUN_EXAMPLES;
use neap_launch::error::Error;
use neap_launch::sys::print;
use neap_options::nearest::did_you_mean;

/// Prints the page of neap, followed by a section for each command, or the page of one command.
pub fn show(name: Option<&str>) -> Result<u8, Error> {
    let all = definition();
    let Some(name) = name else {
        return print((sections(&all) + &options::man_section()).as_bytes());
    };
    let command = all.find_subcommand(name).ok_or_else(|| {
        let names: Vec<_> = all.get_subcommands().map(clap::Command::get_name).collect();
        let meant = did_you_mean(name, names.iter().copied());
        Error::failed(format!("there is no command `{name}`"))
            .remedy(format!("{meant}the commands are {}", names.join(", ")))
    })?;
    print(sections(command).as_bytes())
}

/// Writes neap.1, which has no sections of the commands, and a page for each command, as neap-run.1.
pub fn write(dir: &Path) -> Result<u8, Error> {
    let put = |name: &str, page: String| {
        let path = dir.join(format!("{name}.1"));
        fs::write(&path, page).map_err(|e| Error::failed(format!("cannot write {}: {e}", path.display())))
    };
    let all = definition();
    put("neap", page(&all) + &options::man_section())?;
    for command in all.get_subcommands() {
        put(command.get_display_name().unwrap_or(command.get_name()), sections(command))?;
    }
    Ok(0)
}

fn definition() -> clap::Command {
    // The table of options is at the end of the page.
    let mut command = Cli::command().disable_help_subcommand(true).mut_subcommands(|sub| match sub.get_name() {
        "run" => sub.after_long_help(RUN_EXAMPLES),
        _ => sub,
    });
    command.build();
    command
}

/// The page of a command, and the pages of the commands in it.
fn sections(command: &clap::Command) -> String {
    command.get_subcommands().fold(page(command), |text, sub| text + &sections(sub))
}

/// The page of a command with its examples line by line, as they are in the help: not filled and not spread to both
/// margins.
fn page(command: &clap::Command) -> String {
    let mut page = Vec::new();
    // Not the version with the library's: the foot of a page has room for a few words.
    let man = clap_mangen::Man::new(command.clone()).source(concat!("neap ", env!("CARGO_PKG_VERSION"))).manual("neap");
    man.render(&mut page).expect("a vector takes all that is written");
    let (mut text, mut open) = (String::with_capacity(page.len()), false);
    for line in String::from_utf8_lossy(&page).lines() {
        if open && (line.starts_with(".SH") || line.starts_with(".TH")) {
            text.push_str(".fi\n");
            open = false;
        }
        if line == ".SH EXTRA" {
            text.push_str(".SH EXAMPLES\n.nf\n");
            open = true;
        } else if !(open && line == "Examples:") {
            text.push_str(line);
            text.push('\n');
        }
    }
    text.push_str(if open { ".fi\n" } else { "" });
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a manual page that lacks a command, or has examples in which several lines are one.
    #[test]
    fn the_manual_page_is_whole() {
        let page = sections(&definition());
        for name in [
            "neap\\-run",
            "neap\\-profile\\-show",
            "neap\\-pagein\\-diff",
            "neap\\-why",
            "neap\\-stats",
            "neap\\-top",
            "neap\\-exporter",
            "neap\\-advise",
            "neap\\-huge\\-reserve",
            "neap\\-lab\\-peers\\-build",
            "neap\\-man",
        ] {
            assert!(page.contains(&format!(".SH NAME\n{name} ")), "{name}: {page}");
        }
        assert!(page.contains(".SH EXAMPLES\n.nf\n") && !page.contains(".SH EXTRA"), "{page}");
        assert_eq!(page.matches("\n.nf\n").count(), page.matches("\n.fi\n").count());
    }

    /// Catches a command without a page of its own, a page of another command, and pages that name no other.
    #[test]
    fn each_command_has_a_page() {
        let dir = std::env::temp_dir().join(format!("neap-man-{}", std::process::id()));
        fs::create_dir(&dir).expect("a folder");
        write(&dir).expect("pages");
        let read = |name: &str| fs::read_to_string(dir.join(name)).expect("a page");
        for command in definition().get_subcommands() {
            let page = read(&format!("neap-{}.1", command.get_name()));
            assert!(page.contains(&format!(".SH NAME\nneap\\-{} ", command.get_name())), "{page}");
            let foot = page.lines().find(|line| line.starts_with(".TH")).expect("a title");
            assert!(foot.contains("\"neap 0.") && foot.len() < 60, "{foot}");
        }
        assert!(read("neap-lab.1").contains("neap\\-lab\\-peers\\-build"));
        let overview = read("neap.1");
        assert!(overview.contains("NEAP_PURGE_DELAY") && overview.contains("neap\\-run(1)"), "{overview}");
        assert_eq!(overview.matches(".SH NAME").count(), 1);
        fs::remove_dir_all(&dir).expect("a folder of ours");
    }
}
