//! The storage of a virtual thread.

use neap_core::Heap;
use neap_core::heap::ThreadSlot;
use neap_core::os::Thread;

const PAGE: usize = 4096;

/// A virtual thread's storage, which is unmapped when the thread ends.
#[derive(Debug)]
pub struct Life {
    slot: *mut ThreadSlot,
    /// `busy` as the thread itself sees it.
    busy: u32,
    /// Whether it holds a store that others do not see yet.
    buffered: bool,
    /// The thread; `None` if the system does not report whether it has ended.
    pub thread: Option<Thread>,
}

impl Life {
    /// A thread that has made no call yet.
    pub fn new(thread: Option<Thread>) -> Life {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh mapping.
        let p =
            unsafe { libc::mmap(core::ptr::null_mut(), PAGE, access, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0) };
        assert_ne!(p, libc::MAP_FAILED, "memory for a slot");
        let slot = p.cast::<ThreadSlot>();
        // SAFETY: the mapping is new.
        unsafe { slot.write(ThreadSlot::new(Heap::none())) };
        Life { slot, busy: ThreadSlot::IDLE, buffered: false, thread }
    }

    /// The thread slot.
    pub fn slot(&self) -> *mut ThreadSlot {
        self.slot
    }

    /// `busy` as the thread itself sees it.
    pub fn busy(&self) -> u32 {
        self.busy
    }

    /// Makes the thread's stores visible to all.
    pub fn flush(&mut self) {
        if core::mem::replace(&mut self.buffered, false) {
            // SAFETY: the thread's own thread slot.
            unsafe { (*self.slot).busy.as_ptr().write(self.busy) };
        }
    }

    /// The thread stores `busy`; others see it at the next flush.
    pub fn set_busy(&mut self, busy: u32) {
        self.busy = busy;
        self.buffered = true;
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        // SAFETY: the thread has ended; what uses its thread slot from now on is wrong, and is to be seen.
        unsafe { libc::munmap(self.slot.cast(), PAGE) };
    }
}
