//! neap's own functions, which include/neap.h declares, except those for ranges. `neap_control` does the work. None of
//! them sets errno.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::fmt::{Display, Write};
use core::time::Duration;
use neap_control::options::{self, find};
use neap_control::stats::{self, Stats};
use neap_control::{hooks, profile, trim};
use neap_options::Opt;
use neap_sys::global;

/// Results of these functions, with the numbers of [`options::Error`]: `enum neap_result` of the header.
pub const OK: c_int = 0;
const BAD_VALUE: c_int = 2;
pub const TOO_SHORT: c_int = 4;
const NO_MEMORY: c_int = 5;

/// The meaning of each result, at the place of its number.
const TEXTS: [&CStr; 6] = [
    c"it is done",
    c"there is no such option",
    c"this value is not accepted",
    c"the option can be set only when the program starts",
    c"the buffer is too short",
    c"there is no memory for it",
];

/// neap: gives free memory back to the system; returns the bytes of address space given back.
#[unsafe(no_mangle)]
pub extern "C" fn neap_purge() -> usize {
    global::purge()
}

/// neap: the version, as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn neap_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// neap: what a result means, in words.
#[unsafe(no_mangle)]
pub extern "C" fn neap_result_text(result: c_int) -> *const c_char {
    let text = usize::try_from(result).ok().and_then(|place| TEXTS.get(place).copied());
    let text = text.or_else(|| neap_ranges::error::Error::from_number(result).map(neap_ranges::error::Error::text));
    let text = text.or_else(|| profile::Error::from_number(result).map(profile::Error::text));
    text.unwrap_or(c"no result of neap").as_ptr()
}

/// The bytes of a C string; none of NULL.
///
/// # Safety
/// `text` must be NULL or a string, which lives as long as the result.
unsafe fn bytes<'a>(text: *const c_char) -> &'a [u8] {
    // SAFETY: not NULL, so a string, as the caller promises.
    if text.is_null() { b"" } else { unsafe { CStr::from_ptr(text) }.to_bytes() }
}

/// A C string that is being written; an error if it is too long.
struct Text<'a> {
    at: &'a mut [u8],
    len: usize,
}

impl Write for Text<'_> {
    fn write_str(&mut self, s: &str) -> core::fmt::Result {
        // One byte stays for the final zero.
        let end = self.len + s.len();
        if end >= self.at.len() {
            return Err(core::fmt::Error);
        }
        self.at[self.len..end].copy_from_slice(s.as_bytes());
        self.len = end;
        Ok(())
    }
}

/// Writes what `show` says of an option as a string into `size` bytes at `to`.
///
/// # Safety
/// `option` must be NULL or a string, and `to` NULL or valid for writes of `size` bytes.
unsafe fn put<D: Display>(option: *const c_char, to: *mut c_char, size: usize, show: fn(&Opt) -> D) -> c_int {
    // SAFETY: NULL or a string, as the caller promises.
    let option = match find(unsafe { bytes(option) }) {
        Ok(option) => option,
        Err(error) => return error as c_int,
    };
    if to.is_null() || size == 0 {
        return TOO_SHORT;
    }
    // SAFETY: valid for writes of `size` bytes, as the caller promises; all are written before the slice is made.
    let at = unsafe {
        to.write_bytes(0, size);
        core::slice::from_raw_parts_mut(to.cast::<u8>(), size)
    };
    let mut text = Text { at, len: 0 };
    if write!(text, "{}", show(option)).is_err() {
        text.at[0] = 0;
        return TOO_SHORT;
    }
    OK
}

/// neap: writes the value of an option in force into `size` bytes at `value`.
///
/// # Safety
/// `option` must be a string, and `value` valid for writes of `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neap_option_get(option: *const c_char, value: *mut c_char, size: usize) -> c_int {
    // SAFETY: the contract of `put` is that of this function.
    unsafe { put(option, value, size, options::value) }
}

/// neap: writes where the value of an option comes from into `size` bytes at `origin`.
///
/// # Safety
/// `option` must be a string, and `origin` valid for writes of `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neap_option_origin(option: *const c_char, origin: *mut c_char, size: usize) -> c_int {
    // SAFETY: the contract of `put` is that of this function.
    unsafe { put(option, origin, size, options::origin) }
}

