//! The folder of a run: `run.json` (without the rows) and `rows.csv`, to which each run is appended at once. Runs that
//! are kept in the repository have `rows.csv.gz` instead.

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use anyhow::Result;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use neap_results::{ReadError, Row, Run, rows_from_csv, rows_to_csv};

use crate::failure::failure;

/// The run without its rows.
pub const RUN: &str = "run.json";
/// The rows.
pub const ROWS: &str = "rows.csv";
/// The compressed rows of a run that is kept in the repository.
pub const PACKED: &str = "rows.csv.gz";

/// The reports of a run, in the same folder.
const PAGES: [&str; 2] = ["report.html", "report.md"];

/// Whether a folder already has a run.
pub fn has_run(dir: &Path) -> bool {
    [RUN, ROWS, PACKED].iter().any(|name| dir.join(name).exists())
}

/// Makes sure that no run is lost: fails if `dir` has one. With `force` removes the reports of that run; its other
/// files are overwritten later.
pub fn make_way(dir: &Path, force: bool) -> Result<()> {
    if !has_run(dir) {
        return Ok(());
    }
    if !force {
        let cause = format!("{} has a run already", dir.display());
        return Err(failure(cause, "name another folder with -o, or replace that run with --force"));
    }
    for page in PAGES.into_iter().chain([PACKED]) {
        let _ = fs::remove_file(dir.join(page));
    }
    Ok(())
}

/// Writes a run in the small form that is kept in the repository. Removes the lab's other files, which can be made
/// again.
pub fn pack(dir: &Path, run: &Run) -> Result<()> {
    let path = dir.join(PACKED);
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(rows_to_csv(&run.rows, true).as_bytes())?;
    replace(&path, &encoder.finish()?)?;
    replace(&dir.join(RUN), run.to_short_json().as_bytes())?;
    for path in PAGES.into_iter().chain([ROWS]).map(|name| dir.join(name)).filter(|path| path.exists()) {
        fs::remove_file(path)?;
    }
    Ok(())
}

/// Writes a run while it goes on.
#[derive(Debug)]
pub struct Writer {
    dir: PathBuf,
    rows: fs::File,
}

impl Writer {
    /// Creates the folder and both files.
    pub fn create(dir: &Path, run: &Run) -> Result<Writer> {
        let path = dir.join(ROWS);
        let created = fs::create_dir_all(dir).and_then(|()| fs::File::create(&path));
        let mut rows = created.map_err(|error| unwritten(&path, &error))?;
        rows.write_all(rows_to_csv(&[Row::default()], true).lines().next().unwrap_or_default().as_bytes())?;
        rows.write_all(b"\n")?;
        let writer = Writer { dir: dir.into(), rows };
        writer.write_run(run)?;
        Ok(writer)
    }

    /// Appends rows to the file.
    pub fn append(&mut self, rows: &[Row]) -> Result<()> {
        let written = self.rows.write_all(rows_to_csv(rows, false).as_bytes()).and_then(|()| self.rows.flush());
        written.map_err(|error| unwritten(&self.dir.join(ROWS), &error))
    }

    /// Writes the run as it is now.
    pub fn write_run(&self, run: &Run) -> Result<()> {
        replace(&self.dir.join(RUN), run.to_json_without_rows().as_bytes())
    }

    /// Writes the final files, without the rows of rounds that were repeated.
    pub fn finish(self, run: &Run) -> Result<()> {
        self.write_run(run)?;
        replace(&self.dir.join(ROWS), rows_to_csv(&run.rows, true).as_bytes())
    }
}

fn unwritten(path: &Path, error: &std::io::Error) -> anyhow::Error {
    failure(
        format!("cannot write {}: {error}", path.display()),
        "name a folder with -o that has room and may be written to",
    )
}

/// Writes a file whole or not at all.
fn replace(path: &Path, text: &[u8]) -> Result<()> {
    let partial = path.with_extension("partial");
    let written = fs::write(&partial, text).and_then(|()| fs::rename(&partial, path));
    if written.is_err() {
        let _ = fs::remove_file(&partial);
    }
    written.map_err(|error| unwritten(path, &error))
}

/// What the user can name for [`load`].
const REMEDY: &str = "name a folder that `neap lab run -o` wrote";

