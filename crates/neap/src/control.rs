//! What a program can read and set while it runs. The C functions of `include/neap.h` do the same.

use core::ffi::c_void;
use core::fmt;
use core::time::Duration;
use neap_control::hooks;

pub use neap_control::options::Error as OptionError;
pub use neap_control::stats::Stats;

/// The value of an option in force. It is shown as it would be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value(neap_options::Value<'static>);

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Where the value of an option comes from. It is shown in words: `default`, `the program`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin(neap_options::Origin);

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The value of an option in force, and where it comes from. `docs/options.md` lists the options.
pub fn option(name: &str) -> Result<(Value, Origin), OptionError> {
    let option = neap_control::options::find(name)?;
    Ok((Value(neap_control::options::value(option)), Origin(neap_control::options::origin(option))))
}

/// Sets an option. The new value also applies to memory that already waits to go back.
///
/// ```
/// neap::set_option("purge_delay", "2s")?;
/// assert_eq!(neap::option("purge_delay")?.0.to_string(), "2s");
/// assert_eq!(neap::set_option("purge", "sometimes"), Err(neap::OptionError::BadValue));
/// # Ok::<(), neap::OptionError>(())
/// ```
pub fn set_option(name: &str, value: &str) -> Result<(), OptionError> {
    neap_control::options::set(name, value.as_bytes())
}

/// How much memory is where, now: exact if no other thread allocates or frees at the time. Allocates nothing.
pub fn stats() -> Stats {
    neap_control::stats::read()
}

/// How much memory the system holds for the allocator, resident or swapped out: OS pages of blocks, of free memory that
/// waits, and of tables. neap asks the kernel, which takes about a millisecond for some hundred MiB. If the kernel
/// cannot tell (without /proc, or under a seccomp filter that the program has set), neap adds up its own records: OS
/// pages of small blocks that were handed out and did not go back, large blocks, and free memory that waits.
pub fn held_bytes() -> usize {
    neap_sys::global::held()
}

/// What [`trim`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Trimmed {
    /// Bytes of address space that were given back.
    pub addresses: usize,
    /// How many of them held memory, as far as the system can tell.
    pub memory: usize,
    /// Whether everything was done before the time was over.
    pub complete: bool,
}

/// Gives free memory back to the system now: the caches of all threads, free ranges except `keep` bytes, and the free
/// OS pages among small blocks. With a `budget` it ends after about that time, which it checks after each heap and each
/// batch of at most 4 MiB. Other threads wait no longer than one of those takes.
pub fn trim(keep: usize, budget: Option<Duration>) -> Trimmed {
    let done = neap_control::trim::trim(keep, budget);
    Trimmed { addresses: done.bytes, memory: done.held, complete: done.complete }
}

/// Says that the calling thread will be idle: its caches now serve other threads, or go back to the system as the
/// options say.
pub fn thread_idle() {
    neap_control::trim::rest();
}

/// What a hook is called for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SampleEvent {
    /// The block was allocated.
    Allocated,
    /// The block, which was a sample, is about to be freed.
    Freed,
}

/// A sampled block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sample {
    /// What happens to it.
    pub event: SampleEvent,
    /// The block: live from the first event until the second one returns.
    pub block: *mut u8,
    /// Requested bytes; 0 when it is freed.
    pub requested: usize,
    /// Its usable bytes.
    pub usable: usize,
    /// Bytes for which it stands; 0 when it is freed.
    pub weight: u64,
}

/// From now on neap calls `hook` for samples, on average one every `interval` bytes (0 counts as 1: every
/// block). It replaces the hook before. Returns false if there is no memory for that.
///
/// Each byte that a thread requests starts a sample with the same chance. A block of `s` bytes is a sample with the
/// probability `p = 1 - exp(-s / interval)`, and its weight is `s / p`, so on average the sum of weights is the number
/// of requested bytes. The hook runs in the thread that allocates or frees, outside of all locks of the allocator. It
/// may allocate; what it allocates is not sampled, and no hook is called for samples that are freed in a hook. It must
/// not unwind, and must not take a lock that the program holds while it allocates. Without a hook sampling costs
/// nothing; with one each allocation takes its slow path.
pub fn on_sample(hook: fn(&Sample), interval: usize) -> bool {
    // SAFETY: `call` takes any such function, at any time.
    unsafe { hooks::set(call, hook as *mut c_void, interval) }
}

/// Ends sampling. Another thread may still be in the hook, or about to call it.
pub fn stop_sampling() {
    hooks::clear();
}

/// Calls the Rust hook in `context`.
///
/// # Safety
/// `sample` must be valid, and `context` a `fn(&Sample)`.
unsafe extern "C" fn call(sample: *const hooks::Sample, context: *mut c_void) {
    // SAFETY: `hooks` passes what `on_sample` gave it, a `fn(&Sample)`, and a sample that is valid for the call.
    let (hook, s) = unsafe { (core::mem::transmute::<*mut c_void, fn(&Sample)>(context), &*sample) };
    let event = if s.event == hooks::FREED { SampleEvent::Freed } else { SampleEvent::Allocated };
    let (block, requested, usable, weight) = (s.block.cast(), s.requested, s.usable, s.weight);
    hook(&Sample { event, block, requested, usable, weight });
}
