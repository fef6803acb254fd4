//! The system calls of `neap pagein` that the standard library lacks, in safe form.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

pub use neap_launch::sys::page_size;

use libc::{c_int, c_ulong, c_void};
use neap_process::pagemap;
use neap_trace::perf::attr::Event;

/// `PERF_EVENT_IOC_ENABLE`.
const ENABLE: c_ulong = 0x2400;
/// `PERF_EVENT_IOC_SET_OUTPUT`.
const SET_OUTPUT: c_ulong = 0x2405;
/// `PERF_EVENT_IOC_SET_BPF`.
const SET_BPF: c_ulong = 0x4004_2408;
/// `PERF_EVENT_IOC_ID`.
const ID: c_ulong = 0x8008_2407;

/// Opens an event of a thread (and of the threads that it makes) on a processor.
pub fn perf_event_open(event: &Event, tid: i32, cpu: u32) -> io::Result<OwnedFd> {
    const CLOSE_ON_EXEC: c_ulong = 8;
    const NO_GROUP: c_int = -1;
    let attr = event.to_bytes();
    // SAFETY: the attribute is as large as its size field says, and the kernel reads no further.
    let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, attr.as_ptr(), tid, cpu, NO_GROUP, CLOSE_ON_EXEC) };
    owned(fd as c_int)
}

/// The number of an event, which its samples carry.
pub fn perf_event_id(event: &OwnedFd) -> io::Result<u64> {
    let mut id = 0u64;
    // SAFETY: PERF_EVENT_IOC_ID writes eight bytes.
    check(unsafe { libc::ioctl(event.as_raw_fd(), ID, &mut id) })?;
    Ok(id)
}

/// How many samples of an event were lost, if it was opened to report that.
pub fn perf_event_lost(event: &OwnedFd) -> Option<u64> {
    // Its count, and the number of lost samples.
    let mut words = [0u64; 2];
    // SAFETY: the buffer is valid for its length.
    let read = unsafe { libc::read(event.as_raw_fd(), words.as_mut_ptr().cast(), size_of_val(&words)) };
    (usize::try_from(read) == Ok(size_of_val(&words))).then_some(words[1])
}

/// Redirects the samples of `event` into the ring of `output`.
pub fn perf_event_redirect(event: &OwnedFd, output: &OwnedFd) -> io::Result<()> {
    // SAFETY: PERF_EVENT_IOC_SET_OUTPUT takes a descriptor.
    check(unsafe { libc::ioctl(event.as_raw_fd(), SET_OUTPUT, output.as_raw_fd()) })
}

/// Begins to count.
pub fn perf_event_enable(event: &OwnedFd) -> io::Result<()> {
    // SAFETY: PERF_EVENT_IOC_ENABLE takes a number.
    check(unsafe { libc::ioctl(event.as_raw_fd(), ENABLE, 0) })
}

/// Makes a BPF program run for each sample of an event, in place of the sample.
pub fn perf_event_set_bpf(event: &OwnedFd, program: &OwnedFd) -> io::Result<()> {
    // SAFETY: PERF_EVENT_IOC_SET_BPF takes a descriptor.
    check(unsafe { libc::ioctl(event.as_raw_fd(), SET_BPF, program.as_raw_fd()) })
}

/// Makes a BPF array that can be mapped.
///
/// ```text
/// struct { __u32 map_type, key_size, value_size, max_entries, map_flags; };
/// ```
pub fn bpf_array(value_size: u32, entries: u32) -> io::Result<OwnedFd> {
    const MAP_CREATE: c_int = 0;
    const ARRAY: u32 = 2;
    const MMAPABLE: u32 = 1 << 10;
    bpf(MAP_CREATE, &[ARRAY, 4, value_size, entries, MMAPABLE])
}

/// An instruction: `struct bpf_insn { __u8 code; __u8 dst_reg:4, src_reg:4; __s16 off; __s32 imm; };`
pub type Instruction = [u8; 8];

