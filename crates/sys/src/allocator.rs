//! The one allocator of the process, on Linux. The functions that the port calls back are passed in here.

use crate::guards;
use crate::helper::thread;
use crate::linux::Linux;
use crate::observe::{profile, samples};
use crate::system::{filter, space};
use core::arch::global_asm;
use core::mem::offset_of;
use core::ops::Deref;
use neap_core::Allocator;
use neap_core::helper::Leave;
use neap_core::watch::Reason;
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
    allocator: Allocator::new(Linux { helper, policy: || &NEAP.policy, requested }),
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

impl Placed {
    /// Keeps samples that are `interval` bytes apart on average (1: each block; 0: none) until a lease ends, as
    /// [`profile::set`]. Heaps follow at their next slow path, or by `watch::apply`.
    pub(crate) fn keep_samples(&self, interval: u64, until: u64) {
        profile::set(&self.control, interval, until);
        self.choose_samples();
    }

    /// Has blocks sampled as the hook, the profile and guards need it. Heaps follow as above.
    pub(crate) fn choose_samples(&self) {
        let (hook, wanted) = (samples::interval() as u64, profile::interval());
        // All get samples at the shortest distance. Weights say what each stands for, and guards choose among them. A
        // profile of each block needs none.
        let wanted_samples = if wanted == 1 { 0 } else { wanted };
        let distances = [hook, wanted_samples, guards::interval()];
        let interval = distances.into_iter().filter(|&distance| distance != 0).min().unwrap_or(0);
        if interval != 0 {
            // This reason stays for ever. A thread that frees a sample has synchronised with the one that made it, so
            // it sees it.
            self.set_reason(Reason::Marks, true);
        }
        self.set_sample_interval(usize::try_from(interval).unwrap_or(usize::MAX));
        self.set_reason(Reason::Exact, wanted == 1);
        self.set_reason(Reason::Samples, interval != 0);
    }
}

/// See `Os::requested`.
#[cold]
fn requested() -> bool {
    let kept = space::space().map(|space| &space.profile);
    if profile::follow_request(&NEAP.control, kept, filter::known_process().unwrap_or(0)) {
        NEAP.choose_samples();
        profile::answer(&NEAP.control);
    }
    // Also for heaps that could not be reached before.
    true
}

/// What the helper thread runs.
#[cold]
extern "C" fn helper(again: u32) -> Leave {
    thread::live(again != 0, || NEAP.help())
}
