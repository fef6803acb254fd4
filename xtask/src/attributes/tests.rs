//! The table against its document, the tests that it names, and the programs of torture.

use super::page::{PAGE, renewed};
use super::{TABLE, Torture, drawn};
use std::collections::BTreeSet;
use std::fs;

use crate::place::root;

fn read(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Catches a document that differs from the table.
#[test]
fn the_page_is_not_stale() {
    let there = read(PAGE);
    let wanted = renewed(&there).expect("the marks");
    assert!(there == wanted, "{} is stale; to write it anew: cargo xtask documents", PAGE);
}

/// Catches a test that was renamed or removed, so that nothing holds the promise any more.
#[test]
fn named_tests_are_there() {
    for attribute in TABLE.iter().flat_map(|kind| kind.attributes) {
        for (file, case) in attribute.tests {
            let text = read(file);
            let is_there = text.contains(&format!("\"{case}\""))
                || text.contains(&format!("fn {case}("))
                || text.contains(&format!("::{case}\""));
            assert!(is_there, "{file} has no test {case}, which holds: {}", attribute.promise);
        }
    }
}

/// The names that begin the entries of a table of C: `{"NAME", `.
fn entries(file: &str, from: &str) -> BTreeSet<String> {
    let text = read(file);
    let table = text.split_once(from).unwrap_or_else(|| panic!("{file} has no {from}")).1;
    let table = table.split_once("};").expect("the end of the table").0;
    table.split("{\"").skip(1).filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())).collect()
}

/// Catches a change that torture draws and its program does not know, or the reverse; and an actor that was renamed.
#[test]
fn torture_knows_the_table() {
    let named: Vec<&str> = drawn().collect();
    let table: BTreeSet<String> = named.iter().map(|&name| name.to_owned()).collect();
    assert_eq!(named.len(), table.len(), "a change is in two rows");
    let mut known = entries("tests/torture/attributes.c", "changes_of_threads[] = {");
    known.extend(entries("tests/torture/children.c", "changes_of_children[] = {"));
    assert_eq!(table, known);
    let mut actors = entries("tests/torture/main.c", "static const struct actor actors[] = {");
    actors.insert("signals".to_owned());
    for attribute in TABLE.iter().flat_map(|kind| kind.attributes) {
        if let Torture::Actor(name) = attribute.torture {
            assert!(actors.contains(name), "torture has no actor {name}");
        }
    }
}

/// Catches a row without a promise, or that no test holds and that does not say why.
#[test]
fn rows_are_complete() {
    for attribute in TABLE.iter().flat_map(|kind| kind.attributes) {
        assert!(!attribute.what.is_empty() && !attribute.calls.is_empty());
        assert!(attribute.promise.ends_with('.'), "{}", attribute.what);
        match attribute.torture {
            Torture::Changes(names) => assert!(!names.is_empty(), "{}", attribute.what),
            Torture::Actor(_) => {}
            Torture::Not(why) => assert!(!why.is_empty(), "{}", attribute.what),
        }
    }
}
