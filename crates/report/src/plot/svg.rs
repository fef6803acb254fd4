//! Elements of SVG, as text.
//!
//! An element gets its colour by a class and by the attribute `color`, and is painted with `currentColor`.

use std::fmt::Write as _;

use crate::theme::{Ink, Marker, Theme};

/// A picture that is being drawn.
#[derive(Debug)]
pub struct Svg {
    body: String,
    theme: Theme,
    /// Without a background, so that the page's is seen.
    clear: bool,
}

/// Where a text is relative to its point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// To the right of it.
    Start,
    /// Around it.
    Middle,
    /// To the left of it.
    End,
}

/// The size of text, in pixels.
pub const TEXT: f64 = 12.5;

impl Svg {
    /// An empty picture.
    pub fn new(theme: Theme) -> Svg {
        Svg { body: String::new(), theme, clear: false }
    }

    /// Leaves out the background.
    pub fn clear(self) -> Svg {
        Svg { clear: true, ..self }
    }

    /// The attributes that give a colour.
    fn ink(&self, ink: Ink) -> String {
        format!("class=\"{}\" color=\"{}\"", ink.class(), self.theme.colour(ink))
    }

    /// Opens a group with a colour; its title is what a pointer shows.
    pub fn open(&mut self, ink: Ink, title: &str) {
        let ink = self.ink(ink);
        let _ = write!(self.body, "<g {ink}>");
        if !title.is_empty() {
            let _ = write!(self.body, "<title>{}</title>", escaped(title));
        }
    }

    /// Adds the elements of another picture, moved to the right and down.
    pub fn place(&mut self, (right, down): (f64, f64), other: Svg) {
        let _ = write!(self.body, "<g transform=\"translate({} {})\">{}</g>", short(right), short(down), other.body);
    }

    /// Closes the group.
    pub fn close(&mut self) {
        self.body.push_str("</g>");
    }

    /// A straight line.
    pub fn line(&mut self, ink: Ink, from: (f64, f64), to: (f64, f64), width: f64, dash: &str) {
        let ink = self.ink(ink);
        let _ = write!(
            self.body,
            "<line {ink} x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" stroke=\"currentColor\" stroke-width=\"{width}\"{}/>",
            short(from.0),
            short(from.1),
            short(to.0),
            short(to.1),
            dashes(dash)
        );
    }

    /// A line through points, in the colour of the group.
    pub fn path(&mut self, points: &[(f64, f64)], width: f64, dash: &str) {
        let mut way = String::new();
        for (place, (x, y)) in points.iter().enumerate() {
            let _ = write!(way, "{}{} {}", if place == 0 { "M" } else { "L" }, short(*x), short(*y));
        }
        let _ = write!(
            self.body,
            "<path d=\"{way}\" fill=\"none\" stroke=\"currentColor\" stroke-width=\"{width}\" \
             stroke-linejoin=\"round\"{}/>",
            dashes(dash)
        );
    }

