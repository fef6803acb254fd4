//! Tests of the documents that people write: links, names of files, the list of decisions, and their length.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::book::links;
use crate::place::root;

/// The documents of the repository: all markdown files except those of builds and fetched sources.
fn documents(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if path.is_dir() && !path.is_symlink() && !name.starts_with('.') && !["target", "build"].contains(&name) {
            documents(&path, found);
        } else if name.ends_with(".md") {
            found.push(path);
        }
    }
}

/// The text of a document without its code.
fn prose(path: &Path) -> String {
    let text = fs::read_to_string(path).expect("a document");
    let mut code = false;
    let mut kept = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            code = !code;
        } else if !code {
            kept.extend([line, "\n"]);
        }
    }
    kept
}

/// The anchor of a heading: lower case, hyphens for spaces, no other punctuation.
fn anchor(heading: &str) -> String {
    let kept = heading.trim_start_matches('#').trim().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

/// Why a link of the document at `from` leads nowhere.
fn fault(from: &Path, link: &str) -> Option<String> {
    if link.starts_with("http://") || link.starts_with("https://") {
        return None;
    }
    let (file, heading) = link.split_once('#').unwrap_or((link, ""));
    let to = if file.is_empty() { from.to_owned() } else { from.parent().expect("a folder").join(file) };
    let shown = from.strip_prefix(root()).unwrap_or(from).display();
    if !to.exists() {
        return Some(format!("{shown}: no file {file}"));
    }
    let is_there = heading.is_empty()
        || prose(&to).lines().filter(|line| line.starts_with('#')).any(|line| anchor(line) == heading);
    (!is_there).then(|| format!("{shown}: no heading {link}"))
}

/// Catches a link to a file or a heading that was moved or renamed.
#[test]
fn links_lead_somewhere() {
    let mut found = Vec::new();
    documents(&root(), &mut found);
    assert!(found.len() > 20, "{found:?}");
    let faults = |path: &PathBuf| links(&prose(path)).filter_map(|link| fault(path, link)).collect::<Vec<_>>();
    let faults: Vec<String> = found.iter().flat_map(faults).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Catches a check that accepts a missing file or heading.
#[test]
fn links_that_lead_nowhere() {
    let from = root().join("docs/invariants.md");
    let faults = |link: &str| fault(&from, link).is_some();
    assert!(faults("none.md") && faults("#none") && faults("ARCHITECTURE.md#none"));
    assert!(!faults("ARCHITECTURE.md") && !faults("#handlers-and-forks") && !faults("https://none.example/#none"));
    assert_eq!(links("[a](b.md), [c](#d)").collect::<Vec<_>>(), ["b.md", "#d"]);
    assert_eq!(links("<source srcset=\"a.svg\"><img src=\"b.svg\">").collect::<Vec<_>>(), ["b.svg", "a.svg"]);
}

/// Catches a decision without a line in the list, and a line that is there twice.
#[test]
fn decisions_are_listed() {
    let folder = root().join("docs/decisions");
    let mut files = Vec::new();
    documents(&folder, &mut files);
    let names: BTreeSet<String> =
        files.iter().map(|path| path.file_name().expect("a name").to_string_lossy().into_owned()).collect();
    let list = prose(&folder.join("README.md"));
    let mut listed: Vec<&str> = links(&list).filter(|link| !link.starts_with("..")).collect();
    listed.push("README.md");
    listed.sort_unstable();
    assert_eq!(listed, names.iter().map(String::as_str).collect::<Vec<_>>());
}

/// All source files of the repository, relative to its root.
fn sources(folder: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if path.is_dir() && !path.is_symlink() && !name.starts_with('.') && name != "target" {
            sources(&path, found);
        } else if name.ends_with(".rs") {
            found.push(path.strip_prefix(root()).expect("inside").display().to_string());
        }
    }
}

/// Catches a document with the name of a source file that was moved or renamed. The table of mutants has its own check.
#[test]
fn named_files_are_there() {
    let (mut found, mut files) = (Vec::new(), Vec::new());
    documents(&root(), &mut found);
    sources(&root(), &mut files);
    found.retain(|path| !path.ends_with("crates/core/mutants.md"));
    let is_name =
        |word: &&str| word.ends_with(".rs") && word.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-./".contains(&b));
    let is_there = |name: &str| files.iter().any(|file| file == name || file.ends_with(&format!("/{name}")));
    let mut named = 0;
    let mut faults = Vec::new();
    for path in &found {
        let text = prose(path);
        for name in text.split('`').skip(1).step_by(2).filter(is_name) {
            named += 1;
            if !is_there(name) {
                faults.push(format!("{}: no file {name}", path.display()));
            }
        }
    }
    assert!(named > 100 && faults.is_empty(), "{named} names, {}", faults.join("\n"));
}

/// Catches a crate that the documents do not name, and a name of a crate that no longer exists.
#[test]
fn crates_are_listed() {
    for document in ["CONTRIBUTING.md", "docs/ARCHITECTURE.md"] {
        let text = prose(&root().join(document));
        let named: BTreeSet<&str> =
            text.split("`crates/").skip(1).filter_map(|rest| rest.split(['/', '`']).next()).collect();
        let there = fs::read_dir(root().join("crates")).expect("a folder").flatten();
        let there: BTreeSet<String> = there.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        assert_eq!(named, there.iter().map(String::as_str).collect(), "{document}");
    }
}

/// Catches a walk through the allocator that is too long to be read at once.
#[test]
fn the_walk_is_short() {
    let text = fs::read_to_string(root().join("docs/ARCHITECTURE.md")).expect("a document");
    let words = text.split_whitespace().count();
    assert!(words <= 2500, "{words} words: move details to a page of their own");
}

/// Catches a cited invariant that the list does not have, and a wrong fault or number in the list.
#[test]
fn invariants_are_listed() {
    let list = prose(&root().join("docs/invariants.md"));
    let rows: Vec<usize> =
        list.lines().filter_map(|line| line.strip_prefix("| ")?.split(' ').next()?.parse().ok()).collect();
    assert_eq!(rows, (1..=rows.len()).collect::<Vec<_>>());
    let faults = root().join("crates/sim/mutants");
    let is_fault = |word: &&str| word.contains('-') && word.bytes().all(|b| b.is_ascii_lowercase() || b == b'-');
    for fault in list.split('`').skip(1).step_by(2).filter(is_fault) {
        assert!(faults.join(format!("{fault}.patch")).exists(), "no fault {fault}");
    }
    let mut files = Vec::new();
    sources(&root(), &mut files);
    let mut cited = 0;
    for file in files.iter().filter(|file| file.starts_with("crates/")) {
        let text = fs::read_to_string(root().join(file)).expect("a source file").to_lowercase();
        for rest in text.split("invariant ").skip(1) {
            let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
            if let Ok(number) = digits.parse::<usize>() {
                cited += 1;
                assert!(rows.contains(&number), "{file} cites invariant {number}");
            }
        }
    }
    assert!(cited > 5, "{cited} are cited");
}

/// Catches a row in the table of mutants, or an excluded file, whose function or file was moved or renamed, so that it
/// has no effect.
#[test]
fn mutants_have_their_functions() {
    let mut files = Vec::new();
    sources(&root().join("crates/core/src"), &mut files);
    let table = prose(&root().join("crates/core/mutants.md"));
    let mut rows = 0;
    for line in table.lines().filter(|line| line.starts_with("| `") && line.contains(".rs` | `")) {
        let cells: Vec<&str> = line.split(" | ").collect();
        let (file, mutant) = (cells[0].trim_matches(['|', ' ', '`']), cells[1].trim_matches('`'));
        // `replace < with <= in TYPE::FUNCTION #2`, or `replace TYPE::FUNCTION -> bool with true`.
        let place = mutant.rsplit_once(" in ").map_or(mutant, |(_, place)| place);
        let place = place.trim_start_matches("replace ").split(" #").next().unwrap_or_default();
        let place = place.split([' ', '…']).find(|part| !part.is_empty()).unwrap_or_default();
        let place = mutant.find("Trim<").map_or(place, |at| &mutant[at..]);
        let (of, function) = place.rsplit_once("::").unwrap_or(("", place));
        let function = function.split(' ').next().unwrap_or_default();
        let of = of.split('<').next().unwrap_or_default();
        let is_there = files.iter().filter(|path| path.ends_with(&format!("/{file}"))).any(|path| {
            let text = fs::read_to_string(root().join(path)).expect("a source file");
            let is_of_type = text.lines().any(|line| line.starts_with("impl") && line.contains(of));
            ["(", "<"].iter().any(|end| text.contains(&format!("fn {function}{end}"))) && (of.is_empty() || is_of_type)
        });
        rows += 1;
        assert!(is_there, "no {place} in {file}: {line}");
    }
    assert!(rows > 100, "{rows} rows");
    let excluded = fs::read_to_string(root().join(".cargo/mutants.toml")).expect("a file");
    for path in excluded.split('"').filter(|text| text.starts_with("crates/") && text.ends_with(".rs")) {
        assert!(root().join(path).exists(), ".cargo/mutants.toml: no {path}");
    }
}

/// Catches a simulated fault without a row in the table, a row without a fault, and one with another text.
#[test]
fn simulated_faults_are_listed() {
    let mut faults = Vec::new();
    for entry in fs::read_dir(root().join("crates/sim/mutants")).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        let text = fs::read_to_string(&path).expect("a patch");
        faults.push((name, text.lines().next().unwrap_or_default().trim_end_matches('.').to_owned()));
    }
    faults.sort();
    let list = prose(&root().join("docs/simulated-faults.md"));
    let cells = |line: &str| {
        let mut cells = line.strip_prefix("| `")?.split(" | ");
        Some((cells.next()?.trim_end_matches('`').to_owned(), cells.next()?.to_owned()))
    };
    assert_eq!(list.lines().filter_map(cells).collect::<Vec<_>>(), faults);
}

/// Catches an example in a comment of a crate whose examples the gate does not run.
#[test]
fn only_the_rust_crate_has_examples() {
    let mut files = Vec::new();
    sources(&root().join("crates"), &mut files);
    files.retain(|path| !path.starts_with("crates/neap/"));
    assert!(files.len() > 100, "{}", files.len());
    let other_languages = ["text", "json", "c"];
    for path in files {
        let text = fs::read_to_string(root().join(&path)).expect("a source file");
        let comments =
            text.lines().map(str::trim_start).filter(|line| line.starts_with("///") || line.starts_with("//!"));
        let fences = comments.map(|line| line[3..].trim()).filter(|line| line.starts_with("```"));
        for opening in fences.step_by(2) {
            assert!(other_languages.contains(&&opening[3..]), "{path}: {opening}: examples belong into crates/neap");
        }
    }
}
