//! The output file of a command: opened before the run, so that no result is lost.

use std::fs::{self, File, Metadata};
use std::io::{self, BufWriter, ErrorKind, Seek, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

use crate::error::{Error, cannot_print, system_message};
use crate::sys;

/// The destination of the result. A file gets the whole result, or stays as it was.
pub struct Output {
    path: PathBuf,
    file: File,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Standard output.
    Standard,
    /// A new file without a name, which it gets with the result: if neap is killed before, nothing is left.
    Nameless,
    /// A file that neap made: it is removed again if nothing is written.
    Fresh,
    /// A file that existed, or anything else with a name.
    Named,
    /// It has a result already, or is written to as it is.
    Written,
}

impl Output {
    /// Opens the file that the user named (`-` is standard output), otherwise one named `otherwise`. An existing file
    /// keeps its contents until the result is written.
    pub fn create(named: Option<&Path>, otherwise: &str) -> Result<Self, Error> {
        match named {
            Some(path) => Self::to(path),
            // A predictable name: if another user put a link there, it is not followed.
            None => Self::open(Path::new(otherwise), libc::O_NOFOLLOW).map_err(|e| cannot_open(otherwise.as_ref(), &e)),
        }
    }

    /// Opens the file that the user named; `-` is standard output.
    pub fn to(path: &Path) -> Result<Self, Error> {
        if path.as_os_str() == "-" {
            return Self::standard();
        }
        Self::at(path).map_err(|error| cannot_open(path, &error))
    }

    /// Standard output.
    pub fn standard() -> Result<Self, Error> {
        let file = sys::standard_output().map_err(|e| cannot_print(&e).remedy("name a file with -o"))?;
        Ok(Self { path: PathBuf::from("-"), file, kind: Kind::Standard })
    }

    /// A stream that is written to as it is.
    pub fn stream(file: File) -> Self {
        Self { path: PathBuf::from("-"), file, kind: Kind::Written }
    }

    /// Opens the file at a path.
    pub fn at(path: &Path) -> io::Result<Self> {
        Self::open(path, 0)
    }

    fn open(path: &Path, flags: libc::c_int) -> io::Result<Self> {
        let (file, kind) = match is_new(path).then(|| nameless(folder(path))).flatten() {
            Some(file) => (file, Kind::Nameless),
            None => {
                let (file, made) = open(path, flags)?;
                (file, if made { Kind::Fresh } else { Kind::Named })
            }
        };
        Ok(Self { path: path.to_owned(), file, kind })
    }

    /// Whether it is standard output.
    pub fn is_standard(&self) -> bool {
        self.kind == Kind::Standard
    }

    /// Its name.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Writes a report behind the earlier ones.
    pub fn append(&mut self, report: &[u8]) -> io::Result<()> {
        sys::with_size_errors(|| match self.kind {
            Kind::Standard | Kind::Written => self.file.write_all(report),
            _ => self.put(|out| out.write_all(report)).map_err(|(error, _)| error),
        })
    }

    /// Writes the result; `what` names it in messages.
    pub fn write(&mut self, what: &str, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Error> {
        let written = sys::with_size_errors(|| self.put(write));
        match written {
            Ok(()) => Ok(()),
            // `neap ... -o - | head`
            Err((error, _)) if self.is_standard() && error.kind() == ErrorKind::BrokenPipe => Ok(()),
            Err((error, bytes)) => {
                let name = if self.is_standard() { "standard output".into() } else { self.path.to_string_lossy() };
                let message = system_message(&error);
                let left = bytes.map(|bytes| format!("; it has the first {bytes} bytes of {what}"));
                Err(Error::failed(format!("cannot write to {name}: {message}{}", left.unwrap_or_default()))
                    .remedy("make room there and run it again, or name a file elsewhere with -o"))
            }
        }
    }

    /// Writes the result. On failure returns how many bytes of it the output has; `None`: the output is as it was.
    fn put(&mut self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), (io::Error, Option<u64>)> {
        let replacement = match self.kind {
            Kind::Standard | Kind::Written => None,
            Kind::Nameless => Some((self.file.try_clone().map_err(|error| (error, None))?, None)),
            Kind::Fresh | Kind::Named => {
                let metadata = self.file.metadata().map_err(|error| (error, None))?;
                if metadata.is_file() { beside(&metadata, &self.path) } else { None }
            }
        };
        let Some((mut file, part)) = replacement else {
            // Standard output may already have contents of others, even if it is a file.
            let emptied = if self.kind == Kind::Standard { Ok(()) } else { empty(&self.file) };
            self.kind = if self.kind == Kind::Standard { Kind::Standard } else { Kind::Written };
            let all = emptied.map_err(|error| (error, 0)).and_then(|()| write_all(write, &mut self.file));
            return all.map_err(|(error, bytes)| (error, Some(bytes)));
        };
        let all = write_all(write, &mut file).map_err(|(error, _)| error);
        let placed = all.and_then(|()| place(&file, part.as_deref(), &self.path));
        // After a rename nothing has this name.
        part.map(fs::remove_file);
        match placed {
            Ok(()) => {
                (self.file, self.kind) = (file, Kind::Written);
                Ok(())
            }
            // A mount point cannot be replaced: its own file gets the result.
            Err(error) if error.kind() == ErrorKind::ResourceBusy => {
                self.kind = Kind::Written;
                let emptied = empty(&self.file).and_then(|()| file.rewind()).map_err(|error| (error, 0));
                let copy = |out: &mut dyn Write| io::copy(&mut file, out).map(drop);
                let copied = emptied.and_then(|()| write_all(copy, &mut self.file));
                copied.map_err(|(error, bytes)| (error, Some(bytes)))
            }
            Err(error) => Err((error, None)),
        }
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if self.kind == Kind::Fresh {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn cannot_open(path: &Path, error: &io::Error) -> Error {
    Error::failed(format!("cannot write to {}: {}", path.display(), system_message(error)))
        .remedy("name another file with -o")
}

/// Opens a file for writing; true: neap made it.
fn open(path: &Path, flags: libc::c_int) -> io::Result<(File, bool)> {
    let open = |new| File::options().write(true).create(true).create_new(new).custom_flags(flags).open(path);
    match open(true) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => open(false).map(|file| (file, false)),
        other => other.map(|file| (file, true)),
    }
}

/// The folder of a path.
fn folder(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A file without a name in a folder; `None` if the file system has no such files.
pub fn nameless(folder: &Path) -> Option<File> {
    let file = File::options().read(true).write(true).custom_flags(libc::O_TMPFILE).open(folder).ok()?;
    sys::name_in_proc(&file).exists().then_some(file)
}

/// Whether a file can be made at a path: nothing exists there, not even a link, and the path ends with a name.
fn is_new(path: &Path) -> bool {
    let name = path.file_name().is_some_and(|name| path.as_os_str().as_bytes().ends_with(name.as_bytes()));
    name && fs::symlink_metadata(path).is_err_and(|error| error.kind() == ErrorKind::NotFound)
}

/// A new file that can replace another one: in the same folder, with its owner and mode. `None` if the path is a link,
/// if the file has other names, or if no such file can be made: then the file itself is written.
fn beside(metadata: &Metadata, path: &Path) -> Option<(File, Option<PathBuf>)> {
    // A file that was removed meanwhile is made again.
    let removed = metadata.nlink() == 0;
    let is_same = |found: Metadata| (found.dev(), found.ino()) == (metadata.dev(), metadata.ino());
    if !removed && (metadata.nlink() != 1 || !fs::symlink_metadata(path).is_ok_and(is_same)) {
        return None;
    }
    let (fresh, part) = match nameless(folder(path)) {
        Some(fresh) => (fresh, None),
        None => {
            let part = part(path);
            (File::options().read(true).write(true).create_new(true).open(&part).ok()?, Some(part))
        }
    };
    let owned = fchown(&fresh, Some(metadata.uid()), Some(metadata.gid()));
    if owned.and_then(|()| fresh.set_permissions(metadata.permissions())).is_err() {
        part.map(fs::remove_file);
        return None;
    }
    Some((fresh, part))
}

/// The name of a file that will replace the one at a path.
fn part(path: &Path) -> PathBuf {
    path.with_file_name(format!(".neap-{}.part", std::process::id()))
}

/// Moves a written file to its path; `named`: its present name, if it has one.
fn place(file: &File, named: Option<&Path>, path: &Path) -> io::Result<()> {
    if let Some(part) = named {
        return fs::rename(part, path);
    }
    match sys::link(file, path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let part = part(path);
            sys::link(file, &part)?;
            fs::rename(&part, path).inspect_err(|_| drop(fs::remove_file(&part)))
        }
        linked => linked,
    }
}

/// Truncates the file; pipes and terminals have no contents.
fn empty(file: &File) -> io::Result<()> {
    if file.metadata()?.is_file() { file.set_len(0) } else { Ok(()) }
}

/// Writes the result; on failure returns the number of bytes that were written.
fn write_all(
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    out: &mut dyn Write,
) -> Result<(), (io::Error, u64)> {
    let mut out = BufWriter::with_capacity(64 << 10, Counted { out, bytes: 0 });
    let written = write(&mut out).and_then(|()| out.flush());
    // Does not retry what is left in the buffer.
    let (counted, _) = out.into_parts();
    written.map_err(|error| (error, counted.bytes))
}

/// Counts the bytes that are written.
struct Counted<'w> {
    out: &'w mut dyn Write,
    bytes: u64,
}

impl Write for Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
