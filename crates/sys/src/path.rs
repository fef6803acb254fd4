//! Paths that are put together where nothing may be allocated.

use core::ffi::CStr;
use core::fmt::Write;
use rustix::fd::OwnedFd;
use rustix::fs::{CWD, Mode, OFlags};

/// A path in the making, always with a final zero, of less than `ROOM` bytes: by default as long as the system allows,
/// which is for statics, as a thread may have a stack of 16 KiB.
#[derive(Debug)]
pub struct Path<const ROOM: usize = 4096> {
    text: [u8; ROOM],
    len: usize,
}

/// Room for the name of a file that belongs to this process.
pub type Name = Path<32>;

impl<const ROOM: usize> Path<ROOM> {
    /// An empty path.
    #[expect(clippy::new_without_default, reason = "for statics and short uses only")]
    pub const fn new() -> Self {
        Path { text: [0; ROOM], len: 0 }
    }

    /// Adds `s`; an error, and nothing added, if that makes it too long.
    ///
    /// # Errors
    /// No room.
    pub fn append(&mut self, s: &[u8]) -> core::fmt::Result {
        let end = self.len + s.len();
        if end >= self.text.len() {
            return Err(core::fmt::Error);
        }
        self.text[self.len..end].copy_from_slice(s);
        self.text[end] = 0;
        self.len = end;
        Ok(())
    }

    /// Without the final zero.
    pub fn bytes(&self) -> &[u8] {
        &self.text[..self.len]
    }

    /// Opens the directory of this path, for names in it.
    pub fn open_directory(&self) -> Option<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::openat(CWD, self.c_str()?, flags, Mode::empty()).ok()
    }

    /// For the system; none if it has a zero inside.
    pub fn c_str(&self) -> Option<&CStr> {
        CStr::from_bytes_with_nul(&self.text[..=self.len]).ok()
    }
}

impl<const ROOM: usize> Write for Path<ROOM> {
    fn write_str(&mut self, s: &str) -> core::fmt::Result {
        self.append(s.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a path that is cut, or that loses its final zero.
    #[test]
    fn nothing_is_cut() {
        let mut path = Path::<4096>::new();
        write!(path, "/{}.{}", 12, 3).unwrap();
        assert_eq!(path.c_str(), Some(c"/12.3"));
        assert!(path.append(&[b'x'; 4096]).is_err() && path.c_str() == Some(c"/12.3"));
        path.append(&[b'x'; 4090]).unwrap();
        assert!(path.append(b"x").is_err() && path.c_str().unwrap().count_bytes() == 4095);
    }
}
