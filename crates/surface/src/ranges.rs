//! Ranges in pages of a chosen size, which include/neap.h declares. `neap_ranges` does the work. No function sets
//! errno.

use crate::api::{OK, TOO_SHORT, in_common};
use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::offset_of;
use core::ops::ControlFlow;
use neap_ranges::advice::{self, Advice};
use neap_ranges::error::Error;
use neap_ranges::kernel::{Text, page_size};
use neap_ranges::mounts::{self, PATH};
use neap_ranges::named::{self, Named};
use neap_ranges::prefault::{Prefault, Progress};
use neap_ranges::range::{Pages, Parts, Private, Range, Request};
use neap_ranges::resident::{self, Resident};
use rustix::fd::{FromRawFd, IntoRawFd, OwnedFd};

/// Flags of `neap_range_alloc`.
const HUGETLB: u32 = 1;
const STRICT: u32 = 2;
const LAZY: u32 = 4;
const SHARED: u32 = 8;

/// Kinds of pages: `enum neap_pages`.
const KIND_SMALL: u32 = 1;
const KIND_TRANSPARENT: u32 = 2;
const KIND_HUGETLB: u32 = 3;

/// `struct neap_range`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CRange {
    size: usize,
    start: *mut c_void,
    bytes: usize,
    page_size: usize,
    kind: u32,
    why_smaller: i32,
    is_new: u32,
    segment: i32,
    file: i32,
    path: [u8; PATH],
}

/// `struct neap_prefault_options`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct COptions {
    size: usize,
    access: u32,
    threads: u32,
    progress: Option<unsafe extern "C" fn(done: usize, total: usize, context: *mut c_void) -> c_int>,
    context: *mut c_void,
    done: usize,
}

// `in_common`: what a program may lack are whole words. Of a `CRange` it must have all.
const _: () = assert!(offset_of!(COptions, progress).is_multiple_of(8) && size_of::<COptions>() == 40);
const _: () = assert!(offset_of!(Resident, bytes).is_multiple_of(8) && size_of::<CRange>().is_multiple_of(8));

/// Reads a structure of which the caller has `size` bytes, as its first field says; fields that it does not have whole
/// are those of `missing`. `None` if it is shorter than `least`.
///
/// # Safety
/// `from` must be NULL or point to a structure of as many bytes as its first field says.
unsafe fn read<T: Copy>(from: *const T, least: usize, missing: T) -> Option<T> {
    if from.is_null() {
        return None;
    }
    let mut value = missing;
    // SAFETY: this function's contract. Any bytes are valid in all fields; pointers are as the caller passes them.
    unsafe {
        let size = from.cast::<usize>().read();
        if size < least {
            return None;
        }
        let bytes = in_common(size, size_of::<T>());
        (&raw mut value).cast::<u8>().copy_from_nonoverlapping(from.cast::<u8>(), bytes);
    }
    Some(value)
}

/// Writes as many fields of `value` as the caller's structure has whole, except for the first.
///
/// # Safety
/// `to` must point to a structure of as many bytes as its first field says.
unsafe fn write<T>(to: *mut T, value: &T) {
    const SIZE: usize = size_of::<usize>();
    // SAFETY: this function's contract.
    unsafe {
        let size = in_common(to.cast::<usize>().read(), size_of::<T>());
        let from = core::ptr::from_ref(value).cast::<u8>();
        to.cast::<u8>().add(SIZE).copy_from_nonoverlapping(from.add(SIZE), size.saturating_sub(SIZE));
    }
}

/// What is written where there is no range.
const NONE: CRange = CRange {
    size: 0,
    start: core::ptr::null_mut(),
    bytes: 0,
    page_size: 0,
    kind: 0,
    why_smaller: OK,
    is_new: 0,
    segment: NO_NUMBER,
    file: NO_NUMBER,
    path: [0; PATH],
};
const NO_NUMBER: i32 = -1;

fn to_c(parts: Parts) -> CRange {
    let kind = match parts.pages {
        Pages::Small => KIND_SMALL,
        Pages::Transparent(_) => KIND_TRANSPARENT,
        Pages::Hugetlb(_) => KIND_HUGETLB,
    };
    CRange {
        size: 0,
        start: parts.start.cast(),
        bytes: parts.bytes,
        page_size: parts.pages.size(),
        kind,
        why_smaller: parts.why_smaller.map_or(OK, |error| error as i32),
        is_new: parts.named.as_ref().map_or(0, |named| named.is_new.into()),
        segment: parts.segment.unwrap_or(NO_NUMBER),
        path: parts.named.as_ref().map_or([0; PATH], |named| named.path.bytes()),
        file: parts.named.map_or(NO_NUMBER, |named| named.into_file().into_raw_fd()),
    }
}

