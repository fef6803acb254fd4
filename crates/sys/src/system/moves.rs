//! How is memory of an arena moved or replaced (mremap, mmap), so that no call is done in part?
//!
//! Two properties of the plain calls lose memory, so they are not used here:
//! - MREMAP_FIXED, since Linux 6.17, moves a range of several mappings one mapping at a time, and may fail in the
//!   middle. Without that flag such a range is refused as a whole (EFAULT), by every kernel; and where the kernel fails
//!   to move one mapping, it moves back what it moved.
//! - MREMAP_FIXED and MAP_FIXED unmap what lies at the target before they look at limits. After a failure no call can
//!   tell whether the target is the old one, a hole, or what another thread mapped there meanwhile. So the target is
//!   unmapped by a call of its own, and its address is a hint (mremap) or must be free (mmap).
//!
//! A block may lie in several mappings: it was moved and has grown since, or the program locked a part of it. Each of
//! them is moved by one call. If a later one is refused, what was moved is copied back, which cannot fail.

use crate::arch;
use crate::system::probe::MOVE;
use crate::system::space::count;
use neap_core::Os;
use neap_core::os::Moved;
use neap_counters::Syscall;
use rustix::io::Errno;
use rustix::mm::{self, MapFlags, MremapFlags, ProtFlags};

/// Most mappings that a range may lie in. A block that doubles by realloc gets one more at each move.
const MOST_PIECES: usize = 16;

/// What madvise answers for an advice that the kernel does not know.
const UNKNOWN_ADVICE: isize = libc::EINVAL as isize;

/// What became of one mapping.
#[derive(Debug, PartialEq, Eq)]
enum Piece {
    Moved,
    /// It was not moved; at the target there is fresh memory, or what was there.
    Stayed,
    /// It was not moved; the target is not ours any more.
    Lost,
}

/// See `Os::move_pages`.
///
/// # Safety
/// As that.
pub unsafe fn move_pages(os: &impl Os, from: *mut u8, to: *mut u8, len: usize) -> Moved {
    if !is_usable(os) {
        return Moved::Not;
    }
    let mut ends = [0; MOST_PIECES];
    // SAFETY: as the caller promises, here and below: each piece lies in `from..from + len`, and goes to its place at `to`.
    let Some(pieces) = (unsafe { split(os, from, len, &mut ends) }) else { return Moved::Not };
    let mut done = 0;
    for &end in &ends[..pieces] {
        // SAFETY: as above.
        match unsafe { move_piece(os, from.add(done), to.add(done), end - done) } {
            Piece::Moved => done = end,
            // SAFETY: what was moved lies at `to`; its old place is still mapped, and reads as zero.
            piece => return unsafe { take_back(os, from, to, done, piece == Piece::Lost) },
        }
    }
    Moved::Done
}

/// Copies `done` bytes back that were moved before a later piece was refused.
unsafe fn take_back(os: &impl Os, from: *mut u8, to: *mut u8, done: usize, lost: bool) -> Moved {
    let mut lost = lost;
    if done > 0 {
        // SAFETY: both are mapped and ours. What then lies at `to` is not needed.
        unsafe {
            open(os, from, done);
            open(os, to, done);
            from.copy_from_nonoverlapping(to, done);
            // What the program said of the pages (that they are locked, say) went with them.
            lost = if lost { os.unmap(to, done) || lost } else { renew(os, to, done) == Moved::Lost };
        }
    }
    if lost { Moved::Lost } else { Moved::Not }
}

/// Makes memory readable and writable that is about to be copied: the program may have changed that, and a mapping that
/// moves stays as it is, at both places.
unsafe fn open(os: &impl Os, p: *mut u8, len: usize) {
    // What is refused here is mostly as it should be already.
    // SAFETY: as the caller promises: the range is ours.
    unsafe { os.commit(p, len) };
}

/// Moves memory that lies in one mapping.
unsafe fn move_piece(os: &impl Os, from: *mut u8, to: *mut u8, len: usize) -> Piece {
    // SAFETY: what lies at `to` is not needed, and not used.
    if !unsafe { os.unmap(to, len) } {
        return Piece::Stayed;
    }
    // SAFETY: `from` is ours and stays mapped.
    match unsafe { remap(from, len, len, MremapFlags::MAYMOVE | MremapFlags::DONTUNMAP, to) } {
        Ok(at) if at == to => return Piece::Moved,
        Ok(at) => {
            // Another thread has mapped something there meanwhile, so the kernel chose another place.
            // SAFETY: the pages lie at `at`, which is ours alone; `from` is mapped, and reads as zero.
            unsafe {
                open(os, from, len);
                open(os, at, len);
                from.copy_from_nonoverlapping(at, len);
                os.unmap(at, len);
            }
        }
        Err(_) => {}
    }
    if map_again(os, to, len) { Piece::Stayed } else { Piece::Lost }
}

