//! The writer and the parser together.

use crate::*;
use std::sync::atomic::{AtomicU64, Ordering};
use std::vec::Vec;

const SHIFT: u32 = 8;

fn zeroed() -> Vec<AtomicU64> {
    (0..words(SHIFT)).map(|_| AtomicU64::new(0)).collect()
}

fn set_up(words: &[AtomicU64]) -> Table<'_> {
    let values = [(Word::LiveShift, u64::from(SHIFT)), (Word::Process, 41), (Word::Interval, 512)];
    Table::set_up(words, &values, b"/bin/true").unwrap()
}

fn copy(words: &[AtomicU64]) -> Vec<u64> {
    words.iter().map(|word| word.load(Ordering::Relaxed)).collect()
}

/// Catches values that come from another word, and parts of the file that overlap.
#[test]
fn what_goes_in_comes_out() {
    let words = zeroed();
    let table = set_up(&words);
    let library = Module {
        start: 0x1000,
        end: 0x9000,
        bias: 0x800,
        code: [0x2000, 0x4000, 0x1000],
        build: &[1; 20],
        path: b"/lib/x.so",
    };
    let frame = table.frame(0x1234, &library);
    assert_eq!(table.frame(0x1234, &library), frame, "a module is entered once");
    let reloaded = table.frame(0x1234, &Module { build: &[2; 20], ..library });
    assert_ne!(reloaded, frame, "another build at the same place is another module");
    let (a, b) = (table.stack(&[frame, 7]), table.stack(&[reloaded, 7]));
    assert_ne!(a, b);
    assert_eq!(table.stack(&[frame, 7]), a);
    table.allocated(0x10_0000, 100, 1000, a, 5);
    table.allocated(0x20_0000, 200, 3000, b, 6);
    assert!(table.freed(0x10_0000) && !table.freed(0x10_0000) && !table.freed(0x30_0000));
    let copied = copy(&words);
    let view = View::of(&copied).unwrap();
    assert_eq!(
        (view.header(Word::Process), view.header(Word::Interval), view.program().bytes()),
        (41, 512, &b"/bin/true"[..])
    );
    let live: Vec<Live> = view.live().collect();
    assert_eq!(live, [Live { address: 0x20_0000, size: 200, weight: 3000, stack: b, time: 6 }]);
    let stacks: Vec<Stack<'_>> = view.stacks().collect();
    assert_eq!(stacks.len(), 2);
    let of_a = stacks.iter().find(|stack| stack.number == a).unwrap();
    assert_eq!((of_a.frames, of_a.bytes, of_a.freed_bytes), (&[frame, 7][..], 1000, 1000));
    assert_eq!((of_a.objects, of_a.freed_objects, of_a.samples), (10 * PARTS, 10 * PARTS, 1));
    let modules: Vec<Mapped> = view.modules().collect();
    let first = modules.iter().find(|module| u64::from(module.number) + 1 == frame >> MODULE_SHIFT).unwrap();
    assert_eq!((first.start, first.end, first.bias), (0x1000, 0x9000, 0x800));
    assert_eq!(first.code, [0x2000, 0x4000, 0x1000]);
    assert_eq!((first.build.bytes(), first.path.bytes()), (&[1; 20][..], &b"/lib/x.so"[..]));
    assert_eq!(modules.len(), 2);
}

