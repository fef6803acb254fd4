//! What most tests of one thread do: make an allocator, threads, blocks, and look whether all is valid.

use crate::{Config, Fake, Owner};
use neap_core::Allocator;
use neap_core::census::Census as Books;
use neap_core::valid::{Census, Depth};

/// An allocator of a fake system.
pub type Shared = Allocator<Fake>;

/// An allocator on a system like `config`.
pub fn system(config: Config) -> Box<Shared> {
    Box::new(Allocator::new(Fake::new(config)))
}

/// A hardened allocator on a system like `config`, and a thread of it.
pub fn hardened(config: Config) -> (Box<Shared>, Owner) {
    let a = system(config);
    a.harden();
    let t = thread(&a);
    a.tell_heaps();
    (a, t)
}

/// A thread, with caches and a thread slot.
pub fn thread(a: &Shared) -> Owner {
    Owner::new(a, true, true).expect("memory for a heap")
}

/// A block, or null.
pub fn try_malloc(a: &Shared, thread: &Owner, size: usize) -> *mut u8 {
    // SAFETY: the heap is lent by its thread.
    thread.with(a, |heap| unsafe { a.malloc(heap, size) })
}

/// A block.
pub fn malloc(a: &Shared, thread: &Owner, size: usize) -> *mut u8 {
    let p = try_malloc(a, thread, size);
    assert!(!p.is_null(), "no block of {size} bytes");
    p
}

/// Frees a block of the test's.
#[expect(clippy::not_unsafe_ptr_arg_deref, reason = "for tests, whose blocks these are")]
pub fn free(a: &Shared, thread: &Owner, p: *mut u8) {
    // SAFETY: the heap is lent by its thread; the block is the test's.
    thread.with(a, |heap| unsafe { a.free(heap, p) }).expect("a block");
}

/// Frees a block of the test's as a handler does.
#[expect(clippy::not_unsafe_ptr_arg_deref, reason = "for tests, whose blocks these are")]
pub fn free_reentrant(a: &Shared, p: *mut u8) {
    // SAFETY: the block is the test's.
    unsafe { a.free_reentrant(p) }.expect("a block");
}

/// Blocks of `size` bytes, written whole, `bytes` in all.
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

/// Ticks until nothing waits.
pub fn settle(a: &Shared) {
    for _ in 0..200 {
        let Some(wait) = a.tick() else { return };
        a.os.advance(wait.into());
    }
    panic!("something still waits");
}

/// What a thread does that waits for long: its caches go back.
pub fn rest(a: &Shared, thread: &Owner) {
    // SAFETY: the heap is lent by its thread.
    thread.with(a, |heap| unsafe { a.rest(heap) });
}

/// What observers are told of blocks and free memory by size.
pub fn books(a: &Shared) -> Books {
    let mut books = Books::new();
    a.take_census(&mut books);
    books
}

/// Panics unless all is as `validate` wants it; returns what there is. No other thread may use the allocator.
pub fn valid(a: &Shared) -> Census {
    // SAFETY: as said.
    unsafe { a.validate(Depth::Bits) }.unwrap_or_else(|e| panic!("invalid: {} (at {:#x})", e.what, e.at))
}
