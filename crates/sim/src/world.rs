//! The simulated process: its allocator, its blocks, and the progress of its threads.

use crate::blocks::{Block, Blocks};
use crate::config::{Config, habits};
use crate::life::Life;
use crate::random::Random;
use crate::scenario::{Kind, Scenario};
use crate::sched::sched;
use crate::system::System;
use neap_core::policy::HugePages;
use neap_core::sync::Threads;
use neap_core::{Allocator, Os};

/// The process.
pub struct World {
    /// The system, the policies.
    pub config: Config,
    /// The allocator.
    pub a: Box<Allocator<System>>,
    /// Storage of threads that ended with their heaps, until all threads meet.
    graves: Vec<Life>,
    /// Whether heaps of ended threads stay as they were.
    pub vanished: bool,
    random: Vec<Random>,
    /// The live blocks.
    pub blocks: Blocks,
    /// Number of threads that have not ended.
    pub alive: usize,
    /// Threads that wait for the others.
    pub arrived: usize,
    /// Number of meetings.
    pub meetings: u64,
    /// Forks so far.
    pub forks: u32,
    /// Whether handlers may fork.
    pub may_fork: bool,
    /// Whether calls may leave work for later calls of other threads.
    pub leaves_notes: bool,
}

static mut WORLD: *mut World = core::ptr::null_mut();

/// The process of the present run.
pub fn world() -> &'static mut World {
    // SAFETY: there is one real thread, and a run in progress. References do not live over a point.
    unsafe { &mut *WORLD }
}

impl World {
    /// A process that has done nothing yet. It is the current one until it is dropped.
    pub fn new(scenario: &Scenario) -> Box<World> {
        let config = scenario.config.clone();
        let a = Box::new(Allocator::new(System::new(config.clone())));
        let choices = config.choices();
        choices.set(&a.policy);
        a.policy.set_huge(HugePages::ALL[config.seed as usize % HugePages::ALL.len()]);
        if choices.harden {
            a.harden();
        }
        // As `neap-sys` does when the process first uses the allocator.
        a.os.helper().is_owner(a.os.process());
        let count = scenario.threads.len();
        let has = |kind| scenario.threads.iter().flatten().any(|op| op.kind == kind);
        let may_fork = has(Kind::Fork);
        let leaves_notes = config.handlers != 0 || has(Kind::Vfork) || config.habits & habits::RIGHTS != 0;
        a.os.lives().extend((0..count).map(|_| Life::new(a.os.process.new_thread())));
        let mut world = Box::new(World {
            graves: Vec::new(),
            vanished: false,
            random: (0..count).map(|i| Random::new(config.seed, 100 + i as u64)).collect(),
            config,
            a,
            blocks: Blocks::default(),
            alive: count,
            arrived: 0,
            meetings: 0,
            forks: 0,
            may_fork,
            leaves_notes,
        });
        // SAFETY: one real thread.
        unsafe { WORLD = &raw mut *world };
        world
    }

    /// Whether this is the child of a fork.
    pub fn is_child(&self) -> bool {
        self.a.os.process.is_child()
    }

    /// A thread has ended with its heap.
    pub fn bury(&mut self, life: Life) {
        self.vanished = true;
        self.graves.push(life);
    }

    /// Frees the storage of threads that ended with their heaps.
    pub fn clear_graves(&mut self) {
        self.graves.clear();
    }

    /// The random numbers of the running thread.
    pub fn random(&mut self) -> &mut Random {
        let me = sched().current;
        &mut self.random[me]
    }

    /// Takes a live block out of the model; one of the running thread's if `own`.
    pub fn take(&mut self, pick: u64, own: bool) -> Option<Block> {
        let me = sched().current;
        self.blocks.take_if(pick, |owner| !own || owner == me)
    }
}
