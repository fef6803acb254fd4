//! The thread that makes rollups and accounts within the budget.

use crate::collector::{self, Collector};
use crate::jobs::Job;
use neap_launch::error::{Error, system_message};
use std::cell::RefCell;
use std::io;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Pause if nothing is due.
const IDLE: Duration = Duration::from_millis(250);
/// The budget accumulates over at most this time.
const SAVED: Duration = Duration::from_secs(15);
/// At the start, when there are no figures yet, the budget of this time is available in advance, up to [`LIMIT`]
/// seconds.
const ADVANCE: Duration = Duration::from_secs(300);
const LIMIT: f64 = 2.0;

/// The collector, shared by threads.
#[derive(Clone, Debug)]
pub struct Shared(Arc<Mutex<Collector>>);

impl Shared {
    /// Shares a collector.
    pub fn new(collector: Collector) -> Self {
        Shared(Arc::new(Mutex::new(collector)))
    }

    /// The collector, when no other thread uses it.
    pub fn lock(&self) -> MutexGuard<'_, Collector> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads all processes: light figures only.
    pub fn look(&self) -> Result<(), Error> {
        neap_why::check_proc()?;
        self.lock().look().map_err(|error| {
            Error::failed(format!("cannot read any process: {}", system_message(&error)))
                .remedy(neap_why::remedy(&error).unwrap_or("mount -t proc proc /proc"))
        })
    }

    /// Does a job, and keeps its result.
    fn make(&self, job: Job) -> Duration {
        let before = processor_time(Clock::Thread);
        let exact = self.lock().pace().exact;
        let made = collector::make(job, exact, hurries);
        let cost = processor_time(Clock::Thread).saturating_sub(before);
        self.lock().done(job, made, cost);
        cost
    }
}

/// Makes what is due, until nothing is or the time is over; for a single table without a thread.
pub fn make_up_to(shared: &Shared, time: Duration) {
    let started = Instant::now();
    while started.elapsed() < time {
        let job = shared.lock().next_job(Instant::now());
        let Some((job, _)) = job else { break };
        shared.make(job);
    }
}

/// The thread. When this value is dropped, the thread's reading is cut short and it ends. The wait for that has a
/// limit, because the kernel may make the thread wait for a process.
#[derive(Debug)]
pub struct Background {
    /// Dropped to end the thread.
    stop: Option<mpsc::Sender<()>>,
    /// Set to cut its reading short.
    hurry: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Limit on the wait for the thread's end.
const END: Duration = Duration::from_secs(2);

thread_local! {
    /// The flag of the [`Background`] that owns this thread.
    static HURRY: RefCell<Option<Arc<AtomicBool>>> = const { RefCell::new(None) };
}

/// Whether this thread shall end.
fn hurries() -> bool {
    // Relaxed: no other data depend on the flag.
    HURRY.with_borrow(|hurry| hurry.as_ref().is_some_and(|hurry| hurry.load(Ordering::Relaxed)))
}

impl Background {
    /// Starts the thread, which inherits the signal mask.
    pub fn start(shared: &Shared) -> io::Result<Background> {
        let (stop, stopped) = mpsc::channel();
        let (shared, hurry) = (shared.clone(), Arc::new(AtomicBool::new(false)));
        let of_thread = Arc::clone(&hurry);
        let thread = std::thread::Builder::new().name("accounts".to_owned()).spawn(move || {
            HURRY.set(Some(of_thread));
            run(&shared, &stopped);
        })?;
        Ok(Background { stop: Some(stop), hurry, thread: Some(thread) })
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        drop(self.stop.take());
        self.hurry.store(true, Ordering::Relaxed);
        let Some(thread) = self.thread.take() else { return };
        let until = Instant::now() + END;
        while !thread.is_finished() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        if thread.is_finished() {
            let _ = thread.join();
        }
    }
}

/// The thread's loop. Credit grows with time by the share, and a job takes its cost; an expensive one leaves a debt.
fn run(shared: &Shared, stopped: &mpsc::Receiver<()>) {
    let share = shared.lock().pace().share;
    let most = SAVED.as_secs_f64() * share;
    let (mut credit, mut at) = ((ADVANCE.as_secs_f64() * share).min(LIMIT).max(most), Instant::now());
    let mut nap = Duration::ZERO;
    while stopped.recv_timeout(nap) == Err(RecvTimeoutError::Timeout) {
        let now = Instant::now();
        credit = (credit + now.duration_since(at).as_secs_f64() * share).min(most.max(credit));
        at = now;
        let next = shared.lock().next_job(now);
        nap = match next {
            None => IDLE,
            // A job that costs more than can be saved runs when the credit is full.
            Some((_, cost)) if credit < cost.as_secs_f64().min(most) => {
                let missing = cost.as_secs_f64().min(most) - credit;
                Duration::from_secs_f64((missing / share).clamp(0.001, 1.0))
            }
            Some((job, _)) => {
                credit -= shared.make(job).as_secs_f64();
                Duration::ZERO
            }
        };
    }
}

/// Whose processor time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// This thread's.
    Thread,
    /// The process's.
    Process,
}

/// Processor time so far.
pub fn processor_time(of: Clock) -> Duration {
    let clock = if of == Clock::Thread { libc::CLOCK_THREAD_CPUTIME_ID } else { libc::CLOCK_PROCESS_CPUTIME_ID };
    let mut time = MaybeUninit::<libc::timespec>::zeroed();
    // SAFETY: the buffer has room for the structure, for which all zeros are valid.
    let time = unsafe {
        libc::clock_gettime(clock, time.as_mut_ptr());
        time.assume_init()
    };
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Filter, Pace};

    /// Catches a thread that goes on reading after its end.
    #[test]
    fn the_thread_has_ended() {
        let threads = || {
            let all = std::fs::read_dir("/proc/self/task").expect("threads").flatten();
            let names = all.filter_map(|of| std::fs::read_to_string(of.path().join("comm")).ok());
            names.filter(|name| name.trim() == "accounts").count()
        };
        let pace =
            Pace { share: 1.0, rollup: Duration::ZERO, account: Duration::ZERO, exact: false, accounts_first: false };
        let shared = Shared::new(Collector::new(Filter::new(None).expect("none"), pace));
        shared.look().expect("/proc");
        for pause in [0, 3, 30] {
            let background = Background::start(&shared).expect("a thread");
            std::thread::sleep(Duration::from_millis(pause));
            drop(background);
            assert_eq!(threads(), 0, "{pause}");
        }
    }
}
