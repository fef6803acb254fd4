//! Runs a history on the allocator and on a model of it, and compares the two after each operation.

use crate::calls;
use crate::fake::Fake;
use crate::history::{Op, Setup};
use crate::pattern;
use crate::slot::{self, Owner};
use neap_core::heap::Mine;
use neap_core::misuse;
use neap_core::policy::Limit;
use neap_core::valid::{Census, Depth};
use neap_core::{Allocator, CHUNK, Os};
use std::collections::BTreeMap;

/// Number of operations between two full checks, which include all bits and all clean memory. Clean memory is also
/// checked after each realloc, and whenever memory went back to the system.
const DEEP: usize = 32;
/// Size up to which a system without faults and limits must serve requests.
const MODEST: usize = 1 << 30;
/// Limit on live blocks, so that a history cannot use up the machine's memory.
const MOST_BLOCKS: usize = 20_000;
/// Limit on bytes in live blocks, for the same reason.
const MOST_BYTES: usize = 4 << 30;
/// Limit on the heaps that threads own at the same time.
const MOST_HEAPS: usize = 6;

/// Milliseconds after which all free memory is due, whatever the policy.
const LONG: u64 = 3_600_000;
/// Number of blocks that are checked when memory went back to the system.
const SOME: usize = 64;
/// Limit on the ticks after which no memory may wait. Each tick comes when the one before requested it: after 10 ms at
/// least. The helper stays for the passes of promotion, the last of which is due 15 s after growth.
const MOST_TICKS: usize = 3000;

/// A live block.
#[derive(Clone, Copy, Debug)]
struct Block {
    p: *mut u8,
    usable: usize,
    id: u64,
}

/// The allocator, and the model of its state.
#[derive(Debug)]
pub struct Model {
    /// The allocator under test.
    pub a: Box<Allocator<Fake>>,
    threads: Vec<Owner>,
    /// Threads that do nothing, but to be there.
    idle: Vec<Owner>,
    blocks: Vec<Block>,
    /// The end of every live block by its start.
    addresses: BTreeMap<usize, usize>,
    /// Usable bytes of live blocks.
    bytes: usize,
    /// The last identifier of a block.
    ids: u64,
    /// Number of operations.
    steps: usize,
    /// Whether calls may fail even for a modest request.
    limited: bool,
    /// Whether threads have thread slots.
    slots: bool,
}

impl Model {
    /// An allocator on a system like `setup`, with one heap.
    pub fn new(setup: &Setup) -> Self {
        let mut model = Self::unused(setup);
        model.acquire(setup.cached);
        model
    }

    /// An allocator on a system like `setup`, without a heap.
    pub fn unused(setup: &Setup) -> Self {
        let a = Box::new(Allocator::new(Fake::new(setup.config.clone())));
        a.os.faults.fail_by_chance(setup.fault);
        setup.choices.set(&a.policy);
        if setup.choices.harden {
            a.harden();
        }
        let limited = setup.config.address_limit.is_some()
            || setup.config.reservations.is_some()
            || matches!(setup.choices.limit, Limit::Bytes(_));
        Model {
            a,
            threads: Vec::new(),
            idle: Vec::new(),
            blocks: Vec::new(),
            addresses: BTreeMap::new(),
            bytes: 0,
            ids: 0,
            steps: 0,
            limited,
            slots: setup.slots,
        }
    }

    /// Runs a whole history, and ends with [`Model::finish`].
    pub fn run(setup: &Setup, ops: &[Op]) {
        Self::run_beside(setup, 0, ops);
    }

    /// [`Model::run`] where the process has `idle` threads more.
    pub fn run_beside(setup: &Setup, idle: usize, ops: &[Op]) {
        let mut model = Model::new(setup);
        model.idle.extend((0..idle).filter_map(|_| Owner::new(&model.a, setup.cached, model.slots)));
        for op in ops {
            model.step(*op);
        }
        model.finish();
    }

