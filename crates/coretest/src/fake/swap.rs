//! A simulated swap device.
//!
//! To swap a run of pages out, the device moves it (mremap) to another address, so that the kernel holds no memory at
//! its own address, and registers its address with userfaultfd. A thread that accesses the run waits until the thread
//! of the device has moved it back. So every access sees the contents, and only the page table shows that the run was
//! swapped out. Each step is one system call, so no write of another thread is lost.
//!
//! Lock order: the fake's model, then [`Swapped`]. A thread that holds the lock of the device must not access memory of
//! the core that may be swapped out: the device could not bring it in.

use super::kernel::mmap;
use super::pagemap::HOST_PAGE;
use core::ffi::c_void;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

/// `struct uffdio_api` of linux/userfaultfd.h.
#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_range`.
#[repr(C)]
struct Range {
    start: u64,
    len: u64,
}

/// `struct uffdio_register`.
#[repr(C)]
struct Register {
    range: Range,
    mode: u64,
    ioctls: u64,
}

/// Bytes of `struct uffd_msg`; its first byte is the event, the eight from 16 on are the address of a fault.
const MESSAGE: usize = 32;
const EVENT_PAGEFAULT: u8 = 0x12;
const API_VERSION: u64 = 0xAA;
const MODE_MISSING: u64 = 1;
/// `UFFD_USER_MODE_ONLY`: permitted for processes without privilege.
const USER_MODE_ONLY: libc::c_int = 1;

/// `_IOWR(0xAA, number, T)`.
const fn read_write<T>(number: u64) -> u64 {
    3 << 30 | (size_of::<T>() as u64) << 16 | 0xAA << 8 | number
}

/// `_IOR(0xAA, number, T)`.
const fn read<T>(number: u64) -> u64 {
    2 << 30 | (size_of::<T>() as u64) << 16 | 0xAA << 8 | number
}

const UFFDIO_API: u64 = read_write::<Api>(0x3F);
const UFFDIO_REGISTER: u64 = read_write::<Register>(0);
const UFFDIO_UNREGISTER: u64 = read::<Range>(1);
const UFFDIO_WAKE: u64 = read::<Range>(2);

/// A run of pages that is swapped out.
#[derive(Clone, Copy, Debug)]
struct Run {
    len: usize,
    /// The address of its contents meanwhile.
    aside: usize,
}

/// The state that the device's thread shares with the fake.
#[derive(Debug)]
struct Shared {
    faults: File,
    /// Runs by start; they do not overlap.
    runs: Mutex<BTreeMap<usize, Run>>,
}

/// The device.
#[derive(Debug)]
pub(super) struct Swap {
    shared: Arc<Shared>,
    stop: File,
    thread: Option<JoinHandle<()>>,
}

/// The locked device.
pub(super) struct Swapped<'a> {
    faults: &'a File,
    runs: MutexGuard<'a, BTreeMap<usize, Run>>,
}

fn pointer(address: usize) -> *mut c_void {
    core::ptr::with_exposed_provenance_mut(address)
}

/// Makes an ioctl of userfaultfd; false if the kernel refuses.
fn ioctl<T>(faults: &File, request: u64, mut arg: T) -> bool {
    // SAFETY: the callers pair each request with its argument.
    unsafe { libc::ioctl(faults.as_raw_fd(), request as _, &raw mut arg) == 0 }
}

fn range(from: usize, to: usize) -> Range {
    Range { start: from as u64, len: (to - from) as u64 }
}

/// Opens userfaultfd; `None` where the process may not.
fn userfaultfd() -> Option<File> {
    let open = |flags: libc::c_int| {
        // SAFETY: userfaultfd touches no memory.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags | libc::O_CLOEXEC | libc::O_NONBLOCK) };
        // SAFETY: a new descriptor, which nothing else uses.
        (fd >= 0).then(|| unsafe { File::from_raw_fd(fd as libc::c_int) })
    };
    let faults = open(0).or_else(|| open(USER_MODE_ONLY))?;
    ioctl(&faults, UFFDIO_API, Api { api: API_VERSION, features: 0, ioctls: 0 }).then_some(faults)
}

impl Swap {
    /// Starts a device and its thread; `None` where the process may not use userfaultfd.
    pub(super) fn start() -> Option<Swap> {
        let faults = userfaultfd()?;
        // SAFETY: eventfd touches no memory.
        let stop = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        assert!(stop >= 0, "eventfd");
        // SAFETY: a new descriptor, which nothing else uses.
        let stop = unsafe { File::from_raw_fd(stop) };
        let shared = Arc::new(Shared { faults, runs: Mutex::new(BTreeMap::new()) });
        let (server, end) = (Arc::clone(&shared), stop.as_raw_fd());
        // The descriptor `end` lives until the thread has been joined.
        let thread = std::thread::Builder::new().name("fake swap".into()).spawn(move || server.serve(end));
        Some(Swap { shared, stop, thread: Some(thread.expect("a thread for the swap device")) })
    }

    pub(super) fn lock(&self) -> Swapped<'_> {
        self.shared.lock()
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        self.stop.write_all(&1_u64.to_ne_bytes()).expect("waking the swap device");
        if let Some(thread) = self.thread.take() {
            // The thread panics only if the test has failed already.
            let _ = thread.join();
        }
        for run in self.lock().runs.values() {
            // SAFETY: the mapping at `aside` is the device's.
            unsafe { libc::munmap(pointer(run.aside), run.len) };
        }
    }
}

