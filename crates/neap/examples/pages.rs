//! A service in miniature: a peak, then idleness. Prints what the process holds at each step.
//!
//! Run it with `cargo run --release -p neap --example pages`.

use std::fs::read_to_string;

#[global_allocator]
static ALLOCATOR: neap::Neap = neap::Neap;

/// Resident memory of this process in MiB, from `/proc/self/statm`.
fn resident() -> f64 {
    let statm = read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm.split_whitespace().nth(1).and_then(|field| field.parse().ok()).unwrap_or(0);
    // The kernel counts in OS pages of the usual size here; an example may.
    (pages * 4096) as f64 / (1 << 20) as f64
}

fn report(step: &str) {
    let free = neap::free_bytes();
    println!(
        "{step:<28} {:6.1} MiB resident, {:6.1} MiB dirty, {:6.1} MiB clean",
        resident(),
        free.dirty as f64 / (1 << 20) as f64,
        free.clean as f64 / (1 << 20) as f64,
    );
}

fn main() {
    report("at start");
    // Requests of a busy minute: 64 buffers of 1 MiB, and small blocks between them.
    let requests: Vec<(Vec<u8>, String)> = (0..64).map(|n| (vec![1; 1 << 20], format!("request {n}"))).collect();
    report("at the peak");
    drop(requests);
    report("after the peak");
    let returned = neap::purge();
    report("after neap::purge()");
    println!("{:.1} MiB were given back", returned as f64 / (1 << 20) as f64);
}
