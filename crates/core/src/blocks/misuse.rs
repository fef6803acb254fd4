//! Misuse of malloc and free: confirms what a check suspects, prints one line and ends the process. Never on a fast
//! path.
//!
//! Free bits and caches confirm a double free (invariants 8, 9). The records of freed chunks say what was at an address
//! in free memory (invariants 12, 17).

use crate::blocks::free_block::{Block, Free};
use crate::blocks::given::{Given, Small};
use crate::blocks::heap::{CACHE_BLOCKS, Mine};
use crate::blocks::large_record::Large;
use crate::blocks::{Blocks, class, large_record, slab_record};
use crate::pages::chunk::{Kind, Record};
use crate::system::sync::peek;
use crate::system::text::Text;
use crate::{CHUNK, Heap, Os};
use core::fmt::Write;

/// Maximum length of a message in bytes, plus one.
const LINE: usize = 257;

/// Prints one line about the block at `block`, unless the policy says not to, and ends the process.
#[cold]
fn die<O: Os>(a: &Blocks<O>, block: *const u8, what: core::fmt::Arguments<'_>) -> ! {
    if a.policy.is_quiet() {
        a.os.die(&[], core::ptr::null());
    }
    let mut line = Text::<LINE>::new();
    // A line that is too long is cut.
    let _ = writeln!(line, "neap: {what}");
    a.os.die(line.bytes(), block)
}

/// Reports a block in a cache that was written after free: its tag is gone.
#[cold]
pub fn corrupted<O: Os>(a: &Blocks<O>, p: *mut u8, class: usize) -> ! {
    let size = class::SIZE[class];
    if a.map.class(p) != class && a.map.is_complete() {
        die(
            a,
            p,
            format_args!("corrupted free list of {size}-byte blocks: a free block was written and points to {p:p}"),
        );
    }
    die(a, p, format_args!("corrupted free block {p:p} ({size}-byte block): written after free"));
}

/// Reports a free block that was written after its OS page went back to the system. Its tag went back too: if the block
/// was freed twice, the second free did not find the first, and the block may be live.
#[cold]
pub fn written<O: Os>(a: &Blocks<O>, p: *mut u8, class: usize) -> ! {
    let size = class::SIZE[class];
    die(a, p, format_args!("corrupted free block {p:p} ({size}-byte block): written after free, or freed twice"));
}

/// Reports blocks that came back to the slab of `c` but were free already: found when a cache was given back.
#[cold]
pub fn double_free_seen_late<O: Os>(a: &Blocks<O>, c: Record) -> ! {
    let (p, size) = (c.start(), class::SIZE[c.class()]);
    die(
        a,
        core::ptr::null(),
        format_args!("double free in the {size}-byte blocks at {p:p} (seen by thread {})", a.os.thread_id()),
    )
}

/// The call of the program, as the message names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// free, and other calls that free.
    Free,
    /// realloc.
    Realloc,
    /// malloc_usable_size.
    UsableSize,
}

impl Call {
    /// The name of the C function.
    pub fn name(self) -> &'static str {
        match self {
            Call::Free => "free",
            Call::Realloc => "realloc",
            Call::UsableSize => "malloc_usable_size",
        }
    }
}

/// Reports that `p`, a block of a slab of `class`, is free.
#[cold]
pub fn freed<O: Os>(a: &Blocks<O>, call: Call, p: *mut u8, class: usize) -> ! {
    free_block(a, call, p, class::SIZE[class] as usize)
}

/// Reports that the block of `size` bytes at `p` is free.
fn free_block<O: Os>(a: &Blocks<O>, call: Call, p: *mut u8, size: usize) -> ! {
    let (thread, name) = (a.os.thread_id(), call.name());
    if call == Call::Free {
        die(a, p, format_args!("double free of {p:p} ({size}-byte block, by thread {thread})"));
    }
    die(a, p, format_args!("{name} of {p:p}, which is free ({size}-byte block, by thread {thread})"));
}

