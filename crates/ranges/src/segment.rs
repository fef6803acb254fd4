//! SysV segments in huge pages (SHM_HUGETLB). A segment is marked for removal as soon as it is attached, so it goes
//! with the last process that has it, however that ends; until then Linux lets other processes attach it by its number.

use crate::error::Error;
use crate::kernel;
use crate::settings;
use core::ptr;
use rustix::io::Errno;

/// A new segment: its number and address.
///
/// # Errors
/// - [`Error::NotAllowed`]: this takes CAP_IPC_LOCK, or the group of /proc/sys/vm/hugetlb_shm_group.
/// - [`Error::PoolShort`], [`Error::NoSuchPages`].
/// - [`Error::Limit`]: kernel.shmmax, kernel.shmall or kernel.shmmni.
pub fn make(bytes: usize, page_size: usize) -> Result<(i32, *mut u8), Error> {
    let size = page_size.trailing_zeros() << libc::MAP_HUGE_SHIFT;
    let flags = libc::IPC_CREAT as u32 | 0o600 | libc::SHM_HUGETLB as u32 | size;
    // SAFETY: a new segment, no memory of this process.
    let made =
        unsafe { kernel::syscall(libc::SYS_shmget, [libc::IPC_PRIVATE as usize, bytes, flags as usize, 0, 0, 0]) };
    let id = made.map_err(|error| match error {
        Errno::NOMEM if settings::available(page_size).is_some_and(|pages| pages >= bytes / page_size) => Error::Limit,
        Errno::NOMEM => Error::PoolShort,
        Errno::INVAL if settings::available(page_size).is_some() => Error::Limit,
        Errno::INVAL | Errno::NOENT | Errno::NOSYS => Error::NoSuchPages,
        Errno::NOSPC => Error::Limit,
        other => other.into(),
    })? as i32;
    let attached = attach(id);
    // SAFETY: this process's own segment; processes that have attached it keep it.
    unsafe {
        let _ = kernel::syscall(libc::SYS_shmctl, [id as usize, libc::IPC_RMID as usize, 0, 0, 0, 0]);
    }
    Ok((id, attached?))
}

/// Attaches a segment at an address of the kernel's choice.
///
/// # Errors
/// - [`Error::NotFound`]: the segment of this number is gone.
/// - [`Error::NotAllowed`], [`Error::NoMemory`].
pub fn attach(id: i32) -> Result<*mut u8, Error> {
    // SAFETY: without an address an attachment replaces nothing.
    match unsafe { kernel::syscall(libc::SYS_shmat, [id as usize, 0, 0, 0, 0, 0]) } {
        Ok(address) => Ok(ptr::with_exposed_provenance_mut(address)),
        Err(Errno::INVAL | Errno::IDRM) => Err(Error::NotFound),
        Err(error) => Err(error.into()),
    }
}

/// Bytes of a segment.
///
/// # Errors
/// As [`attach`].
pub fn bytes(id: i32) -> Result<usize, Error> {
    // SAFETY: plain numbers, for which zero is a value.
    let mut info: libc::shmid_ds = unsafe { core::mem::zeroed() };
    let arguments = [id as usize, libc::IPC_STAT as usize, (&raw mut info).expose_provenance(), 0, 0, 0];
    // SAFETY: the kernel writes the structure.
    match unsafe { kernel::syscall(libc::SYS_shmctl, arguments) } {
        Ok(_) => Ok(info.shm_segsz),
        Err(Errno::INVAL | Errno::IDRM) => Err(Error::NotFound),
        Err(error) => Err(error.into()),
    }
}
