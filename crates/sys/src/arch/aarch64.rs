//! Everything that depends on the processor, for 64-bit Arm (aarch64). The file for x86-64 says more about each part.
//!
//! Thread storage is initial-exec, as on x86-64: two instructions and the thread pointer. A descriptor (TLSDESC) would
//! call a function for each malloc (`docs/platforms.md`).

use super::{Access, Fault};
use core::arch::{asm, global_asm, naked_asm};
use core::sync::atomic::{Ordering, compiler_fence, fence};
use neap_core::Heap;
use neap_core::heap::{Block, ThreadSlot};
use neap_core::helper::Leave;
use neap_sites::unwind::Frame;

/// A call that uses the thread's heap. The thread's slot is marked as in a call until [`Entered::leave`].
#[derive(Clone, Copy, Debug)]
pub struct Entered {
    /// The heap of the calling thread, or the mark in its place.
    pub heap: *mut Heap,
    /// The thread's slot.
    slot: &'static ThreadSlot,
}

/// The slot of the calling thread.
#[inline(always)]
pub fn slot() -> *mut ThreadSlot {
    let slot: *mut ThreadSlot;
    // SAFETY: reads the offset of the thread's own words, and the thread pointer.
    unsafe {
        asm!(
            "mrs {slot}, tpidr_el0",
            "adrp {offset}, :gottprel:neap_slot",
            "ldr {offset}, [{offset}, :gottprel_lo12:neap_slot]",
            "add {slot}, {slot}, {offset}",
            slot = out(reg) slot,
            offset = out(reg) _,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    slot
}

/// The slot, for the length of a call.
#[inline(always)]
fn own() -> &'static ThreadSlot {
    // SAFETY: the slot lives as long as the thread runs, and all its fields are atomic.
    unsafe { &*slot() }
}

/// Marks the calling thread's slot as in a call, and returns the heap. `None` in a reentrant call.
///
/// The increment is a load and a store. A handler that runs in between finds no call and leaves the count as it was, so
/// the store is still right after it.
#[inline(always)]
pub fn enter() -> Option<Entered> {
    let slot = own();
    // Relaxed: the thread's own words. The store comes before the load in program order; a handshake adds the barrier
    // that is needed beyond that (`back/handshake.rs` of the core).
    let calls = slot.busy.load(Ordering::Relaxed).wrapping_add(1);
    slot.busy.store(calls, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    if calls != 0 {
        slot.busy.store(calls.wrapping_sub(1), Ordering::Relaxed);
        return None;
    }
    // The fast paths reach all that a handshake may have changed through this pointer, so the processor loads that
    // after the pointer. Other paths call `Entered::acquire`.
    Some(Entered { heap: slot.heap.load(Ordering::Relaxed), slot })
}

impl Entered {
    /// Orders what follows behind the load of the heap: it sees what a handshake has done. For paths that read more
    /// than the heap leads to.
    #[inline(always)]
    pub fn acquire(self) {
        // Pairs with the Release at the end of a handshake.
        fence(Ordering::Acquire);
    }

    /// Ends the call: the slot is unmarked.
    #[inline(always)]
    pub fn leave(self) {
        // Release pairs with the Acquire of a handshake that finds no call: it sees what this one did to the heap.
        self.slot.busy.store(ThreadSlot::IDLE, Ordering::Release);
    }
}

/// [`Entered::leave`] for callers that do not have the value of [`enter`].
#[inline]
pub fn leave() {
    Entered { heap: core::ptr::null_mut(), slot: own() }.leave();
}

/// Zeroes `len` bytes, rounded up to a multiple of 16, at `p`, which is aligned to 16 bytes. For short blocks, where
/// a call to memset costs more than the work.
///
/// # Safety
/// `p` must be valid for writes of `len` bytes, rounded up.
#[inline(always)]
pub unsafe fn zero_short(p: *mut u8, len: usize) {
    // SAFETY: as the caller promises: the loop writes from `p` on.
    unsafe {
        asm!(
            "add {end}, {end}, #15",
            "and {end}, {end}, #-16",
            "cbz {end}, 3f",
            "2:",
            "stp xzr, xzr, [{p}], #16",
            "subs {end}, {end}, #16",
            "b.ne 2b",
            "3:",
            p = inout(reg) p => _,
            end = inout(reg) len => _,
            options(nostack),
        );
    }
}

/// [`Block::untag`].
#[inline(always)]
pub fn untag(block: *mut Block) -> bool {
    Block::untag(block)
}

/// Calls `f` with `argument` on another stack, which ends at `end`, and returns to the present one.
///
/// # Safety
/// `end` must be aligned to 16, and as much memory lie before it as `f` needs. `f` must be callable with `argument`,
/// and not unwind.
#[unsafe(naked)]
pub unsafe extern "C" fn call_on(
    end: *mut u8,
    f: unsafe extern "C" fn(*mut core::ffi::c_void),
    argument: *mut core::ffi::c_void,
) {
    naked_asm!(
        "hint #34",
        "stp x29, x30, [sp, #-16]!",
        "mov x29, sp",
        "mov sp, x0",
        "mov x0, x2",
        "blr x1",
        "mov sp, x29",
        "ldp x29, x30, [sp], #16",
        "ret",
    )
}

/// Defines an exported function with two arguments of a word each. It calls `$find` with the same arguments and returns
/// its result, unless that is null. Then it jumps to the function that `$next` returns, which finds arguments and
/// return address as if the caller had called it directly.
#[macro_export]
macro_rules! forward {
    ($(#[$doc:meta])* pub unsafe extern "C" fn $name:ident($a:ident: $ta:ty, $b:ident: $tb:ty) -> $r:ty, $find:path, $next:path) => {
        $(#[$doc])*
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($a: $ta, $b: $tb) -> $r {
            core::arch::naked_asm!(
                "hint #34",
                "stp x29, x30, [sp, #-32]!",
                "mov x29, sp",
                "stp x0, x1, [sp, #16]",
                "bl {find}",
                "cbnz x0, 2f",
                "bl {next}",
                "mov x16, x0",
                "ldp x0, x1, [sp, #16]",
                "ldp x29, x30, [sp], #32",
                "br x16",
                "2:",
                "ldp x29, x30, [sp], #32",
                "ret",
                find = sym $find,
                next = sym $next,
            )
        }
    };
}
pub use forward;

/// The address of a symbol, or null if no object defines it that is linked with neap or was loaded when neap was. Where
/// neap itself defines the symbol, that definition stays as it is.
#[macro_export]
macro_rules! weak {
    ($name:literal) => {{
        let at: *mut core::ffi::c_void;
        // SAFETY: reads an address that the linker has stored.
        unsafe {
            core::arch::asm!(
                concat!(".weakref neap_weak_", $name, ", ", $name),
                concat!("adrp {at}, :got:neap_weak_", $name),
                concat!("ldr {at}, [{at}, :got_lo12:neap_weak_", $name, "]"),
                at = out(reg) at,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        at
    }};
}
pub use weak;

/// The loop of the C++ operators new after memory ran out: calls the function that `next` returns (the program's new
/// handler, or one that throws bad_alloc), then `retry(size, align)`, until that returns a block. Exceptions pass
/// through this frame, so it is not compiled from Rust: it has no clean-up, and shows the unwinder where the saved
/// registers are.
///
/// # Safety
/// What `next` returns must be a function without arguments.
#[unsafe(naked)]
pub unsafe extern "C-unwind" fn new_loop(
    size: usize,
    align: usize,
    retry: extern "C" fn(usize, usize) -> *mut u8,
    next: extern "C" fn() -> *mut core::ffi::c_void,
) -> *mut u8 {
    naked_asm!(
        ".cfi_startproc",
        "stp x29, x30, [sp, #-48]!",
        ".cfi_def_cfa_offset 48",
        ".cfi_offset x29, -48",
        ".cfi_offset x30, -40",
        "mov x29, sp",
        "stp x19, x20, [sp, #16]",
        ".cfi_offset x19, -32",
        ".cfi_offset x20, -24",
        "stp x21, x22, [sp, #32]",
        ".cfi_offset x21, -16",
        ".cfi_offset x22, -8",
        "mov x19, x0",
        "mov x20, x1",
        "mov x21, x2",
        "mov x22, x3",
        "2:",
        "blr x22",
        "blr x0",
        "mov x0, x19",
        "mov x1, x20",
        "blr x21",
        "cbz x0, 2b",
        "ldp x21, x22, [sp, #32]",
        ".cfi_restore x21",
        ".cfi_restore x22",
        "ldp x19, x20, [sp, #16]",
        ".cfi_restore x19",
        ".cfi_restore x20",
        "ldp x29, x30, [sp], #48",
        ".cfi_restore x29",
        ".cfi_restore x30",
        ".cfi_def_cfa_offset 0",
        "ret",
        ".cfi_endproc",
    )
}

/// A system call that rustix does not have: its result, or the negated error. errno is not touched.
///
/// # Safety
/// As the call itself.
#[inline]
pub unsafe fn syscall(number: usize, a: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: as the caller promises; the kernel changes the result alone.
    unsafe {
        asm!(
            "svc #0",
            in("x8") number,
            inlateout("x0") a[0] => result,
            in("x1") a[1],
            in("x2") a[2],
            in("x3") a[3],
            in("x4") a[4],
            in("x5") a[5],
            options(nostack),
        );
    }
    result
}

/// The number of the system call fork, where there is one.
pub const FORK: Option<core::ffi::c_long> = None;

/// Starts a thread that the C library does not know, by clone(flags, stack, tid, tls, 0): on `stack` (its end, aligned
/// to 16), with the thread pointer `tls`. Its number is stored in `tid`, as `flags` say. Returns the number, or the
/// negated error.
///
/// The new thread calls entry(0), which returns the thread's last step, a compare-exchange. If that fails it calls
/// entry(1); else it wakes those that wait for the word and exits. For both it uses registers alone: another thread may
/// use its stack as soon as the word has changed.
///
/// # Safety
/// `stack` and `tls` must be memory that no other thread uses, and `entry` able to run there.
#[unsafe(naked)]
pub unsafe extern "C" fn start_thread(
    flags: usize,
    stack: *mut u8,
    tid: *mut u32,
    tls: *mut u8,
    entry: extern "C" fn(again: u32) -> Leave,
) -> isize {
    naked_asm!(
        ".cfi_startproc",
        "hint #34",
        "mov x9, x4",
        "mov x4, xzr",
        "mov x8, {clone}",
        "svc #0",
        "cbnz x0, 2f",
        // The new thread: nothing to unwind to.
        ".cfi_remember_state",
        ".cfi_undefined x30",
        "mov x29, xzr",
        "mov x30, xzr",
        "mov x19, x9",
        "mov w0, wzr",
        "3:",
        "blr x19",
        "lsr x2, x1, #32",
        "4:",
        "ldaxr w3, [x0]",
        "cmp w3, w1",
        "b.ne 5f",
        "stlxr w4, w2, [x0]",
        "cbnz w4, 4b",
        "mov w1, {wake}",
        "mov w2, #0x7fffffff",
        "mov x8, {futex}",
        "svc #0",
        "mov x0, xzr",
        "mov x8, {exit}",
        "svc #0",
        "brk #1",
        "5:",
        "clrex",
        "mov w0, #1",
        "b 3b",
        ".cfi_restore_state",
        "2:",
        "ret",
        ".cfi_endproc",
        clone = const libc::SYS_clone,
        wake = const libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
        futex = const libc::SYS_futex,
        exit = const libc::SYS_exit,
    )
}

const _: () = assert!(size_of::<Leave>() == 16 && core::mem::offset_of!(Leave, from) == 8, "returned in x0 and x1");

/// The thread pointer of the calling thread.
pub fn thread_pointer() -> usize {
    let at;
    // SAFETY: reads the register.
    unsafe { asm!("mrs {0}, tpidr_el0", out(reg) at, options(pure, nomem, nostack, preserves_flags)) };
    at
}

/// The name of clock_gettime in the code that the kernel maps (vdso(7)).
pub const VDSO_CLOCK: &core::ffi::CStr = c"__kernel_clock_gettime";

/// Bytes of the C library's record of a thread below the thread pointer, and of the two words at it. Thread storage
/// lies above these.
pub const THREAD_RECORD: [usize; 2] = [4096, 16];

/// Fills the zeroed record at `pointer` with what compiled code expects of each thread: nothing. The values that guard
/// stacks and saved addresses are the process's.
///
/// # Safety
/// [`THREAD_RECORD`] bytes around `pointer` must be writable, and no other thread's.
pub unsafe fn write_thread_record(_pointer: *mut u8) {}

/// Reads the context that the kernel passes to a handler.
///
/// # Safety
/// It must be such a context.
pub unsafe fn fault(context: *const core::ffi::c_void) -> Fault {
    // SAFETY: as the caller promises.
    let registers = unsafe { &(*context.cast::<libc::ucontext_t>()).uc_mcontext };
    let (ip, sp) = (registers.pc, registers.sp);
    let frame = Frame { ip, sp, bp: registers.regs[29], link: registers.regs[30] };
    // The registers are followed by records. Each begins with its kind and its length.
    // SAFETY: they lie in the context, up to one of length 0; the kernel writes them aligned to 16 bytes.
    let access = unsafe { access((&raw const *registers).add(1).map_addr(|at| at - RECORDS).cast()) };
    Fault { frame, access }
}

/// Bytes of the records at the end of the registers (`__reserved` of the kernel's `struct sigcontext`).
const RECORDS: usize = 4096;
/// ESR_MAGIC of include/uapi/asm/sigcontext.h: the record of the exception's syndrome.
const SYNDROME: u32 = 0x4553_5201;

/// How the memory was used, by the syndrome; a read if the records have no syndrome.
///
/// # Safety
/// The records of a signal's context must begin at `at`.
unsafe fn access(at: *const u32) -> Access {
    let mut place = 0;
    while place + 16 <= RECORDS {
        // SAFETY: as the caller promises; the place is within the records.
        let [kind, length] = unsafe { at.byte_add(place).cast::<[u32; 2]>().read() };
        if kind == SYNDROME {
            // SAFETY: the record is two words and the syndrome.
            return of_syndrome(unsafe { at.byte_add(place + 8).cast::<u64>().read() });
        }
        if length == 0 {
            break;
        }
        place += length as usize;
    }
    Access::Read
}

/// The exception class is in the six bits from 26 on: 0x20 and 0x21 are instruction aborts. Bit 6 says that a data
/// abort was a write.
fn of_syndrome(syndrome: u64) -> Access {
    match syndrome >> 26 & 0x3f {
        0x20 | 0x21 => Access::Execute,
        _ if syndrome & 1 << 6 != 0 => Access::Write,
        _ => Access::Read,
    }
}

/// Defines a handler of a signal. It calls `$decide` with the same arguments and jumps to the handler whose address
/// that returns, which finds arguments, stack and return address as the kernel has set them. If the address is 0, it
/// returns.
#[macro_export]
macro_rules! on_signal {
    ($(#[$doc:meta])* fn $name:ident, $decide:path) => {
        $(#[$doc])*
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                ".cfi_startproc",
                "hint #34",
                "stp x29, x30, [sp, #-48]!",
                ".cfi_def_cfa_offset 48",
                ".cfi_offset x29, -48",
                ".cfi_offset x30, -40",
                "mov x29, sp",
                "stp x0, x1, [sp, #16]",
                "str x2, [sp, #32]",
                "bl {decide}",
                "mov x16, x0",
                "ldr x2, [sp, #32]",
                "ldp x0, x1, [sp, #16]",
                "ldp x29, x30, [sp], #48",
                ".cfi_restore x29",
                ".cfi_restore x30",
                ".cfi_def_cfa_offset 0",
                "cbz x16, 2f",
                "br x16",
                "2:",
                "ret",
                ".cfi_endproc",
                decide = sym $decide,
            )
        }
    };
}
pub use on_signal;

// Where a handler returns to. Debuggers and unwinders recognise it by its bytes, which are the same as in the kernel's
// code.
global_asm!(
    ".pushsection .text.neap_signal_return,\"ax\",@progbits",
    ".p2align 2",
    "nop",
    ".hidden neap_signal_return",
    ".globl neap_signal_return",
    ".type neap_signal_return, @function",
    "neap_signal_return:",
    "mov x8, #139",
    "svc #0",
    ".size neap_signal_return, . - neap_signal_return",
    ".popsection",
);

const _: () = assert!(libc::SYS_rt_sigreturn == 139);

/// The registers at an instruction in the calling function.
#[inline(always)]
pub fn frame() -> Frame {
    let (ip, sp, bp);
    // SAFETY: reads registers.
    unsafe {
        asm!(
            "adr {ip}, .",
            "mov {sp}, sp",
            "mov {bp}, x29",
            ip = out(reg) ip,
            sp = out(reg) sp,
            bp = out(reg) bp,
            options(nomem, nostack, preserves_flags),
        );
    }
    // A function that calls another one has saved its link register.
    Frame { ip, sp, bp, link: 0 }
}
