//! A fresh directory that only this user can enter, removed when it is dropped.

use std::ffi::CString;
use std::fs::{self, DirBuilder};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Number of names that are tried in a base directory.
const TRIES: u32 = 16;

/// What helps where no base allows one.
pub const REMEDY: &str = "set TMPDIR to a directory that you may write to";

/// A private directory and its removal.
#[derive(Debug)]
pub struct PrivateDir {
    path: PathBuf,
}

impl PrivateDir {
    /// Makes a directory with mode 0700 in the first base that allows it. mkdir fails for a name that exists, including
    /// a symbolic link, so the new directory is ours alone; guessing names can only delay this.
    ///
    /// The error names every base and why it was refused.
    pub fn create(bases: &[PathBuf], prefix: &str) -> Result<Self, String> {
        let mut reasons = Vec::new();
        for base in bases {
            match Self::create_in_one(base, prefix) {
                Ok(dir) => return Ok(dir),
                Err(reason) => reasons.push(format!("{}: {reason}", base.display())),
            }
        }
        Err(reasons.join("; "))
    }

    /// Makes a directory in this base.
    pub fn create_in_one(base: &Path, prefix: &str) -> Result<Self, String> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
        for attempt in 0..TRIES {
            let name = format!("{prefix}-{}-{:x}", std::process::id(), now.wrapping_add(u64::from(attempt)));
            let path = base.join(name);
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self { path }),
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(e.to_string()),
            }
        }
        Err("every name that was tried exists".to_owned())
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for PrivateDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// TMPDIR if it is set to an absolute path, and /tmp.
pub fn temporary_bases() -> Vec<PathBuf> {
    let mut bases: Vec<PathBuf> = absolute_env("TMPDIR").into_iter().collect();
    let tmp = PathBuf::from("/tmp");
    if !bases.contains(&tmp) {
        bases.push(tmp);
    }
    bases
}

/// Directories for files that need not survive: the user's runtime directory (in memory on most systems), then the
/// temporary ones.
pub fn volatile_bases() -> Vec<PathBuf> {
    absolute_env("XDG_RUNTIME_DIR").into_iter().chain(temporary_bases()).collect()
}

/// Puts first the bases in whose file system this user may take this many bytes. Both parts keep their order.
pub fn roomy_first(mut bases: Vec<PathBuf>, bytes: u64) -> Vec<PathBuf> {
    bases.sort_by_key(|base| free_bytes(base).is_none_or(|free| free < bytes));
    bases
}

/// The free bytes for this user in the file system of a path.
fn free_bytes(path: &Path) -> Option<u64> {
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    let mut found = MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: the call reads the path, and fills the structure in where it returns 0.
    unsafe {
        (libc::statvfs(path.as_ptr(), found.as_mut_ptr()) == 0).then(|| {
            let found = found.assume_init();
            found.f_bavail.saturating_mul(found.f_frsize)
        })
    }
}

/// A directory named by a variable. Relative paths are ignored, as the XDG specification requires.
pub fn absolute_env(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute())
}

/// A directory for a test.
#[cfg(test)]
pub fn for_test() -> PrivateDir {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let prefix = format!("neap-test-{}", NUMBER.fetch_add(1, Relaxed));
    PrivateDir::create(&temporary_bases(), &prefix).expect("a temporary directory")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// Catches a directory that others can enter, one that is left behind, and an unusable base that ends the search.
    #[test]
    fn a_private_directory_is_made_and_removed() {
        let base = for_test();
        let bases = [base.path().join("missing"), base.path().to_owned()];
        let dir = PrivateDir::create(&bases, "t").expect("the second base works");
        let path = dir.path().to_owned();
        let mode = fs::metadata(&path).expect("it exists").permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        fs::write(path.join("file"), "x").expect("writable");
        drop(dir);
        assert!(!path.exists());
        let reasons = PrivateDir::create(&bases[..1], "t").expect_err("no base works");
        assert!(reasons.contains("missing"), "{reasons}");
    }

    /// Catches a small file system that is used although there is a larger one, and bases that are lost.
    #[test]
    fn bases_with_room_come_first() {
        let base = for_test();
        let (missing, there) = (base.path().join("missing"), base.path().to_owned());
        let bases = || vec![missing.clone(), there.clone()];
        assert_eq!(roomy_first(bases(), 1), [there.clone(), missing.clone()]);
        assert_eq!(roomy_first(bases(), u64::MAX), bases());
    }
}
