//! The helper thread, which gives free memory back while the program is busy or idle.
//!
//! The C library does not know this thread. So neap can start it within any call, even under the C library's own locks,
//! where pthread_create would wait for ever. And it does not count as a thread of the program: the process ends with
//! the last of its own threads, and stdio stays as cheap as with one thread. All signals are blocked in the helper. It
//! has its own stack and thread storage (`Place`). There the functions of the C library that it calls (copying of
//! memory, and `abort` for a program whose heap is damaged) find an errno, a stack canary and a thread record, and
//! `arch::enter` finds a slot that is in a call. It calls no function that takes a lock of the C library, uses other
//! thread storage, or may be replaced by a library that does.
//!
//! The kernel does count it as a thread; `program.rs` handles what follows from that. When the process changes its
//! user, its groups or its capabilities, the helper ends: before the functions that `libneap.so` has for that, otherwise
//! within a tenth of a second. The next helper is started by a thread that has the new rights.

use crate::arch;
use crate::helper::pressure;
use crate::helper::rights::{self, Rights};
use crate::helper::scheduling;
use crate::system::call::READ_WRITE;
use crate::system::call::{self, Plain, plain};
use crate::system::filter::{self, Filter};
use crate::system::{clock, lines};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use neap_core::heap::{Heap, ThreadSlot};
use neap_core::helper::Leave;
use neap_core::os::Onward;
use rustix::fd::RawFd;
use rustix::mm::{self, MapFlags, MprotectFlags};

/// The function of the thread. It is called at the start (0), and again each time that the last step fails (1). It
/// returns the next last step.
pub type Entry = extern "C" fn(again: u32) -> Leave;

/// Bytes of the helper's stack, of which it touches three OS pages.
const STACK: usize = 64 * 1024;
/// Most bytes of thread storage on a side of the thread pointer: more than any real program has. Only the OS pages of
/// errno and the slot are touched.
const MOST_STORAGE: usize = 64 << 20;

/// Number of helpers that may hold a lock: 0 or 1. The child of a fork reads its copy, to learn whether there was one.
static ALIVE: AtomicU32 = AtomicU32::new(0);
/// Whether a filter watches the thread that started the helper, and so the helper.
static FILTERED: AtomicBool = AtomicBool::new(false);

/// The helper's stack and thread storage. One mapping, made once, has from low to high addresses: an OS page without
/// access, the stack, storage and thread record on both sides of the thread pointer. Only the one thread that starts
/// the helper writes to it, and no helper uses it then (`neap_core::helper::Leave`).
#[derive(Clone, Copy)]
struct Place {
    stack_end: *mut u8,
    pointer: *mut u8,
}

static STACK_END: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
static POINTER: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());

impl Place {
    fn get() -> Option<Place> {
        // Relaxed: the compare-exchange by which this thread became the one that starts the helper orders it.
        let place = Place { stack_end: STACK_END.load(Ordering::Relaxed), pointer: POINTER.load(Ordering::Relaxed) };
        if place.pointer.is_null() { Self::make() } else { Some(place) }
    }

    #[cold]
    fn make() -> Option<Place> {
        // The OS page size and the clock are looked up once, by getauxval. The helper could not call that where a
        // library replaces it.
        let page = call::page_size();
        let _ = clock::read(libc::CLOCK_MONOTONIC);
        let whole = |bytes: usize| bytes.next_multiple_of(page);
        let [below, above] = storage()?.map(whole);
        let len = page + STACK + below + above;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::STACK;
        let p = call::fresh(0, len, READ_WRITE, flags)?;
        // SAFETY: the mapping is new. It is removed if its first OS page cannot be made inaccessible.
        unsafe {
            if mm::mprotect(p.cast(), page, MprotectFlags::empty()).is_err() {
                let _ = mm::munmap(p.cast(), len);
                return None;
            }
        }
        // A little below the end, as tools read memory at the stack pointer.
        let place = Place { stack_end: p.wrapping_add(page + STACK - 64), pointer: p.wrapping_add(len - above) };
        STACK_END.store(place.stack_end, Ordering::Relaxed);
        POINTER.store(place.pointer, Ordering::Relaxed);
        Some(place)
    }

