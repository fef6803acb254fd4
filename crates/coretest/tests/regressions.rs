//! Histories that once failed, shortest form first.

use neap_coretest::{Config, Model, Op, Setup};

fn plain() -> Setup {
    Setup { config: Config::default(), cached: true, fault: 0.0 }
}

/// A large block that moved left the unused end of its last chunk dirty, in a range that was called clean.
#[test]
fn moved_block_leaves_clean_chunks() {
    let ops = [
        Op::Malloc { heap: 0, size: 256 << 10 },
        Op::Malloc { heap: 0, size: 64 << 10 },
        Op::Free { heap: 0, block: 0 },
        // In the dirty range that the first one left, and shorter.
        Op::Malloc { heap: 0, size: 200 << 10 },
        Op::Realloc { heap: 0, block: 1, size: 400 << 10 },
    ];
    Model::run(&plain(), &ops);
}
