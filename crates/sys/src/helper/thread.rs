//! How does Linux run the helper thread, which gives free memory back while the program does something else, or nothing?
//!
//! The C library does not know the thread: it may be started from within any call (also under the C library's own locks,
//! where pthread_create would wait for ever), and does not count as a thread of the program (the process ends when the last
//! of those does, and stdio stays as cheap as with one thread). All signals are blocked in it. It has a stack and thread
//! storage of its own (`Place`): what it calls of the C library, the copying of memory, and `abort` for a program whose heap
//! is damaged, finds its own errno, stack canary and thread record there, and `arch::enter` a slot that is in a call. It calls
//! nothing that takes a lock of the C library, uses other thread storage, or may be replaced by a library that does.
//!
//! The kernel does count it: `program.rs` says what follows from that. When the process changes its user, its groups or its
//! capabilities, the helper gives back what waits and ends within a tenth of a second; the next one is started by a thread
//! that has the new ones.

use crate::arch;
use crate::helper::rights::{self, Rights};
use crate::system::call::{self, Plain, plain};
use crate::system::filter::{self, Filter};
use crate::system::map::{self, READ_WRITE};
use crate::system::{clock, lines};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use neap_core::heap::{Heap, ThreadSlot};
use neap_core::helper::Leave;
use neap_core::os::Onward;
use rustix::fd::RawFd;
use rustix::mm::{self, MapFlags, MprotectFlags};

/// What the thread runs, from its start (0) or from a last step that failed (1) to the next last step.
pub type Entry = extern "C" fn(again: u32) -> Leave;

/// Bytes of the helper's stack. It touches three OS pages of it.
const STACK: usize = 64 * 1024;
/// Most bytes of thread storage below the thread pointer: more than a program can have in practice. Only the OS pages of
/// errno and the slot are touched.
const MOST_STORAGE: usize = 64 << 20;

/// Helpers that may hold a lock: 0 or 1. Copied to the child of a fork.
static ALIVE: AtomicU32 = AtomicU32::new(0);
/// Whether a filter watches the thread that started the helper, and so the helper.
static FILTERED: AtomicBool = AtomicBool::new(false);

/// Where the helper has its stack and its thread storage: mapped once, from low to high addresses an OS page without
/// access, the stack, storage below the thread pointer, the thread record. Written and used by the one thread that
/// starts the helper; no helper uses it then (`neap_core::helper::Leave`).
#[derive(Clone, Copy)]
struct Place {
    stack_end: *mut u8,
    pointer: *mut u8,
}

static STACK_END: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
static POINTER: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());

impl Place {
    fn get() -> Option<Place> {
        // Relaxed: the compare-exchange that made this the thread which starts the helper orders it.
        let place = Place { stack_end: STACK_END.load(Ordering::Relaxed), pointer: POINTER.load(Ordering::Relaxed) };
        if place.pointer.is_null() { Self::make() } else { Some(place) }
    }

    #[cold]
    fn make() -> Option<Place> {
        // Both are looked up once, by a function that the helper could not call where a library replaces it.
        let page = call::page_size();
        let _ = clock::read(libc::CLOCK_MONOTONIC);
        let whole = |bytes: usize| bytes.next_multiple_of(page);
        let record = whole(arch::THREAD_RECORD);
        let len = page + STACK + whole(storage_below()?) + record;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::STACK;
        let p = map::fresh(0, len, READ_WRITE, flags)?;
        // SAFETY: the mapping is new. It goes if its first OS page cannot be made inaccessible.
        unsafe {
            if mm::mprotect(p.cast(), page, MprotectFlags::empty()).is_err() {
                let _ = mm::munmap(p.cast(), len);
                return None;
            }
        }
        // A little below the end, for tools that look where the stack pointer points.
        let place = Place { stack_end: p.wrapping_add(page + STACK - 64), pointer: p.wrapping_add(len - record) };
        STACK_END.store(place.stack_end, Ordering::Relaxed);
        POINTER.store(place.pointer, Ordering::Relaxed);
        Some(place)
    }

    /// Has the thread storage look as that of a thread which is in a call of neap's.
    fn prepare(self) {
        let slot = arch::slot().addr().wrapping_sub(arch::thread_pointer());
        // SAFETY: the mapping has room for both (`storage_below`), and no thread uses it now.
        unsafe {
            arch::write_thread_record(self.pointer);
            let slot = self.pointer.wrapping_add(slot).cast::<ThreadSlot>();
            (*slot).heap.store(Heap::none(), Ordering::Relaxed);
            (*slot).busy.store(0, Ordering::Relaxed);
        }
    }
}

