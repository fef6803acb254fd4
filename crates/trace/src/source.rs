//! Where faults come from.

use std::io;

use crate::{Fault, Tables};

/// A trace: its tables, and its faults in order.
///
/// Faults may lie in a file, so there is no slice of them: they may not fit in memory.
pub trait Source {
    /// Everything but the faults. Complete: rows are not added while faults are visited.
    fn tables(&self) -> &Tables;

    /// Shows each fault to `visitor`, in order of their numbers, until it fails. Can be called again.
    fn visit(&self, visitor: &mut dyn FnMut(&Fault) -> io::Result<()>) -> io::Result<()>;
}

/// A trace that is in memory.
#[derive(Clone, Debug, Default)]
pub struct Recorded {
    /// Everything but the faults.
    pub tables: Tables,
    /// In order of their numbers.
    pub faults: Vec<Fault>,
}

impl Source for Recorded {
    fn tables(&self) -> &Tables {
        &self.tables
    }

    fn visit(&self, visitor: &mut dyn FnMut(&Fault) -> io::Result<()>) -> io::Result<()> {
        self.faults.iter().try_for_each(visitor)
    }
}
