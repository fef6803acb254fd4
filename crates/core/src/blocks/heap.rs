//! Heaps: what one thread owns, and the fast paths of malloc and free.
//!
//! A heap has, for each size class, a cache (a list of free blocks, newest first) and a bin (the slabs it owns that
//! have free blocks). malloc takes from the cache and free puts into it, also a block of another heap's slab. Neither
//! takes a lock, calls the system or writes what another thread reads. Blocks move between cache and slabs in batches.
//!
//! A block in a cache has a tag in its first word, and then the link (`free_block.rs`). So malloc finds a block that
//! was written after free, and free finds one that is freed twice; `misuse.rs` confirms or rejects the suspicion.
//! Blocks that are free in their slab are not touched.
//!
//! Invariant 8, the equation of a cache: `cap - room == blocks in the list`.

use crate::blocks::class::{self, CLASSES};
use crate::blocks::flow::Flow;
use crate::blocks::free_block::{Free, Link};
use crate::blocks::large_cache::LargeCache;
use crate::blocks::sampler::Sampler;
use crate::blocks::slab_record::{self, OwnSlab};
use crate::blocks::watch::Watch;
use crate::pages::chunk::{Chunk, Kind, List, Record};
use crate::pages::page_map::PageMap;
use crate::system::remote::Pending;
use crate::system::sync::{AtomicPtr, AtomicU8, AtomicU32, AtomicUsize, peek_cell};
use core::cell::{Cell, UnsafeCell};
use core::mem::offset_of;
use core::ops::Deref;

pub use crate::blocks::free_block::Block;

/// Maximum number of blocks in the cache of one class.
pub(crate) const CACHE_BLOCKS: usize = 1024;
/// Maximum bytes in the cache of one class: for blocks up to [`SMALL_BLOCK`], and for larger ones. To touch a larger
/// block costs more than to fetch it from a slab, so a cache of such blocks saves little.
const CACHE_BYTES: [usize; 2] = [64 * 1024, 32 * 1024];
const SMALL_BLOCK: usize = 1024;
/// Bytes that a new cache has room for, but it has room for two blocks at least ([`first`]).
const FIRST_BYTES: usize = 2 * 1024;
/// The `room` of each cache of a heap without caches: negative, see [`Mine::undo_free`].
pub(crate) const NO_ROOM: i32 = i32::MIN / 2;

/// A heap. The first fields are what the fast paths read.
///
/// **Invariant 3.** Heaps are never unmapped, so a reference to one is valid for ever. Cells are used by the holder of
/// the heap's [`Mine`] alone; other threads read them as hints. All threads may use the atomics.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Heap {
    /// malloc takes the fast path for sizes below this: [`class::MAX_TABLE`] + 1, or 0 for a heap without caches and
    /// for one whose allocations are watched (`watch.rs`).
    limit: Cell<usize>,
    /// The end of every cache list: a block whose first word is not the tag.
    nothing: UnsafeCell<Block>,
    /// First block of each cache.
    head: [Cell<*mut Block>; CLASSES],
    /// Number of blocks that each cache still has room for.
    room: [Cell<i32>; CLASSES],
    /// [`class::RECIPROCAL`], close to the other fields of the fast paths.
    reciprocal: [u32; CLASSES],
    /// [`class::SMALL_CLASS`], close to the other fields of the fast paths.
    small_class: [u8; class::MAX_TABLE + 1],
    /// Size of each cache at present, in blocks.
    cap: [Cell<u16>; CLASSES],
    /// The slabs of each class that this heap owns and that have free blocks.
    bins: [List; CLASSES],
    /// Number of slabs that this heap owns, for each class, see `grow.rs`.
    pub(crate) slabs: [Cell<u32>; CLASSES],
    /// Its slabs with remote frees that it has not collected.
    pub(crate) pending: Pending<Chunk>,
    /// Large blocks kept for the next request.
    pub(crate) large: LargeCache,
    /// Who may use it, see `registry.rs`.
    pub(crate) state: AtomicU32,
    /// The thread slot of its thread, if the thread has one that stays until `Allocator::abandon`.
    pub(crate) slot: AtomicPtr<ThreadSlot>,
    /// That thread, for [`crate::Os::has_ended`] (number 0: the system cannot be asked about it), and the number of its
    /// process. A child that was made without fork handlers has those of its parent.
    pub(crate) thread: AtomicU32,
    pub(crate) place: AtomicUsize,
    pub(crate) process: AtomicU32,
    /// Counts of what moved between caches and slabs.
    pub(crate) flow: Flow,
    /// For handshakes, under the batch lock: the value of [`Heap::look`] at the last tick, and the number of ticks
    /// since it changed.
    pub(crate) look: Cell<u64>,
    pub(crate) quiet: Cell<u8>,
    /// For forks, under the registry's lock: true if the thread is in no call, and makes reentrant calls until the fork
    /// has ended and it takes the heap back. Then its slot holds [`FORKED`].
    pub(crate) whole: Cell<bool>,
    /// State of a generator of random numbers; 0: not used yet.
    pub(crate) random: Cell<u64>,
    /// The watch mode that this heap has adopted.
    pub(crate) watch: Cell<Watch>,
    /// Chooses the next sample.
    pub(crate) sampler: Sampler,
    /// The next heap in the list of all; it never changes.
    pub(crate) next: Cell<*mut Heap>,
    /// The next orphan, under the registry's lock.
    pub(crate) next_orphan: Cell<*mut Heap>,
}

