//! A text of bounded length, for places that must not allocate.

use core::ffi::CStr;

/// A text of less than `ROOM` bytes, followed by a zero byte. Invariant: `len < ROOM` and `bytes[len] == 0`.
#[derive(Clone, Copy, Debug)]
pub struct Text<const ROOM: usize> {
    bytes: [u8; ROOM],
    len: usize,
}

impl<const ROOM: usize> Text<ROOM> {
    /// An empty text.
    pub const fn new() -> Self {
        Text { bytes: [0; ROOM], len: 0 }
    }

    /// The bytes, without the final zero.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// The text as a C string; `None` if it contains a zero byte.
    pub fn c_str(&self) -> Option<&CStr> {
        CStr::from_bytes_with_nul(&self.bytes[..=self.len]).ok()
    }

    /// Makes the text empty.
    pub fn clear(&mut self) {
        self.cut(0);
    }

    /// Keeps the first `len` bytes.
    fn cut(&mut self, len: usize) {
        self.len = len;
        self.bytes[len] = 0;
    }

    /// Adds one byte; false if there is no room.
    pub fn push(&mut self, byte: u8) -> bool {
        if self.len + 1 >= ROOM {
            return false;
        }
        self.bytes[self.len] = byte;
        self.cut(self.len + 1);
        true
    }

    /// Adds all bytes, or none; false if there is no room.
    pub fn extend(&mut self, bytes: impl IntoIterator<Item = u8>) -> bool {
        let old = self.len;
        let fits = bytes.into_iter().all(|byte| self.push(byte));
        if !fits {
            self.cut(old);
        }
        fits
    }

    /// [`Text::extend`] by a slice.
    pub fn append(&mut self, bytes: &[u8]) -> bool {
        self.extend(bytes.iter().copied())
    }
}

/// Writes what fits; an error if that is not all.
impl<const ROOM: usize> core::fmt::Write for Text<ROOM> {
    fn write_str(&mut self, s: &str) -> core::fmt::Result {
        if s.bytes().all(|byte| self.push(byte)) { Ok(()) } else { Err(core::fmt::Error) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::fmt::Write;

    /// Catches a write behind the end of the buffer, a text that is cut where it must be whole, and a lost final zero.
    #[test]
    fn is_bounded() {
        let mut text = Text::<8>::new();
        assert!(write!(text, "abc{}", 7).is_ok() && text.c_str() == Some(c"abc7"));
        assert!(!text.append(b"1234") && text.bytes() == b"abc7" && text.c_str() == Some(c"abc7"));
        assert!(write!(text, "{}", 1234).is_err() && text.c_str() == Some(c"abc7123"));
        assert!(!text.push(b'x'));
        text.clear();
        assert!(text.append(b"1234567") && text.bytes() == b"1234567" && text.append(b""));
        text.clear();
        assert!(text.append(b"a\0b") && text.c_str().is_none());
    }
}
