//! The report of a run of the lab: one page of HTML, charts as SVG and PNG, markdown, comparisons.
//!
//! Depends on `neap-results` and, for PNG, on resvg; gives texts and bytes. No files and no system calls, but for the
//! fonts of a PNG, which are the system's.
#![forbid(unsafe_code)]

pub mod page;
pub mod plot;
pub mod theme;

#[cfg(test)]
mod sample;