/// Bytes below the thread pointer that hold errno and the slot; `None` where they do not lie there.
fn storage_below() -> Option<usize> {
    let pointer = arch::thread_pointer();
    // SAFETY: the address of errno of the calling thread.
    let errno = unsafe { libc::__errno_location() }.addr();
    let below = |at: usize| pointer.checked_sub(at).filter(|&bytes| bytes >= size_of::<ThreadSlot>());
    Some(below(errno)?.max(below(arch::slot().addr())?)).filter(|&bytes| bytes <= MOST_STORAGE)
}

/// See `Os::start_helper`. The kernel writes the thread's number to `tid`. The helper inherits that all signals are blocked.
#[cold]
pub fn start(tid: &AtomicU32, entry: Entry) -> bool {
    if filter::is_hostile() {
        return false;
    }
    let Some(place) = Place::get() else { return false };
    place.prepare();
    // Relaxed: the thread that is started below reads it.
    FILTERED.store(filter::filter_for_sure() != Filter::No, Ordering::Relaxed);
    if !rights::note() {
        return false;
    }
    let flags = libc::CLONE_VM
        | libc::CLONE_FS
        | libc::CLONE_FILES
        | libc::CLONE_SIGHAND
        | libc::CLONE_THREAD
        | libc::CLONE_SYSVSEM
        | libc::CLONE_SETTLS
        | libc::CLONE_PARENT_SETTID;
    // Relaxed, here and below: read in the child of a fork, which has one thread.
    ALIVE.fetch_add(1, Ordering::Relaxed);
    // SAFETY: stack and storage are no other thread's; the entry uses no other storage, and ends by its last step.
    let started = unsafe { arch::neap_clone(flags as usize, place.stack_end, tid.as_ptr(), place.pointer, entry) } > 0;
    if !started {
        ALIVE.fetch_sub(1, Ordering::Relaxed);
    }
    started
}

/// The helper's life, from its start or, `again`, from a last step that failed, as `help` leads it.
#[cold]
pub fn live(again: bool, help: impl FnOnce() -> Leave) -> Leave {
    if again {
        // It was taken back: it may take locks again.
        ALIVE.fetch_add(1, Ordering::Relaxed);
    } else {
        rights::note_files(!FILTERED.load(Ordering::Relaxed) && leave_files());
    }
    let leave = help();
    ALIVE.fetch_sub(1, Ordering::Relaxed);
    leave
}

/// The number of the program's standard error in the table of files of the calling thread, which ends the process.
pub fn standard_error() -> RawFd {
    const STANDARD_ERROR: usize = libc::STDERR_FILENO as usize;
    if is_helper() && rights::has_own_files() {
        // Puts two files into the helper's own table.
        let program = plain(Plain::PidfdOpen, [call::process() as usize, 0]);
        let copy = plain(Plain::PidfdGetfd, [program as usize, STANDARD_ERROR, 0]);
        if !arch::is_error(copy) {
            return copy as RawFd;
        }
    }
    STANDARD_ERROR as RawFd
}

/// Whether the calling thread is the helper.
pub fn is_helper() -> bool {
    // Relaxed: the helper's own place was stored before it was started.
    arch::thread_pointer() == POINTER.load(Ordering::Relaxed).addr()
}

/// In the child of a fork, where the helper is not. Whether it was there, or about to be, in the parent.
#[cold]
pub fn forked() -> bool {
    ALIVE.swap(0, Ordering::Relaxed) != 0
}

/// See `Os::onward`.
pub fn onward() -> Onward {
    if filter::is_forbidden() {
        return Onward::End;
    }
    match rights::look() {
        Rights::Same => Onward::Go,
        Rights::OneIsLeft => end_process(),
        Rights::Changed if filter::is_hostile() => Onward::End,
        // The program may be idle from now on.
        Rights::Changed => Onward::Finish,
    }
}

/// The helper is all that is left of the process, whose first thread has ended alone (`SYS_exit`, as the function of
/// `clone` does). The status of a process is that of its last thread, so it is handed on.
#[cold]
fn end_process() -> ! {
    let code = usize::from(lines::status_of_first().unwrap_or(0));
    loop {
        plain(Plain::ExitGroup, [code]);
    }
}

/// Gives the helper a table of files of its own, an empty one. In the program's table a file of ours would be in the way for
/// some microseconds: another number than expected, or closed by us when the program has put one of its own in its place. And
/// as long as the table is shared, each call on a file is dearer for the program. False where it cannot be.
fn leave_files() -> bool {
    /// CLOSE_RANGE_UNSHARE of include/uapi/linux/close_range.h.
    const UNSHARE: usize = 1 << 1;
    // The table is shared with the thread that started this one, so what is closed is closed in a copy, which the kernel does
    // not even make.
    plain(Plain::CloseRange, [0, u32::MAX as usize, UNSHARE]) == 0
}
