//! The page: one file of HTML, for any browser and width, light and dark, and without a network. uPlot, which is in the
//! file, draws its charts; without scripts the tables have all values.

mod chart;
mod html;
mod machine;
mod overview;
mod section;

use neap_results::{Kind, Run, Verdict, View};

pub use html::{Page, inline, value_html};
pub use section::{table, tag};

use crate::plot::escaped;

/// The library that draws the charts, and the script that uses it.
const UPLOT: &str = include_str!("../../vendor/uplot/uPlot.iife.min.js");
const SCRIPT: &str = include_str!("chart.js");

/// The page of a run.
pub fn html(run: &Run) -> String {
    let view = View::of(run);
    let mut page = Page::new(&title(run), "Results of neap lab");
    head(&mut page, run);
    overview::write(&mut page, run, &view);
    contents(&mut page, run);
    for experiment in &run.experiments {
        section::experiment(&mut page, experiment, &view);
    }
    machine::sections(&mut page, run);
    page.raw("<script>\n");
    page.raw(UPLOT);
    page.raw(SCRIPT);
    page.raw("</script>\n");
    page.finish()
}

/// What the page is called.
pub fn title(run: &Run) -> String {
    let date = run.started.split('T').next().unwrap_or_default();
    format!("Experiments on memory allocators, {date}")
}

fn head(page: &mut Page, run: &Run) {
    page.element("h1", &title(run));
    let machine = &run.machine;
    let virtual_machine = if machine.virtualised.is_some() { ", virtual" } else { "" };
    page.element(
        "p",
        &format!(
            "{} allocators on {} ({} processors, {} MiB{virtual_machine}), Linux {}; {}. All allocators run in turn \
             in each round.",
            run.allocators.len(),
            machine.cpu,
            machine.cores,
            machine.memory_mib,
            machine.kernel,
            rounds(run)
        ),
    );
    if run.quick {
        page.element("p", "A quick run: less work than the full experiments, and fewer rounds.");
    }
    if run.ended.is_none() {
        page.classed("p", "no", "The run was interrupted: the page shows what was measured until then.");
    }
    if run.noise.quiet == Some(false) {
        page.raw("<p class=\"no\">The machine was not quiet: see <a href=\"#noise\">the checks</a>.</p>\n");
    }
    page.element(
        "p",
        "Figures are medians over the rounds, with the least and the greatest. Ratios are taken within a round. An \
         allocator that failed is shown as failed.",
    );
}

/// The number of rounds in the rows: experiments may have different numbers.
fn rounds(run: &Run) -> String {
    let most = |name: &str| run.rows.iter().filter(|row| row.experiment == name).map(|row| row.round).max();
    let counts: Vec<u32> = run.experiments.iter().filter_map(|one| most(&one.name)).collect();
    match (counts.iter().min(), counts.iter().max()) {
        (Some(1), Some(1)) => "one round".into(),
        (Some(least), Some(most)) if least == most => format!("{most} rounds"),
        (Some(least), Some(most)) => format!("{least} to {most} rounds"),
        _ => "no rounds".into(),
    }
}

/// The list of sections, each with its result.
fn contents(page: &mut Page, run: &Run) {
    page.raw("<nav aria-label=\"Contents\">\n<ul>\n");
    for experiment in &run.experiments {
        let name = escaped(&experiment.name);
        let said = match (&experiment.skipped, experiment.lead()) {
            (Some(why), _) => format!("<span class=\"tag open\">not run</span>{}", escaped(why)),
            (None, Some(lead)) => {
                format!("{} <span class=\"muted\">({})</span>", inline(&lead), counts(&experiment.verdicts))
            }
            (None, None) => String::new(),
        };
        page.raw(&format!(
            "<li><a href=\"#{name}\">{}</a> <span class=\"said\">{said}</span></li>\n",
            inline(experiment.heading())
        ));
    }
    page.raw("<li><a href=\"#machine\">Machine, allocators and noise</a></li>\n</ul>\n</nav>\n");
}

/// How many verdicts hold, by kind.
fn counts(verdicts: &[Verdict]) -> String {
    let of = |kind: Kind| {
        let judged = verdicts.iter().filter(move |verdict| verdict.kind == kind && verdict.holds.is_some());
        let good = judged.clone().filter(|verdict| verdict.holds == Some(true)).count();
        (good, judged.count())
    };
    let words = |kind, text: &str| match of(kind) {
        (_, 0) => None,
        (good, all) => Some(format!("{text} {good} of {all}")),
    };
    let parts = [
        words(Kind::Finding, "published findings seen again:"),
        words(Kind::Rank, "neap first:"),
        words(Kind::Target, "goals met:"),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    // Would catch a part of the report that is left out.
    #[test]
    fn the_page_has_its_parts() {
        let text = html(&sample::run());
        for part in [
            "What does it cost?",
            "calloc clears what was not touched.",
            "an article, 2016",
            "8 minutes",
            "neap lab run calloc",
            "failed: crashed (signal 11)",
            "it needs root",
            "glibc grows with the size",
            "published findings seen again: 1 of 1; neap first: 1 of 1; goals met: 0 of 1",
            "<p class=\"lead\">neap is first of 2.</p>",
            "<span class=\"said\">neap is first of 2. <span",
            "<summary>Every fault of <code>true</code></summary>",
            "1 0x1000 C 0 0x1080: _start (in &lt;libc&gt;)",
            "Rounds that count although the machine was busy: 1</summary>",
            "id=\"machine\"",
        ] {
            assert!(text.contains(part), "{part}");
        }
        // Two charts, and the first of them above all; each with a table of its values.
        assert_eq!(text.matches("<figure").count(), 3);
        assert_eq!(text.matches("class=\"chart-data\"").count(), 3);
    }

    // Would catch a case that was skipped and is shown as failed.
    #[test]
    fn skipped_cases_have_not_failed() {
        let mut run = sample::run();
        let skipped = neap_results::Row {
            round: 2,
            status: "skipped: needs 5 GiB".into(),
            metric: String::new(),
            ..run.rows[2].clone()
        };
        run.rows[2] = skipped;
        let text = html(&run);
        let words = "Failed: other at 1 MiB: crashed (signal 11). Skipped: other at 64 KiB: needs 5 GiB.</p>";
        assert!(text.contains(words), "{words}");
    }

    // Would catch two elements with one name: links and descriptions would lead to the wrong one.
    #[test]
    fn names_are_unique() {
        let text = html(&sample::run());
        let mut names: Vec<&str> = text.split(" id=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    // Would catch a text from the data that becomes a part of the page.
    #[test]
    fn texts_stay_text() {
        let mut run = sample::run();
        run.experiments[0].title = "<script>alert(1)</script>".into();
        run.allocators[0].version = "<b>".into();
        run.notes = vec!["a <i> & `<code>`".into()];
        let text = html(&run);
        assert!(!text.contains("<script>alert") && !text.contains("<b>\n") && !text.contains("<i>"));
        assert!(!text.contains("&lt;b&gt;") || !text.contains("<b><"));
        assert!(text.contains("a &lt;i&gt; &amp; <code>&lt;code&gt;</code>"));
    }

    // Would catch anything that a browser would fetch.
    #[test]
    fn nothing_comes_from_elsewhere() {
        let text = html(&sample::run()).replace("https://github.com/leeoniya/uPlot", "");
        for word in ["http:", "https:", "src=", "@import", "url(", "fetch(", "XMLHttp", "<link", "<img"] {
            assert!(!text.contains(word), "{word}");
        }
    }
}
