//! The user's choices of how a profile is written; for all formats.

use crate::pprof::Symbols;

/// The choices.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The value type for formats that have room for only one; the others show it first.
    pub column: usize,
    /// Whether pprof files have names.
    pub symbols: Symbols,
    /// Number of call sites in the text.
    pub limit: usize,
}
