//! The headline chart: for each allocator one bar of time and one of memory, both as ratios to glibc.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use neap_report::theme::Theme;
use neap_results::kept;

/// Draws the geometric means of the benchmark in `dir` into the SVG file.
pub fn headline(file: &Path, dir: &Path) -> Result<()> {
    let read = |name: &str| {
        let path = dir.join(name);
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    };
    let run =
        kept::suite(&read("machine.json")?, &read("runs.csv")?, "").with_context(|| format!("{}", dir.display()))?;
    let svg = neap_report::headline(&run, Theme::Light).context("no allocator ran all workloads")?;
    fs::write(file, svg).with_context(|| format!("cannot write {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::toolchain::root;

    /// Catches a picture in the README that is not that of the benchmark that is kept.
    #[test]
    fn the_readmes_picture_is_the_kept_one() {
        let dir = std::env::temp_dir().join(format!("neap-chart-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("a directory");
        let file = dir.join("chart.svg");
        headline(&file, &root().join("lab/results/2026-11-21")).expect("drawn");
        let (drawn, kept) = (fs::read_to_string(&file), fs::read_to_string(root().join("docs/headline.svg")));
        let command = "cargo xtask report --chart docs/headline.svg lab/results/2026-11-21";
        assert!(drawn.expect("readable") == kept.expect("there"), "to draw it anew: {command}");
        fs::remove_dir_all(&dir).expect("removable");
    }
}
