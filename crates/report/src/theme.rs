//! Colours and shapes of the allocators, in light and in dark.
//!
//! The colours of the series differ for every kind of colour vision and stand out from the background (the tests
//! compute both). Shapes, dashes and labels say the same without colour.

use neap_results::{GLIBC, NEAP, View};

/// Where a chart is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Theme {
    /// On its own, on white.
    Light,
    /// On its own, on dark grey.
    Dark,
}

/// What something is drawn with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ink {
    /// The background.
    Back,
    /// Text.
    Text,
    /// Less important text: axes, notes.
    Muted,
    /// Lines of the grid.
    Grid,
    /// Bars and dots that are not neap's.
    Other,
    /// Lines to compare with.
    Mark,
    /// A series, by the number of its colour.
    Series(usize),
}

/// Light and dark colours of the series: neap, glibc, the others. Neighbours differ most, because two versions of one
/// allocator are beside each other.
pub const SERIES: [[&str; 2]; 8] = [
    ["#0072b2", "#56b4e9"],
    ["#1b1b1b", "#f2f2f2"],
    ["#bc7f5a", "#e04719"],
    ["#881878", "#a8358f"],
    ["#205336", "#317856"],
    ["#76581d", "#c7b06f"],
    ["#949622", "#a6fe40"],
    ["#8396af", "#905ef4"],
];

impl Ink {
    /// All inks, for the style sheet.
    pub fn all() -> impl Iterator<Item = Ink> {
        let plain = [Ink::Back, Ink::Text, Ink::Muted, Ink::Grid, Ink::Other, Ink::Mark];
        plain.into_iter().chain((0..SERIES.len()).map(Ink::Series))
    }

    /// The class with its colour.
    pub fn class(self) -> &'static str {
        match self {
            Ink::Back => "k-back",
            Ink::Text => "k-text",
            Ink::Muted => "k-muted",
            Ink::Grid => "k-grid",
            Ink::Other => "k-other",
            Ink::Mark => "k-mark",
            Ink::Series(number) => ["k-0", "k-1", "k-2", "k-3", "k-4", "k-5", "k-6", "k-7"][number % SERIES.len()],
        }
    }

    /// The colour in light and dark.
    pub fn colours(self) -> [&'static str; 2] {
        match self {
            Ink::Back => ["#ffffff", "#16181c"],
            Ink::Text => ["#1b1b1b", "#f2f2f2"],
            Ink::Muted => ["#5a5f66", "#a9b0b8"],
            Ink::Grid => ["#e3e5e8", "#33373d"],
            Ink::Other => ["#8a8f96", "#7d848c"],
            Ink::Mark => ["#b3261e", "#ff8a80"],
            Ink::Series(number) => SERIES[number % SERIES.len()],
        }
    }
}

impl Theme {
    /// The colour of an ink.
    pub fn colour(self, ink: Ink) -> &'static str {
        let [light, dark] = ink.colours();
        match self {
            Theme::Light => light,
            Theme::Dark => dark,
        }
    }
}

/// How a series looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// Its colour.
    pub ink: Ink,
    /// The shape of its points.
    pub marker: Marker,
    /// Points without a filling: variants of another allocator.
    pub hollow: bool,
    /// The dashes of its line.
    pub dash: &'static str,
    /// Drawn bold: neap.
    pub bold: bool,
}

/// The shape of a point, which differs without colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marker {
    /// A disc.
    Circle,
    /// A square.
    Square,
    /// A square on its point.
    Diamond,
    /// A triangle that points up.
    Up,
    /// One that points down.
    Down,
    /// One that points to the right.
    Right,
    /// A narrow, high rectangle.
    Bar,
    /// A wide, low one.
    Plate,
}

const MARKERS: [Marker; 8] = [
    Marker::Circle,
    Marker::Square,
    Marker::Diamond,
    Marker::Up,
    Marker::Down,
    Marker::Right,
    Marker::Bar,
    Marker::Plate,
];
/// Dashes: first the base, then its variants or further series in turn.
const DASHES: [&str; 5] = ["", "7 4", "2 3", "10 3 2 3", "1 5"];

/// The look of one row of a chart: of an allocator, or, where a chart has one allocator only, of a series.
pub fn look(view: &View, allocator: &str, series: usize, alone: bool) -> Look {
    let base = view.base(allocator);
    if alone {
        // The first colour is neap's here too.
        let number = series + usize::from(base != NEAP);
        let (ink, marker) = (Ink::Series(number), MARKERS[number % MARKERS.len()]);
        return Look { ink, marker, hollow: false, dash: DASHES[series % DASHES.len()], bold: false };
    }
    let number = match base {
        NEAP => 0,
        GLIBC => 1,
        _ => {
            let others = view.allocators().iter().map(String::as_str);
            let mut others = others.filter(|name| view.base(name) == *name && *name != NEAP && *name != GLIBC);
            2 + others.position(|name| name == base).unwrap_or(0) % (SERIES.len() - 2)
        }
    };
    let mut variants = view.allocators().iter().filter(|name| view.base(name) == base);
    let variant = variants.position(|name| name == allocator).unwrap_or(0);
    Look {
        ink: Ink::Series(number),
        marker: MARKERS[number],
        hollow: allocator != base,
        dash: DASHES[(variant + series) % DASHES.len()],
        bold: allocator == NEAP,
    }
}

