//! Moves and replaces memory of an arena (mremap, mmap) so that no change is made only in part.
//!
//! Two properties of the plain calls lose memory, so they are not used here:
//! - MREMAP_FIXED, since Linux 6.17, moves a range of several mappings one mapping at a time, and may fail in the
//!   middle. Without that flag every kernel refuses such a range as a whole (EFAULT). Where the kernel fails to move
//!   one mapping, it moves back what it moved.
//! - MREMAP_FIXED and MAP_FIXED unmap what lies at the target before they look at limits. After a failure the target
//!   may be the old mapping, a hole, or what another thread mapped there meanwhile; no call can find out which. So a
//!   separate call unmaps the target, and its address is a hint (mremap) or must be free (mmap).
//!
//! A block may have several mappings: it was moved and has grown since, or the program locked a part of it. One call
//! moves each of them. If a later one is refused, what was moved is copied back, which cannot fail.

use crate::arch;
use crate::system::call::READ_WRITE;
use crate::system::map;
use crate::system::probe::MOVE;
use crate::system::space::count;
use crate::system::{call, huge, purge};
use neap_core::os::Moved;
use neap_counters::Syscall;
use rustix::io::Errno;
use rustix::mm::MremapFlags;

/// Most mappings that a range may lie in. A block that doubles by realloc gets one more at each move.
const MOST_PIECES: usize = 16;

/// The error of madvise for an advice that the kernel does not know.
const UNKNOWN_ADVICE: isize = libc::EINVAL as isize;

/// The outcome of moving one mapping.
#[derive(Debug, PartialEq, Eq)]
enum Piece {
    Moved,
    /// It was not moved; at the target there is fresh memory, or what was there before.
    Stayed,
    /// It was not moved; the target is not neap's any more.
    Lost,
}

/// Whole OS pages of an arena. Having one proves that the addresses are this call's: no other code of the process uses
/// what is mapped there. Only `Part::new` is unsafe, because its caller promises that; the calls below change only
/// these OS pages.
#[derive(Clone, Copy)]
pub(super) struct Part {
    start: *mut u8,
    len: usize,
}

impl Part {
    /// # Safety
    /// The memory must be the caller's, up to the end of the call.
    pub(super) unsafe fn new(start: *mut u8, len: usize) -> Part {
        Part { start, len }
    }

    /// The bytes `from..to` of it.
    pub(super) fn cut(self, from: usize, to: usize) -> Part {
        debug_assert!(from <= to && to <= self.len);
        Part { start: self.start.wrapping_add(from), len: to - from }
    }

    /// What lies before the first multiple of `align`, between that and the last one, and behind it.
    pub(super) fn at_borders(self, align: usize) -> [Part; 3] {
        let start = self.start.addr();
        let from = (start.next_multiple_of(align) - start).min(self.len);
        let to = from + (self.len - from) / align * align;
        [self.cut(0, from), self.cut(from, to), self.cut(to, self.len)]
    }

    pub(super) fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Makes it zero. It must be writable.
    pub(super) fn clear(self) {
        // SAFETY: what a `Part` proves.
        unsafe { self.start.write_bytes(0, self.len) };
    }

    /// Unmaps it; false if the system refuses that, and then all of it is as it was.
    pub(super) fn unmap(self) -> bool {
        // SAFETY: what a `Part` proves.
        unsafe { map::unmap(self.start, self.len) }
    }

    /// Maps fresh memory where it was unmapped; false if that is refused or something lies there.
    pub(super) fn map_again(self) -> bool {
        let mapped = map::map(self.start.addr(), self.len, READ_WRITE).is_some();
        if mapped {
            // SAFETY: what a `Part` proves.
            unsafe { huge::follow(self.start, self.len) };
        }
        mapped
    }

    /// Maps pages of the pool where it was unmapped; false if the pool has too few, or something lies there.
    pub(super) fn map_pool(self) -> bool {
        map::map_pool(self.start.addr(), self.len).is_some()
    }

    /// Populates it; false where not all of it could be.
    pub(super) fn populate(self) -> bool {
        count(Syscall::Madvise);
        call::populate(self.start, self.len).is_ok()
    }

    /// Makes it readable and writable.
    fn open(self) -> bool {
        // SAFETY: what a `Part` proves.
        unsafe { map::commit(self.start, self.len) }
    }

    /// Copies the contents of `from`, which has as many bytes. Makes both accessible first: the program may have
    /// changed their protection, and a mapping that moves keeps it, at both places. If that is refused, the protection
    /// is mostly right already.
    fn copy(self, from: Part) {
        self.open();
        from.open();
        // SAFETY: two parts of the same length, mapped, and readable and writable.
        unsafe { self.start.copy_from_nonoverlapping(from.start, self.len.min(from.len)) };
    }

