//! What a Rust program can query and set.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: neap::Neap = neap::Neap;

/// The tests share one allocator, so one runs at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(|e| e.into_inner())
}

/// Catches a value that is not the one that was set, an origin that does not follow, and errors that are mixed up.
#[test]
fn options_are_set_and_read() {
    let _one = alone();
    let shown = |name| neap::option(name).map(|(value, origin)| format!("{value} by {origin}"));
    assert_eq!(shown("zero").as_deref(), Ok("resident by default"));
    assert_eq!(neap::set_option("zero", "always"), Ok(()));
    assert_eq!(shown("zero").as_deref(), Ok("always by the program"));
    assert_eq!(neap::set_option("zero", "resident"), Ok(()));
    assert_eq!(neap::set_option("zero", "sometimes"), Err(neap::OptionError::BadValue));
    assert_eq!(neap::set_option("counters", "/tmp"), Err(neap::OptionError::StartOnly));
    assert_eq!(neap::set_option("zer", "always"), Err(neap::OptionError::Unknown));
    assert_eq!(shown("counters").as_deref(), Ok(" by default"));
}

/// Catches figures that do not follow the program.
#[test]
fn figures_follow() {
    let _one = alone();
    let before = neap::stats();
    let block = vec![1u8; 10 << 20];
    let with = neap::stats();
    assert!(neap::held_bytes() >= 10 << 20);
    // The threads of the test harness may free some meanwhile.
    assert!(with.live_bytes + (1 << 20) >= before.live_bytes + block.len() as u64, "{with:?}");
    assert_eq!(with.size, size_of::<neap::Stats>());
    drop(block);
    assert!(neap::stats().live_bytes < before.live_bytes + (1 << 20));
    assert!(neap::stats().peak_bytes >= 10 << 20);
}

/// Catches a trim that does nothing, counts what was not there, or does not end when its time is up.
#[test]
fn trims() {
    let _one = alone();
    neap::set_option("purge", "never").expect("an option");
    drop(vec![1u8; 64 << 20]);
    let short = neap::trim(0, Some(Duration::from_nanos(1)));
    assert!(!short.complete && short.memory < 64 << 20, "{short:?}");
    let all = neap::trim(0, None);
    assert!(all.complete && short.memory + all.memory >= 64 << 20, "{short:?} {all:?}");
    drop(Vec::<u8>::with_capacity(64 << 20));
    let untouched = neap::trim(0, None);
    assert!(untouched.addresses >= 64 << 20 && untouched.memory < 1 << 20, "{untouched:?}");
    drop(vec![1u8; 64 << 20]);
    let kept = neap::trim(32 << 20, None);
    assert!((32 << 20..40 << 20).contains(&kept.memory), "{kept:?}");
    neap::set_option("purge", "decay").expect("an option");
}

/// Catches an idle thread whose caches stay full.
#[test]
fn idle_threads_keep_nothing() {
    let _one = alone();
    std::thread::spawn(|| {
        let blocks: Vec<_> = (0..1000).map(|_| Box::new([0u8; 200])).collect();
        drop(blocks);
        let full = neap::stats().cached_bytes;
        neap::thread_idle();
        assert!(neap::stats().cached_bytes + 20_000 < full, "{full}");
    })
    .join()
    .expect("the thread ends");
}

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);
static FREED: AtomicUsize = AtomicUsize::new(0);
static WEIGHT: AtomicU64 = AtomicU64::new(0);
static MISTAKES: AtomicUsize = AtomicUsize::new(0);

fn hook(sample: &neap::Sample) {
    // Hooks may allocate and free.
    let text = format!("{sample:?}");
    let known = match sample.event {
        neap::SampleEvent::Allocated => {
            ALLOCATED.fetch_add(1, Ordering::Relaxed);
            WEIGHT.fetch_add(sample.weight, Ordering::Relaxed);
            sample.requested > 0 && sample.usable >= sample.requested
        }
        _ => {
            FREED.fetch_add(1, Ordering::Relaxed);
            sample.weight == 0
        }
    };
    if !known || text.is_empty() {
        MISTAKES.fetch_add(1, Ordering::Relaxed);
    }
}

/// Catches samples whose weights do not sum up to the requested bytes, in any way to allocate; samples whose free is
/// not reported; and hooks that are called after they were removed.
#[test]
fn samples_stand_for_all() {
    let _one = alone();
    const INTERVAL: usize = 20_000;
    assert!(neap::on_sample(hook, INTERVAL));
    let asked: u64 = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(|thread| thread.join().expect("the thread ends")).sum()
    });
    neap::stop_sampling();
    let (samples, freed) = (ALLOCATED.load(Ordering::Relaxed), FREED.load(Ordering::Relaxed));
    assert!(samples > 1000, "{samples}");
    let ratio = WEIGHT.load(Ordering::Relaxed) as f64 / asked as f64;
    assert!((ratio - 1.0).abs() < 5.0 / (samples as f64).sqrt(), "{samples} samples: {ratio}");
    // The harness may still hold some.
    assert!(freed <= samples && freed + 20 >= samples, "{freed} of {samples}");
    drop(vec![0u8; 10_000_000]);
    assert_eq!(ALLOCATED.load(Ordering::Relaxed), samples);
    assert_eq!(MISTAKES.load(Ordering::Relaxed), 0);
}

/// Allocates in all ways, and returns the requested bytes.
fn work() -> u64 {
    let mut asked = 0;
    for i in 0..30_000usize {
        let size = 1 + i * 7919 % 3000;
        asked += size as u64;
        drop(std::hint::black_box(Vec::<u8>::with_capacity(size)));
        asked += size as u64;
        drop(std::hint::black_box(vec![0u8; size]));
        if i % 100 == 0 {
            asked += 100_000;
            drop(std::hint::black_box(vec![1u8; 100_000]));
        }
    }
    asked
}
