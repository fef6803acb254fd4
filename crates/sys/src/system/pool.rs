//! The kernel's pool of huge pages (hugetlb): puts its pages where an arena has committed memory (`huge=hugetlb`).
//!
//! Pages are taken with a reservation, and populated at once. A fault without a reservation, or where a cgroup or a
//! memory policy allows none of the pages, ends the process (SIGBUS); populating reports an error. So a program never
//! meets that signal, except in the child of a fork: parent and child share the pages, and when one of them writes and
//! the pool has none left for a copy, the kernel takes the page away from the child.
//!
//! The kernel cannot give back, protect or move a part of such a page. MADV_DONTNEED rounds the end of a range down,
//! and reports success. So the port refuses such calls where [`has`] is true. The pages stay with the process until it
//! ends.

use crate::system::call;
use crate::system::filter::Asking;
use crate::system::moves::{self, Part};
use crate::system::probe::POPULATE;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use neap_core::os::Moved;
use neap_core::pages::layout::HUGE_PAGE;
use neap_core::policy::{HugePages, Policy};

/// Memory of one arena that comes from the pool: it grows at its end. Written under the allocator's lock.
struct Interval {
    from: AtomicUsize,
    to: AtomicUsize,
}

/// Limit on the arenas whose memory comes from the pool. Each is up to 64 GiB long.
const MOST: usize = 8;
static INTERVALS: [Interval; MOST] = [const { Interval { from: AtomicUsize::new(0), to: AtomicUsize::new(0) } }; MOST];
/// True from the first interval on.
static ANY: AtomicBool = AtomicBool::new(false);
/// True once the pool had no free page, and small pages were used instead.
static USED_UP: AtomicBool = AtomicBool::new(false);

const LINE: &[u8] = b"neap: huge=hugetlb: the pool has no free page of 2 MiB; small pages are used from now on; \
`neap huge status` tells how to enlarge it\n";

/// See `Os::pool_page`.
pub fn page(policy: &Policy) -> Option<usize> {
    let wanted = policy.huge() == HugePages::Pool && call::page_size() == 4096;
    (wanted && (policy.pool_only() || !USED_UP.load(Ordering::Relaxed))).then_some(HUGE_PAGE)
}

/// Whether a part of a range lies in pages of the pool.
#[inline]
pub fn has(p: *mut u8, len: usize) -> bool {
    // Relaxed, here and below: a thread that has memory of the pool sees that, because it got the memory later.
    ANY.load(Ordering::Relaxed) && is_in_interval(p.addr(), p.addr() + len)
}

#[cold]
fn is_in_interval(from: usize, to: usize) -> bool {
    INTERVALS.iter().any(|i| from < i.to.load(Ordering::Relaxed) && i.from.load(Ordering::Relaxed) < to)
}

/// The interval that ends at `at` or contains it, else a new one.
fn interval(at: usize) -> Option<&'static Interval> {
    let holds = |i: &&Interval| {
        let (from, to) = (i.from.load(Ordering::Relaxed), i.to.load(Ordering::Relaxed));
        (from..=to).contains(&at)
    };
    let fresh = |i: &&Interval| i.to.load(Ordering::Relaxed) == 0;
    INTERVALS.iter().find(holds).or_else(|| {
        let new = INTERVALS.iter().find(fresh)?;
        new.from.store(at, Ordering::Relaxed);
        new.to.store(at, Ordering::Relaxed);
        ANY.store(true, Ordering::Relaxed);
        Some(new)
    })
}

/// See `Os::take_from_pool`. For one thread at a time.
///
/// # Safety
/// As `Os::take_from_pool`.
pub unsafe fn take(p: *mut u8, len: usize, policy: &Policy) -> Moved {
    let _asking = Asking::begin();
    // SAFETY: as the caller promises.
    let part = unsafe { Part::new(p, len) };
    let taken = if POPULATE.is_usable() { interval(p.addr()) } else { None };
    if let Some(interval) = taken {
        let (mut done, mut most) = (interval.to.load(Ordering::Relaxed).saturating_sub(p.addr()), len);
        while done < len {
            let end = len.min(done + most);
            match put(part.cut(done, end)) {
                Moved::Done => {
                    done = end;
                    interval.to.store(p.addr() + done, Ordering::Relaxed);
                }
                Moved::Lost => return Moved::Lost,
                Moved::Not if end - done > HUGE_PAGE => most = ((end - done) / 2).next_multiple_of(HUGE_PAGE),
                Moved::Not => break,
            }
        }
        if done >= len {
            return Moved::Done;
        }
    }
    if !policy.pool_only() && !USED_UP.swap(true, Ordering::Relaxed) {
        // The caller holds a lock, so this must not wait for a reader.
        if call::takes_writes(libc::STDERR_FILENO) {
            call::write(libc::STDERR_FILENO, LINE);
        }
    }
    Moved::Not
}

