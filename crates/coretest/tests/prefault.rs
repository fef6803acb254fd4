//! Memory that is made resident before it is needed: which blocks get it, that it stays, and systems that cannot
//! populate.

use neap_core::os::Memory;
use neap_core::policy::Setting;
use neap_core::valid::Depth;
use neap_coretest::calls::{self, Shared, free, malloc, settle, thread};
use neap_coretest::{Call, Config};

const BYTES: usize = 8 << 20;

fn system(missing: Vec<Call>) -> Box<Shared> {
    calls::system(Config { purger: true, missing, ..Config::default() })
}

fn present(a: &Shared) -> usize {
    a.os.usage().present
}

/// Panics unless every structure is valid and all clean memory is zero.
fn check(a: &Shared) {
    // SAFETY: no other thread uses the allocator.
    unsafe {
        a.validate(Depth::Bits).expect("valid");
        a.for_each_clean(|p, len| assert_eq!(a.os.first_nonzero(p, len), None, "known zero, but is not"));
    }
}

/// Catches memory that is populated where no block will lie, that goes back unused, or that is not zero; and memory
/// that is kept after it was used and freed.
#[test]
fn the_next_blocks_lie_in_it() {
    for missing in [vec![], vec![Call::Populate]] {
        let a = system(missing);
        let own = thread(&a);
        let before = present(&a);
        assert_eq!(a.prefault(BYTES - 5), BYTES);
        assert!((before + BYTES..before + BYTES + (64 << 10)).contains(&present(&a)));
        check(&a);
        settle(&a);
        assert!(present(&a) >= before + BYTES, "it was given back unused");
        let after = present(&a);
        let blocks: Vec<*mut u8> = (0..7).map(|_| malloc(&a, &own, 1 << 20)).collect();
        for &p in &blocks {
            // SAFETY: the block has as many bytes.
            unsafe { p.write_bytes(1, 1 << 20) };
        }
        assert!(present(&a) <= after + (64 << 10), "blocks lie elsewhere: {} after {after}", present(&a));
        blocks.into_iter().for_each(|p| free(&a, &own, p));
        settle(&a);
        assert!(present(&a) < before + (2 << 20), "{} of {after} stay", present(&a));
        check(&a);
        own.abandon(&a);
    }
}

/// Catches a prefault of more memory than others that share the limit leave.
#[test]
fn memory_of_others_is_left_alone() {
    let memory = Some(Memory { limit: 64 << 20, used: 60 << 20, stalled: false });
    let a = calls::system(Config { purger: true, memory, ..Config::default() });
    let own = thread(&a);
    assert_eq!((a.prefault(5 << 20), a.prefault(4 << 20)), (0, 4 << 20));
    own.abandon(&a);
}

/// Catches a prefault of more memory than the process may have, and a call before the first block.
#[test]
fn limits_are_kept() {
    let a = system(Vec::new());
    assert_eq!(a.prefault(BYTES), 0, "nothing is set up yet");
    let own = thread(&a);
    assert_eq!(a.prefault(0), 0);
    a.policy.set_word(Setting::Limit, 4 << 20);
    assert_eq!(a.prefault(BYTES), 0);
    assert_eq!(a.os.faults.count(Call::Populate), 0);
    assert_eq!(a.prefault(1 << 20), 1 << 20);
    a.policy.set_word(Setting::Limit, usize::MAX);
    a.os.faults.fail_by_chance(1.0);
    assert_eq!(a.prefault(1 << 30), 0, "the system has no memory");
    a.os.faults.clear();
    check(&a);
    own.abandon(&a);
}
