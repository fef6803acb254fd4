//! Real threads on one allocator: blocks change hands, threads end while others free into their heaps, and every
//! block keeps its contents.

use neap_core::heap::Mine;
use neap_core::policy::Purge;
use neap_core::valid::Depth;
use neap_core::{Allocator, misuse};
use neap_coretest::slot::GONE;
use neap_coretest::{Call, Config, Fake, Owner, pattern, slot};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Barrier, Mutex};
use std::time::Duration;

type Shared = Allocator<Fake>;

static IDS: AtomicU64 = AtomicU64::new(1);

/// A live block on its way between threads.
#[derive(Clone, Copy, Debug)]
struct Block {
    p: *mut u8,
    usable: usize,
    id: u64,
}

// SAFETY: the thread that holds the value owns the block.
unsafe impl Send for Block {}

/// A thread: its heap and its blocks.
struct Thread<'a> {
    a: &'a Shared,
    mail: &'a Mutex<Vec<Block>>,
    /// `None` at the thread's end: destructors still free then.
    own: Option<Owner>,
    blocks: Vec<Block>,
    random: u64,
}

impl Thread<'_> {
    fn next(&mut self) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random as usize >> 8
    }

    /// A call with the thread's heap.
    fn call<R>(&self, f: impl FnOnce(&Shared, Mine<'static>) -> R) -> R {
        self.own.as_ref().expect("a heap").with(self.a, |heap| f(self.a, heap))
    }

    fn malloc(&mut self) {
        let n = self.next();
        let size = match n % 64 {
            0 => n % 2_000_000,
            1..4 => n % 100_000,
            4..16 => n % 8192,
            _ => n % 300,
        };
        let zero = n & 64 != 0;
        let p = self.call(|a, heap| {
            if zero {
                return a.calloc(heap, size);
            }
            slot::malloc(a, heap, size)
        });
        // SAFETY: the block is new.
        unsafe {
            assert!(!p.is_null(), "no memory for {size} bytes");
            if zero {
                assert_eq!(self.a.os.first_nonzero(p, size), None, "calloc of {size} bytes at {p:p}");
            }
            let usable = self.a.usable_size(Mine::none(), misuse::Call::UsableSize, p).expect("known");
            let id = IDS.fetch_add(1, Ordering::Relaxed);
            pattern::write(p, usable, id);
            self.blocks.push(Block { p, usable, id });
        }
    }

    fn check(&self, b: Block) {
        // SAFETY: the block is this thread's.
        let wrong = unsafe { pattern::first_wrong(b.p, b.usable, b.usable, b.id) };
        assert_eq!(wrong, None, "{b:x?}: contents changed");
    }

    fn free(&mut self) {
        let Some(b) = self.blocks.pop() else { return };
        self.check(b);
        let known = match self.own {
            // SAFETY: the block is this thread's, and the heap is lent by it.
            Some(_) => self.call(|a, heap| unsafe { slot::free(a, heap, b.p) }),
            // SAFETY: the block is this thread's, and the heap is a name.
            None => unsafe { self.a.free(Mine::of(GONE.heap()), b.p) },
        };
        assert_eq!(known, Ok(()));
    }

    fn realloc(&mut self) {
        let Some(b) = self.blocks.pop() else { return };
        self.check(b);
        let size = b.usable / 2 + self.next() % (b.usable + 1);
        // SAFETY: the block is this thread's, and the heap is lent by it.
        let p = self.call(|a, heap| unsafe { a.realloc(heap, b.p, b.usable, size) });
        // SAFETY: the block is this thread's.
        unsafe {
            assert!(!p.is_null(), "no memory for {size} bytes");
            assert_eq!(pattern::first_wrong(p, b.usable.min(size), b.usable, b.id), None, "{b:x?} realloc {size}");
            let usable = self.a.usable_size(Mine::none(), misuse::Call::UsableSize, p).expect("known");
            pattern::write(p, usable, b.id);
            self.blocks.push(Block { p, usable, id: b.id });
        }
    }

    /// Exchanges some blocks with other threads.
    fn exchange(&mut self) {
        let n = self.next() % 64;
        let keep = self.blocks.len().saturating_sub(n);
        let mut sent = self.blocks.split_off(keep);
        let mut mail = self.mail.lock().unwrap();
        let from = mail.len().saturating_sub(n);
        let got = mail.split_off(from);
        // New blocks go to the far end, so that they are old when they are fetched.
        sent.append(&mut mail);
        *mail = sent;
        drop(mail);
        self.blocks.extend(got);
    }

    fn step(&mut self) {
        match self.next() % 32 {
            0..14 if self.blocks.len() < 2000 => self.malloc(),
            14 => self.realloc(),
            15 | 16 => self.exchange(),
            17 if self.next().is_multiple_of(8) => {
                // The thread ends, frees a little more, and a new one takes its place.
                self.own.take().expect("a heap").abandon(self.a);
                self.free();
                let (cached, has_slot) = (!self.next().is_multiple_of(4), !self.next().is_multiple_of(8));
                self.own = Some(Owner::new(self.a, cached, has_slot).expect("memory for a heap"));
            }
            18 if self.next().is_multiple_of(256) => {
                self.a.purge();
            }
            _ => self.free(),
        }
    }

    fn end(mut self) {
        while !self.blocks.is_empty() {
            if self.next().is_multiple_of(3) {
                self.mail.lock().unwrap().push(self.blocks.pop().unwrap());
            } else {
                self.free();
            }
        }
        self.own.take().expect("a heap").abandon(self.a);
    }
}

