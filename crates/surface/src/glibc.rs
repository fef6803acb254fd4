//! glibc's controls: mallopt, and the functions that report on the heap. `neap_control` does the work.

use core::ffi::{c_int, c_void};
use core::fmt::Write;
use neap_control::info::{self, Info, ShortInfo};
use neap_control::{options, trim};
use neap_core::text::Text;
use neap_sys::{call, errno};

/// glibc: sets a parameter. Returns 1, also for an unknown parameter, or 0 for a value that is out of range. errno is
/// kept.
#[unsafe(no_mangle)]
pub extern "C" fn mallopt(parameter: c_int, value: c_int) -> c_int {
    options::mallopt(parameter, value)
}

/// glibc: gives free memory back to the system, except `pad` bytes of free ranges. Returns 1 if memory went back, else
/// 0. errno is kept.
#[unsafe(no_mangle)]
pub extern "C" fn malloc_trim(pad: usize) -> c_int {
    (trim::trim(pad, None).held > 0).into()
}

/// glibc: how much memory is where, as `int`. A number that does not fit is the greatest `int`.
#[unsafe(no_mangle)]
pub extern "C" fn mallinfo() -> ShortInfo {
    info::mallinfo2().into()
}

/// glibc: how much memory is where.
#[unsafe(no_mangle)]
pub extern "C" fn mallinfo2() -> Info {
    info::mallinfo2()
}

/// Collects text, and passes it to `sink` in pieces.
struct Buffered<F: FnMut(&[u8]) -> bool> {
    text: Text<{ PIECE + 1 }>,
    /// Takes a piece; false if that failed.
    sink: F,
}

/// Longest piece.
const PIECE: usize = 256;

impl<F: FnMut(&[u8]) -> bool> Buffered<F> {
    fn new(sink: F) -> Self {
        Buffered { text: Text::new(), sink }
    }

    fn flush(&mut self) -> core::fmt::Result {
        let taken = (self.sink)(self.text.bytes());
        self.text.clear();
        if taken { Ok(()) } else { Err(core::fmt::Error) }
    }
}

impl<F: FnMut(&[u8]) -> bool> Write for Buffered<F> {
    fn write_str(&mut self, s: &str) -> core::fmt::Result {
        for piece in s.as_bytes().chunks(PIECE) {
            if !self.text.append(piece) {
                self.flush()?;
                self.text.append(piece);
            }
        }
        Ok(())
    }
}

/// glibc: writes what is free, by size, as XML to a stream. Returns EINVAL unless `options` is 0, and -1 if the stream
/// fails. Writing to the stream may allocate, because no lock of neap's is held meanwhile.
///
/// # Safety
/// `stream` must be an open stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_info(options: c_int, stream: *mut libc::FILE) -> c_int {
    if options != 0 {
        return libc::EINVAL;
    }
    let mut out = Buffered::new(|text| {
        // SAFETY: fwrite's contract: the text is valid for reads of its length, and malloc_info's, that the stream is
        // open.
        unsafe { libc::fwrite(text.as_ptr().cast::<c_void>(), 1, text.len(), stream) == text.len() }
    });
    if info::xml(&mut out).and_then(|()| out.flush()).is_ok() { 0 } else { -1 }
}

/// glibc: writes a summary to standard error.
#[unsafe(no_mangle)]
pub extern "C" fn malloc_stats() {
    let mut out = Buffered::new(|text| call::write(libc::STDERR_FILENO, text));
    // malloc_stats returns nothing.
    let _ = info::text(&mut out).and_then(|()| out.flush());
}

/// Old glibc: saved the state of the heap; glibc has retired it. Returns NULL with errno ENOSYS.
#[unsafe(no_mangle)]
pub extern "C" fn malloc_get_state() -> *mut c_void {
    errno::set(libc::ENOSYS);
    core::ptr::null_mut()
}

/// Old glibc: restored the state of the heap; glibc has retired it. Returns -1, for an unknown state.
#[unsafe(no_mangle)]
pub extern "C" fn malloc_set_state(_state: *mut c_void) -> c_int {
    -1
}
