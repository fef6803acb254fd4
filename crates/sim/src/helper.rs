//! The helper thread of the simulated process.

use crate::finding;
use crate::sched::{FOREVER, is_running, sched};
use crate::world::world;
use neap_core::Os;

/// Key that the virtual thread of the helpers waits for.
const START: usize = 1;

/// The helper, as others see it.
#[derive(Debug, Default)]
pub struct Helper {
    /// It was started and has not done its last step.
    alive: bool,
    /// It died with a fork.
    lost: bool,
}

impl Helper {
    /// Whether there is one.
    pub fn is_alive(&self) -> bool {
        self.alive
    }
}

/// Keys of a helper that rests.
pub fn rests() -> [usize; 2] {
    [START, world().a.os.helper().wake().as_ptr().addr()]
}

/// Whether the running thread is a child of vfork.
pub fn is_guest() -> bool {
    if !is_running() {
        return false;
    }
    let current = sched().current;
    current < 32 && world().guests >> current & 1 != 0
}

/// Starts the helper; false if there can be none.
pub fn start() -> bool {
    let h = &mut world().helper;
    if h.lost {
        return false;
    }
    if core::mem::replace(&mut h.alive, true) {
        finding("a helper is started while another one has not ended");
    }
    if is_guest() {
        finding("a child of vfork starts a helper, which ends with it");
    }
    sched().wake(START, true);
    true
}

/// In the child of a fork there is no helper, and none can be started: the child does not run for long.
pub fn forked() -> bool {
    world().helper.lost = true;
    core::mem::take(&mut world().helper.alive)
}

/// Runs `f` while there is no helper.
pub fn without(f: impl FnOnce()) {
    let none = || {
        if world().helper.alive {
            finding("a helper lives although a call wants none");
        }
    };
    world().a.without_helper(none, || {
        f();
        none();
    });
}

/// What each helper does all its life.
pub fn run() {
    let a = &world().a;
    loop {
        while !world().helper.alive {
            sched().wait(START, FOREVER);
        }
        while !a.os.helper().take_leave(&a.help()) {}
        world().helper.alive = false;
        sched().wake(a.os.helper().state().as_ptr().addr(), true);
    }
}
