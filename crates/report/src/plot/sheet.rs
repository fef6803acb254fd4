//! Charts on a sheet of their own, each under its title: a file to show elsewhere.

use neap_results::{Chart, View};

use super::svg::{Anchor, Svg};
use super::{Size, better_words, drawing, plain};
use crate::theme::{Ink, Theme};

/// Height above a chart, for its title.
const HEAD: f64 = 34.0;
/// What a sheet is wider and higher than its charts.
const MARGIN: (f64, f64) = (20.0, 8.0);

/// A sheet that is being drawn.
#[derive(Debug)]
pub struct Sheet {
    svg: Svg,
    theme: Theme,
    height: f64,
    titles: Vec<String>,
    descriptions: Vec<String>,
}

impl Sheet {
    /// An empty sheet.
    pub fn new(theme: Theme) -> Self {
        Sheet { svg: Svg::new(theme), theme, height: 0.0, titles: Vec::new(), descriptions: Vec::new() }
    }

    /// An empty sheet without a background, for pages whose background is not known.
    pub fn clear(theme: Theme) -> Self {
        let sheet = Sheet::new(theme);
        Sheet { svg: sheet.svg.clear(), ..sheet }
    }

    /// Adds a line of one or two charts, each with its experiment, below the others. If one of them has nothing to
    /// show, adds nothing and returns false.
    pub fn add(&mut self, charts: &[(&Chart, &str)], view: &View) -> bool {
        let size = if charts.len() > 1 { Size::Half } else { Size::Wide };
        let drawn = charts.iter().map(|(chart, experiment)| drawing(chart, experiment, view, size, self.theme));
        let Some(drawn) = drawn.collect::<Option<Vec<_>>>() else { return false };
        let height = drawn.iter().map(|one| one.height).fold(0.0, f64::max);
        let step = size.width() + (Size::Wide.width() - size.width() * charts.len() as f64);
        for (place, ((chart, _), one)) in charts.iter().zip(drawn).enumerate() {
            let better = better_words(chart.better).map_or(String::new(), |words| format!(" ({words})"));
            let title = plain(&format!("{}{better}", chart.title));
            let left = step * place as f64;
            self.svg.text(Ink::Text, (left + 2.0, self.height + 20.0), Anchor::Start, true, &title);
            self.svg.place((left, self.height + HEAD), one.svg);
            self.titles.push(title);
            self.descriptions.push(one.description);
        }
        self.height += HEAD + height;
        true
    }

    /// What the charts show, in words. Where there are several, each begins with its title.
    pub fn words(&self) -> String {
        match &self.descriptions[..] {
            [one] => one.clone(),
            all => {
                let said = |(title, words): (&String, &String)| format!("{title}: {words}");
                self.titles.iter().zip(all).map(said).collect::<Vec<_>>().join(" ")
            }
        }
    }

    /// The file. `id` is the prefix of its elements' names.
    pub fn finish(self, id: &str) -> String {
        let descriptions = self.words();
        let size = (Size::Wide.width() + MARGIN.0, self.height + MARGIN.1);
        self.svg.finish(size, id, &self.titles.join("; "), &descriptions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    // Would catch a chart that covers another one, one without its title or words, and half a line.
    #[test]
    fn charts_stand_in_lines() {
        let run = sample::run();
        let view = View::of(&run);
        let charts: Vec<&Chart> = run.experiments[0].charts.iter().collect();
        let mut sheet = Sheet::new(Theme::Light);
        let calloc = |number: usize| (charts[number], "calloc");
        assert!(sheet.add(&[calloc(1), calloc(1)], &view) && sheet.add(&[calloc(0)], &view));
        let before = sheet.height;
        assert!(!sheet.add(&[(charts[0], "other")], &view) && sheet.height == before);
        let text = sheet.finish("two");
        assert_eq!((text.matches("<svg").count(), text.matches("translate(").count()), (1, 3), "{text}");
        assert!(text.contains("translate(0 34)") && text.contains("translate(460 34)"), "{text}");
        assert_eq!(text.matches(">calloc of 1 MiB (less is better)</text>").count(), 2, "{text}");
        assert!(text.contains("calloc and free (less is better): Dot chart: "), "{text}");
    }
}
