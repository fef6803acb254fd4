//! Measures prefault in pairs in turn: 100 MiB against MADV_POPULATE_WRITE itself, and a large range with two threads
//! against one. Prints medians with the middle half of all pairs.
//!
//! `cargo run --release -p neap-ranges --example prefault [PAIRS [MIB]]`

use neap_ranges::kernel;
use neap_ranges::prefault::Prefault;
use neap_ranges::range::{Pages, Range, Request};
use std::time::Instant;

/// Milliseconds that `f` takes on a fresh range.
fn time(pages: Pages, bytes: usize, f: &dyn Fn(&Range)) -> f64 {
    let range = Request::new(pages).lazy().allocate(bytes).expect("a range");
    let start = Instant::now();
    f(&range);
    start.elapsed().as_secs_f64() * 1e3
}

fn quarters(mut all: Vec<f64>) -> [f64; 3] {
    all.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| all[all.len() * quarter / 4])
}

fn compare(name: &str, pages: Pages, bytes: usize, pairs: usize, [one, other]: [&dyn Fn(&Range); 2]) {
    let (mut ones, mut others, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for pair in 0..pairs {
        // The order alternates, because the second one may find memory that the first one gave back.
        let (a, b) = if pair % 2 == 0 {
            let a = time(pages, bytes, one);
            (a, time(pages, bytes, other))
        } else {
            let b = time(pages, bytes, other);
            (time(pages, bytes, one), b)
        };
        ones.push(a);
        others.push(b);
        ratios.push(a / b);
    }
    let ([low, ratio, high], one, other) = (quarters(ratios), quarters(ones)[1], quarters(others)[1]);
    println!("{name:<44} {one:8.2} ms / {other:8.2} ms = {ratio:.3} ({low:.3} to {high:.3}), {pairs} pairs");
}

fn main() {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<usize>().expect("a number"));
    let (pairs, large) = (numbers.next().unwrap_or(21), numbers.next().unwrap_or(4096) << 20);
    let itself = |range: &Range| {
        // SAFETY: contents stay.
        unsafe { kernel::advise(range.as_ptr(), range.bytes(), libc::MADV_POPULATE_WRITE).expect("memory") };
    };
    let threads =
        |threads: usize| move |range: &Range| range.prefault(Prefault::write().threads(threads)).expect("memory");
    let (small, huge) = (Pages::Small, Pages::Transparent(kernel::pmd_size()));
    for (name, pages) in [("OS pages", small), ("huge pages", huge)] {
        let bytes = 100 << 20;
        compare(&format!("100 MiB in {name}: prefault / populate"), pages, bytes, pairs, [&threads(1), &itself]);
        compare(&format!("100 MiB in {name}: populate / populate"), pages, bytes, pairs, [&itself, &itself]);
        let name = format!("{} MiB in {name}: one thread / two", large >> 20);
        compare(&name, pages, large, pairs.div_ceil(3), [&threads(1), &threads(2)]);
    }
}