fn thread<'a>(a: &'a Shared, mail: &'a Mutex<Vec<Block>>, seed: u64) -> Thread<'a> {
    let own = Owner::new(a, !seed.is_multiple_of(4), true);
    assert!(own.is_some());
    Thread { a, mail, own, blocks: Vec::new(), random: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1 }
}

/// Frees what is left in the mail and checks that nothing is.
fn finish(a: &Shared, mail: &Mutex<Vec<Block>>) {
    let mut last = thread(a, mail, 1);
    last.blocks = std::mem::take(&mut *mail.lock().unwrap());
    while !last.blocks.is_empty() {
        last.free();
    }
    last.end();
    // SAFETY: all threads have ended.
    let census = unsafe { a.validate(Depth::Bits) }.expect("valid");
    assert_eq!((census.slabs, census.small, census.large, census.cached, census.remote), (0, 0, 0, 0, 0), "{census:?}");
}

fn stress(config: Config, threads: u64, steps: usize) {
    let a = Box::new(Allocator::new(Fake::new(config)));
    let mail = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for seed in 1..=threads {
            let (a, mail) = (&*a, &mail);
            scope.spawn(move || {
                let mut t = thread(a, mail, seed);
                (0..steps).for_each(|_| t.step());
                t.end();
            });
        }
    });
    finish(&a, &mail);
}

/// Counts a thread as working until it ends or panics, so that no thread waits for it for ever.
struct AtWork<'a>(&'a AtomicU64);

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Goes through all heaps over and over, and gives back what waits or all that is free, until no thread is at work.
fn make_handshakes(a: &Shared, working: &AtomicU64, start: &Barrier) {
    start.wait();
    let mut round = 0_u64;
    while working.load(Ordering::Relaxed) > 0 {
        round += 1;
        if round.is_multiple_of(64) {
            a.purge();
        } else {
            a.os.advance(100);
            a.tick();
        }
    }
}

