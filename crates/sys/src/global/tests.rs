//! Tests of malloc and free without a program around them.

use super::*;

unsafe fn no_foreign(p: *mut u8) {
    panic!("{p:p} is foreign");
}

/// Catches a free that fails (of NULL, or for another reason) and leaves its count changed: after 2^30 of them the
/// next free takes NULL for a block.
#[test]
fn failed_frees_leave_no_count() {
    // SAFETY: the blocks are this test's; no other thread of this process uses neap.
    unsafe {
        free(core::ptr::null_mut(), no_foreign);
        let (small, large) = (malloc(100), malloc(100_000));
        free(large, no_foreign);
        free(small, no_foreign);
        // The last call: any other undone free of class 0 would correct the count.
        free(core::ptr::null_mut(), no_foreign);
        assert_eq!(NEAP.validate(neap_core::valid::Depth::Bits).map_err(|e| e.what).map(|c| c.cached > 0), Ok(true));
    }
}
