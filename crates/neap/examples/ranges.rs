//! A table in pages of each kind: what was requested, what the kernel gave, and what a walk through it costs.
//!
//! Run it with `cargo run --release -p neap --example ranges [MIB]`. As root, `echo 64 > /proc/sys/vm/nr_hugepages`
//! gives the pool pages first.

use neap::ranges::{Error, Pages, Prefault, Request};
use std::time::Instant;

#[global_allocator]
static ALLOCATOR: neap::Neap = neap::Neap;

/// Nanoseconds for each step of a walk in random order.
fn walk(table: &mut [u8]) -> f64 {
    const STEPS: u32 = 1 << 20;
    let (mut at, mut sum) = (1usize, 0u8);
    let start = Instant::now();
    for _ in 0..STEPS {
        // The next place depends on what was read, so that reads do not overlap.
        at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1 + usize::from(sum));
        sum = sum.wrapping_add(table[(at >> 20) % table.len()]);
    }
    start.elapsed().as_secs_f64() * 1e9 / f64::from(STEPS)
}

/// Shows one kind of pages.
fn show(name: &str, pages: Pages, bytes: usize) -> Result<(), Error> {
    let start = Instant::now();
    let mut table = Request::new(pages).allocate(bytes)?;
    if let Err(incomplete) = table.prefault(Prefault::write().all_processors()) {
        println!("{name:<16} not all of it is resident: {incomplete}");
        return Err(incomplete.error);
    }
    let ready = start.elapsed().as_secs_f64() * 1e3;
    let got = table.resident()?;
    let (all, huge) = (got.resident as f64 / 1048576.0, got.huge as f64 / 1048576.0);
    print!("{name:<16} {ready:7.1} ms, {all:6.1} MiB, {huge:6.1} in huge pages, {:5.1} ns a step", walk(&mut table));
    match table.why_smaller() {
        Some(why) => println!("; {why}"),
        None => println!(),
    }
    Ok(())
}

/// The program; a test calls it too.
pub fn main() -> Result<(), Error> {
    let mib: usize = std::env::args().nth(1).and_then(|mib| mib.parse().ok()).unwrap_or(64);
    for (name, pages) in [
        ("OS pages", Pages::Small),
        ("64 KiB", Pages::Transparent(64 << 10)),
        ("2 MiB", Pages::Transparent(2 << 20)),
        ("2 MiB hugetlb", Pages::Hugetlb(2 << 20)),
    ] {
        show(name, pages, mib << 20)?;
    }
    match Request::new(Pages::Hugetlb(1 << 30)).strict().allocate(mib << 20) {
        Ok(range) => println!("1 GiB hugetlb    {} MiB", range.bytes() >> 20),
        Err(why) => println!("1 GiB hugetlb    none: {why}"),
    }
    Ok(())
}
