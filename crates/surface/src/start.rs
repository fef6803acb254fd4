//! What the library does when it is loaded: it reads options and glibc's controls from the environment. The dynamic
//! linker and other libraries call malloc earlier, so malloc works before that, with the defaults.

use crate::line::say;
use crate::{calls, counting, exit_stats, foreign, front, prefault, signal};
use core::ffi::{CStr, c_char, c_int};
use neap_control::options::{self, Process, SAVED};
use neap_options::glibc::{By, Effect, Target};
use neap_options::unknown::{self, Unknown};
use neap_options::{Id, Opt, Origin, Value, environment};
use neap_sys::guards::{self, Mode};
use neap_sys::{call, musl, pressure, profile, thread, watch};

/// The library's destructor: the C library calls it when the process ends, unless by `_exit` or a signal.
pub extern "C" fn end() {
    counting::finish();
    exit_stats::finish();
}

/// The library's constructor.
///
/// # Safety
/// To be called once, by the C library, with its arguments of constructors.
pub unsafe extern "C" fn start(_: c_int, _: *const *const c_char, environment: *const *const c_char) {
    if calls::sees_filters() {
        neap_sys::filter::watch();
    }
    calls::find_next();
    foreign::start();
    front::start();
    thread::watch_fork();
    let environment = musl::environment(environment);
    if call::auxiliary(libc::AT_SECURE) != 0 || environment.is_null() {
        return;
    }
    let environment = Environment(environment);
    if !environment.has_any(&BEGINNINGS) {
        return;
    }
    watch_pressure(environment);
    let mut start = Start {
        environment,
        sites: None,
        interval: 1,
        profile: None,
        profile_interval: profile::DEFAULT,
        profile_signal: None,
        guards: None,
        guards_interval: guards::DEFAULT,
    };
    let variable = |name: &str| environment.variable(name).map(CStr::to_bytes);
    environment::read(variable, &SAVED, &mut start, say);
    environment.names().filter_map(Unknown::of).for_each(|unknown| say(&unknown));
    start.record_sites();
    start.profile();
    start.profile_signal();
    start.guards();
}

/// The beginnings of the names of all variables that are read here.
const BEGINNINGS: [&str; 4] = {
    let [a, b, c] = environment::BEGINNINGS;
    [a, b, c, pressure::WATCH]
};

/// Chooses the file by which memory pressure is watched, if the variables of systemd's protocol name one.
fn watch_pressure(environment: Environment) {
    let value = |name: &str| environment.variable(name).map(CStr::to_bytes);
    let Some(path) = value(pressure::WATCH).filter(|path| !path.is_empty()) else { return };
    // SAFETY: the constructor runs once, before main.
    if !unsafe { pressure::choose(path, value(pressure::WRITE).unwrap_or_default()) } {
        let line =
            b"neap: MEMORY_PRESSURE_WATCH or MEMORY_PRESSURE_WRITE is invalid; use an absolute path, and Base64; \
            memory pressure is not watched\n";
        call::write(libc::STDERR_FILENO, line);
    }
}

/// The environment of the process: an array of strings that ends with NULL, and lives for ever.
#[derive(Clone, Copy)]
struct Environment(*const *const c_char);

impl Environment {
    fn entries(self) -> impl Iterator<Item = *const c_char> {
        // SAFETY: the C library passes such an array to constructors. `place` is not behind its end.
        (0..).map(move |place| unsafe { *self.0.add(place) }).take_while(|entry| !entry.is_null())
    }

    /// Whether a name begins with one of these. Most processes have no such variable, so this reads little of each
    /// entry.
    fn has_any(self, beginnings: &[&str]) -> bool {
        self.entries().any(|entry| beginnings.iter().any(|beginning| after(entry, beginning).is_some()))
    }

    /// The names of the variables that begin like those of options.
    fn names(self) -> impl Iterator<Item = &'static [u8]> {
        let of_options = self.entries().filter(|&entry| after(entry, unknown::BEGINNING).is_some());
        // SAFETY: a string of the environment, which lives for ever.
        let entries = of_options.map(|entry| unsafe { CStr::from_ptr(entry) }.to_bytes());
        entries.map(|entry| entry.split(|&byte| byte == b'=').next().unwrap_or_default())
    }

    /// The value of the variable `name`.
    fn variable(self, name: &str) -> Option<&'static CStr> {
        let value = self.entries().find_map(|entry| after(entry, name).and_then(|rest| after(rest, "=")))?;
        // SAFETY: the rest of a string of the environment, which lives for ever.
        Some(unsafe { CStr::from_ptr(value) })
    }

    /// The path in the variable of an option; empty if it is not set.
    fn path(self, id: Id) -> &'static CStr {
        self.variable(id.option().env).unwrap_or(c"")
    }
}

