//! The headline chart: for each allocator one bar of time and one of memory, both as ratios to glibc.

use anyhow::{Context, Result};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::path::Path;

const WIDTH: i32 = 780;
const TOP: i32 = 64;
const ROW: i32 = 34;
const BAR: i32 = 22;
/// Left ends of the two panels, and the pixels of a ratio of 1.
const PANELS: [(i32, &str); 2] = [(110, "wall time"), (460, "peak resident memory")];
const ONE: f64 = 230.0;
/// Blue and grey of the Okabe-Ito palette: told apart by every kind of colour vision.
const NEAP: RGBColor = RGBColor(0, 114, 178);
const OTHERS: RGBColor = RGBColor(150, 150, 150);
const TEXT: RGBColor = RGBColor(40, 40, 40);
const NAME: &str = "neap";

/// Draws `means` (name, wall time, peak RSS) into the SVG file, the quickest first.
pub fn headline(file: &Path, means: &[(String, f64, f64)]) -> Result<()> {
    let mut rows = means.to_vec();
    rows.sort_by(|a, b| a.1.total_cmp(&b.1));
    rows.push(("glibc".to_owned(), 1.0, 1.0));
    draw(file, &rows).map_err(|e| anyhow::anyhow!("{e}")).with_context(|| format!("cannot draw {}", file.display()))
}

fn draw(file: &Path, rows: &[(String, f64, f64)]) -> Result<(), Box<dyn std::error::Error>> {
    let height = TOP + ROW * rows.len() as i32 + 16;
    let area = SVGBackend::new(file, (WIDTH as u32, height as u32)).into_drawing_area();
    area.fill(&WHITE)?;
    let style =
        |size: i32, colour: &RGBColor, h| ("sans-serif", size).into_font().color(colour).pos(Pos::new(h, VPos::Center));
    let title = "Allocation suite, geometric means against glibc: shorter is better";
    area.draw(&Text::new(title, (WIDTH / 2, 20), style(17, &TEXT, HPos::Center)))?;
    for (left, what) in PANELS {
        area.draw(&Text::new(what, (left, TOP - 14), style(14, &TEXT, HPos::Left)))?;
    }
    for (i, (name, wall, rss)) in rows.iter().enumerate() {
        let middle = TOP + ROW * i as i32 + ROW / 2;
        let colour = if name == NAME { NEAP } else { OTHERS };
        let name_style = style(15, if name == NAME { &NEAP } else { &TEXT }, HPos::Right);
        area.draw(&Text::new(name.clone(), (PANELS[0].0 - 10, middle), name_style))?;
        for ((left, _), value) in PANELS.into_iter().zip([wall, rss]) {
            let right = left + (value * ONE) as i32;
            let corners = [(left, middle - BAR / 2), (right, middle + BAR / 2)];
            area.draw(&Rectangle::new(corners, colour.filled()))?;
            area.draw(&Text::new(format!("{value:.2}"), (right + 6, middle), style(14, &TEXT, HPos::Left)))?;
        }
    }
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a chart without one of its points.
    #[test]
    fn every_allocator_is_named() {
        let dir = std::env::temp_dir().join(format!("neap-chart-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory");
        let file = dir.join("chart.svg");
        let means = [("neap".to_owned(), 0.5, 1.0), ("other".to_owned(), 0.7, 1.6)];
        headline(&file, &means).expect("drawn");
        let text = std::fs::read_to_string(&file).expect("readable");
        assert!(text.contains("neap") && text.contains("other") && text.contains("glibc"));
        // The background, and two bars for each of the two and glibc.
        assert_eq!(text.matches("<rect").count(), 1 + 2 * 3);
        assert!(text.contains("0.50") && text.contains("1.60"));
        std::fs::remove_dir_all(&dir).expect("removable");
    }
}