    /// Runs one operation and the checks after it.
    pub fn step(&mut self, op: Op) {
        self.apply(op);
        self.steps += 1;
        self.validate(if self.steps.is_multiple_of(DEEP) { Depth::Bits } else { Depth::Records });
        if self.steps.is_multiple_of(DEEP)
            || matches!(op, Op::Realloc { .. } | Op::Purge | Op::Tick | Op::Reclaim { .. })
        {
            self.check_clean();
        }
        if matches!(op, Op::Purge | Op::Tick | Op::Reclaim { .. }) {
            self.check_some();
        }
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Acquire { cached } => self.acquire(cached),
            Op::Purge => {
                self.a.purge();
            }
            Op::Advance { milliseconds } => {
                self.a.os.advance(milliseconds.into());
                // The program runs meanwhile in half of all cases.
                self.a.os.run_for(u64::from(milliseconds % 2 * milliseconds) * 1000);
            }
            Op::Tick => {
                self.a.tick();
            }
            Op::SwapOut { share, seed } => {
                // Mostly few pages: each page that is touched again costs two thread switches.
                self.a.os.swap_out((f64::from(share) / 256.0).powi(4), seed.into());
            }
            Op::Reclaim { seed } => {
                self.a.os.reclaim(seed.into());
            }
            Op::Check { block } => {
                if let Some(i) = self.index(block) {
                    self.check_block(&self.blocks[i]);
                }
            }
            Op::Free { heap, block } => {
                if let Some(i) = self.index(block) {
                    self.free(self.freer(heap), i);
                }
            }
            Op::Drain { heap, block, count, step } => self.drain(heap, block, count, step),
            Op::Malloc { heap, .. }
            | Op::Calloc { heap, .. }
            | Op::Aligned { heap, .. }
            | Op::Realloc { heap, .. }
            | Op::Fill { heap, .. }
            | Op::Abandon { heap }
            | Op::DropCaches { heap } => {
                if self.threads.is_empty() {
                    self.acquire(true);
                }
                if !self.threads.is_empty() {
                    let i = usize::from(heap) % self.threads.len();
                    self.apply_to_heap(op, i);
                }
            }
        }
    }

    fn apply_to_heap(&mut self, op: Op, i: usize) {
        match op {
            Op::Malloc { size, .. } => self.malloc(i, size),
            Op::Fill { size, count, .. } => (0..count).for_each(|_| self.malloc(i, size)),
            Op::Calloc { size, .. } => {
                let failed = self.a.os.faults.failed();
                let p = self.call(i, |a, heap| a.calloc(heap, size));
                self.check_zero(p, size);
                self.add(p, size, 16, failed);
            }
            Op::Aligned { size, align, zero, .. } => {
                let failed = self.a.os.faults.failed();
                let p = self.call(i, |a, heap| a.malloc_aligned(heap, size, align, zero));
                if zero {
                    self.check_zero(p, size);
                }
                self.add(p, size, align, failed);
            }
            Op::Realloc { block, size, .. } => {
                if let Some(block) = self.index(block) {
                    self.realloc(i, block, size);
                }
            }
            Op::DropCaches { .. } => self.call(i, |a, heap| a.drop_caches(heap)),
            Op::Abandon { .. } => self.threads.swap_remove(i).abandon(&self.a),
            _ => unreachable!("{op:?} needs no heap"),
        }
    }

    /// Makes a call of thread `i`.
    fn call<R>(&self, i: usize, f: impl FnOnce(&Allocator<Fake>, Mine<'static>) -> R) -> R {
        self.threads[i].with(&self.a, |heap| f(&self.a, heap))
    }

    fn index(&self, block: u16) -> Option<usize> {
        (!self.blocks.is_empty()).then(|| usize::from(block) % self.blocks.len())
    }

    /// The thread that frees; `None`: one without a heap.
    fn freer(&self, heap: u8) -> Option<usize> {
        let no_heap = heap % 8 == 7 || self.threads.is_empty();
        (!no_heap).then(|| usize::from(heap) % self.threads.len())
    }

    /// Makes the first call of a new thread.
    pub fn acquire(&mut self, cached: bool) {
        if self.threads.len() < MOST_HEAPS {
            let failed = self.a.os.faults.failed();
            let Some(thread) = Owner::new(&self.a, cached, self.slots) else {
                assert!(self.limited || self.a.os.faults.failed() > failed, "no heap, and no reason");
                return;
            };
            assert!(self.threads.iter().all(|t| t.heap() != thread.heap()), "one heap for two threads");
            self.threads.push(thread);
        }
    }

    fn malloc(&mut self, thread: usize, size: usize) {
        let failed = self.a.os.faults.failed();
        let p = self.call(thread, |a, heap| slot::malloc(a, heap, size));
        self.add(p, size, 16, failed);
    }

    /// Checks the result of an allocation, and adds the block to the model. `failed`: number of faults before the call.
    fn add(&mut self, p: *mut u8, size: usize, align: usize, failed: u64) {
        if p.is_null() {
            let excused = self.limited || self.a.os.faults.failed() > failed || size > MODEST;
            assert!(excused, "no memory for {size} bytes, and no reason");
            return;
        }
        assert!(p.addr().is_multiple_of(align.max(16)), "{p:p} is not aligned to {align}");
        // SAFETY: the block is live.
        let usable =
            unsafe { self.a.usable_size(Mine::none(), misuse::Call::UsableSize, p) }.expect("a live block is known");
        assert!(usable >= size, "{usable} usable bytes for a request of {size}");
        // SAFETY: as above.
        let quick = unsafe { self.a.quick_size(p) };
        assert!(quick.is_none_or(|quick| quick == usable), "{quick:?} of {usable} usable bytes");
        let before = self.addresses.range(..p.addr() + usable).next_back();
        assert!(before.is_none_or(|(_, &end)| end <= p.addr()), "{p:p} (+ {usable}) overlaps {before:x?}");
        self.addresses.insert(p.addr(), p.addr() + usable);
        self.ids += 1;
        let block = Block { p, usable, id: self.ids };
        // SAFETY: the block is `usable` bytes long.
        unsafe { pattern::write(p, usable, block.id) };
        self.blocks.push(block);
        self.bytes += usable;
        while self.blocks.len() > MOST_BLOCKS || self.bytes > MOST_BYTES {
            self.free(self.freer(0), 0);
        }
    }

    fn check_zero(&self, p: *mut u8, size: usize) {
        if !p.is_null() {
            // SAFETY: the block has `size` bytes, and no other thread uses it.
            let wrong = unsafe { self.a.os.first_nonzero(p, size) };
            assert_eq!(wrong, None, "a zeroed block of {size} bytes at {p:p} is not zero at this offset");
        }
    }

    /// Checks contents and usable size of a live block.
    fn check_block(&self, block: &Block) {
        // SAFETY: the block is live.
        unsafe {
            assert_eq!(
                self.a.usable_size(Mine::none(), misuse::Call::UsableSize, block.p),
                Some(block.usable),
                "{block:x?}: usable size changed"
            );
            let wrong = pattern::first_wrong(block.p, block.usable, block.usable, block.id);
            assert_eq!(wrong, None, "{block:x?}: contents changed at this offset");
        }
    }

    /// Checks a few blocks; each block is checked anyway when it is freed.
    fn check_some(&self) {
        let step = self.blocks.len() / SOME + 1;
        self.blocks.iter().step_by(step).for_each(|block| self.check_block(block));
    }

    fn forget(&mut self, i: usize) -> Block {
        let block = self.blocks.swap_remove(i);
        self.addresses.remove(&block.p.addr());
        self.bytes -= block.usable;
        block
    }

    fn free(&mut self, thread: Option<usize>, i: usize) {
        self.check_block(&self.blocks[i]);
        let block = self.forget(i);
        let known = match thread {
            // SAFETY: the block was live, and the heap is lent by its thread.
            Some(thread) => self.call(thread, |a, heap| unsafe { slot::free(a, heap, block.p) }),
            // SAFETY: the block was live.
            None => unsafe { self.a.free(Mine::none(), block.p) },
        };
        assert_eq!(known, Ok(()), "{block:x?} is foreign");
    }

    fn drain(&mut self, heap: u8, block: u16, count: u16, step: u8) {
        let mut i = self.index(block).unwrap_or(0);
        for _ in 0..count {
            if self.blocks.is_empty() {
                break;
            }
            i %= self.blocks.len();
            self.free(self.freer(heap), i);
            i += usize::from(step);
        }
    }

    fn realloc(&mut self, thread: usize, i: usize, size: usize) {
        let failed = self.a.os.faults.failed();
        let old = self.blocks[i];
        self.check_block(&old);
        // SAFETY: the block is live, and the heap is lent by its thread.
        let p = self.call(thread, |a, heap| unsafe { a.realloc(heap, old.p, old.usable, size) });
        if p.is_null() {
            // The block must be unchanged.
            self.check_block(&old);
            let excused = self.limited || self.a.os.faults.failed() > failed || size > MODEST;
            assert!(excused, "no memory for {size} bytes, and no reason");
            return;
        }
        assert!(size != old.usable || p == old.p, "realloc to the usable size moved the block");
        self.forget(i);
        let kept = old.usable.min(size);
        // SAFETY: the block has at least `size` bytes.
        let wrong = unsafe { pattern::first_wrong(p, kept, old.usable, old.id) };
        assert_eq!(wrong, None, "realloc of {old:x?} to {size} bytes at {p:p} changed the contents");
        self.add(p, size, 16, failed);
    }

    /// Checks the allocator's structures against each other and against the model.
    pub fn validate(&self, depth: Depth) -> Census {
        // SAFETY: no other thread uses the allocator.
        let census = match unsafe { self.a.validate(depth) } {
            Ok(census) => census,
            Err(e) => panic!("invalid: {} (at {:#x})", e.what, e.at),
        };
        let live = census.small + census.large + census.huge;
        assert_eq!(live, self.blocks.len(), "live blocks: {census:?}");
        self.check_figures(&census);
        if depth == Depth::Bits {
            self.check_books(&census);
        }
        census
    }

    /// Checks that the published figures agree with the structures.
    fn check_figures(&self, census: &Census) {
        let f = self.a.figures();
        assert_eq!((f.live_blocks, f.live), (self.blocks.len() as u64, self.bytes as u64), "{f:?} {census:?}");
        assert_eq!(f.cached_blocks, (census.cached + census.cached_large) as u64, "{f:?}");
        assert_eq!(f.large_blocks, census.large as u64, "{f:?}");
        assert_eq!((f.huge_blocks, f.heaps), (census.huge as u64, census.heaps as u64), "{f:?}");
        let chunks = [f.clean, f.dirty + f.lazy, f.slabs].map(|bytes| bytes as usize / neap_core::CHUNK);
        let dirty = census.free_chunks[1] + census.dropped_chunks;
        assert_eq!(chunks, [census.free_chunks[0], dirty, census.slabs + census.reentrant_slabs], "{f:?}");
        // The excess over slabs, live large blocks and huge blocks is in caches of large blocks.
        let cached_large = f.live + f.cached + f.slab_free - (f.slabs + f.large + f.huge);
        let least = census.cached_large * self.a.page_size();
        assert!((cached_large == 0) == (census.cached_large == 0) && cached_large >= least as u64, "{f:?} {census:?}");
    }

    /// Checks that the census by size agrees with the structures.
    fn check_books(&self, census: &Census) {
        let books = calls::books(&self.a);
        let f = self.a.figures();
        let dirty: u64 = books.dirty.iter().map(|count| count.bytes).sum();
        assert_eq!([books.clean.bytes, dirty], [f.clean, f.dirty + f.lazy], "free ranges");
        let blocks = books.blocks.iter().zip(neap_core::class::SIZE).map(|(&count, size)| count * u64::from(size));
        if !self.a.policy.harden() {
            // In a hardened allocator, blocks that are guards count as used in slabs, but not as live.
            assert_eq!(blocks.sum::<u64>() + books.tails, f.slab_free, "free blocks of slabs");
            let (blocks, _) = self.a.live();
            assert_eq!(blocks, census.small + census.large + census.cached + census.remote, "{census:?}");
        }
    }

    /// Checks that all memory that counts as clean is zero.
    pub fn check_clean(&self) {
        // SAFETY: no other thread uses the allocator; clean memory is committed.
        unsafe {
            self.a.for_each_clean(|p, len| {
                let wrong = self.a.os.first_nonzero(p, len);
                assert_eq!(wrong, None, "{len} clean bytes at {p:p} are not zero at this offset");
            });
        }
    }

    /// Lets a long time pass, and ticks until nothing waits. Panics if that does not end.
    pub fn settle(&mut self) {
        self.a.os.advance(LONG);
        for _ in 0..MOST_TICKS {
            let Some(wait) = self.a.tick() else { return };
            self.a.os.advance(wait.into());
        }
        panic!("something still waits after {MOST_TICKS} ticks");
    }

    /// Panics if an OS page that lies wholly in clean memory holds memory.
    pub fn check_absent(&self) {
        let page = self.a.os.page_size();
        // SAFETY: no other thread uses the allocator.
        unsafe {
            self.a.for_each_clean(|p, len| {
                let (from, to) = (p.addr().next_multiple_of(page), (p.addr() + len) / page * page);
                let held = self.a.os.first_held(from, to);
                assert_eq!(held, None, "clean memory of {len} bytes at {p:p} holds memory at this address");
            });
        }
    }

    /// The state after the history as text: calls of the system, place and size of the newest block, figures, and
    /// counts by size.
    pub fn record(&self) -> String {
        let books = calls::books(&self.a);
        let log = self.a.os.log();
        let newest = self.blocks.last().map(|block| (log.place(block.p.addr()), block.usable));
        let calls = log.sum();
        drop(log);
        format!("{calls:?} {newest:?} {:?} {books:?}", self.a.figures())
    }

    /// Frees everything, ends all threads, and checks that all memory is free again.
    pub fn finish(mut self) {
        self.a.os.faults.clear();
        let mut heap = 0_u8;
        while !self.blocks.is_empty() {
            heap = heap.wrapping_add(1);
            self.free(self.freer(heap), self.blocks.len() / 2);
        }
        let idle = std::mem::take(&mut self.idle);
        for thread in std::mem::take(&mut self.threads).into_iter().chain(idle) {
            thread.abandon(&self.a);
        }
        self.check_empty();
        self.a.purge();
        self.check_empty();
        self.check_clean();
    }

    /// Panics unless all chunks are free, apart from heaps and the table of huge blocks.
    fn check_empty(&self) {
        let census = self.validate(Depth::Bits);
        assert_eq!((census.slabs, census.cached, census.remote, census.huge), (0, 0, 0, 0), "{census:?}");
        assert_eq!((census.large, census.deferred), (0, 0), "{census:?}");
        let (dirty, clean) = self.a.free_bytes();
        assert_eq!([clean / CHUNK, dirty / CHUNK], census.free_chunks);
    }
}
