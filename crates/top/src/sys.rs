//! The system calls of a terminal that the standard library lacks, in safe form.

use std::io;
use std::mem::MaybeUninit;
use std::time::Duration;

/// The settings that the terminal had, which dropping this value restores.
pub struct Raw(libc::termios);

impl Raw {
    /// Enters raw mode: no echo, no lines, no signals from keys.
    pub fn enter() -> io::Result<Raw> {
        let mut before = MaybeUninit::<libc::termios>::uninit();
        // SAFETY: the buffer has room for the structure.
        if unsafe { libc::tcgetattr(libc::STDIN_FILENO, before.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: tcgetattr succeeded, so it filled in the structure.
        let before = unsafe { before.assume_init() };
        let raw = Raw(before);
        raw.again()?;
        Ok(raw)
    }

    /// Enters raw mode again after a stop, during which the shell set its own settings.
    pub fn again(&self) -> io::Result<()> {
        let mut settings = self.0;
        // SAFETY: the structure is one that tcgetattr filled in.
        unsafe { libc::cfmakeraw(&mut settings) };
        set(&settings)
    }

    /// Restores the settings.
    pub fn leave(&self) {
        let _ = set(&self.0);
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        self.leave();
    }
}

fn set(settings: &libc::termios) -> io::Result<()> {
    // SAFETY: the structure is valid for the call.
    match unsafe { libc::tcsetattr(libc::STDIN_FILENO, libc::TCSANOW, settings) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Columns and lines of the terminal; none if it does not know them.
pub fn size() -> Option<(u16, u16)> {
    let mut size = MaybeUninit::<libc::winsize>::zeroed();
    // SAFETY: the buffer has room for the structure, for which all zeros are valid.
    let (result, size) = unsafe {
        let result = libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, size.as_mut_ptr());
        (result, size.assume_init())
    };
    (result == 0 && size.ws_col > 0 && size.ws_row > 0).then_some((size.ws_col, size.ws_row))
}

/// Waits for input, at most for `time`; true if there is input, or its end.
pub fn wait_for_input(time: Duration) -> bool {
    let mut poll = libc::pollfd { fd: libc::STDIN_FILENO, events: libc::POLLIN, revents: 0 };
    let millis = i32::try_from(time.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: the array is one structure long, and valid for the call.
    unsafe { libc::poll(&mut poll, 1, millis) > 0 }
}
