//! The one allocator of the process, on Linux. Upper modules pass in here the functions that the port calls back.

use crate::guards;
use crate::helper::thread;
use crate::linux::Linux;
use crate::observe::{loaded, probes, profile, samples};
use crate::system::{clock, filter, space};
use core::arch::global_asm;
use core::mem::offset_of;
use core::ops::Deref;
use neap_core::Allocator;
use neap_core::helper::Leave;
use neap_core::observe::outside::LAYOUT;
use neap_core::watch::Reason;
use neap_samples::control::{Control, HeapPlaces, NOTE_TYPE};

/// The allocator. All of it that a program's first block writes lies on two OS pages.
#[repr(C, align(4096))]
#[derive(Debug)]
pub struct Placed {
    /// Where other processes request samples.
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

/// Offset in [`NEAP`] of the semaphores of the probes (`observe/probes.rs`): that of `alloc`, then that of `free`.
pub(crate) const READERS_AT: usize = offset_of!(Placed, allocator) + Allocator::<Linux>::READERS_AT;

const _: () = assert!(READERS_AT.is_multiple_of(2), "the kernel refuses semaphores that are not aligned");

/// The allocator.
pub static NEAP: Placed = Placed {
    control: Control::new(offset_of!(Placed, allocator) + Allocator::<Linux>::REQUEST_AT, HEAP),
    _before: [0; 1024 - size_of::<Control>()],
    allocator: Allocator::new(Linux { helper, policy: || &NEAP.policy, requested }),
};

/// The C library calls this when the object is loaded. In the file of [`NEAP`], so that it is linked wherever that is.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = loaded::stay;

/// The offsets by which other processes read the heap.
const HEAP: HeapPlaces = {
    let (start, places) = (offset_of!(Placed, allocator), Allocator::<Linux>::PLACES);
    HeapPlaces {
        layout: LAYOUT,
        arenas: (start + places.arenas) as u64,
        heaps: (start + places.heaps) as u64,
        huge: (start + places.huge) as u64,
    }
};

// The ELF note by which other processes find the control block, which is at the start of `NEAP`. The value of the note
// is the distance from the value to the block.
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

global_asm!(
    probes::own_text!(),
    block = sym NEAP,
    alloc = const READERS_AT,
    free = const READERS_AT + 2,
);

const _: () = assert!(offset_of!(Placed, control) == 0, "the note leads to the start of NEAP");

impl Placed {
    /// Keeps samples for the profile that are `interval` bytes apart on average (1: every block; 0: none), until the
    /// lease ends, as [`profile::set`]. Heaps adopt this at their next slow path, or by `watch::apply`.
    pub(crate) fn keep_samples(&self, interval: u64, until: u64) {
        profile::set(&self.control, interval, until);
        self.choose_samples();
    }

    /// Sets the sampling interval that the hook, the profile, the probes and guards need. Heaps adopt it as above.
    pub(crate) fn choose_samples(&self) {
        let (hook, wanted) = (samples::interval() as u64, profile::interval());
        // All share samples at the shortest of their intervals. The weight of a sample says how many bytes it stands
        // for, and guards choose among the samples. A profile of every block needs no samples.
        let kept = if wanted == 1 { 0 } else { wanted };
        let distances = [hook, kept, probes::interval(), guards::interval()];
        let interval = distances.into_iter().filter(|&distance| distance != 0).min().unwrap_or(0);
        if interval != 0 {
            // This reason is never removed. A thread that frees a sample has synchronised with the thread that made it,
            // so it sees the reason.
            self.set_reason(Reason::Marks, true);
        }
        // The last interval stays when sampling ends: a thread that has already chosen a sample computes its weight
        // later.
        if interval != 0 {
            self.set_sample_interval(usize::try_from(interval).unwrap_or(usize::MAX));
        }
        if wanted != 1 && self.has_reason(Reason::Exact) {
            self.set_reason(Reason::Exact, false);
            profile::end_exact();
        }
        if wanted != 0
            && profile::take_past()
            && let Some(space) = space::space()
        {
            space.profile.forget_exact();
        }
        self.set_reason(Reason::Exact, wanted == 1);
        self.set_reason(Reason::Samples, interval != 0);
    }

    /// Starts or ends samples for the probes, which are taken while a tool is attached; returns whether that changed.
    /// Heaps adopt it as above.
    pub(crate) fn follow_readers(&self) -> bool {
        let new = probes::follow(self.readers() != [0, 0]);
        if new {
            self.choose_samples();
        }
        new
    }

    /// Passes the probe `alloc` if a tool is attached to it: the sampled block of `size` requested bytes stands for
    /// `weight` bytes. If the last tool has detached, ends the samples for the probes.
    #[cold]
    pub(crate) fn pass_alloc(&self, block: *mut u8, size: usize, weight: u64) {
        let readers = self.readers();
        if readers[0] != 0 {
            probes::allocated(block, size, weight);
        } else if probes::interval() != 0 && readers == [0, 0] {
            // Heaps adopt this at their next slow path, which is their next call.
            self.follow_readers();
        }
    }

    /// Passes the probe `free` if a tool is attached to it: the sampled block is about to be freed.
    pub(crate) fn pass_free(&self, block: *mut u8) {
        if self.readers()[1] != 0 {
            probes::freed(block);
        }
    }
}

/// See `Os::requested`.
#[cold]
fn requested(request: bool) -> bool {
    if request {
        let kept = space::space().map(|space| &space.profile);
        if let Some(number) = profile::follow_request(&NEAP.control, kept, filter::known_process().unwrap_or(0)) {
            NEAP.choose_samples();
            profile::answer(&NEAP.control, number);
        }
    }
    let new = NEAP.follow_readers();
    // True from time to time even without a change, for heaps that the last handshake did not reach.
    request || new || clock::read(libc::CLOCK_MONOTONIC).is_none_or(|now| probes::is_time(now.as_nanos() as u64))
}

/// What the helper thread runs.
#[cold]
extern "C" fn helper(again: u32) -> Leave {
    thread::live(again != 0, || NEAP.help())
}
