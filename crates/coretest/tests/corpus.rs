//! Replays the fuzzer's seeds, and inputs that once crashed, without the fuzzer.

use neap_coretest::{Model, history};
use std::path::Path;

/// Catches an input that the fuzz target no longer accepts, and the return of a fault that the fuzzer found.
#[test]
fn seeds() {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/api");
    let mut count = 0;
    for entry in std::fs::read_dir(&seeds).expect("the seeds are part of the source") {
        let path = entry.expect("a readable directory").path();
        eprintln!("{}", path.display());
        let bytes = std::fs::read(&path).expect("a readable seed");
        let (setup, ops) = history::decode(&bytes).expect("a seed has a set-up");
        Model::run(&setup, &ops);
        count += 1;
    }
    assert!(count >= 12, "{count} seeds");
}
