//! Finds out whether a thread of this process is still alive.
//!
//! The C library registers a list of robust locks for each thread, which is part of the thread's own record. When the
//! thread ends, the kernel forgets the list, just before it wakes the threads that wait for the end and may then unmap
//! its storage. The thread's number is in use for longer, and a later thread may get it; but that thread's list is
//! elsewhere.
//!
//! musl has a list only if a program uses robust locks. Otherwise neap uses the number: it then learns of the end some
//! microseconds after the thread's storage may be unmapped.

use crate::arch;
use crate::system::call::{self, Plain, plain};
use crate::system::filter::Asking;
use crate::system::space::count;
use neap_core::os::Thread;
use neap_counters::Syscall;

/// The system's result for a number that no thread has.
const NO_THREAD: isize = -(libc::ESRCH as isize);

/// The address of a thread's list of robust locks; 0: none.
fn robust_list(thread: u32) -> Result<usize, isize> {
    let (mut list, mut len) = (0usize, 0usize);
    let to = [(&raw mut list).expose_provenance(), (&raw mut len).expose_provenance()];
    // SAFETY: the kernel writes two words.
    let done = unsafe { arch::syscall(libc::SYS_get_robust_list as usize, [thread as usize, to[0], to[1], 0, 0, 0]) };
    if done == 0 { Ok(list) } else { Err(done) }
}

/// Whether the thread of this number is known to have a list of robust locks.
pub fn has_locks(thread: u32) -> bool {
    robust_list(thread).is_ok_and(|list| list != 0)
}

/// Whether the thread of this number, which the process has or had, is known to have no list of robust locks any more.
/// It has ended then, if the C library gives threads such lists.
pub fn has_no_locks(thread: u32) -> bool {
    let Some(_asking) = Asking::if_allowed() else { return false };
    count(Syscall::Other);
    matches!(robust_list(thread), Ok(0) | Err(NO_THREAD))
}

/// Sends signal 0, which has no effect, to a thread of this process; returns the system's result.
fn signal_zero(thread: u32) -> isize {
    plain(Plain::Tgkill, [call::process() as usize, thread as usize, 0])
}

/// Whether the process has a thread of this number.
pub fn is_thread(thread: u32) -> bool {
    signal_zero(thread) == 0
}

/// See `Os::thread_to_ask_for`.
pub fn calling_thread() -> Option<Thread> {
    // A filter may refuse even gettid.
    let number = u32::try_from(plain(Plain::Gettid, [])).ok().filter(|&number| number != 0)?;
    let place = robust_list(number).ok()?;
    Some(Thread { number, place })
}

/// See `Os::has_ended`. A thread that registers another list by itself counts as ended: its heap is left alone. (If it
/// does so in the microseconds of a handshake, it waits for its heap for ever. The C library registers the list before
/// the thread's first call.)
pub fn has_ended(thread: Thread) -> bool {
    match robust_list(thread.number) {
        // Place 0: it had no list, and may have got one since.
        Ok(list) if list != thread.place && thread.place != 0 => true,
        Err(NO_THREAD) => true,
        // A thread of another process may have the number by now.
        _ => signal_zero(thread.number) == NO_THREAD,
    }
}
