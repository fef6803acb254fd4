//! One experiment on the page: question, claim, verdicts, charts with their tables, tables, the command.

use std::fmt::Write as _;

use neap_results::judge::{number, spread_text};
use neap_results::{Claim, Experiment, Figure, Kind, NEAP, Table, Value, Verdict, View};

use super::chart;
use super::html::{Page, empty_cell, inline, value_html};
use crate::plot::escaped;

/// Writes the section of an experiment.
pub fn experiment(page: &mut Page, experiment: &Experiment, view: &View) {
    let name = escaped(&experiment.name);
    page.raw(&format!("<section id=\"{name}\" aria-labelledby=\"{name}-title\">\n"));
    page.raw(&format!("<h2 id=\"{name}-title\">{}</h2>\n", inline(experiment.heading())));
    if let Some(lead) = experiment.lead() {
        page.marked("p", "lead", &lead);
    }
    if !experiment.question.is_empty() {
        page.marked("p", "question", &experiment.question);
    }
    if !experiment.about.is_empty() {
        page.marked("p", "muted", &experiment.about);
    }
    for claim in &experiment.claims {
        published(page, claim);
    }
    if let Some(why) = &experiment.skipped {
        page.raw(&format!("<p><span class=\"tag open\">not run</span>{}</p>\n", escaped(why)));
    }
    verdicts(page, &experiment.verdicts);
    for (number, chart) in experiment.charts.iter().enumerate() {
        chart::figure(page, chart, &experiment.name, view, &format!("{}-{number}", experiment.name));
    }
    let tables: Vec<&Table> = experiment.tables.iter().filter(|one| has_rows(one, experiment, view)).collect();
    if !tables.is_empty() {
        page.raw("<details>\n<summary>All figures in tables</summary>\n");
        for one in tables {
            page.raw(&table(one, experiment, view));
        }
        page.raw("</details>\n");
    }
    for listing in &experiment.listings {
        page.raw(&format!("<details>\n<summary>{}</summary>\n", inline(&listing.title)));
        page.raw(&format!("<pre tabindex=\"0\">{}</pre>\n</details>\n", escaped(&listing.text)));
    }
    page.markdown(&experiment.notes);
    repeat(page, experiment);
    page.raw("</section>\n");
}

fn published(page: &mut Page, claim: &Claim) {
    page.raw("<blockquote class=\"claim\">\n");
    let year = claim.year.map_or(String::new(), |year| format!(", {year}"));
    page.raw(&format!(
        "<p>{}</p>\n<p class=\"muted\">Source: {}{year}</p>\n",
        inline(&claim.text),
        escaped(&claim.source)
    ));
    if !claim.figures.is_empty() {
        let terms: Vec<(&str, String)> =
            claim.figures.iter().map(|figure| (figure.label.as_str(), figure.value.clone())).collect();
        page.terms(&terms);
    }
    page.raw("</blockquote>\n");
}

/// The word in front of a verdict, and its class.
pub fn tag(verdict: &Verdict) -> (&'static str, &'static str) {
    match (verdict.kind, verdict.holds) {
        (Kind::Figure, _) => ("figure", "open"),
        (_, None) => ("open", "open"),
        (Kind::Finding, Some(true)) => ("seen", "yes"),
        (Kind::Finding, Some(false)) => ("not seen", "no"),
        (Kind::Rank, Some(true)) => ("first", "yes"),
        (Kind::Rank, Some(false)) => ("not first", "no"),
        (Kind::Target, Some(true)) => ("met", "yes"),
        (Kind::Target, Some(false)) => ("missed", "no"),
    }
}

fn verdicts(page: &mut Page, verdicts: &[Verdict]) {
    if verdicts.is_empty() {
        return;
    }
    page.raw("<ul class=\"plain verdicts\">\n");
    for verdict in verdicts {
        let (word, class) = tag(verdict);
        page.raw(&format!(
            "<li><span class=\"tag {class}\">{word}</span><span>{}</span></li>\n",
            inline(&verdict.text)
        ));
    }
    page.raw("</ul>\n");
}

fn has_rows(table: &Table, experiment: &Experiment, view: &View) -> bool {
    table.columns.iter().any(|column| view.has_case(&experiment.name, &column.case))
}

/// A table of an experiment: allocators down, figures across. Allocators without a value in it are left out.
pub fn table(table: &Table, experiment: &Experiment, view: &View) -> String {
    let mut html = format!(
        "<div class=\"scroll\" tabindex=\"0\">\n<table>\n<caption>{}</caption>\n<thead><tr><th scope=\"col\"></th>",
        inline(&table.title)
    );
    let columns: Vec<_> = table.columns.iter().filter(|one| view.has_case(&experiment.name, &one.case)).collect();
    for column in &columns {
        let _ = write!(html, "<th scope=\"col\">{}</th>", escaped(&column.label));
    }
    html += "</tr></thead>\n<tbody>\n";
    for allocator in view.allocators() {
        let cells: Vec<Value> = columns
            .iter()
            .map(|column| view.value(Figure::new(&experiment.name, &column.case, &column.metric), allocator))
            .collect();
        if cells.iter().all(|cell| *cell == Value::Absent) {
            continue;
        }
        let own = if view.base(allocator) == NEAP { " class=\"own\"" } else { "" };
        let _ = write!(html, "<tr{own}><th scope=\"row\">{}</th>", escaped(allocator));
        for cell in &cells {
            html += &match cell.spread() {
                Some(spread) => format!("<td>{}</td>", value_html(&spread_text(&spread, number))),
                None => empty_cell(cell),
            };
        }
        html += "</tr>\n";
    }
    html + "</tbody>\n</table>\n</div>\n"
}

fn repeat(page: &mut Page, experiment: &Experiment) {
    if experiment.command.is_empty() {
        return;
    }
    page.raw("<h3>To repeat it</h3>\n");
    page.raw(&format!("<pre><code>{}</code></pre>\n", escaped(&experiment.command)));
    let commands: Vec<_> = experiment.cases.iter().filter(|case| !case.command.is_empty()).collect();
    if !commands.is_empty() {
        page.raw("<details>\n<summary>The program of each case</summary>\n<dl>\n");
        for case in commands {
            page.raw(&format!("<dt>{}</dt><dd><code>{}</code></dd>\n", escaped(&case.name), escaped(&case.command)));
        }
        page.raw("</dl>\n</details>\n");
    }
}
