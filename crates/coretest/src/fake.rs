//! A fake system: real memory, but every call is checked against the preconditions of [`Os`], counted, and made to
//! fail on request; OS pages may be larger than the machine's, and features may be missing.
//!
//! Each [`Fake`] is a system of its own: many live in one process at once, and each unmaps what is left when it is
//! dropped.

mod faults;
mod model;

pub use faults::{CALLS, Call, Faults};
use model::{Access, Model};

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use neap_core::Os;
use neap_core::os::{Memory, Run, Touched};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, MutexGuard};

/// OS page of the machine that the tests run on.
const HOST_PAGE: usize = 4096;

/// What kind of system to pretend.
#[derive(Clone, Debug)]
pub struct Config {
    /// Bytes of an OS page: 4, 16 or 64 KiB.
    pub page_size: usize,
    /// Bytes of address space that may be taken in all, if limited.
    pub address_limit: Option<usize>,
    /// How many reservations of a chosen address are granted, if not all: what does not fit them becomes huge.
    pub reservations: Option<u64>,
    /// Features that this system lacks: these calls always fail. Without [`Call::Reserve`] it is a system that
    /// never grants a chosen address, without [`Call::ReserveZeros`] one in which the page map is missing.
    pub missing: Vec<Call>,
    /// Seed of [`Os::random`] and of faults by chance.
    pub seed: u64,
}

impl Default for Config {
    fn default() -> Self {
        Config { page_size: 4096, address_limit: None, reservations: None, missing: Vec::new(), seed: 1 }
    }
}

/// The fake system.
#[derive(Debug)]
pub struct Fake {
    config: Config,
    /// Which calls fail.
    pub faults: Faults,
    random: AtomicU64,
    reservations: AtomicU64,
    model: Mutex<Model>,
    pagemap: File,
}

impl Fake {
    /// A system like `config`.
    pub fn new(config: Config) -> Self {
        assert!(config.page_size.is_power_of_two() && (HOST_PAGE..=65536).contains(&config.page_size));
        Fake {
            faults: Faults::new(config.seed),
            random: AtomicU64::new(config.seed),
            reservations: AtomicU64::new(0),
            model: Mutex::new(Model::default()),
            pagemap: File::open("/proc/self/pagemap").expect("the fake needs /proc/self/pagemap"),
            config,
        }
    }

    /// The model; also after a panic elsewhere, so that a failing test says what failed first.
    fn model(&self) -> MutexGuard<'_, Model> {
        self.model.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Bytes of address space taken at present.
    pub fn taken(&self) -> usize {
        self.model().taken()
    }

    /// Whether the call goes through: it is not made to fail, and the system has it.
    fn granted(&self, call: Call) -> bool {
        let missing = self.config.missing.contains(&call);
        self.faults.pass(call, missing)
    }

    /// Panics unless address and length are whole OS pages of this system.
    fn whole_pages(&self, call: Call, address: usize, len: usize) {
        let page = self.config.page_size;
        assert!(
            len > 0 && address.is_multiple_of(page) && len.is_multiple_of(page),
            "{call:?}({address:#x}, {len:#x}): not whole OS pages of {page:#x} bytes"
        );
    }

    fn fits(&self, model: &Model, more: usize) -> bool {
        self.config.address_limit.is_none_or(|limit| model.taken() + more <= limit)
    }

    /// Offset of the first byte of the range that does not read as zero. OS pages that the kernel holds no memory
    /// for are known zero and are not touched.
    ///
    /// # Safety
    /// The range must be readable, and written by nobody meanwhile.
    pub unsafe fn first_nonzero(&self, p: *const u8, len: usize) -> Option<usize> {
        let first = p.addr() / HOST_PAGE;
        let pages = (p.addr() + len).div_ceil(HOST_PAGE) - first;
        let mut entries = vec![0u8; pages.min(4096) * 8];
        let mut done = 0;
        while done < pages {
            let n = (pages - done).min(4096);
            let at = ((first + done) * 8) as u64;
            self.pagemap.read_exact_at(&mut entries[..n * 8], at).expect("reading /proc/self/pagemap");
            for (i, entry) in entries[..n * 8].chunks_exact(8).enumerate() {
                // Bits 63 and 62 of an entry, in its last byte: present, swapped.
                if entry[7] & 0xC0 == 0 {
                    continue;
                }
                let page = (first + done + i) * HOST_PAGE;
                let from = page.max(p.addr());
                let to = (page + HOST_PAGE).min(p.addr() + len);
                // SAFETY: this part of the range is readable, as the caller promises.
                let bytes = unsafe { core::slice::from_raw_parts(p.wrapping_add(from - p.addr()), to - from) };
                if let Some(i) = bytes.iter().position(|&b| b != 0) {
                    return Some(from - p.addr() + i);
                }
            }
            done += n;
        }
        None
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        let model = self.model.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        for (from, to) in model.all() {
            // SAFETY: the fake mapped this range, and whoever used it is gone.
            unsafe { libc::munmap(core::ptr::with_exposed_provenance_mut(from), to - from) };
        }
    }
}

