//! The headline chart: one point for each allocator, time against memory, both as ratios to glibc.

use anyhow::{Context, Result};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::path::Path;

const SIZE: (u32, u32) = (760, 430);
/// Blue and grey of the Okabe-Ito palette: told apart by every kind of colour vision, on white and on dark pages.
const NEAP: RGBColor = RGBColor(0, 114, 178);
const OTHERS: RGBColor = RGBColor(110, 110, 110);
const NAME: &str = "neap";

/// Draws `means` (name, wall time, peak RSS) into the SVG file.
pub fn headline(file: &Path, means: &[(String, f64, f64)]) -> Result<()> {
    draw(file, means).map_err(|e| anyhow::anyhow!("{e}")).with_context(|| format!("cannot draw {}", file.display()))
}

/// From 0 to a little beyond the largest value.
fn axis(values: impl Iterator<Item = f64>) -> std::ops::Range<f64> {
    let most = values.fold(1.0, f64::max);
    0.0..(most * 1.12 * 5.0).ceil() / 5.0
}

fn draw(file: &Path, means: &[(String, f64, f64)]) -> Result<(), Box<dyn std::error::Error>> {
    let area = SVGBackend::new(file, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let (wall, rss) = (axis(means.iter().map(|m| m.1)), axis(means.iter().map(|m| m.2)));
    let mut chart = ChartBuilder::on(&area)
        .caption("Time and memory of the allocation suite, glibc = 1", ("sans-serif", 18))
        .margin(14)
        .x_label_area_size(44)
        .y_label_area_size(52)
        .build_cartesian_2d(wall.clone(), rss.clone())?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .bold_line_style(RGBColor(225, 225, 225))
        .x_desc("wall time, geometric mean (left is quicker)")
        .y_desc("peak resident memory (lower is leaner)")
        .axis_desc_style(("sans-serif", 14))
        .label_style(("sans-serif", 13))
        .draw()?;
    // glibc, as the lines of 1.
    for ends in [[(1.0, rss.start), (1.0, rss.end)], [(wall.start, 1.0), (wall.end, 1.0)]] {
        chart.draw_series(LineSeries::new(ends, OTHERS.mix(0.7).stroke_width(1)))?;
    }
    for (name, x, y) in means {
        let ours = name == NAME;
        let (colour, radius, size) = if ours { (NEAP, 7, 17) } else { (OTHERS, 5, 13) };
        chart.draw_series([Circle::new((*x, *y), radius, colour.filled())])?;
        let style = ("sans-serif", size).into_font().color(&colour).pos(Pos::new(HPos::Left, VPos::Center));
        chart.draw_series([EmptyElement::at((*x, *y)) + Text::new(name.clone(), (radius + 4, 0), style)])?;
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
        assert_eq!(text.matches("<circle").count(), 2);
        std::fs::remove_dir_all(&dir).expect("removable");
    }
}
