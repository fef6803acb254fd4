//! The system calls of `neap why` that the standard library lacks, in safe form.

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::ptr;

/// Copies memory of another process, without stopping it; returns the number of bytes.
pub fn read_memory(pid: u32, address: u64, into: &mut [u8]) -> io::Result<usize> {
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let remote = libc::iovec { iov_base: std::ptr::without_provenance_mut(address as usize), iov_len: into.len() };
    let pid = libc::pid_t::try_from(pid).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
    // SAFETY: the local vector is the buffer, with its length, and writable; the remote one is an address of the other
    // process, which the kernel checks.
    let got = unsafe { libc::process_vm_readv(pid, &local, 1, &remote, 1, 0) };
    usize::try_from(got).map_err(|_| io::Error::last_os_error())
}

/// Copies `length` bytes from each address of another process, one after the other in `into`. What cannot be read keeps
/// its bytes there.
pub fn read_each(pid: u32, addresses: &[u64], length: usize, into: &mut [u8]) {
    let Ok(pid) = libc::pid_t::try_from(pid) else { return };
    let remote =
        |address: &u64| libc::iovec { iov_base: ptr::without_provenance_mut(*address as usize), iov_len: length };
    let remote: Vec<libc::iovec> = addresses.iter().map(remote).collect();
    let mut at = 0;
    while at < remote.len() {
        let some = &remote[at..remote.len().min(at + libc::UIO_MAXIOV as usize)];
        let Some(place) = into.get_mut(at * length..(at + some.len()) * length) else { return };
        let local = libc::iovec { iov_base: place.as_mut_ptr().cast(), iov_len: place.len() };
        // SAFETY: the local vector is a part of the buffer, with its length, and writable; the remote ones are addresses
        // of the other process, which the kernel checks.
        let got = unsafe { libc::process_vm_readv(pid, &local, 1, some.as_ptr(), some.len() as libc::c_ulong, 0) };
        let got = usize::try_from(got).unwrap_or(0) / length.max(1);
        // The kernel ends at the first part that it cannot read.
        at += if got < some.len() { got + 1 } else { got };
    }
}

/// `struct procmap_query` of linux/fs.h (Linux 6.11).
#[repr(C)]
#[derive(Default)]
struct MappingQuery {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    mapping_flags: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    device: [u32; 2],
    name_size: u32,
    build_id_size: u32,
    name: u64,
    build_id: u64,
}

/// The size of the pages of the mapping at `address`; `maps` is `/proc/PID/maps` of its process.
pub fn page_size_of(maps: &File, address: u64) -> io::Result<u64> {
    /// `_IOWR('f', 17, struct procmap_query)`.
    const PROCMAP_QUERY: libc::c_ulong = 0xc068_6611;
    const _: () = assert!(size_of::<MappingQuery>() == 0x68, "the size is a part of the request's number");
    let mut query = MappingQuery { size: size_of::<MappingQuery>() as u64, address, ..MappingQuery::default() };
    // SAFETY: the argument is the kernel's structure, as large as it says; it asks for no name and no build id.
    let done = unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY as _, &mut query) };
    if done == 0 { Ok(query.page_size) } else { Err(io::Error::last_os_error()) }
}

/// Whether two processes share their memory (`KCMP_VM`); false if the kernel does not say.
pub fn have_same_memory(one: u32, other: u32) -> bool {
    const KCMP_VM: libc::c_long = 1;
    // SAFETY: the call takes numbers only.
    unsafe { libc::syscall(libc::SYS_kcmp, libc::c_long::from(one), libc::c_long::from(other), KCMP_VM, 0, 0) == 0 }
}

/// Bytes of an OS page.
pub fn page_size() -> u64 {
    neap_launch::sys::page_size() as u64
}

/// A file or a System V segment that is mapped to be looked at; unmapped when dropped.
pub struct Mapped {
    at: *mut c_void,
    length: usize,
    is_segment: bool,
}

