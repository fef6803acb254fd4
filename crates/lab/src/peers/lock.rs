//! One build at a time in a folder, because two would write the same files.

use std::fs::{self, File, TryLockError};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::failure::failure;
use crate::interrupt;

/// How often a taken lock is tried again.
const AGAIN: Duration = Duration::from_millis(100);

/// A folder that no other build uses; the kernel frees it when the process ends.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Creates `folder` if it is missing, and waits until no other build uses it; calls `waits` once if it must wait.
    pub fn take(folder: &Path, waits: impl FnOnce()) -> Result<Lock> {
        fs::create_dir_all(folder).map_err(|error| {
            let cause = format!("cannot create {}: {error}", folder.display());
            failure(cause, "name a folder that you may write to with --peers, or set XDG_CACHE_HOME")
        })?;
        let path = folder.join(".lock");
        let file = File::options().create(true).append(true).open(&path);
        let file = file.with_context(|| format!("cannot open {}", path.display()))?;
        let mut waits = Some(waits);
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Lock { _file: file }),
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => {
                    return Err(error).context(format!("cannot lock {}", path.display()));
                }
            }
            if let Some(waits) = waits.take() {
                waits();
            }
            interrupt::sleep(AGAIN)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

    // Would catch two builds in one folder, and a wait without a message.
    #[test]
    fn a_folder_has_one_build() {
        let scratch = crate::scratch::Scratch::new("lock").unwrap();
        let folder = scratch.join("new");
        let (ended, waited) = (AtomicBool::new(false), AtomicBool::new(false));
        let first = Lock::take(&folder, || panic!("no other build")).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _second = Lock::take(&folder, || waited.store(true, SeqCst)).unwrap();
                assert!(ended.load(SeqCst));
            });
            while !waited.load(SeqCst) {
                std::thread::yield_now();
            }
            ended.store(true, SeqCst);
            drop(first);
        });
    }
}