/// See `Os::renew`.
///
/// # Safety
/// As that.
pub unsafe fn renew(os: &impl Os, p: *mut u8, len: usize) -> Moved {
    // SAFETY: the range is committed memory of ours whose contents are not needed. munmap does all or nothing.
    if !unsafe { os.unmap(p, len) } {
        // SAFETY: as above.
        return if unsafe { undo(os, p, len) } { Moved::Done } else { Moved::Not };
    }
    if map_again(os, p, len) { Moved::Done } else { Moved::Lost }
}

/// Guards without mappings of their own go (Linux 6.13): MADV_GUARD_REMOVE of include/uapi/asm-generic/mman-common.h.
const GUARD_REMOVE: usize = 103;

/// Makes a range as `renew` does, where the process has all mappings that it may have: to unmap a part of one takes one
/// more. Mostly all of the range lies in one then, as what the program asked for was refused too: nothing is to be undone.
/// False if the system refuses a part of it; the memory goes back all the same, unless it is locked.
unsafe fn undo(os: &impl Os, p: *mut u8, len: usize) -> bool {
    let advise = |advice: usize| {
        count(Syscall::Madvise);
        // SAFETY: the range is ours; none of the advices below does more than the caller asks for.
        unsafe { arch::syscall(libc::SYS_madvise as usize, [p.expose_provenance(), len, advice, 0, 0, 0]) }
    };
    // A kernel that does not know an advice has nothing that it would undo.
    let undone = |advice: usize| matches!(-advise(advice), 0 | UNKNOWN_ADVICE);
    // SAFETY: as above.
    let open = unsafe { os.commit(p, len) };
    let as_before =
        open && undone(libc::MADV_DOFORK as usize) && undone(libc::MADV_KEEPONFORK as usize) && undone(GUARD_REMOVE);
    if as_before {
        // SAFETY: as above; it is writable.
        return unsafe { os.purge(p, len) };
    }
    // Not by `purge`, which may write to memory: this may be inaccessible.
    let _ = advise(libc::MADV_DONTNEED as usize);
    false
}

/// Maps fresh memory where a range of an arena was unmapped; false if that is refused or something lies there.
fn map_again(os: &impl Os, p: *mut u8, len: usize) -> bool {
    count(Syscall::Mmap);
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
    // SAFETY: a fresh mapping that replaces nothing.
    let mapped = unsafe { mm::mmap_anonymous(p.cast(), len, ProtFlags::READ | ProtFlags::WRITE, flags) };
    let Ok(at) = mapped else { return false };
    if at != p.cast() {
        // A kernel before 4.17 takes the address for a hint.
        // SAFETY: this mapping was just made.
        unsafe { os.unmap(at.cast(), len) };
        return false;
    }
    true
}

/// Writes where the mappings end that `p..p + len` lies in, as bytes from `p`; returns how many, or `None` if they are too
/// many or are not known.
unsafe fn split(os: &impl Os, p: *mut u8, len: usize, ends: &mut [usize; MOST_PIECES]) -> Option<usize> {
    let page = os.page_size();
    let mut done = 0;
    for (i, end) in ends.iter_mut().enumerate() {
        // Whole OS pages: `one` lie in one mapping, `more` may not.
        let (mut one, mut more) = (1, (len - done) / page);
        // SAFETY: the range is ours, here and below.
        if unsafe { is_one(os, p.add(done), more * page)? } {
            *end = len;
            return Some(i + 1);
        }
        while more - one > 1 {
            let half = usize::midpoint(one, more);
            // SAFETY: as above.
            if unsafe { is_one(os, p.add(done), half * page)? } {
                one = half;
            } else {
                more = half;
            }
        }
        done += one * page;
        *end = done;
    }
    None
}

/// Whether a range of an arena lies in one mapping: asks to make it longer where it is. The kernel first refuses a range
/// of several mappings (EFAULT), then to go on where something else lies (ENOMEM). `None` for other answers: memory
/// that is locked beyond a limit (EAGAIN), or sealed (EPERM). Near the limit of mappings the answer may be wrong (newer
/// kernels refuse every mremap then); so it only says what to try.
unsafe fn is_one(os: &impl Os, p: *mut u8, len: usize) -> Option<bool> {
    let page = os.page_size();
    // SAFETY: without MREMAP_MAYMOVE the range stays where it is.
    match unsafe { remap(p, len, len + page, MremapFlags::empty(), core::ptr::null_mut()) } {
        Err(Errno::NOMEM) => Some(true),
        Err(Errno::FAULT) => Some(false),
        Err(_) => None,
        Ok(_) => {
            // Nothing lay behind it: the end of an arena, or a part that was lost.
            // SAFETY: this OS page was just mapped.
            unsafe { os.unmap(p.add(len), page) };
            Some(true)
        }
    }
}

