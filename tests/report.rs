//! The lab's report in a browser: the pages of the published runs, and of a sample run that has every experiment, both
//! successful and failed.

use std::path::PathBuf;
use std::process::ExitCode;

use neap_lab::store;
use neap_report::theme::Theme;
use neap_results::{Run as Kept, compare, suite};
use neap_tests::browser::{self, found, look};
use neap_tests::lab::{Health, sample};
use neap_tests::sys::TempDir;
use neap_tests::{Case, Outcome, Stop, expect, package_dir, program};

/// Which run is shown.
#[derive(Clone, Copy, Debug)]
enum Part {
    /// The experiments on pages, of the published runs.
    Pages,
    /// The allocation suite, of the published runs.
    Suite,
    /// A sample of all experiments.
    Sample(Health),
}
use Part::{Pages, Sample, Suite};

fn main() -> ExitCode {
    neap_tests::suite::main(vec![
        Case::new("report::wide", "a chart that is missing, empty or without words, a table without places", || {
            looks(1100)
        }),
        Case::new("report::narrow", "a page that is wider than a phone", || looks(390)),
        Case::new("report::quiet", "an error on the console, or any request", quiet),
        Case::new("report::dark", "a page that stays light in the dark", dark),
        Case::new("report::pictures", "a page that the browser cannot draw", pictures),
        Case::new("report::files", "a chart that is not a complete SVG file", files),
        Case::new("report::compared", "a comparison that the browser cannot show", compared),
    ])
}

/// The published runs, as `lab/results/published` names them.
fn published() -> Result<Vec<Kept>, Stop> {
    let root = package_dir().join("..");
    let names = std::fs::read_to_string(root.join("lab/results/published"))?;
    let load = |name: &str| store::load(&root.join(name)).map_err(|error| Stop::Fail(format!("{name}: {error:#}")));
    names.lines().map(load).collect()
}

fn read(part: Part) -> Result<Kept, Stop> {
    let of = |run: &Kept| match part {
        Suite => suite::of(run),
        Pages => (run.experiments.len() > 1).then(|| run.clone()),
        Sample(health) => Some(sample(health)),
    };
    let missing = || Stop::Fail(format!("no run that is published has the part {part:?}"));
    published()?.iter().find_map(of).ok_or_else(missing)
}

/// The page of a kept run, as a file.
fn page(part: Part) -> Result<(Kept, TempDir, PathBuf), Stop> {
    let dir = TempDir::new("neap-report-")?;
    let path = dir.path().join("report.html");
    let kept = read(part)?;
    std::fs::write(&path, neap_report::page::html(&kept))?;
    Ok((kept, dir, path))
}

/// JavaScript that measures figures, drawn charts with texts, the table of places, links, and the width of the page.
const MEASURE: &str = "
    const charts = [...page.querySelectorAll('figure .plot canvas')];
    const drawn = (canvas) => {
        const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
        const seen = new Set();
        for (let i = 0; i < data.length; i += 4)
            if (data[i + 3] === 255) seen.add(data.slice(i, i + 3).join(' '));
        return seen.size > 2;
    };
    return {
        figures: page.querySelectorAll('figure').length,
        charts: charts.filter(drawn).length,
        tables: page.querySelectorAll('figure table:not(.u-legend)').length,
        named: charts.filter(canvas => (canvas.getAttribute('aria-label') || '').length > 20).length,
        switches: page.querySelectorAll('.u-legend th[role=switch][tabindex=\"0\"]').length,
        places: page.querySelectorAll('.overview table:not(.u-legend) td.first').length,
        astray: [...page.querySelectorAll('nav a, .overview a')]
            .filter(a => !page.getElementById(a.hash.slice(1))).length,
        wide: page.documentElement.scrollWidth,
        leads: page.querySelectorAll('section > p.lead').length,
        skipped: [...page.querySelectorAll('section .tag')].filter(tag => tag.textContent == 'not run').length,
        failed: page.querySelectorAll('figure .failed').length,
        empty: [...page.querySelectorAll('.u-legend .u-series:first-child')]
            .filter(line => line.offsetParent && !line.querySelector('.u-value').textContent).length,
    };";

fn looks(width: u32) -> Outcome {
    program("chromium")?;
    for run in [Pages, Suite, Sample(Health::Whole), Sample(Health::Lame)] {
        let (kept, dir, path) = page(run)?;
        let (skipped, ran): (Vec<_>, Vec<_>) = kept.experiments.iter().partition(|one| one.skipped.is_some());
        // There is one more chart at the top.
        let wanted = (1 + ran.iter().map(|one| one.charts.len()).sum::<usize>()).to_string();
        let done = look(&dir, &path, width, &[], MEASURE)?;
        for name in ["figures", "charts", "tables", "named"] {
            let count = found(&done, name)?;
            expect(count == wanted, &done, &format!("{run:?}: {count} {name}, not {wanted}"))?;
        }
        for (name, wanted) in [("leads", ran.len()), ("skipped", skipped.len())] {
            let count = found(&done, name)?;
            expect(count == wanted.to_string(), &done, &format!("{run:?}: {count} {name}, not {wanted}"))?;
        }
        let failures = found(&done, "failed")?.parse().is_ok_and(|count: u32| count > 10);
        let lame = matches!(run, Sample(Health::Lame));
        expect(failures || !lame, &done, "who failed is not named under the charts")?;
        expect(!lame || skipped.len() == 2, &done, "the sample skips nothing")?;
        for name in ["switches", "places"] {
            let count: usize = found(&done, name)?.parse().unwrap_or(0);
            expect(count >= ran.len().min(3), &done, &format!("{run:?}: {count} {name}"))?;
        }
        expect(found(&done, "astray")? == "0", &done, "a link of the contents leads nowhere")?;
        expect(found(&done, "empty")? == "0", &done, &format!("{run:?}: a legend names a position that has no name"))?;
        let wide = found(&done, "wide")?;
        expect(wide == width.to_string(), &done, &format!("{run:?} is {wide} pixels wide in {width}"))?;
    }
    Ok(())
}

