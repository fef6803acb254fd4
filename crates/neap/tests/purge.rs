//! The page level, in a process of its own: other tests would use the memory meanwhile.

#[global_allocator]
static A: neap::Neap = neap::Neap;

const MIB: usize = 1 << 20;

/// Resident bytes of this process.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("proc is mounted");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line VmRSS");
    line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") * 1024
}

/// Catches a purge that gives back too little, leaves caches full or counts wrong, and free bytes that do not follow.
#[test]
fn purge_gives_memory_back() {
    // Otherwise the helper might give memory back before the test measures.
    neap::set_option("purge", "never").expect("an option");
    let first = resident();
    let blocks: Vec<Vec<u8>> = (0..64).map(|_| vec![1; MIB]).collect();
    assert!(resident() >= first + 64 * MIB);
    drop(blocks);
    let free = neap::free_bytes();
    assert!(free.dirty >= 60 * MIB, "{free:?}");
    let returned = neap::purge();
    assert!(returned >= free.dirty, "{returned} of {free:?}");
    let after = neap::free_bytes();
    assert_eq!(after.dirty, 0);
    assert!(after.clean >= free.clean + free.dirty);
    assert!(resident() < first + 4 * MIB, "{} KiB stay", (resident() - first) / 1024);
    // Nothing but what this test itself has allocated and freed since.
    let again = neap::purge();
    assert!(again < MIB, "{again}");
    // The caches of this thread go back too.
    drop((0..1000).map(|_| Box::new([0u8; 200])).collect::<Vec<_>>());
    let cached = neap::stats().cached_bytes;
    neap::purge();
    assert!(neap::stats().cached_bytes + 20_000 < cached, "{cached}");
    // What was given back reads as zero, and can be used again.
    assert!(vec![0u8; 32 * MIB].iter().all(|&b| b == 0));
}
