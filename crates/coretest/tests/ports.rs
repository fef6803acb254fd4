//! The defaults of a port that implements only what it must.

use neap_core::Os;
use neap_core::helper::Helper;
use neap_core::os::{Memory, Moved, Onward, Run, Thread, Touched};
use neap_core::sync::AtomicU32;
use neap_core::sync::Threads;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Implements only the calls that the defaults use; all others panic.
struct Bare {
    helper: Helper,
    barrier: bool,
    woken: AtomicUsize,
}

impl Threads for Bare {
    fn start_helper(&self) -> bool {
        unreachable!()
    }
    fn futex_wait(&self, _: &AtomicU32, _: u32) {
        unreachable!()
    }
    fn futex_wait_for(&self, _: &AtomicU32, _: u32, _: u32) {
        unreachable!()
    }
    fn futex_wake(&self, _: *const AtomicU32) {
        self.woken.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: no call hands out memory.
unsafe impl Os for Bare {
    fn page_size(&self) -> usize {
        4096
    }
    fn reserve(&self, _: usize, _: usize) -> Option<*mut u8> {
        unreachable!()
    }
    fn reserve_zeros(&self, _: usize) -> Option<*mut u8> {
        unreachable!()
    }
    unsafe fn commit(&self, _: *mut u8, _: usize) -> bool {
        unreachable!()
    }
    unsafe fn guard(&self, _: *mut u8, _: usize) -> bool {
        unreachable!()
    }
    fn map(&self, _: usize, _: usize) -> Option<*mut u8> {
        unreachable!()
    }
    unsafe fn unmap(&self, _: *mut u8, _: usize) -> bool {
        unreachable!()
    }
    unsafe fn remap(&self, _: *mut u8, _: usize, _: usize) -> Option<*mut u8> {
        unreachable!()
    }
    unsafe fn move_pages(&self, _: *mut u8, _: *mut u8, _: usize) -> Moved {
        unreachable!()
    }
    unsafe fn renew(&self, _: *mut u8, _: usize) -> Moved {
        unreachable!()
    }
    unsafe fn purge(&self, _: *mut u8, _: usize) -> bool {
        unreachable!()
    }
    unsafe fn purge_runs(&self, _: &[Run]) -> usize {
        unreachable!()
    }
    unsafe fn purge_lazily(&self, _: *mut u8, _: usize) -> bool {
        unreachable!()
    }
    unsafe fn allow_huge(&self, _: *mut u8, _: usize) -> bool {
        unreachable!()
    }
    unsafe fn populate(&self, _: *mut u8, _: usize) -> bool {
        unreachable!()
    }
    unsafe fn touched(&self, _: *mut u8, _: usize, _: &mut [Run]) -> Option<Touched> {
        unreachable!()
    }
    fn prepare_barrier(&self) -> bool {
        self.barrier
    }
    fn barrier(&self) -> bool {
        unreachable!()
    }
    fn clock(&self) -> u64 {
        unreachable!()
    }
    fn run_time(&self) -> Option<u64> {
        unreachable!()
    }
    fn memory(&self) -> Option<Memory> {
        unreachable!()
    }
    fn helper(&self) -> &Helper {
        &self.helper
    }
    fn address_limit(&self) -> Option<usize> {
        unreachable!()
    }
    fn random(&self) -> u64 {
        unreachable!()
    }
    fn thread_id(&self) -> u32 {
        unreachable!()
    }
    fn die(&self, _: &[u8], _: *const u8) -> ! {
        unreachable!()
    }
}

/// Catches defaults that promise more than a port can do (giving addresses back, knowing of ended threads, a barrier),
/// a sleeper that is not woken, and arenas at any address.
#[test]
fn what_a_bare_port_says() {
    for barrier in [false, true] {
        let os = Bare { helper: Helper::new(), barrier, woken: AtomicUsize::new(0) };
        assert_eq!(os.has_barrier(), barrier);
        assert_eq!(os.places(), 1 << 40..0x5400_0000_0000);
        // SAFETY: nothing is done to the range.
        assert!(!unsafe { os.unreserve(core::ptr::null_mut(), 4096) });
        assert_eq!((os.thread_to_ask_for(), os.has_ended(Thread { number: 1, place: 1 })), (None, false));
        assert_eq!((os.process(), os.onward(), os.looks_for_limits()), (Some(1), Onward::Go, true));
        os.futex_wake_all(&raw const *Box::leak(Box::new(AtomicU32::new(0))));
        assert_eq!(os.woken.load(Ordering::Relaxed), 1);
        assert_eq!(os.undisturbed(|| 7), 7);
    }
}