fn quiet() -> Outcome {
    program("chromium")?;
    let (_, dir, path) = page(Pages)?;
    // A pointer shows values; clicking a name in the legend hides its series, and so does a key.
    let script = "const requests = inside.performance.getEntriesByType('resource').length;
        const plots = [...page.querySelectorAll('figure.chart .plot')], plot = plots[0];
        const values = (plot) => [...plot.querySelectorAll('.u-value')].map((cell) => cell.textContent).join('|');
        const before = values(plot);
        // Charts of one position have the same values everywhere.
        const changes = (plot) => {
            const over = plot.querySelector('.u-over'), box = over.getBoundingClientRect(), before = values(plot);
            const at = { clientX: box.left + 3, clientY: box.top + 9, bubbles: true };
            over.dispatchEvent(new inside.MouseEvent('mousemove', at));
            return values(plot) !== before;
        };
        return {
            requests, before, hover: plots.some(changes),
            off: (() => {
                const name = plot.querySelector('th[role=switch]');
                name.dispatchEvent(new inside.KeyboardEvent('keydown', { key: 'Enter', bubbles: true }));
                return name.getAttribute('aria-checked');
            })(),
        };";
    let done = look(&dir, &path, 1100, &["--enable-logging=stderr"], script)?;
    expect(found(&done, "requests")? == "0", &done, "the page asks for something")?;
    expect(found(&done, "hover")? == "true", &done, "a pointer does not change the values")?;
    expect(found(&done, "off")? == "false", &done, "a key does not turn a series off")?;
    expect(found(&done, "before")?.contains("MiB"), &done, "the legend has no values")?;
    // The console would also show a refused request or style: the page's policy forbids all but its own style.
    expect(!done.stderr.contains(":CONSOLE"), &done, "something on the console")
}

fn dark() -> Outcome {
    program("chromium")?;
    let (_, dir, path) = page(Suite)?;
    let script = "const style = element => inside.getComputedStyle(page.querySelector(element));
        return { back: style('html').backgroundColor, own: style('.overview a').color };";
    for (argument, back, own) in [
        ("--blink-settings=preferredColorScheme=1", "rgb(255, 255, 255)", "rgb(0, 114, 178)"),
        ("--blink-settings=preferredColorScheme=0", "rgb(22, 24, 28)", "rgb(86, 180, 233)"),
    ] {
        let done = look(&dir, &path, 1100, &[argument], script)?;
        let colours = (found(&done, "back")?, found(&done, "own")?);
        expect(colours == (back.into(), own.into()), &done, &format!("{argument}: {colours:?}"))?;
    }
    Ok(())
}

fn pictures() -> Outcome {
    program("chromium")?;
    let (_, dir, page) = page(Pages)?;
    let wanted = [("report", 1100, false), ("report-small", 500, false), ("report-dark", 1100, true)];
    browser::pictures(&dir, &page, &wanted, 6000, 100_000)
}

fn files() -> Outcome {
    program("chromium")?;
    let kept = read(Pages)?;
    let dir = TempDir::new("neap-report-")?;
    let charts = neap_report::charts(&kept, Theme::Light);
    let wanted: usize = kept.experiments.iter().map(|one| one.charts.len()).sum();
    if charts.len() != wanted {
        return Err(Stop::Fail(format!("{} files for {wanted} charts", charts.len())));
    }
    for (name, svg) in charts.iter().take(4) {
        let path = dir.path().join(format!("{name}.svg"));
        std::fs::write(&path, svg)?;
        let script = "const svg = page.documentElement;
            return { name: svg.nodeName, texts: page.querySelectorAll('text').length,
                errors: page.querySelectorAll('parsererror').length };";
        let done = look(&dir, &path, 1100, &[], script)?;
        let (root, texts, errors) = (found(&done, "name")?, found(&done, "texts")?, found(&done, "errors")?);
        expect(root == "svg" && errors == "0" && texts.parse().is_ok_and(|count: u32| count > 8), &done, name)?;
    }
    Ok(())
}

fn compared() -> Outcome {
    program("chromium")?;
    let mut before = read(Suite)?;
    // Enough rounds for a clear change, however many the run has.
    let mut more = before.rows.clone();
    more.iter_mut().for_each(|row| row.round += 100);
    before.rows.extend(more);
    let mut after = before.clone();
    for row in after.rows.iter_mut().filter(|row| row.allocator == "neap" && row.metric == "wall") {
        row.value *= 1.5;
    }
    let dir = TempDir::new("neap-report-")?;
    let path = dir.path().join("compared.html");
    std::fs::write(&path, neap_report::compare::html(&compare(&before, &after)))?;
    let script = "const rows = [...page.querySelectorAll('table')[0].querySelectorAll('tbody tr')];
        return { rows: rows.length, own: rows.filter(row => row.textContent.includes('neap')).length,
            wide: page.documentElement.scrollWidth };";
    let done = look(&dir, &path, 390, &[], script)?;
    let (rows, own) = (found(&done, "rows")?, found(&done, "own")?);
    // At least 20 of the 30 cases change by more than the noise, and all of these are neap's.
    expect(rows == own && rows.parse().is_ok_and(|count: u32| count >= 20), &done, &format!("{own} of {rows}"))?;
    expect(found(&done, "wide")? == "390", &done, "the page is wider than a phone")
}