/// Loads a BPF program for samples.
///
/// ```text
/// struct { __u32 prog_type, insn_cnt; __u64 insns, license; };
/// ```
pub fn bpf_load(instructions: &[Instruction]) -> io::Result<OwnedFd> {
    const PROG_LOAD: c_int = 5;
    const PERF_EVENT: u64 = 7;
    /// The functions that return the time and the thread require a GPL-compatible license.
    const LICENSE: &std::ffi::CStr = c"Dual MIT/GPL";
    let start = instructions.as_ptr().expose_provenance() as u64;
    let license = LICENSE.as_ptr().expose_provenance() as u64;
    bpf(PROG_LOAD, &[PERF_EVENT | (instructions.len() as u64) << 32, start, license])
}

/// A call of `bpf` that makes a descriptor; further words of its attribute are zero.
fn bpf<T>(command: c_int, attribute: &[T]) -> io::Result<OwnedFd> {
    // SAFETY: the attribute is as large as is said; what it points to lives through the call, which only reads it.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, command, attribute.as_ptr(), size_of_val(attribute)) };
    owned(fd as c_int)
}

/// A mapping of a file, or of an event's ring.
pub struct Mapped {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread.
unsafe impl Send for Mapped {}
// SAFETY: what is shared is read as bytes of a private mapping, or through atomics.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Maps a whole file for reading.
    ///
    /// The file must not get shorter while it is mapped, or reads end in SIGBUS. Programs and libraries do not:
    /// installing a new version makes a new file.
    pub fn file(file: &File) -> io::Result<Self> {
        let length = usize::try_from(file.metadata()?.len()).map_err(|_| io::ErrorKind::FileTooLarge)?;
        Self::map(length, libc::PROT_READ, libc::MAP_PRIVATE, file.as_raw_fd())
    }

    fn map(length: usize, protection: c_int, flags: c_int, fd: RawFd) -> io::Result<Self> {
        // SAFETY: a mapping at an address of the kernel's choice touches no memory of ours.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, fd, 0) };
        match NonNull::new(start.cast::<u8>()) {
            Some(start) if start.as_ptr().cast::<c_void>() != libc::MAP_FAILED => Ok(Self { start, length }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Maps memory that is shared with the kernel, for reading and writing.
    pub fn shared(descriptor: &OwnedFd, length: usize) -> io::Result<Self> {
        Self::map(length, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, descriptor.as_raw_fd())
    }

    /// A word of memory that is shared with the kernel, at a multiple of 8.
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.length, "a word of the mapping");
        // SAFETY: the word lies in the mapping, as was just seen, which begins at a page; both sides access it
        // atomically.
        unsafe { AtomicU64::from_ptr(self.start.as_ptr().add(offset).cast()) }
    }

    /// The bytes of a file.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is readable for its length as long as `self` lives; it is private, and files with code
        // are not written in place.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: it is a mapping of our own, and nothing borrows it.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.length) };
    }
}

/// The ring of an event: the kernel writes, neap reads.
///
/// ```text
/// struct perf_event_mmap_page { ...; u64 capabilities (at 40); u16 pmc_width; u16 time_shift (at 50);
///   u32 time_mult (at 52); ...; u64 data_head (at 1024); u64 data_tail; u64 data_offset; u64 data_size; ... };
/// ```
pub struct Ring {
    map: Mapped,
    data_offset: usize,
    data_size: usize,
}

impl Ring {
    /// Maps the ring of an event: a page, and `data_size` bytes, a power of two of pages.
    pub fn new(event: &OwnedFd, data_size: usize) -> io::Result<Self> {
        let page = page_size();
        let map = Mapped::shared(event, page + data_size)?;
        Ok(Self { map, data_offset: page, data_size })
    }

    /// Appends the contents of the ring to `out`, and gives the space back to the kernel.
    pub fn read(&self, out: &mut Vec<u8>) {
        let tail = self.word(1032).load(Ordering::Relaxed);
        // Pairs with the kernel's barrier before it stores data_head: the records are complete.
        let head = self.word(1024).load(Ordering::Acquire);
        let length = usize::try_from(head.wrapping_sub(tail)).unwrap_or(0).min(self.data_size);
        let start = (tail % self.data_size as u64) as usize;
        let first = length.min(self.data_size - start);
        out.reserve(length);
        for (offset, count) in [(start, first), (0, length - first)] {
            // SAFETY: offset + count <= data_size, so it lies in the mapping; the kernel does not write between tail
            // and head until the tail moves; `out` has room for `length` bytes.
            unsafe {
                let source = self.map.start.as_ptr().add(self.data_offset + offset);
                source.copy_to_nonoverlapping(out.as_mut_ptr().add(out.len()), count);
                out.set_len(out.len() + count);
            }
        }
        // Pairs with the kernel's load of data_tail: it overwrites only after the copy is done.
        self.word(1032).store(head, Ordering::Release);
    }

