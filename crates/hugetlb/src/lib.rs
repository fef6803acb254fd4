//! The kernel's pools of huge pages (hugetlb): their contents, and reservations that are given back. `neap huge` and
//! `neap lab` share this.
//!
//! | word | meaning |
//! |---|---|
//! | pool | the huge pages of one size that the kernel keeps for programs that ask for them explicitly |
//! | place | where a pool's numbers are: for the whole machine, or for one NUMA node |
//! | total | all pages of a place, with the surplus |
//! | surplus | pages beyond the pool's size: taken for one use (overcommit), or in use when the pool was made smaller |
//! | size of a pool | total less surplus: what is written to `nr_hugepages` |
//! | reserved | free pages that are promised to a mapping which has not touched them yet |
//! | reservation | pages that neap added to a pool, and takes away again |
//!
//! May depend on the C library and std.
#![deny(unsafe_op_in_unsafe_fn)]

mod journal;
pub mod pool;
mod refused;
pub mod reservation;
pub mod root;
pub mod size;

pub use journal::{Held, held};
pub use refused::Refused;
pub use reservation::Reservation;
pub use root::Root;
