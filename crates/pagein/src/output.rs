//! The file of a trace: opened before there is anything to write, so that a run is not in vain.

use std::fs::{self, File};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use neap_trace::Source;
use neap_trace::format::Format;

use super::args::PageinArgs;
use neap_launch::error::{Error, cannot_print, system_message};
use neap_launch::sys;

/// Where the trace goes.
pub struct Output {
    path: PathBuf,
    file: File,
    /// Whether it is standard output.
    standard: bool,
    /// Whether neap made the file and has written nothing: then it goes away again.
    fresh: bool,
}

impl Output {
    /// Opens the file that the user named (`-` is standard output), else `pagein.PID` with the format's ending. What a
    /// file has stays in it until the trace is written.
    pub fn create(args: &PageinArgs, pid: u32) -> Result<Self, Error> {
        match &args.output {
            Some(path) if path.as_os_str() == "-" => {
                let file = sys::standard_output().map_err(|e| cannot_print(&e).remedy("name a file with -o"))?;
                Ok(Self { path: path.clone(), file, standard: true, fresh: false })
            }
            Some(path) => Self::open(path.clone(), 0),
            // A name that can be guessed: where another user put a link there, it is not followed.
            None => Self::open(PathBuf::from(format!("pagein.{pid}{}", args.format.ending)), libc::O_NOFOLLOW),
        }
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

    /// Its name.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the trace.
    pub fn write(&mut self, format: &Format, source: &dyn Source) -> Result<(), Error> {
        self.fresh = false;
        // What is standard output may have something of others, also where it is a file.
        let emptied = if self.standard { Ok(()) } else { empty(&self.file) };
        let written = emptied.map_err(|error| (error, 0)).and_then(|()| write_all(format, source, &mut self.file));
        match written {
            Ok(()) => Ok(()),
            // `neap pagein -o - ... | head`
            Err((error, _)) if self.standard && error.kind() == ErrorKind::BrokenPipe => Ok(()),
            Err((error, bytes)) => {
                let name = if self.standard { "standard output".into() } else { self.path.to_string_lossy() };
                let message = system_message(&error);
                Err(Error::failed(format!(
                    "cannot write to {name}: {message}; it has the first {bytes} bytes of the trace"
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

/// Takes what was in the file away; pipes and terminals have nothing.
fn empty(file: &File) -> io::Result<()> {
    if file.metadata()?.is_file() { file.set_len(0) } else { Ok(()) }
}

/// Writes the trace; where that fails, the bytes that were written.
fn write_all(format: &Format, source: &dyn Source, out: &mut dyn Write) -> Result<(), (io::Error, u64)> {
    let mut out = BufWriter::with_capacity(64 << 10, Counted { out, bytes: 0 });
    let written = (format.write)(source, &mut out).and_then(|()| out.flush());
    // What waits in the buffer is not tried again.
    let (counted, _) = out.into_parts();
    written.map_err(|error| (error, counted.bytes))
}

/// Counts what goes through.
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
