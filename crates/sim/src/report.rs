//! Findings: the text goes to a page that the driver shares with its workers, and the worker ends.

use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use core::time::Duration;

/// Exit status of a worker that found something.
pub const FOUND: i32 = 101;
const TEXT: usize = 8000;

/// What a worker reports to the driver.
#[repr(C)]
pub struct Shared {
    /// Seed of the present run.
    pub seed: AtomicU64,
    /// Runs and steps so far.
    pub runs: AtomicU64,
    /// Likewise.
    pub steps: AtomicU64,
    /// Nanoseconds that the worker has had a processor.
    pub processor: AtomicU64,
    len: AtomicUsize,
    text: [u8; TEXT],
}

static SHARED: AtomicPtr<Shared> = AtomicPtr::new(core::ptr::null_mut());
/// Whether every operation is printed.
pub static TRACE: AtomicBool = AtomicBool::new(false);

impl Shared {
    /// A new page.
    pub fn new() -> &'static Shared {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh mapping, of zeros, which stays.
        unsafe {
            let p = libc::mmap(core::ptr::null_mut(), size_of::<Shared>(), access, flags, -1, 0);
            assert_ne!(p, libc::MAP_FAILED, "memory for a page");
            &*p.cast()
        }
    }

    /// Makes this process report to its driver through `self`.
    pub fn adopt(&'static self) {
        SHARED.store((&raw const *self).cast_mut(), Ordering::Relaxed);
    }

    /// Records the worker's processor time so far.
    pub fn note_time(&self) {
        self.processor.store(processor_time().as_nanos() as u64, Ordering::Relaxed);
    }

    /// The text of the finding.
    pub fn text(&self) -> String {
        let len = self.len.load(Ordering::Relaxed).min(TEXT);
        String::from_utf8_lossy(&self.text[..len]).into_owned()
    }
}

/// The time that this process has had a processor.
pub fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills the record.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
}

fn tell(text: &str) {
    let shared = SHARED.load(Ordering::Relaxed);
    if shared.is_null() {
        return eprintln!("{text}");
    }
    // SAFETY: the page stays.
    unsafe { (*shared).note_time() };
    // SAFETY: the page is this process's to write; the driver reads it when the process has ended.
    unsafe {
        if (*shared).len.load(Ordering::Relaxed) == 0 {
            let len = text.len().min(TEXT);
            core::ptr::copy_nonoverlapping(text.as_ptr(), (&raw mut (*shared).text).cast(), len);
            (*shared).len.store(len, Ordering::Relaxed);
        }
    }
}

/// Describes the position of a run; set by the scheduler.
static mut PLACE: fn() -> String = String::new;

/// Sets the function that describes the position of a run.
pub fn set_place(place: fn() -> String) {
    // SAFETY: there is one real thread.
    unsafe { PLACE = place };
}

/// Reports a finding to the driver, and ends the worker.
#[cold]
pub fn finding(what: &str) -> ! {
    // SAFETY: there is one real thread.
    let place = unsafe { PLACE };
    tell(&format!("{what}{}", place()));
    if std::env::var_os("NEAP_SIM_BACKTRACE").is_some() {
        eprintln!("{}", std::backtrace::Backtrace::force_capture());
    }
    // SAFETY: ends the process.
    unsafe { libc::_exit(FOUND) }
}

/// The child of a fork has failed, so its parent fails too.
pub fn child_failed(status: i32) -> ! {
    finding(&format!("the child of a fork ended with wait status {status:#x}"))
}

/// Turns panics and bad accesses into findings.
pub fn watch() {
    std::panic::set_hook(Box::new(|info| finding(&format!("panic: {info}").replace('\n', " "))));
    const STACK: usize = 256 << 10;
    // SAFETY: the stack is never freed; the handler ends the process.
    unsafe {
        let stack = libc::stack_t { ss_sp: libc::malloc(STACK), ss_flags: 0, ss_size: STACK };
        libc::sigaltstack(&raw const stack, core::ptr::null_mut());
        let mut action: libc::sigaction = core::mem::zeroed();
        action.sa_sigaction = bad_access as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE] {
            libc::sigaction(signal, &raw const action, core::ptr::null_mut());
        }
    }
}

extern "C" fn bad_access(signal: i32, info: *const libc::siginfo_t, _: *const libc::c_void) {
    // SAFETY: the kernel's.
    let address = unsafe { (*info).si_addr() };
    finding(&format!("signal {signal} at address {address:p}"))
}

/// Prints what a thread does, if asked to.
#[macro_export]
macro_rules! trace {
    ($($arg:tt)*) => {
        if $crate::report::TRACE.load(core::sync::atomic::Ordering::Relaxed) {
            let s = $crate::sched::sched();
            eprintln!("{:>9} {:>8} ms thread {}: {}", s.steps, s.clock, s.current, format!($($arg)*));
        }
    };
}
