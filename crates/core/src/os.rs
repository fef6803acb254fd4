//! The system below the allocator, as one trait. `neap-sys` implements it for Linux, `neap-coretest` as a fake.

use core::sync::atomic::AtomicU32;

/// What the allocator needs of the system.
///
/// Lengths and addresses are multiples of [`Os::page_size`] unless stated. No call allocates. A call that fails
/// changes nothing; the allocator then returns NULL to its caller.
///
/// # Safety
/// An implementation must hand out only memory that nobody else uses, and must do to the given ranges what each
/// method says and nothing else.
pub unsafe trait Os: Sync {
    /// Bytes of an OS page: a power of two from 4 KiB to 64 KiB.
    fn page_size(&self) -> usize;

    /// Reserves `len` bytes at exactly `at`: no access, no memory. `None` if anything lies there already or the
    /// system refuses.
    fn reserve(&self, at: usize, len: usize) -> Option<*mut u8>;

    /// Reserves `len` bytes anywhere that read as zero and cannot be written until committed.
    fn reserve_zeros(&self, len: usize) -> Option<*mut u8>;

    /// Makes reserved memory readable and writable; it reads as zero until written. False if the system refuses.
    ///
    /// # Safety
    /// The range must lie in a reservation of this `Os`.
    unsafe fn commit(&self, p: *mut u8, len: usize) -> bool;

    /// Maps `len` bytes of zeroed memory for a huge block, aligned to `align` (a power of two, at least an OS page).
    fn map(&self, len: usize, align: usize) -> Option<*mut u8>;

    /// Unmaps a mapping of [`Os::map`], or a part at its end. False if the system refuses.
    ///
    /// # Safety
    /// The range must be such a mapping or its tail, and unused from now on.
    unsafe fn unmap(&self, p: *mut u8, len: usize) -> bool;

    /// Resizes a mapping of [`Os::map`] from `old` to `new` bytes, moving it where needed; contents are kept, new
    /// bytes are zero.
    ///
    /// # Safety
    /// The range must be such a mapping; on success the old address is gone.
    unsafe fn remap(&self, p: *mut u8, old: usize, new: usize) -> Option<*mut u8>;

    /// Moves the memory of `len` committed bytes from `from` to `to`, without copying. Afterwards `from` is
    /// committed and reads as zero. False if the system cannot.
    ///
    /// # Safety
    /// Both ranges must be committed and must not overlap.
    unsafe fn move_pages(&self, from: *mut u8, to: *mut u8, len: usize) -> bool;

    /// Replaces a committed range by fresh memory that reads as zero and is one mapping with its neighbours again:
    /// for ranges that [`Os::move_pages`] moved to. False if the system refuses.
    ///
    /// # Safety
    /// The range must be committed and hold nothing that is needed.
    unsafe fn renew(&self, p: *mut u8, len: usize) -> bool;

    /// Gives the memory of a committed range back; it reads as zero afterwards. False if the system refuses.
    ///
    /// # Safety
    /// The range must be committed and hold nothing that is needed.
    unsafe fn purge(&self, p: *mut u8, len: usize) -> bool;

    /// Bytes of address space that the process may still take, where a limit is set (RLIMIT_AS), else `None`.
    fn address_limit(&self) -> Option<usize>;

    /// A number that an outsider cannot guess.
    fn random(&self) -> u64;

    /// The number of the calling thread, as tools show it.
    fn thread_id(&self) -> u32;

    /// Waits while `word` is `value`; may return early.
    fn futex_wait(&self, word: &AtomicU32, value: u32);

    /// Wakes one waiter of `word`.
    fn futex_wake(&self, word: &AtomicU32);

    /// Writes one line to standard error and ends the process with SIGABRT.
    fn die(&self, line: &[u8]) -> !;
}
