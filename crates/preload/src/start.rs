//! What happens when the library is loaded: options and glibc's controls are read from the environment. malloc works
//! before that, with the defaults, as the dynamic linker and other libraries call it earlier.
//!
//! Who is heard last wins: glibc's variables, GLIBC_TUNABLES, neap's own.

use crate::{c, calls, counting, foreign};
use core::ffi::{CStr, c_char, c_int};
use core::fmt::Write;
use neap_control::{glibc, options};
use neap_options::glibc::{Control, tunables};
use neap_options::{Complaint, Id, Opt, Origin, TABLE, Value};
use neap_sys::{sites, thread};

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
        neap_sys::status::watch();
    }
    foreign::start();
    c::start();
    thread::watch_fork();
    // SAFETY: getauxval only reads.
    let secure = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    if secure || environment.is_null() {
        return;
    }
    // SAFETY: glibc passes the process's environment.
    let variable = |name| unsafe { variable(environment, name) };
    for control in neap_options::glibc::TABLE {
        let text = control.env.and_then(variable);
        if let Some(number) = text.and_then(|text| Control::parse(text.to_bytes())) {
            glibc::apply(control, number, Origin::GlibcEnvironment);
        }
    }
    let text = variable("GLIBC_TUNABLES").map_or(&b""[..], CStr::to_bytes);
    for (control, number) in tunables(text) {
        glibc::apply(control, number, Origin::Tunables);
    }
    let from_run = variable(neap_options::SET_BY_RUN).map_or(&b""[..], CStr::to_bytes);
    let origin = |option: &Opt| {
        let named = from_run.split(|&b| b == b',').any(|name| name == option.name.as_bytes());
        if named { Origin::Run } else { Origin::Environment }
    };
    for option in TABLE {
        if let Some(value) = variable(option.env) {
            set(option, value, origin(option));
        }
    }
    // At the end: from here on allocations are recorded.
    if let Some(directory) = variable(Id::Sites.option().env).filter(|directory| !directory.is_empty()) {
        let interval = variable(Id::SitesInterval.option().env).map(CStr::to_bytes);
        let interval = interval.and_then(|text| Id::SitesInterval.option().parse(text));
        let interval = if let Some(Value::Bytes(bytes)) = interval { bytes } else { 1 };
        // SAFETY: the constructor runs once, before main. The environment begins at the end of the first thread's stack.
        if unsafe { sites::start(directory, interval, environment.addr()) } {
            options::note_origin(Id::Sites, origin(Id::Sites.option()));
        } else {
            complain(Id::Sites.option(), directory);
        }
    }
}

/// The value of the environment variable `name`.
unsafe fn variable(environment: *const *const c_char, name: &str) -> Option<&'static CStr> {
    // SAFETY: the environment is an array of strings that ends with NULL.
    unsafe {
        let mut entry = environment;
        while !(*entry).is_null() {
            let text = CStr::from_ptr(*entry);
            let bytes = text.to_bytes();
            if bytes.len() > name.len() && bytes.starts_with(name.as_bytes()) && bytes[name.len()] == b'=' {
                return Some(CStr::from_ptr((*entry).add(name.len() + 1)));
            }
            entry = entry.add(1);
        }
    }
    None
}

/// Sets one option, or says what is allowed.
fn set(option: &Opt, text: &'static CStr, by: Origin) {
    let value = option.parse(text.to_bytes());
    let known = match (option.id, value) {
        // An empty path is as good as none.
        (Id::Counters, _) => text.is_empty() || count(text, by),
        // Begins at the end of `start`, which complains.
        (Id::Sites, _) => true,
        (Id::SitesInterval, Some(_)) => {
            options::note_origin(Id::SitesInterval, by);
            true
        }
        (id, Some(value)) => options::start_with(id, value, by),
        (_, None) => false,
    };
    if !known {
        complain(option, text);
    }
}

/// Starts to count; false if that cannot be.
fn count(directory: &'static CStr, by: Origin) -> bool {
    let started = counting::start(directory);
    if started {
        options::note_counters(directory);
        options::note_origin(Id::Counters, by);
    }
    started
}

/// A line in the making; what does not fit is left out.
struct Line {
    text: [u8; Complaint::BYTES + 1],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, s: &str) -> core::fmt::Result {
        let n = s.len().min(self.text.len() - self.len);
        self.text[self.len..self.len + n].copy_from_slice(&s.as_bytes()[..n]);
        self.len += n;
        Ok(())
    }
}

fn complain(option: &Opt, text: &CStr) {
    let mut line = Line { text: [0; Complaint::BYTES + 1], len: 0 };
    // Neither the line nor what is written to it fails.
    let _ = writeln!(line, "{}", option.complaint(text.to_bytes()));
    // SAFETY: standard error, if it is open.
    let stderr = unsafe { rustix::fd::BorrowedFd::borrow_raw(2) };
    let _ = rustix::io::write(stderr, &line.text[..line.len]);
}
