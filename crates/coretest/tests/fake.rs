//! The fake system itself: what it reports of pages agrees with what a program reads, whatever was swapped out, purged
//! or reclaimed meanwhile.

use neap_core::Os;
use neap_core::os::{Memory, Moved, Run};
use neap_core::sync::Threads;
use neap_coretest::fake::Page;
use neap_coretest::{Call, Config, Fake};

/// OS pages in the memory that the tests use.
const PAGES: usize = 64;

/// Committed memory of a fake, and what each OS page should hold: its first byte, and its last.
struct Memories {
    fake: Fake,
    p: *mut u8,
    page: usize,
    bytes: [u8; PAGES],
}

impl Memories {
    fn new(config: Config) -> Self {
        let page = config.page_size;
        let fake = Fake::new(config);
        let p = fake.reserve_zeros(PAGES * page).expect("address space");
        // SAFETY: the whole reservation.
        assert!(unsafe { fake.commit(p, PAGES * page) });
        Memories { fake, p, page, bytes: [0; PAGES] }
    }

    fn of(page_size: usize) -> Self {
        Self::new(Config { page_size, ..Config::default() })
    }

    fn at(&self, page: usize) -> *mut u8 {
        self.p.wrapping_add(page * self.page)
    }

    fn write(&mut self, page: usize, byte: u8) {
        // SAFETY: both bytes lie in the page.
        unsafe {
            self.at(page).write_volatile(byte);
            self.at(page + 1).wrapping_sub(1).write_volatile(byte);
        }
        self.bytes[page] = byte;
    }

    fn read(&self, page: usize) -> u8 {
        // SAFETY: both bytes lie in the page.
        let (first, last) =
            unsafe { (self.at(page).read_volatile(), self.at(page + 1).wrapping_sub(1).read_volatile()) };
        assert_eq!(first, last, "page {page} is torn");
        first
    }

    /// Writes every page for which `choose` says so.
    fn write_some(&mut self, choose: impl Fn(usize) -> bool) {
        (0..PAGES).filter(|&i| choose(i)).for_each(|i| self.write(i, i as u8 | 0x80));
    }

    fn check(&self) {
        (0..PAGES).for_each(|i| assert_eq!(self.read(i), self.bytes[i], "page {i}"));
    }

    /// Pages that `touched` reports, with room for `room` runs in each call, as a list of page numbers.
    fn touched(&self, room: usize) -> Vec<usize> {
        let (mut from, mut pages) = (0, Vec::new());
        while from < PAGES * self.page {
            let mut runs = vec![Run::EMPTY; room];
            // SAFETY: the range is committed.
            let found = unsafe { self.fake.touched(self.p.wrapping_add(from), PAGES * self.page - from, &mut runs) };
            let found = found.expect("a system that can tell");
            let mut last = from;
            for run in &runs[..found.runs] {
                let start = run.start.addr() - self.p.addr();
                assert!(start >= last && run.len > 0, "{runs:?}: not in order");
                last = start + run.len;
                pages.extend(start / self.page..last / self.page);
            }
            assert!(found.looked > 0 && from + found.looked >= last, "{found:?} {runs:?}");
            assert!(runs[found.runs..].iter().all(|run| *run == Run::EMPTY), "{found:?} {runs:?}");
            from += found.looked;
        }
        assert_eq!(from, PAGES * self.page);
        pages
    }

    fn run(&self, page: usize, pages: usize) -> Run {
        Run { start: self.at(page), len: pages * self.page }
    }

    /// Whether the test can go on: without userfaultfd there is no swap.
    fn swap_all(&self) -> bool {
        let bytes = self.fake.swap_out(1.0, 1);
        assert!(bytes > 0 || !self.fake.can_swap());
        if bytes == 0 {
            eprintln!("skipped: no userfaultfd");
        }
        bytes > 0
    }
}

/// Catches swapping that loses or mixes up contents, for each size of OS pages, and faults that are not served.
#[test]
fn contents_survive_swap() {
    for page_size in [4096, 16384, 65536] {
        let mut m = Memories::of(page_size);
        m.write_some(|i| i % 5 < 3);
        let mut all = 0;
        for seed in 0..20 {
            let out = m.fake.swap_out(0.5, seed);
            all += out;
            let usage = m.fake.usage();
            assert!(usage.swapped >= out && usage.swapped.is_multiple_of(page_size), "{usage:?}");
            let page = seed as usize * 3;
            m.write(page, seed as u8 + 1);
            if seed % 4 == 0 {
                m.check();
            }
        }
        m.check();
        assert_eq!(m.fake.usage().swapped, 0);
        assert!(all > 0 || !m.fake.can_swap());
    }
}