/// Reports that `p` lies in a slab of `class` but not at the start of a block.
#[cold]
pub fn interior<O: Os>(a: &Blocks<O>, call: Call, p: *mut u8, class: usize) -> ! {
    let name = call.name();
    let size = class::SIZE[class] as usize;
    let inside = (p.addr() & (CHUNK - 1)) % size;
    die(
        a,
        p.wrapping_sub(inside),
        format_args!("{name} of {p:p}, which is not the start of a block ({size}-byte blocks, {inside} bytes inside)"),
    )
}

/// The place of an address that lies in an arena, in no slab, and not at the start of a large block.
enum Place {
    /// In a large block: the size of the block, and the distance from its start, in bytes.
    Inside(usize, usize),
    /// In free memory that was used before: the size of the block that started at the address in the last slab or large
    /// block there, if one did.
    Free(Option<usize>),
    /// In memory that was never handed out, or that holds neap's own data.
    Unknown,
}

/// Finds the place of `p`.
///
/// Invariant 17: the record of a chunk keeps the class of its last slab, or the bytes of the last large block that
/// started there, until the chunk is used again. A large block does not change the records behind its first (invariant
/// 12): a class there is that of an earlier slab. The records of a long free range may have gone back to the system
/// (`tables.rs`); then no size is known.
fn place<O: Os>(a: &Blocks<O>, p: *mut u8) -> Place {
    let Some(record) = a.arenas.record(p) else { return Place::Unknown };
    let offset = p.addr() & (CHUNK - 1);
    let is_used = |c: Record| a.arenas.in_use_roughly(c) || a.arenas.reentrant_reserve.holds(c.start());
    if !is_used(record) {
        return Place::Unknown;
    }
    let (mut c, mut back) = (record, 0);
    while c.kind() == Kind::NONE && is_used(c.before(1)) {
        c = c.before(1);
        back += CHUNK;
    }
    match c.kind() {
        Kind::LARGE | Kind::REENTRANT if back < large_record::len_roughly(c, 1) * CHUNK => {
            return Place::Inside(large_record::bytes(c), back + offset);
        }
        Kind::HEAPS if back == 0 => return Place::Unknown,
        _ => {}
    }
    let class = record.class_roughly(0);
    Place::Free(match (class, large_record::bytes(record)) {
        (0, bytes) => (offset == 0 && bytes != 0).then_some(bytes),
        _ => {
            let whole = class::is_start(offset, class) && class::index(p, class) < class::capacity(class);
            whole.then(|| class::SIZE[class] as usize)
        }
    })
}

/// Reports that `p` lies in an arena, in no slab, and not at the start of a large block.
#[cold]
pub fn not_a_block<O: Os>(a: &Blocks<O>, call: Call, p: *mut u8) -> ! {
    let name = call.name();
    match place(a, p) {
        Place::Inside(bytes, inside) => die(
            a,
            p.wrapping_sub(inside),
            format_args!(
                "{name} of {p:p}, which is not the start of a block ({bytes}-byte block, {inside} bytes inside)"
            ),
        ),
        Place::Free(Some(size)) => free_block(a, call, p, size),
        Place::Free(None) => {
            let thread = a.os.thread_id();
            if call == Call::Free {
                die(
                    a,
                    p,
                    format_args!(
                        "double free of {p:p}, or never allocated: it lies in free memory (by thread {thread})"
                    ),
                )
            }
            die(a, p, format_args!("{name} of {p:p}, which lies in free memory (by thread {thread})"))
        }
        Place::Unknown => foreign(a, call, p),
    }
}

/// Reports that `p` is no block of neap's, and probably of no other allocator.
#[cold]
pub fn foreign<O: Os>(a: &Blocks<O>, call: Call, p: *mut u8) -> ! {
    let name = call.name();
    die(a, p, format_args!("{name} of {p:p}, which neap did not allocate"))
}

