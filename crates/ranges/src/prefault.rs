//! Prefault: makes a range resident before it is used, with several threads if the caller requests that.
//!
//! The range is cut into pieces, and each thread takes the next one that is left. The calling thread is one of them; it
//! calls the callback between its pieces. The others are ordinary threads of the C library, with all signals blocked.
//! They call none of the program's functions, and have ended when the call returns or the callback has panicked. If
//! they cannot be started, fewer threads do the work. The calling thread cannot be cancelled meanwhile, because the C
//! library would end it while it waits for the others.

use crate::error::Error;
use crate::kernel::page_size;
use crate::maps;
use crate::populate::{self, Access};
use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::ops::ControlFlow;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use neap_sys::{call, errno};

/// Bytes that a thread populates at a time. This limits how long the kernel holds the lock of the address space, and
/// how late a cancellation takes effect. A multiple of the huge page, because two threads in one would wait for each
/// other.
const PIECE: usize = 4 << 20;
/// Maximum number of threads.
const THREADS: usize = 64;
/// Stands for one thread for each processor.
const ALL: usize = usize::MAX;
/// Minimum bytes for each thread if this crate chooses their number: starting a thread costs as much as clearing some
/// hundred KiB.
const BYTES_FOR_A_THREAD: usize = 16 << 20;

/// How a range is prefaulted.
#[derive(Clone, Copy, Debug)]
pub struct Prefault {
    access: Access,
    threads: usize,
}

/// How far a prefault is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes that are resident.
    pub done: usize,
    /// Bytes of the range, in whole OS pages.
    pub total: usize,
}

/// A prefault that failed or was cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Incomplete {
    /// Why.
    pub error: Error,
    /// Bytes that were made resident; with several threads, not all of them are at the beginning of the range.
    pub done: usize,
}

impl core::fmt::Display for Incomplete {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} (after {} bytes)", self.error, self.done)
    }
}

impl core::error::Error for Incomplete {}

/// What the threads share.
struct Job {
    start: *const u8,
    bytes: usize,
    access: Access,
    /// Bytes of a piece. Pieces end at multiples of it.
    piece: usize,
    /// Where the next piece begins.
    next: AtomicUsize,
    done: AtomicUsize,
    /// The number of the first error; 0: none.
    error: AtomicI32,
}

impl Prefault {
    /// For reading, in the calling thread.
    pub const fn read() -> Prefault {
        Prefault { access: Access::Read, threads: 1 }
    }

    /// For writing, in the calling thread.
    pub const fn write() -> Prefault {
        Prefault { access: Access::Write, threads: 1 }
    }

    /// In as many threads, the calling one included; at most 64, and as many as there are pieces.
    #[must_use]
    pub const fn threads(self, threads: usize) -> Prefault {
        Prefault { threads, ..self }
    }

    /// In one thread for each processor that the process may use, or fewer if the range is too short for a gain.
    #[must_use]
    pub const fn all_processors(self) -> Prefault {
        self.threads(ALL)
    }

    /// Makes all OS pages resident that overlap the range. No contents change, whatever other threads do there
    /// meanwhile; the range need not be the caller's.
    ///
    /// # Errors
    /// Why a part of it is not resident. [`Error::Inaccessible`] if a part is not mapped, or does not permit this
    /// access.
    pub fn run(self, start: *const u8, bytes: usize) -> Result<(), Incomplete> {
        self.run_with(start, bytes, |_| ControlFlow::Continue(()))
    }

    /// [`Prefault::run`] with a callback, which the calling thread calls after each of its pieces of some MiB, and at
    /// the end. It ends the prefault by [`ControlFlow::Break`].
    ///
    /// # Errors
    /// As `run`, and [`Error::Cancelled`].
    pub fn run_with(
        self,
        start: *const u8,
        bytes: usize,
        mut progress: impl FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<(), Incomplete> {
        let page = page_size();
        let before = start.addr() & (page - 1);
        let total = bytes.checked_add(before).and_then(|bytes| bytes.checked_next_multiple_of(page));
        let fits = |&total: &usize| (start.addr() - before).checked_add(total).is_some();
        let Some(total) = total.filter(fits) else {
            return Err(Incomplete { error: Error::BadValue, done: 0 });
        };
        if bytes == 0 {
            return Ok(());
        }
        let start = start.wrapping_sub(before);
        // Pages of 1 GiB are pieces of their own.
        let piece = PIECE.max(maps::page_size_at(start).unwrap_or(page));
        let threads = self.count(total).min(total.div_ceil(piece));
        let job = Job {
            start,
            bytes: total,
            access: self.access,
            piece,
            next: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
            error: AtomicI32::new(0),
        };
        let mut is_reported = false;
        let helpers = Helpers::start(&job, threads - 1);
        job.work(&mut |now| {
            let answer = progress(now);
            is_reported = answer.is_break() || now.done == total;
            answer
        });
        drop(helpers);
        let result = job.result();
        if result.is_ok() && !is_reported {
            // Another thread took the last piece.
            let _ = progress(Progress { done: total, total });
        }
        result
    }

    fn count(self, bytes: usize) -> usize {
        if self.threads != ALL {
            return self.threads.clamp(1, THREADS);
        }
        let processors = rustix::thread::sched_getaffinity(None).map_or(1, |set| set.count() as usize);
        processors.min(bytes / BYTES_FOR_A_THREAD).clamp(1, THREADS)
    }
}

impl Job {
    /// Takes the next piece: its place and length.
    fn take(&self) -> Option<(usize, usize)> {
        // Relaxed: the numbers stand for themselves; the end of the threads orders all else.
        let end_of = |at: usize| {
            let border = (self.start.addr() + at + 1).checked_next_multiple_of(self.piece);
            border.map_or(self.bytes, |border| (border - self.start.addr()).min(self.bytes))
        };
        let step = |at| (at < self.bytes).then(|| end_of(at));
        let at = self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, step).ok()?;
        (self.error.load(Ordering::Relaxed) == 0).then(|| (at, end_of(at) - at))
    }

