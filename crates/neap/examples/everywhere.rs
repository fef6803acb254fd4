//! A program on neap, linked statically with musl where it is built for `x86_64-unknown-linux-musl`:
//! `cargo run -p neap --example everywhere --target x86_64-unknown-linux-musl`.

use std::collections::HashMap;
use std::os::unix::process::CommandExt;
use std::process::Command;

#[global_allocator]
static ALLOCATOR: neap::Neap = neap::Neap;

/// Words of mixed lengths, counted.
fn count(seed: usize) -> usize {
    let mut words: HashMap<String, usize> = HashMap::new();
    for i in 0..50_000 {
        *words.entry("x".repeat((i * 31 + seed) % 700)).or_default() += 1;
    }
    words.values().sum()
}

fn main() {
    for round in 0..3 {
        let threads: Vec<_> = (0..16).map(|i| std::thread::spawn(move || count(i + round))).collect();
        let sum: usize = threads.into_iter().map(|thread| thread.join().expect("a thread")).sum();
        assert_eq!(sum, 16 * 50_000);
        // A child by fork, while another thread allocates.
        let other = std::thread::spawn(|| count(1));
        let mut child = Command::new("/bin/true");
        // SAFETY: the allocator works in the child of a fork.
        unsafe {
            child.pre_exec(|| {
                assert_eq!(std::hint::black_box(vec![0u8; 5000]), [0; 5000]);
                Ok(())
            })
        };
        assert!(child.status().expect("a child").success());
        assert_eq!(other.join().expect("a thread"), 50_000);
    }
    let zeroed = vec![0u64; 1 << 20];
    // SAFETY: the vector's buffer is a live block of neap's.
    assert!(unsafe { neap::usable_size(zeroed.as_ptr().cast()) } >= 8 << 20);
    assert!(zeroed.iter().all(|&word| word == 0));
    drop(zeroed);
    println!("{} bytes went back", neap::purge());
}