const _: () = assert!(size_of::<Heap>() <= 4096, "a heap has to fit into the smallest OS page");

/// A heap that is only a name: its address stands for "no heap of its own", and both fast paths fail on it. Its watch
/// mode is [`Watch::Everything`], so that slow paths check for names only in heaps that are watched.
#[derive(Debug)]
pub struct Name(UnsafeCell<Heap>);

// SAFETY: malloc only reads, and fails at the limit of 0. free decrements a `room`, which is undone
// (`Mine::undo_free`). Threads that share a name do so at the same time without atomics, which would cost each free of
// each heap. By the rules of the language that is a data race, the only one left in neap. On the processors that neap
// supports each access is one load or store of an aligned word; a lost one changes the room by 1; only the sign of the
// room is used, and each `undo_free` sets the room back to NO_ROOM, which is 2^30 away from a change of the sign.
unsafe impl Sync for Name {}

impl Name {
    /// Makes a name.
    pub const fn new() -> Self {
        Name(UnsafeCell::new(Heap { watch: Cell::new(Watch::Everything), ..Heap::new() }))
    }

    /// Returns the address to compare with.
    #[inline]
    pub const fn heap(&'static self) -> *mut Heap {
        self.0.get()
    }
}

/// The heap of a thread that has made no call yet.
pub static NONE: Name = Name::new();
/// The heap of a thread with which another thread makes a handshake, see `handshake.rs`.
pub static PARKED: Name = Name::new();
/// The heap of a thread while another one forks, see `fork.rs`.
pub static FORKED: Name = Name::new();

/// Why [`Heap::malloc`] returned no block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missed {
    /// The size is not below the limit: the block is large, or the heap is watched or a [`Name`].
    Limit,
    /// The cache has no block. The heap is as [`Heap::malloc`] left it, so `Mine::undo_pop` has to follow.
    Cache,
}

