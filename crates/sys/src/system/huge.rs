//! Transparent huge pages: whether the system gives them on request, and how a range gets one.
//!
//! For huge areas neap asks for huge pages in some places and forbids them elsewhere. So it does this only if the
//! system leaves the choice to programs: under "madvise", or in a process that gets huge pages only where it asks
//! (`restrict`). Under "always" the kernel gives them without being asked. Under "never", and in a process with
//! PR_SET_THP_DISABLE, there are none.
//!
//! A huge page has as many OS pages as a page table has entries: 2 MiB with OS pages of 4 KiB, but 32 MiB with 16 KiB,
//! and 512 MiB with 64 KiB. With the latter two neap has no huge pages in its arenas: under "always" a program that
//! writes one byte would get 32 MiB, and again after each free.
//!
//! A huge page takes 60 to 100 us if the kernel has free memory for it. It takes longer than small pages if the kernel
//! has to compact memory first, or if the machine is a guest whose host took unused memory back: then 5 ms. The next
//! time the same memory is mostly fast. So slow huge pages have a budget.

use crate::arch;
use crate::system::call::page_size;
use crate::system::clock;
use crate::system::filter::Asking;
use crate::system::probe::HUGE;
use crate::system::space::count;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use neap_core::os::{Run, Touched};
use neap_core::policy::HugePages;
use neap_counters::Syscall;
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::mm::Advice;

/// Bytes of a huge page.
pub const BYTES: usize = neap_core::pages::layout::HUGE_PAGE;

/// MADV_COLLAPSE of include/uapi/asm-generic/mman-common.h.
const COLLAPSE: usize = 25;

/// A write that takes fewer microseconds of processor time met a small page, because no machine clears a huge page as
/// fast. (Asking the kernel would take one more system call, which filters of programs may not allow.)
const LEAST_US: u64 = 15;
/// A huge page that takes more microseconds of processor time is slow: 512 faults take as long on a fast machine.
const SLOW_US: u64 = 400;
/// All slow huge pages of the process may take `START_US` microseconds and one part in `SHARE` of its processor time.
/// That is little, because the thread that allocates waits 2 to 3 ms for each. Small pages take as long on such
/// machines, but one by one.
const START_US: u64 = 1_000;
const SHARE: u64 = 256;

/// Microseconds that slow huge pages took.
static SPENT: AtomicU64 = AtomicU64::new(0);

/// The last advice for a whole arena; 0: none.
static ADVICE: AtomicUsize = AtomicUsize::new(0);
/// True if the system also gives huge pages that are not asked for.
static UNASKED: AtomicBool = AtomicBool::new(false);

/// What `/sys/kernel/mm/transparent_hugepage/enabled` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Enabled {
    Always,
    Madvise,
    /// Also where it is not known.
    Never,
}

/// PR_THP_DISABLE_EXCEPT_ADVISED of include/uapi/linux/prctl.h (Linux 6.18).
const EXCEPT_ADVISED: isize = 2;

/// To be called when option `huge` gets a value.
#[cold]
pub fn chosen(huge: HugePages) {
    let _asking = Asking::begin();
    if huge != HugePages::Off && HUGE.is_allowed() {
        if huge == HugePages::Advised {
            restrict();
        }
        look();
    }
}

/// Finds out what [`may_exist`] returns, unless it is known.
pub fn look_once() {
    if HUGE.known().is_none() && HUGE.is_usable() {
        look();
    }
}

#[cold]
fn look() {
    let enabled = enabled(c"/sys/kernel/mm/transparent_hugepage/enabled");
    let disabled = disabled();
    // Relaxed: a thread that sees the old value gives the kernel one advice too many, or too few.
    UNASKED.store(enabled == Enabled::Always && disabled == 0, Ordering::Relaxed);
    HUGE.note(!are_larger() && enabled != Enabled::Never && (disabled == 0 || is_except_advised(disabled)));
}

