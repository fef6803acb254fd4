//! The way from the table to the core's policies, through the library's own code for it.

use neap_core::policy::{Limit, Policy, Purge};
use neap_options::{Id, Kind, TABLE, Value};

#[path = "../../control/src/settings.rs"]
mod settings;

/// Options that are not for the core.
const OTHERS: [Id; 3] = [Id::Counters, Id::Sites, Id::SitesInterval];

fn set(policy: &Policy, id: Id, text: &str) {
    let value = id.option().parse(text.as_bytes()).unwrap_or_else(|| panic!("{id:?} refuses {text:?}"));
    assert!(settings::apply(policy, id, value), "{id:?}={text}");
}

/// A policy that differs from the defaults in everything.
fn changed() -> Policy {
    let policy = Policy::new();
    set(&policy, Id::Purge, "never");
    set(&policy, Id::PurgeDelay, "2s");
    set(&policy, Id::PurgeBytes, "64M");
    set(&policy, Id::Zero, "always");
    set(&policy, Id::MmapThreshold, "128k");
    set(&policy, Id::Limit, "1GiB");
    policy
}

fn all(p: &Policy) -> (Purge, u32, Option<usize>, bool, usize, Limit) {
    (p.purge(), p.delay(), p.bytes(), p.zero_always(), p.mmap_threshold(), p.limit())
}

/// Catches an option that sets another policy than its own, or another value.
#[test]
fn values_reach_their_policy() {
    let wanted = (Purge::Never, 2000, Some(64 << 20), true, 128 << 10, Limit::Bytes(1 << 30));
    assert_eq!(all(&changed()), wanted);
    let policy = changed();
    for (text, purge) in [("eager", Purge::Eager), ("lazy", Purge::Lazy), ("decay", Purge::Decay)] {
        set(&policy, Id::Purge, text);
        assert_eq!(policy.purge(), purge);
    }
    set(&policy, Id::Limit, "off");
    set(&policy, Id::PurgeBytes, "0");
    set(&policy, Id::MmapThreshold, "0");
    set(&policy, Id::PurgeDelay, "0");
    assert_eq!(all(&policy), (Purge::Decay, 0, Some(0), true, 0, Limit::Off));
}

/// Catches a default of the core that is not the one of the table, which is what users are told.
#[test]
fn defaults_of_core_and_table_agree() {
    let policy = changed();
    for opt in TABLE.iter().filter(|opt| !OTHERS.contains(&opt.id)) {
        set(&policy, opt.id, opt.default);
    }
    assert_eq!(all(&policy), all(&Policy::new()));
}

/// Catches a value that is read back as another than it was set to, or a default that is.
#[test]
fn values_come_back() {
    let policy = Policy::new();
    for opt in TABLE.iter().filter(|opt| !OTHERS.contains(&opt.id)) {
        assert_eq!(settings::read(&policy, opt.id), opt.parse(opt.default.as_bytes()), "{}", opt.name);
    }
    for (id, text) in [
        (Id::Foreign, "abort"),
        (Id::Purge, "lazy"),
        (Id::PurgeDelay, "7ms"),
        (Id::PurgeBytes, "3M"),
        (Id::Zero, "always"),
        (Id::MmapThreshold, "128K"),
        (Id::Limit, "off"),
        (Id::Limit, "1G"),
    ] {
        set(&policy, id, text);
        assert_eq!(settings::read(&policy, id).map(|value| value.to_string()).as_deref(), Some(text));
    }
    assert_eq!(settings::read(&policy, Id::Counters), None);
}

/// Catches a word or a border of the table that the library does not know what to do with.
#[test]
fn every_word_and_border_is_applied() {
    let policy = Policy::new();
    for opt in TABLE.iter().filter(|opt| !OTHERS.contains(&opt.id)) {
        let (words, numbers): (&[_], _) = match opt.kind {
            Kind::Choice(words) => (words, None),
            Kind::Size { words, min, max } => (words, Some([Value::Bytes(min), Value::Bytes(max)])),
            Kind::Duration { min, max } => (&[], Some([Value::Milliseconds(min), Value::Milliseconds(max)])),
            Kind::Directory => (&[], None),
        };
        for value in words.iter().map(|word| Value::Word(word)).chain(numbers.into_iter().flatten()) {
            assert!(settings::apply(&policy, opt.id, value), "{}: {value:?}", opt.name);
        }
    }
}

/// Catches a value of the wrong kind that changes something.
#[test]
fn strange_values_change_nothing() {
    let policy = Policy::new();
    for opt in TABLE {
        for value in [Value::Word("strange"), Value::Path(b"/")] {
            assert!(!settings::apply(&policy, opt.id, value), "{}: {value:?}", opt.name);
        }
    }
    assert_eq!(all(&policy), all(&Policy::new()));
}