/// The rest of the string `entry` after `beginning`; `None` if it does not begin with that.
fn after(entry: *const c_char, beginning: &str) -> Option<*const c_char> {
    // SAFETY: a string of the environment. `beginning` has no NUL, so all that is read lies before the string's end or
    // is its end.
    let same = beginning.bytes().enumerate().all(|(i, byte)| unsafe { *entry.cast::<u8>().add(i) } == byte);
    // SAFETY: as above.
    same.then(|| unsafe { entry.add(beginning.len()) })
}

/// Sets what the environment chooses: `sites`, `profile`, `profile_signal` and `guards` after all variables were read,
/// the other options at once.
struct Start {
    environment: Environment,
    /// Who chose to record sites.
    sites: Option<Origin>,
    interval: u64,
    /// Who chose to keep samples.
    profile: Option<Origin>,
    profile_interval: u64,
    /// The signal at which a profile is written, and who chose it.
    profile_signal: Option<(&'static str, Origin)>,
    /// What guards do, and who chose that.
    guards: Option<(Mode, Origin)>,
    guards_interval: u64,
}

impl Target for Start {
    fn number(&self, id: Id) -> u64 {
        Process.number(id)
    }

    fn set(&mut self, id: Id, value: Value<'_>, by: By) {
        match (id, value) {
            (Id::Counters, _) => {
                let directory = self.environment.path(id);
                if !counting::start(directory) {
                    return complain(id.option(), directory.to_bytes());
                }
                options::note_origin(id, by.origin);
            }
            (Id::Sites, _) => self.sites = Some(by.origin),
            (Id::SitesInterval, Value::Bytes(bytes)) => {
                self.interval = bytes;
                options::note_origin(id, by.origin);
            }
            (Id::Profile, _) => self.profile = Some(by.origin),
            (Id::ProfileInterval, Value::Bytes(bytes)) => {
                self.profile_interval = bytes;
                profile::choose_for_probes(bytes);
                options::note_origin(id, by.origin);
            }
            (Id::ProfileSignal, Value::Word(name)) => self.profile_signal = Some((name, by.origin)),
            (Id::Guards, Value::Word(word)) => {
                let mode = match word {
                    "on" => Some(Mode::Abort),
                    "report" => Some(Mode::Report),
                    _ => None,
                };
                self.guards = mode.map(|mode| (mode, by.origin));
                if mode.is_none() {
                    options::note_origin(id, by.origin);
                }
            }
            (Id::GuardsInterval, Value::Bytes(bytes)) => {
                self.guards_interval = bytes;
                options::note_origin(id, by.origin);
            }
            (Id::Stats, _) => {
                // SAFETY: the constructor runs once, before main.
                if !unsafe { exit_stats::start(value) } {
                    return complain(id.option(), self.environment.path(id).to_bytes());
                }
                options::note_origin(id, by.origin);
            }
            (Id::Prefault, _) => {
                let text = self.environment.path(id).to_bytes();
                // SAFETY: the constructor runs once, before main.
                if !unsafe { neap_sys::prefault::set_text(text) } {
                    return complain(id.option(), text);
                }
                options::note_origin(id, by.origin);
                prefault::run(value);
                // Published at once, so that a process that is killed shows it too.
                counting::finish();
            }
            _ => Process.set(id, value, by),
        }
    }

    fn act(&mut self, effect: Effect) {
        Process.act(effect);
    }
}

impl Start {
    /// Starts option `sites`: allocations are recorded from here on.
    fn record_sites(&self) {
        let Some(by) = self.sites else { return };
        let directory = self.environment.path(Id::Sites);
        // SAFETY: the constructor runs once, before main.
        if unsafe { watch::start_sites(directory, self.interval) } {
            options::note_origin(Id::Sites, by);
        } else {
            complain(Id::Sites.option(), directory.to_bytes());
        }
    }

    /// Starts option `guards`.
    fn guards(&self) {
        let Some((mode, by)) = self.guards else { return };
        if watch::start_guards(mode, self.guards_interval) {
            options::note_origin(Id::Guards, by);
        } else {
            call::write(libc::STDERR_FILENO, b"neap: guards are off: the system refuses their memory\n");
        }
    }

    /// Starts option `profile`.
    fn profile(&self) {
        let Some(by) = self.profile else { return };
        let directory = self.environment.path(Id::Profile);
        // SAFETY: as above.
        if unsafe { profile::start_in(directory, self.profile_interval) } {
            options::note_origin(Id::Profile, by);
        } else {
            complain(Id::Profile.option(), directory.to_bytes());
        }
    }
}

impl Start {
    /// Starts option `profile_signal`, which needs the directory of `profile`.
    fn profile_signal(&self) {
        let Some((name, by)) = self.profile_signal.filter(|(name, _)| *name != "off") else { return };
        // SAFETY: as above.
        if unsafe { signal::start(name) } {
            options::note_origin(Id::ProfileSignal, by);
        }
    }
}

/// Writes to standard error that a value is invalid.
fn complain(option: &Opt, text: &[u8]) {
    say(&option.complaint(text));
}
