//! Option `counters`: the file in which this process counts (see `neap-counters` for the protocol).
//!
//! While a process counts, its heaps have no caches. So every call takes its slow path, which counts it, and the fast
//! paths of processes that do not count have no code for it.

use core::ffi::CStr;
use core::sync::atomic::Ordering;
use neap_control::options::COUNTERS;
use neap_core::watch::Reason;
use neap_counters::Counters;
use neap_sys::global::NEAP;
use neap_sys::{call, filter, musl, page, thread, watch};

/// Starts to count, in a new file in `directory`; false if there can be none.
pub fn start(directory: &CStr) -> bool {
    // SAFETY: called once, by the library's constructor, before the process has threads.
    if !unsafe { COUNTERS.set(directory) } {
        return false;
    }
    let Some(page) = page::in_directory(&COUNTERS) else { return false };
    // The loader has had blocks before, as that of musl does: this process has allocated them.
    let (blocks, bytes) = live();
    page.blocks_allocated.store(blocks, Ordering::Relaxed);
    page.bytes_allocated.store(bytes, Ordering::Relaxed);
    publish(page);
    // SAFETY: the function stays as long as the library.
    unsafe { musl::register_fork_handlers(None, None, Some(in_child)) };
    watch::set(Reason::Counts, true);
    true
}

/// Makes a file for the child. Without one the child does not count, as its page is the parent's.
unsafe extern "C" fn in_child() {
    NEAP.os.set_counters(None);
    // The program's own filter may end the process for the calls that make a file.
    if filter::is_forbidden() {
        return;
    }
    if let Some(page) = page::in_directory(&COUNTERS) {
        let (blocks, bytes) = live();
        page.blocks_inherited.store(blocks, Ordering::Relaxed);
        page.bytes_inherited.store(bytes, Ordering::Relaxed);
        publish(page);
    }
}

/// Live blocks and bytes: unknown in a child that was forked in a reentrant call.
fn live() -> (u64, u64) {
    let (blocks, bytes) = thread::in_call(|_| NEAP.live()).unwrap_or((0, 0));
    (blocks as u64, bytes as u64)
}

/// Shows the page to readers. From now on the process counts in it.
fn publish(page: &'static Counters) {
    page::set_up(page, call::process(), true);
    NEAP.os.set_counters(Some(page));
}

/// Publishes the gauges, so that at the end of the process they are as exact as its counts.
pub fn finish() {
    if NEAP.os.counters().is_some() {
        thread::in_call(|_| NEAP.publish());
    }
}
