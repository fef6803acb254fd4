//! Helpers for tests: they make an allocator, threads and blocks, and check that all structures are valid.

use crate::{Config, Fake, Owner};
use neap_core::Allocator;
use neap_core::census::Census as Books;
use neap_core::valid::{Census, Depth};

/// An allocator on a fake system.
pub type Shared = Allocator<Fake>;

/// Makes an allocator on a system like `config`.
pub fn system(config: Config) -> Box<Shared> {
    Box::new(Allocator::new(Fake::new(config)))
}

/// Makes a hardened allocator on a system like `config`, and a thread.
pub fn hardened(config: Config) -> (Box<Shared>, Owner) {
    let a = system(config);
    a.harden();
    let t = thread(&a);
    a.apply_watch_mode();
    (a, t)
}

/// Makes a thread with caches and a thread slot.
pub fn thread(a: &Shared) -> Owner {
    Owner::new(a, true, true).expect("memory for a heap")
}

/// Allocates a block; null if there is no memory.
pub fn try_malloc(a: &Shared, thread: &Owner, size: usize) -> *mut u8 {
    thread.with(a, |heap| a.malloc(heap, size))
}

/// Allocates a block; panics if there is no memory.
pub fn malloc(a: &Shared, thread: &Owner, size: usize) -> *mut u8 {
    let p = try_malloc(a, thread, size);
    assert!(!p.is_null(), "no block of {size} bytes");
    p
}

/// Frees a block of the test.
#[expect(clippy::not_unsafe_ptr_arg_deref, reason = "for tests, which pass their own blocks")]
pub fn free(a: &Shared, thread: &Owner, p: *mut u8) {
    // SAFETY: the heap is lent by its thread; the block is one of the test's own.
    thread.with(a, |heap| unsafe { a.free(heap, p) }).expect("a block");
}

/// Frees a block of the test by a reentrant call.
#[expect(clippy::not_unsafe_ptr_arg_deref, reason = "for tests, which pass their own blocks")]
pub fn free_reentrant(a: &Shared, p: *mut u8) {
    // SAFETY: the block is one of the test's own.
    unsafe { a.free_reentrant(p) }.expect("a block");
}

/// Allocates blocks of `size` bytes, `bytes` in total, and writes every byte.
pub fn fill(a: &Shared, thread: &Owner, size: usize, bytes: usize) -> Vec<*mut u8> {
    let malloc = |_| {
        // SAFETY: the heap is lent by its thread; the block has `size` bytes.
        thread.with(a, |heap| unsafe {
            let p = a.malloc(heap, size);
            p.write_bytes(0xA5, size);
            p
        })
    };
    (0..bytes / size).map(malloc).collect()
}

/// Calls `tick` until nothing waits.
pub fn settle(a: &Shared) {
    for _ in 0..200 {
        let Some(wait) = a.tick() else { return };
        a.os.advance(wait.into());
    }
    panic!("something still waits");
}

/// Gives the caches of a thread back, as a thread does before a long wait.
pub fn rest(a: &Shared, thread: &Owner) {
    thread.with(a, |heap| a.rest(heap));
}

/// Takes a census: what observers see of blocks and free memory, by size.
pub fn books(a: &Shared) -> Books {
    let mut books = Books::new();
    a.take_census(&mut books);
    books
}

/// Panics unless `validate` accepts all structures; returns its counts. No other thread may use the allocator.
pub fn valid(a: &Shared) -> Census {
    // SAFETY: no other thread uses the allocator.
    unsafe { a.validate(Depth::Bits) }.unwrap_or_else(|e| panic!("invalid: {} (at {:#x})", e.what, e.at))
}