/// The parts of the range for which a structure was filled in: those that matter when it is freed.
///
/// # Safety
/// The structure must be filled in, and used once.
unsafe fn from_c(from: &CRange) -> Parts {
    let path = CStr::from_bytes_until_nul(&from.path).ok().and_then(|path| Text::of(path.to_bytes()));
    let named = path.filter(|_| from.file >= 0).map(|path| {
        // SAFETY: the file is the range's own.
        let file = unsafe { OwnedFd::from_raw_fd(from.file) };
        Named { file, path, bytes: from.bytes, is_new: false }
    });
    Parts { start: from.start.cast(), bytes: from.bytes, pages: Pages::Small, why_smaller: None, named, segment: None }
}

/// Fills in what `make` makes; returns the result's number.
///
/// # Safety
/// `range` must be NULL or point to a structure of as many bytes as its first field says.
unsafe fn fill(range: *mut CRange, make: impl FnOnce() -> Result<Parts, Error>) -> c_int {
    // SAFETY: this function's contract, here and below.
    unsafe {
        if read(range, size_of::<CRange>(), NONE).is_none() {
            if read(range, offset_of!(CRange, bytes), NONE).is_some() {
                // Programs may look for the range there only.
                (&raw mut (*range).start).write(core::ptr::null_mut());
            }
            return TOO_SHORT;
        }
    }
    let made = make();
    let result = made.as_ref().map_or_else(|error| *error as c_int, |_| OK);
    // SAFETY: as above.
    unsafe { write(range, &made.map_or(NONE, to_c)) };
    result
}

/// A request for pages of a pool.
fn pool(page: usize, flags: u32) -> Result<Request, Error> {
    let request = Request::new(Pages::Hugetlb(page));
    match flags {
        0 => Ok(request),
        LAZY => Ok(request.lazy()),
        _ => Err(Error::BadValue),
    }
}

/// neap: allocates a range in pages of `page` bytes (0: OS pages).
///
/// # Safety
/// `range` must point to a structure of as many bytes as its first field says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neap_range_alloc(range: *mut CRange, bytes: usize, page: usize, flags: u32) -> c_int {
    let pages = match (flags & HUGETLB != 0, page) {
        (true, size) => Pages::Hugetlb(size),
        (false, size) if size == 0 || size == page_size() => Pages::Small,
        (false, size) => Pages::Transparent(size),
    };
    let allocate = || {
        if flags & !(HUGETLB | STRICT | LAZY | SHARED) != 0 {
            return Err(Error::BadValue);
        }
        let mut request = Request::new(pages);
        if flags & STRICT != 0 {
            request = request.strict();
        }
        if flags & LAZY != 0 {
            request = request.lazy();
        }
        match flags & SHARED {
            0 => request.allocate(bytes).map(Range::into_parts),
            _ => request.allocate_shared(bytes).map(Range::into_parts),
        }
    };
    // SAFETY: this function's contract.
    unsafe { fill(range, allocate) }
}

/// neap: a range in a file of hugetlbfs that processes share by its name.
///
/// # Safety
/// As [`neap_range_alloc`]; `name` must be a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neap_range_open(
    range: *mut CRange,
    name: *const c_char,
    bytes: usize,
    page: usize,
    flags: u32,
) -> c_int {
    // SAFETY: this function's contract.
    let name = if name.is_null() { b"" } else { unsafe { CStr::from_ptr(name) }.to_bytes() };
    // SAFETY: as above.
    unsafe { fill(range, || pool(page, flags)?.open(name, bytes).map(Range::into_parts)) }
}

/// neap: a range in a SysV segment in huge pages.
///
/// # Safety
/// As [`neap_range_alloc`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neap_range_segment(range: *mut CRange, bytes: usize, page: usize, flags: u32) -> c_int {
    // SAFETY: this function's contract.
    unsafe { fill(range, || pool(page, flags)?.segment(bytes).map(Range::into_parts)) }
}

/// neap: attaches the segment that another process has made.
///
/// # Safety
/// As [`neap_range_alloc`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neap_range_attach(range: *mut CRange, segment: c_int) -> c_int {
    // SAFETY: this function's contract.
    unsafe { fill(range, || Range::attach(segment).map(Range::into_parts)) }
}

