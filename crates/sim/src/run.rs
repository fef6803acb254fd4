//! One run of a scenario.

use crate::choices::Choices;
use crate::scenario::Scenario;
use crate::sched::Sched;
use crate::stack::ThreadStack;
use crate::world::World;
use crate::{helper, slot, threads};

/// Runs a scenario once; a finding ends the process. Returns the steps.
pub fn simulate(scenario: &Scenario, stacks: &mut Vec<ThreadStack>, choices: &mut Choices) -> u64 {
    let world = World::new(scenario);
    let config = &scenario.config;
    let mut sched = Sched::new(config.seed, config.policy(), config.handlers, threads::handle, slot::flush);
    sched.rare = config.rare;
    sched.choices = core::mem::take(choices);
    sched.explores = config.explore == 0;
    let mut stack = || stacks.pop().unwrap_or_default();
    for ops in &scenario.threads {
        let ops = ops.clone();
        sched.spawn("thread", stack(), move || threads::run(ops));
    }
    sched.spawn("helper", stack(), helper::run);
    sched.run(scenario.threads.len());
    let steps = sched.real_steps();
    *choices = core::mem::take(&mut sched.choices);
    stacks.extend(sched.into_stacks());
    drop(world);
    steps
}
