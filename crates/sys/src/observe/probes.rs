//! The heap probes of OpenTelemetry (USDT, provider `otel_memory`): what tools outside of the process attach to.
//!
//! | probe | arguments | is passed |
//! |---|---|---|
//! | `alloc` | `ptr`, `size`, `weighted_bytes` | when a sampled block was allocated |
//! | `free` | `ptr` | when a sampled block is about to be freed |
//!
//! Each is one function of two instructions, the first of which does nothing. So the arguments are where a C function
//! has them, as the OpenTelemetry profiler expects it, and each probe is at one place. A note in the file
//! (`.note.stapsdt`, which is not loaded) says where the instruction and the semaphore are. The semaphores are the
//! counts of readers in the notes of the allocator (`Allocator::READERS_AT`): the kernel counts there who is attached,
//! so the first slow path that follows sees it, and looking for it costs nothing.

use core::ffi::c_void;
use core::sync::atomic::{AtomicU64, Ordering};

/// The two probes with their notes, for a processor on which the arguments of a function are `$all`, and the first one
/// is `$first`. The layout of a note: lengths of name and value, type, name; then the addresses of the instruction, the
/// base (which shows how far prelink moved the file) and the semaphore; provider, probe, arguments.
macro_rules! text {
    ($all:literal, $first:literal) => {
        concat!(
            ".pushsection .stapsdt.base,\"aG\",@progbits,.stapsdt.base,comdat\n",
            ".weak _.stapsdt.base\n.hidden _.stapsdt.base\n",
            "_.stapsdt.base: .space 1\n.size _.stapsdt.base, 1\n.popsection\n",
            // By this section, which is usual for semaphores, tools find where in the file a semaphore is. It lies in
            // the same segment as the allocator.
            ".pushsection .probes,\"aw\",@progbits\n.p2align 1\n",
            "neap_probes: .2byte 0\n.popsection\n",
            $crate::observe::probes::text!(probe "alloc", $all),
            $crate::observe::probes::text!(probe "free", $first),
        )
    };
    (probe $name:literal, $arguments:literal) => {
        concat!(
            ".pushsection .text.neap_probes,\"ax\",@progbits\n.p2align 4\n",
            ".hidden neap_probe_", $name, "\n.globl neap_probe_", $name, "\n",
            ".type neap_probe_", $name, ", @function\n",
            "neap_probe_", $name, ":\n.cfi_startproc\nnop\nret\n.cfi_endproc\n",
            // References, as linkers leave out sections that no code refers to.
            ".p2align 3\n.8byte _.stapsdt.base - ., neap_probes - .\n",
            ".size neap_probe_", $name, ", . - neap_probe_", $name, "\n.popsection\n",
            ".pushsection .note.stapsdt,\"\",@note\n.p2align 2\n",
            ".4byte 8, 993f - 992f, 3\n.asciz \"stapsdt\"\n",
            "992: .8byte neap_probe_", $name, "\n.8byte _.stapsdt.base\n.8byte {block} + {", $name, "}\n",
            ".asciz \"otel_memory\"\n.asciz \"", $name, "\"\n.asciz \"", $arguments, "\"\n",
            "993: .p2align 2\n.popsection\n",
        )
    };
}

#[cfg(target_arch = "x86_64")]
macro_rules! own_text {
    () => {
        $crate::observe::probes::text!("8@%rdi 8@%rsi 8@%rdx", "8@%rdi")
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! own_text {
    () => {
        $crate::observe::probes::text!("8@x0 8@x1 8@x2", "8@x0")
    };
}

// For `allocator.rs`, which has the semaphores and assembles the text.
pub(crate) use {own_text, text};

unsafe extern "C" {
    fn neap_probe_alloc(block: *mut c_void, size: u64, weight: u64);
    fn neap_probe_free(block: *mut c_void);
}

/// Default mean bytes between two samples for readers; the environment may name another.
const DEFAULT: u64 = 512 << 10;
/// Nanoseconds between two requests to all heaps to adopt the watch mode, while there are readers.
const AGAIN: u64 = 100_000_000;

/// Mean bytes between two samples for readers.
static CHOSEN: AtomicU64 = AtomicU64::new(DEFAULT);
/// The same while there are readers; else 0.
static INTERVAL: AtomicU64 = AtomicU64::new(0);
/// When heaps are next requested to adopt the watch mode.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Mean bytes between two samples for readers; 0: there is no reader.
pub fn interval() -> u64 {
    // Relaxed, here and below: the value stands for itself.
    INTERVAL.load(Ordering::Relaxed)
}

/// Sets the mean bytes between two samples for readers that come from now on.
pub fn choose(interval: u64) {
    CHOSEN.store(interval, Ordering::Relaxed);
}

/// Notes whether there are readers; returns whether that changes the interval.
pub fn follow(are_there: bool) -> bool {
    let wanted = if are_there { CHOSEN.load(Ordering::Relaxed) } else { 0 };
    INTERVAL.swap(wanted, Ordering::Relaxed) != wanted
}

/// Whether heaps are to be requested again at the time `now`, for those that could not be reached before.
pub fn is_time(now: u64) -> bool {
    let next = NEXT.load(Ordering::Relaxed);
    now >= next && NEXT.compare_exchange(next, now + AGAIN, Ordering::Relaxed, Ordering::Relaxed).is_ok()
}

/// Passes the probe `alloc`: the sampled block of `size` requested bytes stands for `weight` bytes.
#[cold]
pub fn allocated(block: *mut u8, size: usize, weight: u64) {
    // SAFETY: the function does nothing, and takes any numbers.
    unsafe { neap_probe_alloc(block.cast(), size as u64, weight) }
}

/// Passes the probe `free`: the sampled block is about to be freed.
#[cold]
pub fn freed(block: *mut u8) {
    // SAFETY: as above.
    unsafe { neap_probe_free(block.cast()) }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    /// Catches text that another processor's assembler refuses, and arguments that are not where its functions have
    /// them.
    #[test]
    fn every_processor() {
        for (target, text, first) in [
            ("x86_64-linux-gnu", text!("8@%rdi 8@%rsi 8@%rdx", "8@%rdi"), "8@%rdi 8@%rsi 8@%rdx"),
            ("aarch64-linux-gnu", text!("8@x0 8@x1 8@x2", "8@x0"), "8@x0 8@x1 8@x2"),
        ] {
            let text = text.replace("{block}", "neap_block").replace("{alloc}", "66").replace("{free}", "68");
            let object = std::env::temp_dir().join(format!("neap-probes-{}-{target}.o", std::process::id()));
            let assembler = Command::new("clang")
                .args(["-x", "assembler", "-c", "-", "-target", target, "-o"])
                .arg(&object)
                .stdin(Stdio::piped())
                .spawn();
            let Ok(mut assembler) = assembler else { return println!("SKIPPED: clang is not installed") };
            assembler.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
            assert!(assembler.wait().unwrap().success(), "{target}");
            let bytes = std::fs::read(&object).unwrap();
            std::fs::remove_file(&object).unwrap();
            let wanted = format!("otel_memory\0alloc\0{first}\0");
            assert!(bytes.windows(wanted.len()).any(|part| part == wanted.as_bytes()), "{target}");
        }
    }
}