/// neap: removes files of ranges that no process has any more; returns how many.
#[unsafe(no_mangle)]
pub extern "C" fn neap_range_sweep() -> usize {
    named::sweep()
}

/// neap: where hugetlbfs with pages of `page` bytes is mounted, as a string of at most `size` bytes at `path`.
///
/// # Safety
/// `path` must be valid for writes of `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neap_hugetlb_mount(page: usize, path: *mut c_char, size: usize) -> c_int {
    let found = match mounts::path_of(page) {
        Ok(found) => found,
        Err(error) => return error as c_int,
    };
    let bytes = found.as_c().to_bytes_with_nul();
    if path.is_null() || bytes.len() > size {
        if !path.is_null() && size > 0 {
            // SAFETY: there is room for the empty string, by this function's contract.
            unsafe { path.write(0) };
        }
        return TOO_SHORT;
    }
    // SAFETY: there is room, by this function's contract.
    unsafe { path.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    OK
}

/// neap: frees a range; nothing where there is none.
///
/// # Safety
/// `range` must be NULL or point to a structure that a function of this file has filled in, whose memory is not used
/// any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neap_range_free(range: *mut CRange) {
    // SAFETY: this function's contract.
    let Some(from) = (unsafe { read(range, size_of::<CRange>(), NONE) }) else { return };
    if from.start.is_null() {
        return;
    }
    // SAFETY: the structure was filled in for a range, and is cleared here.
    unsafe {
        write(range, &NONE);
        drop(Range::<Private>::from_parts(from_c(&from)));
    }
}

/// neap: advises the OS pages that lie completely in a range.
///
/// # Safety
/// For `NEAP_ADVICE_FREE` the contents of the range must not be needed any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neap_advise(start: *mut c_void, bytes: usize, advice: u32) -> c_int {
    let Some(advice) = Advice::from_number(advice) else { return Error::BadValue as c_int };
    // SAFETY: this function's contract.
    unsafe { advice::advise(start.cast(), bytes, advice) }.map_or_else(|error| error as c_int, |()| OK)
}

/// neap: makes a range resident.
///
/// # Safety
/// `options` must be NULL or point to a structure of as many bytes as its first field says, with a callback that can be
/// called with its context, or none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neap_prefault(start: *const c_void, bytes: usize, options: *mut COptions) -> c_int {
    const WRITE: u32 = 0;
    const READ: u32 = 1;
    const ALL_PROCESSORS: u32 = u32::MAX;
    let usual = COptions {
        size: size_of::<COptions>(),
        access: WRITE,
        threads: 1,
        progress: None,
        context: core::ptr::null_mut(),
        done: 0,
    };
    let how = if options.is_null() {
        usual
    } else {
        // SAFETY: this function's contract.
        let Some(how) = (unsafe { read(options, offset_of!(COptions, progress), usual) }) else { return TOO_SHORT };
        how
    };
    let prefault = match how.access {
        READ => Prefault::read(),
        WRITE => Prefault::write(),
        _ => return Error::BadValue as c_int,
    };
    let progress = |progress: Progress| {
        let Some(callback) = how.progress else { return ControlFlow::Continue(()) };
        // SAFETY: this function's contract.
        match unsafe { callback(progress.done, progress.total, how.context) } {
            0 => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        }
    };
    let prefault = match how.threads {
        ALL_PROCESSORS => prefault.all_processors(),
        threads => prefault.threads(threads as usize),
    };
    let result = prefault.run_with(start.cast(), bytes, progress);
    let (result, done) = match result {
        Ok(()) => (OK, bytes),
        Err(incomplete) => (incomplete.error as c_int, incomplete.done),
    };
    if !options.is_null() {
        // SAFETY: this function's contract.
        unsafe { write(options, &COptions { done, ..how }) };
    }
    result
}

/// neap: what a range holds, by the size of pages.
///
/// # Safety
/// `out` must point to a structure of as many bytes as its first field says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neap_resident_get(start: *const c_void, bytes: usize, out: *mut Resident) -> c_int {
    let found = match resident::of(start.cast(), bytes) {
        Ok(found) => found,
        Err(error) => return error as c_int,
    };
    if out.is_null() {
        return TOO_SHORT;
    }
    // SAFETY: this function's contract.
    unsafe {
        let size = out.cast::<usize>().read();
        if size < offset_of!(Resident, bytes) {
            return TOO_SHORT;
        }
        write(out, &found);
        out.cast::<usize>().write(in_common(size, size_of::<Resident>()));
    }
    OK
}
