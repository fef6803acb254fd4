//! glibc's malloc, 2.31 to 2.43.

use crate::{Files, Heap, Mapping, Memory};

/// The heaps of all copies of glibc in a process.
pub fn find(_: &dyn Memory, _: &[Mapping], _: &dyn Files) -> Vec<Heap> {
    Vec::new()
}
