//! A comparison of two runs, as text and as a page.

use std::fmt::Write as _;

use neap_results::judge::number;
use neap_results::{Change, Comparison, Missing, Outcome, Ratio};

use crate::page::{Page, value_html};
use crate::plot::escaped;

/// Sections of a comparison: outcome and heading.
const SECTIONS: [(Outcome, &str); 4] = [
    (Outcome::Worse, "Worse beyond noise"),
    (Outcome::Better, "Better beyond noise"),
    (Outcome::Changed, "Changed beyond noise (neither less nor more is better)"),
    (Outcome::Unclear, "Different, but the rounds are too few to tell"),
];

/// The comparison as text. `limit` lines in each section; all of them for `None`.
pub fn text(comparison: &Comparison, limit: Option<usize>) -> String {
    let mut text = format!("before: {}\nafter:  {}\n", comparison.before, comparison.after);
    for (what, before, after) in &comparison.settings {
        let _ = writeln!(text, "different: {what}: {before} -> {after}");
    }
    let _ = writeln!(text, "{}", counts(comparison));
    for line in missing(comparison) {
        let _ = writeln!(text, "{line}");
    }
    for (outcome, heading) in SECTIONS {
        let all: Vec<&Change> = comparison.of(outcome).collect();
        if all.is_empty() {
            continue;
        }
        let _ = writeln!(text, "\n{heading}:");
        let shown = limit.unwrap_or(all.len()).min(all.len());
        for change in &all[..shown] {
            let _ = writeln!(text, "  {}: {} -> {}{}", name(change), change.before, change.after, ratios(change));
        }
        if shown < all.len() {
            let _ = writeln!(text, "  and {} more", all.len() - shown);
        }
    }
    text
}

/// The comparison as a page, as self-contained as a report.
pub fn html(comparison: &Comparison) -> String {
    let mut page = Page::new("Two runs compared", "Comparison of two runs of neap lab");
    page.element("h1", "Two runs compared");
    page.terms(&[("before", comparison.before.clone()), ("after", comparison.after.clone())]);
    page.element("p", &counts(comparison));
    page.element(
        "p",
        "A change counts if the ratio of the later to the earlier values is clear and differs from 1 by more than 5 %, \
         and if the same holds for the ratios to glibc in the same round. In brackets: the range of the values, the \
         interval of a ratio.",
    );
    for line in missing(comparison) {
        page.element("p", &line);
    }
    if !comparison.settings.is_empty() {
        page.element("h2", "Different settings");
        page.raw("<div class=\"scroll\" tabindex=\"0\"><table>\n<thead><tr><th scope=\"col\"></th>");
        page.raw("<th scope=\"col\">before</th><th scope=\"col\">after</th></tr></thead>\n<tbody>\n");
        for (what, before, after) in &comparison.settings {
            let [what, before, after] = [what, before, after].map(|text| escaped(text));
            page.raw(&format!("<tr><th scope=\"row\">{what}</th><td>{before}</td><td>{after}</td></tr>\n"));
        }
        page.raw("</tbody>\n</table></div>\n");
    }
    for (outcome, heading) in SECTIONS {
        let all: Vec<&Change> = comparison.of(outcome).collect();
        if all.is_empty() {
            continue;
        }
        page.element("h2", &format!("{heading} ({})", all.len()));
        page.raw("<div class=\"scroll\" tabindex=\"0\"><table>\n<thead><tr><th scope=\"col\">figure</th>");
        for head in ["before", "after", "ratio", "ratio of the ratios to glibc"] {
            page.raw(&format!("<th scope=\"col\">{head}</th>"));
        }
        page.raw("</tr></thead>\n<tbody>\n");
        for change in all {
            let own = if change.allocator == neap_results::NEAP { " class=\"own\"" } else { "" };
            let ratio = |ratio: Option<Ratio>| ratio.map_or("-".into(), ratio_text);
            let cells = [change.before.clone(), change.after.clone(), ratio(change.ratio), ratio(change.against_glibc)];
            page.raw(&format!("<tr{own}><th scope=\"row\">{}</th>", escaped(&name(change))));
            for cell in cells {
                page.raw(&format!("<td>{}</td>", value_html(&cell)));
            }
            page.raw("</tr>\n");
        }
        page.raw("</tbody>\n</table></div>\n");
    }
    page.finish()
}