/// See `Os::renew`, for a range of which a part lies in pages of the pool. The program can change the mapping of whole
/// pages of the pool only, so these are replaced. A part of such a page keeps its mapping, and is cleared. What lies
/// outside of the pool is replaced.
///
/// # Safety
/// As `Os::renew`.
pub unsafe fn renew(p: *mut u8, len: usize) -> Moved {
    let _asking = Asking::begin();
    // SAFETY: as the caller promises.
    let whole = unsafe { Part::new(p, len) };
    let mut done = 0;
    while done < len {
        let (end, in_pool) = next_border(p.addr() + done, p.addr() + len);
        let part = whole.cut(done, end - p.addr());
        let renewed = if in_pool { renew_pages(part) } else { moves::replace(part) };
        if renewed != Moved::Done {
            return renewed;
        }
        done = end - p.addr();
    }
    Moved::Done
}

/// The end of the part of `from..to` that begins at `from` and lies in an interval, or in none; whether in one.
fn next_border(from: usize, to: usize) -> (usize, bool) {
    let borders = INTERVALS.iter().flat_map(|i| [i.from.load(Ordering::Relaxed), i.to.load(Ordering::Relaxed)]);
    (borders.filter(|&at| at > from).fold(to, usize::min), is_in_interval(from, from + 1))
}

/// The program's MADV_DONTNEED for a range of which a part lies in pages of the pool. The kernel would refuse a part of
/// such a page, or leave it as it is and report success; and it would give back a whole one, so that the next use of it
/// is SIGBUS where the pool has no more. So zeroes are written there. `call` makes the call for another part; returns
/// its first error, or 0.
///
/// # Safety
/// The program must want the range to lose its contents.
pub unsafe fn forget(p: usize, len: usize, call: impl Fn(usize, usize) -> isize) -> isize {
    let (mut at, end) = (p, p.saturating_add(len));
    while at < end {
        let (to, in_pool) = next_border(at, end);
        let part = core::ptr::with_exposed_provenance_mut::<u8>(at);
        // The program may have made whole pages of the pool read-only.
        if in_pool && call::populate(part, to - at).is_ok() {
            // SAFETY: the pages are mapped and writable, and the program wants their contents to go.
            unsafe { part.write_bytes(0, to - at) };
        } else {
            let result = call(at, to - at);
            if result != 0 {
                return result;
            }
        }
        at = to;
    }
    0
}

/// [`renew`] of a part that lies in pages of the pool.
fn renew_pages(part: Part) -> Moved {
    let [before, pages, behind] = part.at_borders(HUGE_PAGE);
    if !pages.is_empty() {
        if !pages.unmap() {
            return Moved::Not;
        }
        // `Not`: small pages, because another process took those of the pool meanwhile.
        if fill(pages, POPULATE.is_usable()) == Moved::Lost {
            return Moved::Lost;
        }
    }
    match renew_part_of_page(before) {
        Moved::Done => renew_part_of_page(behind),
        other => other,
    }
}

/// [`renew_pages`] of less than a page: it is cleared. Where small pages came into the place of the pool's, the program
/// may have changed some of these, so they are replaced.
fn renew_part_of_page(part: Part) -> Moved {
    if part.is_empty() {
        return Moved::Done;
    }
    match moves::replace(part) {
        // The kernel unmaps no part of a page of the pool. Such a page can be written.
        Moved::Not if part.populate() => {
            part.clear();
            Moved::Done
        }
        renewed => renewed,
    }
}

/// Puts pages of the pool in the place of a part; `Not`: it has small pages that read as zero.
fn put(part: Part) -> Moved {
    if part.unmap() { fill(part, true) } else { Moved::Not }
}

/// [`put`] where nothing is mapped; `Not` also if `!may_populate`.
fn fill(part: Part, may_populate: bool) -> Moved {
    // As in `moves.rs`, the address must be free: a call that replaced what is there could fail half done.
    if may_populate && part.map_pool() {
        if part.populate() {
            return Moved::Done;
        }
        if !part.unmap() {
            return Moved::Lost;
        }
    }
    if part.map_again() { Moved::Not } else { Moved::Lost }
}