    /// How the kernel turns cycles into nanoseconds, if it publishes that: the multiplier and the shift.
    pub fn tsc(&self) -> Option<(u32, u16)> {
        const CAP_USER_TIME: u64 = 1 << 3;
        let capabilities = self.word(40).load(Ordering::Relaxed);
        let word = self.word(48).load(Ordering::Relaxed);
        (capabilities & CAP_USER_TIME != 0).then_some(((word >> 32) as u32, (word >> 16) as u16))
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        self.map.word(offset)
    }
}

/// A flag that wakes a thread that polls it.
pub struct Wakeup(OwnedFd);

impl Wakeup {
    /// A flag that is not raised yet.
    pub fn new() -> io::Result<Self> {
        // SAFETY: eventfd takes no pointers.
        owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) }).map(Self)
    }

    /// Raises it, for ever.
    pub fn raise(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: the buffer is valid for its length.
        unsafe { libc::write(self.0.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }
}

impl AsRawFd for Wakeup {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// A descriptor of a process that this one has not waited for.
pub fn process(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: pidfd_open takes numbers.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) } as c_int)
}

/// Asks a process to end; returns whether it still existed.
pub fn end(process: &OwnedFd) -> bool {
    let no_information = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: pidfd_send_signal reads no information where there is none.
    let sent =
        unsafe { libc::syscall(libc::SYS_pidfd_send_signal, process.as_raw_fd(), libc::SIGTERM, no_information, 0) };
    sent == 0
}

/// Waits until one of the descriptors can be read or has hung up, or the time is over. Descriptors that hung up are
/// replaced by -1, which poll ignores.
pub fn poll(descriptors: &mut [libc::pollfd], milliseconds: c_int) {
    // SAFETY: the slice is valid for its length.
    unsafe { libc::poll(descriptors.as_mut_ptr(), descriptors.len() as libc::nfds_t, milliseconds) };
    for descriptor in descriptors {
        if descriptor.revents & (libc::POLLHUP | libc::POLLERR | libc::POLLNVAL) != 0 {
            descriptor.fd = -1;
        }
    }
}

/// The argument for [`poll`].
pub fn readable(descriptor: &impl AsRawFd) -> libc::pollfd {
    libc::pollfd { fd: descriptor.as_raw_fd(), events: libc::POLLIN, revents: 0 }
}

/// The kind of file system that a file is in: the kernel's `*_SUPER_MAGIC`.
pub fn file_system(file: &File) -> Option<u32> {
    let mut status = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the structure is writable.
    check(unsafe { libc::fstatfs(file.as_raw_fd(), status.as_mut_ptr()) }).ok()?;
    // SAFETY: fstatfs succeeded, so it filled in the structure.
    Some(unsafe { status.assume_init() }.f_type as u32)
}

/// The processor's counter and the kernel's clock, read one after the other; `None` on processors without the counter.
pub fn tsc_and_clock() -> Option<(u64, u64)> {
    #[cfg(target_arch = "x86_64")]
    {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the structure is writable; every x86-64 processor has the counter.
        let cycles = unsafe {
            libc::clock_gettime(libc::CLOCK_MONOTONIC_RAW, &mut time);
            core::arch::x86_64::_rdtsc()
        };
        Some((cycles, time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64))
    }
    #[cfg(not(target_arch = "x86_64"))]
    None
}

