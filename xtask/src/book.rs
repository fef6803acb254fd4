//! `cargo xtask book`: the documents as a site, by mdBook, with all its links checked.
//!
//! The pages are copies of the repository's files. mdBook does not read the repository itself, because it would copy
//! all other files too.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use neap_lab::failure::failure;

use crate::place::root;

/// The chapters, in parts. A folder stands for all its pages.
const CONTENTS: &[(&str, &[&str])] = &[
    ("neap", &["README.md", "EXPERIMENTS.md", "BENCHMARKS.md", "CHANGELOG.md"]),
    (
        "Running a service",
        &[
            "docs/run.md",
            "docs/options.md",
            "docs/why.md",
            "docs/remedies.md",
            "docs/builds.md",
            "docs/top.md",
            "docs/exporter.md",
            "docs/advise.md",
            "docs/containers.md",
            "docs/packages.md",
            "docs/recipes.md",
            "docs/platforms.md",
            "docs/compatibility.md",
            "docs/limits.md",
            "docs/attributes.md",
        ],
    ),
    (
        "Programming",
        &[
            "docs/profile.md",
            "docs/pagein.md",
            "docs/controls.md",
            "docs/ranges.md",
            "docs/huge.md",
            "docs/order.md",
            "docs/hardening.md",
            "docs/guards.md",
        ],
    ),
    (
        "How neap works",
        &[
            "docs/glossary.md",
            "docs/ARCHITECTURE.md",
            "docs/giving-back.md",
            "docs/arenas.md",
            "docs/large-blocks.md",
            "docs/huge-pages.md",
            "docs/threads.md",
            "docs/signals.md",
            "docs/observing.md",
            "docs/counters.md",
            "docs/heaps.md",
            "docs/pagein-internals.md",
            "docs/invariants.md",
            "docs/decisions",
        ],
    ),
    ("Comparing allocators", &["docs/lab.md", "docs/lab-report.md", "lab/README.md"]),
    (
        "Contributing",
        &[
            "CONTRIBUTING.md",
            "docs/dependencies.md",
            "docs/testing.md",
            "docs/testing-core.md",
            "docs/mutants.md",
            "crates/core/mutants.md",
            "docs/simulated-faults.md",
        ],
    ),
];

/// mdBook's settings. Links between pages keep their names: `README.md` does not become `index.html`.
const SETTINGS: &str = r#"[book]
title = "neap"
description = "A malloc for Linux that gives memory back, and tools that show where memory goes"
language = "en"
src = "src"

[build]
build-dir = "html"
use-default-preprocessors = false

[output.html]
no-section-label = true

[output.html.playground]
runnable = false

[output.html.print]
enable = false
"#;

/// Arguments of `cargo xtask book`.
#[derive(clap::Args)]
#[command(after_help = "The site is then in target/book/html: open target/book/html/index.html")]
pub struct Args {
    /// mdBook's program [default: mdbook]
    #[arg(long, value_name = "FILE", default_value = "mdbook")]
    mdbook: PathBuf,
}

/// Runs the command.
pub fn main(args: Args) -> Result<()> {
    let remedy =
        "install it with `cargo install mdbook --version ^0.4 --no-default-features`, or name it with --mdbook";
    let there = Command::new(&args.mdbook).arg("--version").output();
    there.map_err(|error| failure(format!("{}: {error}", args.mdbook.display()), remedy))?;
    let book = root().join("target/book");
    let _ = fs::remove_dir_all(&book);
    assemble(&book)?;
    let built = Command::new(&args.mdbook).arg("build").arg(&book).output()?;
    if !built.status.success() {
        bail!("mdBook: {}\n{}", built.status, String::from_utf8_lossy(&built.stderr));
    }
    let (pages, faults) = check(&book.join("html"))?;
    if !faults.is_empty() {
        bail!("links that lead nowhere:\n{}", faults.join("\n"));
    }
    println!("{pages} pages in {}", book.join("html").display());
    Ok(())
}

/// The pages of the site: each part with its files, from the root on.
fn chapters() -> Result<Vec<(&'static str, Vec<String>)>> {
    let mut parts = Vec::new();
    for (part, names) in CONTENTS {
        let mut files = Vec::new();
        for name in *names {
            if name.ends_with(".md") {
                files.push((*name).to_owned());
                continue;
            }
            let entries = fs::read_dir(root().join(name)).with_context(|| format!("cannot read {name}"))?;
            let inside = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
            let mut inside: Vec<String> = inside.filter(|file| file.ends_with(".md")).collect();
            // The list of a folder's pages comes first.
            inside.sort_by_key(|file| (file != "README.md", file.clone()));
            files.extend(inside.iter().map(|file| format!("{name}/{file}")));
        }
        parts.push((*part, files));
    }
    Ok(parts)
}

