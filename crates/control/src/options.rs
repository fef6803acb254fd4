//! Options at run time.

use crate::settings;
use core::ffi::{CStr, c_char};
use core::fmt;
use core::sync::atomic::{AtomicPtr, Ordering};
use neap_core::watch::Reason;
use neap_options::{Id, Opt, Origin, Value};
use neap_sys::{global::NEAP, sites, thread, watch};

/// Why an option was not read or set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// There is no option of this name.
    Unknown,
    /// The option does not accept this value.
    BadValue,
    /// The option can be set only when the program starts, by its environment variable.
    StartOnly,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Error::Unknown => "there is no such option",
            Error::BadValue => "the option does not accept this value",
            Error::StartOnly => "the option can be set only when the program starts",
        })
    }
}

impl core::error::Error for Error {}

/// The path of option `counters`, if it is set.
static COUNTERS: AtomicPtr<c_char> = AtomicPtr::new(core::ptr::null_mut());

/// Notes the path that option `counters` was set to.
pub fn note_counters(path: &'static CStr) {
    COUNTERS.store(path.as_ptr().cast_mut(), Ordering::Release);
}

/// The option that users call `name`.
pub fn find(name: &str) -> Result<&'static Opt, Error> {
    Opt::by_name(name).ok_or(Error::Unknown)
}

/// The value of an option in force.
pub fn value(id: Id) -> Value<'static> {
    settings::read(&NEAP.policy, id).unwrap_or_else(|| {
        match id {
            Id::Sites => return Value::Path(sites::directory()),
            Id::SitesInterval => return Value::Bytes(sites::interval().max(1)),
            _ => {}
        }
        let path = COUNTERS.load(Ordering::Acquire);
        // SAFETY: the path is a string that lives for ever, see `note_counters`.
        Value::Path(if path.is_null() { b"" } else { unsafe { CStr::from_ptr(path) }.to_bytes() })
    })
}

/// Who chose it.
pub fn origin(id: Id) -> Origin {
    Origin::of(NEAP.policy.origins(), id as usize)
}

/// Sets an option of the core while nobody else runs: the program starts. False if it has no such value.
pub fn start_with(id: Id, value: Value<'_>, by: Origin) -> bool {
    let known = settings::apply(&NEAP.policy, id, value);
    if known {
        note_origin(id, by);
    }
    if id == Id::Harden {
        watch::set(Reason::Harden, NEAP.policy.harden());
    }
    known
}

/// Notes who chose the value of an option.
pub fn note_origin(id: Id, by: Origin) {
    NEAP.policy.set_origin(id as usize, by as u8);
}

/// Sets an option by its name, at any time; what waits then goes by the new value.
pub fn set(name: &str, text: &[u8]) -> Result<(), Error> {
    let option = find(name)?;
    if option.start_only {
        return Err(Error::StartOnly);
    }
    let value = option.parse(text).ok_or(Error::BadValue)?;
    if !set_value(option.id, value, Origin::Program) {
        return Err(Error::BadValue);
    }
    Ok(())
}

/// Sets an option of the core at any time. False if it has no such value.
pub(crate) fn set_value(id: Id, value: Value<'_>, by: Origin) -> bool {
    let known = start_with(id, value, by);
    if known && matches!(id, Id::Purge | Id::PurgeDelay | Id::PurgeBytes | Id::Limit) {
        // What waits may have to go earlier than the purger thinks, or to go at all.
        thread::in_call(|_| {
            NEAP.resume_purging();
            NEAP.look_at_limit();
        });
    }
    known
}
