//! A system of plain memory, for Miri: no pages, no protection, no kernel. Reserved memory is usable and zero at once;
//! purging writes zeros. A barrier is a fence here and one in `Owner::with`.

use neap_core::helper::Helper;
use neap_core::os::{Memory, Moved, Os, Run, Touched};
use neap_core::sync::Threads;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Longest reservation of an arena.
const LONGEST: usize = 16 << 20;
const PAGE: usize = 4096;

/// The system.
pub struct Plain {
    /// Returned to the interpreter at the end.
    mappings: Mutex<Vec<(usize, Layout)>>,
    clock: AtomicU64,
    random: AtomicU64,
    barriers: bool,
    helper: Helper,
}

impl Plain {
    /// Without barriers there are no handshakes.
    pub fn new(barriers: bool) -> Self {
        Plain {
            mappings: Mutex::new(Vec::new()),
            clock: AtomicU64::new(0),
            random: AtomicU64::new(0),
            barriers,
            helper: Helper::new(),
        }
    }

    /// Advances the clock.
    pub fn advance(&self, milliseconds: u64) {
        self.clock.fetch_add(milliseconds, Ordering::Relaxed);
    }

    fn take(&self, len: usize, align: usize) -> Option<*mut u8> {
        let layout = Layout::from_size_align(len, align).ok()?;
        // SAFETY: the length is not 0.
        let p = unsafe { alloc_zeroed(layout) };
        if p.is_null() {
            return None;
        }
        self.mappings.lock().unwrap().push((p.expose_provenance(), layout));
        Some(p)
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        for (p, layout) in self.mappings.lock().unwrap().drain(..) {
            // SAFETY: it was taken with this layout, and the allocator that used it is gone.
            unsafe { dealloc(std::ptr::with_exposed_provenance_mut(p), layout) };
        }
    }
}

impl Threads for Plain {
    /// The test itself is the purger.
    fn start_helper(&self) -> bool {
        true
    }

    fn futex_wait(&self, _: &AtomicU32, _: u32) {
        std::thread::yield_now();
    }

    fn futex_wait_for(&self, _: &AtomicU32, _: u32, _: u32) {
        std::thread::yield_now();
    }

    fn futex_wake(&self, _: *const AtomicU32) {}
}

// SAFETY: memory comes from the interpreter's allocator, and each call does to its range what the trait says.
unsafe impl Os for Plain {
    fn page_size(&self) -> usize {
        PAGE
    }

    /// Ignores `at`, as the interpreter chooses addresses; only the alignment is kept.
    fn reserve(&self, _: usize, len: usize) -> Option<*mut u8> {
        if len > LONGEST { None } else { self.take(len, neap_core::pages::layout::ARENA_ALIGN) }
    }

    fn reserve_zeros(&self, len: usize) -> Option<*mut u8> {
        self.take(len, PAGE)
    }

    unsafe fn commit(&self, _: *mut u8, _: usize) -> bool {
        true
    }

    unsafe fn guard(&self, _: *mut u8, _: usize) -> bool {
        false
    }

    fn map(&self, len: usize, align: usize) -> Option<*mut u8> {
        self.take(len, align)
    }

    /// Unmapped at the end.
    unsafe fn unmap(&self, _: *mut u8, _: usize) -> bool {
        true
    }

    unsafe fn remap(&self, p: *mut u8, old: usize, new: usize) -> Option<*mut u8> {
        let to = self.take(new, PAGE)?;
        // SAFETY: both are that long.
        unsafe { to.copy_from_nonoverlapping(p, old.min(new)) };
        Some(to)
    }

    unsafe fn move_pages(&self, from: *mut u8, to: *mut u8, len: usize) -> Moved {
        // SAFETY: as the caller promises.
        unsafe {
            to.copy_from_nonoverlapping(from, len);
            from.write_bytes(0, len);
        }
        Moved::Done
    }

    unsafe fn renew(&self, p: *mut u8, len: usize) -> Moved {
        // SAFETY: as the caller promises.
        unsafe { p.write_bytes(0, len) };
        Moved::Done
    }

    /// Writes zeros, so that Miri reports a thread that still uses the memory as a data race.
    unsafe fn purge(&self, p: *mut u8, len: usize) -> bool {
        // SAFETY: as the caller promises.
        unsafe { p.write_bytes(0, len) };
        true
    }

    unsafe fn purge_runs(&self, runs: &[Run]) -> usize {
        for run in runs {
            // SAFETY: as the caller promises.
            unsafe { run.start.write_bytes(0, run.len) };
        }
        runs.len()
    }

    unsafe fn purge_lazily(&self, _: *mut u8, _: usize) -> bool {
        false
    }

    unsafe fn allow_huge(&self, _: *mut u8, _: usize) -> bool {
        false
    }

    unsafe fn populate(&self, _: *mut u8, _: usize) -> bool {
        false
    }

    unsafe fn touched(&self, _: *mut u8, _: usize, _: &mut [Run]) -> Option<Touched> {
        None
    }

    fn prepare_barrier(&self) -> bool {
        self.barriers
    }

    fn barrier(&self) -> bool {
        // SeqCst pairs with the fence in `Owner::with`, which other systems do not have.
        fence(Ordering::SeqCst);
        self.barriers
    }

    fn clock(&self) -> u64 {
        self.clock.load(Ordering::Relaxed)
    }

    fn run_time(&self) -> Option<u64> {
        None
    }

    fn memory(&self) -> Option<Memory> {
        None
    }

    fn helper(&self) -> &Helper {
        &self.helper
    }

    fn address_limit(&self) -> Option<usize> {
        Some(8 * LONGEST)
    }

    fn random(&self) -> u64 {
        self.random.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed)
    }

    fn thread_id(&self) -> u32 {
        1
    }

    fn die(&self, line: &[u8], _block: *const u8) -> ! {
        panic!("{}", String::from_utf8_lossy(line))
    }
}