/// Copies pages and what they show or link to, and writes the table of contents and the settings.
fn assemble(book: &Path) -> Result<()> {
    let mut summary = String::from("# Summary\n");
    let copy = |name: &str| -> Result<()> {
        let to = book.join("src").join(name);
        fs::create_dir_all(to.parent().context("a folder")?)?;
        fs::copy(root().join(name), to).map(drop).with_context(|| format!("cannot copy {name}"))
    };
    for (part, files) in chapters()? {
        summary.push_str(&format!("\n# {part}\n\n"));
        for file in files {
            let text = fs::read_to_string(root().join(&file)).with_context(|| format!("cannot read {file}"))?;
            let title = text.lines().find_map(|line| line.strip_prefix("# ")).unwrap_or(&file).replace('`', "");
            summary.push_str(&format!("- [{title}]({file})\n"));
            copy(&file)?;
            for link in links(&text) {
                let Some(name) = inside(&file, link) else { continue };
                if !name.ends_with(".md") && root().join(&name).is_file() {
                    copy(&name)?;
                }
            }
        }
    }
    fs::write(book.join("src/SUMMARY.md"), summary)?;
    fs::write(book.join("book.toml"), SETTINGS)?;
    Ok(())
}

/// The targets of a text's links: those in `[text](place)`, and the files of pictures.
pub fn links(text: &str) -> impl Iterator<Item = &str> {
    let marked = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let files = text.split(" src=\"").skip(1).chain(text.split(" srcset=\"").skip(1));
    marked.chain(files.filter_map(|rest| rest.split('"').next()))
}

/// The file to which a link of the page `from` leads, relative to the root; none for other sites.
fn inside(from: &str, link: &str) -> Option<String> {
    let file = link.split('#').next().unwrap_or_default();
    if file.is_empty() || file.contains(':') {
        return None;
    }
    let mut parts: Vec<String> = from.split('/').map(str::to_owned).collect();
    parts.pop();
    for part in Path::new(file).components() {
        match part {
            Component::ParentDir => drop(parts.pop()?),
            Component::Normal(name) => parts.push(name.to_string_lossy().into_owned()),
            _ => {}
        }
    }
    Some(parts.join("/"))
}

/// Checks each page of the site; returns their number, and the links that lead nowhere.
fn check(folder: &Path) -> Result<(usize, Vec<String>)> {
    let mut pages = BTreeMap::new();
    let mut files = BTreeSet::new();
    let mut open = vec![folder.to_owned()];
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(&next)? {
            let path = entry?.path();
            let name = path.strip_prefix(folder)?.to_string_lossy().into_owned();
            if path.is_dir() {
                open.push(path);
                continue;
            }
            if name.ends_with(".html") {
                pages.insert(name.clone(), fs::read_to_string(&path)?);
            }
            files.insert(name);
        }
    }
    let mut faults = Vec::new();
    // Not the page for missing pages: its links are relative to the root of a server.
    for (page, text) in pages.iter().filter(|(page, _)| *page != "404.html") {
        let targets = [" href=\"", " src=\"", " srcset=\""].into_iter().flat_map(|mark| text.split(mark).skip(1));
        for target in targets.filter_map(|rest| rest.split('"').next()) {
            if target.contains(':') {
                continue;
            }
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let to = inside(page, file).unwrap_or_else(|| page.clone());
            let is_there = match pages.get(&to) {
                Some(text) => heading.is_empty() || text.contains(&format!("id=\"{heading}\"")),
                None => files.contains(&to),
            };
            if !is_there {
                faults.push(format!("{page}: {target}"));
            }
        }
    }
    faults.dedup();
    Ok((pages.len(), faults))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a page of docs that the site lacks, or has twice.
    #[test]
    fn every_page_is_a_chapter() {
        let all: Vec<String> = chapters().expect("readable").into_iter().flat_map(|(_, files)| files).collect();
        let names: BTreeSet<&String> = all.iter().collect();
        assert_eq!(names.len(), all.len());
        for folder in ["docs", "docs/decisions"] {
            for entry in fs::read_dir(root().join(folder)).expect("a folder").flatten() {
                let name = format!("{folder}/{}", entry.file_name().to_string_lossy());
                assert!(!name.ends_with(".md") || names.contains(&name), "{name} is no chapter");
            }
        }
        assert!(names.iter().all(|name| root().join(name).is_file()), "{names:?}");
    }

    /// Catches a missing file or heading that counts as found.
    #[test]
    fn links_of_a_site_are_checked() {
        let folder = std::env::temp_dir().join(format!("neap-book-{}", std::process::id()));
        fs::create_dir_all(folder.join("docs")).expect("a folder");
        let page = r##"<h1 id="top">x</h1><a href="docs/b.html#none">b</a><a href="docs/b.html#there">b</a>
            <a href="none.html">c</a><img src="docs/d.svg"> <a href="https://example.org/">e</a><a href="#top">f</a>"##;
        fs::write(folder.join("a.html"), page).expect("written");
        fs::write(folder.join("docs/b.html"), r#"<h2 id="there"></h2><a href="../a.html">a</a>"#).expect("written");
        let (pages, faults) = check(&folder).expect("read");
        fs::remove_dir_all(&folder).expect("removed");
        assert_eq!(
            (pages, faults),
            (2, ["a.html: docs/b.html#none", "a.html: none.html", "a.html: docs/d.svg"].map(String::from).into())
        );
    }
}
