//! The helper's states, one step at a time; `tests/loom` has all orders of two threads.

use neap_core::Os;
use neap_core::helper::{Answer, Stop, Who};
use neap_core::os::Onward;
use neap_core::policy::{HugePages, Purge};
use neap_core::sync::Threads;
use neap_coretest::Owner;
use neap_coretest::calls::{self, Shared};
use neap_coretest::fake::{Call, Config, Fake, Moment};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex};
use std::time::{Duration, Instant};

fn system(purger: bool) -> Fake {
    Fake::new(Config { purger, ..Config::default() })
}

fn started(os: &Fake) -> u64 {
    os.faults.count(Call::StartPurger)
}

/// Catches a second helper while one is being started, runs or resigns, and one that is not started after that one's
/// last step.
#[test]
fn one_at_a_time() {
    let os = system(true);
    let helper = os.helper();
    assert_eq!(helper.who(), Who::None);
    for _ in 0..2 {
        assert_eq!((helper.ask(&os, false), helper.who()), (Answer::Helped, Who::Helper));
    }
    helper.begin();
    assert_eq!(helper.ask(&os, true), Answer::Helped);
    helper.resign();
    assert_eq!(helper.who(), Who::None, "memory that waits from now on must start a helper");
    let leave = helper.leave(false);
    assert_eq!(helper.ask(&os, false), Answer::Helped);
    assert!(!helper.take_leave(&leave), "it was taken back");
    assert_eq!(started(&os), 1);
    helper.resign();
    assert!(helper.take_leave(&helper.leave(false)));
    assert_eq!((helper.ask(&os, false), started(&os)), (Answer::Helped, 2));
}

/// Catches a helper in the thread group of a process which only shares the memory, and a helper that such a process
/// keeps away, perhaps for ever.
#[test]
fn guests_start_none() {
    let os = system(true);
    let helper = os.helper();
    assert_eq!(helper.is_owner(os.process()), Some(true));
    os.set_process(2);
    assert_eq!((helper.ask(&os, true), helper.who(), started(&os)), (Answer::Elsewhere, Who::None, 0));
    assert!(helper.keep_away(&os, 1000).is_none());
    os.set_process(1);
    assert_eq!(helper.ask(&os, false), Answer::Helped);
    os.set_process(2);
    assert_eq!(helper.ask(&os, false), Answer::Elsewhere);
    os.set_process(0);
    assert_eq!((helper.ask(&os, true), started(&os)), (Answer::Inline, 1));
}

/// Catches memory that waits without a purger and without a note, where the process number must not be read: a helper
/// resigns and leaves a note, a thread takes the note, and the helper ends.
#[test]
fn a_note_of_a_helper_that_resigns_stays() {
    let os = system(true);
    let helper = os.helper();
    assert_eq!(helper.ask(&os, false), Answer::Helped);
    helper.begin();
    os.set_process(0);
    assert_eq!(helper.ask(&os, false), Answer::Inline, "it leaves a note when it ends");
    helper.resign();
    assert_eq!(helper.ask(&os, false), Answer::Elsewhere, "a note asks for a purger");
    assert!(helper.take_leave(&helper.leave(false)));
    assert_eq!((helper.ask(&os, false), helper.who()), (Answer::Inline, Who::Inline));
}

/// Catches a refused start that is tried again at each call, and one that is never tried again.
#[test]
fn refused_starts_are_tried_again_when_asked() {
    let os = system(false);
    let helper = os.helper();
    for (again, starts) in [(false, 1), (false, 1), (true, 2)] {
        assert_eq!((helper.ask(&os, again), helper.who(), started(&os)), (Answer::Inline, Who::Inline, starts));
    }
}

/// Catches a helper that starts while a call keeps it away, one that does not come back afterwards, and a call that
/// waits for a helper which makes no progress.
#[test]
fn calls_keep_it_away() {
    let os = system(true);
    let helper = os.helper();
    let (first, second) = (helper.keep_away(&os, 1000), helper.keep_away(&os, 1000));
    assert_eq!((helper.ask(&os, true), helper.who(), started(&os)), (Answer::Inline, Who::Inline, 0));
    // The first call ends and requests a helper; the second one still keeps it away.
    helper.end_stop(first);
    assert_eq!(helper.ask(&os, true), Answer::Inline);
    assert!(helper.end_stop(second), "a helper was asked for meanwhile");
    assert_eq!((helper.ask(&os, false), started(&os)), (Answer::Helped, 1));
    helper.begin();
    let began = Instant::now();
    let stop = helper.keep_away(&os, 20);
    assert!((Duration::from_millis(15)..Duration::from_secs(10)).contains(&began.elapsed()), "{:?}", began.elapsed());
    helper.resign();
    assert!(helper.is_unwanted() && helper.take_leave(&helper.leave(true)));
    assert!(helper.end_stop(stop));
}

