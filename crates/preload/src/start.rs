//! What the library does when it is loaded: it reads options and glibc's controls from the environment. The dynamic
//! linker and other libraries call malloc earlier, so malloc works before that, with the defaults.

use crate::{c, calls, counting, foreign};
use core::ffi::{CStr, c_char, c_int};
use core::fmt::Write;
use neap_control::options::{self, Process, SAVED};
use neap_core::text::Text;
use neap_options::glibc::{By, Effect, Target};
use neap_options::{Complaint, Id, Opt, Origin, Value, environment};
use neap_sys::{call, thread, watch};

/// glibc calls the functions of this section with the arguments of main.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = start;

/// glibc calls these when the process ends, unless by `_exit` or a signal.
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = counting::finish;

extern "C" fn start(_: c_int, _: *const *const c_char, environment: *const *const c_char) {
    if calls::sees_filters() {
        neap_sys::filter::watch();
    }
    foreign::start();
    c::start();
    thread::watch_fork();
    if call::auxiliary(libc::AT_SECURE) != 0 || environment.is_null() {
        return;
    }
    let environment = Environment(environment);
    let mut start = Start { environment, sites: None, interval: 1 };
    let variable = |name: &str| environment.variable(name).map(CStr::to_bytes);
    environment::read(variable, &SAVED, &mut start, complain);
    start.record_sites();
}

/// The environment of the process: an array of strings that ends with NULL, and lives for ever.
#[derive(Clone, Copy)]
struct Environment(*const *const c_char);

impl Environment {
    fn entries(self) -> impl Iterator<Item = &'static CStr> {
        (0..).map_while(move |place| {
            // SAFETY: the C library passes such an array to constructors. `place` is not behind its end.
            unsafe {
                let entry = *self.0.add(place);
                (!entry.is_null()).then(|| CStr::from_ptr(entry))
            }
        })
    }

    /// The value of the variable `name`.
    fn variable(self, name: &str) -> Option<&'static CStr> {
        self.entries().find_map(|entry| {
            let value = entry.to_bytes_with_nul().strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
            CStr::from_bytes_with_nul(value).ok()
        })
    }

    /// The path in the variable of an option; empty if it is not set.
    fn path(self, id: Id) -> &'static CStr {
        self.variable(id.option().env).unwrap_or(c"")
    }
}

/// Sets what the environment chooses: options of the core at once, and those that start something by starting it.
struct Start {
    environment: Environment,
    /// Who chose to record sites.
    sites: Option<Origin>,
    interval: u64,
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
            _ => Process.set(id, value, by),
        }
    }

    fn act(&mut self, effect: Effect) {
        Process.act(effect);
    }
}

impl Start {
    /// Starts option `sites`. This comes last, as allocations are recorded from here on.
    fn record_sites(self) {
        let Some(by) = self.sites else { return };
        let directory = self.environment.path(Id::Sites);
        // SAFETY: the constructor runs once, before main. The environment begins at the end of the first thread's
        // stack.
        if unsafe { watch::start_sites(directory, self.interval, self.environment.0.addr()) } {
            options::note_origin(Id::Sites, by);
        } else {
            complain(Id::Sites.option(), directory.to_bytes());
        }
    }
}

/// Writes to standard error that a value is invalid.
fn complain(option: &Opt, text: &[u8]) {
    let mut line = Text::<{ Complaint::BYTES + 2 }>::new();
    // A part that does not fit is left out. If the line cannot be written, nothing else can be done.
    let _ = writeln!(line, "{}", option.complaint(text));
    call::write(libc::STDERR_FILENO, line.bytes());
}
