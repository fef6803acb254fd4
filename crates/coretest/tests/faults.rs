//! Each call to the system fails once, in turn, under a random history: the caller gets NULL or is served in another
//! way, and nothing else changes.

use neap_core::os::Memory;
use neap_core::policy::Purge;
use neap_coretest::fake::CALLS;
use neap_coretest::history::OP_BYTES;
use neap_coretest::{Call, Choices, Config, Model, Op, Setup};

/// A history that makes many system calls: long blocks, reallocs of them, purges.
fn workload(seed: u64, len: usize) -> Vec<Op> {
    let mut state = seed;
    let mut next = || {
        // xorshift64*, so that the test is the same everywhere.
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        state.wrapping_mul(0x2545_F491_4F6C_DD1D).to_le_bytes()
    };
    let mut bytes: [u8; OP_BYTES];
    let mut ops = Vec::new();
    while ops.len() < len {
        bytes = next();
        ops.push(match bytes[7] % 8 {
            // Grows step by step, so that it sometimes moves.
            0 | 1 => Op::Realloc {
                heap: bytes[0],
                block: u16::from(bytes[1]),
                size: usize::from(u16::from_le_bytes([bytes[2], bytes[3]])) * 128,
            },
            2 => Op::Malloc { heap: bytes[0], size: usize::from(bytes[2]) << 14 },
            3 => Op::Free { heap: bytes[0], block: u16::from(bytes[1]) },
            4 if bytes[6] < 64 => Op::Purge,
            4 if bytes[6] < 128 => Op::Tick,
            5 if bytes[6] < 64 => Op::Calloc { heap: bytes[0], size: usize::from(bytes[2]) << 14 },
            // Thousands of small blocks would hide the long ones.
            _ => match Op::decode(bytes) {
                Op::Fill { heap, size, .. } => Op::Malloc { heap, size },
                op => op,
            },
        });
    }
    ops
}

/// The systems to test on, with and without a purger, with different policies. Together they make every call.
fn systems() -> Vec<Setup> {
    let on = |page_size, address_limit, reservations, purger, purge| Setup {
        config: Config {
            page_size,
            address_limit,
            reservations,
            purger,
            memory: Some(Memory { limit: 64 << 20, used: 16 << 20, stalled: false }),
            ..Config::default()
        },
        choices: Choices { purge, delay: 100, ..Choices::default() },
        ..Setup::default()
    };
    let mut hardened = on(4096, None, None, true, Purge::Decay);
    hardened.choices.harden = true;
    let mut pool = on(4096, None, None, true, Purge::Decay);
    pool.config.pool = Some((8, false));
    pool.config.huge = true;
    vec![
        on(4096, None, None, true, Purge::Decay),
        on(4096, Some(96 << 20), Some(1), false, Purge::Decay),
        // A limit that leaves little beside the reservations, so that reservations go back.
        on(65536, Some(70 << 30), None, true, Purge::Lazy),
        on(16384, Some(64 << 20), None, false, Purge::Eager),
        hardened,
        pool,
    ]
}

fn run(setup: &Setup, ops: &[Op], plan: impl Fn(&Model)) -> Vec<u64> {
    let mut model = Model::unused(setup);
    plan(&model);
    model.acquire(setup.cached);
    for op in ops {
        model.step(*op);
    }
    let counts = CALLS.iter().map(|&call| model.a.os.faults.count(call)).collect();
    model.finish();
    counts
}

/// Catches a call whose failure is ignored, or leaves a structure half changed.
#[test]
fn each_call_fails_once() {
    let mut seen = vec![0; CALLS.len()];
    for (i, setup) in systems().iter().enumerate() {
        let ops = workload(0x5EED + i as u64, 250);
        let counts = run(setup, &ops, |_| ());
        for (call, &count) in CALLS.iter().zip(&counts) {
            seen[*call as usize] += count;
            // The first twelve calls, then at growing distances.
            let mut n = 1;
            while n <= count {
                run(setup, &ops, |model| model.a.os.faults.fail_nth(*call, n));
                n += 1 + n / 12;
            }
        }
    }
    let never: Vec<_> = CALLS.iter().zip(&seen).filter(|&(_, &n)| n == 0).map(|(call, _)| *call).collect();
    // These systems have too few slabs for these calls: `grow.rs` and `huge_areas.rs` make them fail.
    assert_eq!(never, [Call::Populate, Call::PopulateHuge, Call::Promote], "kinds of calls that were never made");
}

/// Catches a failure path that fails when taken often: every call fails with one chance in three.
#[test]
fn many_calls_fail() {
    for setup in systems() {
        for seed in 1..12 {
            let mut setup = Setup { fault: 0.33, ..setup.clone() };
            setup.config.seed = seed;
            run(&setup, &workload(seed, 250), |_| ());
        }
    }
}

/// Catches a caller that relies on a call which may be missing: each kind always fails, in turn.
#[test]
fn each_call_is_missing() {
    for setup in systems() {
        for call in CALLS {
            let mut setup = setup.clone();
            setup.config.missing.push(call);
            run(&setup, &workload(3, 200), |_| ());
        }
    }
}

/// Catches a crash where no arena can be had: the system grants no chosen address, and every request is refused.
#[test]
fn no_arena_at_all() {
    let mut setup = systems().swap_remove(0);
    setup.config.missing.push(Call::Reserve);
    let mut model = Model::new(&setup);
    model.step(Op::Malloc { heap: 0, size: 100 });
    model.step(Op::Calloc { heap: 0, size: 10 << 20 });
    assert_eq!(model.a.free_bytes(), (0, 0));
    model.finish();
}
