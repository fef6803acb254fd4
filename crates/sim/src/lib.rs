//! Deterministic simulation of neap's core: virtual threads, handlers, a helper, forks and the system on one real thread.
//! Empty unless built with `--cfg neap_sim`; `cargo xtask sim` builds and runs it. See `docs/testing.md`.
#![cfg(neap_sim)]
#![deny(unsafe_op_in_unsafe_fn)]

pub mod aim;
pub mod driver;
pub mod helper;
pub mod memory;
pub mod os;
pub mod pattern;
pub mod places;
pub mod process;
pub mod random;
pub mod report;
pub mod scenario;
pub mod sched;
pub mod seat;
pub mod shrink;
pub mod stack;
pub mod system;
pub mod world;

pub use report::{child_failed, finding, is_child};

use scenario::Scenario;
use sched::{Choices, Sched};
use stack::ThreadStack;
use world::World;

/// Runs a scenario once; a finding ends the process. Returns the steps.
pub fn simulate(scenario: &Scenario, stacks: &mut Vec<ThreadStack>, choices: &mut Choices) -> u64 {
    let world = World::new(scenario);
    let config = &scenario.config;
    let mut sched = Sched::new(config.seed, config.policy(), config.handlers, world::handle, seat::flush);
    sched.rare = config.rare;
    sched.choices = core::mem::take(choices);
    sched.explores = config.explore == 0;
    let mut stack = || stacks.pop().unwrap_or_default();
    for ops in &scenario.threads {
        let ops = ops.clone();
        sched.spawn("thread", stack(), move || world::run(ops));
    }
    sched.spawn("helper", stack(), helper::run);
    sched.run(scenario.threads.len());
    let steps = sched.real_steps();
    *choices = core::mem::take(&mut sched.choices);
    stacks.extend(sched.into_stacks());
    drop(world);
    steps
}
