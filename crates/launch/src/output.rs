//! The output file of a command: opened before the run, so that no result is lost.

use std::fs::{self, File};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, cannot_print, system_message};
use crate::sys;

/// The destination of the result.
pub struct Output {
    path: PathBuf,
    file: File,
    /// Whether it is standard output.
    standard: bool,
    /// Whether neap made the file and has written nothing: then the file is removed again.
    fresh: bool,
}

impl Output {
    /// Opens the file that the user named (`-` is standard output), otherwise one named `otherwise`. An existing file
    /// keeps its contents until the result is written.
    pub fn create(named: Option<&Path>, otherwise: &str) -> Result<Self, Error> {
        match named {
            Some(path) if path.as_os_str() == "-" => Self::standard(),
            Some(path) => Self::open(path.to_owned(), 0),
            // A predictable name: if another user put a link there, it is not followed.
            None => Self::open(PathBuf::from(otherwise), libc::O_NOFOLLOW),
        }
    }

    /// Standard output.
    pub fn standard() -> Result<Self, Error> {
        let file = sys::standard_output().map_err(|e| cannot_print(&e).remedy("name a file with -o"))?;
        Ok(Self { path: PathBuf::from("-"), file, standard: true, fresh: false })
    }

    fn open(path: PathBuf, flags: libc::c_int) -> Result<Self, Error> {
        let open = |new| File::options().write(true).create(true).create_new(new).custom_flags(flags).open(&path);
        let opened = match open(true) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => open(false).map(|file| (file, false)),
            other => other.map(|file| (file, true)),
        };
        match opened {
            Ok((file, fresh)) => Ok(Self { path, file, standard: false, fresh }),
            Err(error) => Err(Error::failed(format!("cannot write to {}: {}", path.display(), system_message(&error)))
                .remedy("name another file with -o")),
        }
    }

    /// Whether it is standard output.
    pub fn is_standard(&self) -> bool {
        self.standard
    }

    /// Its name.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the result; `what` names it in messages.
    pub fn write(&mut self, what: &str, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Error> {
        self.fresh = false;
        // Standard output may already have contents of others, even if it is a file.
        let emptied = if self.standard { Ok(()) } else { empty(&self.file) };
        let all = || emptied.map_err(|error| (error, 0)).and_then(|()| write_all(write, &mut self.file));
        let written = sys::with_size_errors(all);
        match written {
            Ok(()) => Ok(()),
            // `neap ... -o - | head`
            Err((error, _)) if self.standard && error.kind() == ErrorKind::BrokenPipe => Ok(()),
            Err((error, bytes)) => {
                let name = if self.standard { "standard output".into() } else { self.path.to_string_lossy() };
                let message = system_message(&error);
                Err(Error::failed(format!(
                    "cannot write to {name}: {message}; it has the first {bytes} bytes of {what}"
                ))
                .remedy("make room there and run it again, or name a file elsewhere with -o"))
            }
        }
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if self.fresh {
            let _ = fs::remove_file(&self.path);
        }
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
