//! What happens when the library is loaded: options are read from the environment. malloc works before that, with
//! the defaults, as the dynamic linker and other libraries call it earlier.

use crate::{counting, foreign, settings};
use core::ffi::{CStr, c_char, c_int};
use core::fmt::Write;
use core::sync::atomic::Ordering;
use neap_options::{Complaint, Id, Opt, TABLE, Value};
use neap_sys::global::NEAP;
use neap_sys::thread;

/// glibc calls the functions of this section with the arguments of main.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = start;

/// glibc calls these when the process ends, unless by `_exit` or a signal.
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = counting::finish;

extern "C" fn start(_: c_int, _: *const *const c_char, environment: *const *const c_char) {
    // `calls.rs` has the functions by which a program gives itself a filter.
    neap_sys::status::watch();
    foreign::start();
    thread::watch_fork();
    // SAFETY: getauxval only reads.
    let secure = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    if secure || environment.is_null() {
        return;
    }
    for option in TABLE {
        // SAFETY: glibc passes the process's environment.
        if let Some(value) = unsafe { variable(environment, option.env) } {
            set(option, value);
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
fn set(option: &Opt, text: &CStr) {
    let value = option.parse(text.to_bytes());
    let known = match (option.id, value) {
        // An empty path is as good as none.
        (Id::Counters, _) => text.is_empty() || counting::start(text),
        (Id::Foreign, Some(Value::Word(word))) => {
            foreign::ABORT.store(word == "abort", Ordering::Relaxed);
            true
        }
        (id, Some(value)) => settings::apply(&NEAP.policy, id, value),
        (_, None) => false,
    };
    if !known {
        complain(option, text);
    }
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