/// Catches a call that began in the parent and ends in the child, where it decrements the count of another call.
#[test]
fn calls_that_a_fork_cut() {
    let os = system(true);
    let helper = os.helper();
    let parents = helper.keep_away(&os, 0);
    os.set_process(2);
    os.forked();
    assert!(!helper.is_unwanted());
    let childs = helper.keep_away(&os, 0);
    helper.end_stop(parents);
    assert!(helper.is_unwanted(), "the child's own call has not ended");
    helper.end_stop(childs);
    assert!(!helper.is_unwanted());
    assert_eq!(helper.ask(&os, false), Answer::Helped);
}

/// Catches memory that is freed while an ending helper gives the rest back: in a program that is idle from then on it
/// would have no purger.
#[test]
fn the_last_thing_is_to_look_again() {
    static A: LazyLock<&Shared> =
        LazyLock::new(|| Box::leak(calls::system(Config { purger: true, ..Config::default() })));
    fn free_much() {
        let thread = calls::thread(&A);
        let block = calls::malloc(&A, &thread, 40 << 20);
        // SAFETY: the block is that long.
        unsafe { block.write_bytes(1, 40 << 20) };
        calls::free(&A, &thread, block);
        thread.abandon(&A);
    }
    free_much();
    A.os.set_onward(Onward::Finish);
    A.os.set_within(Moment::Publish, || std::thread::spawn(free_much).join().expect("the other thread"));
    let leave = A.help();
    assert!(A.os.helper().take_leave(&leave), "nothing took it back");
    assert_eq!(A.free_bytes().0, 0, "bytes that wait without a purger");
    calls::valid(&A);
}

/// Catches a report of short memory that is lost because another thread requests the helper at the same moment.
#[test]
fn a_report_beside_a_thread_that_asks() {
    static A: LazyLock<&Shared> =
        LazyLock::new(|| Box::leak(calls::system(Config { purger: true, ..Config::default() })));
    fn free_much() {
        let thread = calls::thread(&A);
        calls::free(&A, &thread, calls::malloc(&A, &thread, 40 << 20));
        thread.abandon(&A);
    }
    fn once_it_watches() {
        A.os.advance(100);
        if !A.os.helper().has_resigned() {
            return A.os.set_within(Moment::Rest, once_it_watches);
        }
        A.policy.set_delay(3_600_000);
        std::thread::spawn(free_much).join().expect("the other thread");
        assert_eq!(A.os.helper().who(), Who::Helper);
        A.os.report_pressure(1);
        A.os.set_within(Moment::Rest, || A.os.set_onward(Onward::End));
    }
    A.os.report_pressure(0);
    let thread = calls::thread(&A);
    calls::free(&A, &thread, calls::malloc(&A, &thread, 8 << 20));
    A.os.set_within(Moment::Rest, once_it_watches);
    assert!(A.os.helper().take_leave(&A.help()));
    assert_eq!(A.free_bytes().0, 0, "bytes that wait for an hour");
}

/// Catches a report of short memory that is lost because a call excludes the helper that received it.
#[test]
fn a_report_beside_a_call_that_excludes() {
    static A: LazyLock<&Shared> =
        LazyLock::new(|| Box::leak(calls::system(Config { purger: true, ..Config::default() })));
    static STOP: Mutex<Option<Stop>> = Mutex::new(None);
    A.policy.set_delay(3_600_000);
    let thread = calls::thread(&A);
    calls::free(&A, &thread, calls::malloc(&A, &thread, 40 << 20));
    A.os.report_pressure(1);
    A.os.set_within(Moment::Rest, || *STOP.lock().expect("no panic") = A.os.helper().keep_away(&A.os, 0));
    let helper = A.os.helper();
    assert!(helper.take_leave(&A.help()));
    assert_eq!(A.free_bytes().0, 40 << 20);
    assert!(helper.end_stop(STOP.lock().expect("no panic").take()), "a helper has to be asked for");
    assert_eq!(helper.ask(&A.os, false), Answer::Helped);
    A.os.set_within(Moment::Rest, || A.os.set_onward(Onward::End));
    assert!(helper.take_leave(&A.help()));
    assert_eq!(A.free_bytes().0, 0, "bytes that wait for an hour");
}

