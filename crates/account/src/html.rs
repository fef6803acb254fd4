//! A page (later).
use std::io::{self, Write};
/// x
pub fn page(report: &crate::Report, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{}", report.pid)
}
/// x
pub fn container(of: &crate::container::Container, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{}", of.path)
}
