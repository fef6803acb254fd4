//! Reads and sets options by name, and sets the parameters of mallopt, while the program runs.

use core::fmt;
use neap_core::text::Text;
use neap_core::watch::Reason;
use neap_options::glibc::{self, By, Effect, Saved, Target};
use neap_options::{Complaint, Id, Opt, Origin, Value};
use neap_sys::files::Directory;
use neap_sys::once::AtStart;
use neap_sys::{global::NEAP, guards, prefault, profile, sites, thread, watch};

/// Why an option was not read or set. The numbers are those of `enum neap_result` of the C header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// There is no option of this name.
    Unknown = 1,
    /// The option does not accept this value.
    BadValue = 2,
    /// The option can be set only when the program starts, by its environment variable.
    StartOnly = 3,
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

/// The directory of option `counters`, if it is set. In a section apart from the data that each start writes, because
/// it is long.
#[unsafe(link_section = ".sbss.neap")]
pub static COUNTERS: Directory = Directory::new();

/// The text of option `stats`: `exit` or a path; empty: `off`. A copy, because a program may overwrite its environment.
/// It has the length of messages: code for another length takes room in the file.
#[unsafe(link_section = ".sbss.neap")]
pub static STATS: AtStart<Text<{ Complaint::BYTES + 2 }>> = AtStart::new(Text::new());

/// The option of this name.
pub fn find(name: impl AsRef<[u8]>) -> Result<&'static Opt, Error> {
    Opt::by_name(name).ok_or(Error::Unknown)
}

/// The value in force of an option.
pub fn value(option: &Opt) -> Value<'static> {
    option.load(&NEAP.policy).unwrap_or_else(|| match option.id {
        Id::Sites => Value::Path(sites::directory()),
        Id::SitesInterval => Value::Bytes(sites::interval().max(1)),
        Id::Profile => Value::Path(profile::directory()),
        Id::ProfileInterval => Value::Bytes(match profile::interval() {
            0 => profile::DEFAULT,
            interval => interval,
        }),
        Id::ProfileSignal => option.parse(profile::signal().as_bytes()).unwrap_or(Value::Word("off")),
        Id::Guards => Value::Word(match guards::settings().map(|settings| settings.mode) {
            None => "off",
            Some(guards::Mode::Abort) => "on",
            Some(guards::Mode::Report) => "report",
        }),
        Id::GuardsInterval => Value::Bytes(guards::settings().map_or(guards::DEFAULT, |settings| settings.interval)),
        Id::Prefault => option.parse(prefault::text()).unwrap_or(Value::Word("off")),
        Id::Stats => option.parse(STATS.get().bytes()).unwrap_or(Value::Word("off")),
        // It is not set, or no file could be made.
        _ if origin(option) == Origin::Default => Value::Path(b""),
        _ => Value::Path(COUNTERS.bytes()),
    })
}

/// Where the value of an option comes from.
pub fn origin(option: &Opt) -> Origin {
    Origin::of(NEAP.policy.origins(), option.id as usize)
}

/// Notes where the value of an option comes from.
pub fn note_origin(id: Id, by: Origin) {
    NEAP.policy.set_origin(id as usize, by as u8);
}

/// Sets an option by its name, at any time. Memory that waits follows the new value.
pub fn set(name: impl AsRef<[u8]>, text: &[u8]) -> Result<(), Error> {
    let option = find(name)?;
    if option.start_only {
        return Err(Error::StartOnly);
    }
    let value = option.parse(text).ok_or(Error::BadValue)?;
    Process.set(option.id, value, By { origin: Origin::Program, variable: None });
    Ok(())
}

/// The values that glibc's controls have replaced in this process.
pub static SAVED: Saved = Saved::new();

/// mallopt: returns 0 for a value out of range, else 1, also for an unknown parameter.
pub fn mallopt(parameter: i32, value: i32) -> i32 {
    // As in glibc, a negative number counts as one of the greatest.
    let number = i64::from(value).cast_unsigned();
    let by = By { origin: Origin::Mallopt, variable: None };
    glibc::by_parameter(parameter).is_none_or(|control| SAVED.apply(control, number, by, &mut Process)).into()
}

/// This process, in which options and controls are set.
#[derive(Debug)]
pub struct Process;

impl Target for Process {
    fn number(&self, id: Id) -> u64 {
        id.option().kept.map_or(0, |(setting, _)| NEAP.policy.word(setting) as u64)
    }

    /// Sets an option that the core keeps. Does nothing for other options.
    fn set(&mut self, id: Id, value: Value<'_>, by: By) {
        let option = id.option();
        if !option.store(&NEAP.policy, value) {
            return;
        }
        note_origin(id, by.origin);
        if id == Id::Harden {
            watch::set(Reason::Harden, NEAP.policy.harden());
        }
        if id == Id::Huge {
            neap_sys::huge::chosen(NEAP.policy.huge());
        }
        if option.guides_purger && matches!(by.origin, Origin::Mallopt | Origin::Program) {
            // Memory that waits may be due earlier than the purger expects.
            thread::in_call(|_| {
                NEAP.resume_purging();
                NEAP.look_at_limit();
            });
        }
    }

    fn act(&mut self, effect: Effect) {
        match effect {
            Effect::Fill(byte) => watch::set_fill(byte),
            Effect::Caches(on) => watch::set(Reason::NoCaches, !on),
            Effect::Report(on) => NEAP.policy.set_quiet(!on),
            _ => {}
        }
    }
}