    /// Populates pieces until none is left.
    fn work(&self, progress: &mut dyn FnMut(Progress) -> ControlFlow<()>) {
        while let Some((at, bytes)) = self.take() {
            match populate::populate(self.start.wrapping_add(at), bytes, self.access) {
                Ok(()) => {
                    let done = self.done.fetch_add(bytes, Ordering::Relaxed) + bytes;
                    if progress(Progress { done, total: self.bytes }).is_break() {
                        self.fail(Error::Cancelled);
                    }
                }
                Err(error) => self.fail(error),
            }
        }
    }

    fn fail(&self, error: Error) {
        // The first error stays.
        let _ = self.error.compare_exchange(0, error as i32, Ordering::Relaxed, Ordering::Relaxed);
    }

    fn result(&self) -> Result<(), Incomplete> {
        let done = self.done.load(Ordering::Relaxed);
        match Error::from_number(self.error.load(Ordering::Relaxed)) {
            // Cancelled after the last piece: nothing is missing.
            None | Some(Error::Cancelled) if done == self.bytes => Ok(()),
            error => Err(Incomplete { error: error.unwrap_or(Error::Unsupported), done }),
        }
    }
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}
/// PTHREAD_CANCEL_DISABLE of the C library.
const CANNOT_BE_CANCELLED: c_int = 1;

/// Other threads that work on a job. They have ended when this is dropped.
struct Helpers<'a> {
    job: &'a Job,
    /// The first `started` of them have a value.
    threads: [MaybeUninit<libc::pthread_t>; THREADS],
    started: usize,
    /// Whether the calling thread could be cancelled before.
    cancel_state: c_int,
}

impl Helpers<'_> {
    /// Starts `count` threads, or fewer if they cannot be started.
    fn start(job: &Job, count: usize) -> Helpers<'_> {
        let mut new = Helpers { job, threads: [const { MaybeUninit::uninit() }; THREADS], started: 0, cancel_state: 0 };
        let argument = core::ptr::from_ref(job).cast_mut().cast::<c_void>();
        // The C library may set errno.
        errno::kept(|| {
            // SAFETY: it writes the state of before; `drop` sets that again.
            unsafe { pthread_setcancelstate(CANNOT_BE_CANCELLED, &raw mut new.cancel_state) };
            call::without_signals(|| {
                for thread in &mut new.threads[..count.min(THREADS)] {
                    // SAFETY: the job outlives this value, whose drop joins the thread; a thread uses it by reference
                    // only.
                    if unsafe { libc::pthread_create(thread.as_mut_ptr(), core::ptr::null(), work, argument) } != 0 {
                        break;
                    }
                    new.started += 1;
                }
            });
        });
        new
    }
}

impl Drop for Helpers<'_> {
    fn drop(&mut self) {
        // Pieces are left only where the callback has panicked; no thread may begin another one.
        self.job.next.store(self.job.bytes, Ordering::Relaxed);
        errno::kept(|| {
            for thread in &self.threads[..self.started] {
                // SAFETY: it was started, and is joined once.
                unsafe { libc::pthread_join(thread.assume_init(), null_mut()) };
            }
            // SAFETY: a state that it returned.
            unsafe { pthread_setcancelstate(self.cancel_state, null_mut()) };
        });
    }
}

/// The start function of the other threads.
extern "C" fn work(job: *mut c_void) -> *mut c_void {
    // SAFETY: `Helpers::start` passes a job that lives until this thread has ended.
    let job = unsafe { &*job.cast::<Job>() };
    job.work(&mut |_| ControlFlow::Continue(()));
    null_mut()
}
