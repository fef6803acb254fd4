//! Headless Chromium: opens pages, takes pictures of them, and evaluates scripts in them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::sys::TempDir;
use crate::{Finished, Outcome, Run, Stop, expect, program};

/// Opens a file; Chromium's profile lies in `dir`. The test is skipped where there is no Chromium. Chromium itself
/// sometimes hangs, with any page: then it runs once more.
pub fn open(dir: &TempDir, arguments: &[&str], page: &Path) -> Result<Finished, Stop> {
    match run(dir, arguments, page, Duration::from_secs(60)) {
        Err(Stop::Fail(_)) => run(dir, arguments, page, Duration::from_secs(240))?.success(),
        done => done?.success(),
    }
}

fn run(dir: &TempDir, arguments: &[&str], page: &Path, limit: Duration) -> Result<Finished, Stop> {
    Run::new(program("chromium")?)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"])
        .args(["--disable-crash-reporter", "--disable-breakpad", "--disable-quic", "--disable-background-networking"])
        .args(["--disable-component-update", "--disable-sync", "--hide-scrollbars", "--allow-file-access-from-files"])
        .arg(format!("--user-data-dir={}", dir.path().join("profile").display()))
        .args(arguments)
        .arg(format!("file://{}", page.display()))
        .env("HOME", dir.path())
        .timeout(limit)
        .plain()
        .run()
}

/// Runs a script on a page that permits no scripts of its own, from a page around it. A headless window is at least 500
/// pixels wide, but a frame can be `width`. The script has `page` and `inside`, the document and window, and each value
/// that it returns becomes `data-NAME` of the body, for [`found`].
pub fn look(dir: &TempDir, page: &Path, width: u32, arguments: &[&str], script: &str) -> Result<Finished, Stop> {
    let frame = dir.path().join("frame.html");
    let text = format!(
        "<!doctype html><meta name=color-scheme content=\"light dark\"><body style=\"margin:0\">\
         <iframe width={width} height=3000 style=\"border:0\"></iframe><script>\
         const frame = document.querySelector('iframe');\
         frame.onload = () => {{ const page = frame.contentDocument, inside = frame.contentWindow;\
         if (inside.location.href == 'about:blank') return;\
         Object.assign(document.body.dataset, (() => {{ {script} }})()); }};\
         frame.src = \"{}\";</script></body>",
        page.display()
    );
    std::fs::write(&frame, text)?;
    open(dir, &[&["--dump-dom", "--window-size=1200,1000"], arguments].concat(), &frame)
}

/// The value of `data-NAME="..."` in what `--dump-dom` printed.
pub fn found(done: &Finished, name: &str) -> Result<String, Stop> {
    let mark = format!("data-{name}=\"");
    let value = done.stdout.split_once(&mark).and_then(|(_, rest)| rest.split('"').next());
    value.map(String::from).ok_or_else(|| done.fail(&format!("the script did not set {name}")))
}

/// As [`found`], for a number.
pub fn found_number(done: &Finished, name: &str) -> Result<f64, Stop> {
    let text = found(done, name)?;
    text.parse().map_err(|_| done.fail(&format!("{name} is no number: {text}")))
}

/// Pictures of a page: name, width of the window, whether the screen is dark. `NEAP_PICTURES=DIR` keeps them there.
/// Each has at least `least` bytes.
pub fn pictures(dir: &TempDir, page: &Path, wanted: &[(&str, u32, bool)], height: u32, least: usize) -> Outcome {
    let kept = std::env::var_os("NEAP_PICTURES").map(PathBuf::from);
    let folder = kept.as_deref().unwrap_or(dir.path());
    for (name, width, dark) in wanted {
        let picture = folder.join(format!("{name}.png"));
        let (to, size) = (format!("--screenshot={}", picture.display()), format!("--window-size={width},{height}"));
        let mut arguments = vec![to.as_str(), size.as_str()];
        if *dark {
            arguments.push("--blink-settings=preferredColorScheme=0");
        }
        let done = open(dir, &arguments, page)?;
        let bytes = std::fs::read(&picture).unwrap_or_default();
        expect(bytes.starts_with(b"\x89PNG") && bytes.len() > least, &done, "there is no picture")?;
    }
    Ok(())
}