/// Catches memory without a purger: a handler freed it while the helper resigned, whose own figures then free it for
/// good.
#[test]
fn a_helper_stays_for_what_handlers_freed() {
    static A: LazyLock<&Shared> =
        LazyLock::new(|| Box::leak(calls::system(Config { purger: true, ..Config::default() })));
    static BLOCK: AtomicUsize = AtomicUsize::new(0);
    let thread = calls::thread(&A);
    BLOCK.store(calls::malloc(&A, &thread, 8 << 20).expose_provenance(), Ordering::Relaxed);
    calls::free(&A, &thread, calls::malloc(&A, &thread, 8 << 20));
    let ticks = |count: usize| {
        (0..count).find(|_| {
            A.os.advance(100);
            A.tick().is_none()
        })
    };
    let last = ticks(100).expect("the helper ends when nothing waits");
    calls::free(&A, &thread, calls::malloc(&A, &thread, 8 << 20));
    assert_eq!(ticks(last), None, "as many ticks as before but the last");
    A.os.set_within(Moment::Clock, || {
        calls::free_reentrant(&A, core::ptr::with_exposed_provenance_mut(BLOCK.load(Ordering::Relaxed)));
    });
    assert_eq!(ticks(1), None, "memory waits again");
    assert!(A.free_bytes().0 >= 8 << 20 && A.os.helper().who() == Who::Helper);
    calls::valid(&A);
    assert!(ticks(100).is_some() && A.free_bytes().0 == 0);
}

/// Catches growth that goes unnoticed in the last tick of a helper: its memory would stay in small pages until the
/// program grows again.
#[test]
fn a_helper_stays_for_growth() {
    static A: LazyLock<&Shared> =
        LazyLock::new(|| Box::leak(calls::system(Config { purger: true, huge: true, ..Config::default() })));
    fn grow() {
        let thread = calls::thread(&A);
        calls::malloc(&A, &thread, 40 << 20);
        thread.abandon(&A);
    }
    A.policy.set_huge(HugePages::Adaptive);
    let thread = calls::thread(&A);
    calls::free(&A, &thread, calls::malloc(&A, &thread, 4 << 20));
    let tick = || {
        A.os.advance(100);
        A.tick()
    };
    let last = (0..100).find(|_| tick().is_none()).expect("the helper ends when nothing waits");
    calls::free(&A, &thread, calls::malloc(&A, &thread, 4 << 20));
    assert_eq!((0..last).find(|_| tick().is_none()), None, "as many ticks as before but the last");
    A.os.set_within(Moment::Publish, grow);
    assert!(tick().is_some(), "the program grew");
    assert!((0..1000).any(|_| tick().is_none()) && !A.os.promoted().is_empty());
}

/// Catches an ending helper that first gives back what is not due.
#[test]
fn one_that_has_to_end_leaves_the_rest() {
    let a = calls::system(Config { purger: true, ..Config::default() });
    let thread = calls::thread(&a);
    let block = calls::malloc(&a, &thread, 40 << 20);
    calls::free(&a, &thread, block);
    a.os.set_onward(Onward::End);
    let leave = a.help();
    assert!(a.os.helper().take_leave(&leave));
    assert_eq!(a.free_bytes().0, 40 << 20);
    assert_eq!(a.os.helper().who(), Who::None, "the next one that frees memory asks");
    let before = started(&a.os);
    calls::malloc(&a, &thread, 3000);
    assert_eq!(started(&a.os), before + 1);
}

/// Catches a helper that works before its time, and one that sleeps on although it was woken.
#[test]
fn a_helper_sleeps_until_its_time() {
    let a = calls::system(Config { purger: true, ..Config::default() });
    a.policy.set_delay(600_000);
    let thread = calls::thread(&a);
    calls::free(&a, &thread, calls::malloc(&a, &thread, 8 << 20));
    let before = a.os.published();
    std::thread::scope(|scope| {
        let helper = scope.spawn(|| a.os.helper().take_leave(&a.help()));
        std::thread::sleep(Duration::from_millis(300));
        let slept = a.os.published() == before;
        // Repeated: the helper may not sleep yet.
        let begun = Instant::now();
        while a.os.published() == before && begun.elapsed() < Duration::from_secs(10) {
            a.resume_purging();
            std::thread::sleep(Duration::from_millis(1));
        }
        let woken = a.os.published() > before;
        a.os.set_onward(Onward::End);
        assert!(helper.join().expect("a helper that ends"));
        assert!(slept && woken, "{slept} {woken}");
    });
}