/// Where a thread keeps its heap: four words of thread storage.
///
/// A call adds 1 to `busy`, then loads `heap`, uses it, and sets `busy` to [`ThreadSlot::IDLE`]. A call that does not
/// find 0 after the addition is reentrant: it subtracts the 1 and uses neither heap nor locks (invariant 26). A
/// handshake swaps `heap` for [`PARKED`], makes sure that the thread sees that from now on, and then checks whether
/// `busy` is set. So either the thread finds its heap parked, or the handshake finds the thread busy (invariant 19).
#[repr(C)]
#[derive(Debug)]
pub struct ThreadSlot {
    /// The thread's heap, or a [`Name`].
    pub heap: AtomicPtr<Heap>,
    /// [`ThreadSlot::IDLE`] unless a call of the thread uses the heap, or a lock.
    pub busy: AtomicU32,
    /// Forks that are under way in this thread: 1 for each that began in a reentrant call, 2^16 for each of the others.
    pub forks: AtomicU32,
    /// Count of what the thread did before it got a heap of its own. Used by the thread alone.
    pub early: AtomicU32,
    /// 1 if the thread is in a flight, see `back/flight.rs`. Used by the thread alone.
    pub(crate) flying: AtomicU8,
    /// 1 if the thread is in the hook for samples, which is not called for what it allocates and frees there. Used by
    /// the thread alone.
    pub in_hook: AtomicU8,
    /// 1 if the thread has waited long enough for its parked heap: its calls are reentrant until the heap is back.
    pub(crate) waited: AtomicU8,
    /// The heap that the thread takes back after a fork. Used by the thread alone.
    pub(crate) own: AtomicPtr<Heap>,
}

impl ThreadSlot {
    /// `busy` while no call uses the heap: one less than 0, so that one instruction adds and shows whether it was idle.
    pub const IDLE: u32 = u32::MAX;

    /// Makes the thread slot of a thread that uses `heap`.
    pub const fn new(heap: *mut Heap) -> Self {
        ThreadSlot {
            heap: AtomicPtr::new(heap),
            busy: AtomicU32::new(Self::IDLE),
            forks: AtomicU32::new(0),
            early: AtomicU32::new(0),
            flying: AtomicU8::new(0),
            in_hook: AtomicU8::new(0),
            waited: AtomicU8::new(0),
            own: AtomicPtr::new(core::ptr::null_mut()),
        }
    }
}

/// Returns the maximum size of the cache of `class`, in blocks.
pub(crate) const fn most(class: usize) -> u16 {
    let size = class::SIZE[class] as usize;
    let n = CACHE_BYTES[(size > SMALL_BLOCK) as usize] / size;
    if n > CACHE_BLOCKS {
        CACHE_BLOCKS as u16
    } else if n < 1 {
        1
    } else {
        n as u16
    }
}

/// Returns the size of a new cache of `class`, in blocks.
pub(crate) const fn first(class: usize) -> u16 {
    let n = (FIRST_BYTES / class::SIZE[class] as usize) as u16;
    let n = if n < 2 { 2 } else { n };
    if n < most(class) { n } else { most(class) }
}

impl Heap {
    /// Where an observer in another process finds the heads of the caches, and the next heap.
    pub(crate) const SEEN_AT: [usize; 2] = [offset_of!(Self, head), offset_of!(Self, next)];

    /// Makes a heap without caches that owns nothing.
    pub const fn new() -> Self {
        Heap {
            limit: Cell::new(0),
            nothing: UnsafeCell::new(Block { tag: 0, unused: 0, link: core::ptr::null_mut() }),
            head: [const { Cell::new(core::ptr::null_mut()) }; CLASSES],
            room: [const { Cell::new(NO_ROOM) }; CLASSES],
            reciprocal: class::RECIPROCAL,
            small_class: class::SMALL_CLASS,
            cap: [const { Cell::new(0) }; CLASSES],
            bins: [const { List::new() }; CLASSES],
            slabs: [const { Cell::new(0) }; CLASSES],
            pending: Pending::new(),
            large: LargeCache::new(),
            state: AtomicU32::new(0),
            slot: AtomicPtr::new(core::ptr::null_mut()),
            thread: AtomicU32::new(0),
            place: AtomicUsize::new(0),
            process: AtomicU32::new(0),
            flow: Flow::new(),
            look: Cell::new(0),
            quiet: Cell::new(0),
            whole: Cell::new(false),
            random: Cell::new(0),
            watch: Cell::new(Watch::Nothing),
            sampler: Sampler::new(),
            next: Cell::new(core::ptr::null_mut()),
            next_orphan: Cell::new(core::ptr::null_mut()),
        }
    }

    /// Returns the address of [`NONE`].
    #[inline]
    pub fn none() -> *mut Heap {
        NONE.heap()
    }

