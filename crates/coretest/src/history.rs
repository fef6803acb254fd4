//! Histories: sequences of operations on an allocator, each encoded in eight bytes. Property tests, the fuzzer and
//! stored cases share this form.

use crate::fake::{Call, Config};
use neap_core::os::Memory;
use neap_core::policy::{self, HugePages, Limit, Policy, Purge};
use neap_core::{CHUNK, class};

/// Number of bytes of an encoded operation, and of an encoded set-up.
pub const OP_BYTES: usize = 8;

/// One operation. Any `heap` and `block` are valid: they are taken modulo the number of heaps and blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are the call's arguments")]
pub enum Op {
    /// malloc
    Malloc { heap: u8, size: usize },
    /// calloc
    Calloc { heap: u8, size: usize },
    /// aligned_alloc, zeroed or not
    Aligned { heap: u8, size: usize, align: usize, zero: bool },
    /// realloc
    Realloc { heap: u8, block: u16, size: usize },
    /// free, by any heap or (heap 7) by a thread without a heap
    Free { heap: u8, block: u16 },
    /// malloc of one size, many times
    Fill { heap: u8, size: usize, count: u16 },
    /// free of every `step`-th block, many times, in the order of allocation
    Drain { heap: u8, block: u16, count: u16, step: u8 },
    /// the first call of a new thread
    Acquire { cached: bool },
    /// the end of a thread
    Abandon { heap: u8 },
    /// the caches of a heap go back to the slabs
    DropCaches { heap: u8 },
    /// malloc_trim
    Purge,
    /// a check of a block's contents and usable size
    Check { block: u16 },
    /// time passes
    Advance { milliseconds: u32 },
    /// a tick of the purger
    Tick,
    /// the system swaps out random pages, more with a higher `share`
    SwapOut { share: u8, seed: u16 },
    /// the system takes back random pages that were purged lazily
    Reclaim { seed: u16 },
}

/// The system that a history runs on, and the choices of its user.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The fake's configuration.
    pub config: Config,
    /// Whether the first heap has caches.
    pub cached: bool,
    /// Probability that a call fails.
    pub fault: f64,
    /// Whether threads have thread slots, so that handshakes with them are possible.
    pub slots: bool,
    /// The settings of the user.
    pub choices: Choices,
}

impl Default for Setup {
    fn default() -> Self {
        Setup { config: Config::default(), cached: true, fault: 0.0, slots: true, choices: Choices::default() }
    }
}

/// The settings of a user, see [`Policy`].
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the fields are the policy's")]
pub struct Choices {
    pub purge: Purge,
    pub delay: u32,
    pub bytes: Option<usize>,
    pub zero_always: bool,
    pub mmap_threshold: usize,
    pub limit: Limit,
    pub harden: bool,
}

impl Default for Choices {
    fn default() -> Self {
        Choices {
            purge: Purge::Decay,
            delay: policy::DELAY_MS,
            bytes: None,
            zero_always: false,
            mmap_threshold: usize::MAX,
            limit: Limit::Auto,
            harden: false,
        }
    }
}

impl Choices {
    /// Sets the choices in `policy`, except `harden`, which needs the allocator.
    pub fn set(&self, policy: &Policy) {
        policy.set_huge(HugePages::Adaptive);
        policy.set_purge(self.purge);
        policy.set_delay(self.delay);
        policy.set_bytes(self.bytes);
        policy.set_zero_always(self.zero_always);
        policy.set_mmap_threshold(self.mmap_threshold);
        policy.set_limit(self.limit);
    }

    /// Decodes choices; most numbers mean the defaults.
    fn decode(a: u8, b: u8, c: u8) -> Self {
        Choices {
            purge: [Purge::Decay, Purge::Decay, Purge::Eager, Purge::Lazy, Purge::Never][usize::from(a % 5)],
            delay: [policy::DELAY_MS, 0, 20, 5000][usize::from(b & 3)],
            bytes: [None, None, Some(0), Some(2 << 20)][usize::from(b >> 2 & 3)],
            mmap_threshold: [usize::MAX, usize::MAX, 0, 128 << 10][usize::from(b >> 4 & 3)],
            zero_always: b >> 6 == 0,
            limit: [Limit::Auto, Limit::Off, Limit::Bytes(16 << 20), Limit::Bytes(256 << 20)][usize::from(c & 3)],
            harden: c >> 2 & 3 == 3,
        }
    }
}

/// Sizes at which the allocator changes its way of serving a request.
const BORDERS: [usize; 14] = [
    0,
    1,
    16,
    17,
    class::MAX_TABLE,
    class::MAX_TABLE + 1,
    class::MAX_SMALL,
    class::MAX_SMALL + 1,
    CHUNK - 1,
    CHUNK,
    CHUNK + 1,
    1 << 20,
    (4 << 20) + 1,
    256 << 20,
];
/// Sizes that no system can serve.
const ABSURD: [usize; 4] =
    [1 << 47, neap_core::alloc::MAX_SIZE - CHUNK, neap_core::alloc::MAX_SIZE - 1, neap_core::alloc::MAX_SIZE];