/// Restricts the process, and all that it starts, to the huge pages that it requests. Does nothing if it may have none,
/// or if the system refuses.
fn restrict() {
    if disabled() == 0 {
        let arguments = [libc::PR_SET_THP_DISABLE as usize, 1, EXCEPT_ADVISED as usize, 0, 0, 0];
        // SAFETY: the call changes no memory. Before Linux 6.18 it is refused (EINVAL).
        unsafe { arch::syscall(libc::SYS_prctl as usize, arguments) };
    }
}

fn enabled(name: &core::ffi::CStr) -> Enabled {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let Ok(file) = openat(CWD, name, flags, Mode::empty()) else { return Enabled::Never };
    let mut text = [0; 64];
    let Ok(len) = rustix::io::read(&file, &mut text) else { return Enabled::Never };
    let has = |word: &[u8]| text[..len].windows(word.len()).any(|part| part == word);
    match () {
        () if has(b"[always]") => Enabled::Always,
        () if has(b"[madvise]") => Enabled::Madvise,
        () => Enabled::Never,
    }
}

/// PR_GET_THP_DISABLE: 0 if the process may have huge pages, else 1 and flags; negative if that is not known.
fn disabled() -> isize {
    // SAFETY: the call only returns a number.
    unsafe { arch::syscall(libc::SYS_prctl as usize, [libc::PR_GET_THP_DISABLE as usize, 0, 0, 0, 0, 0]) }
}

fn is_except_advised(disabled: isize) -> bool {
    disabled > 0 && disabled & EXCEPT_ADVISED != 0
}

/// To be called in the child of a fork, whose processor time begins anew: what its parent spent is not the child's.
pub fn forked() {
    SPENT.store(0, Ordering::Relaxed);
    PROMOTED.store(0, Ordering::Relaxed);
}

/// Whether slow huge pages may take more time.
fn has_time() -> bool {
    SPENT.load(Ordering::Relaxed) <= START_US + clock::process_microseconds() / SHARE
}

/// See `Os::has_huge_pages`.
pub fn may_exist(asked: bool) -> bool {
    HUGE.works() && !(asked && UNASKED.load(Ordering::Relaxed))
}

/// See `Os::populate_huge`.
///
/// # Safety
/// As `Os::populate_huge`.
pub unsafe fn populate(p: *mut u8, len: usize) -> bool {
    let _asking = Asking::begin();
    if !may_exist(true) || !has_time() {
        return false;
    }
    // SAFETY: as the caller promises; the range reads as zero.
    unsafe {
        if !advise(p, len, Advice::LinuxHugepage as usize) {
            return false;
        }
        let begun = clock::thread_microseconds();
        // No read before: it would map the kernel's huge page of zeros. From Linux 5.8 to 6.12 a write to that gets a
        // small page, and with later ones it is a second fault.
        p.write_volatile(0);
        // If there is still a page table of small pages, the kernel continues with small pages.
        let is_small = clock::thread_microseconds().saturating_sub(begun) < LEAST_US;
        let done = !is_small || advise(p, len, COLLAPSE);
        let took = clock::thread_microseconds().saturating_sub(begun);
        if took > SLOW_US {
            // Relaxed, here and below: a sum that stands for itself.
            SPENT.fetch_add(took, Ordering::Relaxed);
        }
        advise(p, len, Advice::LinuxNoHugepage as usize);
        done
    }
}

/// See `Os::allow_huge`.
///
/// # Safety
/// As `Os::allow_huge`.
pub unsafe fn allow(p: *mut u8, len: usize) -> bool {
    // SAFETY: as the caller promises.
    Asking::if_allowed().is_some_and(|_asking| unsafe { advise(p, len, Advice::LinuxHugepage as usize) })
}

