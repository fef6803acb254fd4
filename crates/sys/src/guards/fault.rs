//! The handler of SIGSEGV. It is installed when guards start, and only then.
//!
//! **A fault outside of the pool** goes where it would have gone without neap. neap keeps the previous action and gives
//! its own the same mask and flags, so the kernel has blocked the same signals and chosen the same stack. neap enters
//! the previous handler by a jump, with the kernel's arguments and stack pointer ([`entry`]). So that handler returns
//! to the kernel, may leave by siglongjmp or an exception, and finds no frame of neap's. If there was no handler, neap
//! restores the default action and repeats the instruction, so that the kernel does what it would have done.
//!
//! **A program that sets its own action later** replaces neap's. Then a fault in the pool is that program's, without a
//! report. A handler that calls the previous one, as those of sanitizers and runtimes do, calls neap's.

use crate::arch::{self, Fault};
use crate::guards::pool::{self, Mode, Page, Pool};
use crate::guards::report;
use crate::guards::slot::{self, Slot, State};
use crate::observe::once::AtStart;
use crate::system::{call, wait};
use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering;

/// The kernel's `struct sigaction`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Action {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

const DEFAULT: Action = Action { handler: libc::SIG_DFL, flags: 0, restorer: 0, mask: 0 };
const SIGSEGV: usize = libc::SIGSEGV as usize;
/// The action says how its handler returns, as it must on x86-64.
const SA_RESTORER: u64 = 0x0400_0000;
/// Limit on repeated faults at a page that should be accessible.
const RETRIES: u32 = 1000;
/// Number of these faults after which the thread begins to wait before it repeats the instruction.
const QUICK: u32 = 20;

/// The action before neap's.
static BEFORE: AtStart<Action> = AtStart::new(DEFAULT);

arch::on_signal! {
    /// The handler.
    fn entry, decide
}

/// Sets the action of SIGSEGV to `new`, and stores the previous one in `old`. False if the system refuses.
fn action(new: Option<&Action>, old: Option<&mut Action>) -> bool {
    let new = new.map_or(0, |new| core::ptr::from_ref(new).expose_provenance());
    let old = old.map_or(0, |old| core::ptr::from_mut(old).expose_provenance());
    // SAFETY: the kernel reads and writes structures of its own layout.
    unsafe { arch::syscall(libc::SYS_rt_sigaction as usize, [SIGSEGV, new, old, 8, 0, 0]) == 0 }
}

/// Installs the handler. False if the system refuses. To be called once, while the process has one thread.
pub fn install() -> bool {
    let mut before = DEFAULT;
    if !action(None, Some(&mut before)) {
        return false;
    }
    // SAFETY: the process has one thread, and the handler is not installed yet.
    unsafe { BEFORE.change(|kept| *kept = before) };
    let has_handler = before.handler != libc::SIG_DFL && before.handler != libc::SIG_IGN;
    // If the program has no handler, a thread's alternate stack is used if there is one: its stack may have overflowed.
    let flags = if has_handler { before.flags & !(libc::SA_RESETHAND as u64) } else { libc::SA_ONSTACK as u64 };
    action(
        Some(&Action {
            handler: entry as *const () as usize,
            flags: flags | libc::SA_SIGINFO as u64 | SA_RESTORER,
            restorer: arch::signal_return as *const () as usize,
            mask: if has_handler { before.mask } else { 0 },
        }),
        None,
    )
}

/// Decides for [`entry`]: returns the handler that it jumps to, or 0 if it returns.
///
/// # Safety
/// The arguments must be those that the kernel passes to a handler.
unsafe extern "C" fn decide(signal: c_int, info: *const libc::siginfo_t, context: *const c_void) -> usize {
    // SAFETY: as the caller promises.
    let (code, address, fault) = unsafe { ((*info).si_code, (*info).si_addr(), arch::fault(context)) };
    // Faults have positive codes. With the code SI_KERNEL, also positive, there is no address.
    let is_fault = code == SEGV_MAPERR || code == SEGV_ACCERR;
    if signal == libc::SIGSEGV
        && is_fault
        && let Some(pool) = pool::get().filter(|pool| pool.holds(address.cast()))
        && in_pool(pool, address.cast(), fault)
    {
        return 0;
    }
    // SAFETY: as the caller promises.
    unsafe { pass_on(code, info) }
}