/// Reads the run in `dir`, or in the file `run.json` itself.
pub fn load(dir: &Path) -> Result<Run> {
    let dir = if dir.ends_with(RUN) { dir.parent().unwrap_or(Path::new(".")) } else { dir };
    let path = dir.join(RUN);
    if !path.exists() {
        let cause = match fs::metadata(dir) {
            Err(error) => format!("there is no folder {}: {error}", dir.display()),
            Ok(found) if !found.is_dir() => format!("{} is not a folder", dir.display()),
            Ok(_) => format!("no run in {}: it has no {RUN}", dir.display()),
        };
        return Err(failure(cause, REMEDY));
    }
    let text = fs::read_to_string(&path)
        .map_err(|error| failure(format!("cannot read {}: {error}", path.display()), "check its permissions"))?;
    let damaged = |error: ReadError, path: &Path| {
        let remedy = match error {
            ReadError::Newer { .. } => "`neap --version` tells which one this is",
            ReadError::NoSchema | ReadError::Unknown(_) => REMEDY,
            _ => "run the experiments again, or take the file from a copy",
        };
        failure(format!("{}: {error}", path.display()), remedy)
    };
    let mut run = Run::from_json(&text).map_err(|error| damaged(error, &path))?;
    if run.rows.is_empty() {
        let packed = !dir.join(ROWS).exists() && dir.join(PACKED).exists();
        let path = dir.join(if packed { PACKED } else { ROWS });
        let rows = if packed { unpacked(&path) } else { fs::read_to_string(&path) };
        let rows =
            rows.map_err(|error| failure(format!("cannot read {}: {error}", path.display()), "copy the whole folder"))?;
        run.rows = rows_from_csv(&rows).map_err(|error| damaged(error, &path))?;
    }
    Ok(run)
}

fn unpacked(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    GzDecoder::new(fs::File::open(path)?).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use neap_results::SCHEMA;

    // Would catch a row that is lost, and a repeated row that stays.
    #[test]
    fn a_run_survives_its_folder() {
        let scratch = crate::scratch::Scratch::new("store").unwrap();
        let dir = scratch.join("run");
        let mut run = Run { schema: SCHEMA, started: "now".into(), ..Run::default() };
        let mut writer = Writer::create(&dir, &run).unwrap();
        assert_eq!(load(&dir).unwrap(), run);
        let row = |value| Row { experiment: "e".into(), status: "ok".into(), round: 1, value, ..Row::default() };
        writer.append(&[row(1.0)]).unwrap();
        writer.append(&[row(2.0)]).unwrap();
        assert_eq!(load(&dir).unwrap().rows, [row(1.0), row(2.0)]);
        run.rows = vec![row(2.0)];
        run.ended = Some("later".into());
        writer.finish(&run).unwrap();
        assert_eq!(load(&dir).unwrap(), run);
        fs::write(dir.join("report.html"), "a page").unwrap();
        fs::write(dir.join("notes.txt"), "not the lab's").unwrap();
        pack(&dir, &run).unwrap();
        let mut names: Vec<_> = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort_unstable();
        assert_eq!(names, ["notes.txt", PACKED, RUN].map(std::ffi::OsString::from));
        assert_eq!(load(&dir).unwrap(), run);
        assert_eq!(load(&dir.join(RUN)).unwrap(), run);
        fs::remove_dir_all(&dir).unwrap();
        assert!(format!("{:#}", load(&dir).unwrap_err()).contains("neap lab run -o"));
    }

    // Would catch an earlier run that is overwritten without an error, and a report of it that is shown as that of the
    // next.
    #[test]
    fn an_earlier_run_is_kept() {
        let scratch = crate::scratch::Scratch::new("store").unwrap();
        make_way(scratch.path(), false).unwrap();
        make_way(&scratch.join("missing"), false).unwrap();
        for name in [RUN, ROWS] {
            let dir = scratch.join(name).with_extension("d");
            fs::create_dir(&dir).unwrap();
            fs::write(dir.join(name), "{}").unwrap();
            fs::write(dir.join("report.html"), "old").unwrap();
            let error = make_way(&dir, false).unwrap_err().to_string();
            assert!(error.contains("has a run already") && error.contains("--force"), "{error}");
            assert!(dir.join("report.html").exists());
            make_way(&dir, true).unwrap();
            assert!(!dir.join("report.html").exists());
        }
    }

    // Would catch an error without its cause, or without a remedy.
    #[test]
    fn what_cannot_be_read_is_reported() {
        let scratch = crate::scratch::Scratch::new("unreadable").unwrap();
        let dir = scratch.join("run");
        let why = || {
            let error = load(&dir).unwrap_err();
            let failure = error.downcast_ref::<crate::failure::Failure>().expect("a failure");
            (failure.cause.clone(), failure.remedy.clone())
        };
        assert!(why().0.contains("there is no folder"));
        fs::create_dir_all(&dir).unwrap();
        assert!(why().0.contains("no run in") && why().1.contains("neap lab run -o"));
        for (text, cause, remedy) in [
            ("{\"schema\": 99, \"neap\": \"7.0\"}", "schema 99, written by neap 7.0", "--version"),
            ("{\"a\": 1}", "no member \"schema\"", "neap lab run -o"),
            ("{", "damaged", "again"),
        ] {
            fs::write(dir.join(RUN), text).unwrap();
            assert!(why().0.contains(cause) && why().1.contains(remedy), "{:?}", why());
        }
        let run = Run { schema: SCHEMA, ..Run::default() };
        fs::write(dir.join(RUN), run.to_json()).unwrap();
        assert!(why().0.contains(ROWS));
    }
}