/// Whether a tagged block is really free: in its slab, in this heap's cache, or in another cache.
///
/// Tag and link may be the program's own data: for example a node of a list that holds the tag's number and points to a
/// node that was freed before. So a block counts as free only if it is found in its slab or in a cache.
#[cold]
fn is_free<O: Os>(a: &Blocks<O>, heap: Mine<'_>, small: Small) -> bool {
    let (block, class) = (small.block(), small.class());
    if slab_record::is_free(small.record(), class, small.index()) || heap.cached_blocks(class).any(|b| b == block) {
        return true;
    }
    let link = block.link().ptr();
    let is_end = |there: Record| there.kind() == Kind::HEAPS && link.is_aligned();
    let plausible = tag_seen(a, link, class) || a.arenas.record(link.cast()).is_some_and(is_end);
    plausible && a.is_cached(small.start(), class)
}

/// Whether a block of `class` with the tag lies at `p`, which may be any address. A hint, as it may be another thread's
/// block.
fn tag_seen<O: Os>(a: &Blocks<O>, p: *mut Block, class: usize) -> bool {
    let offset = p.addr() & (CHUNK - 1);
    // The last OS page of a hardened slab may be a guard.
    let is_readable = |c: Record| !slab_record::is_hardened(c) || offset < CHUNK - a.page_size();
    let is_slab = |c: Record| c.kind() == Kind::SLAB && c.class_roughly(class) == class && is_readable(c);
    class::is_start(offset, class)
        && a.arenas.record(p.cast()).is_some_and(is_slab)
        // SAFETY: a block starts there, in a slab, whose chunk stays committed (invariant 16) even if its owner
        // releases it meanwhile.
        && unsafe { peek(&raw const (*p).tag, Block::TAG) } == Block::TAG
}

impl<O: Os> Blocks<O> {
    /// Returns the block of a slab at `given`, or `None` if no slab is there. Does not return if no block starts there;
    /// `call` is what the program called.
    #[inline(always)]
    pub(crate) fn small(&self, call: Call, given: Given) -> Option<Small> {
        let (p, class) = (given.ptr(), self.small_class(given.ptr())?);
        if !class::is_start(p.addr() & (CHUNK - 1), class) {
            interior(self, call, p, class);
        }
        // SAFETY: `p` lies in a slab, so it is not foreign but a block of the caller's, as `Given` proves.
        Some(Small::new(unsafe { Free::of(p) }, class))
    }

    /// Returns the large block at `given`, where `c` is the record of its chunk. Does not return if there is none.
    pub(crate) fn large_block(&self, call: Call, given: Given, c: Record) -> Large {
        given.large(c).unwrap_or_else(|| not_a_block(self, call, given.ptr()))
    }

    /// Does not return if `small` is free. `heap` may be a [`Name`](crate::blocks::heap::Name).
    #[inline]
    pub(crate) fn check_block(&self, heap: Mine<'_>, call: Call, small: Small) {
        let class = small.class();
        let untouched = class >= class::FIRST_PAGED && !heap.caches_class(class);
        let free = if !untouched && small.block().tag() == Block::TAG {
            is_free(self, heap, small)
        } else {
            slab_record::is_free(small.record(), class, small.index())
        };
        if free {
            freed(self, call, small.start(), class);
        }
    }

    /// Whether the block at `p` of a slab of `class` is in the cache of any heap. A hint, as other threads use their
    /// caches meanwhile: a walk along a cache ends early at a block that was just taken out.
    fn is_cached(&self, p: *mut u8, class: usize) -> bool {
        // SAFETY: `tag_seen` found that a block starts at `b`, in a slab, whose chunk stays committed (invariant 16).
        let link = |b: *mut Block| unsafe { peek(&raw const (*b).link, core::ptr::null_mut()) };
        let next = |&b: &*mut Block| tag_seen(self, b, class).then(|| link(b));
        self.registry.with(&self.os, |r| {
            let caches = |heap: &Heap| {
                let blocks = core::iter::successors(Some(heap.head_roughly(class)), next);
                blocks.take(CACHE_BLOCKS).any(|block| block.cast() == p)
            };
            r.heaps().any(caches)
        })
    }
}
