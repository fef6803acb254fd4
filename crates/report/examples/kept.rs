//! A kept run as page, document or charts: `kept DIR html|markdown|svg|png [FOLDER]`.
//!
//! `html` and `markdown` go to the standard output, charts as files into FOLDER.

use std::path::Path;

use neap_report::{charts, markdown, page, theme::Theme};
use neap_results::{Run, rows_from_csv};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [dir, form, rest @ ..] = words.as_slice() else {
        return Err("name a folder and a form: kept lab/results/NAME html".into());
    };
    let read = |name: &str| std::fs::read_to_string(Path::new(dir).join(name));
    let mut run = Run::from_json(&read("run.json")?)?;
    if run.rows.is_empty() {
        run.rows = rows_from_csv(&read("rows.csv")?)?;
    }
    let folder = Path::new(rest.first().map_or(".", String::as_str));
    match form.as_str() {
        "html" => print!("{}", page::html(&run)),
        "markdown" => print!("{}", markdown::document(&run, &markdown::Options::default())),
        "svg" => {
            for (name, svg) in charts(&run, Theme::Light) {
                std::fs::write(folder.join(format!("{name}.svg")), svg)?;
            }
        }
        #[cfg(feature = "png")]
        "png" => {
            for (name, svg) in charts(&run, Theme::Light) {
                std::fs::write(folder.join(format!("{name}.png")), neap_report::picture::png(&svg, 1.5)?)?;
            }
        }
        other => return Err(format!("unknown form `{other}`: html, markdown, svg or png").into()),
    }
    Ok(())
}
