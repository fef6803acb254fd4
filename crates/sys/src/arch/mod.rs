//! What depends on the processor: one file for each processor, with the same names. This file has what they share.

use core::arch::global_asm;
use neap_core::heap::ThreadSlot;
use neap_sites::unwind::Frame;

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub use aarch64::*;
#[cfg(target_arch = "x86_64")]
pub use x86_64::*;

// The slot of the thread (`neap_core::heap::ThreadSlot`): four words of initial-exec thread-local storage, so that
// neither a call to __tls_get_addr nor memory is needed to reach them. The first starts as `neap_core::Heap::none()`,
// whose address the dynamic linker stores into the template before the first thread gets its copy.
global_asm!(
    ".pushsection .tdata,\"awT\",@progbits",
    ".p2align 3",
    ".hidden neap_slot",
    ".globl neap_slot",
    ".type neap_slot, @object",
    ".size neap_slot, 32",
    "neap_slot:",
    ".quad {none}",
    ".long {idle}",
    ".long 0",
    ".quad 0",
    ".quad 0",
    ".popsection",
    none = sym neap_core::heap::NONE,
    idle = const ThreadSlot::IDLE.cast_signed(),
);

const _: () = assert!(core::mem::offset_of!(ThreadSlot, heap) == 0 && core::mem::offset_of!(ThreadSlot, busy) == 8);
const _: () = assert!(core::mem::offset_of!(ThreadSlot, forks) == 12 && size_of::<ThreadSlot>() == 32);

/// Whether this is the result of a system call that failed.
pub fn is_error(result: isize) -> bool {
    const MAX_ERRNO: isize = 4095;
    (-MAX_ERRNO..0).contains(&result)
}

/// How an instruction accessed memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It read.
    Read,
    /// It wrote.
    Write,
    /// It was to be executed.
    Execute,
}

/// What a signal has interrupted.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// The registers.
    pub frame: Frame,
    /// How the instruction used memory, where the signal is a page fault.
    pub access: Access,
}

unsafe extern "C" {
    /// Where a handler returns to: ends the signal.
    #[link_name = "neap_signal_return"]
    pub fn signal_return();
}
