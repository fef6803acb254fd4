//! A page that is being written, and texts and values as HTML.

use std::fmt::Write as _;

use neap_results::Value;

use crate::plot::{cell_text, escaped};
use crate::theme;

const STYLE: &str = include_str!("page.css");
const UPLOT: &str = include_str!("../../vendor/uplot/uPlot.min.css");
/// Colours that only the page uses, light and dark.
const COLOURS: [&str; 2] = ["--k-good:#1a6b3c;--k-code:#f4f5f6", "--k-good:#7ddb9f;--k-code:#22252a"];

/// A page that is being written.
#[derive(Debug)]
pub struct Page {
    text: String,
}

impl Page {
    /// A page with a title and a description.
    pub fn new(title: &str, description: &str) -> Page {
        let [light, dark] = COLOURS;
        // The page loads nothing, and the policy makes the browser enforce that.
        let text = format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; \
             script-src 'unsafe-inline'\">\n\
             <meta name=\"description\" content=\"{}\">\n<title>{}</title>\n<style>\n{}\
             :root{{{light}}}\n@media (prefers-color-scheme:dark){{:root{{{dark}}}}}\n{UPLOT}\n{STYLE}</style>\n</head>\n\
             <body>\n<main>\n",
            escaped(description),
            escaped(title),
            theme::css()
        );
        Page { text }
    }

    /// An element with a text.
    pub fn element(&mut self, name: &str, text: &str) {
        let _ = writeln!(self.text, "<{name}>{}</{name}>", escaped(text));
    }

    /// An element of a class.
    pub fn classed(&mut self, name: &str, class: &str, text: &str) {
        let _ = writeln!(self.text, "<{name} class=\"{class}\">{}</{name}>", escaped(text));
    }

    /// An element of a class whose text may have markdown's code and bold words.
    pub fn marked(&mut self, name: &str, class: &str, text: &str) {
        let _ = writeln!(self.text, "<{name} class=\"{class}\">{}</{name}>", inline(text));
    }

    /// HTML as it is.
    pub fn raw(&mut self, html: &str) {
        self.text.push_str(html);
    }

    /// A list of terms; empty values are left out.
    pub fn terms(&mut self, terms: &[(&str, String)]) {
        self.raw("<dl>\n");
        for (term, value) in terms.iter().filter(|(_, value)| !value.is_empty()) {
            let _ = writeln!(self.text, "<dt>{}</dt><dd>{}</dd>", escaped(term), escaped(value));
        }
        self.raw("</dl>\n");
    }

    /// Paragraphs, lists, tables and headings of markdown. The rest stays as it is written.
    pub fn markdown(&mut self, paragraphs: &[String]) {
        for paragraph in paragraphs {
            if let Some(heading) =
                paragraph.trim_start_matches('#').strip_prefix(' ').filter(|_| paragraph.starts_with('#'))
            {
                let (heading, rest) = heading.split_once('\n').unwrap_or((heading, ""));
                let _ = writeln!(self.text, "<h3>{}</h3>", inline(heading));
                if !rest.trim().is_empty() {
                    self.markdown(&[rest.trim().to_owned()]);
                }
            } else if let Some(list) = paragraph.strip_prefix("- ") {
                self.raw("<ul>\n");
                for item in list.split("\n- ") {
                    let _ = writeln!(self.text, "<li>{}</li>", inline(item));
                }
                self.raw("</ul>\n");
            } else if paragraph.starts_with('|') {
                self.markdown_table(paragraph);
            } else {
                let _ = writeln!(self.text, "<p>{}</p>", inline(paragraph));
            }
        }
    }

    fn markdown_table(&mut self, text: &str) {
        self.raw("<div class=\"scroll\" tabindex=\"0\"><table>\n");
        let lines = text.lines().filter(|line| !line.starts_with("|---") && !line.starts_with("|:"));
        for (number, line) in lines.enumerate() {
            let line = line.trim().trim_start_matches('|').trim_end_matches('|');
            self.raw("<tr>");
            for (place, cell) in line.split('|').enumerate() {
                let name = match (number, place) {
                    (0, _) => "th scope=\"col\"",
                    (_, 0) => "th scope=\"row\"",
                    _ => "td",
                };
                let _ = write!(self.text, "<{name}>{}</{}>", inline(cell.trim()), &name[..2]);
            }
            self.raw("</tr>\n");
        }
        self.raw("</table></div>\n");
    }

    /// The whole page.
    pub fn finish(self) -> String {
        self.text + "</main>\n</body>\n</html>\n"
    }
}

/// A line of markdown: code between backquotes and bold words between two stars; all else is text.
pub fn inline(text: &str) -> String {
    let mut html = String::new();
    for (place, part) in text.split('`').enumerate() {
        if place % 2 == 1 {
            let _ = write!(html, "<code>{}</code>", escaped(part));
        } else {
            for (place, part) in part.split("**").enumerate() {
                // `\*` is a literal star.
                let part = escaped(&part.replace("\\*", "*"));
                html += &if place % 2 == 1 { format!("<strong>{part}</strong>") } else { part };
            }
        }
    }
    html
}

/// A value with its range in brackets, for a narrow cell: the range below the value.
pub fn value_html(text: &str) -> String {
    match text.split_once(" [") {
        Some((value, range)) => format!("{} <span class=\"range\">[{}</span>", escaped(value), escaped(range)),
        None => escaped(text),
    }
}

/// A cell without a value.
pub fn empty_cell(cell: &Value) -> String {
    match cell {
        Value::Absent => "<td>-</td>".into(),
        _ => format!("<td class=\"bad\">{}</td>", escaped(&cell_text(cell, ""))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Would catch markup that shows as stars and backquotes, or headings that hide the text after them.
    #[test]
    fn markdown_becomes_html() {
        assert_eq!(inline("a `b<c` **d** e"), "a <code>b&lt;c</code> <strong>d</strong> e");
        let mut page = Page::new("t", "d");
        page.markdown(&[
            "## Head\nwords".into(),
            "- one\n- two\n  more".into(),
            "| a | b |\n|---|---:|\n| c | 1\\* |".into(),
        ]);
        let text = page.finish();
        assert!(
            text.contains("<h3>Head</h3>\n<p>words</p>\n<ul>\n<li>one</li>\n<li>two\n  more</li>\n</ul>"),
            "{text}"
        );
    }
}