/// Catches a helper that has resigned, stays, and does not count as one; and one that is kept away for ever where the
/// system does not report the process number.
#[test]
fn helpers_that_stay_and_that_cannot() {
    let os = system(true);
    let helper = os.helper();
    helper.ask(&os, false);
    helper.begin();
    helper.resign();
    let leave = helper.leave(false);
    helper.stay();
    assert_eq!(helper.who(), Who::Helper);
    assert!(!helper.take_leave(&leave));
    let os = system(true);
    let helper = os.helper();
    let stop = helper.keep_away(&os, 0);
    assert_eq!((helper.ask(&os, false), started(&os)), (Answer::Inline, 0));
    os.set_process(0);
    assert_eq!(helper.ask(&os, true), Answer::Inline);
    assert!(helper.end_stop(stop), "a helper was asked for meanwhile");
    assert_eq!((helper.ask(&os, true), helper.who(), started(&os)), (Answer::Inline, Who::Inline, 0));
    assert!(helper.is_valid());
}

/// Frees this many bytes in blocks of 100 KB.
fn free_in_parts(a: &Shared, thread: &Owner, len: usize) {
    let blocks: Vec<_> = (0..len / 102_400).map(|_| calls::malloc(a, thread, 102_400)).collect();
    blocks.into_iter().for_each(|p| calls::free(a, thread, p));
}

/// Catches memory that waits for ever after a change of policy, and a helper that is started for memory that need not
/// go back.
#[test]
fn purging_resumes() {
    for (waits, purge, starts) in [(4 << 20, Purge::Decay, 1), (4 << 20, Purge::Never, 0), (700 << 10, Purge::Decay, 0)]
    {
        let a = calls::system(Config { purger: true, ..Config::default() });
        a.policy.set_purge(Purge::Never);
        let thread = calls::thread(&a);
        free_in_parts(&a, &thread, waits);
        thread.with(&a, |heap| a.rest(heap));
        assert_eq!(started(&a.os), 0);
        a.policy.set_purge(purge);
        a.resume_purging();
        assert_eq!(started(&a.os), starts, "{waits} bytes wait, {purge:?}");
        a.os.helper().begin();
        let woken = a.os.helper().woken();
        a.resume_purging();
        assert_eq!(a.os.helper().woken() != woken, starts > 0);
    }
}

/// Catches memory that stays where no helper can start, and a helper that is started after the last thread has ended.
#[test]
fn before_there_is_no_helper() {
    for (waits, goes) in [(24 << 20, true), (8 << 20, false)] {
        let a = calls::system(Config::default());
        let thread = calls::thread(&a);
        free_in_parts(&a, &thread, waits);
        let before = a.free_bytes().0;
        assert!(before > waits / 2);
        a.before_inline();
        assert_eq!(a.free_bytes().0, if goes { 0 } else { before }, "{waits} bytes");
    }
    let a = calls::system(Config { purger: true, ..Config::default() });
    let thread = calls::thread(&a);
    let mut ended = 0;
    a.end_helper(|| ended += 1);
    free_in_parts(&a, &thread, 24 << 20);
    assert_eq!((ended, started(&a.os)), (1, 0));
    assert_eq!(a.os.helper().who(), Who::Inline);
}

/// Catches a process that gives memory back although it only shares it, an owner that does not, and a refused start
/// that is tried at each look.
#[test]
fn owners_purge_where_there_is_no_helper() {
    for guest in [false, true] {
        let a = calls::system(Config::default());
        let thread = calls::thread(&a);
        free_in_parts(&a, &thread, 2 << 20);
        assert_eq!((a.os.helper().who(), started(&a.os)), (Who::Inline, 1));
        if guest {
            a.os.set_process(2);
        }
        let before = a.figures().totals.purged;
        for _ in 0..8 {
            a.os.advance(100);
            free_in_parts(&a, &thread, 40 << 20);
        }
        assert_eq!(a.figures().totals.purged > before, !guest, "of a guest: {guest}");
        assert_eq!(started(&a.os), 1);
    }
}

/// Catches free memory that stays for as long as the clock has gone back, by a helper or by a thread that frees.
#[test]
fn the_clock_may_go_back() {
    for purger in [true, false] {
        let a = calls::system(Config { purger, ..Config::default() });
        let thread = calls::thread(&a);
        let pass = |ms| {
            a.os.advance(ms);
            if purger {
                a.tick();
            } else {
                free_in_parts(&a, &thread, 2 << 20);
            }
        };
        free_in_parts(&a, &thread, 24 << 20);
        (0..3).for_each(|_| pass(100));
        let before = a.free_bytes().0;
        a.os.set_back(500_000);
        (0..40).for_each(|_| pass(100));
        let left = a.free_bytes().0;
        assert!(before >= 16 << 20 && left <= 4 << 20, "{left} of {before} bytes, with a helper: {purger}");
    }
}