impl Mapped {
    /// A part of a file, read-only.
    pub fn file(file: &File, offset: u64, length: u64) -> io::Result<Self> {
        let (length, offset) = (length as usize, offset as libc::off_t);
        // SAFETY: a new mapping, at a place that the kernel chooses; its memory is not read through references.
        let at =
            unsafe { libc::mmap(ptr::null_mut(), length, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), offset) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Mapped { at, length, is_segment: false })
    }

    /// A segment of this thread's namespace, read-only.
    pub fn segment(id: i32, length: u64) -> io::Result<Self> {
        // SAFETY: as above.
        let at = unsafe { libc::shmat(id, ptr::null(), libc::SHM_RDONLY) };
        if at.addr() == usize::MAX {
            return Err(io::Error::last_os_error());
        }
        Ok(Mapped { at, length: length as usize, is_segment: true })
    }

    /// Its address.
    pub fn address(&self) -> u64 {
        self.at.addr() as u64
    }

    /// For each OS page, whether it is in memory.
    pub fn resident(&self) -> io::Result<Vec<bool>> {
        let mut bytes = vec![0u8; self.length.div_ceil(page_size() as usize)];
        // SAFETY: the range is this mapping; the kernel writes one byte for each OS page of it.
        let done = unsafe { libc::mincore(self.at, self.length, bytes.as_mut_ptr()) };
        if done != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(bytes.into_iter().map(|byte| byte & 1 == 1).collect())
    }

    /// Enters OS pages into this process's page table. A file that was cut meanwhile is an error, not a signal.
    pub fn populate(&self, offset: u64, length: u64) -> io::Result<()> {
        // SAFETY: the range is in this mapping; the call changes no contents.
        let done = unsafe {
            libc::madvise(self.at.wrapping_byte_add(offset as usize), length as usize, libc::MADV_POPULATE_READ)
        };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `mmap` or `shmat`, and ends here.
        unsafe {
            match self.is_segment {
                true => libc::shmdt(self.at),
                false => libc::munmap(self.at, self.length),
            }
        };
    }
}

/// The first offset from `at` on at which a file has contents.
pub fn data_from(file: &File, at: u64) -> Option<u64> {
    // SAFETY: the call takes numbers only.
    let found = unsafe { libc::lseek(file.as_raw_fd(), at as libc::off_t, libc::SEEK_DATA) };
    u64::try_from(found).ok()
}

/// `f_type` of tmpfs, in include/uapi/linux/magic.h.
const TMPFS: u64 = 0x0102_1994;

/// Whether a path leads to memory (tmpfs, memfd, System V), not to a disk.
pub fn is_in_memory(path: &Path) -> bool {
    use std::os::unix::ffi::OsStrExt;
    let Ok(path) = std::ffi::CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: all bytes zero are a valid value of the structure.
    let mut of: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path ends with a zero; the kernel fills the structure.
    let done = unsafe { libc::statfs(path.as_ptr(), &mut of) };
    // Its type differs between systems and C libraries.
    done == 0 && of.f_type as u64 & 0xffff_ffff == TMPFS
}

/// Brings this thread into a namespace of System V segments.
pub fn enter_ipc(namespace: &File) -> io::Result<()> {
    // SAFETY: the call takes numbers only, and applies to this thread alone.
    let done = unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWIPC) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Bytes that wait in a pipe of another process.
pub fn in_pipe(process: &OwnedFd, number: i32) -> io::Result<u64> {
    // SAFETY: the call takes numbers only.
    let copy = unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), number, 0) };
    if copy < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor, which belongs to no other code.
    let copy = unsafe { OwnedFd::from_raw_fd(copy as i32) };
    let mut bytes: libc::c_int = 0;
    // SAFETY: the request writes a number.
    let done = unsafe { libc::ioctl(copy.as_raw_fd(), libc::FIONREAD, &mut bytes) };
    if done == 0 { Ok(bytes.max(0) as u64) } else { Err(io::Error::last_os_error()) }
}

/// A handle of a process.
pub fn handle(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: the call takes numbers only.
    let made = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if made < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor, which belongs to no other code.
    Ok(unsafe { OwnedFd::from_raw_fd(made as i32) })
}
