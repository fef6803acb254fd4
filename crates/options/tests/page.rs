//! docs/options.md and docs/controls.md hold the tables. After a change of one:
//!
//!     NEAP_WRITE_DOCS=1 cargo test -p neap-options --test page

use neap_options::{TABLE, glibc};
use std::fmt::Write;
use std::path::PathBuf;

const END: &str = "<!-- end of the table -->\n";

fn page(name: &str) -> (PathBuf, String) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("docs/{name}: {e}"));
    (path, text)
}

/// The page before, in and behind its table, which stands behind the line that names `source`.
fn parts(page: &str, source: &str) -> [String; 3] {
    let begin = format!("<!-- from crates/options/src/{source}; see crates/options/tests/page.rs -->\n");
    let (before, rest) = page.split_once(&begin).expect("the mark before the table");
    let (found, after) = rest.split_once(END).expect("the mark after the table");
    [before.to_owned() + &begin, found.to_owned(), END.to_owned() + after]
}

/// Compares the table in a page with what it should be, or writes it.
fn check(name: &str, source: &str, wanted: &str) {
    let (path, text) = page(name);
    let [before, found, after] = parts(&text, source);
    if std::env::var_os("NEAP_WRITE_DOCS").is_some() {
        std::fs::write(&path, format!("{before}{wanted}{after}")).expect("the page can be written");
        return;
    }
    assert!(found == wanted, "docs/{name} is stale: NEAP_WRITE_DOCS=1 cargo test -p neap-options --test page");
}

fn options() -> String {
    let mut text = String::from("\n| option | variable | accepts | default | does |\n|---|---|---|---|---|\n");
    for opt in TABLE {
        let default = if opt.default.is_empty() { "not set".to_owned() } else { format!("`{}`", opt.default) };
        let line = format!("| `{}` | `{}` | {} | {default} | {} |", opt.name, opt.env, opt.kind, opt.doc());
        assert_eq!(line.matches('|').count(), 6, "a bar would start another column: {line}");
        writeln!(text, "{line}").expect("a string takes all");
    }
    text.push('\n');
    text
}

fn controls() -> String {
    let mut text = String::from(
        "\n| mallopt | variable | tunable | to glibc | default there | to neap |\n|---|---|---|---|---|---|\n",
    );
    let code = |name: Option<&str>| name.map_or_else(String::new, |name| format!("`{name}`"));
    for control in glibc::all() {
        let parameter = control.parameter.map_or_else(String::new, |(name, number)| format!("`{name}` ({number})"));
        let texts = control.texts().expect("each control has texts");
        let line = format!(
            "| {parameter} | {} | {} | {} | {} | {} |",
            code(control.env),
            code(Some(control.tunable)),
            texts.glibc,
            texts.default,
            texts.neap
        );
        assert_eq!(line.matches('|').count(), 7, "a bar would start another column: {line}");
        writeln!(text, "{line}").expect("a string takes all");
    }
    text.push('\n');
    text
}

/// Catches a page with other options, values or defaults than there are, and an option without a section.
#[test]
fn the_page_of_options_is_not_stale() {
    let (_, text) = page("options.md");
    let [_, _, after] = parts(&text, "table.rs");
    for opt in TABLE {
        assert!(after.contains(&format!("\n## {}\n", opt.name)), "docs/options.md has no section {}", opt.name);
    }
    let sections = after.lines().filter_map(|line| line.strip_prefix("## "));
    let stale: Vec<_> = sections.filter(|name| TABLE.iter().all(|opt| opt.name != *name)).collect();
    assert!(stale.is_empty(), "docs/options.md has sections of no option: {stale:?}");
    check("options.md", "table.rs", &options());
}

/// Catches a page with other controls than there are.
#[test]
fn the_page_of_controls_is_not_stale() {
    check("controls.md", "glibc.rs", &controls());
}
