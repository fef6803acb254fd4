//! From the values of options to the core's policies, and back. Pure, as the tests of crates/options compile this file
//! too, and hold the defaults of the core to those of the table.

use neap_core::policy::{Limit, Policy, Purge};
use neap_options::{Id, Value};

/// Sets the policy that option `id` stands for; false if it stands for none, or has no such value.
pub fn apply(policy: &Policy, id: Id, value: Value<'_>) -> bool {
    match (id, value) {
        (Id::Foreign, Value::Word("pass")) => policy.set_foreign_abort(false),
        (Id::Foreign, Value::Word("abort")) => policy.set_foreign_abort(true),
        (Id::Purge, Value::Word(word)) => match Purge::ALL.into_iter().find(|purge| purge.name() == word) {
            Some(purge) => policy.set_purge(purge),
            None => return false,
        },
        (Id::PurgeDelay, Value::Milliseconds(milliseconds)) => policy.set_delay(milliseconds),
        (Id::PurgeBytes, Value::Word("auto")) => policy.set_bytes(None),
        (Id::PurgeBytes, Value::Bytes(bytes)) => policy.set_bytes(Some(word(bytes))),
        (Id::Zero, Value::Word("resident")) => policy.set_zero_always(false),
        (Id::Zero, Value::Word("always")) => policy.set_zero_always(true),
        (Id::MmapThreshold, Value::Word("none")) => policy.set_mmap_threshold(usize::MAX),
        (Id::MmapThreshold, Value::Bytes(bytes)) => policy.set_mmap_threshold(word(bytes)),
        (Id::Limit, Value::Word("auto")) => policy.set_limit(Limit::Auto),
        (Id::Limit, Value::Word("off")) => policy.set_limit(Limit::Off),
        (Id::Harden, Value::Word("off")) => policy.set_harden(false),
        (Id::Harden, Value::Word("on")) => policy.set_harden(true),
        (Id::Limit, Value::Bytes(bytes)) => policy.set_limit(Limit::Bytes(word(bytes))),
        (
            Id::Counters
            | Id::Foreign
            | Id::Purge
            | Id::PurgeDelay
            | Id::PurgeBytes
            | Id::Zero
            | Id::MmapThreshold
            | Id::Limit
            | Id::Harden
            | Id::Sites
            | Id::SitesInterval,
            _,
        ) => return false,
    }
    true
}

/// The value of option `id` in force; `None` if it is no policy.
pub fn read(policy: &Policy, id: Id) -> Option<Value<'static>> {
    Some(match id {
        Id::Counters | Id::Sites | Id::SitesInterval => return None,
        Id::Foreign => Value::Word(if policy.foreign_abort() { "abort" } else { "pass" }),
        Id::Purge => Value::Word(policy.purge().name()),
        Id::PurgeDelay => Value::Milliseconds(policy.delay()),
        Id::PurgeBytes => policy.bytes().map_or(Value::Word("auto"), |bytes| Value::Bytes(bytes as u64)),
        Id::Zero => Value::Word(if policy.zero_always() { "always" } else { "resident" }),
        Id::MmapThreshold => match policy.mmap_threshold() {
            usize::MAX => Value::Word("none"),
            bytes => Value::Bytes(bytes as u64),
        },
        Id::Harden => Value::Word(if policy.harden() { "on" } else { "off" }),
        Id::Limit => match policy.limit() {
            Limit::Off => Value::Word("off"),
            Limit::Auto => Value::Word("auto"),
            Limit::Bytes(bytes) => Value::Bytes(bytes as u64),
        },
    })
}

/// Bytes as the core counts them; where addresses are shorter than 64 bits, at most all of them.
fn word(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}
