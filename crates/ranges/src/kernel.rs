//! System calls and small files, without touching errno and without allocating.

use core::ffi::{CStr, c_int};
use core::fmt::{self, Write};
use neap_sys::filter::Asking;
use neap_sys::{arch, call, lines};
use rustix::fd::RawFd;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;

/// Bytes of an OS page.
pub fn page_size() -> usize {
    call::page_size()
}

/// Bytes of a page that one entry of the second level of page tables maps: 2 MiB where OS pages have 4 KiB.
pub fn pmd_size() -> usize {
    page_size() * (page_size() / size_of::<u64>())
}

/// Makes a system call.
///
/// # Errors
/// The kernel's.
///
/// # Safety
/// As the call itself.
pub unsafe fn syscall(number: libc::c_long, arguments: [usize; 6]) -> Result<usize, Errno> {
    // SAFETY: as the caller promises.
    let result = unsafe { arch::syscall(number as usize, arguments) };
    if arch::is_error(result) { Err(Errno::from_raw_os_error(-result as i32)) } else { Ok(result.cast_unsigned()) }
}

/// madvise.
///
/// # Errors
/// The kernel's.
///
/// # Safety
/// The advice must not change contents that are relied on.
pub unsafe fn advise(start: *mut u8, bytes: usize, advice: c_int) -> Result<(), Errno> {
    // SAFETY: as the caller promises.
    unsafe { syscall(libc::SYS_madvise, [start.expose_provenance(), bytes, advice as usize, 0, 0, 0]).map(drop) }
}

/// A fresh private or shared mapping without a file, readable and writable.
///
/// # Errors
/// The kernel's.
pub fn map(bytes: usize, flags: c_int) -> Result<*mut u8, Errno> {
    map_file(bytes, flags | libc::MAP_ANONYMOUS, -1)
}

/// A new mapping of a file's beginning, readable and writable.
///
/// # Errors
/// The kernel's.
pub fn map_file(bytes: usize, flags: c_int, file: RawFd) -> Result<*mut u8, Errno> {
    let access = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let arguments = [0, bytes, access, flags as usize, file as usize, 0];
    // SAFETY: without an address a mapping replaces nothing.
    unsafe { syscall(libc::SYS_mmap, arguments) }.map(core::ptr::with_exposed_provenance_mut)
}

/// [`map`] at a multiple of `align`, a power of two.
///
/// # Errors
/// The kernel's.
pub fn map_aligned(bytes: usize, align: usize, flags: c_int) -> Result<*mut u8, Errno> {
    if align <= page_size() {
        return map(bytes, flags);
    }
    let all = bytes.checked_add(align).ok_or(Errno::NOMEM)?;
    let first = map(all, flags)?;
    let before = first.addr().wrapping_neg() & (align - 1);
    let start = first.wrapping_add(before);
    // SAFETY: both ends are parts of the new mapping that nothing uses.
    unsafe {
        unmap(first, before);
        unmap(start.wrapping_add(bytes), align - before);
    }
    Ok(start)
}

/// Removes mappings.
///
/// # Safety
/// They must be the caller's.
pub unsafe fn unmap(start: *mut u8, bytes: usize) {
    if bytes > 0 {
        // The kernel joins neighbouring mappings. Removing one from their middle takes one mapping more, which the
        // limit on mappings may not allow. In that case the addresses stay, and the memory goes back.
        // SAFETY: as the caller promises.
        unsafe {
            if syscall(libc::SYS_munmap, [start.expose_provenance(), bytes, 0, 0, 0, 0]).is_err() {
                let _ = advise(start, bytes, libc::MADV_DONTNEED);
            }
        }
    }
}

/// Whether each OS page of the range is mapped; `each` gets whether it is resident.
///
/// # Errors
/// The kernel's: `NOMEM` if one is not mapped. `NOSYS` if a filter may end the process for mincore, which few programs
/// call.
pub fn resident(start: *const u8, bytes: usize, mut each: impl FnMut(bool)) -> Result<(), Errno> {
    let _asking = Asking::if_allowed().ok_or(Errno::NOSYS)?;
    match lines::has_no_filter() {
        Ok(true) => {}
        // Without /proc, or a free file descriptor.
        Err(_) if call::has_no_filter() => {}
        _ => return Err(Errno::NOSYS),
    }
    let page = page_size();
    let mut states = [0u8; 512];
    let mut at = 0;
    while at < bytes {
        let len = (bytes - at).min(states.len() * page);
        let to = states.as_mut_ptr().expose_provenance();
        let from = start.wrapping_add(at).expose_provenance();
        // SAFETY: the kernel writes one byte for each OS page, and there is room for as many.
        unsafe { syscall(libc::SYS_mincore, [from, len, to, 0, 0, 0])? };
        states[..len.div_ceil(page)].iter().for_each(|state| each(state & 1 != 0));
        at += len;
    }
    Ok(())
}

/// A C string that is put together on the stack.
#[derive(Clone, Copy, Debug)]
pub struct Text<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Text<N> {
    /// The text; `None` if it is longer than `N - 1` bytes or has a zero byte.
    pub fn new(text: fmt::Arguments<'_>) -> Option<Self> {
        let mut new = Text { bytes: [0; N], len: 0 };
        new.write_fmt(text).ok()?;
        new.as_c().to_bytes().len().eq(&new.len).then_some(new)
    }

    /// These bytes; `None` if they are too many or have a zero byte.
    pub fn of(bytes: &[u8]) -> Option<Self> {
        let mut new = Text { bytes: [0; N], len: bytes.len() };
        new.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        (new.len < N && !bytes.contains(&0)).then_some(new)
    }

    /// This text, a slash, and `name`; `None` if that is too long.
    pub fn joined(&self, name: &CStr) -> Option<Self> {
        let mut new = *self;
        for part in [b"/", name.to_bytes()] {
            new.bytes.get_mut(new.len..new.len + part.len())?.copy_from_slice(part);
            new.len += part.len();
        }
        (new.len < N).then_some(new)
    }

    /// All bytes, those behind the text are zero.
    pub fn bytes(&self) -> [u8; N] {
        self.bytes
    }

    /// As a C string.
    pub fn as_c(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or_default()
    }
}

impl<const N: usize> Write for Text<N> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let to = self.bytes.get_mut(self.len..self.len + text.len()).ok_or(fmt::Error)?;
        to.copy_from_slice(text.as_bytes());
        self.len += text.len();
        // The last byte stays zero.
        if self.len < N { Ok(()) } else { Err(fmt::Error) }
    }
}

/// Calls `read` with the beginning of a small file, such as those of /sys.
///
/// # Errors
/// It cannot be opened or read.
pub fn with_file<R>(path: &CStr, read: impl FnOnce(&[u8]) -> R) -> Result<R, Errno> {
    let file = rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut buffer = [0u8; 256];
    let len = rustix::io::retry_on_intr(|| rustix::io::read(&file, &mut buffer))?;
    Ok(read(&buffer[..len]))
}
