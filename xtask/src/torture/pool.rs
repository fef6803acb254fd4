//! A pool of huge pages that grows and is taken away while a run is under way. It is the machine's, so one run at a time has
//! it, and no test that changes such settings runs meanwhile.

use std::fs::{self, File};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::plan::Draw;

const SIZE: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
/// In the folder for temporary files: as the tests that change settings of huge pages have it.
const LOCK: &str = "neap-tests-huge-page-settings";
/// Pages that the pool has in turn: none, few, as many as a program of the torture wants.
const SIZES: &[u32] = &[0, 3, 16, 60, 200];

/// The pool; put back when dropped.
pub struct Pool {
    before: String,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    /// Locked as long as it is open.
    _lock: File,
}

impl Pool {
    /// Begins to change the size, as the seed says; why that cannot be.
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
                // Refused where memory is short: the size stays.
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
            eprintln!("could not put {} back into {SIZE}: {error}", self.before.trim());
        }
    }
}
