//! Messages of the library: one line on standard error.

use core::fmt::{Display, Write};
use neap_core::text::Text;
use neap_options::Complaint;
use neap_sys::call;

/// A buffer for a message. One type for all: each type has a table of functions for writing text, which is relocated at
/// each start.
pub type Line = Text<{ Complaint::BYTES + 2 }>;

/// Writes a line to standard error.
pub fn say(message: &dyn Display) {
    let mut line = Line::new();
    // A part that does not fit is left out. If the line cannot be written, nothing else can be done.
    let _ = writeln!(line, "{message}");
    call::write(libc::STDERR_FILENO, line.bytes());
}