/// Splits the huge page, if there is one, of which the OS page at `p` is a part: what goes back of it then goes to the
/// system at once. The rest keeps its contents; the OS page may lose them.
///
/// The kernel splits for MADV_FREE (Linux 4.5), because it has to note which OS pages it may take. That takes some 300
/// us; 0.3 us where there is no huge page. Best effort: not for memory that the program has locked, or shares with a
/// child.
///
/// # Safety
/// The OS page must be mapped by this caller, and its contents not needed.
pub unsafe fn split(p: *mut u8) {
    if let Some(_asking) = Asking::if_allowed().filter(|_| may_exist(false)) {
        // SAFETY: as the caller promises.
        unsafe { advise(p, page_size(), Advice::LinuxFree as usize) };
    }
}

/// A sample is dense if at most one OS page in this many holds no memory: the program may have had no time yet to use
/// the blocks that it got last.
const DENSE_SAMPLE: usize = 4;

/// See `Os::is_dense`. `ask` finds the OS pages of a range that are resident, and not in huge pages.
pub fn is_dense(p: *mut u8, len: usize, ask: impl Fn(*mut u8, usize, &mut [Run]) -> Option<Touched>) -> bool {
    let _asking = Asking::begin();
    look_once();
    let (mut done, mut bytes) = (0, 0);
    while may_exist(true) && done < len {
        let mut runs = [Run::EMPTY; 16];
        let Some(found) = ask(p.wrapping_add(done), len - done, &mut runs) else { return false };
        if found.looked == 0 {
            return false;
        }
        bytes += runs[..found.runs].iter().map(|run| run.len).sum::<usize>();
        done += found.looked;
    }
    bytes >= len - len / DENSE_SAMPLE
}

/// Microseconds that promotion took.
static PROMOTED: AtomicU64 = AtomicU64::new(0);
/// Promotion may take one part in `PROMOTED_SHARE` of the process's processor time: 4 ms in 100 ms, as a tick has.
const PROMOTED_SHARE: u64 = 25;

/// See `Os::promotion_time`.
pub fn promotion_time() -> u32 {
    // Relaxed, here and below: a sum that stands for itself.
    let left = (clock::process_microseconds() / PROMOTED_SHARE).saturating_sub(PROMOTED.load(Ordering::Relaxed));
    u32::try_from(left).unwrap_or(u32::MAX)
}

/// A range is promoted if at most one OS page in this many holds no memory.
const DENSE: usize = 32;

/// See `Os::promote`. `ask` finds the OS pages that are resident, and not in huge pages.
///
/// # Safety
/// As `Os::promote`.
pub unsafe fn promote(p: *mut u8, len: usize, ask: impl FnOnce(&mut [Run]) -> Option<Touched>) -> Option<u32> {
    let _asking = Asking::begin();
    if !may_exist(true) {
        return None;
    }
    let begun = clock::thread_microseconds();
    let mut runs = [Run::EMPTY; 16];
    let small = ask(&mut runs)?;
    let bytes: usize = runs[..small.runs].iter().map(|run| run.len).sum();
    if bytes >= len - len / DENSE {
        let forbidden = ADVICE.load(Ordering::Relaxed) == Advice::LinuxNoHugepage as usize;
        // SAFETY: as the caller promises; no contents change.
        unsafe {
            // The kernel collapses nothing where huge pages are forbidden.
            if !forbidden || advise(p, len, Advice::LinuxHugepage as usize) {
                advise(p, len, COLLAPSE);
            }
            if forbidden {
                advise(p, len, Advice::LinuxNoHugepage as usize);
            }
        }
    }
    let took = clock::thread_microseconds().saturating_sub(begun);
    PROMOTED.fetch_add(took, Ordering::Relaxed);
    Some(took as u32)
}

/// See `Os::set_huge`.
///
/// # Safety
/// As `Os::set_huge`.
pub unsafe fn set(p: *mut u8, len: usize, allow: bool) {
    let advice = if allow { Advice::LinuxHugepage } else { Advice::LinuxNoHugepage };
    // Relaxed: a mapping that is made at the same time stays a mapping of its own.
    ADVICE.store(advice as usize, Ordering::Relaxed);
    // SAFETY: as the caller promises.
    unsafe { follow(p, len) };
}