/// Catches samples that vanish where a table is full: totals stay right, and each loss is counted.
#[test]
fn full_tables_lose_nothing_silently() {
    let words = zeroed();
    let table = set_up(&words);
    let most = 2 * STACKS as u64;
    for i in 1..=most {
        let stack = table.stack(&[i, i + 1, i + 2]);
        table.allocated(i << 16, 16, 100, stack, i);
    }
    let copied = copy(&words);
    let view = View::of(&copied).unwrap();
    let sum = |of: fn(&Stack<'_>) -> u64| view.stacks().map(|stack| of(&stack)).sum::<u64>();
    assert_eq!((sum(|s| s.samples), sum(|s| s.bytes)), (most, most * 100));
    let live = view.live().count() as u64;
    assert_eq!(sum(|s| s.samples - s.freed_samples), live);
    assert_eq!(view.header(Word::LostLive), most - live);
    assert!(live >= 200, "most of the 256 places are used: {live}");
    let nameless = view.stacks().filter(|stack| stack.frames.is_empty()).map(|stack| stack.samples).sum::<u64>();
    assert_eq!(view.header(Word::LostStacks), nameless);
    assert!(nameless > most / 4 && nameless < most * 6 / 10, "{nameless} of {most}");
    let freed = (1..=most).filter(|i| table.freed(i << 16)).count() as u64;
    assert_eq!(freed, live);
    let copied = copy(&words);
    assert_eq!(View::of(&copied).unwrap().live().count(), 0);
}

/// Catches samples without frames that are not counted, as their stack has a place and only its frames found no room.
#[test]
fn stacks_without_frames_are_counted() {
    let words = zeroed();
    let table = set_up(&words);
    let deep = |i: u64| std::array::from_fn::<u64, FRAMES, _>(|depth| (i << 8) + depth as u64);
    let most = 2 * (FRAME_WORDS / FRAMES) as u64;
    for round in 0..3 {
        for i in 1..=most {
            let stack = table.stack(&deep(i));
            table.allocated((round * most + i) << 16, 16, 100, stack, i);
        }
    }
    let copied = copy(&words);
    let view = View::of(&copied).unwrap();
    let nameless = view.stacks().filter(|stack| stack.frames.is_empty()).map(|stack| stack.samples).sum::<u64>();
    assert!(nameless > most, "{nameless} of {most}");
    assert_eq!(view.header(Word::LostStacks), nameless);
}

/// Catches blocks that stay live for ever, because their frees were no longer noted after every block was kept; and
/// samples, whose frees are noted, that are forgotten with them.
#[test]
fn what_was_kept_exactly_is_forgotten() {
    let words = zeroed();
    let table = set_up(&words);
    let stack = table.stack(&[1, 2, 3]);
    for i in 1..=100 {
        table.allocated_exact(i << 16, 10, stack, i);
    }
    table.allocated(101 << 16, 10, 10, stack, 101);
    assert!(table.freed(1 << 16));
    table.forget_exact();
    // Its address is in use again.
    table.allocated_exact(50 << 16, 20, stack, 102);
    let copied = copy(&words);
    let view = View::of(&copied).unwrap();
    let mut live: Vec<(u64, u64, u32)> = view.live().map(|block| (block.address, block.size, block.stack)).collect();
    live.sort_unstable();
    assert_eq!(live, [(50 << 16, 20, stack), (101 << 16, 10, stack)]);
    let seen = view.stacks().find(|seen| seen.number == stack).unwrap();
    assert_eq!((seen.bytes - seen.freed_bytes, seen.samples - seen.freed_samples), (30, 2));
    assert!(table.freed(50 << 16) && !table.freed(50 << 16) && table.freed(101 << 16));
}

/// Catches entries that are lost or doubled when threads write at the same time.
#[test]
#[cfg_attr(miri, ignore = "long loops without pointers")]
fn threads() {
    const EACH: u64 = 20_000;
    let words = zeroed();
    let table = set_up(&words);
    std::thread::scope(|scope| {
        for thread in 1..=4u64 {
            scope.spawn(move || {
                for i in 0..EACH {
                    let address = (thread << 32) + (i << 4);
                    let stack = table.stack(&[1 + i % 100, 2, 3]);
                    table.allocated(address, 16, 32, stack, i);
                    assert!(table.freed(address));
                }
            });
        }
    });
    let copied = copy(&words);
    let view = View::of(&copied).unwrap();
    assert_eq!((view.live().count(), view.stacks().count()), (0, 100));
    for stack in view.stacks() {
        assert_eq!((stack.samples, stack.freed_samples), (4 * EACH / 100, 4 * EACH / 100));
        assert_eq!(
            (stack.bytes, stack.freed_bytes, stack.objects),
            (stack.samples * 32, stack.bytes, stack.samples * 2 * PARTS)
        );
    }
    assert_eq!(view.header(Word::LostLive) + view.header(Word::LostStacks), 0);
}

/// Catches a panic on words that are no file, or a damaged one.
#[test]
fn garbage() {
    assert_eq!(View::of(&[]).err(), Some(Unreadable::Foreign));
    assert_eq!(View::of(&[MAGIC, 9]).err(), Some(Unreadable::Version(9)));
    let words = zeroed();
    set_up(&words);
    let mut copied = copy(&words);
    assert_eq!(View::of(&copied[..copied.len() - 1]).err(), Some(Unreadable::Short));
    for word in copied.iter_mut().skip(Word::COUNT) {
        *word = u64::MAX;
    }
    let view = View::of(&copied).unwrap();
    assert!(view.stacks().all(|stack| stack.frames.is_empty()));
    assert_eq!((view.live().count(), view.modules().count()), (0, 0));
    assert_eq!(view.program().bytes().len(), PATH_BYTES);
    copied[Word::LiveShift as usize] = 60;
    assert!(View::of(&copied).is_err());
}
