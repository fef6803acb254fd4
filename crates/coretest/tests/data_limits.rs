//! Limits on writable memory (RLIMIT_DATA) that change while the program runs.

use neap_coretest::Config;
use neap_coretest::calls::{free, malloc, system, thread, valid};

/// Catches a block behind the end of what is committed: the limit that the allocator has read is raised, or not
/// enforced, before memory is committed.
#[test]
fn a_limit_that_is_raised_at_once() {
    for (before, size, limit) in [(100, 40 << 20, 10 << 20), (8 << 20, 12 << 20, 16 << 20), (100, 600 << 20, 300 << 20)]
    {
        let a = system(Config::default());
        let t = thread(&a);
        let first = malloc(&a, &t, before);
        a.os.set_data_limit(limit);
        let p = malloc(&a, &t, size);
        valid(&a);
        assert!(!p.is_null());
        // SAFETY: the block has `size` bytes.
        unsafe {
            p.write(1);
            p.add(size - 1).write(1);
        }
        a.os.set_data_limit(usize::MAX);
        let more = malloc(&a, &t, size);
        assert!(!more.is_null());
        for p in [first, p, more] {
            free(&a, &t, p);
        }
        valid(&a);
    }
}
