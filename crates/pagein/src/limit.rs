//! A limit on the time of a program that neap started.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use neap_launch::error::{Error, system_message};

use crate::sys::{self, Wakeup};

/// Ends the program with SIGTERM after a time limit.
pub struct TimeLimit {
    thread: JoinHandle<bool>,
    stop: Arc<Wakeup>,
}

impl TimeLimit {
    /// Starts the time limit.
    pub fn start(pid: u32, time: Duration) -> Result<Self, Error> {
        let failed = |e: io::Error| Error::failed(format!("cannot limit the time: {}", system_message(&e)));
        // A pidfd, because the number could be another process's by then.
        let process = sys::process(pid.cast_signed()).map_err(failed)?;
        let stop = Arc::new(Wakeup::new().map_err(failed)?);
        let stopped = Arc::clone(&stop);
        let started = Instant::now();
        let thread = std::thread::Builder::new().name("time limit".to_owned()).spawn(move || {
            let mut descriptors = [sys::readable(&*stopped)];
            loop {
                let left = time.saturating_sub(started.elapsed());
                if left.is_zero() {
                    return sys::end(&process);
                }
                let left = left.as_millis().saturating_add(1).min(i32::MAX as u128);
                sys::poll(&mut descriptors, i32::try_from(left).unwrap_or(i32::MAX));
                if descriptors[0].revents != 0 {
                    return false;
                }
            }
        });
        Ok(Self { thread: thread.map_err(failed)?, stop })
    }

    /// Call after the program has ended; returns whether the time limit was reached.
    pub fn finish(self) -> bool {
        self.stop.raise();
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}