/// Decodes a size from three bytes: mostly small, sometimes at a border, rarely long.
fn size(a: u8, b: u8, form: u8) -> usize {
    let n = usize::from(u16::from_le_bytes([a, b]));
    match form % 32 {
        0..8 => n % (class::MAX_TABLE + 1),
        8..12 => (class::SIZE[n % class::CLASSES] as usize + usize::from(form / 32) % 3).saturating_sub(1),
        12..17 => n % (class::MAX_SMALL + 1),
        17..22 => n,
        22..25 => n * 8,
        25..27 => n * 64,
        27 => (n.next_multiple_of(4096) + usize::from(form / 32)).saturating_sub(1),
        28 => (n % 64) << 20,
        29 | 30 => BORDERS[n % BORDERS.len()],
        _ => ABSURD[n % ABSURD.len()],
    }
}

impl Op {
    /// Decodes an operation. All bytes are valid.
    pub fn decode(b: [u8; OP_BYTES]) -> Op {
        let heap = b[1];
        let block = u16::from_le_bytes([b[2], b[3]]);
        let size = size(b[4], b[5], b[6]);
        match b[0] % 32 {
            0..8 => Op::Malloc { heap, size },
            8..11 => Op::Calloc { heap, size },
            11 | 12 => {
                // Mostly up to an OS page, rarely up to 4 MiB.
                let shift = if b[7] < 200 { b[7] % 13 } else { b[7] % 23 };
                Op::Aligned { heap, size, align: 1 << shift, zero: b[3] & 1 != 0 }
            }
            13..17 => Op::Realloc { heap, block, size },
            17..24 => Op::Free { heap, block },
            24 => Op::Fill { heap, size: size.min(4096), count: u16::from(b[7]) * 4 },
            25 | 26 => Op::Drain { heap, block, count: u16::from_le_bytes([b[4], b[5]]) % 2048, step: b[7] % 8 + 1 },
            27 => Op::Acquire { cached: b[7] & 3 != 0 },
            28 => Op::Abandon { heap },
            29 => Op::DropCaches { heap },
            // Operations without a heap use its byte to choose among them.
            30 => match b[1] % 8 {
                0..4 => Op::Purge,
                4 | 5 => Op::SwapOut { share: b[4], seed: block },
                6 => Op::advance(b),
                _ => Op::Tick,
            },
            _ => match b[1] % 8 {
                0..4 => Op::Check { block },
                4 => Op::SwapOut { share: b[4], seed: block },
                5 => Op::advance(b),
                6 => Op::Tick,
                _ => Op::Reclaim { seed: block },
            },
        }
    }

    /// Decodes a passage of time: mostly shorter than the delay of purges, sometimes longer, rarely minutes.
    fn advance(b: [u8; OP_BYTES]) -> Op {
        let n = u32::from(u16::from_le_bytes([b[4], b[5]]));
        let milliseconds = match b[7] % 8 {
            0..5 => n % 600,
            5 | 6 => n % 5000,
            _ => n * 16,
        };
        Op::Advance { milliseconds }
    }
}

impl Setup {
    /// Decodes a set-up. All bytes are valid.
    pub fn decode(b: [u8; OP_BYTES]) -> Setup {
        let kind = b[0] / 3;
        let mut missing = chosen(&[Call::ReserveZeros, Call::MovePages, Call::Renew, Call::Purge], b[2]);
        if kind & 1 != 0 {
            let calls =
                [Call::Touched, Call::PurgeRuns, Call::PurgeLazily, Call::Barrier, Call::Memory, Call::StartPurger];
            missing.extend(chosen(&calls, b[5] >> 2));
        }
        Setup {
            config: Config {
                page_size: 4096 << (b[0] % 3 * 2),
                address_limit: [None, None, None, Some(1 << 30), Some(128 << 20), Some(32 << 20)]
                    [usize::from(b[1] % 6)],
                reservations: [None, None, None, Some(1), Some(2)][usize::from(b[2] / 16 % 5)],
                places: None,
                missing,
                touched_runs: [None, None, Some(1), Some(3)][usize::from(kind / 4 % 4)],
                memory: MEMORY[usize::from(kind / 16 % 4)],
                purger: kind & 2 != 0,
                huge: b[4] >> 6 == 1,
                unasked_huge: false,
                pool: (b[4] >> 6 == 2).then_some((usize::from(b[3] % 24), false)),
                seed: u64::from(b[3]) << 8 | u64::from(b[4]),
            },
            cached: b[5] & 3 != 0,
            fault: if b[6] < 192 { 0.0 } else { f64::from(b[7]) / 512.0 },
            slots: b[4] & 7 != 0,
            // Shares bytes with the seed and the faults.
            choices: Choices::decode(b[6], b[3], b[4] >> 3),
        }
    }
}

/// Values of [`neap_core::Os::memory`]: unknown, plenty left, nearly used up, threads wait for memory.
const MEMORY: [Option<Memory>; 4] = [
    None,
    Some(Memory { limit: 64 << 30, used: 1 << 30, stalled: false }),
    Some(Memory { limit: 1 << 30, used: (1 << 30) - (4 << 20), stalled: false }),
    Some(Memory { limit: 256 << 20, used: 200 << 20, stalled: true }),
];

/// The calls whose bit is set.
fn chosen(calls: &[Call], bits: u8) -> Vec<Call> {
    calls.iter().enumerate().filter(|(i, _)| bits >> i & 1 != 0).map(|(_, &call)| call).collect()
}

/// Decodes a set-up and a history from any bytes; ignores an incomplete operation at the end.
pub fn decode(bytes: &[u8]) -> Option<(Setup, Vec<Op>)> {
    let (parts, _) = bytes.as_chunks::<OP_BYTES>();
    let (first, rest) = parts.split_first()?;
    Some((Setup::decode(*first), rest.iter().map(|b| Op::decode(*b)).collect()))
}