fn counts(comparison: &Comparison) -> String {
    let count = |outcome| comparison.of(outcome).count();
    format!(
        "{} figures compared: {} worse and {} better beyond noise, {} changed, {} unclear, {} the same",
        comparison.changes.len(),
        count(Outcome::Worse),
        count(Outcome::Better),
        count(Outcome::Changed),
        count(Outcome::Unclear),
        count(Outcome::Same)
    )
}

fn missing(comparison: &Comparison) -> Vec<String> {
    let line = |words: &str, all: &[Missing]| {
        let names: Vec<String> = all.iter().map(Missing::to_string).collect();
        (!names.is_empty()).then(|| format!("{words}: {}", names.join("; ")))
    };
    let lines = [
        line("only in the earlier run", &comparison.only_before),
        line("only in the later run", &comparison.only_after),
    ];
    lines.into_iter().flatten().collect()
}

fn name(change: &Change) -> String {
    format!("{}, {}, {}, {}", change.experiment, change.case, change.metric, change.allocator)
}

fn ratio_text(ratio: Ratio) -> String {
    format!("{} times [{}, {}]", number(ratio.ratio), number(ratio.low), number(ratio.high))
}

fn ratios(change: &Change) -> String {
    let own = change.ratio.map_or(String::new(), |ratio| format!(", {}", ratio_text(ratio)));
    let glibc = change.against_glibc.map_or(String::new(), |ratio| format!(", against glibc {}", ratio_text(ratio)));
    own + &glibc
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;
    use neap_results::{Row, compare};

    /// The sample, and the same with neap twice as slow and `other` without its crash.
    fn comparison() -> Comparison {
        let mut before = sample::run();
        let five = |row: &Row| (1..=5).map(move |round| Row { round, ..row.clone() }).collect::<Vec<_>>();
        before.rows = before.rows.iter().filter(|row| row.round == 1).flat_map(five).collect();
        let mut after = before.clone();
        for row in &mut after.rows {
            match row.allocator.as_str() {
                "neap" => row.value *= 2.0,
                "other" => (row.status, row.metric, row.unit) = ("ok".into(), "us".into(), "us".into()),
                _ => {}
            }
        }
        after.machine.kernel = "6.18".into();
        after.rows.retain(|row| row.allocator != "other" || row.case != "64 KiB");
        compare(&before, &after)
    }

    // Would catch a regression without its figures, or one that is under the wrong heading.
    #[test]
    fn the_text() {
        let text = text(&comparison(), None);
        assert!(
            text.contains("5 figures compared: 2 worse and 1 better beyond noise, 0 changed, 0 unclear, 2 the same")
        );
        let worse = "Worse beyond noise:\n  calloc, 1 MiB, us, neap: 912 ns -> 1.82 µs, 2 times [2, 2]";
        assert!(text.contains(worse), "{text}");
        assert!(text.contains("failed: crashed (signal 11) -> 0 s"), "{text}");
        assert!(text.contains("different: kernel:  -> 6.18"), "{text}");
        assert!(text.contains("only in the earlier run: calloc, 64 KiB, other\n"), "{text}");
        assert!(super::text(&comparison(), Some(1)).contains("  and 1 more"));
    }

    // Would catch a page that lacks what the text has.
    #[test]
    fn the_page() {
        let page = html(&comparison());
        assert!(page.contains("<h2>Worse beyond noise (2)</h2>") && page.contains("912 ns") && page.contains("6.18"));
        assert!(page.contains("<p>only in the earlier run: calloc, 64 KiB, other</p>"));
        assert!(page.contains("Content-Security-Policy"));
    }
}
