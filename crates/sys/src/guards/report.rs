//! The report of an error: one line, as for every misuse, then stacks: of the call or the access, of the block's
//! allocation, and of its free.

use crate::arch::Access;
use crate::guards::pool::{Mode, Page, Pool};
use crate::guards::slot::{self, Slot};
use crate::helper::thread::standard_error;
use crate::observe::trace;
use crate::system::{call, wait};
use core::fmt::{Display, Formatter, Write};
use core::sync::atomic::{AtomicU32, Ordering};
use neap_core::misuse::Call;
use neap_core::text::Text;
use neap_sites::unwind::Frame;
use rustix::fd::RawFd;

/// An error of a call of the program's.
#[derive(Clone, Copy, Debug)]
pub enum Error {
    /// The block is free.
    Freed(Call),
    /// No block starts at the address.
    NoBlock(Call),
    /// The byte at the address, beside the block, was written.
    Written,
}

/// Where an address lies, seen from a block.
struct Beside<'a> {
    address: usize,
    slot: &'a Slot,
}

impl Display for Beside<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> core::fmt::Result {
        let (start, size) = (self.slot.start(), self.slot.size());
        let (count, place) = if self.address < start {
            (start - self.address, "before")
        } else if self.address - start < size {
            (self.address - start, "inside")
        } else {
            // The slot may just change.
            ((self.address - start).saturating_sub(size), "behind")
        };
        let bytes = if count == 1 { "byte" } else { "bytes" };
        write!(f, "{:#x}, {count} {bytes} {place} the {size}-byte block at {start:#x}", self.address)
    }
}

/// The name of a use of memory before or behind a block.
fn beside(address: usize, slot: &Slot) -> &'static str {
    if address < slot.start() { "underrun" } else { "overrun" }
}

/// Reports an error of the present call, at `p`. Returns only in [`Mode::Report`].
#[cold]
pub fn misuse(pool: &Pool, error: Error, p: *const u8, slot: Option<&Slot>) {
    let thread = slot::thread();
    let size = slot.map_or(0, Slot::size);
    report(pool, |file| {
        match (error, slot) {
            (Error::Freed(Call::Free), _) => {
                first(file, format_args!("double free of {p:p} ({size}-byte block, by thread {thread})"));
            }
            (Error::Freed(call), _) => {
                let name = call.name();
                first(file, format_args!("{name} of {p:p}, which is free ({size}-byte block, by thread {thread})"));
            }
            (Error::NoBlock(call), Some(slot)) if p.addr().wrapping_sub(slot.start()) < size => {
                let (name, inside) = (call.name(), p.addr() - slot.start());
                let what = format_args!(
                    "{name} of {p:p}, which is not the start of a block ({size}-byte block, {inside} bytes inside)"
                );
                first(file, what);
            }
            (Error::NoBlock(call), _) => {
                first(file, format_args!("{} of {p:p}, which neap did not allocate", call.name()));
            }
            (Error::Written, Some(slot)) => {
                let (name, at) = (beside(p.addr(), slot), Beside { address: p.addr(), slot });
                first(file, format_args!("{name}: write to {at}, seen at its free (by thread {thread})"));
            }
            (Error::Written, None) => {}
        }
        trace::present(file);
        stacks(file, slot);
    });
}

/// Reports an access to a closed page, which a signal has interrupted. Returns only in [`Mode::Report`].
#[cold]
pub fn access(pool: &Pool, address: usize, page: Page, access: Access, slot: Option<&Slot>, from: Frame) {
    let (thread, how) = (
        slot::thread(),
        match access {
            Access::Read => "read of",
            Access::Write => "write to",
            Access::Execute => "execution of",
        },
    );
    report(pool, |file| {
        match slot {
            Some(slot) => {
                let name = if matches!(page, Page::Slot(_)) { "use after free" } else { beside(address, slot) };
                first(file, format_args!("{name}: {how} {} (by thread {thread})", Beside { address, slot }));
            }
            None => first(file, format_args!("wild access: {how} {address:#x}, beside no block (by thread {thread})")),
        }
        trace::line(file, format_args!("this access:"));
        trace::interrupted(file, from);
        stacks(file, slot);
    });
}

/// Writes the first line of a report.
fn first(file: RawFd, what: core::fmt::Arguments<'_>) {
    let mut line = Text::<256>::new();
    // A line that is too long is cut.
    let _ = writeln!(line, "neap: {what}");
    call::write(file, line.bytes());
}

/// Writes where the block was allocated and freed.
fn stacks(file: RawFd, slot: Option<&Slot>) {
    let Some(slot) = slot else { return };
    trace::line(file, format_args!("allocated by thread {}:", slot.allocated.thread()));
    trace::kept(file, slot.allocated.frames());
    if slot.freed.frames().next().is_some() {
        trace::line(file, format_args!("freed by thread {}:", slot.freed.thread()));
        trace::kept(file, slot.freed.frames());
    }
}

/// The thread that writes a report; 0: none.
pub(crate) static REPORTER: AtomicU32 = AtomicU32::new(0);
/// Longest wait, in milliseconds, for another report to end.
const PATIENCE: u32 = 1000;

/// Writes a report, after those of other threads, and ends the process in [`Mode::Abort`].
fn report(pool: &Pool, write: impl FnOnce(RawFd)) {
    if !(pool.settings.is_quiet)() {
        let me = slot::thread().max(1);
        let mut turn = Err(0);
        for _ in 0..PATIENCE {
            // Relaxed: the turn keeps lines together, and guards no memory.
            turn = REPORTER.compare_exchange(0, me, Ordering::Relaxed, Ordering::Relaxed);
            // A handler may have interrupted this thread's own report.
            if turn.is_ok() || turn == Err(me) {
                break;
            }
            wait::pause(1000);
        }
        if turn.is_err() && turn != Err(me) {
            // The other report hangs, or was cut off by a fork. This one takes its turn, so that the next does not wait
            // as long.
            REPORTER.store(me, Ordering::Relaxed);
            turn = Ok(0);
        }
        write(standard_error());
        if turn.is_ok() && pool.settings.mode == Mode::Report {
            REPORTER.store(0, Ordering::Relaxed);
        }
    }
    if pool.settings.mode == Mode::Abort {
        call::abort();
    }
}
