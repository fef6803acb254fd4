//! docs/options.md holds the table. After a change of the table:
//!
//!     NEAP_WRITE_DOCS=1 cargo test -p neap-options --test page

use neap_options::TABLE;
use std::fmt::Write;
use std::path::PathBuf;

const BEGIN: &str = "<!-- from crates/options/src/table.rs; see crates/options/tests/page.rs -->\n";
const END: &str = "<!-- end of the table -->\n";

fn table() -> String {
    let mut text = String::from("\n| option | variable | accepts | default | does |\n|---|---|---|---|---|\n");
    for opt in TABLE {
        let default = if opt.default.is_empty() { "not set".to_owned() } else { format!("`{}`", opt.default) };
        let line = format!("| `{}` | `{}` | {} | {default} | {} |", opt.name, opt.env, opt.kind, opt.doc);
        assert_eq!(line.matches('|').count(), 6, "a bar would start another column: {line}");
        writeln!(text, "{line}").expect("a string takes all");
    }
    text.push('\n');
    text
}

/// Catches a page that tells other options, values or defaults than there are, and an option without a section.
#[test]
fn the_page_is_not_stale() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/options.md");
    let page = std::fs::read_to_string(&path).expect("docs/options.md");
    let (before, rest) = page.split_once(BEGIN).expect("the mark before the table");
    let (found, after) = rest.split_once(END).expect("the mark after the table");
    for opt in TABLE {
        assert!(after.contains(&format!("\n## {}\n", opt.name)), "docs/options.md has no section {}", opt.name);
    }
    let sections = after.lines().filter_map(|line| line.strip_prefix("## "));
    let stale: Vec<_> = sections.filter(|name| TABLE.iter().all(|opt| opt.name != *name)).collect();
    assert!(stale.is_empty(), "docs/options.md has sections of no option: {stale:?}");
    if std::env::var_os("NEAP_WRITE_DOCS").is_some() {
        std::fs::write(&path, format!("{before}{BEGIN}{}{END}{after}", table())).expect("the page can be written");
        return;
    }
    assert!(found == table(), "docs/options.md is stale: NEAP_WRITE_DOCS=1 cargo test -p neap-options --test page");
}
