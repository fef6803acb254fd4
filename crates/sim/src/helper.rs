//! The helper thread of the simulated process.

use crate::finding;
use crate::process::START;
use crate::sched::{FOREVER, sched};
use crate::world::world;
use neap_core::Os;

/// Keys of a resting helper.
pub fn rests() -> [usize; 2] {
    [START, world().a.os.helper().wake().as_ptr().addr()]
}

/// Runs `f` while no helper runs.
pub fn without(f: impl FnOnce()) {
    let none = || {
        if world().a.os.process.has_helper() {
            finding("a helper lives although a call wants none");
        }
    };
    world().a.without_helper(false, none, || {
        f();
        none();
    });
}

/// The whole life of each helper.
pub fn run() {
    let a = &world().a;
    loop {
        while !a.os.process.has_helper() {
            sched().wait(START, FOREVER);
        }
        while !a.os.helper().take_leave(&a.help()) {}
        a.os.process.helper_ended();
        sched().wake(a.os.helper().state().as_ptr().addr(), true);
    }
}
