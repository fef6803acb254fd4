//! Recorded histories: for the same calls the allocator does exactly what it did when they were recorded. It makes the
//! same system calls in the same order, hands out the same blocks and shows the same figures.
//!
//! A change of names, layers or speed only leaves `records.txt` unchanged. A change of what the allocator does changes
//! lines of it; `NEAP_RECORD=1 cargo test -p neap-coretest --test records` writes the file again, and the difference is
//! part of the change's review.

use neap_core::policy::Purge;
use neap_core::{Allocator, misuse};
use neap_coretest::history::OP_BYTES;
use neap_coretest::{Config, Fake, Model, Op, Owner, Setup, slot};
use std::collections::VecDeque;
use std::fmt::Write;
use std::path::Path;

/// Number of histories; plain systems come first, then any systems.
const HISTORIES: u64 = 40;
/// Number of histories of zeroed blocks, which come last.
const ZEROED: u64 = 6;
/// Operations of each.
const OPERATIONS: usize = 320;
/// Operations of a line.
const LINE: usize = 32;
/// The hash FNV-1a.
const FNV: u64 = 0xCBF2_9CE4_8422_2325;
const FNV_PRIME: u64 = 0x0100_0000_01B3;

/// The numbers of splitmix64.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> [u8; OP_BYTES] {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)).to_le_bytes()
    }
}

/// The system of a history: first plain systems, one for each size of OS pages and policy; then any.
fn setup(number: u64, numbers: &mut Numbers) -> Setup {
    let plain = |page_size, purge, purger| {
        let mut setup = Setup { config: Config { page_size, purger, ..Config::default() }, ..Setup::default() };
        setup.choices.purge = purge;
        setup
    };
    let mut setup = match number {
        0 => plain(4096, Purge::Decay, true),
        1 => plain(4096, Purge::Decay, false),
        2 => plain(16384, Purge::Decay, true),
        3 => plain(65536, Purge::Decay, true),
        4 => plain(4096, Purge::Eager, true),
        5 => plain(4096, Purge::Lazy, true),
        6 => plain(4096, Purge::Never, false),
        _ => Setup::decode(numbers.next()),
    };
    // So that the arenas of two histories lie at different places.
    setup.config.seed = number + 1;
    setup
}

/// One phase of a program, as operations.
fn phase(n: [u8; OP_BYTES], ops: &mut Vec<Op>) {
    let [kind, heap, a, b, c, d, e, f] = n;
    let count = u16::from(c) * 4;
    let size = match a % 4 {
        0 => usize::from(b) + 1,
        1 => usize::from(b) * 16 + 1,
        2 => usize::from(b) * 256 + usize::from(d),
        _ => (usize::from(b) + 8) << 12,
    };
    let block = u16::from_le_bytes([d, e]);
    let idle = |ops: &mut Vec<Op>, ticks: u8| {
        ops.extend((0..ticks).flat_map(|_| [Op::Advance { milliseconds: 51 }, Op::Tick]));
    };
    match kind % 10 {
        // Many blocks of a size, and most of them freed.
        0 | 1 => {
            let size = size.min(32 << 10);
            ops.push(Op::Fill { heap, size, count });
            ops.push(Op::Drain { heap: f, block, count: count / 8 * 7, step: e % 4 + 1 });
            idle(ops, d % 4);
        }
        // Large blocks that come and go, of two sizes.
        2 | 3 => {
            for i in 0..usize::from(c % 16) {
                let size = (size.max(2048) << (e % 5)) + i % 2 * (usize::from(f) << 9);
                ops.push(if d & 1 == 0 { Op::Malloc { heap, size } } else { Op::Calloc { heap, size } });
                if i % 3 != 0 {
                    ops.push(Op::Free { heap, block: u16::MAX });
                }
            }
        }
        // A block that grows, and shrinks.
        4 => {
            ops.push(Op::Malloc { heap, size });
            let mut size = size.max(64);
            for i in 0..c % 12 {
                size = if i % 5 == 4 { size / 3 } else { size + size / 2 + usize::from(d) };
                ops.push(Op::Realloc { heap, block: 0, size });
            }
        }
        // The program is idle.
        5 => idle(ops, c % 24),
        // A thread does its work and ends; others free its blocks.
        6 => {
            ops.push(Op::Acquire { cached: true });
            ops.push(Op::Fill { heap: 5, size: size.min(2048), count });
            ops.push(Op::Drain { heap: 7, block, count: count / 2, step: 2 });
            ops.push(Op::Abandon { heap: 5 });
        }
        7 => ops.push(Op::Purge),
        // Anything.
        _ => ops.push(Op::decode([d, e, f, a, b, c, heap, kind])),
    }
}

/// The calls of a signal handler that interrupted another call.
fn in_a_handler(a: &Allocator<Fake>, n: [u8; OP_BYTES]) {
    let [kind, b, c, d, ..] = n.map(usize::from);
    let size = [c + 1, c * 16 + b, c << 9, c << 13][kind % 4];
    let p = a.malloc_reentrant(size, if d < 200 { 16 } else { 16 << (d % 9) }, kind & 8 != 0);
    if p.is_null() {
        return;
    }
    // SAFETY: the block is this function's, and as long as it says.
    unsafe {
        let old = a.usable_size_reentrant(misuse::Call::UsableSize, p).expect("a live block is known");
        p.write_bytes(1, old.min(size));
        let q = a.realloc_reentrant(p, old, size / 2 + b * 8 + 1);
        assert_eq!(a.free_reentrant(if q.is_null() { p } else { q }), Ok(()));
    }
}

/// Adds a text to a hash, FNV-1a.
fn add(sum: u64, text: &str) -> u64 {
    text.bytes().fold(sum, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(FNV_PRIME))
}

