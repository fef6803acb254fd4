//! Profiles of what is live and what was allocated, which a program takes of itself.

use core::ffi::c_int;
use core::fmt;
use neap_sys::profile::{self, Unwritten};

pub use neap_sys::profile::Kind;

/// Why a profile was not begun or not written. The numbers are those of `enum neap_result` of the C header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// There is no memory for the samples, or to write a profile.
    NoMemory = 5,
    /// No samples were ever taken in this process.
    NoSamples = 20,
    /// The disk is full, or a limit of file sizes is reached.
    Full = 21,
    /// The reader has gone away.
    ReaderGone = 22,
    /// The receiver of the profile refused a part of it.
    NotWritten = 23,
}

impl Error {
    /// The error of this number.
    pub fn from_number(number: c_int) -> Option<Self> {
        let all = [Error::NoMemory, Error::NoSamples, Error::Full, Error::ReaderGone, Error::NotWritten];
        all.into_iter().find(|&error| error as c_int == number)
    }

    /// The error in words.
    pub const fn text(self) -> &'static core::ffi::CStr {
        match self {
            Error::NoMemory => c"there is no memory for it",
            Error::NoSamples => c"no samples were taken in this process",
            Error::Full => c"the disk is full, or a limit of file sizes is reached",
            Error::ReaderGone => c"the reader has gone away",
            Error::NotWritten => c"the profile was not taken as a whole",
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text().to_str().unwrap_or(""))
    }
}

impl core::error::Error for Error {}

impl From<Unwritten> for Error {
    fn from(why: Unwritten) -> Self {
        match why {
            Unwritten::NoSamples => Error::NoSamples,
            Unwritten::NoMemory => Error::NoMemory,
            Unwritten::Refused => Error::NotWritten,
            Unwritten::File(error) => match error.raw_os_error() {
                libc::ENOSPC | libc::EDQUOT | libc::EFBIG => Error::Full,
                libc::EPIPE | libc::ECONNRESET => Error::ReaderGone,
                _ => Error::NotWritten,
            },
        }
    }
}

/// Begins to keep samples that are `interval` bytes apart on average (1: every block; 0: the default of 512 KiB).
pub fn start(interval: usize) -> Result<(), Error> {
    let interval = if interval == 0 { profile::DEFAULT } else { interval as u64 };
    if profile::start(interval) { Ok(()) } else { Err(Error::NoMemory) }
}

/// Stops keeping samples. Samples so far stay in the profile, and their frees are still noted.
pub fn stop() {
    profile::stop();
}

/// Writes a profile to `sink`, which returns false when it takes no more.
pub fn write(kind: Kind, sink: &mut dyn FnMut(&[u8]) -> bool) -> Result<(), Error> {
    Ok(profile::write(kind, sink)?)
}

/// Writes a profile to an open file.
pub fn write_to(kind: Kind, file: c_int) -> Result<(), Error> {
    Ok(profile::write_to(kind, file)?)
}
