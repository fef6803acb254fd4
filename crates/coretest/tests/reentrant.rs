//! Reentrant calls: those of a handler that interrupts another call of its thread. Here a handler runs before and after
//! each system call of the core, with whatever locks are held; `tests/signals.rs` has real signals, which come
//! anywhere. A reentrant call that takes a held lock would make these tests hang.

use neap_core::heap::Mine;
use neap_core::helper::Helper;
use neap_core::misuse::Call as Asker;
use neap_core::os::{Memory, Moved, Run, Touched};
use neap_core::sync::Threads;
use neap_core::valid::{Census, Depth};
use neap_core::{Allocator, CHUNK, Os, class};
use neap_coretest::fake::{Call, Config, Fake};
use neap_coretest::pattern;
use neap_coretest::slot::{self, Owner};
use std::cell::{Cell, RefCell};
use std::sync::atomic::AtomicU32;

/// A fake system that runs a handler around each call.
struct Interrupted {
    fake: Fake,
}

type Neap = Allocator<Interrupted>;

thread_local! {
    /// The program of this thread whose handler may run.
    static HANDLER: Cell<Option<*const Program>> = const { Cell::new(None) };
    /// Number of nested handlers that this thread is in.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Limit on nested handlers.
const DEEPEST: u32 = 2;

impl Interrupted {
    fn interrupt(&self) {
        let (handler, depth) = (HANDLER.get(), DEPTH.get());
        if let Some(program) = handler
            && depth < DEEPEST
        {
            DEPTH.set(depth + 1);
            // SAFETY: the program outlives its handler, see `Program::interrupted`.
            unsafe { (*program).handler() };
            DEPTH.set(depth);
        }
    }

    fn around<R>(&self, f: impl FnOnce(&Fake) -> R) -> R {
        self.interrupt();
        let result = f(&self.fake);
        self.interrupt();
        result
    }
}

impl Threads for Interrupted {
    fn start_helper(&self) -> bool {
        self.around(Fake::start_helper)
    }
    fn futex_wait(&self, word: &AtomicU32, value: u32) {
        self.around(|fake| fake.futex_wait(word, value));
    }
    fn futex_wait_for(&self, word: &AtomicU32, value: u32, milliseconds: u32) {
        self.around(|fake| fake.futex_wait_for(word, value, milliseconds));
    }
    fn futex_wake(&self, word: *const AtomicU32) {
        self.around(|fake| fake.futex_wake(word));
    }
}

// SAFETY: each call is the fake's.
unsafe impl Os for Interrupted {
    fn page_size(&self) -> usize {
        self.fake.page_size()
    }
    fn reserve(&self, at: usize, len: usize) -> Option<*mut u8> {
        self.around(|fake| fake.reserve(at, len))
    }
    fn reserve_zeros(&self, len: usize) -> Option<*mut u8> {
        self.around(|fake| fake.reserve_zeros(len))
    }
    unsafe fn commit(&self, p: *mut u8, len: usize) -> bool {
        // SAFETY: as the caller promises, here and below.
        self.around(|fake| unsafe { fake.commit(p, len) })
    }
    unsafe fn guard(&self, p: *mut u8, len: usize) -> bool {
        // SAFETY: as above.
        self.around(|fake| unsafe { fake.guard(p, len) })
    }
    fn map(&self, len: usize, align: usize) -> Option<*mut u8> {
        self.around(|fake| fake.map(len, align))
    }
    unsafe fn unmap(&self, p: *mut u8, len: usize) -> bool {
        // SAFETY: as above.
        self.around(|fake| unsafe { fake.unmap(p, len) })
    }
    unsafe fn remap(&self, p: *mut u8, old: usize, new: usize) -> Option<*mut u8> {
        // SAFETY: as above.
        self.around(|fake| unsafe { fake.remap(p, old, new) })
    }
    unsafe fn move_pages(&self, from: *mut u8, to: *mut u8, len: usize) -> Moved {
        // SAFETY: as above.
        self.around(|fake| unsafe { fake.move_pages(from, to, len) })
    }
    unsafe fn renew(&self, p: *mut u8, len: usize) -> Moved {
        // SAFETY: as above.
        self.around(|fake| unsafe { fake.renew(p, len) })
    }
    unsafe fn purge(&self, p: *mut u8, len: usize) -> bool {
        // SAFETY: as above.
        self.around(|fake| unsafe { fake.purge(p, len) })
    }
    unsafe fn purge_runs(&self, runs: &[Run]) -> usize {
        // SAFETY: as above.
        self.around(|fake| unsafe { fake.purge_runs(runs) })
    }
    unsafe fn purge_lazily(&self, p: *mut u8, len: usize) -> bool {
        // SAFETY: as above.
        self.around(|fake| unsafe { fake.purge_lazily(p, len) })
    }
    unsafe fn populate(&self, p: *mut u8, len: usize) -> bool {
        // SAFETY: as above.
        self.around(|fake| unsafe { fake.populate(p, len) })
    }
    unsafe fn allow_huge(&self, p: *mut u8, len: usize) -> bool {
        // SAFETY: as above.
        self.around(|fake| unsafe { fake.allow_huge(p, len) })
    }
    unsafe fn touched(&self, p: *mut u8, len: usize, runs: &mut [Run]) -> Option<Touched> {
        // SAFETY: as above.
        self.around(|fake| unsafe { fake.touched(p, len, runs) })
    }
    fn prepare_barrier(&self) -> bool {
        self.around(Fake::prepare_barrier)
    }
    fn barrier(&self) -> bool {
        self.around(Fake::barrier)
    }
    fn clock(&self) -> u64 {
        self.around(Fake::clock)
    }
    fn run_time(&self) -> Option<u64> {
        self.around(Fake::run_time)
    }

    fn memory(&self) -> Option<Memory> {
        self.around(Fake::memory)
    }
    fn helper(&self) -> &Helper {
        self.fake.helper()
    }
    fn address_limit(&self) -> Option<usize> {
        self.around(Fake::address_limit)
    }
    fn random(&self) -> u64 {
        self.around(Fake::random)
    }
    fn thread_id(&self) -> u32 {
        self.fake.thread_id()
    }
    fn die(&self, line: &[u8], block: *const u8) -> ! {
        self.fake.die(line, block)
    }
}

/// A live block.
struct Block {
    p: *mut u8,
    usable: usize,
    id: u64,
}

/// Limits on the live blocks, and on their bytes.
const MOST_BLOCKS: usize = 3000;
const MOST_BYTES: usize = 256 << 20;

/// A program of one thread, and its handler.
struct Program {
    a: Box<Neap>,
    owner: Option<Owner>,
    blocks: RefCell<Vec<Block>>,
    seed: Cell<u64>,
    ids: Cell<u64>,
    handled: Cell<u64>,
    /// Whether calls may get no memory.
    limited: bool,
}

impl Program {
    fn new(config: Config, faults: f64) -> Self {
        let limited = faults > 0.0 || config.address_limit.is_some() || !config.missing.is_empty();
        let seed = config.seed;
        let a = Box::new(Allocator::new(Interrupted { fake: Fake::new(config) }));
        let program = Program {
            a,
            owner: None,
            blocks: RefCell::default(),
            seed: Cell::new(seed),
            ids: Cell::new(0),
            handled: Cell::new(0),
            limited,
        };
        program.a.os.fake.faults.fail_by_chance(faults);
        program
    }

    fn random(&self) -> u64 {
        self.seed.set(self.seed.get().wrapping_add(0x9E37_79B9_7F4A_7C15));
        let z = self.seed.get();
        let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A size: mostly small, sometimes up to 8 MiB, rarely more than an arena of a limited system has.
    fn size(&self) -> usize {
        let r = self.random();
        let n = (r >> 16) as usize;
        match r % 32 {
            0..20 => n % 1200,
            20..26 => n % (class::MAX_SMALL + 1),
            26..30 => n % (10 * CHUNK),
            30 => n % (8 << 20),
            _ => n % (64 << 20),
        }
    }

    /// Runs `f` as a call that handlers interrupt.
    fn interrupted<R>(&self, f: impl FnOnce() -> R) -> R {
        HANDLER.set(Some(self));
        let result = f();
        HANDLER.set(None);
        result
    }

    /// A handler: some reentrant calls.
    fn handler(&self) {
        self.handled.set(self.handled.get() + 1);
        for _ in 0..self.random() % 4 {
            let r = self.random();
            match r % 8 {
                0..4 => {
                    let (size, align) = (self.size(), 1 << ((r >> 8) % if r >> 20 & 7 == 0 { 20 } else { 5 }));
                    let zero = r >> 30 & 1 != 0;
                    let p = self.a.malloc_reentrant(size, align, zero);
                    assert!(p.is_null() || p.addr().is_multiple_of(align), "{p:p} is not aligned to {align}");
                    if zero && !p.is_null() {
                        // SAFETY: the block is new, and is that long.
                        let bytes = unsafe { core::slice::from_raw_parts(p, size) };
                        assert!(bytes.iter().all(|&b| b == 0), "{p:p} is not zero");
                    }
                    self.add(p, size);
                }
                4..6 => self.with_block(|block| {
                    // SAFETY: the block is live.
                    assert_eq!(unsafe { self.a.free_reentrant(block.p) }, Ok(()));
                    None
                }),
                _ => {
                    let size = self.size();
                    self.with_block(|block| {
                        // SAFETY: the block is live.
                        self.resized(block, size, |p, old| unsafe { self.a.realloc_reentrant(p, old, size) })
                    });
                }
            }
        }
    }

    /// Adds a new block.
    fn add(&self, p: *mut u8, size: usize) {
        if p.is_null() {
            assert!(self.limited, "no memory for {size} bytes");
            return;
        }
        // SAFETY: the block is live.
        let usable = unsafe { self.a.usable_size_reentrant(Asker::UsableSize, p) }.expect("a live block is known");
        assert!(usable >= size, "{usable} usable bytes for a request of {size}");
        self.ids.set(self.ids.get() + 1);
        let block = Block { p, usable, id: self.ids.get() };
        // SAFETY: the block is so long.
        unsafe { pattern::write(p, usable, block.id) };
        self.blocks.borrow_mut().push(block);
    }

    /// Runs `f` with a block that no other call uses meanwhile, and keeps the block that it returns.
    fn with_block(&self, f: impl FnOnce(Block) -> Option<Block>) {
        let block = {
            let mut blocks = self.blocks.borrow_mut();
            let count = blocks.len();
            if count == 0 {
                return;
            }
            blocks.swap_remove(self.random() as usize % count)
        };
        // SAFETY: the block is live.
        let wrong = unsafe { pattern::first_wrong(block.p, block.usable, block.usable, block.id) };
        assert_eq!(wrong, None, "{:p}: contents changed at this offset", block.p);
        if let Some(block) = f(block) {
            self.blocks.borrow_mut().push(block);
        }
    }

    /// Checks the result of a realloc, which keeps the contents. `None` if the block moved; the new one was added.
    fn resized(&self, block: Block, size: usize, f: impl FnOnce(*mut u8, usize) -> *mut u8) -> Option<Block> {
        let p = f(block.p, block.usable);
        if p.is_null() {
            assert!(self.limited, "no memory for {size} bytes");
            return Some(block);
        }
        let kept = block.usable.min(size);
        // SAFETY: the block is at least that long.
        let wrong = unsafe { pattern::first_wrong(p, kept, block.usable, block.id) };
        assert_eq!(wrong, None, "realloc to {size} bytes at {p:p} changed the contents");
        self.add(p, size);
        None
    }

    fn call<R>(&self, f: impl FnOnce(&Neap, Mine<'static>) -> R) -> R {
        let owner = self.owner.as_ref().expect("the thread has a heap");
        self.interrupted(|| owner.with(&self.a, |heap| f(&self.a, heap)))
    }

    /// One call of the program.
    fn step(&self) {
        let r = self.random();
        let size = self.size();
        // SAFETY: the heap is lent by its thread, and blocks are live, here and below.
        unsafe {
            match r % 16 {
                0..6 => {
                    let p = self.call(|a, heap| slot::malloc(a, heap, size));
                    self.add(p, size);
                }
                6 => {
                    let p = self.call(|a, heap| a.calloc(heap, size));
                    self.add(p, size);
                }
                7 => {
                    let p = self.call(|a, heap| a.malloc_aligned(heap, size, 1 << ((r >> 8) % 18), false));
                    self.add(p, size);
                }
                8..13 => self.with_block(|block| {
                    let known = self.call(|a, heap| slot::free(a, heap, block.p));
                    assert_eq!(known, Ok(()));
                    None
                }),
                13 | 14 => self.with_block(|block| {
                    self.resized(block, size, |p, old| self.call(|a, heap| a.realloc(heap, p, old, size)))
                }),
                _ => match r >> 8 & 7 {
                    0 => {
                        self.call(|a, heap| a.purge_with(heap));
                    }
                    1 => self.call(|a, heap| a.drop_caches(heap)),
                    2 => {
                        self.call(|a, _| a.figures());
                    }
                    _ => {
                        self.a.os.fake.advance(300);
                        self.interrupted(|| self.a.tick());
                    }
                },
            }
        }
        while self.blocks.borrow().len() > MOST_BLOCKS || self.bytes() > MOST_BYTES {
            self.with_block(|block| {
                // Without handlers, which would allocate more: without a reentrant reserve, each free makes a system
                // call.
                let owner = self.owner.as_ref().expect("the thread has a heap");
                // SAFETY: as above.
                assert_eq!(owner.with(&self.a, |heap| unsafe { self.a.free(heap, block.p) }), Ok(()));
                None
            });
        }
    }

    fn bytes(&self) -> usize {
        self.blocks.borrow().iter().map(|b| b.usable).sum()
    }

    /// Checks the allocator's structures, and compares them with the live blocks.
    fn validate(&self, depth: Depth) -> Census {
        // Handles notes that were left under locks, which fast paths do not read.
        self.a.settle();
        // SAFETY: no other thread uses the allocator.
        let census = match unsafe { self.a.validate(depth) } {
            Ok(census) => census,
            Err(e) => panic!("invalid: {} (at {:#x})", e.what, e.at),
        };
        assert_eq!(census.small + census.large + census.huge, self.blocks.borrow().len(), "{census:?}");
        let f = self.a.figures();
        assert_eq!((f.live_blocks as usize, f.live as usize), (self.blocks.borrow().len(), self.bytes()), "{f:?}");
        census
    }

    /// A thread's whole life: first use, calls, its end, each interrupted.
    fn run(mut self, steps: usize) -> u64 {
        while self.owner.is_none() {
            self.owner = self.interrupted(|| Owner::new(&self.a, true, true));
            assert!(self.owner.is_some() || self.limited, "no heap");
        }
        for i in 0..steps {
            self.step();
            self.validate(if i % 32 == 0 { Depth::Bits } else { Depth::Records });
        }
        self.a.os.fake.faults.clear();
        let owner = self.owner.take().expect("the thread has a heap");
        self.interrupted(|| owner.abandon(&self.a));
        while !self.blocks.borrow().is_empty() {
            self.with_block(|block| {
                // SAFETY: the block is live; a thread without a heap frees so.
                assert_eq!(unsafe { self.a.free_reentrant(block.p) }, Ok(()));
                None
            });
        }
        // The next purge finishes what is left.
        self.a.purge();
        let census = self.validate(Depth::Bits);
        let left =
            (census.small, census.large, census.huge, census.deferred, census.cached, census.remote, census.slabs);
        assert_eq!(left, (0, 0, 0, 0, 0, 0, 0), "{census:?}");
        self.handled.get()
    }
}

/// Catches a reentrant call that waits for the call it interrupted, breaks what that call is changing, or is not
/// counted.
#[test]
fn anywhere() {
    for seed in 0..24 {
        let handled = Program::new(Config { seed, purger: seed % 2 == 0, ..Config::default() }, 0.0).run(600);
        assert!(handled > 600, "handlers came {handled} times");
    }
}

/// Catches the same where address space is short (so that the reentrant reserve is soon full, or never exists), where
/// the page map is missing, and where OS pages are longer.
#[test]
fn anywhere_in_small_systems() {
    for seed in 0..16 {
        let missing = [vec![], vec![Call::ReserveZeros], vec![Call::Reserve], vec![Call::Barrier, Call::Touched]];
        let config = Config {
            seed,
            page_size: 4096 << (seed % 3 * 2),
            address_limit: [None, Some(512 << 20), Some(128 << 20)][seed as usize / 4 % 3],
            missing: missing[seed as usize % 4].clone(),
            ..Config::default()
        };
        if config.missing.contains(&Call::Reserve) {
            // There is no arena, and so no heap: only reentrant calls.
            let program = Program::new(config, 0.0);
            (0..200).for_each(|_| program.handler());
            while !program.blocks.borrow().is_empty() {
                program.with_block(|block| {
                    // SAFETY: the block is live.
                    assert_eq!(unsafe { program.a.free_reentrant(block.p) }, Ok(()));
                    None
                });
            }
            continue;
        }
        Program::new(config, 0.0).run(300);
    }
}

/// Catches a reentrant call that ignores the failure of a system call.
#[test]
fn anywhere_with_faults() {
    for seed in 0..24 {
        Program::new(Config { seed, ..Config::default() }, 0.05).run(300);
    }
}

/// Catches a block of the reentrant reserve that is lost or has two owners, where threads make reentrant allocations
/// and free each other's blocks through their caches.
#[test]
fn threads_share_the_reserve() {
    const THREADS: usize = 4;
    const ROUNDS: usize = 3000;
    let a = Allocator::new(Fake::new(Config { purger: true, ..Config::default() }));
    let shared = std::sync::Mutex::new(Vec::<(usize, usize, u64)>::new());
    std::thread::scope(|scope| {
        for t in 0..THREADS {
            let (a, shared) = (&a, &shared);
            scope.spawn(move || {
                let owner = Owner::new(a, true, true).expect("there is memory");
                for i in 0..ROUNDS {
                    let id = (t * ROUNDS + i) as u64;
                    let size = [24, 100, 700, 5000, 40_000, 300_000][i % 6] + t;
                    let p = a.malloc_reentrant(size, 16, false);
                    assert!(!p.is_null());
                    // SAFETY: the block is new and so long; the others are live, and the thread that takes one has it
                    // alone.
                    unsafe {
                        pattern::write(p, size, id);
                        let mut list = shared.lock().unwrap();
                        list.push((p.expose_provenance(), size, id));
                        let n = list.len();
                        let (q, size, id) = if n > 64 { list.swap_remove(i * 7919 % n) } else { continue };
                        drop(list);
                        let q = core::ptr::with_exposed_provenance_mut::<u8>(q);
                        assert_eq!(pattern::first_wrong(q, size, size, id), None, "{q:p}");
                        let known = match i % 3 {
                            0 => a.free_reentrant(q),
                            _ => owner.with(a, |heap| slot::free(a, heap, q)),
                        };
                        assert_eq!(known, Ok(()));
                    }
                }
                owner.abandon(a);
            });
        }
    });
    for (q, ..) in shared.into_inner().unwrap() {
        // SAFETY: the block is live.
        assert_eq!(unsafe { a.free_reentrant(core::ptr::with_exposed_provenance_mut(q)) }, Ok(()));
    }
    a.purge();
    // SAFETY: no other thread uses the allocator.
    let census = unsafe { a.validate(Depth::Bits) }.expect("all is in order");
    assert_eq!((census.small, census.large, census.deferred, census.cached), (0, 0, 0, 0), "{census:?}");
}

/// Catches memory of the reentrant reserve that stays although nothing there is in use, and memory that goes although a
/// block there is.
#[test]
fn the_reserve_goes_back() {
    let a = Allocator::new(Fake::new(Config::default()));
    let owner = Owner::new(&a, true, true).expect("there is memory");
    let blocks: Vec<_> = (0..3000).map(|i| a.malloc_reentrant([100, 3000][i % 2], 16, false)).collect();
    let chunk = |p: *mut u8| p.addr() & !(CHUNK - 1);
    let held = |p: *mut u8| a.os.first_held(chunk(p), chunk(p) + CHUNK).is_some();
    let (kept, freed) = (blocks[0], &blocks[1..]);
    for (i, &p) in blocks.iter().enumerate() {
        // SAFETY: the block is live, and has at least 100 bytes.
        unsafe {
            pattern::write(p, 100, i as u64);
            if i > 0 {
                assert_eq!(a.free_reentrant(p), Ok(()));
            }
        }
    }
    assert!(freed.iter().any(|&p| held(p)));
    a.purge();
    assert!(freed.iter().all(|&p| chunk(p) == chunk(kept) || !held(p)), "slabs without a used block go back");
    // SAFETY: the block is live.
    assert_eq!(unsafe { pattern::first_wrong(kept, 100, 100, 0) }, None);
    // SAFETY: as above.
    assert_eq!(unsafe { a.free_reentrant(kept) }, Ok(()));
    assert!(blocks.iter().all(|_| !a.malloc_reentrant(100, 16, false).is_null()), "they are there to be used again");
    owner.abandon(&a);
}

fn message(f: impl FnOnce() + std::panic::UnwindSafe) -> String {
    let panic = std::panic::catch_unwind(f).expect_err("the process ends");
    panic.downcast_ref::<String>().expect("a line").clone()
}

/// Catches a misuse that a reentrant free does not detect, or reports under another name.
#[test]
fn mistakes_are_named() {
    let expected: [(&str, usize, usize); 4] = [
        ("double free of", 100, 0),
        ("double free of", 200_000, 0),
        ("which is not the start of a block", 100, 8),
        ("which is not the start of a block", 200_000, 4096),
    ];
    for (text, size, offset) in expected {
        for reentrant in [false, true] {
            let line = message(move || {
                let a = Allocator::new(Fake::new(Config::default()));
                let owner = Owner::new(&a, true, false).expect("there is memory");
                // SAFETY: the mistakes are what is tested.
                unsafe {
                    let p = if reentrant {
                        a.malloc_reentrant(size, 16, false)
                    } else {
                        owner.with(&a, |heap| a.malloc(heap, size))
                    };
                    if offset == 0 {
                        a.free_reentrant(p).expect("the block is live");
                    }
                    let _ = a.free_reentrant(p.add(offset));
                }
            });
            assert!(line.starts_with("neap: ") && line.contains(text), "{line} ({size} bytes, reentrant: {reentrant})");
        }
    }
}
