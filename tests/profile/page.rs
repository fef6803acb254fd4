//! The page of `--format html`, in a browser.

use std::path::{Path, PathBuf};

use neap_tests::browser::{self, found, found_number};
use neap_tests::command::neap;
use neap_tests::sys::TempDir;
use neap_tests::{Outcome, Run, Stop, expect, program};

/// A page of the test program.
fn page(dir: &TempDir) -> Result<PathBuf, Stop> {
    program("chromium")?;
    let (json, _) = crate::written(dir, "work.json", "1")?;
    let page = dir.join("work.html");
    Run::new(neap()?)
        .args(["profile", "show", "--format", "html", "-o"])
        .arg(&page)
        .arg(&json)
        .plain()
        .run()?
        .success()?;
    Ok(page)
}

/// A page of two profiles.
fn diff_page(dir: &TempDir) -> Result<PathBuf, Stop> {
    program("chromium")?;
    let (before, _) = crate::written(dir, "before.json", "1")?;
    let (after, _) = crate::written(dir, "after.json", "4")?;
    let page = dir.join("diff.html");
    let options = ["profile", "diff", "--format", "html", "-o"];
    Run::new(neap()?).args(options).arg(&page).args([&before, &after]).plain().run()?.success()?;
    Ok(page)
}

/// JavaScript: `boxes` are all boxes, `named` is the box of a function.
const BOX: &str = "const boxes = () => [...page.querySelectorAll('.box')];
    const named = (name) => boxes().find((box) => (box.getAttribute('aria-label') || '').startsWith(name + ','));";

fn look(dir: &TempDir, page: &Path, script: &str) -> Result<neap_tests::Finished, Stop> {
    browser::look(dir, page, 1000, &["--virtual-time-budget=5000"], &format!("{BOX}{script}"))
}

/// Checks that boxes are as wide as their values and lie below their callers, and that boxes without a value are
/// hidden.
pub fn script() -> Outcome {
    let dir = TempDir::new("neap-page-")?;
    let page = page(&dir)?;
    let script = "const clears = named('clears()'), main = named('main');
        return { boxes: boxes().length, ready: page.body.dataset.ready, wide: clears.offsetWidth / main.offsetWidth,
            below: clears.offsetTop > main.offsetTop, hidden: page.getElementById('width-label').offsetWidth,
            rows: page.querySelectorAll('#functions tbody tr').length, operations: page.querySelectorAll('#operations tr').length };";
    let done = look(&dir, &page, script)?;
    let number = |name| found_number(&done, name);
    let (boxes, wide) = (number("boxes")?, number("wide")?);
    expect(boxes > 10.0 && number("ready")? == boxes, &done, &format!("{boxes} boxes"))?;
    expect(wide > 0.05 && wide < 0.95 && found(&done, "below")? == "true", &done, &format!("{wide} of main"))?;
    expect(number("rows")? > 5.0 && number("operations")? >= 4.0 && number("hidden")? == 0.0, &done, "tables")
}

pub fn search() -> Outcome {
    let dir = TempDir::new("neap-page-")?;
    let page = page(&dir)?;
    let script = "page.getElementById('by-total').click();
        const button = [...page.querySelectorAll('#functions .link')].find((link) => link.textContent === 'clears()');
        button.click();
        const found = page.getElementById('found').textContent;
        const matches = boxes().filter((box) => box.classList.contains('match'));
        const group = page.getElementById('group');
        group.value = 'operation';
        group.dispatchEvent(new inside.Event('change'));
        const operation = named('clearing for calloc');
        return { found, matches: matches.length, right: matches.filter((box) => box.textContent.includes('clears')).length,
            operation: operation ? operation.getAttribute('aria-level') : 0 };";
    let done = look(&dir, &page, script)?;
    let (matches, right) = (found_number(&done, "matches")?, found_number(&done, "right")?);
    expect(matches >= 1.0 && matches == right, &done, &format!("{right} of {matches}"))?;
    expect(found(&done, "found")?.ends_with("% match"), &done, "no share")?;
    expect(found_number(&done, "operation")? == 2.0, &done, "operations are not below the root")
}