/// A fresh mapping, or `None`.
fn mmap(at: usize, len: usize, prot: i32, flags: i32) -> Option<*mut u8> {
    let flags = flags | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: without MAP_FIXED (which only `renew` passes, for its own range) nothing is replaced.
    let p = unsafe { libc::mmap(core::ptr::without_provenance_mut(at), len, prot, flags, -1, 0) };
    if p == libc::MAP_FAILED { None } else { Some(p.cast()) }
}

/// A mapping of `len` bytes at a multiple of `align`.
fn mmap_aligned(len: usize, align: usize, prot: i32) -> Option<*mut u8> {
    let whole = mmap(0, len.checked_add(align)?, prot, 0)?;
    let before = whole.addr().next_multiple_of(align) - whole.addr();
    // SAFETY: both parts lie in the new mapping and are not used.
    unsafe {
        if before > 0 {
            libc::munmap(whole.cast(), before);
        }
        if align > before {
            libc::munmap(whole.wrapping_add(before + len).cast(), align - before);
        }
    }
    Some(whole.wrapping_add(before))
}

const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

// SAFETY: memory comes from fresh mappings, which the model knows; each call does what the trait says.
unsafe impl Os for Fake {
    fn page_size(&self) -> usize {
        self.config.page_size
    }

    fn reserve(&self, at: usize, len: usize) -> Option<*mut u8> {
        self.whole_pages(Call::Reserve, at, len);
        let mut model = self.model();
        if !self.granted(Call::Reserve) || !self.fits(&model, len) {
            return None;
        }
        let used_up = self.config.reservations.is_some_and(|n| self.reservations.load(Ordering::Relaxed) >= n);
        if used_up {
            return None;
        }
        let p = mmap(at, len, libc::PROT_NONE, libc::MAP_FIXED_NOREPLACE)?;
        self.reservations.fetch_add(1, Ordering::Relaxed);
        assert_eq!(p.addr(), at, "the tests need a kernel with MAP_FIXED_NOREPLACE");
        model.add(p.expose_provenance(), len, Access::Reserved);
        Some(p)
    }

    fn reserve_zeros(&self, len: usize) -> Option<*mut u8> {
        self.whole_pages(Call::ReserveZeros, 0, len);
        let mut model = self.model();
        if !self.granted(Call::ReserveZeros) || !self.fits(&model, len) {
            return None;
        }
        let p = mmap_aligned(len, self.config.page_size, libc::PROT_READ)?;
        model.add(p.expose_provenance(), len, Access::Zeros);
        Some(p)
    }

    unsafe fn commit(&self, p: *mut u8, len: usize) -> bool {
        self.whole_pages(Call::Commit, p.addr(), len);
        let mut model = self.model();
        model.require("commit", p.addr(), len, &[Access::Reserved, Access::Zeros, Access::Committed]);
        if !self.granted(Call::Commit) {
            return false;
        }
        // SAFETY: the range lies in a reservation of this fake, as the model has just confirmed.
        let done = unsafe { libc::mprotect(p.cast(), len, READ_WRITE) } == 0;
        if done {
            model.set(p.addr(), len, Access::Committed);
        }
        done
    }

    fn map(&self, len: usize, align: usize) -> Option<*mut u8> {
        self.whole_pages(Call::Map, align, len);
        assert!(align.is_power_of_two(), "map: alignment {align:#x}");
        let mut model = self.model();
        if !self.granted(Call::Map) || !self.fits(&model, len) {
            return None;
        }
        let p = mmap_aligned(len, align, READ_WRITE)?;
        model.add(p.expose_provenance(), len, Access::Mapped);
        Some(p)
    }

    unsafe fn unmap(&self, p: *mut u8, len: usize) -> bool {
        self.whole_pages(Call::Unmap, p.addr(), len);
        let mut model = self.model();
        model.require_mapping("unmap", p.addr(), len);
        if !self.granted(Call::Unmap) {
            return false;
        }
        // SAFETY: the range is (the tail of) a mapping of this fake that the caller gives up.
        let done = unsafe { libc::munmap(p.cast(), len) } == 0;
        if done {
            model.remove(p.addr(), len);
        }
        done
    }

