//! Everything that depends on the processor, for x86-64. A port to another processor is one more file like this.

use super::{Access, Fault};
use core::arch::{asm, global_asm, naked_asm};
use neap_core::Heap;
use neap_core::heap::{Block, ThreadSlot};
use neap_core::helper::Leave;
use neap_sites::unwind::Frame;

/// A call that uses the thread's heap. The thread's slot is marked as in a call until [`Entered::leave`].
#[derive(Clone, Copy, Debug)]
pub struct Entered {
    /// The heap of the calling thread, or the mark in its place.
    pub heap: *mut Heap,
    /// Where the slot lies in thread storage.
    at: usize,
}

/// Where the slot lies in thread storage.
#[inline(always)]
fn place() -> usize {
    let at;
    // SAFETY: reads the offset of the thread's own words.
    unsafe {
        asm!(
            "mov {at}, qword ptr [rip + neap_slot@GOTTPOFF]",
            at = out(reg) at,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    at
}

/// Marks the calling thread's slot as in a call, and returns the heap. `None` in a reentrant call, that is, a call of a
/// handler which interrupted another call of this thread: it must use neither heap nor lock (`neap_core::reentrant`).
///
/// A handler that runs before the increment finds no call, and leaves the count as it was. One that runs after it finds
/// a call, until [`Entered::leave`].
#[inline(always)]
pub fn enter() -> Option<Entered> {
    let at = place();
    // SAFETY: the thread's own words. The store comes before the load for the compiler and in program order; a
    // handshake adds the barrier that is needed beyond that (`back/handshake.rs` of the core).
    unsafe {
        asm!(
            "inc dword ptr fs:[{at} + 8]",
            "jne {reentrant}",
            at = in(reg) at,
            reentrant = label { return reentrant(at) },
            options(nostack),
        );
        let heap;
        asm!(
            "mov {heap}, qword ptr fs:[{at}]",
            at = in(reg) at,
            heap = out(reg) heap,
            options(nostack, preserves_flags),
        );
        Some(Entered { heap, at })
    }
}

/// Undoes the increment of a reentrant call.
#[cold]
#[inline(always)]
fn reentrant(at: usize) -> Option<Entered> {
    // SAFETY: the thread's own word.
    unsafe { asm!("dec dword ptr fs:[{at} + 8]", at = in(reg) at, options(nostack)) };
    None
}

impl Entered {
    /// Orders what follows behind the load of the heap, as this processor does by itself.
    #[inline(always)]
    pub fn acquire(self) {}

    /// Ends the call: the slot is unmarked.
    #[inline(always)]
    pub fn leave(self) {
        // SAFETY: the thread's own word.
        unsafe {
            asm!(
                "mov dword ptr fs:[{at} + 8], {idle}",
                at = in(reg) self.at,
                idle = const ThreadSlot::IDLE.cast_signed(),
                options(nostack, preserves_flags),
            );
        }
    }
}

/// [`Entered::leave`] for callers that do not have the value of [`enter`].
#[inline]
pub fn leave() {
    Entered { heap: core::ptr::null_mut(), at: place() }.leave();
}

/// The slot of the calling thread.
#[inline]
pub fn slot() -> *mut ThreadSlot {
    let slot: *mut ThreadSlot;
    // SAFETY: reads the offset of the thread's own words.
    unsafe {
        asm!(
            "mov {0}, qword ptr [rip + neap_slot@GOTTPOFF]",
            "add {0}, qword ptr fs:[0]",
            out(reg) slot,
            options(pure, readonly, nostack),
        );
    }
    slot
}

/// Zeroes `len` bytes, rounded up to a multiple of 16, at `p`, which is aligned to 16 bytes. For short blocks, where
/// a call to memset costs more than the work.
///
/// # Safety
/// `p` must be valid for writes of `len` bytes, rounded up.
#[inline(always)]
pub unsafe fn zero_short(p: *mut u8, len: usize) {
    // SAFETY: as the caller promises: the loop writes from the last 16 bytes down to `p`.
    unsafe {
        asm!(
            "xorps {z}, {z}",
            "add {i}, 15",
            "and {i}, -16",
            "je 3f",
            "2:",
            "movaps xmmword ptr [{p} + {i} - 16], {z}",
            "sub {i}, 16",
            "jne 2b",
            "3:",
            z = out(xmm_reg) _,
            p = in(reg) p,
            i = inout(reg) len => _,
            options(nostack),
        );
    }
}

/// [`Block::untag`] in two instructions.
#[inline(always)]
pub fn untag(block: *mut Block) -> bool {
    const { assert!(core::mem::offset_of!(Block, tag) == 0) }
    // SAFETY: called by `Heap::malloc` alone, for a block or the end of a cache.
    unsafe {
        asm!(
            "xor dword ptr [{block}], {tag}",
            "jne {no}",
            block = in(reg) block,
            tag = const Block::TAG.cast_signed(),
            no = label { return false },
            options(nostack),
        );
    }
    true
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
        "endbr64",
        "push rbp",
        "mov rbp, rsp",
        "mov rsp, rdi",
        "mov rdi, rdx",
        "call rsi",
        "mov rsp, rbp",
        "pop rbp",
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
                "endbr64",
                "push rdi",
                "push rsi",
                "sub rsp, 8",
                "call {find}",
                "test rax, rax",
                "jne 2f",
                "call {next}",
                "add rsp, 8",
                "pop rsi",
                "pop rdi",
                "jmp rax",
                "2:",
                "add rsp, 24",
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
                concat!("mov {at}, qword ptr [rip + neap_weak_", $name, "@GOTPCREL]"),
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
        "push rbx",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset rbx, -16",
        "push r12",
        ".cfi_def_cfa_offset 24",
        ".cfi_offset r12, -24",
        "push r13",
        ".cfi_def_cfa_offset 32",
        ".cfi_offset r13, -32",
        "push r14",
        ".cfi_def_cfa_offset 40",
        ".cfi_offset r14, -40",
        "sub rsp, 8",
        ".cfi_def_cfa_offset 48",
        "mov rbx, rdi",
        "mov r12, rsi",
        "mov r13, rdx",
        "mov r14, rcx",
        "2:",
        "call r14",
        "call rax",
        "mov rdi, rbx",
        "mov rsi, r12",
        "call r13",
        "test rax, rax",
        "je 2b",
        "add rsp, 8",
        ".cfi_def_cfa_offset 40",
        "pop r14",
        ".cfi_def_cfa_offset 32",
        "pop r13",
        ".cfi_def_cfa_offset 24",
        "pop r12",
        ".cfi_def_cfa_offset 16",
        "pop rbx",
        ".cfi_def_cfa_offset 8",
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
    // SAFETY: as the caller promises; the kernel changes rcx and r11 besides the result.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") a[0],
            in("rsi") a[1],
            in("rdx") a[2],
            in("r10") a[3],
            in("r8") a[4],
            in("r9") a[5],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// The number of the system call fork, where there is one.
pub const FORK: Option<core::ffi::c_long> = Some(libc::SYS_fork);

/// Starts a thread that the C library does not know, by clone(flags, stack, tid, 0, tls): on `stack` (its end, aligned
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
        "mov r9, r8",
        "mov r8, rcx",
        "xor r10d, r10d",
        "mov eax, {clone}",
        "syscall",
        "test rax, rax",
        "jne 2f",
        // The new thread: nothing to unwind to.
        ".cfi_remember_state",
        ".cfi_undefined rip",
        "xor ebp, ebp",
        "mov rbx, r9",
        "xor edi, edi",
        "3:",
        "call rbx",
        "mov rdi, rax",
        "mov eax, edx",
        "mov rcx, rdx",
        "shr rcx, 32",
        "lock cmpxchg dword ptr [rdi], ecx",
        "mov esi, {wake}",
        "je 4f",
        "mov edi, 1",
        "jmp 3b",
        "4:",
        "mov edx, 0x7fffffff",
        "mov eax, {futex}",
        "syscall",
        "xor edi, edi",
        "mov eax, {exit}",
        "syscall",
        "ud2",
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

const _: () = assert!(size_of::<Leave>() == 16 && core::mem::offset_of!(Leave, from) == 8, "returned in rax and rdx");

/// The thread pointer of the calling thread. The C library keeps it in the first word that it points to.
pub fn thread_pointer() -> usize {
    let at;
    // SAFETY: reads the thread's own word.
    unsafe { asm!("mov {0}, qword ptr fs:[0]", out(reg) at, options(pure, readonly, nostack, preserves_flags)) };
    at
}

/// The name of clock_gettime in the code that the kernel maps (vdso(7)).
pub const VDSO_CLOCK: &core::ffi::CStr = c"__vdso_clock_gettime";

/// Bytes of the C library's record of a thread below the thread pointer and from there on. Thread storage lies below.
pub const THREAD_RECORD: [usize; 2] = [0, 4096];

/// Fills the zeroed record at `pointer` with what compiled code expects of each thread: the pointer itself (words 0 and
/// 2 of glibc's `tcbhead_t`), and the calling thread's values that guard stacks and saved addresses (words 5 and 6).
///
/// # Safety
/// [`THREAD_RECORD`] bytes around `pointer` must be writable, and no other thread's.
pub unsafe fn write_thread_record(pointer: *mut u8) {
    let (canary, guard): (usize, usize);
    // SAFETY: reads the thread's own words; as the caller promises.
    unsafe {
        asm!(
            "mov {0}, qword ptr fs:[0x28]",
            "mov {1}, qword ptr fs:[0x30]",
            out(reg) canary,
            out(reg) guard,
            options(pure, readonly, nostack, preserves_flags),
        );
        let words = pointer.cast::<usize>();
        words.write(pointer.expose_provenance());
        words.add(2).write(pointer.expose_provenance());
        words.add(5).write(canary);
        words.add(6).write(guard);
    }
}

/// Reads the context that the kernel passes to a handler.
///
/// # Safety
/// It must be such a context.
pub unsafe fn fault(context: *const core::ffi::c_void) -> Fault {
    const WRITE: i64 = 1 << 1;
    const FETCH: i64 = 1 << 4;
    // SAFETY: as the caller promises.
    let registers = unsafe { &(*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let register = |number: libc::c_int| registers[number as usize];
    let [ip, sp, bp] = [libc::REG_RIP, libc::REG_RSP, libc::REG_RBP].map(|at| register(at).cast_unsigned());
    let access = match register(libc::REG_ERR) {
        error if error & FETCH != 0 => Access::Execute,
        error if error & WRITE != 0 => Access::Write,
        _ => Access::Read,
    };
    Fault { frame: Frame { ip, sp, bp, link: 0 }, access }
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
                "endbr64",
                "push rdi",
                ".cfi_def_cfa_offset 16",
                "push rsi",
                ".cfi_def_cfa_offset 24",
                "push rdx",
                ".cfi_def_cfa_offset 32",
                "call {decide}",
                "pop rdx",
                ".cfi_def_cfa_offset 24",
                "pop rsi",
                ".cfi_def_cfa_offset 16",
                "pop rdi",
                ".cfi_def_cfa_offset 8",
                "test rax, rax",
                "je 2f",
                "jmp rax",
                "2:",
                "ret",
                ".cfi_endproc",
                decide = sym $decide,
            )
        }
    };
}
pub use on_signal;

// Where a handler returns to. Debuggers and unwinders recognise it by its bytes, which are the same as in the C
// library. They look up the instruction before a return address, so there is one.
global_asm!(
    ".pushsection .text.neap_signal_return,\"ax\",@progbits",
    "nop",
    ".hidden neap_signal_return",
    ".globl neap_signal_return",
    ".type neap_signal_return, @function",
    "neap_signal_return:",
    "mov rax, 15",
    "syscall",
    ".size neap_signal_return, . - neap_signal_return",
    ".popsection",
);

const _: () = assert!(libc::SYS_rt_sigreturn == 15);

/// The registers at an instruction in the calling function.
#[inline(always)]
pub fn frame() -> Frame {
    let (ip, sp, bp);
    // SAFETY: reads registers.
    unsafe {
        asm!(
            "lea {ip}, [rip]",
            "mov {sp}, rsp",
            "mov {bp}, rbp",
            ip = out(reg) ip,
            sp = out(reg) sp,
            bp = out(reg) bp,
            options(nomem, nostack, preserves_flags),
        );
    }
    Frame { ip, sp, bp, link: 0 }
}
