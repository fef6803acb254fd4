//! Kernel settings that an experiment changes, and that are restored however it ends.
//!
//! Each change is written to a journal first. If a run ends normally, is interrupted or fails, the settings are
//! restored when the value is dropped. After a killed run, the next run restores them from the journal.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::failure::failure;
use crate::place::Place;

/// One step to undo.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Undo {
    /// Write this text into this file.
    Write { path: PathBuf, text: String },
    /// Unmount this folder and remove it.
    Unmount { path: PathBuf },
}

/// The journal's content.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Journal {
    /// The process that made the changes.
    pid: u32,
    /// In the order in which they were made.
    undo: Vec<Undo>,
}

/// Changes that are undone when this value is dropped.
#[derive(Debug)]
pub struct Settings {
    file: PathBuf,
    journal: Journal,
}

impl Settings {
    /// No changes yet; first restores what a killed run left.
    pub fn new(place: &Place) -> Settings {
        let settings = Settings::at(place.cache.join("settings-to-restore.json"));
        settings.restore_leftovers();
        settings
    }

    fn at(file: PathBuf) -> Settings {
        Settings { file, journal: Journal { pid: std::process::id(), undo: Vec::new() } }
    }

    fn restore_leftovers(&self) {
        let Some(left) = fs::read(&self.file).ok().and_then(|bytes| serde_json::from_slice::<Journal>(&bytes).ok())
        else {
            return;
        };
        if left.pid != std::process::id() && Path::new(&format!("/proc/{}", left.pid)).exists() {
            // Another lab still runs; it restores its own settings.
            return;
        }
        left.undo.iter().rev().for_each(undo);
        let _ = fs::remove_file(&self.file);
    }

    /// Writes `text` to a file of the kernel, whose value is restored later.
    pub fn set(&mut self, path: &str, text: &str) -> Result<()> {
        let old = fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
        let old = chosen(&old);
        if old == text {
            return Ok(());
        }
        self.note(Undo::Write { path: path.into(), text: old })?;
        let Err(error) = fs::write(path, text) else {
            return Ok(());
        };
        // Nothing was changed, so there is nothing to restore.
        self.journal.undo.pop();
        self.write_journal()?;
        Err(failure(format!("cannot set {path}: {error}"), "run the lab as root"))
    }

    /// Mounts a file system without a device at a new folder, to be unmounted later.
    pub fn mount(&mut self, kind: &str, at: &Path) -> Result<()> {
        fs::create_dir_all(at).with_context(|| format!("cannot create {}", at.display()))?;
        self.note(Undo::Unmount { path: at.into() })?;
        let (kind_text, target) = (c_text(kind)?, c_text(&at.to_string_lossy())?);
        // SAFETY: source, target and type are C strings that live through the call; the data may be null.
        let done = unsafe { libc::mount(kind_text.as_ptr(), target.as_ptr(), kind_text.as_ptr(), 0, std::ptr::null()) };
        if done != 0 {
            let error = std::io::Error::last_os_error();
            self.journal.undo.pop().iter().for_each(undo);
            self.write_journal()?;
            return Err(failure(format!("cannot mount {kind} at {}: {error}", at.display()), "run the lab as root"));
        }
        Ok(())
    }

    fn note(&mut self, undo: Undo) -> Result<()> {
        self.journal.undo.push(undo);
        self.write_journal()
    }

    fn write_journal(&self) -> Result<()> {
        if self.journal.undo.is_empty() {
            let _ = fs::remove_file(&self.file);
            return Ok(());
        }
        if let Some(parent) = self.file.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(&self.file, serde_json::to_vec_pretty(&self.journal)?)
            .with_context(|| format!("cannot write {}", self.file.display()))
    }
}

impl Drop for Settings {
    fn drop(&mut self) {
        if self.journal.undo.is_empty() {
            return;
        }
        self.journal.undo.iter().rev().for_each(undo);
        let _ = fs::remove_file(&self.file);
    }
}

fn undo(step: &Undo) {
    match step {
        Undo::Write { path, text } => {
            if let Err(error) = fs::write(path, text) {
                let _ = writeln!(io::stderr(), "cannot restore `{text}` in {}: {error}", path.display());
            }
        }
        Undo::Unmount { path } => {
            if let Ok(target) = c_text(&path.to_string_lossy()) {
                // SAFETY: the target is a C string. A failure means that it is not mounted.
                unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) };
            }
            let _ = fs::remove_dir(path);
        }
    }
}

/// The value in a file: the word in brackets of `always [madvise] never`, else the whole text.
pub fn chosen(text: &str) -> String {
    let text = text.trim();
    let bracketed = text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(word, _)| word);
    bracketed.unwrap_or(text).to_owned()
}

fn c_text(text: &str) -> Result<std::ffi::CString> {
    std::ffi::CString::new(text).context("a path without a zero byte")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("neap-settings-{name}-{}", std::process::id()));
        // A killed test whose process had the same number left it.
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    // Would catch a setting that stays changed, and a value read with its alternatives.
    #[test]
    fn what_was_set_is_put_back() {
        let dir = folder("drop");
        let setting = dir.join("enabled");
        fs::write(&setting, "always [madvise] never\n").unwrap();
        let mut settings = Settings::at(dir.join("journal"));
        settings.set(setting.to_str().unwrap(), "never").unwrap();
        assert_eq!(fs::read_to_string(&setting).unwrap(), "never");
        assert!(dir.join("journal").exists());
        drop(settings);
        assert_eq!(fs::read_to_string(&setting).unwrap(), "madvise");
        assert!(!dir.join("journal").exists());
        fs::remove_dir_all(dir).unwrap();
    }

    // Would catch a setting that could not be changed and is restored nevertheless, with a confusing message.
    #[test]
    fn what_could_not_be_set_is_left_alone() {
        let dir = folder("refused");
        let setting = dir.join("folder");
        fs::create_dir_all(&setting).unwrap();
        let mut settings = Settings::at(dir.join("journal"));
        assert!(settings.set(setting.to_str().unwrap(), "1").is_err());
        assert!(settings.journal.undo.is_empty() && !dir.join("journal").exists());
        drop(settings);
        fs::remove_dir_all(dir).unwrap();
    }

    // Would catch settings that are not restored after a killed run.
    #[test]
    fn the_next_run_restores_what_a_killed_one_left() {
        let dir = folder("killed");
        let setting = dir.join("nr_hugepages");
        fs::write(&setting, "0").unwrap();
        let mut settings = Settings::at(dir.join("journal"));
        settings.set(setting.to_str().unwrap(), "512").unwrap();
        settings.journal.pid = 0;
        std::mem::forget(settings);
        Settings::at(dir.join("journal")).restore_leftovers();
        assert_eq!(fs::read_to_string(&setting).unwrap(), "0");
        assert!(!dir.join("journal").exists());
        fs::remove_dir_all(dir).unwrap();
    }
}
