//! The attributes of processes, threads and memory that a program can change at any time, and what neap promises then.
//!
//! `table.rs` is the one table. From it come the tables of docs/attributes.md, by `cargo xtask documents`, and the changes
//! from which the plans of `cargo xtask torture` draw.

mod model;
mod page;
mod table;
#[cfg(test)]
mod tests;

use model::Torture;
pub use page::write;
use table::TABLE;

/// The changes from which torture draws.
pub fn drawn() -> impl Iterator<Item = &'static str> {
    let attributes = TABLE.iter().flat_map(|kind| kind.attributes);
    attributes
        .flat_map(|attribute| match attribute.torture {
            Torture::Changes(names) => names,
            Torture::Actor(_) | Torture::Not(_) => &[][..],
        })
        .copied()
}
