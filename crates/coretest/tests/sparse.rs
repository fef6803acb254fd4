//! Long blocks that are sparsely touched: their resident memory goes back as soon as they are freed.

use neap_core::policy::Purge;
use neap_coretest::calls::{Shared, free, malloc, system, thread, valid};
use neap_coretest::{Call, Config};

const MIB: usize = 1 << 20;
const PAGE: usize = 4096;

/// Panics if clean memory is not zero.
fn check(a: &Shared) {
    valid(a);
    // SAFETY: no other thread uses the allocator.
    unsafe { a.for_each_clean(|p, len| assert_eq!(a.os.first_nonzero(p, len), None, "known zero, but is not")) };
}

/// Catches a sparse block that waits as a whole; a dense, scattered or short one that does not wait; and one that
/// counts as clean although the system refused it.
#[test]
fn long_sparse_blocks_go_back_at_once() {
    // Megabytes, OS pages that are touched, their distance in OS pages, the policy, a refused call, and whether all
    // goes back.
    let cases = [
        (64, 16, 1, Purge::Decay, None, true),
        (256, 4000, 1, Purge::Decay, None, true),
        (256, 10, 1000, Purge::Decay, None, true),
        (256, 5000, 1, Purge::Decay, None, false),
        (256, 17, 1001, Purge::Decay, None, false),
        (64, 64 << 8, 1, Purge::Decay, None, false),
        (63, 16, 1, Purge::Decay, None, false),
        (64, 16, 1, Purge::Never, None, false),
        (64, 16, 1, Purge::Decay, Some(Call::Touched), false),
        (64, 16, 1, Purge::Decay, Some(Call::Purge), false),
    ];
    for (mib, count, distance, policy, refused, goes) in cases {
        let what = format!("{count} OS pages of {mib} MiB, {distance} apart, {policy:?}, {refused:?}");
        let a = system(Config { purger: true, ..Config::default() });
        a.policy.set_purge(policy);
        let t = thread(&a);
        let p = malloc(&a, &t, mib * MIB);
        // SAFETY: the block is that long.
        (0..count).for_each(|i| unsafe { p.add(i * distance * PAGE).write(1) });
        if let Some(call) = refused {
            a.os.faults.fail_nth(call, a.os.faults.count(call) + 1);
        }
        let before = a.figures().totals.purged;
        free(&a, &t, p);
        let went = (a.figures().totals.purged - before) as usize;
        let waits = a.free_bytes().0;
        assert_eq!((went, waits), if goes { (count * PAGE, 0) } else { (0, mib * MIB) }, "{what}");
        check(&a);
    }
}
