//! Option `counters`: the file that this process counts in (see `neap-counters` for the protocol).
//!
//! While a process counts, its heaps have no caches: so every call takes its slow path, where it is counted, and
//! the fast paths of processes that do not count pay nothing for it.

use core::ffi::CStr;
use core::sync::atomic::Ordering;
use neap_core::watch::Reason;
use neap_counters::Counters;
use neap_sys::files::Directory;
use neap_sys::global::NEAP;
use neap_sys::{call, filter, page, thread, watch};

static DIRECTORY: Directory = Directory::new();

/// Starts to count, in a new file in `directory`; false if there can be none.
pub fn start(directory: &CStr) -> bool {
    // SAFETY: called once, by the library's constructor, before main.
    if !unsafe { DIRECTORY.set(directory) } {
        return false;
    }
    let Some(page) = page::in_directory(&DIRECTORY) else { return false };
    publish(page);
    // SAFETY: the handler stays as long as the library.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    watch::set(Reason::Counts, true);
    true
}

/// A file of its own for the child. Where there can be none it does not count: the page that it has is its parent's.
unsafe extern "C" fn in_child() {
    NEAP.os.set_counters(None);
    // The program's own filter may end the process for the calls that make a file.
    if filter::is_forbidden() {
        return;
    }
    if let Some(page) = page::in_directory(&DIRECTORY) {
        publish(page);
    }
}

/// Shows the page: from now on the process counts in it.
fn publish(page: &'static Counters) {
    // In a child that was forked in a nested call nobody can say.
    let (blocks, bytes) = thread::in_call(|_| NEAP.live()).unwrap_or((0, 0));
    page.blocks_inherited.store(blocks as u64, Ordering::Relaxed);
    page.bytes_inherited.store(bytes as u64, Ordering::Relaxed);
    page::set_up(page, call::process(), true);
    NEAP.os.set_counters(Some(page));
}

/// The process ends: its gauges are to be as exact as its counts.
pub extern "C" fn finish() {
    if NEAP.os.counters().is_some() {
        thread::in_call(|_| NEAP.publish());
    }
}
