//! Stacks of virtual threads.

use corosensei::stack::{STACK_ALIGNMENT, Stack, StackPointer};

/// Bytes of a stack, and of the guard below it.
const LEN: usize = 512 << 10;
const GUARD: usize = 4096;

/// A stack with a guard. It stays mapped: the driver reuses it for later runs.
#[derive(Debug)]
pub struct ThreadStack {
    base: StackPointer,
    limit: StackPointer,
}

impl ThreadStack {
    /// A new stack.
    pub fn new() -> Self {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a fresh mapping, of which the lowest page is made inaccessible.
        let p = unsafe {
            let p = libc::mmap(core::ptr::null_mut(), LEN, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
            assert!(p != libc::MAP_FAILED && libc::mprotect(p, GUARD, libc::PROT_NONE) == 0, "memory for a stack");
            p.expose_provenance()
        };
        let pointer = |at: usize| StackPointer::new(at).expect("no stack lies at 0");
        const { assert!(LEN.is_multiple_of(STACK_ALIGNMENT)) };
        ThreadStack { base: pointer(p + LEN), limit: pointer(p) }
    }
}

impl Default for ThreadStack {
    fn default() -> Self {
        Self::new()
    }
}

// SAFETY: the addresses are those of a mapping that stays, whose lowest page is inaccessible.
unsafe impl Stack for ThreadStack {
    fn base(&self) -> StackPointer {
        self.base
    }

    fn limit(&self) -> StackPointer {
        self.limit
    }
}
