//! What happens when the library is loaded: options are read from the environment. malloc works before that, with
//! the defaults, as the dynamic linker and other libraries call it earlier.

use crate::{counting, foreign};
use core::ffi::{CStr, c_char, c_int};
use core::sync::atomic::Ordering;
use neap_options::{Kind, Opt, TABLE};
use neap_sys::thread;

/// glibc calls the functions of this section with the arguments of main.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = start;

extern "C" fn start(_: c_int, _: *const *const c_char, environment: *const *const c_char) {
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
fn set(option: &Opt, value: &CStr) {
    let known = match option.name {
        "counters" => value.is_empty() || counting::start(value),
        "foreign" => match option.kind {
            Kind::Choice(words) => match words.iter().position(|w| w.as_bytes() == value.to_bytes()) {
                Some(index) => {
                    foreign::ABORT.store(words[index] == "abort", Ordering::Relaxed);
                    true
                }
                None => false,
            },
            Kind::Directory => false,
        },
        _ => true,
    };
    if !known {
        complain(option, value);
    }
}

fn complain(option: &Opt, value: &CStr) {
    let parts: [&[u8]; 7] = [
        b"neap: ",
        option.env.as_bytes(),
        b"=",
        value.to_bytes(),
        b" is not understood (see neap options); the default is used: ",
        if option.default.is_empty() { b"none" } else { option.default.as_bytes() },
        b"\n",
    ];
    let mut line = [0u8; 512];
    let mut len = 0;
    for part in parts {
        let n = part.len().min(line.len() - len);
        line[len..len + n].copy_from_slice(&part[..n]);
        len += n;
    }
    // SAFETY: standard error, if it is open.
    let stderr = unsafe { rustix::fd::BorrowedFd::borrow_raw(2) };
    let _ = rustix::io::write(stderr, &line[..len]);
}
