//! Option `counters`: the file that this process counts in (see `neap-counters` for the protocol).
//!
//! While a process counts, its heaps have no caches: so every call takes its slow path, where it is counted, and
//! the fast paths of processes that do not count pay nothing for it.

use core::ffi::CStr;
use core::fmt::Write;
use core::sync::atomic::Ordering;
use neap_core::watch::Reason;
use neap_counters::{Counters, FILE_BYTES};
use neap_sys::global::NEAP;
use neap_sys::path::{Name, Path};
use neap_sys::{gauges, limits, status, thread, watch};
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};
use rustix::mm::{MapFlags, ProtFlags, mmap};

static mut DIRECTORY: Path = Path::new();

/// Starts to count, in a new file in `directory`; false if there can be none.
pub fn start(directory: &CStr) -> bool {
    // SAFETY: called once, by the library's constructor, before main.
    let path = unsafe { &mut *core::ptr::addr_of_mut!(DIRECTORY) };
    if path.append(directory.to_bytes()).is_err() {
        return false;
    }
    let Some(page) = new_page() else { return false };
    publish(page);
    // SAFETY: the handler stays as long as the library.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    watch::set(Reason::Counts, true);
    true
}

/// A file of its own for the child. Where there can be none it does not count: the page that it has is its parent's.
unsafe extern "C" fn in_child() {
    NEAP.os.forget_counters();
    // The program's own filter may end the process for the calls that make a file.
    if status::is_forbidden() {
        return;
    }
    if let Some(page) = new_page() {
        publish(page);
    }
}

/// Shows the page: from now on the process counts in it.
fn publish(page: &'static Counters) {
    // In a child that was forked in a nested call nobody can say.
    let (blocks, bytes) = thread::in_call(|_| NEAP.live()).unwrap_or((0, 0));
    page.blocks_inherited.store(blocks as u64, Ordering::Relaxed);
    page.bytes_inherited.store(bytes as u64, Ordering::Relaxed);
    gauges::set_up(page, status::process(), true);
    NEAP.os.set_counters(page);
}

/// The process ends: its gauges are to be as exact as its counts.
pub extern "C" fn finish() {
    if NEAP.os.counters().is_some() {
        thread::in_call(|_| NEAP.publish());
    }
}

fn new_page() -> Option<&'static Counters> {
    if limits::is_too_long(FILE_BYTES) {
        return None;
    }
    // SAFETY: written by `start` alone, before.
    let directory = unsafe { (*core::ptr::addr_of!(DIRECTORY)).open_directory()? };
    let pid = status::process();
    for n in 0..1000 {
        let mut name = Name::new();
        write!(name, "{pid}.{n}").ok()?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(&directory, name.c_str()?, flags, Mode::RUSR | Mode::WUSR) {
            Ok(file) => file,
            Err(Errno::EXIST) => continue,
            Err(_) => return None,
        };
        let page = map(&file);
        if page.is_none() {
            let _ = rustix::fs::unlinkat(&directory, name.c_str()?, AtFlags::empty());
        }
        return page;
    }
    None
}

/// What a new file holds.
static ZEROS: [u8; FILE_BYTES] = [0; FILE_BYTES];

/// Makes a new file a page, and maps it.
fn map(file: &OwnedFd) -> Option<&'static Counters> {
    // Where the disk is full this fails, instead of the first store to the mapping with SIGBUS. Not fallocate: a filter that
    // the program was started with may end the process for that.
    if retry_on_intr(|| rustix::io::write(file, &ZEROS)) != Ok(FILE_BYTES) {
        return None;
    }
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh shared mapping of the whole file.
    let p = unsafe { mmap(core::ptr::null_mut(), FILE_BYTES, access, MapFlags::SHARED, file, 0).ok()? };
    // SAFETY: zeroed and never unmapped; all fields are atomic.
    Some(unsafe { &*p.cast::<Counters>() })
}
