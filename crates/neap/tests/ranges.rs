//! Ranges through the Rust crate; `crates/ranges` tests them one by one.

#[path = "../examples/ranges.rs"]
mod example;

use neap::ranges::{Advice, Error, Pages, Request, resident_in};

/// Catches an example that does not run.
#[test]
fn the_example_runs() {
    example::main().expect("ranges");
}

/// Catches a range that is no ordinary slice, or that safe code cannot use from two threads.
#[test]
fn a_range_is_a_value() {
    let mut range = Request::new(Pages::Transparent(2 << 20)).allocate(3 << 20).expect("memory");
    std::thread::scope(|scope| {
        let (one, other) = range.split_at_mut(1 << 20);
        scope.spawn(|| one.fill(1));
        scope.spawn(|| other.fill(2));
    });
    let moved = std::thread::spawn(move || {
        assert_eq!((range[(1 << 20) - 1], range[1 << 20]), (1, 2));
        range.advise(Advice::Free).expect("advice");
        assert!(range.iter().all(|&byte| byte == 0));
        range
    });
    let range = moved.join().expect("no panic");
    let (start, bytes) = (range.as_ptr(), range.bytes());
    assert_eq!(resident_in(start, bytes).expect("an answer").bytes, bytes as u64);
    assert_eq!(Request::new(Pages::Small).allocate(0).err(), Some(Error::BadValue));
}
