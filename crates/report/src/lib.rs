//! The report of a run of the lab: one page of HTML, charts as SVG and PNG, markdown, comparisons.
//!
//! Depends on `neap-results` and, for PNG (feature `png`), on resvg; returns texts and bytes. Opens no files and makes
//! no system calls, except to read the system's fonts for a PNG.
//!
//! | task | function |
//! |---|---|
//! | the page of a run | [`page::html`] |
//! | its charts as files | [`charts`] |
//! | one of them as PNG | `picture::png` |
//! | the README's picture, and its table | [`readme::picture`], [`readme::table`] |
//! | a document in markdown | [`markdown::document`] |
//! | two runs compared, as text or page | [`compare::text`], [`compare::html`] |
#![forbid(unsafe_code)]

pub mod compare;
pub mod markdown;
pub mod page;
#[cfg(feature = "png")]
pub mod picture;
pub mod plot;
pub mod readme;
pub mod summary;
pub mod theme;

#[cfg(test)]
mod sample;

use neap_results::{Chart, Experiment, Run, View};

/// All charts of a run that have anything to show: the stem of a file's name, and the SVG. Lines are drawn as dots,
/// because a file has no pointer to read values with.
pub fn charts(run: &Run, theme: theme::Theme) -> Vec<(String, String)> {
    let view = View::of(run);
    let mut all = Vec::new();
    for experiment in &run.experiments {
        for chart in &experiment.charts {
            let drawn = plot::standalone(chart, &experiment.name, &view, theme);
            all.extend(drawn.map(|svg| (file_stem(experiment, chart), svg)));
        }
    }
    all
}

/// What the file of a chart is called: experiment and chart.
pub fn file_stem(experiment: &Experiment, chart: &Chart) -> String {
    let clean = |letter: char| if letter.is_ascii_alphanumeric() { letter.to_ascii_lowercase() } else { '-' };
    format!("{}-{}", experiment.name, chart.name).chars().map(clean).collect()
}
