//! `neap huge`: which huge pages the system and programs have, and reservations for one command.
//!
//! May depend on `neap-launch`, `neap-process`, `neap-hugetlb`, well-kept libraries, the C library and std.
//!
//! | word | meaning |
//! |---|---|
//! | pool, reservation | see `neap-hugetlb` |
//! | transparent huge page (THP) | one that the kernel uses by itself for ordinary memory, 2 MiB on x86-64 |
//! | left | pages of a pool that a file or a segment holds, and no process has |
//! | mTHP | a transparent one between an OS page and 2 MiB (Linux 6.8) |
#![deny(unsafe_op_in_unsafe_fn)]

pub mod args;
mod held;
mod reserve;
mod show;
mod status;
mod sys;
#[cfg(test)]
mod testing;

use neap_launch::error::Error;

use self::args::{HugeAction, HugeArgs};

/// Runs the command; the result is neap's exit status.
pub fn run(args: HugeArgs) -> Result<u8, Error> {
    match args.action {
        HugeAction::Status(status) => status::run(&status),
        HugeAction::Show(show) => show::run(&show),
        HugeAction::Reserve(reserve) => reserve::run(&reserve),
    }
}
