//! Faults at known functions and variables of Rust.
use std::sync::atomic::{AtomicU8, Ordering};

#[repr(align(4096))]
pub struct Page([AtomicU8; 4096]);

pub static FIRST: Page = Page([const { AtomicU8::new(1) }; 4096]);
pub static SECOND: Page = Page([const { AtomicU8::new(0) }; 4096]);

#[inline(never)]
pub fn touch_first() {
    std::hint::black_box(&FIRST).0[3].store(7, Ordering::Relaxed);
}

#[inline(never)]
pub fn touch_second() {
    std::hint::black_box(&SECOND).0[4].store(7, Ordering::Relaxed);
}

fn main() {
    touch_first();
    touch_second();
}