    /// Makes the thread storage that of a thread which is in a call of neap's.
    fn prepare(self) {
        let slot = arch::slot().addr().wrapping_sub(arch::thread_pointer());
        // SAFETY: the mapping has room for both (`storage`), and no thread uses it now.
        unsafe {
            arch::write_thread_record(self.pointer);
            let slot = self.pointer.wrapping_add(slot).cast::<ThreadSlot>();
            (*slot).heap.store(Heap::none(), Ordering::Relaxed);
            (*slot).busy.store(0, Ordering::Relaxed);
        }
    }
}

/// Bytes below the thread pointer and from there on that hold errno, the slot and the thread record; `None` where they
/// lie too far away.
fn storage() -> Option<[usize; 2]> {
    let pointer = arch::thread_pointer();
    // SAFETY: the address of errno of the calling thread.
    let errno = unsafe { libc::__errno_location() }.addr();
    let [mut below, mut above] = arch::THREAD_RECORD;
    for at in [errno, arch::slot().addr()] {
        below = below.max(pointer.saturating_sub(at));
        above = above.max((at + size_of::<ThreadSlot>()).saturating_sub(pointer));
    }
    (below.max(above) <= MOST_STORAGE).then_some([below, above])
}

/// See `Os::start_helper`. The kernel writes the thread's number to `tid`. The caller has all signals blocked, and so
/// has the helper.
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
    let number = unsafe { arch::start_thread(flags as usize, place.stack_end, tid.as_ptr(), place.pointer, entry) };
    if number <= 0 {
        ALIVE.fetch_sub(1, Ordering::Relaxed);
    } else if !FILTERED.load(Ordering::Relaxed) {
        scheduling::settle(number as usize);
    }
    number > 0
}

/// Runs `help` in the helper, from its start or, `again`, after a last step that failed.
#[cold]
pub fn live(again: bool, help: impl FnOnce() -> Leave) -> Leave {
    if again {
        // The last step failed: it may take locks again.
        ALIVE.fetch_add(1, Ordering::Relaxed);
    } else {
        let is_free = !FILTERED.load(Ordering::Relaxed);
        if is_free {
            scheduling::settle_self();
        }
        let own = is_free && leave_files();
        rights::note_files(own);
        pressure::begin(own);
    }
    let leave = help();
    ALIVE.fetch_sub(1, Ordering::Relaxed);
    leave
}

/// The number of the program's standard error in the calling thread's table of files. For a thread that ends the
/// process.
pub fn standard_error() -> RawFd {
    const STANDARD_ERROR: usize = libc::STDERR_FILENO as usize;
    if is_helper() && rights::has_own_files() {
        // These two calls add files to the helper's own table.
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

/// To be called in the child of a fork, which has no helper. Returns whether the parent had one, or was about to.
#[cold]
pub fn forked() -> bool {
    pressure::forked();
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
        // The helper first gives back what waits, because the program may be idle from now on.
        Rights::Changed => Onward::Finish,
    }
}

/// Ends the process: only the helper is left, because the first thread has ended alone (by `SYS_exit`, as the function
/// of `clone` does). The status of a process is that of its last thread, so the helper takes over the status of the
/// first.
#[cold]
fn end_process() -> ! {
    let code = usize::from(lines::status_of_first().unwrap_or(0));
    loop {
        plain(Plain::ExitGroup, [code]);
    }
}

/// Gives the helper a table of files of its own, an empty one. In the program's table a file of neap's would disturb
/// for some microseconds: the program would get another number than it expects, or neap would close a file that the
/// program has put in the place of neap's. And while the table is shared, each call on a file costs the program more.
/// False where the system refuses.
fn leave_files() -> bool {
    /// CLOSE_RANGE_UNSHARE of include/uapi/linux/close_range.h.
    const UNSHARE: usize = 1 << 1;
    // The table is shared, so the files are closed in a copy of it. The kernel does not even copy the entries.
    plain(Plain::CloseRange, [0, u32::MAX as usize, UNSHARE]) == 0
}
