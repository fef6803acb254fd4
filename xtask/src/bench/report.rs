//! The tables and the headline chart, made from the raw rows, `machine.json` and the remarks beside them alone.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use neap_report::markdown::{Options, document};
use neap_report::theme::Theme;
use neap_results::{Run, kept};

/// Reads the benchmark in `dir`.
pub fn read(dir: &Path) -> Result<Run> {
    let read = |name: &str| {
        let path = dir.join(name);
        let remedy = "name a folder that `cargo xtask bench -o` wrote";
        fs::read_to_string(&path).with_context(|| format!("cannot read {}; {remedy}", path.display()))
    };
    // What was measured by other means, and what the figures mean: written by hand beside them.
    let notes = fs::read_to_string(dir.join("notes.md")).unwrap_or_default();
    kept::suite(&read("machine.json")?, &read("runs.csv")?, &notes).with_context(|| format!("{}", dir.display()))
}

/// The tables in markdown.
pub fn markdown(run: &Run) -> String {
    document(run, &Options { title: "Benchmarks", ..Options::default() })
}

/// Draws the geometric means into the SVG file: for each allocator one bar of time and one of memory, both against
/// glibc.
pub fn headline(file: &Path, run: &Run) -> Result<()> {
    let svg = neap_report::headline(run, Theme::Light).context("no allocator ran all workloads")?;
    fs::write(file, svg).with_context(|| format!("cannot write {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches tables and a picture that are not those of the benchmark that is kept.
    #[test]
    fn what_is_published_is_what_is_kept() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let run = read(&root.join("lab/results/2026-11-21")).expect("kept");
        let file = std::env::temp_dir().join(format!("neap-headline-{}.svg", std::process::id()));
        headline(&file, &run).expect("drawn");
        let text = |path: &Path| fs::read_to_string(path).expect("readable");
        let command = "cargo xtask report --chart docs/headline.svg lab/results/2026-11-21 > BENCHMARKS.md";
        assert!(text(&file) == text(&root.join("docs/headline.svg")), "to draw it anew: {command}");
        assert!(markdown(&run) == text(&root.join("BENCHMARKS.md")), "to write it anew: {command}");
        fs::remove_file(&file).expect("removable");
    }
}
