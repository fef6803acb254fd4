use super::pool::{OPEN_BYTES, Page, Pool, SLOTS};
use super::report::{self, REPORTER};
use super::slot::{self, State};
use super::{Mode, Settings};
use crate::system::call;
use core::sync::atomic::Ordering;
use neap_core::misuse::Call;

fn pool(markers: bool) -> &'static Pool {
    let settings = Settings { mode: Mode::Report, interval: 1, is_quiet: || true };
    Pool::make(settings, markers).expect("memory for a pool")
}

fn is_readable(pool: &Pool, page: Page) -> bool {
    call::is_readable(pool.address(page).expose_provenance() as u64)
}

/// Catches a page that counts as its neighbour, and borders that are off by one.
#[test]
fn pages_and_addresses() {
    let pool = pool(true);
    for number in 0..SLOTS {
        for page in [Page::Guard(number), Page::Slot(number)] {
            let p = pool.address(page);
            assert!(pool.page(p) == page && pool.page(p.wrapping_add(pool.page_size - 1)) == page);
            assert!(pool.holds(p) && !is_readable(pool, page));
        }
    }
    let last = pool.address(Page::Guard(SLOTS));
    assert!(pool.page(last) == Page::Guard(SLOTS) && pool.holds(last.wrapping_add(pool.page_size - 1)));
    assert!(
        !pool.holds(last.wrapping_add(pool.page_size)) && !pool.holds(pool.address(Page::Guard(0)).wrapping_sub(1))
    );
}

/// Catches pages that stay accessible, by either way of closing, and memory that is not given back.
#[test]
fn opens_and_closes() {
    for markers in [true, false] {
        let pool = pool(markers);
        for number in [0, 7, SLOTS - 1] {
            for round in 0..3 {
                assert!(pool.open(Page::Slot(number)));
                let p = pool.address(Page::Slot(number));
                // SAFETY: the page is open.
                unsafe {
                    assert_eq!(p.read(), 0, "{markers} {round}");
                    p.write_bytes(1, pool.page_size);
                }
                assert!(!is_readable(pool, Page::Guard(number)) && !is_readable(pool, Page::Guard(number + 1)));
                assert!(pool.close(number) && !is_readable(pool, Page::Slot(number)));
            }
        }
    }
}

/// Catches more open pages than the limit, a slot that is used again too soon, and one that is lost.
#[test]
fn slots_wait_for_their_turn() {
    let pool = pool(true);
    let most = OPEN_BYTES / pool.page_size;
    let mut taken = std::vec::Vec::new();
    while let Some((number, state)) = pool.take() {
        assert_eq!(state, State::NEW);
        taken.push(number);
    }
    assert_eq!(taken, (0..most).collect::<std::vec::Vec<_>>());
    pool.give_up(3, State::NEW);
    assert_eq!(pool.take().map(|taken| taken.0), Some(most), "the oldest comes first");
    for number in (0..most).filter(|&number| number != 3) {
        pool.slot(number).set(State::FREED);
        pool.open.fetch_sub(1, Ordering::Relaxed);
    }
    for number in most + 1..SLOTS {
        assert_eq!(pool.take(), Some((number, State::NEW)));
        pool.give_up(number, State::FREED);
    }
    pool.slot(0).flags.add(slot::CHANGED);
    assert_eq!(pool.take(), Some((1, State::FREED)), "what the program changed is not used again");
}

/// Catches a page that counts twice where it could not be closed.
#[test]
fn what_stays_open_counts_once() {
    let pool = pool(true);
    assert_eq!(pool.take(), Some((0, State::NEW)));
    pool.slot(0).flags.add(slot::STAYS_OPEN);
    pool.slot(0).set(State::FREED);
    for _ in 1..SLOTS {
        let (number, state) = pool.take().expect("a slot");
        pool.give_up(number, state);
    }
    assert_eq!(pool.take(), Some((0, State::FREED)));
    assert_eq!(pool.open.load(Ordering::Relaxed), 1);
}

/// Catches a thread that waits for ever for the owner of a slot, which a fork has left behind; and a report that
/// cannot go on.
#[test]
fn opens_for_good() {
    let pool = pool(true);
    assert!(!pool.open_for_good(Page::Slot(9)), "there was no block");
    for state in [State::FREED, State::OPENING, State::FREEING] {
        pool.slot(9).set(state);
        assert!(pool.open_for_good(Page::Slot(9)) && pool.slot(9).state() == State::RETIRED);
        assert!(is_readable(pool, Page::Slot(9)));
        pool.close(9);
    }
    for guard in [0, 9, SLOTS] {
        assert!(!pool.is_opened(guard) && pool.open_for_good(Page::Guard(guard)) && pool.is_opened(guard));
        assert!(is_readable(pool, Page::Guard(guard)));
    }
}

/// Catches a slot that is taken from its owner, which is late, and then given to two threads: a live block that counts
/// as freed, one that is freed and open, and open pages that are counted twice or never.
#[test]
fn late_owners_lose_their_slot() {
    let pool = pool(true);
    let (number, before) = pool.take().expect("a slot");
    assert!(pool.open(Page::Slot(number)) && pool.open_for_good(Page::Slot(number)));
    pool.give_up(number, before);
    assert!(!pool.slot(number).change(State::OPENING, State::LIVE));
    let (freed, _) = pool.take().expect("a slot");
    assert!(pool.open(Page::Slot(freed)) && pool.slot(freed).change(State::OPENING, State::LIVE));
    assert!(pool.slot(freed).change(State::LIVE, State::FREEING) && pool.open_for_good(Page::Slot(freed)));
    pool.end_life(freed);
    for number in [number, freed] {
        assert_eq!(pool.slot(number).state(), State::RETIRED);
        assert!(is_readable(pool, Page::Slot(number)));
    }
    assert_eq!(pool.open.load(Ordering::Relaxed), 2);
}

/// Catches reports that all wait for one which a fork has left behind: only the first does.
#[test]
fn reports_go_on_after_a_fork() {
    let settings = Settings { mode: Mode::Report, interval: 1, is_quiet: || false };
    let pool = Pool::make(settings, true).expect("memory for a pool");
    REPORTER.store(u32::MAX, Ordering::Relaxed);
    report::misuse(pool, report::Error::NoBlock(Call::Free), pool.address(Page::Guard(0)), None);
    assert_eq!(REPORTER.load(Ordering::Relaxed), 0);
}