impl Shared {
    fn lock(&self) -> Swapped<'_> {
        let runs = self.runs.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        Swapped { faults: &self.faults, runs }
    }

    /// Swaps in the runs that threads access, until `stop` can be read.
    fn serve(&self, stop: libc::c_int) {
        let mut messages = [0; MESSAGE * 16];
        loop {
            let wait = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            let mut fds = [wait(self.faults.as_raw_fd()), wait(stop)];
            // SAFETY: both descriptors are open as long as the thread runs.
            unsafe { libc::poll(fds.as_mut_ptr(), 2, -1) };
            if fds[1].revents != 0 {
                return;
            }
            let Ok(n) = (&self.faults).read(&mut messages) else { continue };
            for message in messages[..n].chunks_exact(MESSAGE).filter(|m| m[0] == EVENT_PAGEFAULT) {
                let address = u64::from_ne_bytes(message[16..24].try_into().expect("eight bytes"));
                self.lock().fault(address as usize);
            }
        }
    }
}

impl Swapped<'_> {
    /// Swaps out the OS pages `[from, to)`. False if the kernel refuses, as it does unless they are one mapping.
    ///
    /// # Safety
    /// The range must be readable and writable, and none of it swapped out.
    pub(super) unsafe fn move_out(&mut self, from: usize, to: usize) -> bool {
        let len = to - from;
        let Some(aside) = mmap(0, len, libc::PROT_NONE, 0) else { return false };
        let register = Register { range: range(from, to), mode: MODE_MISSING, ioctls: 0 };
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
        // SAFETY: the range is the caller's, and `aside` was mapped for it. An access brings the contents back, by
        // `runs`.
        let moved = ioctl(self.faults, UFFDIO_REGISTER, register)
            && unsafe { libc::mremap(pointer(from), len, len, flags, aside) } != libc::MAP_FAILED;
        if moved {
            self.runs.insert(from, Run { len, aside: aside.expose_provenance() });
        } else {
            // `aside` may be unmapped now. It is not reused, which costs only address space.
            self.release(from, to);
        }
        moved
    }

    /// Number of runs that are swapped out.
    pub(super) fn count(&self) -> usize {
        self.runs.len()
    }

    /// Swaps in all runs that overlap the range.
    pub(super) fn bring_in(&mut self, from: usize, to: usize) {
        while let Some((start, run)) = self.first(from, to) {
            let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
            // SAFETY: the mapping at `aside` is the device's; at `start` lies the empty mapping that the run left.
            let p = unsafe { libc::mremap(pointer(run.aside), run.len, run.len, flags, pointer(start)) };
            if p == libc::MAP_FAILED {
                // A thread that accesses the run would wait for ever.
                eprintln!("the fake cannot swap in {start:#x}: {}", std::io::Error::last_os_error());
                std::process::abort();
            }
            self.runs.remove(&start);
            ioctl(self.faults, UFFDIO_WAKE, range(start, start + run.len));
        }
    }

    /// Drops the parts of runs in the range: they read as zero until the caller maps something else there.
    pub(super) fn forget(&mut self, from: usize, to: usize) {
        while let Some((start, run)) = self.first(from, to) {
            let end = start + run.len;
            let (a, b) = (start.max(from), end.min(to));
            self.runs.remove(&start);
            if start < a {
                self.runs.insert(start, Run { len: a - start, aside: run.aside });
            }
            if b < end {
                self.runs.insert(b, Run { len: end - b, aside: run.aside + (b - start) });
            }
            // SAFETY: the mapping at `aside` is the device's.
            unsafe { libc::munmap(pointer(run.aside + (a - start)), b - a) };
            self.release(a, b);
        }
    }

    /// Calls `visit` for each part of the range that is swapped out, in order: start, end, and address of the contents.
    pub(super) fn each(&self, from: usize, to: usize, mut visit: impl FnMut(usize, usize, usize)) {
        let mut at = from;
        while at < to
            && let Some((start, run)) = self.first(at, to)
        {
            let a = start.max(from);
            visit(a, (start + run.len).min(to), run.aside + (a - start));
            at = start + run.len;
        }
    }

    /// The first run that overlaps the range.
    fn first(&self, from: usize, to: usize) -> Option<(usize, Run)> {
        let before = self.runs.range(..from).next_back().filter(|(start, run)| *start + run.len > from);
        let (&start, &run) = before.or_else(|| self.runs.range(from..to).next())?;
        Some((start, run))
    }

    /// Lets the kernel serve faults in the range itself again.
    fn release(&self, from: usize, to: usize) {
        // The kernel refuses where something else is mapped by now.
        ioctl(self.faults, UFFDIO_UNREGISTER, range(from, to));
        ioctl(self.faults, UFFDIO_WAKE, range(from, to));
    }

    /// Handles an access to this address.
    fn fault(&mut self, address: usize) {
        let page = address / HOST_PAGE * HOST_PAGE;
        if self.first(page, page + HOST_PAGE).is_some() {
            self.bring_in(page, page + HOST_PAGE);
        } else {
            // The run was swapped in, or dropped, since the fault.
            self.release(page, page + HOST_PAGE);
        }
    }
}