    /// Returns the heap at `heap`, or `None` for null.
    ///
    /// # Safety
    /// `heap` must be null, the address of a heap, or that of a [`Name`].
    #[inline(always)]
    pub(crate) unsafe fn at(heap: *mut Heap) -> Option<&'static Heap> {
        // SAFETY: heaps are never unmapped (invariant 3), and names are statics.
        unsafe { heap.as_ref() }
    }

    /// Returns its address, which identifies it.
    #[inline(always)]
    pub fn id(&self) -> *mut Heap {
        core::ptr::from_ref(self).cast_mut()
    }

    /// The fast path of malloc: returns a block, or why the caller has to take another path. `untag` is
    /// [`Block::untag`], or the processor's best form of it.
    ///
    /// # Safety
    /// `heap` must be the calling thread's, in a call (as [`Mine`] demands), or a [`Name`].
    #[inline(always)]
    pub unsafe fn malloc(
        heap: *mut Heap,
        size: usize,
        untag: impl FnOnce(*mut Block) -> bool,
    ) -> Result<*mut u8, Missed> {
        // SAFETY: the heap is the caller's (invariant 18); a name has the limit 0. Each size below the limit is in the
        // table.
        unsafe {
            if size >= (*heap).limit.get() {
                return Err(Missed::Limit);
            }
            let p = Self::pop(heap, Self::class_in_table(heap, size), untag);
            if p.is_null() { Err(Missed::Cache) } else { Ok(p) }
        }
    }

    /// The path of malloc after [`Missed::Limit`] in a heap that counts bytes until its next sample (`sampler.rs`):
    /// counts `size`, and takes the block from the cache. `None`: the heap does not count, a sample is due, or the
    /// size is not in the table; nothing was done. Null: the cache has no block, so `Allocator::malloc_past_cache` has
    /// to follow.
    ///
    /// # Safety
    /// As [`Heap::malloc`].
    #[inline(always)]
    pub unsafe fn malloc_between_samples(
        heap: *mut Heap,
        size: usize,
        untag: impl FnOnce(*mut Block) -> bool,
    ) -> Option<*mut u8> {
        // SAFETY: the heap is the caller's (invariant 18); the sampler of a name does not count. Each size up to the
        // greatest is in the table. Blocks of 0 bytes, which count as 1, take the slow path.
        unsafe {
            if size.wrapping_sub(1) >= class::MAX_TABLE || !(*heap).sampler.skips(size) {
                return None;
            }
            Some(Self::pop(heap, Self::class_in_table(heap, size), untag))
        }
    }

    /// The class of blocks of `size` bytes.
    ///
    /// # Safety
    /// As [`Heap::malloc`]; `size` must be at most [`class::MAX_TABLE`].
    #[inline(always)]
    unsafe fn class_in_table(heap: *mut Heap, size: usize) -> usize {
        // SAFETY: the heap is valid for reads, and the size is in its table, as the caller promises.
        usize::from(unsafe { *(&raw const (*heap).small_class).cast::<u8>().add(size) })
    }

    /// Takes a block from a cache. Null if the head has no tag, which is then changed: `Mine::undo_pop` corrects that.
    ///
    /// # Safety
    /// As [`Heap::malloc`]; `class` must be a class.
    #[inline(always)]
    pub(crate) unsafe fn pop(heap: *mut Heap, class: usize, untag: impl FnOnce(*mut Block) -> bool) -> *mut u8 {
        // SAFETY: the heap is the caller's (invariant 18). Every head is a free block or `nothing`, also without caches
        // (invariant 8).
        unsafe {
            let head = (&raw mut (*heap).head).cast::<*mut Block>().add(class);
            let block = *head;
            if !untag(block) {
                return core::ptr::null_mut();
            }
            *head = (*block).link;
            *(&raw mut (*heap).room).cast::<i32>().add(class) += 1;
            block.cast()
        }
    }

    /// The fast path of free: returns false if the caller has to take the slow path.
    ///
    /// # Safety
    /// `heap` must be the calling thread's, in a call (as [`Mine`] demands), or a [`Name`]. `p` may be any address.
    #[inline(always)]
    pub unsafe fn free(heap: *mut Heap, map: &PageMap, p: *mut u8) -> bool {
        // SAFETY: the heap is the caller's (invariant 18); for names see `Name`. Class 0 never has room, and another
        // class says that `p` lies in a slab (invariant 14), so it may be read and written (invariant 16).
        unsafe {
            let class = map.class(p);
            let room = (&raw mut (*heap).room).cast::<i32>().add(class);
            *room -= 1;
            if *room < 0 {
                return false;
            }
            let reciprocal = *(&raw const (*heap).reciprocal).cast::<u32>().add(class);
            if (p.addr() as u16 as u32).wrapping_mul(reciprocal) >> 16 != 0 {
                return false;
            }
            let block = p.cast::<Block>();
            if (*block).tag == Block::TAG {
                return false;
            }
            let head = (&raw mut (*heap).head).cast::<*mut Block>().add(class);
            (*block).tag = Block::TAG;
            (*block).link = *head;
            *head = block;
            true
        }
    }

    /// Returns a number that changes with the caches, and whether they have a block. For other threads: a hint.
    pub(crate) fn look(&self) -> (u64, bool) {
        let kept = self.large.count_roughly();
        let (mut sum, mut cached) = (kept as u64, kept > 0);
        for class in 1..CLASSES {
            let (room, cap) = (peek_cell(&self.room[class], 0), peek_cell(&self.cap[class], 1));
            let head = peek_cell(&self.head[class], core::ptr::null_mut());
            cached |= room < i32::from(cap) && room >= 0;
            let word = u64::from(room.cast_unsigned()) ^ (head.addr() as u64).rotate_left(32);
            sum = (sum ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
        }
        (sum, cached)
    }

    /// Whether caches may hold more than new ones do. For other threads: a hint.
    pub(crate) fn is_grown(&self) -> bool {
        let cap = |class: usize| peek_cell(&self.cap[class], 0);
        self.large.is_counted_roughly() || (1..CLASSES).any(|class| cap(class) > first(class))
    }

    /// Returns the number of blocks in the caches, and their bytes. For other threads: a hint.
    pub(crate) fn cached_now(&self) -> (u64, u64) {
        let (mut blocks, mut bytes) = (0, 0);
        for class in 1..CLASSES {
            let (room, cap) = (peek_cell(&self.room[class], 0), peek_cell(&self.cap[class], 0));
            // A heap without caches has a cap of 0; a free that is about to fail has a room of -1.
            let cap = i32::from(cap);
            let n = u64::from((cap - room.clamp(0, cap)).cast_unsigned());
            blocks += n;
            bytes += n * u64::from(class::SIZE[class]);
        }
        (blocks, bytes)
    }

    /// Returns the first block of the cache of `class`. For other threads: a hint.
    pub(crate) fn head_roughly(&self, class: usize) -> *mut Block {
        peek_cell(&self.head[class], core::ptr::null_mut())
    }

    /// Returns the watch mode that it has adopted; under Miri `in_miri`. For other threads: a hint.
    pub(crate) fn watch_roughly(&self, in_miri: Watch) -> Watch {
        peek_cell(&self.watch, in_miri)
    }
}

