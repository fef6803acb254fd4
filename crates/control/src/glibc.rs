//! glibc's controls (`neap_options::glibc` has the table).

use crate::options;
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use neap_core::policy::Purge;
use neap_core::watch::Reason;
use neap_options::glibc::{Control, Effect};
use neap_options::{Id, Origin, Value};
use neap_sys::{global::NEAP, watch};

/// M_MMAP_MAX is 0: `mmap_threshold` waits until it is not.
static NO_MMAP: AtomicBool = AtomicBool::new(false);
/// The threshold that waits.
static THRESHOLD: neap_core::sync::AtomicUsize = neap_core::sync::AtomicUsize::new(usize::MAX);
/// `purge=never` because of M_TRIM_THRESHOLD: what it was before, by its place in [`Purge::ALL`]; else [`NOT_NEVER`].
static BEFORE_NEVER: AtomicU8 = AtomicU8::new(NOT_NEVER);
const NOT_NEVER: u8 = u8::MAX;

/// Does what setting a control to `value` means; false if the value is out of range.
pub fn apply(control: &Control, value: u64, by: Origin) -> bool {
    let Some(effect) = control.effect(value) else { return false };
    match effect {
        Effect::Nothing => {}
        Effect::Fill(byte) => watch::set_fill(byte),
        Effect::Caches(on) => watch::set(Reason::NoCaches, !on),
        Effect::Told(told) => NEAP.policy.set_quiet(!told),
        Effect::Mmap(on) => allow_mmap(on, by),
        Effect::Option(Id::MmapThreshold, threshold) => {
            if NO_MMAP.load(Ordering::Relaxed) {
                let bytes = if let Value::Bytes(bytes) = threshold { bytes as usize } else { usize::MAX };
                THRESHOLD.store(bytes, Ordering::Relaxed);
            } else {
                set(Id::MmapThreshold, threshold, by);
            }
        }
        Effect::Option(id, value) => {
            let now = NEAP.policy.purge();
            if id != Id::Purge {
                let before = BEFORE_NEVER.swap(NOT_NEVER, Ordering::Relaxed);
                // Unless somebody else was heard meanwhile.
                if let Some(before) = Purge::ALL.get(usize::from(before)).filter(|_| now == Purge::Never) {
                    set(Id::Purge, Value::Word(before.name()), by);
                }
            } else if now != Purge::Never {
                BEFORE_NEVER.store(now as u8, Ordering::Relaxed);
            }
            set(id, value, by);
        }
    }
    true
}

fn set(id: Id, value: Value<'_>, by: Origin) {
    if by == Origin::Mallopt {
        options::set_value(id, value, by);
    } else {
        options::start_with(id, value, by);
    }
}

/// M_MMAP_MAX: 0 puts the threshold aside, anything else brings it back.
fn allow_mmap(on: bool, by: Origin) {
    if NO_MMAP.swap(!on, Ordering::Relaxed) != on {
        return;
    }
    let threshold = if on {
        if NEAP.policy.mmap_threshold() != usize::MAX {
            // Somebody else was heard meanwhile.
            return;
        }
        THRESHOLD.load(Ordering::Relaxed)
    } else {
        THRESHOLD.store(NEAP.policy.mmap_threshold(), Ordering::Relaxed);
        usize::MAX
    };
    let value = if threshold == usize::MAX { Value::Word("none") } else { Value::Bytes(threshold as u64) };
    set(Id::MmapThreshold, value, by);
}

/// mallopt: 0 for a value out of range, else 1, also for a parameter that nobody knows.
pub fn mallopt(parameter: i32, value: i32) -> i32 {
    // A size is as wide as an address: a negative number becomes one of the greatest.
    let value = i64::from(value).cast_unsigned();
    match Control::by_parameter(parameter) {
        Some(control) => apply(control, value, Origin::Mallopt).into(),
        None => 1,
    }
}