/// Catches free memory that stays where the helper gets no processor, and threads that do its work while it runs.
#[test]
fn threads_stand_in_for_a_late_helper() {
    for (runs, guest) in [(true, false), (false, false), (false, true)] {
        let a = calls::system(Config { purger: true, ..Config::default() });
        let thread = calls::thread(&a);
        free_in_parts(&a, &thread, 24 << 20);
        assert_eq!((a.os.helper().who(), started(&a.os)), (Who::Helper, 1));
        if guest {
            a.os.set_process(2);
        }
        let mut purged = Vec::new();
        for _ in 0..20 {
            a.os.advance(100);
            if runs {
                a.note_helper();
            }
            free_in_parts(&a, &thread, 2 << 20);
            purged.push(a.figures().totals.purged);
        }
        assert_eq!(purged[4], 0, "it may still come: {purged:?}");
        assert_eq!(purged[19] >= 16 << 20, !runs && !guest, "runs: {runs}, in a guest: {guest}, {purged:?}");
        assert_eq!(started(&a.os), 1);
    }
}

/// Catches a thread that waits for its heap for as long as the thread that makes the handshake has no processor, and one
/// that waits at each of its calls.
#[test]
fn a_thread_does_not_wait_long_for_its_heap() {
    static A: LazyLock<&Shared> =
        LazyLock::new(|| Box::leak(calls::system(Config { purger: true, ..Config::default() })));
    static THREAD: AtomicPtr<Owner> = AtomicPtr::new(core::ptr::null_mut());
    static LOOKS: AtomicUsize = AtomicUsize::new(0);
    fn look() {
        // SAFETY: the test has stored a thread that lives as long as this.
        let thread = unsafe { &*THREAD.load(Ordering::Relaxed) };
        // The first question precedes the handshake.
        if LOOKS.fetch_add(1, Ordering::Relaxed) == 0 {
            return A.os.set_within(Moment::Question, look);
        }
        let begun = Instant::now();
        assert!((0..1000).all(|_| thread.waits_in_vain(&A)), "the heap is parked");
        assert!(begun.elapsed() < Duration::from_secs(2), "{:?} for a thousand calls", begun.elapsed());
    }
    let mut thread = calls::thread(&A);
    THREAD.store(&raw mut thread, Ordering::Relaxed);
    let kept = calls::malloc(&A, &thread, 1000);
    calls::free(&A, &thread, calls::malloc(&A, &thread, 2000));
    A.os.set_within(Moment::Question, look);
    A.purge();
    assert!(LOOKS.load(Ordering::Relaxed) == 2 && !thread.waits_in_vain(&A), "the heap is back");
    calls::free(&A, &thread, kept);
    // The next handshake is waited for again: a thread that ends must not find its slot changed.
    calls::valid(&A);
}

/// Catches a helper that gives back all that is due, or all that waits, before it looks whether it has to end.
#[test]
fn a_busy_helper_looks_around() {
    static A: LazyLock<&Shared> =
        LazyLock::new(|| Box::leak(calls::system(Config { purger: true, ..Config::default() })));
    static FINISH: AtomicBool = AtomicBool::new(false);
    /// Each batch takes 10 ms, and the helper has to end from the first one on.
    fn batch() {
        A.os.advance(10);
        A.os.set_onward(if FINISH.load(Ordering::Relaxed) { Onward::Finish } else { Onward::End });
        A.os.set_within(Moment::PurgeRuns, batch);
    }
    const ALL: usize = 800 << 20;
    let thread = calls::thread(&A);
    // In a tick in which all is due, and after a report.
    for (reports, finish, most_ms) in [(0, false, 50), (0, true, 50 + 30), (1, false, 50)] {
        A.policy.set_bytes(if reports == 0 { Some(1 << 20) } else { None });
        free_in_parts(&A, &thread, 8 << 20);
        A.look_at_limit();
        free_in_parts(&A, &thread, ALL);
        let (before, begun) = (A.free_bytes().0, A.os.clock());
        FINISH.store(finish, Ordering::Relaxed);
        A.os.set_onward(Onward::Go);
        A.os.report_pressure(reports);
        A.os.set_within(Moment::PurgeRuns, batch);
        let leave = A.help();
        let took = A.os.clock() - begun;
        assert!(A.os.helper().take_leave(&leave));
        assert!((10..most_ms + 40).contains(&took), "{took} ms, finishes: {finish}, {reports} reports");
        let left = A.free_bytes().0;
        assert!(before >= ALL / 2 && left > before / 2, "{left} of {before} bytes, finishes: {finish}");
        A.os.set_within(Moment::Publish, || ());
        A.purge();
    }
}