/// Runs threads that use their heaps most of the time, and rest now and then, beside one that makes handshakes with
/// them.
fn beside_handshakes(config: Config, purge: Purge, steps: usize) {
    let a = Box::new(Allocator::new(Fake::new(config)));
    a.policy.set_purge(purge);
    let (mail, working, start) = (Mutex::new(Vec::new()), AtomicU64::new(3), Barrier::new(4));
    std::thread::scope(|scope| {
        let (a, mail, working, start) = (&*a, &mail, &working, &start);
        for seed in 1..=3 {
            scope.spawn(move || {
                let mut t = thread(a, mail, seed);
                let _working = AtWork(working);
                start.wait();
                for step in 0..steps {
                    t.step();
                    if step % 1024 == 0 {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                }
                t.end();
            });
        }
        scope.spawn(|| make_handshakes(a, working, start));
    });
    assert!(a.os.faults.count(Call::Barrier) > 0, "no handshake was made");
    finish(&a, &mail);
}

/// Catches a handshake with a thread that is using or giving up its heap, a heap that is returned too late, and memory
/// on its way to the system that is handed out.
#[test]
fn blocks_survive_handshakes() {
    beside_handshakes(Config { purger: true, ..Config::default() }, Purge::Decay, 60_000);
    beside_handshakes(Config { page_size: 16384, purger: true, ..Config::default() }, Purge::Lazy, 30_000);
}

/// Catches the same where the threads that free memory are the purgers, and where freed memory goes at once.
#[test]
fn blocks_survive_inline_and_eager_purges() {
    beside_handshakes(Config::default(), Purge::Decay, 30_000);
    beside_handshakes(Config { page_size: 65536, ..Config::default() }, Purge::Eager, 15_000);
}

/// Acts as system and purger: swaps pages out, reclaims what was purged lazily, advances the clock and ticks, until no
/// thread is at work.
fn disturb(a: &Shared, working: &AtomicU64) {
    let mut seed = 0;
    while working.load(Ordering::Relaxed) > 0 {
        seed += 1;
        a.os.swap_out(0.02, seed);
        a.os.reclaim(seed);
        a.os.advance(100);
        a.tick();
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Catches a purge or a calloc that fails while other threads use the memory and pages are swapped out.
#[test]
fn blocks_survive_the_system() {
    for page_size in [4096, 65536] {
        let a = Box::new(Allocator::new(Fake::new(Config { page_size, purger: true, ..Config::default() })));
        let (mail, working) = (Mutex::new(Vec::new()), AtomicU64::new(3));
        std::thread::scope(|scope| {
            let (a, mail, working) = (&*a, &mail, &working);
            for seed in 1..=3 {
                scope.spawn(move || {
                    let mut t = thread(a, mail, seed);
                    let _working = AtWork(working);
                    (0..40_000).for_each(|_| t.step());
                    t.end();
                });
            }
            scope.spawn(|| disturb(a, working));
        });
        finish(&a, &mail);
    }
}

/// Catches a race between owner, remote frees, abandon and adoption.
#[test]
fn blocks_change_hands() {
    stress(Config::default(), 4, 300_000);
}

/// Catches the same without a page map, on OS pages of 64 KiB, where all calls take the slow paths.
#[test]
fn blocks_change_hands_without_page_map() {
    stress(Config { page_size: 65536, missing: vec![Call::ReserveZeros], ..Config::default() }, 3, 150_000);
}

/// Catches a race at the start or end of a thread: many short ones, which leave their blocks to others.
#[test]
fn short_threads() {
    let a = Box::new(Allocator::new(Fake::new(Config::default())));
    let mail = Mutex::new(Vec::new());
    for round in 0..400 {
        std::thread::scope(|scope| {
            for i in 0..4 {
                let (a, mail) = (&*a, &mail);
                scope.spawn(move || {
                    let mut t = thread(a, mail, round * 4 + i + 1);
                    (0..100).for_each(|_| t.step());
                    t.end();
                });
            }
        });
        // SAFETY: all threads have ended.
        let census = unsafe { a.validate(Depth::Bits) }.expect("valid");
        assert!(census.heaps <= 4, "heaps of ended threads are adopted: {census:?}");
    }
    finish(&a, &mail);
}
