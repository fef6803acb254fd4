//! Giving memory back, where that makes it read as zero: MADV_DONTNEED.
//!
//! The core takes memory that was given back for zeroed memory. Some systems do nothing and say that they did: qemu
//! before version 9, when it runs a program of another processor. So the first range that goes back is looked at; and each
//! one where the program has a filter of its own, which may do the same to one thread from some moment on.

use crate::status;
use core::sync::atomic::{AtomicU32, Ordering};
use rustix::mm;

/// Not tried yet.
const UNKNOWN: u32 = 0;
const WORKS: u32 = 1;
const FAILS: u32 = 2;
static STATE: AtomicU32 = AtomicU32::new(UNKNOWN);

/// Whether ranges may be given back without a look at them: `None` where one has to be looked at.
pub fn works() -> Option<bool> {
    // Relaxed: all threads find the same.
    match STATE.load(Ordering::Relaxed) {
        FAILS => Some(false),
        WORKS if !status::is_forbidden() => Some(true),
        _ => None,
    }
}

/// Gives the memory of a range back; false where it would not read as zero.
///
/// # Safety
/// The range must be committed memory of the caller's, in whole OS pages, whose contents are not needed.
pub unsafe fn discard(p: *mut u8, len: usize) -> bool {
    // SAFETY: as the caller promises.
    unsafe { discard_by(p, len, |p, len| mm::madvise(p.cast(), len, mm::Advice::LinuxDontNeed).is_ok(), &STATE) }
}

/// [`discard`] by `call`, with what is known of it in `state`.
///
/// # Safety
/// As that.
#[inline]
unsafe fn discard_by(p: *mut u8, len: usize, call: impl FnOnce(*mut u8, usize) -> bool, state: &AtomicU32) -> bool {
    match state.load(Ordering::Relaxed) {
        WORKS if !status::is_forbidden() => call(p, len),
        FAILS => false,
        _ => {
            // SAFETY: the range is the caller's, writable, and not empty. Volatile: the call changes what is read.
            unsafe {
                // Where the memory stays it is as it was: the caller may know that it is zero, or that zero does no harm.
                let before = p.read_volatile();
                p.write_volatile(1);
                let done = call(p, len);
                let zero = p.read_volatile() == 0;
                if !zero {
                    p.write_volatile(before);
                }
                // What is refused (memory that the program locked, say) tells nothing.
                if done {
                    state.store(if zero { WORKS } else { FAILS }, Ordering::Relaxed);
                }
                done && zero
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches memory that is taken for zero because a system that does nothing said yes, and one refusal that is taken
    /// for all.
    #[test]
    fn looks_at_what_became_of_it() {
        let mut page = [9u8; 64];
        let p = page.as_mut_ptr();
        let state = AtomicU32::new(UNKNOWN);
        let nothing = |_: *mut u8, _: usize| true;
        let zero = |p: *mut u8, len: usize| {
            // SAFETY: the array.
            unsafe { p.write_bytes(0, len) };
            true
        };
        // SAFETY: the array is this test's.
        unsafe {
            assert!(!discard_by(p, 64, |_, _| false, &state));
            assert_eq!(state.load(Ordering::Relaxed), UNKNOWN);
            assert!(!discard_by(p, 64, nothing, &state));
            assert!(!discard_by(p, 64, zero, &state), "known by now");
            let state = AtomicU32::new(UNKNOWN);
            assert!(discard_by(p, 64, zero, &state));
            assert!(discard_by(p, 64, nothing, &state), "not looked at again");
        }
    }

    /// Catches a look that leaves its mark in memory which stays: the side tables of free memory hold zero or what they held.
    #[test]
    fn memory_that_stays_is_as_it_was() {
        for before in [0, 1, 9] {
            for (done, wiped) in [(false, false), (false, true), (true, false)] {
                let mut page = [before; 64];
                let call = |p: *mut u8, len: usize| {
                    if wiped {
                        // SAFETY: the array.
                        unsafe { p.write_bytes(0, len) };
                    }
                    done
                };
                // SAFETY: the array is this test's.
                assert!(!unsafe { discard_by(page.as_mut_ptr(), 64, call, &AtomicU32::new(UNKNOWN)) });
                assert!(page.iter().all(|&b| b == if wiped { 0 } else { before }), "{before} {done} {wiped}");
            }
        }
    }
}