/// Runs a history of zeroed blocks that are sparsely written; writes a line for every few of them.
fn run_zeroed(number: u64, lines: &mut String) {
    let mut numbers = Numbers(number << 32 | 1);
    let mut config =
        Config { page_size: 4096 << (number % 3 * 2), purger: number.is_multiple_of(2), ..Config::default() };
    config.seed = (1 << 32) + number;
    let a = Box::new(Allocator::new(Fake::new(config)));
    let owner = Owner::new(&a, true, true).expect("a heap");
    let (mut sum, mut blocks) = (FNV, VecDeque::new());
    for n in 1..=OPERATIONS {
        let [kind, b, c, d, e, ..] = numbers.next().map(usize::from);
        let size = [c * 64 + 512, (c + 8) << 10, (c % 64 + 4) << 14, (c % 16 + 1) << 19][kind % 4] + b % 3 * 8;
        // SAFETY: blocks are this function's, and as long as it says.
        unsafe {
            let p = owner.with(&a, |heap| a.calloc(heap, size));
            assert_eq!(a.os.first_nonzero(p, size), None, "a zeroed block of {size} bytes");
            let step = [64, 4096, 16384, 1 << 20][d % 4];
            (0..size).step_by(step).skip(e % 3).for_each(|at| p.add(at).write(1));
            let (place, calls) = {
                let log = a.os.log();
                (log.place(p.addr()), log.sum())
            };
            sum = add(sum, &format!("{place:?} {calls:?} {:?}", a.figures()));
            blocks.push_back(p);
            while blocks.len() > b % 12 {
                let p = blocks.pop_front().expect("there is one");
                assert_eq!(owner.with(&a, |heap| slot::free(&a, heap, p)), Ok(()));
            }
        }
        if kind > 200 {
            a.os.advance(b as u64);
            a.tick();
        }
        if n % LINE == 0 {
            let f = a.figures();
            let [live, dirty, clean, cleared] = [f.live, f.dirty, f.clean, f.totals.cleared].map(|bytes| bytes >> 10);
            writeln!(
                lines,
                "zeroed {number} operation {n}: calls {}, KiB live {live}, dirty {dirty}, clean {clean}, cleared {cleared}, \
                 all {sum:016x}",
                a.os.log().sum().0
            )
            .expect("a string takes all");
        }
    }
    for p in blocks {
        // SAFETY: as above.
        assert_eq!(owner.with(&a, |heap| unsafe { slot::free(&a, heap, p) }), Ok(()));
    }
    owner.abandon(&a);
}

/// Runs a history, and writes a line for each [`LINE`] operations.
fn run(number: u64, lines: &mut String) {
    let mut numbers = Numbers(number << 32);
    let mut model = Model::new(&setup(number, &mut numbers));
    let (mut sum, mut ops) = (FNV, Vec::new());
    while ops.len() < OPERATIONS {
        phase(numbers.next(), &mut ops);
    }
    for (n, &op) in (1..=OPERATIONS).zip(&ops) {
        let op = match op {
            // Not every machine can do these.
            Op::SwapOut { .. } | Op::Reclaim { .. } => Op::Tick,
            op => op,
        };
        model.step(op);
        if n % 16 == 0 {
            in_a_handler(&model.a, numbers.next());
        }
        if n % 48 == 0 {
            // A handler that allocates, and a trim, meet memory in any state.
            sum = add(sum, &format!("{:?}", model.a.trim(n << 14, || true)));
            sum = add(sum, &format!("{:?}", model.a.resident().map(|resident| resident.total())));
        }
        sum = add(sum, &model.record());
        if n % LINE == 0 {
            let (calls, _) = model.a.os.log().sum();
            let f = model.a.figures();
            let kib = [f.live, f.cached, f.slabs, f.dirty, f.lazy, f.clean].map(|bytes| bytes >> 10);
            let [live, cached, slabs, dirty, lazy, clean] = kib;
            writeln!(
                lines,
                "history {number} operation {n}: calls {calls}, blocks {}, KiB live {live}, cached {cached}, slabs {slabs}, \
                 dirty {dirty}, lazy {lazy}, clean {clean}, all {sum:016x}",
                f.live_blocks
            )
            .expect("a string takes all");
        }
    }
    model.finish();
}

/// Runs the history with this number, of either kind.
fn run_any(number: u64, lines: &mut String) {
    match number.checked_sub(HISTORIES) {
        None => run(number, lines),
        Some(number) => run_zeroed(number, lines),
    }
}

/// Catches a change of what the allocator does: other calls of the system, other places, other figures.
#[test]
fn histories_are_as_recorded() {
    if std::env::var_os("NEAP_TEST_SANITIZER").is_some() {
        eprintln!("SKIPPED: the tables of sanitizers lie where arenas would");
        return;
    }
    // SAFETY: no pointers. Huge pages would make memory resident that was not touched.
    unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) };
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("records.txt");
    if std::env::var_os("NEAP_RECORD").is_some() {
        let mut lines = String::new();
        (0..HISTORIES + ZEROED).for_each(|number| run_any(number, &mut lines));
        std::fs::write(&path, &lines).expect("the records can be written");
    }
    let recorded = std::fs::read_to_string(&path).expect("the records are part of the source");
    let mut then = recorded.lines();
    for number in 0..HISTORIES + ZEROED {
        let mut lines = String::new();
        run_any(number, &mut lines);
        for now in lines.lines() {
            assert_eq!(
                Some(now),
                then.next(),
                "if this is meant: NEAP_RECORD=1 cargo test -p neap-coretest --test records"
            );
        }
    }
    assert_eq!(then.next(), None, "histories were left out: record them");
}
