//! Lines and pages with long names.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use neap_tests::browser::{self, found, found_number, look};
use neap_tests::command::neap;
use neap_tests::sys::TempDir;
use neap_tests::terminal::Terminal;
use neap_tests::{Finished, Outcome, Run, Source, Stop, expect, install, program};

use crate::LIMIT;

const WIDE: Source = Source::new("top/wide.c");

/// A process with long names; it ends when this is dropped.
struct Wide {
    child: Child,
    dir: TempDir,
}

impl Wide {
    fn start() -> Result<Wide, Stop> {
        let dir = TempDir::new("neap-wide-")?;
        let folder = dir.join("a-folder-".repeat(12)).join("and-another-".repeat(12));
        std::fs::create_dir_all(&folder)?;
        let program = folder.join("a-program-with-a-name-of-many-letters-that-leaves-no-room-for-more-in-its-line");
        install(&WIDE.build()?, &program)?;
        let file = folder.join("データ-файл-\u{1b}[31m-with-an-odd-name.bin");
        let mut child = Command::new(program)
            .args([file.as_os_str(), "word ".repeat(100).as_ref(), "x".repeat(300).as_ref()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        let output = child.stdout.take().ok_or_else(|| Stop::Fail("no output".into()))?;
        let wide = Wide { child, dir };
        BufReader::new(output).read_line(&mut line)?;
        if line == "ready\n" { Ok(wide) } else { Err(Stop::Fail(format!("it says {line:?}"))) }
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }
}

impl Drop for Wide {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The lines that a command shows on a terminal of 80 columns.
fn lines(arguments: &[&str]) -> Result<Vec<String>, Stop> {
    let script = "stty cols 80 rows 24; exec \"$0\" \"$@\"";
    let neap = neap()?;
    let mut words: Vec<&OsStr> = vec!["/bin/sh".as_ref(), "-c".as_ref(), script.as_ref(), neap.as_os_str()];
    words.extend(arguments.iter().map(OsStr::new));
    let (_, shown) = Terminal::run(&words)?.end(LIMIT)?;
    let bold = ["\x1b[1m", "\x1b[0m"];
    let plain = bold.iter().fold(shown, |text, code| text.replace(code, ""));
    Ok(plain.lines().map(str::to_owned).collect())
}

/// The width of a line, for the characters that the test program uses.
fn columns(line: &str) -> usize {
    line.chars().map(|c| if ('\u{3000}'..'\u{a000}').contains(&c) { 2 } else { 1 }).sum()
}

/// Checks that lines fit. Commands to be pasted are not broken; they stand alone, behind twelve blanks.
fn check(arguments: &[&str], least: usize) -> Result<Vec<String>, Stop> {
    let all = lines(arguments)?;
    let is_command = |line: &str| {
        line.starts_with("            neap ") || line.starts_with("            gdb ") || line.contains(" echo 0 > ")
    };
    let long: Vec<&String> = all.iter().filter(|line| columns(line) > 80 && !is_command(line)).collect();
    let hidden = all.iter().any(|line| line.contains('\x1b'));
    match all.len() < least || !long.is_empty() || hidden {
        true => Err(Stop::Fail(format!("{arguments:?}: longer than 80 columns: {long:#?}; of {all:#?}"))),
        false => Ok(all),
    }
}

pub fn lines_of_why() -> Outcome {
    let wide = Wide::start()?;
    let pid = wide.pid();
    let all = check(&["why", "--all", &pid], 30)?;
    for words in ["free blocks that glibc", "with-an-odd-name.bin", "threads named a-name-of-15-", "What would help"] {
        if !all.iter().any(|line| line.contains(words)) {
            return Err(Stop::Fail(format!("{words:?} is not shown: {all:#?}")));
        }
    }
    check(&["why", &pid], 20)?;
    check(&["why", "--container-of", &pid], 5)?;
    check(&["why", "--watch", "--interval", "100ms", "--duration", "500ms", &pid], 4).map(drop)
}

pub fn lines_of_others() -> Outcome {
    let wide = Wide::start()?;
    let name = "a-program-with";
    let rows = check(&["top", "--once", "--match", name], 2)?;
    let row = rows.iter().find(|row| row.contains(name));
    if row.is_none_or(|row| columns(row) != 80) {
        return Err(Stop::Fail(format!("no row of 80 columns: {rows:#?}")));
    }
    drop(wide);
    check(&["advise", "--", "/bin/sh", "-c", "exit 0", &"x".repeat(100)], 4)?;
    // With some blocks: a counters page appears only with use.
    let script = "x=$(head -c 3000000 /dev/zero | tr '\\0' x); echo $$; read y";
    let mut child = Command::new(neap()?)
        .args(["run", "--", "/bin/sh", "-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().ok_or_else(|| Stop::Fail("no output".into()))?).read_line(&mut line)?;
    let checked = check(&["stats", line.trim()], 30);
    drop(child.stdin.take());
    child.wait()?;
    checked.map(drop)
}

/// JavaScript that collects a page's faults: its width, elements that overflow it, the lowest contrast of a text, its
/// requests.
const LOOK: &str = "
    const channel = (value) => (value /= 255) <= .03928 ? value / 12.92 : ((value + .055) / 1.055) ** 2.4;
    const light = (colour) => { const [r, g, b] = colour.match(/[\\d.]+/g).map(Number);
        return .2126 * channel(r) + .7152 * channel(g) + .0722 * channel(b); };
    const clear = (colour) => colour === 'rgba(0, 0, 0, 0)';
    const back = (element) => { while (element && clear(inside.getComputedStyle(element).backgroundColor))
            element = element.parentElement;
        return element ? inside.getComputedStyle(element).backgroundColor : 'rgb(255, 255, 255)'; };
    const texts = [...page.querySelectorAll('body *')].filter(element =>
        [...element.childNodes].some(node => node.nodeType === 3 && node.textContent.trim()) && element.offsetWidth);
    const ratio = (element) => { const [a, b] = [light(inside.getComputedStyle(element).color), light(back(element))];
        return (Math.max(a, b) + .05) / (Math.min(a, b) + .05); };
    const width = page.documentElement.clientWidth;
    const out = texts.filter(element => { const box = element.getBoundingClientRect();
        return box.right > width + 1 || box.left < -1 || element.scrollWidth > element.clientWidth + 1
            && inside.getComputedStyle(element).display !== 'inline'; });
    const wide = [...page.querySelectorAll('.scroll')].filter(element => element.scrollWidth > element.clientWidth);
    return { wide: page.documentElement.scrollWidth, out: out.map(element => element.textContent.slice(0, 60)).join('; '),
        scrolls: wide.length, texts: texts.length, contrast: Math.min(...texts.map(ratio)),
        dark: light(back(page.body)) < .1, requests: inside.performance.getEntriesByType('resource').length,
        scripts: page.scripts.length, rows: page.querySelectorAll('.accounts tbody tr').length,
        bars: [...page.querySelectorAll('.bar span')].filter(bar => bar.offsetWidth > 0).length };";

/// Checks a page, narrow and wide, light and dark.
fn check_page(dir: &TempDir, page: &Path, name: &str) -> Outcome {
    for (width, dark) in [(400, false), (1280, true)] {
        let scheme =
            if dark { "--blink-settings=preferredColorScheme=0" } else { "--blink-settings=preferredColorScheme=1" };
        let done: Finished = look(dir, page, width, &["--enable-logging=stderr", scheme], LOOK)?;
        let number = |name| found_number(&done, name);
        let (wide, out) = (number("wide")?, found(&done, "out")?);
        expect(wide <= f64::from(width), &done, &format!("{name} is {wide} pixels wide in {width}"))?;
        expect(out.is_empty() && number("scrolls")? == 0.0, &done, &format!("{name} at {width}: cut off: {out}"))?;
        expect(found(&done, "dark")? == dark.to_string(), &done, "light in the dark, or dark in the light")?;
        let contrast = number("contrast")?;
        expect(contrast >= 4.5, &done, &format!("{name}, dark: {dark}: a contrast of {contrast}"))?;
        let (texts, rows, bars) = (number("texts")?, number("rows")?, number("bars")?);
        expect(texts > 30.0 && rows >= 3.0 && bars >= 2.0, &done, &format!("{texts} texts, {rows} rows, {bars} bars"))?;
        expect(
            number("requests")? == 0.0 && number("scripts")? == 0.0,
            &done,
            "it asks for something, or has scripts",
        )?;
        expect(!done.stderr.contains(":CONSOLE"), &done, "something on the console")?;
    }
    if std::env::var_os("NEAP_PICTURES").is_none() {
        return Ok(());
    }
    let of = |width, dark| (format!("{name}-{width}-{}", if dark { "dark" } else { "light" }), width, dark);
    // A headless window is at least 500 pixels wide.
    let all = [of(500, false), of(500, true), of(1280, false), of(1280, true)];
    let all: Vec<(&str, u32, bool)> = all.iter().map(|(name, width, dark)| (name.as_str(), *width, *dark)).collect();
    browser::pictures(dir, page, &all, 1600, 20_000)
}

fn written(wide: &Wide, arguments: &[&str]) -> Result<PathBuf, Stop> {
    let page = wide.dir.join("why.html");
    Run::new(neap()?).args(["why", "--html"]).arg(&page).args(arguments).plain().run()?.success()?;
    Ok(page)
}

pub fn page_of_a_process() -> Outcome {
    program("chromium")?;
    let wide = Wide::start()?;
    let page = written(&wide, &[&wide.pid()])?;
    check_page(&wide.dir, &page, "why")
}

pub fn page_of_a_container() -> Outcome {
    program("chromium")?;
    let wide = Wide::start()?;
    let page = written(&wide, &["--container-of", &wide.pid()])?;
    check_page(&wide.dir, &page, "why-container")
}
