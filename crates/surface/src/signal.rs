//! Option `profile_signal`: the handler of the signal at which a profile is written.
//!
//! A program that sets its own handler later gets the signal instead. If a handler is set already, or the signal is
//! ignored, that stays: neap replaces nothing of the program's, and chains no handlers.

use core::ffi::c_int;
use core::fmt::Write;
use neap_core::text::Text;
use neap_sys::{call, musl, profile};

/// The number of the signal of a name of the option.
fn number(name: &str) -> Option<c_int> {
    match name {
        "usr1" => Some(libc::SIGUSR1),
        "usr2" => Some(libc::SIGUSR2),
        _ => {
            let place: c_int = name.strip_prefix("rtmin+")?.parse().ok()?;
            Some(musl::first_real_time_signal() + place)
        }
    }
}

/// Installs the handler. If that fails, a line on standard error says why.
///
/// # Safety
/// To be called once, while the process has one thread.
pub unsafe fn start(name: &'static str) -> bool {
    let Some(signal) = number(name) else { return false };
    let why = if profile::directory().is_empty() {
        "profile names no directory for the files"
    } else if !is_free(signal) {
        "the signal is in use or ignored already"
    } else if !install(signal) {
        "the system refuses the handler"
    } else {
        // SAFETY: as the caller promises.
        unsafe { profile::set_signal(name) };
        return true;
    };
    let mut line = Text::<192>::new();
    let _ = writeln!(line, "neap: NEAP_PROFILE_SIGNAL={name}: {why}; no profile is written at a signal");
    call::write(libc::STDERR_FILENO, line.bytes());
    false
}

/// Whether the signal has its default action, so that nothing uses it.
fn is_free(signal: c_int) -> bool {
    // SAFETY: zeros are a value of this type, which the call fills in.
    unsafe {
        let mut now: libc::sigaction = core::mem::zeroed();
        libc::sigaction(signal, core::ptr::null(), &raw mut now) == 0 && now.sa_sigaction == libc::SIG_DFL
    }
}

fn install(signal: c_int) -> bool {
    let handler: extern "C" fn(c_int) = profile::by_signal;
    // SAFETY: zeros are a value of this type. The handler may interrupt any code. All signals are blocked in it; calls
    // that it interrupts are restarted.
    unsafe {
        let mut action: libc::sigaction = core::mem::zeroed();
        action.sa_sigaction = handler as *const () as libc::sighandler_t;
        action.sa_flags = libc::SA_RESTART | libc::SA_ONSTACK;
        (&raw mut action.sa_mask).write_bytes(0xff, 1);
        libc::sigaction(signal, &raw const action, core::ptr::null_mut()) == 0
    }
}