/// Catches a fake in which mincore reports swapped pages as present. Linux reports them as absent, so mincore proves
/// nothing: this is why the fake has swap.
#[test]
fn mincore_does_not_see_swapped_pages() {
    let mut m = Memories::of(4096);
    m.write_some(|_| true);
    if !m.swap_all() {
        return;
    }
    let mut present = [1_u8; PAGES];
    // SAFETY: the range is mapped, and there is a byte for each page.
    assert_eq!(unsafe { libc::mincore(m.p.cast(), PAGES * 4096, present.as_mut_ptr()) }, 0);
    assert_eq!(present, [0; PAGES]);
    assert!((0..PAGES).all(|i| m.fake.page(m.at(i).addr()) == Page::Swapped));
    assert_eq!(m.touched(4).len(), PAGES);
    // SAFETY: the range is readable.
    let found = unsafe { m.fake.first_nonzero(m.p, PAGES * 4096) };
    assert_eq!(found, Some(0));
    assert_eq!(m.fake.usage().swapped, PAGES * 4096, "looking brought pages in");
    m.check();
    assert!((0..PAGES).all(|i| m.fake.page(m.at(i).addr()) == Page::Present));
}

/// Catches `touched` that leaves out a page that holds something, reports others, or goes wrong when room is short.
#[test]
fn touched_is_exact() {
    for page_size in [4096, 16384, 65536] {
        for touched_runs in [None, Some(1), Some(2)] {
            let mut m = Memories::new(Config { page_size, touched_runs, ..Config::default() });
            assert_eq!(m.touched(3), []);
            let some = |i: usize| i % 7 == 1 || i % 13 < 2;
            m.write_some(some);
            let expected: Vec<_> = (0..PAGES).filter(|&i| some(i)).collect();
            for (seed, room) in [1, 2, 3, 5, 8, 13, 100].into_iter().enumerate() {
                assert_eq!(m.touched(room), expected, "room for {room}");
                m.fake.swap_out(0.4, seed as u64);
                assert_eq!(m.touched(room), expected, "room for {room}, swapped");
                assert_eq!(m.fake.first_held(m.p.addr(), m.at(PAGES).addr()), Some(m.at(expected[0]).addr()));
            }
            m.check();
        }
    }
}

/// Catches a fake that answers although the system cannot tell.
#[test]
fn touched_may_be_missing() {
    let m = Memories::new(Config { missing: vec![Call::Touched], ..Config::default() });
    // SAFETY: the range is committed.
    assert_eq!(unsafe { m.fake.touched(m.p, m.page, &mut [Run::EMPTY]) }, None);
    assert_eq!(m.fake.faults.count(Call::Touched), 1);
}

/// Catches a purge after which swapped pages come back, or which drops pages beside its range.
#[test]
fn purged_pages_stay_gone() {
    for swapped in [false, true] {
        let mut m = Memories::of(4096);
        m.write_some(|_| true);
        if swapped && !m.swap_all() {
            return;
        }
        let runs = [m.run(3, 1), m.run(9, 20), m.run(40, 7)];
        // SAFETY: the contents are not needed; each call's range is committed.
        unsafe {
            assert_eq!(m.fake.purge_runs(&runs[..2]), 2);
            assert!(m.fake.purge(runs[2].start, runs[2].len));
            assert_eq!(m.fake.renew(m.at(60), 2 * 4096), Moved::Done);
        }
        for i in [3..4, 9..29, 40..47, 60..62].into_iter().flatten() {
            assert_eq!(m.fake.page(m.at(i).addr()), Page::Absent);
            m.bytes[i] = 0;
        }
        // Writes to a page whose swapped contents were dropped.
        m.write(10, 1);
        m.check();
        // SAFETY: both ranges are committed; the contents of page 50 are not needed.
        assert_eq!(unsafe { m.fake.move_pages(m.at(8), m.at(50), 4 * 4096) }, Moved::Done);
        for i in 0..4 {
            m.bytes[50 + i] = std::mem::take(&mut m.bytes[8 + i]);
        }
        m.check();
        assert_eq!((m.fake.faults.count(Call::PurgeRuns), m.fake.faults.count(Call::Purge)), (1, 1));
    }
}