/// Whether memory can be moved now: the kernel has MREMAP_DONTUNMAP, and the process may have an OS page more than it
/// has. Limits (RLIMIT_AS, RLIMIT_DATA) may be set by now that are below what it has; then what was unmapped could not be
/// mapped again. By trying, as to ask for limits is a call that a filter may punish.
fn is_usable(os: &impl Os) -> bool {
    if MOVE.known() == Some(false) {
        return false;
    }
    let page = os.page_size();
    let Some(p) = os.map(page, page) else { return false };
    if MOVE.known().is_none() {
        let flags = MremapFlags::MAYMOVE | MremapFlags::DONTUNMAP;
        // SAFETY: the mapping was just made; it stays, and its page goes to a place that is free.
        let moved = unsafe { remap(p, page, page, flags, core::ptr::null_mut()) };
        // Any other error is a lack of memory or of mappings: it is tried again.
        match moved {
            Ok(_) => MOVE.note(true),
            Err(Errno::INVAL | Errno::NOSYS | Errno::PERM) => MOVE.note(false),
            Err(_) => {}
        }
        if let Ok(at) = moved {
            // SAFETY: the mapping was just made.
            unsafe { os.unmap(at, page) };
        }
    }
    // SAFETY: the mapping was just made.
    unsafe { os.unmap(p, page) && MOVE.works() }
}