const SEGV_MAPERR: c_int = 1;
const SEGV_ACCERR: c_int = 2;

/// Reports a fault in the pool. Returns whether the page is accessible now, so that the instruction can be repeated.
fn in_pool(pool: &Pool, address: *mut u8, fault: Fault) -> bool {
    let page = pool.page(address);
    let (slot, reported) = match page {
        Page::Slot(number) => {
            let slot = pool.slot(number);
            match slot.state() {
                State::NEW => (None, false),
                // Another thread was faster, or the program has taken access away itself.
                State::LIVE | State::RETIRED => return may_retry(slot),
                _ if slot.start() == 0 => (None, false),
                _ => (Some(slot), slot.flags.add(slot::USE_REPORTED)),
            }
        }
        Page::Guard(number) if pool.is_opened(number) => return may_retry(pool.slot(number)),
        Page::Guard(number) => (nearest(pool, number, address), false),
    };
    if pool.settings.mode == Mode::Abort {
        report::access(pool, address.addr(), page, fault.access, slot, fault.frame);
        return false;
    }
    // The page is opened first, so that other threads that use it need not wait for the report to be written.
    let opened = pool.open_for_good(page);
    if !reported {
        report::access(pool, address.addr(), page, fault.access, slot, fault.frame);
    }
    opened
}

/// Whether to repeat the instruction: another thread may be about to open the page. The first retries are immediate,
/// later ones wait.
fn may_retry(slot: &Slot) -> bool {
    let retries = slot.retries.fetch_add(1, Ordering::Relaxed);
    if retries > QUICK {
        wait::pause(1000);
    }
    !slot.flags.has(slot::CHANGED) && retries < RETRIES
}

/// The block beside a guard at which an access failed: a live one if there is one, else the nearer one.
fn nearest(pool: &Pool, guard: usize, address: *const u8) -> Option<&Slot> {
    let distance = |number: usize| {
        let slot = pool.slot(number);
        let (start, size) = (slot.start(), slot.size());
        let at = address.addr();
        // The slot may just change.
        let bytes = if at < start { start - at } else { (at - start).saturating_sub(size) };
        let is_known = slot.state() != State::NEW && slot.start() != 0;
        is_known.then_some((slot.state() != State::LIVE, bytes, slot))
    };
    let before = guard.checked_sub(1).and_then(distance);
    let behind = if guard < pool::SLOTS { distance(guard) } else { None };
    let nearest = before.into_iter().chain(behind).min_by_key(|&(is_free, bytes, _)| (is_free, bytes));
    nearest.map(|(_, _, slot)| slot)
}

/// Passes on a signal that does not concern the pool: returns the handler before neap's; 0 if the signal is ignored, or
/// the default action was restored.
///
/// # Safety
/// `info` must be what the kernel passed.
unsafe fn pass_on(code: c_int, info: *const libc::siginfo_t) -> usize {
    let before = BEFORE.get();
    let was_sent = code <= 0;
    match before.handler {
        libc::SIG_IGN if was_sent => 0,
        // The kernel does not let a fault be ignored.
        libc::SIG_DFL | libc::SIG_IGN => {
            action(Some(&DEFAULT), None);
            if was_sent {
                // It is delivered when this handler returns.
                let arguments =
                    [call::process() as usize, call::thread() as usize, SIGSEGV, info.expose_provenance(), 0, 0];
                // SAFETY: the kernel reads the structure that it has written.
                unsafe { arch::syscall(libc::SYS_rt_tgsigqueueinfo as usize, arguments) };
            }
            0
        }
        handler => {
            if before.flags & libc::SA_RESETHAND as u64 != 0 {
                action(Some(&DEFAULT), None);
            }
            handler
        }
    }
}
