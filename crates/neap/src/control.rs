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

/// Who chose the value of an option. It is shown in words: `default`, `the program`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin(neap_options::Origin);

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The value of an option in force, and who chose it. `docs/options.md` lists the options.
pub fn option(name: &str) -> Result<(Value, Origin), OptionError> {
    let option = neap_control::options::find(name)?;
    Ok((Value(neap_control::options::value(option)), Origin(neap_control::options::origin(option))))
}

/// Sets an option. What waits to go back to the system goes by the new value from now on.
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

/// How much memory is where, now: exact where no other thread allocates or frees at the time. Allocates nothing.
pub fn stats() -> Stats {
    neap_control::stats::read()
}

/// How much memory the system holds for the allocator: OS pages of blocks, of free memory that waits, and of tables, that
/// are resident or swapped out. The kernel is asked, which takes it about a millisecond for some hundred MiB. Where it
/// cannot tell (without /proc, under the program's own filter of system calls), the allocator's own books say: OS pages
/// of small blocks that were handed out and did not go back, large blocks, and free memory that waits.
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
    /// It was done before its time was up.
    pub complete: bool,
}

/// Gives free memory back to the system now, but for `keep` bytes of free ranges: the caches of all threads, free ranges,
/// and the free OS pages among small blocks. With a `budget` it ends after about that time; it looks at it after each
/// heap and each batch of at most 4 MiB. Other threads wait for no longer than one of those.
pub fn trim(keep: usize, budget: Option<Duration>) -> Trimmed {
    let done = neap_control::trim::trim(keep, budget);
    Trimmed { addresses: done.bytes, memory: done.held, complete: done.complete }
}

/// The calling thread will be idle: its caches serve others from now on, or go back to the system as the options say.
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
    /// Bytes that were asked for; 0 when it is freed.
    pub requested: usize,
    /// Its usable bytes.
    pub usable: usize,
    /// Bytes that it stands for; 0 when it is freed.
    pub weight: u64,
}

/// From now on `hook` is called for samples, on average one every `interval` bytes (0 counts as 1: every block). It replaces
/// the one before. False if there is no memory for that.
///
/// Each byte that a thread asks for starts a sample with the same chance. A block of `s` bytes is one with the probability
/// `p = 1 - exp(-s / interval)`, and its weight is `s / p`: so the sum of weights is the bytes that were asked for, in the
/// mean. The hook runs in the thread that allocates or frees, outside of all locks of the allocator. It may allocate; what
/// it allocates is not sampled, and for samples that are freed in a hook no hook is called. It must not unwind, and not take
/// a lock that the program holds while it allocates. Without a hook sampling costs nothing; with one each allocation takes
/// its slow path.
pub fn on_sample(hook: fn(&Sample), interval: usize) -> bool {
    // SAFETY: `call` takes any such function, at any time.
    unsafe { hooks::set(call, hook as *mut c_void, interval) }
}

/// Ends sampling. Another thread may be in a hook still, or about to call it.
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