/// Whether the system's huge pages are larger than [`BYTES`].
fn are_larger() -> bool {
    page_size() > BYTES / (page_size() / size_of::<usize>())
}

/// Forbids huge pages in new memory for an arena, where they are larger than [`BYTES`] and option `huge` has not
/// allowed them.
///
/// # Safety
/// As [`set`].
pub unsafe fn forbid_larger(p: *mut u8, len: usize) {
    if are_larger() {
        let no = Advice::LinuxNoHugepage as usize;
        // Relaxed: as in `set`. It may have a value already.
        let _ = ADVICE.compare_exchange(0, no, Ordering::Relaxed, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { follow(p, len) };
    }
}

/// Allows or forbids huge pages in a range of an arena that was mapped anew, as they were before: so it forms one
/// mapping with its neighbours.
///
/// # Safety
/// As [`set`].
pub unsafe fn follow(p: *mut u8, len: usize) {
    let advice = ADVICE.load(Ordering::Relaxed);
    // A filter of the program's own may not allow the advice: then the range stays a mapping of its own.
    if advice != 0
        && let Some(_asking) = Asking::if_allowed()
    {
        // SAFETY: as the caller promises.
        unsafe { advise(p, len, advice) };
    }
}

/// madvise with an advice that changes no contents; false if the system refuses.
///
/// # Safety
/// The range must be mapped by this caller.
unsafe fn advise(p: *mut u8, len: usize, advice: usize) -> bool {
    count(Syscall::Madvise);
    // SAFETY: as the caller promises.
    unsafe { arch::syscall(libc::SYS_madvise as usize, [p.expose_provenance(), len, advice, 0, 0, 0]) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::call::{READ_WRITE, page_size};
    use crate::system::map::map;
    use crate::system::touched::{self, Question};
    use neap_core::Os as _;

    const LEN: usize = 2 << 20;

    /// Whether all OS pages of a range hold memory.
    fn is_resident(p: *mut u8, len: usize) -> bool {
        let mut pages = [0u8; LEN / 4096];
        let arguments = [p.expose_provenance(), len, (&raw mut pages).expose_provenance(), 0, 0, 0];
        // SAFETY: the call writes a byte for each OS page, and no range is longer than `LEN`.
        let done = unsafe { arch::syscall(libc::SYS_mincore as usize, arguments) } == 0;
        done && pages[..len / page_size()].iter().all(|page| page & 1 != 0)
    }

    /// Page faults of this thread.
    fn faults() -> libc::c_long {
        // SAFETY: the call fills the structure, which is plain numbers.
        unsafe {
            let mut usage = core::mem::zeroed::<libc::rusage>();
            assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage), 0);
            usage.ru_minflt
        }
    }

    /// Catches a huge page that changes what memory reads as, one that takes two faults, one that is not resident
    /// although it is said to be, and a range that stays open to huge pages.
    #[test]
    fn fills_a_range_or_says_that_it_does_not() {
        look();
        let p = map(0, 3 * LEN, READ_WRITE).expect("memory");
        let at = p.wrapping_add(p.align_offset(LEN));
        // SAFETY: a fresh mapping, used inside and by this test alone.
        unsafe {
            set(p, 3 * LEN, false);
            let page = page_size();
            let before = faults();
            if populate(at, LEN) {
                assert!(is_resident(at, LEN));
            } else {
                assert!(!is_resident(at.add(LEN / 2), page), "small pages only where something was written");
            }
            assert!(faults() <= before + 1, "the write meets no page of zeros");
            assert!((0..LEN).all(|i| at.add(i).read() == 0));
            assert!(advise(at, LEN, Advice::LinuxDontNeed as usize));
            at.write(7);
            assert!(!is_resident(at.add(LEN / 2), page), "the range is closed to huge pages again");
            HUGE.note(false);
            assert!(!may_exist(false) && !populate(at.add(LEN), LEN) && !is_resident(at.add(LEN), page));
        }
    }

    /// Catches contents that change, and sparse memory that becomes resident. (`tests/huge.rs` has memory that stays in
    /// small pages.)
    #[test]
    fn promotes_what_is_dense() {
        look();
        let p = map(0, 5 * LEN, READ_WRITE).expect("memory");
        let at = p.wrapping_add(p.align_offset(LEN));
        let (known, page) = (touched::Kept::new(), page_size());
        let ask = |p: *mut u8| {
            let known = &known;
            move |runs: &mut [Run]| touched::ask(known, || false, p, LEN, page, runs, Question::InSmallPages)
        };
        // SAFETY: a fresh mapping, used inside and by this test alone.
        unsafe {
            advise(p, 5 * LEN, Advice::LinuxNoHugepage as usize);
            // In one piece: all of its OS pages but those of the first half were never touched.
            let half = at.add(2 * LEN);
            half.write_bytes(1, LEN / 2);
            for i in 0..LEN / page {
                at.add(i * page).write(i as u8);
                if i % 8 != 0 {
                    at.add(LEN + i * page).write(9);
                }
            }
            let dense = |p: *mut u8| {
                is_dense(p, LEN, |p, len, runs| {
                    touched::ask(&known, || false, p, len, page, runs, Question::InSmallPages)
                })
            };
            if may_exist(true) && dense(at) {
                assert!(dense(at.add(LEN)), "seven in eight");
            }
            assert!(!dense(half) && !dense(at.add(3 * LEN)));
            advise(p, 5 * LEN, Advice::LinuxHugepage as usize);
            let Some(_) = promote(at, LEN, ask(at)) else { return };
            assert!(promote(half, LEN, ask(half)).is_some());
            assert!(!is_resident(half.add(LEN / 2), page), "half of it");
            assert!(promote(at.add(LEN), LEN, ask(at.add(LEN))).is_some());
            assert!(!is_resident(at.add(LEN), page), "sparse");
            assert!((0..LEN / page).all(|i| at.add(i * page).read() == i as u8));
            let mut runs = [Run::EMPTY; 16];
            let small = ask(at)(&mut runs).expect("an answer");
            // The kernel may have no huge page at hand.
            assert!(small.runs <= 1 && small.looked == LEN);
        }
    }

    /// Catches a child that has no huge pages for minutes, as its parent had slow ones.
    #[test]
    fn a_child_has_its_own_budget() {
        // SAFETY: the child, of one thread, changes only itself.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                SPENT.store(1 << 40, Ordering::Relaxed);
                PROMOTED.store(1 << 40, Ordering::Relaxed);
                let before = has_time() || promotion_time() > 0;
                crate::allocator::NEAP.os.forked();
                libc::_exit(i32::from(before || !has_time() || PROMOTED.load(Ordering::Relaxed) != 0));
            }
            let mut status = -1;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            assert_eq!(status, 0);
        }
    }

    /// Catches a system without huge pages that counts as one with them.
    #[test]
    fn only_what_is_said() {
        assert_eq!(enabled(c"/nonexistent"), Enabled::Never);
        assert_eq!(enabled(c"/proc/self/stat"), Enabled::Never);
    }

    /// Catches a process that requests huge pages although it can have none, or that gets some without a request.
    #[test]
    fn restricted_to_what_is_asked_for() {
        // SAFETY: the child, of one thread, changes only itself.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                let has = enabled(c"/sys/kernel/mm/transparent_hugepage/enabled") != Enabled::Never;
                let mut good = disabled() != 0;
                if !good {
                    chosen(HugePages::Advised);
                    // Before Linux 6.18 nothing changes.
                    good = disabled() == 0 || (is_except_advised(disabled()) && may_exist(true) == has);
                    arch::syscall(libc::SYS_prctl as usize, [libc::PR_SET_THP_DISABLE as usize, 1, 0, 0, 0, 0]);
                    chosen(HugePages::Advised);
                    good &= disabled() == 1 && !may_exist(false);
                }
                libc::_exit(i32::from(!good));
            }
            let mut status = -1;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            assert_eq!(status, 0);
        }
    }
}
