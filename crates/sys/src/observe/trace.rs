//! Stacks as lines on standard error, after a line that reports a misuse. Signal-safe: nothing here allocates or takes
//! a lock, and each line is one write.
//!
//! A frame is shown as its address, the path of its object, and its link-time address in the object, for `addr2line -e
//! PATH 0xADDRESS`. For a caller this is the last byte of its call, so that addr2line finds the line of the call and
//! not the next one. Names of functions are left out, because the C library takes locks to find them.

use crate::observe::stack;
use crate::system::call;
use core::ffi::{CStr, c_char};
use core::fmt::Write;
use neap_core::text::Text;
use neap_sites::unwind::Frame;
use rustix::fd::RawFd;

/// Longest line, plus one.
const LINE: usize = 384;
/// Longest path that is shown whole; of longer ones the end.
const PATH: usize = 256;
/// Limit of frames of a stack that is shown.
const FRAMES: usize = 40;

/// Writes one line, cut where it is too long.
pub fn line(file: RawFd, text: core::fmt::Arguments<'_>) {
    let mut line = Text::<LINE>::new();
    let _ = writeln!(line, "    {text}");
    call::write(file, line.bytes());
}

/// Writes the stack of the present call.
pub fn present(file: RawFd) {
    line(file, format_args!("this call:"));
    let mut number = 0;
    stack::callers(&mut |at| {
        frame(file, number, at.wrapping_sub(1));
        number += 1;
        number < FRAMES
    });
}

/// Writes the stack of code that a signal has interrupted.
pub fn interrupted(file: RawFd, from: Frame) {
    let mut number = 0;
    stack::interrupted(from, &mut |at| {
        frame(file, number, if at == from.ip { at } else { at.wrapping_sub(1) });
        number += 1;
        number < FRAMES
    });
}

/// Writes a stack that was kept: return addresses.
pub fn kept(file: RawFd, addresses: impl Iterator<Item = u64>) {
    for (number, at) in addresses.take(FRAMES).enumerate() {
        frame(file, number, at.wrapping_sub(1));
    }
}

/// Writes a line for the code at `at`.
fn frame(file: RawFd, number: usize, at: u64) {
    let mut line = Text::<LINE>::new();
    let _ = write!(line, "      #{number} {at:#x}");
    if let Some((path, address)) = stack::object_at(at) {
        let path = if path.is_empty() { program() } else { path };
        line.push(b' ');
        if path.len() > PATH {
            line.append(b"...");
        }
        // No control characters, so that a path cannot look like another line.
        let end = path.iter().skip(path.len().saturating_sub(PATH));
        line.extend(end.map(|&byte| if byte.is_ascii_control() { b'?' } else { byte }));
        let _ = write!(line, "+{address:#x}");
    }
    line.push(b'\n');
    call::write(file, line.bytes());
}

/// The path by which the program was started.
fn program() -> &'static [u8] {
    let path = core::ptr::with_exposed_provenance::<c_char>(call::auxiliary(libc::AT_EXECFN));
    // SAFETY: the kernel has put the string at the end of the first thread's stack, which stays.
    if path.is_null() { b"the program" } else { unsafe { CStr::from_ptr(path) }.to_bytes() }
}
