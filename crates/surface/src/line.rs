//! Messages of the library: one line on standard error.

use core::fmt::{Display, Write};
use neap_core::text::Text;
use neap_options::Complaint;
use neap_sys::call;

/// Room for a message. One type for all, as the functions by which text is written to it are relocated at each start.
pub type Line = Text<{ Complaint::BYTES + 2 }>;

/// Writes a line to standard error.
pub fn say(message: &dyn Display) {
    let mut line = Line::new();
    // A part that does not fit is left out. If the line cannot be written, nothing else can be done.
    let _ = writeln!(line, "{message}");
    call::write(libc::STDERR_FILENO, line.bytes());
}