/// neap: sets an option.
///
/// # Safety
/// `option` and `value` must be strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neap_option_set(option: *const c_char, value: *const c_char) -> c_int {
    // SAFETY: this function's contract: two strings.
    let (option, value) = unsafe { (bytes(option), bytes(value)) };
    options::set(option, value).map_or_else(|error| error as c_int, |()| OK)
}

/// The bytes that a program's structure of `size` bytes has in common with ours, of `ours` bytes. A field of which the
/// program has only a part counts as one that it does not have: all fields that may be missing have 8 bytes.
pub fn in_common(size: usize, ours: usize) -> usize {
    size.min(ours) & !(size_of::<u64>() - 1)
}

/// neap: writes the current figures, as many whole fields of them as the `size` of `out` says.
///
/// # Safety
/// `out` must be NULL or point to a structure of as many bytes as its first field says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neap_stats_get(out: *mut Stats) -> c_int {
    if out.is_null() {
        return TOO_SHORT;
    }
    let mut stats = stats::read();
    // SAFETY: this function's contract: there are as many bytes as the first field says.
    unsafe {
        let size = (&raw const (*out).size).read();
        if size < size_of::<usize>() + size_of::<u64>() {
            return TOO_SHORT;
        }
        stats.size = in_common(size, size_of::<Stats>());
        out.cast::<u8>().copy_from_nonoverlapping((&raw const stats).cast::<u8>(), stats.size);
    }
    OK
}

/// neap: gives free memory back, except `keep` bytes, for about `microseconds` at most (0: without a limit). Returns
/// how many bytes of it held memory.
#[unsafe(no_mangle)]
pub extern "C" fn neap_trim(keep: usize, microseconds: u64) -> usize {
    trim::trim(keep, (microseconds > 0).then(|| Duration::from_micros(microseconds))).held
}

/// neap: the bytes that the system holds for neap.
#[unsafe(no_mangle)]
pub extern "C" fn neap_held() -> usize {
    global::held()
}

/// neap: to be called when the calling thread will be idle; its caches go back.
#[unsafe(no_mangle)]
pub extern "C" fn neap_thread_idle() {
    trim::rest();
}

/// neap: has `hook` called for samples from now on; NULL ends that.
///
/// # Safety
/// `hook` must be callable with `context` at any time, by any thread, also for a while after it was replaced.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neap_sample(hook: Option<hooks::Hook>, context: *mut c_void, interval: usize) -> c_int {
    let Some(hook) = hook else {
        hooks::clear();
        return OK;
    };
    // SAFETY: the contract of `hooks::set` is that of this function.
    if unsafe { hooks::set(hook, context, interval) } { OK } else { NO_MEMORY }
}

/// neap: begins to keep samples for a profile, `interval` bytes apart on average (0: 512 KiB; 1: every block).
#[unsafe(no_mangle)]
pub extern "C" fn neap_profile_start(interval: usize) -> c_int {
    result(profile::start(interval))
}

/// neap: stops keeping samples for a profile.
#[unsafe(no_mangle)]
pub extern "C" fn neap_profile_stop() {
    profile::stop();
}

/// neap: writes a profile to an open file.
#[unsafe(no_mangle)]
pub extern "C" fn neap_profile_write(file: c_int, kind: u32) -> c_int {
    profile_kind(kind).map_or(BAD_VALUE, |kind| result(profile::write_to(kind, file)))
}

/// What takes the bytes of a profile: returns another number than 0 when it takes no more.
type Take = unsafe extern "C" fn(bytes: *const c_void, size: usize, context: *mut c_void) -> c_int;

/// neap: passes a profile to `take`, piece by piece.
///
/// # Safety
/// `take` must be callable with `context`, and must not unwind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neap_profile_pass(kind: u32, take: Option<Take>, context: *mut c_void) -> c_int {
    let (Some(kind), Some(take)) = (profile_kind(kind), take) else { return BAD_VALUE };
    // SAFETY: as the caller promises; the bytes are valid for the call.
    result(profile::write(kind, &mut |bytes| unsafe { take(bytes.as_ptr().cast(), bytes.len(), context) == 0 }))
}

fn result(result: Result<(), profile::Error>) -> c_int {
    result.map_or_else(|error| error as c_int, |()| OK)
}

/// `enum neap_profile` of the header.
fn profile_kind(kind: u32) -> Option<profile::Kind> {
    match kind {
        1 => Some(profile::Kind::Heap),
        2 => Some(profile::Kind::Allocs),
        _ => None,
    }
}