    /// mremap to `new` bytes, whose last argument is a hint without MREMAP_FIXED: rustix has it with that flag only.
    fn remap(self, new: usize, flags: MremapFlags, hint: *mut u8) -> Result<*mut u8, Errno> {
        count(Syscall::Mremap);
        let [p, hint] = [self.start, hint].map(|p| p.expose_provenance());
        let flags = flags.bits() as usize;
        // SAFETY: what a `Part` proves. Nothing outside of it is unmapped.
        let result = unsafe { arch::syscall(libc::SYS_mremap as usize, [p, self.len, new, flags, hint, 0]) };
        if arch::is_error(result) {
            return Err(Errno::from_raw_os_error(-result as i32));
        }
        Ok(core::ptr::with_exposed_provenance_mut(result as usize))
    }
}

/// See `Os::move_pages`.
///
/// # Safety
/// As `Os::move_pages`.
pub unsafe fn move_pages(from: *mut u8, to: *mut u8, len: usize) -> Moved {
    // SAFETY: as the caller promises: both ranges are its own.
    let (from, to) = unsafe { (Part::new(from, len), Part::new(to, len)) };
    if !is_usable() {
        return Moved::Not;
    }
    let mut ends = [0; MOST_PIECES];
    let Some(pieces) = split(from, &mut ends) else { return Moved::Not };
    let mut done = 0;
    for &end in &ends[..pieces] {
        match move_piece(from.cut(done, end), to.cut(done, end)) {
            Piece::Moved => done = end,
            piece => return take_back(from.cut(0, done), to.cut(0, done), piece == Piece::Lost),
        }
    }
    Moved::Done
}

/// Copies from `to` back to `from` what was moved before a later piece was refused. `from` is still mapped.
fn take_back(from: Part, to: Part, lost: bool) -> Moved {
    let mut lost = lost;
    if from.len > 0 {
        from.copy(to);
        // What the program set for the pages (that they are locked, say) moved with them, so `to` is replaced.
        lost = if lost { to.unmap() || lost } else { replace(to) == Moved::Lost };
    }
    if lost { Moved::Lost } else { Moved::Not }
}

/// Moves memory that lies in one mapping. What was at `to` is unmapped first.
fn move_piece(from: Part, to: Part) -> Piece {
    if !to.unmap() {
        return Piece::Stayed;
    }
    match from.remap(from.len, MremapFlags::MAYMOVE | MremapFlags::DONTUNMAP, to.start) {
        Ok(at) if at == to.start => return Piece::Moved,
        Ok(at) => {
            // Another thread has mapped something there meanwhile, so the kernel chose another place.
            // SAFETY: the kernel has just put the pages there.
            let other = unsafe { Part::new(at, from.len) };
            from.copy(other);
            other.unmap();
        }
        Err(_) => {}
    }
    if to.map_again() { Piece::Stayed } else { Piece::Lost }
}

/// See `Os::renew`.
///
/// # Safety
/// As `Os::renew`.
pub unsafe fn renew(p: *mut u8, len: usize) -> Moved {
    // SAFETY: as the caller promises: committed memory of its own whose contents are not needed.
    replace(unsafe { Part::new(p, len) })
}

/// Puts fresh memory in the place of a part. munmap does all or nothing.
pub(super) fn replace(part: Part) -> Moved {
    match part.unmap() {
        true if part.map_again() => Moved::Done,
        true => Moved::Lost,
        false if undo(part) => Moved::Done,
        false => Moved::Not,
    }
}

/// Removes guards without mappings of their own (Linux 6.13): MADV_GUARD_REMOVE of
/// include/uapi/asm-generic/mman-common.h.
const GUARD_REMOVE: usize = 103;

/// Does what [`replace`] does, in a process that has reached its limit on mappings: to unmap a part of a mapping takes
/// one more. In most cases the whole part lies in one mapping then, because the program's own changes were refused too,
/// and there is nothing to undo. False if the system refuses a step; the memory goes back all the same, unless it is
/// locked.
fn undo(part: Part) -> bool {
    let advise = |advice: usize| {
        count(Syscall::Madvise);
        let arguments = [part.start.expose_provenance(), part.len, advice, 0, 0, 0];
        // SAFETY: what a `Part` proves. The advices below change no other memory.
        unsafe { arch::syscall(libc::SYS_madvise as usize, arguments) }
    };
    // Memory of a file that the program mapped here would not become zero. MADV_FREE works on anonymous memory only.
    let is_plain = advise(libc::MADV_FREE as usize) == 0;
    // A kernel that does not know an advice has nothing that it would undo.
    let undone = |advice: usize| matches!(-advise(advice), 0 | UNKNOWN_ADVICE);
    if is_plain
        && part.open()
        && undone(libc::MADV_DOFORK as usize)
        && undone(libc::MADV_KEEPONFORK as usize)
        && undone(GUARD_REMOVE)
    {
        // SAFETY: what a `Part` proves; it is writable, and its contents are not needed.
        return unsafe { purge::purge(part.start, part.len) };
    }
    // Not by `purge`, which may write to memory: this may be inaccessible.
    let _ = advise(libc::MADV_DONTNEED as usize);
    false
}

