//! What the user can choose of how a profile is written; for all formats.

use crate::pprof::Symbols;

/// The choices.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The value type for formats that have room for one; the others show it first.
    pub column: usize,
    /// Whether pprof files have names.
    pub symbols: Symbols,
    /// Call sites in the text.
    pub limit: usize,
}
