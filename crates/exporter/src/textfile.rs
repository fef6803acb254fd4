//! The file for node_exporter, replaced as a whole: a reader that has opened the old file reads it to its end.

use neap_launch::error::{Error, system_message};
use neap_launch::sys::{self, Identity};
use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

/// How many names are tried for the new file.
const TRIES: usize = 16;

/// Replaces the file. Mode and owner stay, and a symbolic link stays a link.
pub fn replace(path: &Path, text: &str) -> Result<(), Error> {
    sys::with_size_errors(|| put(path, text)).map_err(|error| {
        Error::failed(format!("cannot write {}: {}", path.display(), system_message(&error))).remedy(
            match error.kind() {
                ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "make room on its file system",
                ErrorKind::FileTooLarge => "raise the limit of the size of files: ulimit -f",
                ErrorKind::InvalidInput => "name an ordinary file; --once prints the metrics",
                _ => {
                    "name a file in a folder that exists and that this user may write to, such as that of \
                     node_exporter's --collector.textfile.directory"
                }
            },
        )
    })
}

fn put(path: &Path, text: &str) -> io::Result<()> {
    let path = behind_link(path);
    let old = fs::symlink_metadata(&path).ok().filter(|old| !old.is_symlink());
    if path.file_name().is_none() || old.as_ref().is_some_and(|old| !old.is_file()) {
        return Err(io::Error::new(ErrorKind::InvalidInput, "it is not an ordinary file"));
    }
    let (new, file) = beside(&path, old.is_some())?;
    let written = fill(file, old.as_ref(), text).and_then(|()| fs::rename(&new, &path));
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written
}

/// The target of a link of this user or of root; a link of another user is not followed.
fn behind_link(path: &Path) -> PathBuf {
    let trusted = |link: &Metadata| link.is_symlink() && [0, Identity::current().euid].contains(&link.uid());
    if !fs::symlink_metadata(path).is_ok_and(|link| trusted(&link)) {
        return path.to_owned();
    }
    // The target may not exist yet.
    let named = || fs::read_link(path).map(|to| path.parent().unwrap_or(Path::new("")).join(to));
    fs::canonicalize(path).or_else(|_| named()).unwrap_or_else(|_| path.to_owned())
}

/// A new file in the same folder, with a name that cannot be guessed.
fn beside(path: &Path, private: bool) -> io::Result<(PathBuf, File)> {
    let mut options = OpenOptions::new();
    // create_new does not follow links.
    options.write(true).create_new(true).mode(if private { 0o600 } else { 0o666 });
    let mut tried = Err(ErrorKind::AlreadyExists.into());
    for _ in 0..TRIES {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{:x}", RandomState::new().hash_one(std::process::id())));
        let new = path.with_file_name(name);
        tried = options.open(&new).map(|file| (new, file));
        if !tried.as_ref().is_err_and(|error| error.kind() == ErrorKind::AlreadyExists) {
            break;
        }
    }
    tried
}

fn fill(mut file: File, old: Option<&Metadata>, text: &str) -> io::Result<()> {
    file.write_all(text.as_bytes())?;
    if let Some(old) = old {
        // Only root may change the owner.
        let _ = fchown(&file, Some(old.uid()), Some(old.gid()));
        file.set_permissions(Permissions::from_mode(old.mode() & 0o777))?;
    }
    Ok(())
}