/// mremap, whose last argument is a hint without MREMAP_FIXED: rustix has it with that flag only.
unsafe fn remap(p: *mut u8, old: usize, new: usize, flags: MremapFlags, hint: *mut u8) -> Result<*mut u8, Errno> {
    count(Syscall::Mremap);
    let [p, hint] = [p, hint].map(|p| p.expose_provenance());
    let call = libc::SYS_mremap as usize;
    // SAFETY: as the callers promise; nothing is unmapped but the end of `p..p + old` if `new` is less.
    let result = unsafe { arch::syscall(call, [p, old, new, flags.bits() as usize, hint, 0]) };
    if result < 0 && result > -4096 {
        return Err(Errno::from_raw_os_error(-result as i32));
    }
    Ok(core::ptr::with_exposed_provenance_mut(result as usize))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocator::NEAP;
    use crate::linux::Linux;
    use rustix::mm::MprotectFlags;

    const LEN: usize = 4 << 20;
    const PAGE: usize = 4096;

    /// An arena: `LEN` bytes with a pattern, in `2 * parts + 1` mappings, and as many bytes behind them to move to.
    fn arena(os: &Linux, parts: usize) -> *mut u8 {
        let p = os.map(3 * LEN, LEN).unwrap();
        // SAFETY: a fresh mapping, used inside.
        unsafe {
            (0..LEN / 8).for_each(|i| p.cast::<u64>().add(i).write(pattern(i)));
            for i in 0..parts {
                mm::madvise(p.add((2 * i + 1) * 16 * PAGE).cast(), PAGE, mm::Advice::LinuxDontDump).unwrap();
            }
            // What lies at the target is not needed.
            p.add(LEN).write_bytes(0xFF, LEN);
        }
        p
    }

    fn pattern(i: usize) -> u64 {
        0x0123_4567_0000_0000 + i as u64
    }

    fn is_whole(p: *const u8) -> bool {
        // SAFETY: `LEN` bytes of the arena.
        (0..LEN / 8).all(|i| unsafe { p.cast::<u64>().add(i).read() } == pattern(i))
    }

    /// Catches a range of several mappings that is moved in part, or not at all where it could be, and memory that stays.
    #[test]
    fn moves_all_mappings_or_none() {
        let os = &NEAP.os;
        if !is_usable(os) {
            return;
        }
        for (parts, moves) in [(0, true), (1, true), (MOST_PIECES / 2 - 1, true), (MOST_PIECES / 2, false)] {
            let from = arena(os, parts);
            // SAFETY: the arena is this test's.
            unsafe {
                let to = from.add(LEN);
                let moved = move_pages(os, from, to, LEN);
                assert_eq!(moved, if moves { Moved::Done } else { Moved::Not }, "{parts} parts");
                assert!(is_whole(if moves { to } else { from }), "{parts} parts");
                assert!(!moves || (0..LEN).all(|i| from.add(i).read() == 0), "{parts} parts");
                assert_eq!(renew(os, to, LEN), Moved::Done);
                assert!((0..LEN).all(|i| to.add(i).read() == 0));
                assert!(os.unmap(from, 3 * LEN));
            }
        }
    }

    /// Catches pieces that were moved before one was refused, and that are not where they were afterwards.
    #[test]
    fn takes_back_what_was_moved() {
        let os = &NEAP.os;
        if !is_usable(os) {
            return;
        }
        for lost in [false, true] {
            let from = arena(os, 3);
            // SAFETY: the arena is this test's.
            unsafe {
                let to = from.add(LEN);
                let mut ends = [0; MOST_PIECES];
                assert_eq!(split(os, from, LEN, &mut ends), Some(7));
                assert_eq!(ends[..3], [16 * PAGE, 17 * PAGE, 48 * PAGE]);
                assert_eq!(move_piece(os, from, to, ends[0]), Piece::Moved);
                assert_eq!(move_piece(os, from.add(ends[0]), to.add(ends[0]), PAGE), Piece::Moved);
                let moved = take_back(os, from, to, ends[1], lost);
                assert_eq!(moved, if lost { Moved::Lost } else { Moved::Not });
                assert!(is_whole(from));
                // Not lost: it can be written. Lost: nothing of it stays mapped.
                assert_eq!(os.commit(to, ends[1]), !lost);
                assert!(os.unmap(from, 3 * LEN));
            }
        }
    }

    /// Catches a move that ends by SIGSEGV where it is taken back, as the program has taken access to a part away.
    #[test]
    fn takes_back_what_is_not_accessible() {
        let os = &NEAP.os;
        if !is_usable(os) {
            return;
        }
        for access in [MprotectFlags::READ, MprotectFlags::empty()] {
            let from = arena(os, 0);
            // SAFETY: the arena is this test's.
            unsafe {
                let (to, half) = (from.add(LEN), LEN / 2);
                mm::mprotect(from.add(half).cast(), PAGE, access).unwrap();
                for (at, len) in [(0, half), (half, PAGE)] {
                    assert_eq!(move_piece(os, from.add(at), to.add(at), len), Piece::Moved);
                }
                assert_eq!(take_back(os, from, to, half + PAGE, false), Moved::Not);
                assert!(is_whole(from));
                to.write_bytes(1, LEN);
                assert!(os.unmap(from, 3 * LEN));
            }
        }
    }

    /// Catches memory that is lost for good, or that the next owner gets as it is, where nothing can be unmapped.
    #[test]
    fn undoes_changes_in_place() {
        let os = &NEAP.os;
        let dontneed = mm::Advice::LinuxDontNeed;
        for change in 0..4 {
            let p = arena(os, 0);
            // SAFETY: the arena is this test's.
            unsafe {
                let page = p.add(LEN / 2);
                match change {
                    0 => {}
                    1 => mm::mprotect(page.cast(), PAGE, MprotectFlags::empty()).unwrap(),
                    2 => mm::madvise(page.cast(), PAGE, mm::Advice::LinuxDontFork).unwrap(),
                    // Linux 6.13.
                    _ => drop(arch::syscall(
                        libc::SYS_madvise as usize,
                        [page.expose_provenance(), PAGE, GUARD_REMOVE - 1, 0, 0, 0],
                    )),
                }
                assert!(undo(os, p, LEN), "change {change}");
                assert!((0..LEN).all(|i| p.add(i).read() == 0), "change {change}");
                p.write_bytes(1, LEN);
                assert!(mm::mlock(page.cast(), PAGE).is_err() || !undo(os, p, LEN), "locked memory stays");
                let _ = mm::munlock(page.cast(), PAGE);
                mm::madvise(p.cast(), LEN, dontneed).unwrap();
                assert!(os.unmap(p, 3 * LEN));
            }
        }
    }

    /// Catches a range at the end of a mapping that grows when it is only asked about.
    #[test]
    fn questions_change_nothing() {
        let os = &NEAP.os;
        let p = os.map(4 * PAGE, PAGE).unwrap();
        // SAFETY: a fresh mapping.
        unsafe {
            assert!(os.unmap(p.add(2 * PAGE), 2 * PAGE));
            if let Some(one) = is_one(os, p, 2 * PAGE) {
                assert!(one);
                assert!(!os.commit(p.add(2 * PAGE), PAGE), "an OS page was mapped");
            }
            assert!(os.unmap(p, 2 * PAGE));
        }
    }
}
