//! The system calls of `neap why` that the standard library lacks, in safe form, and the kernel's files.

use std::{fs, io};

/// The text of a file of the kernel. Names in it may be other bytes than UTF-8.
pub fn text(path: String) -> io::Result<String> {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

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
