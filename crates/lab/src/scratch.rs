//! Temporary folders, in `$TMPDIR` or `/tmp`. mkdtemp chooses the name and creates the folder, so that another user can
//! neither enter it nor put a link where root is going to write.

use std::ffi::{CString, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::failure::failure;

/// A folder that is removed when this value is dropped.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Creates one; `purpose` is a part of its name.
    pub fn new(purpose: &str) -> Result<Scratch> {
        let base = std::env::temp_dir();
        let template = base.join(format!("neap-lab-{purpose}-XXXXXX"));
        let mut name =
            CString::new(template.as_os_str().as_bytes()).context("a path without a zero byte")?.into_bytes_with_nul();
        // SAFETY: the buffer is a C string that ends in six X, and is writable.
        let made = unsafe { libc::mkdtemp(name.as_mut_ptr().cast()) };
        if made.is_null() {
            let error = std::io::Error::last_os_error();
            let cause = format!("cannot make a folder in {}: {error}", base.display());
            return Err(failure(cause, "set TMPDIR to a folder that you may write to"));
        }
        name.pop();
        Ok(Scratch { path: OsString::from_vec(name).into() })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A file or folder in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    // Would catch a folder that others can enter, two of one name, and one that stays.
    #[test]
    fn folders_are_private_and_go_away() {
        let (one, other) = (Scratch::new("test").unwrap(), Scratch::new("test").unwrap());
        assert_ne!(one.path(), other.path());
        assert_eq!(fs::metadata(one.path()).unwrap().permissions().mode() & 0o777, 0o700);
        fs::write(one.join("file"), "x").unwrap();
        let path = one.path().to_owned();
        drop(one);
        assert!(!path.exists());
    }
}