/// Writes where the mappings end that a part lies in, as bytes from its start; returns how many there are, or `None` if
/// there are more than fit or they are not known.
fn split(part: Part, ends: &mut [usize; MOST_PIECES]) -> Option<usize> {
    let page = call::page_size();
    let mut done = 0;
    for (i, end) in ends.iter_mut().enumerate() {
        // In OS pages: `one` lie in one mapping, `more` may not.
        let (mut one, mut more) = (1, (part.len - done) / page);
        let is_one = |pages: usize| is_one(part.cut(done, done + pages * page));
        if is_one(more)? {
            *end = part.len;
            return Some(i + 1);
        }
        while more - one > 1 {
            let half = usize::midpoint(one, more);
            if is_one(half)? {
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

/// Whether a part lies in one mapping: tries to extend it in place. The kernel first refuses a range of several
/// mappings (EFAULT), then to extend it where something else lies (ENOMEM). `None` for other answers: memory that is
/// locked beyond a limit (EAGAIN), or sealed (EPERM). Near the limit of mappings the answer may be wrong (newer kernels
/// refuse every mremap then); so the answer only says what to try.
fn is_one(part: Part) -> Option<bool> {
    let page = call::page_size();
    // Without MREMAP_MAYMOVE the part stays where it is.
    match part.remap(part.len + page, MremapFlags::empty(), core::ptr::null_mut()) {
        Err(Errno::NOMEM) => Some(true),
        Err(Errno::FAULT) => Some(false),
        Err(_) => None,
        Ok(_) => {
            // Nothing lay behind it: the end of an arena, or a part that was lost.
            // SAFETY: this OS page was just mapped.
            unsafe { map::unmap(part.start.wrapping_add(part.len), page) };
            Some(true)
        }
    }
}

/// Whether memory can be moved now: the kernel has MREMAP_DONTUNMAP, and the process may have an OS page more than it
/// has. Limits (RLIMIT_AS, RLIMIT_DATA) may be set by now that are below what it has; then what was unmapped could not
/// be mapped again. This is found out by trying, because a filter may end the process for querying limits.
fn is_usable() -> bool {
    if MOVE.known() == Some(false) {
        return false;
    }
    let page = call::page_size();
    let Some(p) = map::map(0, page, READ_WRITE) else { return false };
    // SAFETY: the mapping was just made.
    let part = unsafe { Part::new(p, page) };
    if MOVE.known().is_none()
        && let Some(works) = try_move(part)
    {
        MOVE.note(works);
    }
    part.unmap() && MOVE.works()
}

/// Whether a fresh OS page can be moved so that its old place is as fresh as before: empty, and what is written there
/// can be given back. qemu's user mode (7.2 to 11.1, at least) takes the old place for unmapped: MADV_DONTNEED reports
/// success for it, and for any range with a part of it, and does nothing. `None` if nothing was found out.
fn try_move(part: Part) -> Option<bool> {
    // SAFETY: what a `Part` proves.
    unsafe { part.start.write_volatile(1) };
    match part.remap(part.len, MremapFlags::MAYMOVE | MremapFlags::DONTUNMAP, core::ptr::null_mut()) {
        Ok(at) => {
            // Opened, as an emulator may have replaced it by inaccessible memory.
            // SAFETY: what a `Part` proves; the page at `at` was mapped by the call above.
            let works = unsafe {
                let moved = at.read_volatile() == 1;
                map::unmap(at, part.len);
                moved
                    && part.open()
                    && part.start.read_volatile() == 0
                    && purge::is_page_cleared(part.start) != Some(false)
            };
            Some(works)
        }
        Err(Errno::INVAL | Errno::NOSYS | Errno::PERM) => Some(false),
        // A lack of memory or of mappings: it is tried again.
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocator::NEAP;
    use crate::linux::Linux;
    use neap_core::Os;
    use rustix::mm;
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

    /// Catches a range of several mappings that is moved in part, or not at all where it could be, and memory that
    /// stays.
    #[test]
    fn moves_all_mappings_or_none() {
        let os = &NEAP.os;
        if !is_usable() {
            return;
        }
        for (parts, moves) in [(0, true), (1, true), (MOST_PIECES / 2 - 1, true), (MOST_PIECES / 2, false)] {
            let from = arena(os, parts);
            // SAFETY: the arena is this test's.
            unsafe {
                let to = from.add(LEN);
                let moved = move_pages(from, to, LEN);
                assert_eq!(moved, if moves { Moved::Done } else { Moved::Not }, "{parts} parts");
                assert!(is_whole(if moves { to } else { from }), "{parts} parts");
                assert!(!moves || (0..LEN).all(|i| from.add(i).read() == 0), "{parts} parts");
                assert_eq!(renew(to, LEN), Moved::Done);
                assert!((0..LEN).all(|i| to.add(i).read() == 0));
                assert!(os.unmap(from, 3 * LEN));
            }
        }
    }

    /// Catches pieces that were moved before one was refused, and that are not where they were afterwards.
    #[test]
    fn takes_back_what_was_moved() {
        let os = &NEAP.os;
        if !is_usable() {
            return;
        }
        for lost in [false, true] {
            let from = arena(os, 3);
            // SAFETY: the arena is this test's.
            unsafe {
                let to = from.add(LEN);
                let mut ends = [0; MOST_PIECES];
                assert_eq!(split(Part::new(from, LEN), &mut ends), Some(7));
                assert_eq!(ends[..3], [16 * PAGE, 17 * PAGE, 48 * PAGE]);
                let (source, target) = (Part::new(from, ends[1]), Part::new(to, ends[1]));
                for (start, end) in [(0, ends[0]), (ends[0], ends[1])] {
                    assert_eq!(move_piece(source.cut(start, end), target.cut(start, end)), Piece::Moved);
                }
                let moved = take_back(source, target, lost);
                assert_eq!(moved, if lost { Moved::Lost } else { Moved::Not });
                assert!(is_whole(from));
                // Not lost: it can be written. Lost: nothing of it stays mapped.
                assert_eq!(os.commit(to, ends[1]), !lost);
                assert!(os.unmap(from, 3 * LEN));
            }
        }
    }

    /// Catches SIGSEGV where a move is taken back, because the program has taken access to a part away.
    #[test]
    fn takes_back_what_is_not_accessible() {
        let os = &NEAP.os;
        if !is_usable() {
            return;
        }
        for access in [MprotectFlags::READ, MprotectFlags::empty()] {
            let from = arena(os, 0);
            // SAFETY: the arena is this test's.
            unsafe {
                let (to, half) = (from.add(LEN), LEN / 2);
                mm::mprotect(from.add(half).cast(), PAGE, access).unwrap();
                let (source, target) = (Part::new(from, half + PAGE), Part::new(to, half + PAGE));
                for (start, end) in [(0, half), (half, half + PAGE)] {
                    assert_eq!(move_piece(source.cut(start, end), target.cut(start, end)), Piece::Moved);
                }
                assert_eq!(take_back(source, target, false), Moved::Not);
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
                assert!(undo(Part::new(p, LEN)), "change {change}");
                assert!((0..LEN).all(|i| p.add(i).read() == 0), "change {change}");
                p.write_bytes(1, LEN);
                assert!(mm::mlock(page.cast(), PAGE).is_err() || !undo(Part::new(p, LEN)), "locked memory stays");
                let _ = mm::munlock(page.cast(), PAGE);
                mm::madvise(p.cast(), LEN, dontneed).unwrap();
                let file = rustix::fs::memfd_create(c"file", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
                rustix::fs::ftruncate(&file, PAGE as u64).unwrap();
                mm::mmap(page.cast(), PAGE, READ_WRITE, mm::MapFlags::SHARED | mm::MapFlags::FIXED, &file, 0).unwrap();
                page.write(1);
                assert!(!undo(Part::new(p, LEN)), "a file stays");
                assert!(os.unmap(p, 3 * LEN));
            }
        }
    }

    /// Catches a range at the end of a mapping that grows by a mere query.
    #[test]
    fn questions_change_nothing() {
        let os = &NEAP.os;
        let p = os.map(4 * PAGE, PAGE).unwrap();
        // SAFETY: a fresh mapping.
        unsafe {
            assert!(os.unmap(p.add(2 * PAGE), 2 * PAGE));
            if let Some(one) = is_one(Part::new(p, 2 * PAGE)) {
                assert!(one);
                assert!(!os.commit(p.add(2 * PAGE), PAGE), "an OS page was mapped");
            }
            assert!(os.unmap(p, 2 * PAGE));
        }
    }
}
