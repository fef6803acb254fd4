//! Any bytes are a system and a history of calls (see `neap_coretest::history`); the model checks everything after each
//! call.
#![no_main]

use libfuzzer_sys::{Corpus, fuzz_target};
use neap_coretest::{Model, history};

fuzz_target!(|bytes: &[u8]| -> Corpus {
    let Some((setup, ops)) = history::decode(bytes) else {
        return Corpus::Reject;
    };
    Model::run(&setup, &ops);
    Corpus::Keep
});
