//! Random histories, checked against the model after each operation.

use neap_core::common::CROWD;
use neap_core::policy::Purge;
use neap_core::valid::Depth;
use neap_coretest::history::OP_BYTES;
use neap_coretest::{Call, Config, Model, Op, Setup};
use proptest::prelude::*;
use proptest::test_runner::Config as Runs;

/// A history of up to `most` operations.
fn history(most: usize) -> impl Strategy<Value = Vec<Op>> {
    prop::collection::vec(any::<[u8; OP_BYTES]>().prop_map(Op::decode), 0..most)
}

/// `cases` runs, or as many as PROPTEST_CASES says.
fn runs(cases: u32) -> Runs {
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { Runs::default().cases } else { cases };
    Runs { cases, failure_persistence: None, max_shrink_iters: 20_000, max_shrink_time: 30_000, ..Runs::default() }
}

fn plain(page_size: usize) -> Setup {
    Setup { config: Config { page_size, ..Config::default() }, ..Setup::default() }
}

proptest! {
    #![proptest_config(runs(60))]

    /// Catches overlap, lost contents, dirty callocs, changed sizes, leaks and broken structures.
    #[test]
    fn pages_of_4_kib(ops in history(400)) {
        Model::run(&plain(4096), &ops);
    }

    /// Catches code that relies on OS pages of 4 KiB.
    #[test]
    fn pages_of_16_kib(ops in history(300)) {
        Model::run(&plain(16384), &ops);
    }

    /// Catches the same where an OS page is a whole chunk.
    #[test]
    fn pages_of_64_kib(ops in history(300)) {
        Model::run(&plain(65536), &ops);
    }

    /// Catches a path that needs the page map.
    #[test]
    fn without_page_map(ops in history(300)) {
        let mut setup = plain(4096);
        setup.config.missing = vec![Call::ReserveZeros];
        Model::run(&setup, &ops);
    }

    /// Catches the same faults on any kind of system: small address space, missing calls, calls that fail by chance.
    #[test]
    fn any_system(setup in any::<[u8; OP_BYTES]>().prop_map(Setup::decode), ops in history(300)) {
        Model::run(&setup, &ops);
    }
}

proptest! {
    #![proptest_config(runs(20))]

    /// Catches the same faults where there are so many threads that they share slabs.
    #[test]
    fn beside_many_threads(setup in any::<[u8; OP_BYTES]>().prop_map(Setup::decode), ops in history(300)) {
        Model::run_beside(&setup, CROWD, &ops);
    }

    /// Catches free memory that never goes back, however long the program is idle, and memory that counts as clean
    /// although the page table shows that it holds memory.
    #[test]
    fn idle_memory_goes_back(setup in any::<[u8; OP_BYTES]>().prop_map(Setup::decode), ops in history(200)) {
        let mut setup = Setup { fault: 0.0, ..setup };
        // Memory that the system cannot take back stays, and so does what the policy keeps.
        setup.config.missing.retain(|call| !matches!(call, Call::Purge | Call::PurgeRuns | Call::PurgeLazily));
        setup.config.pool = None;
        if setup.choices.purge == Purge::Never {
            setup.choices.purge = Purge::Decay;
        }
        let mut model = Model::new(&setup);
        ops.into_iter().for_each(|op| model.step(op));
        model.settle();
        let census = model.validate(Depth::Bits);
        prop_assert_eq!(census.free_chunks[1], census.lazy_chunks, "dirty chunks of which the system knows nothing");
        if setup.choices.purge != Purge::Lazy {
            prop_assert_eq!(census.lazy_chunks, 0);
            model.check_absent();
        }
        if setup.slots && !setup.config.missing.contains(&Call::Barrier) {
            prop_assert_eq!(census.cached, 0, "blocks in the caches of idle threads");
        }
        model.finish();
    }
}
