//! A pool of huge pages that grows and is taken away during a run. It is the machine's, so only one run at a time uses
//! it, and no test that changes such settings runs meanwhile.

use std::fs::{self, File};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::plan::Draw;

const SIZE: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
/// The lock file in the temporary folder, which tests that change settings of huge pages use too.
const LOCK: &str = "neap-tests-huge-page-settings";
/// Pages that the pool has in turn: none, few, as many as a program of the torture needs.
const SIZES: &[u32] = &[0, 3, 16, 60, 200];

/// The pool; restored when dropped.
pub struct Pool {
    before: String,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    /// Locked as long as it is open.
    _lock: File,
}

impl Pool {
    /// Starts to change the size, in an order from the seed; the error says why that is not possible.
    pub fn start(seed: u64) -> Result<Self, String> {
        let why = |error| format!("the pool of huge pages cannot be changed: {error}");
        let lock = File::options().create(true).append(true).open(std::env::temp_dir().join(LOCK)).map_err(why)?;
        lock.lock().map_err(why)?;
        let before = fs::read_to_string(SIZE).map_err(why)?;
        let mut draw = Draw::new(seed);
        fs::write(SIZE, draw.pick(SIZES).to_string()).map_err(why)?;
        let over = Arc::new(AtomicBool::new(false));
        let ends = over.clone();
        let thread = std::thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(10 + draw.below(400) as u64));
                // Refused if memory is short; then the size stays.
                let _ = fs::write(SIZE, draw.pick(SIZES).to_string());
            }
        });
        Ok(Pool { before, over, thread: Some(thread), _lock: lock })
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        if let Err(error) = fs::write(SIZE, self.before.trim()) {
            eprintln!("could not restore {} in {SIZE}: {error}", self.before.trim());
        }
    }
}
