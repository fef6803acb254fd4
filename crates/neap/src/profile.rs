//! Profiles of the heap: which code holds memory, and which code allocates.
//!
//! neap keeps samples of blocks with the stacks that allocated them. Each byte starts a sample with the same
//! probability, and a sample stands for the bytes around it, so sums are right on average. For each stack a profile has
//! what was allocated since samples are kept, and what is live. `examples/pprof.rs` serves profiles by HTTP, as Go
//! programs do.
//!
//! ```
//! # #[global_allocator]
//! # static ALLOCATOR: neap::Neap = neap::Neap;
//! neap::profile::start(0)?;
//! let kept: Vec<Vec<u8>> = (0..100).map(|_| vec![1; 100_000]).collect();
//! let mut bytes = Vec::new();
//! neap::profile::write(neap::profile::Kind::Heap, |piece| {
//!     bytes.extend_from_slice(piece);
//!     true
//! })?;
//! assert!(!bytes.is_empty());
//! # drop(kept);
//! # Ok::<(), neap::profile::Error>(())
//! ```

pub use neap_control::profile::{Error, Kind};

/// Begins to keep samples that are `interval` bytes apart on average; 0: the default of 512 KiB; 1: every block
/// (slower). Blocks that were allocated before are in no profile. The child of a fork starts without samples and keeps
/// its own.
///
/// # Errors
/// [`Error::NoMemory`]: there is no memory for the samples (5 MiB; 35 MiB with an interval of 1).
pub fn start(interval: usize) -> Result<(), Error> {
    neap_control::profile::start(interval)
}

/// Stops keeping samples. Samples so far stay in profiles, and neap still records when they are freed; [`start`]
/// continues. (It does not record frees of blocks that were kept with an interval of 1: they count as freed when
/// samples are kept again.)
pub fn stop() {
    neap_control::profile::stop();
}

/// Passes a profile to `take`, in pieces of at most some KiB, until `take` returns false. The format is that of `go
/// tool pprof` and other readers of `profile.proto`, without compression, with mappings and build ids instead of names
/// of functions. The writer itself allocates nothing; `take` may.
///
/// # Errors
/// [`Error::NoSamples`]: none were taken in this process. [`Error::NotWritten`]: `take` returned false.
/// [`Error::NoMemory`]: there is no memory for the work.
pub fn write(kind: Kind, mut take: impl FnMut(&[u8]) -> bool) -> Result<(), Error> {
    neap_control::profile::write(kind, &mut take)
}