    unsafe fn remap(&self, p: *mut u8, old: usize, new: usize) -> Option<*mut u8> {
        self.whole_pages(Call::Remap, p.addr(), old);
        self.whole_pages(Call::Remap, 0, new);
        let mut model = self.model();
        model.require_whole_mapping("remap", p.addr(), old);
        if !self.granted(Call::Remap) || !self.fits(&model, new.saturating_sub(old)) {
            return None;
        }
        let moved = if new <= old {
            // SAFETY: the range is a mapping of this fake, which the caller gives up.
            unsafe { libc::mremap(p.cast(), old, new, 0) }
        } else {
            // Always elsewhere, so that nobody relies on its staying; aligned as the simulated OS pages want it.
            let to = mmap_aligned(new, self.config.page_size, libc::PROT_NONE)?;
            let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
            // SAFETY: as above; the target has just been mapped for it.
            unsafe { libc::mremap(p.cast(), old, new, flags, to) }
        };
        assert_ne!(moved, libc::MAP_FAILED, "mremap of a mapping of the fake");
        model.remove(p.addr(), old);
        model.add(moved.expose_provenance(), new, Access::Mapped);
        Some(moved.cast())
    }

    unsafe fn move_pages(&self, from: *mut u8, to: *mut u8, len: usize) -> bool {
        self.whole_pages(Call::MovePages, from.addr() | to.addr(), len);
        assert!(from.addr().abs_diff(to.addr()) >= len, "move_pages: {from:p} and {to:p} overlap");
        let model = self.model();
        model.require("move_pages from", from.addr(), len, &[Access::Committed]);
        model.require("move_pages to", to.addr(), len, &[Access::Committed]);
        if !self.granted(Call::MovePages) {
            return false;
        }
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
        // SAFETY: both ranges are committed; what lies at `to` is not needed.
        unsafe { libc::mremap(from.cast(), len, len, flags, to) != libc::MAP_FAILED }
    }

    unsafe fn renew(&self, p: *mut u8, len: usize) -> bool {
        self.whole_pages(Call::Renew, p.addr(), len);
        let model = self.model();
        model.require("renew", p.addr(), len, &[Access::Committed]);
        self.granted(Call::Renew) && mmap(p.addr(), len, READ_WRITE, libc::MAP_FIXED).is_some()
    }

    unsafe fn purge(&self, p: *mut u8, len: usize) -> bool {
        self.whole_pages(Call::Purge, p.addr(), len);
        let model = self.model();
        model.require("purge", p.addr(), len, &[Access::Committed]);
        // SAFETY: the range is committed and holds nothing that is needed.
        self.granted(Call::Purge) && unsafe { libc::madvise(p.cast(), len, libc::MADV_DONTNEED) == 0 }
    }

    unsafe fn purge_runs(&self, runs: &[Run]) -> usize {
        // SAFETY: as the caller promises.
        runs.iter().take_while(|r| unsafe { self.purge(r.start, r.len) }).count()
    }

    unsafe fn purge_lazily(&self, _p: *mut u8, _len: usize) -> bool {
        false
    }

    unsafe fn touched(&self, _p: *mut u8, _len: usize, _runs: &mut [Run]) -> Option<Touched> {
        None
    }

    fn barrier(&self) -> bool {
        false
    }

    fn clock(&self) -> u64 {
        0
    }

    fn memory(&self) -> Option<Memory> {
        None
    }

    fn start_purger(&self) -> bool {
        false
    }

    fn wake_purger(&self) {}

    fn address_limit(&self) -> Option<usize> {
        self.config.address_limit.map(|limit| limit.saturating_sub(self.taken()))
    }

    fn random(&self) -> u64 {
        faults::mix(self.random.fetch_add(faults::STEP, Ordering::Relaxed))
    }

    fn thread_id(&self) -> u32 {
        // SAFETY: gettid has no preconditions.
        unsafe { libc::gettid() as u32 }
    }

    fn futex_wait(&self, word: &AtomicU32, value: u32) {
        let op = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
        let forever = core::ptr::null::<libc::timespec>();
        // SAFETY: the word lives as long as the call; an early return is allowed.
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), op, value, forever) };
    }

    fn futex_wake(&self, word: &AtomicU32) {
        let op = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
        // SAFETY: the word lives as long as the call.
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), op, 1) };
    }

    /// Panics with the line, so that a test can catch it.
    fn die(&self, line: &[u8]) -> ! {
        panic!("{}", String::from_utf8_lossy(line).trim_end())
    }
}