/// The mean time of a first touch of a page of anonymous memory, in nanoseconds: of the quickest of a few rounds.
pub fn first_touch_time() -> io::Result<u64> {
    const PAGES: usize = 256;
    const ROUNDS: usize = 5;
    let length = PAGES * page_size();
    let mut best = u64::MAX;
    for _ in 0..ROUNDS {
        // SAFETY: a mapping at an address of the kernel's choice touches no memory of ours.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let bytes = start.cast::<u8>();
        // A huge page would be one touch. Where there are none, nothing must be forbidden.
        // SAFETY: the range is the mapping that was just made.
        unsafe { libc::madvise(start, length, libc::MADV_NOHUGEPAGE) };
        let begun = monotonic();
        for page in 0..PAGES {
            // SAFETY: the byte lies in the mapping, which nothing else uses.
            unsafe { bytes.add(page * page_size()).write_volatile(1) };
        }
        best = best.min((monotonic() - begun) / PAGES as u64);
        // SAFETY: the mapping is ours, and nothing borrows it.
        unsafe { libc::munmap(start, length) };
    }
    Ok(best)
}

/// The time of CLOCK_MONOTONIC, in nanoseconds.
pub fn monotonic() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is writable.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Raises this process's limit on descriptors as far as permitted: each processor takes four.
pub fn raise_descriptor_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is valid for both calls.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 && limit.rlim_cur < limit.rlim_max {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        }
    }
}

/// Reads a file of `/proc` in one read, so that it is consistent, if it is not too large.
pub fn read_whole(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    let mut text = Vec::with_capacity(16 << 10);
    File::open(path)?.read_to_end(&mut text)?;
    Ok(text)
}

/// Limit on the bytes that this process may lock.
pub fn lockable_bytes() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is valid for the call.
    unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) };
    usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX)
}

/// Raises the priority of this thread; only root may.
pub fn hurry() {
    const THIS_THREAD: libc::id_t = 0;
    // SAFETY: setpriority takes no pointers; in Linux a priority is a thread's.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, THIS_THREAD, -10) };
}

fn owned(fd: c_int) -> io::Result<OwnedFd> {
    check(fd)?;
    // SAFETY: the call succeeded, so the descriptor is open, and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn check(result: c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The present pages of a range, by the ioctl PAGEMAP_SCAN (Linux 6.7), otherwise by reading pagemap.
pub fn present_pages(pagemap: &File, start: u64, end: u64) -> Vec<u64> {
    let mut pages = Vec::new();
    if scan_pages(pagemap, start, end, &mut pages).is_none() {
        pages.clear();
        read_pages(pagemap.as_raw_fd(), start, end, &mut pages);
    }
    pages
}

/// Whether a present page belongs to a file or to shared memory: bit 61 of its word in pagemap.
pub fn is_of_file(pagemap: &File, page: u64) -> bool {
    let mut word = [0u8; 8];
    let position = page / page_size() as u64 * size_of_val(&word) as u64;
    pagemap.read_exact_at(&mut word, position).is_ok() && u64::from_ne_bytes(word) >> 61 & 1 == 1
}

fn scan_pages(pagemap: &File, start: u64, end: u64, pages: &mut Vec<u64>) -> Option<()> {
    let mut from = start;
    while from < end {
        let (regions, walked) = pagemap::scan(pagemap, from..end).ok()?;
        for region in regions.into_iter().filter(|region| !region.swapped) {
            pages.extend(region.range.step_by(page_size()));
        }
        // The walk stops early where the regions are full.
        if walked <= from {
            return None;
        }
        from = walked;
    }
    Some(())
}

/// Reads pagemap: eight bytes for each page, whose top bit means present.
fn read_pages(pagemap: RawFd, start: u64, end: u64, pages: &mut Vec<u64>) {
    const WORDS: usize = 4096;
    let page = page_size() as u64;
    let mut words = [0u64; WORDS];
    let mut from = start;
    while from < end {
        let wanted = usize::try_from((end - from) / page).unwrap_or(WORDS).min(WORDS);
        // SAFETY: the buffer has room for that many words.
        let read = unsafe { libc::pread(pagemap, words.as_mut_ptr().cast(), wanted * 8, (from / page * 8) as i64) };
        let count = usize::try_from(read).unwrap_or(0) / 8;
        if count == 0 {
            return;
        }
        pages.extend(
            (from..).step_by(page_size()).zip(&words[..count]).filter(|&(_, word)| word >> 63 == 1).map(|(at, _)| at),
        );
        from += count as u64 * page;
    }
}
