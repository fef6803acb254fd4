//! The one allocator of the process, on Linux. The functions that the port calls back are passed in here.

use crate::helper::thread;
use crate::linux::Linux;
use core::arch::global_asm;
use core::mem::offset_of;
use core::ops::Deref;
use neap_core::Allocator;
use neap_core::helper::Leave;
use neap_samples::control::{Control, NOTE_TYPE};

/// The allocator, so placed that all of it which a program's first block writes lies on two OS pages.
#[repr(C, align(4096))]
#[derive(Debug)]
pub struct Placed {
    /// Where other processes ask for samples.
    pub(crate) control: Control,
    _before: [u8; 1024 - size_of::<Control>()],
    allocator: Allocator<Linux>,
}

impl Deref for Placed {
    type Target = Allocator<Linux>;

    #[inline(always)]
    fn deref(&self) -> &Allocator<Linux> {
        &self.allocator
    }
}

/// The allocator.
pub static NEAP: Placed = Placed {
    control: Control::new(offset_of!(Placed, allocator) + Allocator::<Linux>::REQUEST_AT),
    _before: [0; 1024 - size_of::<Control>()],
    allocator: Allocator::new(Linux { helper, policy: || &NEAP.policy }),
};

// The note by which other processes find the control block, at the start of `NEAP`: its value is the distance.
global_asm!(
    ".pushsection .note.neap,\"a\",@note",
    ".p2align 2",
    ".long 5, 8, {kind}",
    ".asciz \"neap\"",
    ".p2align 2",
    ".quad {block} - .",
    ".popsection",
    kind = const NOTE_TYPE,
    block = sym NEAP,
);

const _: () = assert!(offset_of!(Placed, control) == 0, "the note leads to the start of NEAP");

/// What the helper thread runs.
#[cold]
extern "C" fn helper(again: u32) -> Leave {
    thread::live(again != 0, || NEAP.help())
}