/// Checks that numbers are as wide as they need, and that a long name begins beside its marker, also in a narrow
/// window.
pub fn functions() -> Outcome {
    let dir = TempDir::new("neap-page-")?;
    let page = page(&dir)?;
    let script = "const link = page.querySelector('#functions .link'), text = link.lastChild;
        text.data = 'a_long_name_of_a_function'.repeat(4);
        const range = page.createRange();
        range.selectNodeContents(text);
        const lines = range.getClientRects(), mark = page.querySelector('#functions .swatch').getBoundingClientRect();
        const number = page.querySelector('#functions td.number').offsetWidth;
        return { lines: lines.length, below: lines[0].top - mark.top, number };";
    for width in [400, 1000] {
        let done = browser::look(&dir, &page, width, &["--virtual-time-budget=5000"], script)?;
        let number = |name| found_number(&done, name);
        expect(
            number("lines")? > f64::from(width == 400) && number("below")?.abs() < 12.0,
            &done,
            "a name below its mark",
        )?;
        expect(number("number")? < 130.0, &done, "a wide column of numbers")?;
    }
    Ok(())
}

pub fn keyboard() -> Outcome {
    let dir = TempDir::new("neap-page-")?;
    let page = page(&dir)?;
    let script = "const press = (key) => page.activeElement.dispatchEvent(new inside.KeyboardEvent('keydown', { key, bubbles: true, cancelable: true }));
        const label = () => (page.activeElement.getAttribute('aria-label') || '').split(',')[0];
        named('all').focus();
        const way = [];
        for (let i = 0; i < 30 && label() !== 'main'; i++) { press('ArrowDown'); way.push(label()); }
        press('ArrowDown');
        const first = label();
        press('ArrowRight');
        const second = label();
        press('ArrowLeft');
        press('Enter');
        const wide = named(first).offsetWidth / page.getElementById('graph').offsetWidth;
        const focused = label();
        press('Escape');
        const out = label();
        return { way: way.join(' '), first, second, wide, focused, out, tabbable: boxes().filter((box) => box.tabIndex === 0).length };";
    let done = look(&dir, &page, script)?;
    let text = |name| found(&done, name);
    expect(text("way")?.ends_with("main"), &done, "arrow down does not lead to main")?;
    expect(text("first")? != text("second")? && text("focused")? == text("first")?, &done, "arrow right")?;
    expect(found_number(&done, "wide")? > 0.99 && text("out")? == "main", &done, "Enter and Escape")?;
    expect(found_number(&done, "tabbable")? == 1.0, &done, "one box is the way in")
}

pub fn diff() -> Outcome {
    let dir = TempDir::new("neap-page-")?;
    let page = diff_page(&dir)?;
    let script = "const color = (box) => inside.getComputedStyle(box).backgroundColor.match(/[0-9.]+/g).map(Number);
        const clears = named('clears()');
        const [red, green, blue] = color(clears);
        clears.dispatchEvent(new inside.MouseEvent('mouseenter'));
        return { red, blue, detail: page.getElementById('detail').textContent, width: page.getElementById('width-label').offsetWidth };";
    let done = look(&dir, &page, script)?;
    let (red, blue) = (found_number(&done, "red")?, found_number(&done, "blue")?);
    expect(red > blue * 1.2, &done, &format!("red {red}, blue {blue}"))?;
    let detail = found(&done, "detail")?;
    expect(detail.contains("before") && detail.contains('+'), &done, &detail)?;
    expect(found_number(&done, "width")? > 0.0, &done, "widths cannot be chosen")
}

/// Checks the page, wide, narrow and dark; and the comparison.
pub fn pictures() -> Outcome {
    let dir = TempDir::new("neap-page-")?;
    let one = page(&dir)?;
    let wanted = [("profile-wide", 1280, false), ("profile-narrow", 500, false), ("profile-dark", 1280, true)];
    browser::pictures(&dir, &one, &wanted, 1600, 20_000)?;
    let two = diff_page(&dir)?;
    browser::pictures(&dir, &two, &[("profile-diff", 1280, false), ("profile-diff-dark", 1280, true)], 1600, 20_000)?;
    for page in [&one, &two] {
        let done = browser::look(&dir, page, 360, &[], "return { wide: page.documentElement.scrollWidth };")?;
        let wide = found_number(&done, "wide")?;
        expect(wide <= 360.0, &done, &format!("the page is {wide} pixels wide"))?;
    }
    Ok(())
}
