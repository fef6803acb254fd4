//! The priority of this thread while it reads a large process. On a busy machine a reader that loses the processor within
//! a system call keeps the lock of the process's mappings until it has it back. With the highest ordinary priority that
//! is soon. Only root may raise it.

/// The highest ordinary priority: the lowest nice value.
const HIGHEST: libc::c_int = -20;

/// A raised priority of a thread, which gets its own one back when this value is dropped.
#[derive(Debug)]
pub struct Priority {
    thread: libc::id_t,
    before: libc::c_int,
}

impl Priority {
    /// Raises the priority of this thread; `None` if it may not, or has it already.
    pub fn raise() -> Option<Priority> {
        // SAFETY: gettid takes nothing and cannot fail.
        let thread = unsafe { libc::gettid() } as libc::id_t;
        let before = nice(thread).filter(|before| *before > HIGHEST)?;
        set(thread, HIGHEST).then_some(Priority { thread, before })
    }
}

impl Drop for Priority {
    fn drop(&mut self) {
        set(self.thread, self.before);
    }
}

/// The nice value of a thread.
fn nice(thread: libc::id_t) -> Option<libc::c_int> {
    // SAFETY: the call takes numbers.
    let result = unsafe { libc::syscall(libc::SYS_getpriority, libc::PRIO_PROCESS as libc::c_long, thread) };
    // The kernel returns 20 less the nice value, because negative results are errors.
    (result > 0).then_some(20 - result as libc::c_int)
}

/// Sets the nice value of a thread; whether that was allowed.
fn set(thread: libc::id_t, nice: libc::c_int) -> bool {
    // SAFETY: the call takes numbers.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, thread, nice) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a priority that stays raised after the look, or that is never raised.
    #[test]
    fn it_is_put_back() {
        // SAFETY: as above.
        let own = || nice(unsafe { libc::gettid() } as libc::id_t).expect("this thread");
        let before = own();
        let raised = Priority::raise();
        assert_eq!(own(), if raised.is_some() { HIGHEST } else { before });
        drop(raised);
        assert_eq!(own(), before);
    }
}