/// Returns the heap that owns the slab of `c`; null if the slab is being released.
#[inline(always)]
pub(crate) fn owner(c: Record) -> *mut Heap {
    slab_record::owner(c).cast()
}

/// A heap that the holder alone uses now (invariant 18). Having one proves one of these:
/// - it is the calling thread's own, in a call that the thread's slot shows, or that it borrowed the heap for;
/// - the calling thread makes a handshake with its owner, which is in no call (`back/handshake.rs`);
/// - it is an orphan or the common heap, and the lock of the registry is held;
/// - the process has no other thread;
/// - it is a [`Name`], which has neither caches nor slabs: see there for what threads that share one may do.
///
/// So no other thread uses its cells, the blocks in its caches or the records of its slabs.
#[derive(Clone, Copy, Debug)]
pub struct Mine<'h>(&'h Heap);

impl Deref for Mine<'_> {
    type Target = Heap;

    #[inline(always)]
    fn deref(&self) -> &Heap {
        self.0
    }
}

impl<'h> Mine<'h> {
    /// Returns a token for the heap at `heap`.
    ///
    /// # Safety
    /// What the type proves must be true for as long as the token is used.
    #[inline(always)]
    pub unsafe fn of(heap: *mut Heap) -> Mine<'h> {
        // SAFETY: the caller passes a heap or a name, neither of which is ever unmapped (invariant 3).
        Mine(unsafe { &*heap })
    }

    /// Returns [`Heap::none`], which stands for no heap.
    pub fn none() -> Mine<'static> {
        // SAFETY: it is a name, as `Mine` allows.
        unsafe { Mine::of(Heap::none()) }
    }

    /// Returns a token for `heap`.
    ///
    /// # Safety
    /// As [`Mine::of`].
    pub(crate) unsafe fn of_ref(heap: &'h Heap) -> Mine<'h> {
        Mine(heap)
    }

    /// Returns the slab of `c`, if this heap owns it.
    #[inline]
    pub(crate) fn slab(self, c: Record) -> Option<OwnSlab> {
        // SAFETY: a slab of a heap that is the holder's, as `Mine` proves; only the holder changes whose slab it is.
        (c.kind() == Kind::SLAB && owner(c) == self.id()).then(|| unsafe { OwnSlab::of(c) })
    }

    /// Returns the first slab in the bin of `class`.
    #[inline(always)]
    pub(crate) fn first_slab(self, class: usize) -> Option<OwnSlab> {
        // SAFETY: a bin has slabs of its heap only (invariant 9), which is the holder's, as `Mine` proves.
        self.bins[class].head().map(|c| unsafe { OwnSlab::of(c) })
    }

    /// Whether the bin of `class` has exactly one slab.
    pub(crate) fn has_one_slab(self, class: usize) -> bool {
        self.bins[class].head().is_some_and(|c| c.next().is_none())
    }

    /// Returns the slab after a listed one in its bin.
    pub(crate) fn slab_behind(self, slab: OwnSlab) -> Option<OwnSlab> {
        // SAFETY: a bin has slabs of its heap only (invariant 9), which is the holder's, as `Mine` proves.
        slab.chunk().next().map(|c| unsafe { OwnSlab::of(c) })
    }

    /// Puts a slab of this heap, which is not listed, into its bin.
    #[inline]
    pub(crate) fn list(self, slab: OwnSlab) {
        self.bins[slab.class()].push(slab.chunk());
        slab.set_listed(true);
    }

    /// Takes a listed slab out of its bin.
    #[inline]
    pub(crate) fn unlist(self, slab: OwnSlab) {
        self.bins[slab.class()].remove(slab.chunk());
        slab.set_listed(false);
    }

    /// Returns the end of each cache.
    #[inline(always)]
    pub(crate) fn end(self) -> Link {
        Link::at(self.nothing.get())
    }

    /// Returns the head of the cache of `class`.
    #[inline(always)]
    pub(crate) fn first(self, class: usize) -> Link {
        Link::at(self.head[class].get())
    }

    /// Changes the head of the cache of `class`.
    #[inline(always)]
    pub(crate) fn set_first(self, class: usize, first: Link) {
        self.head[class].set(first.ptr());
    }

    /// Takes the first block out of the cache of `class`. Null if there is none, or none with the tag: then the first
    /// word of the head may be changed, see [`Mine::undo_pop`].
    #[inline(always)]
    pub(crate) fn pop(self, class: usize) -> *mut u8 {
        if !self.caches_class(class) {
            return core::ptr::null_mut();
        }
        // SAFETY: the heap is the holder's, as `Mine` proves, and has a cache of this class.
        unsafe { Heap::pop(self.id(), class, Block::untag) }
    }

    /// Restores the first word of the head of a cache, which the heap must have, after [`Heap::pop`] failed.
    #[inline(always)]
    pub(crate) fn undo_pop(self, class: usize) {
        let head = self.head[class].get();
        if !head.is_null() {
            // SAFETY: the head of a cache is a block in it, or its end; both are the holder's, as `Mine` proves.
            unsafe { (*head).tag ^= Block::TAG };
        }
    }

    /// Undoes the count of a [`Heap::free`] that failed for a block of `class`. Each of them must be undone, also that
    /// of NULL (class 0) and that on a [`Name`]: after some 2^30 of them a room would wrap around. A [`Name`] has rooms
    /// near `NO_ROOM`, of which only the sign is used: threads that write one at the same time may lose each other's
    /// change.
    #[inline]
    pub fn undo_free(self, class: usize) {
        let room = self.room(class);
        self.room[class].set(if room < NO_ROOM / 2 { NO_ROOM } else { room + 1 });
    }

    /// Returns the number of blocks that the cache of `class` still has room for.
    #[inline(always)]
    pub(crate) fn room(self, class: usize) -> i32 {
        self.room[class].get()
    }

    /// Adds `n` to the room of the cache of `class`.
    #[inline(always)]
    pub(crate) fn add_room(self, class: usize, n: i32) {
        self.room[class].set(self.room[class].get() + n);
    }

    /// Returns the size of the cache of `class` at present, in blocks; 0: there is none.
    #[inline(always)]
    pub(crate) fn cap(self, class: usize) -> u16 {
        self.cap[class].get()
    }

    /// Changes the size of the cache of `class`, and its room by the same number.
    pub(crate) fn set_cap(self, class: usize, cap: u16) {
        self.add_room(class, i32::from(cap) - i32::from(self.cap(class)));
        self.cap[class].set(cap);
    }

    /// Gives the heap empty caches, or none: then every call takes its slow path. Its caches must be empty.
    pub(crate) fn set_cached(self, cached: bool) {
        self.set_fast(cached);
        // SAFETY: a field of the heap, which is the holder's, as `Mine` proves; there is no reference to it.
        unsafe { (*self.nothing.get()).tag = 0 };
        for class in 1..CLASSES {
            self.set_first(class, self.end());
            self.cap[class].set(if cached { first(class) } else { 0 });
            self.room[class].set(if cached { i32::from(first(class)) } else { NO_ROOM });
        }
    }

    /// Whether the heap has a cache for blocks of `class`.
    #[inline(always)]
    pub(crate) fn caches_class(self, class: usize) -> bool {
        self.cap(class) != 0
    }

    /// Removes the cache for blocks of `class`, which must be empty.
    pub(crate) fn uncache_class(self, class: usize) {
        self.cap[class].set(0);
        self.room[class].set(NO_ROOM);
    }

    /// Whether the heap has caches: if it has any, it has one for the first class.
    #[inline]
    pub(crate) fn is_cached(self) -> bool {
        self.cap(1) != 0
    }

    /// Whether malloc may take the fast path.
    #[inline]
    pub(crate) fn is_fast(self) -> bool {
        self.limit.get() != 0
    }

    /// Lets malloc take the fast path, or makes each malloc take its slow path. The caches stay as they are.
    pub(crate) fn set_fast(self, fast: bool) {
        self.limit.set(if fast { class::MAX_TABLE + 1 } else { 0 });
    }

    /// [`Mine::undo_free`] for a large block: it has class 0 in the page map, which never has room.
    #[inline(always)]
    pub(crate) fn undo_free_of_large(self) {
        self.room[0].set(NO_ROOM);
    }

    /// Whether the cache of `class` is empty, or the heap has none for it.
    #[inline]
    pub(crate) fn cache_is_empty(self, class: usize) -> bool {
        self.first(class) == self.end()
    }

    /// Returns the blocks in the cache of `class`, newest first, up to one that was written after free.
    pub(crate) fn cached_blocks(self, class: usize) -> impl Iterator<Item = Free> {
        let mut link = self.first(class);
        // A link is followed only when the next block is needed: the program may have written it.
        core::iter::from_fn(move || {
            let block = link.block(self.end()).filter(|block| block.tag() == Block::TAG)?;
            link = block.link();
            Some(block)
        })
    }
}