/// Catches a purge of many runs that only ever fails or succeeds as a whole: real ones stop half-way.
#[test]
fn purge_of_many_runs_fails_half_way() {
    let mut m = Memories::of(4096);
    let mut seen = [false; 4];
    for n in 1..40 {
        m.write_some(|_| true);
        m.fake.faults.fail_nth(Call::PurgeRuns, n);
        let runs = [0, 10, 20, 30].map(|page| m.run(page, 5));
        // SAFETY: the contents are not needed.
        let done = unsafe { m.fake.purge_runs(&runs) };
        for (i, run) in [0, 10, 20, 30].into_iter().enumerate() {
            m.bytes[run..run + 5].iter_mut().for_each(|byte| *byte = if i < done { 0 } else { *byte });
        }
        m.check();
        seen[done] = true;
    }
    assert_eq!(seen, [true; 4], "0 to 3 of 4");
    let lacking = Memories::new(Config { missing: vec![Call::PurgeRuns], ..Config::default() });
    // SAFETY: the contents are not needed.
    assert_eq!(unsafe { lacking.fake.purge_runs(&[lacking.run(0, 1)]) }, 0);
}

/// Catches a lazy purge that loses later writes, and a reclaim that never takes anything.
#[test]
fn lazily_purged_pages_are_old_or_zero() {
    let mut taken = 0;
    for seed in 0..20 {
        let mut m = Memories::of(if seed % 2 == 0 { 4096 } else { 16384 });
        m.write_some(|_| true);
        if seed % 3 == 0 {
            m.fake.swap_out(0.3, seed);
        }
        // SAFETY: the contents are not needed.
        assert!(unsafe { m.fake.purge_lazily(m.at(8), 40 * m.page) });
        (8..48).step_by(3).for_each(|i| m.write(i, 7));
        taken += m.fake.reclaim(seed);
        for i in 0..PAGES {
            let kept = i % 3 == 2 || !(8..48).contains(&i);
            let byte = m.read(i);
            assert!(byte == m.bytes[i] || (!kept && byte == 0), "page {i} is {byte}, not {}", m.bytes[i]);
        }
    }
    assert!(taken > 0, "the kernel took nothing");
}

/// Catches settings of the fake that have no effect.
#[test]
fn clock_memory_purger_and_barrier() {
    let plain = Fake::new(Config::default());
    let start = plain.clock();
    plain.advance(1500);
    assert_eq!(plain.clock(), start + 1500);
    assert!(plain.barrier(), "a kernel with membarrier");
    assert_eq!((plain.memory(), plain.start_helper()), (None, false));
    let memory = Memory { limit: 1 << 30, used: 1 << 20, stalled: true };
    plain.set_memory(Some(memory));
    assert_eq!(plain.memory(), Some(memory));
    assert_eq!(plain.faults.count(Call::StartPurger), 1);
    let missing = vec![Call::Barrier, Call::Memory, Call::StartPurger];
    let bare = Fake::new(Config { memory: Some(memory), missing, purger: true, ..Config::default() });
    assert_eq!((bare.barrier(), bare.memory(), bare.start_helper()), (false, None, false));
    assert!(Fake::new(Config { purger: true, ..Config::default() }).start_helper());
}

/// Catches a violated precondition that the fake does not report.
#[test]
fn preconditions() {
    type Act = fn(&Memories);
    // SAFETY: each breaks a precondition, and the fake says so before it does anything.
    let acts: [(&str, Act); 6] = unsafe {
        [
            ("not whole OS pages", |m| _ = m.fake.purge_runs(&[Run { start: m.p, len: 100 }])),
            ("nothing was handed out", |m| _ = m.fake.purge_runs(&[m.run(0, 1), m.run(PAGES, 1)])),
            ("not whole OS pages", |m| _ = m.fake.purge_lazily(m.p.wrapping_add(1), m.page)),
            ("nothing was handed out", |m| _ = m.fake.purge_lazily(m.p, (PAGES + 1) * m.page)),
            ("no room", |m| _ = m.fake.touched(m.p, m.page, &mut [])),
            ("nothing was handed out", |m| _ = m.fake.touched(m.at(PAGES), m.page, &mut [Run::EMPTY])),
        ]
    };
    for (expected, act) in acts {
        let m = Memories::of(16384);
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| act(&m))).expect_err(expected);
        let message = panic.downcast_ref::<String>().expect("a message");
        assert!(message.contains(expected), "{message}");
    }
}
