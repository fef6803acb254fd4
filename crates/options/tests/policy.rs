//! The way from the table to the core's settings and back.

use neap_core::policy::{HugePages, Limit, Policy, Purge};
use neap_options::{Id, Kind, Opt, TABLE, Value};

fn kept() -> impl Iterator<Item = &'static Opt> {
    TABLE.iter().filter(|opt| opt.kept.is_some())
}

fn set(policy: &Policy, id: Id, text: &str) {
    let value = id.option().parse(text.as_bytes()).unwrap_or_else(|| panic!("{id:?} refuses {text:?}"));
    assert!(id.option().store(policy, value), "{id:?}={text}");
}

/// A policy that differs from the defaults in everything.
fn changed() -> Policy {
    let policy = Policy::new();
    let values = [
        (Id::Foreign, "abort"),
        (Id::Purge, "never"),
        (Id::PurgeDelay, "2s"),
        (Id::PurgeBytes, "64M"),
        (Id::Zero, "always"),
        (Id::MmapThreshold, "128k"),
        (Id::Limit, "1GiB"),
        (Id::Harden, "on"),
        (Id::Huge, "hugetlb"),
        (Id::Hugetlb, "strict"),
    ];
    values.into_iter().for_each(|(id, text)| set(&policy, id, text));
    assert_eq!(values.len(), kept().count(), "an option is missing here");
    policy
}

type Settings = (bool, Purge, u32, Option<usize>, bool, usize, Limit, (bool, HugePages, bool));

fn all(p: &Policy) -> Settings {
    let forms = (p.foreign_abort(), p.purge(), p.delay(), p.bytes());
    (
        forms.0,
        forms.1,
        forms.2,
        forms.3,
        p.zero_always(),
        p.mmap_threshold(),
        p.limit(),
        (p.harden(), p.huge(), p.pool_only()),
    )
}

/// Catches an option that sets another policy than its own, or another value.
#[test]
fn values_reach_their_policy() {
    let wanted = (
        true,
        Purge::Never,
        2000,
        Some(64 << 20),
        true,
        128 << 10,
        Limit::Bytes(1 << 30),
        (true, HugePages::Pool, true),
    );
    assert_eq!(all(&changed()), wanted);
    let policy = changed();
    for (text, purge) in [("eager", Purge::Eager), ("lazy", Purge::Lazy), ("decay", Purge::Decay)] {
        set(&policy, Id::Purge, text);
        assert_eq!(policy.purge(), purge);
    }
    for (id, text) in [(Id::Limit, "off"), (Id::PurgeBytes, "0"), (Id::MmapThreshold, "0"), (Id::PurgeDelay, "0")] {
        set(&policy, id, text);
    }
    assert_eq!(all(&policy), (true, Purge::Decay, 0, Some(0), true, 0, Limit::Off, (true, HugePages::Pool, true)));
}

/// Catches a default of the core that is not the one of the table, which users see.
#[test]
fn defaults_of_core_and_table_agree() {
    let policy = changed();
    for opt in kept() {
        assert_eq!(opt.load(&Policy::new()), opt.parse(opt.default.as_bytes()), "{}", opt.name);
        set(&policy, opt.id, opt.default);
    }
    assert_eq!(all(&policy), all(&Policy::new()));
}

/// Catches two options that are kept in one setting, or shown by one gauge.
#[test]
fn settings_are_unique() {
    let places: Vec<_> = kept().filter_map(|opt| opt.kept).collect();
    for (setting, gauge) in &places {
        assert_eq!(places.iter().filter(|place| place.0 == *setting || place.1 == *gauge).count(), 1, "{setting:?}");
    }
}

/// Catches a word or a border of the table that is read back as another value.
#[test]
fn every_word_and_border_comes_back() {
    let policy = Policy::new();
    for opt in kept() {
        let (words, numbers): (&[_], _) = match opt.kind {
            Kind::Choice(words) => (words, None),
            Kind::Size { words, min, max } => (words, Some([Value::Bytes(min), Value::Bytes(max)])),
            Kind::Duration { min, max } => (&[], Some([Value::Milliseconds(min), Value::Milliseconds(max)])),
            Kind::Directory | Kind::Prefault { .. } | Kind::Report => (&[], None),
        };
        for value in words.iter().map(|word| Value::Word(word)).chain(numbers.into_iter().flatten()) {
            assert!(opt.store(&policy, value), "{}: {value:?}", opt.name);
            assert_eq!(opt.load(&policy), Some(value), "{}", opt.name);
        }
    }
}

/// Catches a value of the wrong kind that changes something, and an option of the library that is stored or read.
#[test]
fn strange_values_change_nothing() {
    let policy = Policy::new();
    for opt in TABLE {
        for value in [Value::Word("strange"), Value::Path(b"/")] {
            assert!(!opt.store(&policy, value), "{}: {value:?}", opt.name);
        }
        assert_eq!(opt.load(&policy).is_some(), opt.kept.is_some(), "{}", opt.name);
    }
    assert_eq!(all(&policy), all(&Policy::new()));
}