/// The style sheet's part with the colours.
pub fn css() -> String {
    let list = |index: usize| -> String {
        Ink::all().map(|ink| format!("--{}:{};", ink.class(), ink.colours()[index])).collect()
    };
    let classes: String =
        Ink::all().map(|ink| format!(".{0}{{color:var(--{0})}}", ink.class())).collect::<Vec<_>>().join("\n");
    format!(
        ":root{{color-scheme:light dark;{}}}\n@media (prefers-color-scheme:dark){{:root{{{}}}}}\n{classes}\n",
        list(0),
        list(1)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use neap_results::{Allocator, Run};

    /// Red, green, blue as shares of light.
    fn light_of(colour: &str) -> [f64; 3] {
        [1, 3, 5].map(|at| {
            let part = f64::from(u8::from_str_radix(&colour[at..at + 2], 16).unwrap()) / 255.0;
            if part <= 0.04045 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) }
        })
    }

    fn contrast(a: &str, b: &str) -> f64 {
        let luminance = |colour| {
            let [r, g, b] = light_of(colour);
            0.2126 * r + 0.7152 * g + 0.0722 * b
        };
        let (a, b) = (luminance(a), luminance(b));
        (a.max(b) + 0.05) / (a.min(b) + 0.05)
    }

    /// CIE L*a*b*, in which distances are about as people see them.
    fn lab([r, g, b]: [f64; 3]) -> [f64; 3] {
        let f = |t: f64| if t > 0.008856 { t.cbrt() } else { 7.787 * t + 16.0 / 116.0 };
        let x = f((0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505);
        let y = f(0.2126 * r + 0.7152 * g + 0.0722 * b);
        let z = f((0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089);
        [116.0 * y - 16.0, 500.0 * (x - y), 200.0 * (y - z)]
    }

    /// What people without one kind of cones see (Machado, Oliveira and Fernandes 2009, severity 1).
    const VISIONS: [[[f64; 3]; 3]; 4] = [
        [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
    ];

    // Would catch two allocators that look alike with some kind of colour vision, in light or in dark.
    #[test]
    fn series_are_distinct_for_every_kind_of_colour_vision() {
        for theme in [0, 1] {
            for vision in VISIONS {
                let seen = SERIES.map(|colours| {
                    let light = light_of(colours[theme]);
                    let part = |row: [f64; 3]| (0..3).map(|i| row[i] * light[i]).sum::<f64>().clamp(0.0, 1.0);
                    lab(vision.map(part))
                });
                for (i, a) in seen.iter().enumerate() {
                    for (j, b) in seen.iter().enumerate().skip(i + 1) {
                        let distance = (0..3).map(|k| (a[k] - b[k]).powi(2)).sum::<f64>().sqrt();
                        assert!(distance > 15.0, "{i} and {j} in theme {theme}: {distance}");
                    }
                }
            }
        }
    }

    // Would catch colours that fade into the background (WCAG: 3 for graphics, 4.5 for text).
    #[test]
    fn colours_stand_out() {
        for theme in [0, 1] {
            let back = Ink::Back.colours()[theme];
            for ink in Ink::all().filter(|ink| ![Ink::Back, Ink::Grid].contains(ink)) {
                let wanted = if [Ink::Text, Ink::Muted, Ink::Mark].contains(&ink) { 4.5 } else { 3.0 };
                let found = contrast(ink.colours()[theme], back);
                assert!(found >= wanted, "{ink:?} in theme {theme}: {found}");
            }
        }
    }

    // Would catch a variant that looks like its base, and peers that look alike.
    #[test]
    fn looks_differ() {
        let names = ["glibc", "neap", "neap-lazy", "a", "b", "c", "d", "e", "f", "f-x"];
        let allocator = |name: &str| Allocator {
            name: name.into(),
            base: name.split_once('-').map(|(base, _)| base.into()),
            ..Allocator::default()
        };
        let view = View::of(&Run { allocators: names.map(allocator).into(), ..Run::default() });
        let looks = names.map(|name| look(&view, name, 0, false));
        for (i, a) in looks.iter().enumerate() {
            assert!(looks[i + 1..].iter().all(|b| (a.ink, a.hollow) != (b.ink, b.hollow)), "{}", names[i]);
        }
        assert!(look(&view, "glibc", 0, true).ink != looks[1].ink && look(&view, "neap", 0, true).ink == looks[1].ink);
        assert!(looks[1].bold && looks[2].hollow && looks[2].ink == looks[1].ink);
    }
}
