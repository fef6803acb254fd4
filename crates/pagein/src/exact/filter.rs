//! A seccomp filter that stops a traced program at each `mmap` of a file, and at no other system call.

use std::io;

use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_RET, BPF_W, c_ulong, sock_filter, sock_fprog};

/// `AUDIT_ARCH_X86_64`: calls of 32-bit programs have other numbers, and are not stopped.
const ARCH: u32 = 0xc000_003e;

/// Offsets in `struct seccomp_data { int nr; __u32 arch; __u64 instruction_pointer; __u64 args[6]; }` of the number,
/// the architecture, and the lower half of mmap's flags.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const MMAP_FLAGS: u32 = 16 + 3 * 8;

const fn load(offset: u32) -> sock_filter {
    sock_filter { code: (BPF_LD | BPF_W | BPF_ABS) as u16, jt: 0, jf: 0, k: offset }
}

const fn jump(test: u32, value: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code: (BPF_JMP | test | BPF_K) as u16, jt, jf, k: value }
}

const fn answer(value: u32) -> sock_filter {
    sock_filter { code: (BPF_RET | BPF_K) as u16, jt: 0, jf: 0, k: value }
}

static FILTER: [sock_filter; 8] = [
    load(ARCHITECTURE),
    jump(BPF_JEQ, ARCH, 0, 5),
    load(NUMBER),
    jump(BPF_JEQ, libc::SYS_mmap as u32, 0, 3),
    load(MMAP_FLAGS),
    jump(BPF_JSET, libc::MAP_ANONYMOUS as u32, 1, 0),
    answer(libc::SECCOMP_RET_TRACE),
    answer(libc::SECCOMP_RET_ALLOW),
];

/// Sets the filter on the calling process; its children and programs inherit it. A process without privilege must give
/// up gaining any (`no_new_privs`). Makes system calls only, so it may be used between fork and exec.
pub fn install() -> io::Result<()> {
    let program = sock_fprog { len: FILTER.len() as u16, filter: FILTER.as_ptr().cast_mut() };
    let install = || {
        // SAFETY: the program names a filter that lives for ever, which the kernel only reads.
        unsafe {
            libc::syscall(
                libc::SYS_seccomp,
                c_ulong::from(libc::SECCOMP_SET_MODE_FILTER),
                0 as c_ulong,
                &raw const program,
            )
        }
    };
    if install() == 0 {
        return Ok(());
    }
    // SAFETY: the call takes numbers.
    let given_up = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1 as c_ulong, 0, 0, 0) };
    if given_up == 0 && install() == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