    /// A rectangle in the colour of the group; hollow ones have an edge and a faint filling.
    pub fn bar(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), hollow: bool) {
        let paint = match hollow {
            true => "fill=\"currentColor\" fill-opacity=\"0.25\" stroke=\"currentColor\" stroke-width=\"1.5\"",
            false => "fill=\"currentColor\"",
        };
        let (x, y, width, height) = (short(x), short(y), short(width.max(0.5)), short(height));
        let _ = write!(self.body, "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" {paint}/>");
    }

    /// A marker in the colour of the group. Hollow ones are filled with the background.
    pub fn marker(&mut self, marker: Marker, (x, y): (f64, f64), radius: f64, hollow: bool) {
        let fill = match hollow {
            false => "fill=\"currentColor\"".to_owned(),
            true => {
                let back = self.theme.colour(Ink::Back);
                format!("fill=\"{back}\" stroke=\"currentColor\" stroke-width=\"1.6\"")
            }
        };
        let at = |dx: f64, dy: f64| format!("{} {}", short(x + dx * radius), short(y + dy * radius));
        let way = match marker {
            Marker::Circle => {
                let (x, y) = (short(x), short(y));
                let _ = write!(self.body, "<circle cx=\"{x}\" cy=\"{y}\" r=\"{}\" {fill}/>", short(radius));
                return;
            }
            Marker::Square => vec![at(-0.9, -0.9), at(0.9, -0.9), at(0.9, 0.9), at(-0.9, 0.9)],
            Marker::Diamond => vec![at(0.0, -1.25), at(1.25, 0.0), at(0.0, 1.25), at(-1.25, 0.0)],
            Marker::Up => vec![at(0.0, -1.2), at(1.15, 0.9), at(-1.15, 0.9)],
            Marker::Down => vec![at(0.0, 1.2), at(1.15, -0.9), at(-1.15, -0.9)],
            Marker::Right => vec![at(1.2, 0.0), at(-0.9, 1.15), at(-0.9, -1.15)],
            Marker::Bar => vec![at(-0.45, -1.3), at(0.45, -1.3), at(0.45, 1.3), at(-0.45, 1.3)],
            Marker::Plate => vec![at(-1.3, -0.45), at(1.3, -0.45), at(1.3, 0.45), at(-1.3, 0.45)],
        };
        let _ = write!(self.body, "<path d=\"M{}Z\" {fill}/>", way.join("L"));
    }

    /// A text.
    pub fn text(&mut self, ink: Ink, (x, y): (f64, f64), anchor: Anchor, bold: bool, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "",
            Anchor::Middle => " text-anchor=\"middle\"",
            Anchor::End => " text-anchor=\"end\"",
        };
        let bold = if bold { " font-weight=\"700\"" } else { "" };
        let ink = self.ink(ink);
        let (x, y) = (short(x), short(y));
        let text = escaped(text);
        let _ = write!(self.body, "<text {ink} x=\"{x}\" y=\"{y}\" fill=\"currentColor\"{anchor}{bold}>{text}</text>");
    }

    /// A text to the right of its point. Its letters have an edge of the background's colour, so that it can be read on
    /// lines.
    pub fn label(&mut self, ink: Ink, at: (f64, f64), bold: bool, text: &str) {
        let edge = format!(" stroke=\"{}\"", self.theme.colour(Ink::Back));
        let _ = write!(self.body, "<g stroke-width=\"3.5\" stroke-linejoin=\"round\" paint-order=\"stroke\"{edge}>");
        self.text(ink, at, Anchor::Start, bold, text);
        self.body.push_str("</g>");
    }

    /// The picture, with title and description for screen readers.
    pub fn finish(self, (width, height): (f64, f64), id: &str, title: &str, description: &str) -> String {
        let (width, height) = (short(width), short(height));
        let mut text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
             height=\"{height}\" role=\"img\" aria-labelledby=\"{id}-t {id}-d\" font-size=\"{TEXT}\" \
             font-family=\"system-ui, 'Segoe UI', 'DejaVu Sans', 'Liberation Sans', Arial, sans-serif\">\
             <title id=\"{id}-t\">{}</title><desc id=\"{id}-d\">{}</desc>",
            escaped(title),
            escaped(description)
        );
        if !self.clear {
            let back = self.theme.colour(Ink::Back);
            let _ = write!(text, "<rect width=\"{width}\" height=\"{height}\" fill=\"{back}\"/>");
        }
        text + &self.body + "</svg>\n"
    }
}

fn dashes(dash: &str) -> String {
    if dash.is_empty() { String::new() } else { format!(" stroke-dasharray=\"{dash}\"") }
}

/// A length, to a tenth of a pixel.
fn short(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map_or(text.clone(), String::from)
}

/// The estimated width of a text, a little more than in usual fonts.
pub fn width_of(text: &str, bold: bool) -> f64 {
    let letters: f64 = text
        .chars()
        .map(|letter| match letter {
            'i' | 'j' | 'l' | '.' | ',' | ':' | ';' | '\'' | '|' | ' ' | '[' | ']' | '(' | ')' => 0.36,
            'm' | 'w' | 'M' | 'W' | '%' => 0.92,
            letter if letter.is_uppercase() => 0.70,
            _ => 0.60,
        })
        .sum();
    letters * TEXT * if bold { 1.08 } else { 1.0 }
}

/// The text for SVG and HTML, also in attributes.
pub fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            _ => escaped.push(letter),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    // Would catch names that end the element or the attribute they are in.
    #[test]
    fn texts_stay_text() {
        assert_eq!(escaped("<b a=\"1\">&"), "&lt;b a=&quot;1&quot;&gt;&amp;");
        let mut svg = Svg::new(Theme::Light);
        svg.text(Ink::Text, (1.0, 2.0), Anchor::Start, false, "</text><script>");
        let text = svg.finish((10.0, 10.0), "a", "</title>", "x");
        assert!(!text.contains("<script") && text.matches("</title>").count() == 1, "{text}");
    }

    // Would catch a file whose colours come from a page that it is not in.
    #[test]
    fn a_picture_has_its_own_colours() {
        let picture = |theme| {
            let mut svg = Svg::new(theme);
            svg.line(Ink::Grid, (0.0, 0.0), (1.0, 1.0), 1.0, "");
            svg.finish((10.0, 10.0), "a", "t", "d")
        };
        assert!(picture(Theme::Light).contains("color=\"#") && picture(Theme::Light).contains("<rect"));
        assert!(!Svg::new(Theme::Dark).clear().finish((10.0, 10.0), "a", "t", "d").contains("<rect"));
    }
}
