//! The helper thread of the simulated process.

use crate::sched::{FOREVER, sched};
use crate::seat;
use crate::world::world;

/// Keys that the helper and those who start it wait for.
const START: usize = 1;
const SLEEP: usize = 2;
const END: usize = 3;

/// Keys of a helper that rests.
pub const RESTS: [usize; 2] = [START, SLEEP];

/// The helper, as others see it.
#[derive(Debug, Default)]
pub struct Helper {
    /// It was started and has not ended.
    alive: bool,
    woken: bool,
    /// Callers who want none now.
    stops: u32,
    kept_away: bool,
    /// It died with a fork.
    lost: bool,
}

impl Helper {
    /// Whether there is one.
    pub fn is_alive(&self) -> bool {
        self.alive
    }
}

/// Starts the helper; false if there can be none.
pub fn start() -> bool {
    if world().helper.lost {
        return false;
    }
    // One that has resigned is about to end.
    while world().helper.alive {
        sched().wait(END, FOREVER);
    }
    let h = &mut world().helper;
    h.kept_away = h.stops > 0;
    if h.kept_away {
        return false;
    }
    h.alive = true;
    sched().wake(START, true);
    true
}

/// Whether there may be one after all.
pub fn may_start() -> bool {
    world().helper.kept_away && world().helper.stops == 0
}

/// Wakes it before its time.
pub fn wake() {
    world().helper.woken = true;
    sched().wake(SLEEP, true);
}

/// In the child of a fork there is no helper, and none can be started: the child does not run for long.
pub fn forked() -> bool {
    world().helper.lost = true;
    world().helper.kept_away = false;
    core::mem::take(&mut world().helper.alive)
}

/// Runs `f` while there is no helper.
pub fn without(f: impl FnOnce()) {
    world().helper.stops += 1;
    while world().helper.alive {
        wake();
        sched().wait(END, sched().clock + 5);
    }
    f();
    world().helper.stops -= 1;
    seat::in_call(|_| world().a.resume_purging());
}

/// What the helper does all its life, and the next one after it.
pub fn run() {
    let a = &world().a;
    loop {
        while !world().helper.alive {
            sched().wait(START, FOREVER);
        }
        a.look_at_limit();
        let mut wait = a.tick_length();
        let ended = loop {
            let h = &mut world().helper;
            if !core::mem::take(&mut h.woken) && h.stops == 0 {
                sched().wait(SLEEP, sched().clock + u64::from(wait));
            }
            let h = &mut world().helper;
            h.woken = false;
            if h.stops > 0 {
                break false;
            }
            match a.tick() {
                Some(next) => wait = next,
                None => break true,
            }
        };
        if !ended {
            a.leave_purging();
        }
        world().helper.alive = false;
        sched().wake(END, true);
    }
}
