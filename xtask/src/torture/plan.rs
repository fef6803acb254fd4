//! The plan of a run: program, options and injected system calls, all from one seed.

use std::fmt::Write;

use crate::attributes;

/// A random number generator that depends only on its seed (splitmix64).
pub struct Draw(u64);

impl Draw {
    pub fn new(seed: u64) -> Self {
        Draw(seed)
    }
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let x = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ x >> 31
    }
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

/// How system calls are delayed or made to fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Inject {
    None,
    /// Arguments of strace: the program is started without a filter, and runs slowly.
    Strace(Vec<String>),
    /// Rules of tests/torture/inject.c: fast, under a filter.
    Filter(Vec<String>),
}

/// What a profile injects.
#[derive(Clone, Copy)]
enum Injection {
    /// By chance: nothing, strace or a filter.
    Any,
    Strace(&'static [&'static str]),
    Nothing,
}

/// A kind of run. Each looks for one kind of fault; chance adds actors, options and injected calls.
struct Profile {
    name: &'static str,
    actors: &'static [&'static str],
    env: &'static [(&'static str, &'static str)],
    /// Options, and the values of which each run draws one.
    drawn: &'static [(&'static str, &'static [&'static str])],
    injection: Injection,
    /// Number of further random actors.
    extras: usize,
    /// Whether further random options are set.
    options: bool,
    /// A limit of a memory cgroup, MiB.
    memory: Option<u64>,
    /// Whether other processes ask for profiles.
    asked: bool,
    /// Whether the machine's pool of huge pages grows and is taken away meanwhile.
    pool: bool,
    /// Limit on the number of attributes that the program changes.
    changes: usize,
}

const fn profile(name: &'static str, actors: &'static [&'static str]) -> Profile {
    Profile {
        name,
        actors,
        env: &[],
        drawn: &[],
        injection: Injection::Any,
        extras: 1,
        options: true,
        memory: None,
        asked: false,
        pool: false,
        changes: 0,
    }
}

impl Profile {
    const fn env(mut self, env: &'static [(&'static str, &'static str)]) -> Self {
        self.env = env;
        self
    }
    const fn drawn(mut self, drawn: &'static [(&'static str, &'static [&'static str])]) -> Self {
        self.drawn = drawn;
        self
    }
    const fn injection(mut self, injection: Injection) -> Self {
        self.injection = injection;
        self
    }
    const fn extras(mut self, extras: usize) -> Self {
        self.extras = extras;
        self
    }
    const fn memory(mut self, mib: u64) -> Self {
        self.memory = Some(mib);
        self
    }
    const fn asked(mut self) -> Self {
        self.asked = true;
        self
    }
    const fn pool(mut self) -> Self {
        self.pool = true;
        self
    }
    const fn changes(mut self, most: usize) -> Self {
        self.changes = most;
        self
    }
    const fn without_options(mut self) -> Self {
        self.options = false;
        self
    }
}

const PROFILES: &[Profile] = &[
    profile("mix", &["worker=4"]).extras(3),
    profile("waves", &["worker=1", "waves=1"])
        .injection(Injection::Strace(&["madvise:delay_enter=250000:when=1+3"]))
        .extras(0)
        .without_options(),
    profile("lives", &["worker=2", "lives=2"]),
    profile("crowd", &["worker=1", "crowd=1"]).extras(2),
    profile("trims", &["worker=1", "holes=2", "trims=1"]).injection(Injection::Nothing).extras(0).without_options(),
    profile("forks", &["worker=2", "forks=1"]),
    profile("handlers", &["worker=1", "handlers=1"]).injection(Injection::Nothing).extras(0),
    profile("signals", &["worker=2", "forks=1", "signals"]).injection(Injection::Nothing).extras(0),
    profile("vforks", &["worker=1", "vforks=1"]).extras(0),
    profile("stacks", &["worker=1", "small_stacks=1", "trims=1"]).extras(0),
    profile("limits", &["worker=2", "limits=1"]),
    profile("mappings", &["worker=2", "mappings=1", "advice=1"])
        .injection(Injection::Nothing)
        .extras(0)
        .without_options(),
    profile("filters", &["filters=1", "small_stacks=1"]).extras(0),
    profile("guards", &["worker=1", "growth=1", "large"])
        .env(&[("NEAP_HARDEN", "on")])
        .injection(Injection::Nothing)
        .extras(0),
    profile("helper", &["worker=4", "options=1", "large"])
        .injection(Injection::Strace(&["mmap,rt_sigprocmask:delay_enter=20000"]))
        .extras(0)
        .without_options(),
    profile("clock", &["worker=3", "rests=1"])
        .injection(Injection::Strace(&["clock_gettime:error=EPERM"]))
        .extras(0)
        .without_options(),
    profile("rests", &["worker=2", "waves=1", "rests=1"]),
    profile("wrapped", &["worker=2", "libraries=1"]),
    profile("sandbox", &["worker=2", "holes=1", "trims=1", "small_stacks=1", "quick_forks=1", "sandbox=1"]).extras(0),
    profile("dense", &["worker=1", "dense=1"]).drawn(&[("NEAP_HUGE", HUGE)]),
    profile("ranges", &["worker=1", "ranges=2"]).drawn(&[("NEAP_HUGE", HUGE)]),
    profile("profiles", &["worker=2", "profiles=2"]).drawn(&[("NEAP_PROFILE", &["@", ""]), INTERVALS]),
    profile("guarded", &["worker=2", "profiles=1"])
        .drawn(&[("NEAP_GUARDS", &["on", "report"]), ("NEAP_GUARDS_INTERVAL", &["1", "4K", "64K"])]),
    profile("crowded", &["mappings=1", "dense=1", "ranges=1", "profiles=1"])
        .drawn(&[("NEAP_HUGE", HUGE)])
        .injection(Injection::Nothing)
        .extras(0),
    profile("short", &["limits=1", "dense=1", "ranges=1", "profiles=1"]).drawn(&[("NEAP_HUGE", HUGE)]).extras(0),
    profile("asked", &["worker=2"]).asked(),
    profile("pool", &["worker=2", "dense=1", "ranges=2", "pool"])
        .env(&[("NEAP_HUGE", "hugetlb")])
        .injection(Injection::Nothing)
        .extras(0)
        .pool(),
    profile("attributes", &["worker=2", "changes=2"]).changes(6),
    profile("lonely", &["worker=1", "changes=2"]).changes(2).injection(Injection::Nothing).extras(0).without_options(),
    profile("cgroup", &["worker=1", "garbage=1"]).memory(384).injection(Injection::Nothing).extras(0),
];

const HUGE: &[&str] = &["off", "adaptive", "advised", "thp", "always", "hugetlb"];
const INTERVALS: (&str, &[&str]) = ("NEAP_PROFILE_INTERVAL", &["1", "4K", "64K"]);

/// Actors that may be added to any run.
const EXTRAS: &[&str] = &[
    "waves=1",
    "lives=1",
    "forks=1",
    "trims=1",
    "rests=1",
    "libraries=1",
    "vforks=1",
    "advice=1",
    "small_stacks=1",
    "holes=1",
    "quick_forks=1",
];

/// Options and the values to try.
const OPTIONS: &[(&str, &[&str])] = &[
    ("NEAP_PURGE", &["eager", "eager", "lazy", "never"]),
    ("NEAP_PURGE_DELAY", &["0", "1ms", "5ms", "50ms", "200ms"]),
    ("NEAP_PURGE_BYTES", &["0", "1M", "16M"]),
    ("NEAP_ZERO", &["always"]),
    ("NEAP_MMAP_THRESHOLD", &["40K", "128K", "1M"]),
    ("NEAP_LIMIT", &["20M", "64M", "200M", "off"]),
    ("NEAP_HARDEN", &["on"]),
    ("NEAP_HUGE", HUGE),
    ("NEAP_COUNTERS", &["@"]),
    ("NEAP_SITES", &["@"]),
    ("NEAP_PROFILE", &["@"]),
    INTERVALS,
    ("NEAP_GUARDS", &["on", "report"]),
    ("NEAP_GUARDS_INTERVAL", &["1", "4K", "64K"]),
    ("NEAP_PREFAULT", &["8M", "all", "file:lib*"]),
    // A report on standard error would count as a complaint.
    ("NEAP_STATS", &["/dev/null"]),
    ("MALLOC_PERTURB_", &["165"]),
    ("MALLOC_TRIM_THRESHOLD_", &["131072"]),
    ("MALLOC_MMAP_THRESHOLD_", &["131072"]),
    ("MALLOC_ARENA_MAX", &["1"]),
];

/// System calls, and the errors that their manual pages name. Left out is what makes the C library end the process:
/// munmap (stacks), and all errors of futex but EAGAIN and EINTR.
const CALLS: &[(&str, &[&str])] = &[
    ("madvise", &["EAGAIN", "ENOMEM", "EINVAL", "EPERM", "EBUSY", "ENOSYS", "EINTR", "EBADF"]),
    ("mmap", &["ENOMEM", "EAGAIN", "EPERM"]),
    ("mprotect", &["ENOMEM", "EACCES"]),
    ("munmap", &[]),
    ("mremap", &["ENOMEM", "EAGAIN", "EINVAL", "EFAULT"]),
    ("futex", &["EAGAIN", "EINTR"]),
    ("membarrier", &["EINVAL", "ENOSYS", "EPERM"]),
    ("ioctl", &["ENOTTY", "EINVAL", "EPERM", "EBADF", "EINTR", "ENOMEM"]),
    ("openat", &["ENOENT", "EMFILE", "ENFILE", "EACCES", "ENOMEM", "EINTR"]),
    ("clone", &["EAGAIN", "ENOMEM", "EPERM"]),
    ("clock_gettime", &["EPERM", "EINVAL", "ENOSYS"]),
    ("prctl", &["EINVAL", "EPERM"]),
    ("clone3", &["EAGAIN", "ENOMEM", "EPERM", "ENOSYS"]),
    ("memfd_create", &["EMFILE", "ENFILE", "ENOMEM", "EINVAL", "ENOSYS", "EPERM"]),
    ("fallocate", &["ENOSPC", "EINTR", "ENOMEM", "EPERM"]),
    ("mincore", &["EAGAIN", "ENOMEM", "ENOSYS"]),
    ("rt_sigprocmask", &[]),
    ("close", &[]),
];

/// Everything about a run except the order of its threads.
#[derive(Debug)]
pub struct Plan {
    pub seed: u64,
    pub profile: &'static str,
    /// Arguments of the program.
    pub actors: Vec<String>,
    pub env: Vec<(&'static str, String)>,
    pub inject: Inject,
    /// Whether the program with its own allocator runs.
    pub wrapped: bool,
    /// Limit of the program's memory cgroup, in bytes.
    pub memory: Option<u64>,
    /// Whether other processes ask for profiles.
    pub asked: bool,
    /// Whether the machine's pool of huge pages grows and is taken away meanwhile.
    pub pool: bool,
}

/// Numbers of the profiles called `only`; if empty, of all that need not be named.
pub fn chosen(only: &str) -> Vec<usize> {
    // Only by name: registration of fork handlers, which may fail in glibc up to 2.36 itself, and profiles that change
    // settings of the machine.
    let by_name = |name: &str| matches!(name, "handlers" | "pool");
    let is_chosen = |name: &str| if only.is_empty() { !by_name(name) } else { name == only };
    (0..PROFILES.len()).filter(|&i| is_chosen(PROFILES[i].name)).collect()
}

/// The names of all profiles, for messages.
pub fn names() -> String {
    PROFILES.iter().map(|p| p.name).collect::<Vec<_>>().join(", ")
}

/// A seed like `seed` whose run has the profile `index`.
pub fn seed_for(seed: u64, index: usize) -> u64 {
    let count = PROFILES.len() as u64;
    let seed = seed >> 16;
    seed - seed % count + index as u64
}

impl Plan {
    /// The plan of a seed.
    pub fn new(seed: u64) -> Self {
        let profile = &PROFILES[(seed % PROFILES.len() as u64) as usize];
        let mut draw = Draw::new(seed);
        let mut actors: Vec<String> = profile.actors.iter().map(|&s| s.to_owned()).collect();
        for _ in 0..draw.below(profile.extras + 1) {
            let extra = draw.pick(EXTRAS);
            if !actors.iter().any(|a| a == extra) {
                actors.push(extra.to_owned());
            }
        }
        if profile.changes > 0 {
            let drawn: Vec<&str> = attributes::drawn().collect();
            for _ in 0..=draw.below(profile.changes) {
                let change = format!("+{}", draw.pick(&drawn));
                if !actors.contains(&change) {
                    actors.push(change);
                }
            }
        }
        if draw.one_in(8) {
            actors.push("mdwe".to_owned());
        }
        if draw.one_in(3) && !actors.iter().any(|a| a == "large") {
            actors.push(draw.pick(&["small", "large"]).to_owned());
        }
        let mut env: Vec<(&str, String)> = profile.env.iter().map(|&(k, v)| (k, v.to_owned())).collect();
        env.extend(profile.drawn.iter().map(|&(name, values)| (name, draw.pick(values).to_owned())));
        if profile.options {
            for _ in 0..draw.below(3) {
                let (name, values) = draw.pick(OPTIONS);
                if !env.iter().any(|(k, _)| *k == name) {
                    env.push((name, draw.pick(values).to_owned()));
                }
            }
        }
        let inject = match profile.injection {
            Injection::Nothing => Inject::None,
            Injection::Strace(rules) => Inject::Strace(rules.iter().map(|&s| s.to_owned()).collect()),
            Injection::Any => match draw.below(5) {
                0 | 1 => Inject::None,
                2 => Inject::Strace(by_strace(&mut draw)),
                // The program itself asks what is resident.
                _ => Inject::Filter(by_filter(&mut draw, if profile.name == "ranges" { &["mincore"] } else { &[] })),
            },
        };
        let memory = profile.memory.map(|mib| mib << 20);
        if memory.is_some() {
            // Without purges a third of the limit may wait, while the program takes memory that is not neap's.
            env.retain(|(name, value)| *name != "NEAP_PURGE" || value != "never");
        }
        // neap's own limit would replace the cgroup's; and the C library ends a program that has no memory for the
        // thread storage of a library.
        if memory.is_some() || actors.iter().any(|actor| actor.starts_with("libraries")) {
            env.retain(|(name, _)| *name != "NEAP_LIMIT");
        }
        let wrapped = profile.name == "wrapped";
        let (asked, pool) = (profile.asked, profile.pool);
        let mut plan = Plan { seed, profile: profile.name, actors, env, inject, wrapped, memory, asked, pool };
        if plan.inject != Inject::None {
            plan.actors.push("slow".to_owned());
        }
        if plan.fails_calls() {
            plan.actors.push("fail".to_owned());
        }
        if let Inject::Filter(rules) = &mut plan.inject {
            // These changes make the calls themselves.
            for (change, call) in [("+close_files", "close_range"), ("+served_block", "userfaultfd")] {
                if plan.actors.iter().any(|actor| actor == change) {
                    rules.retain(|rule| *rule != format!("{call}:100:kill"));
                }
            }
            // Under a filter from the start the helper keeps the slack of its starter, and wakes hours later.
            plan.actors.retain(|actor| actor != "+timer_slack");
        }
        if plan.fails_calls() || matches!(plan.inject, Inject::Filter(_)) {
            // A file that cannot be created causes a message, and a process under a filter does not create it.
            plan.env.retain(|(_, value)| value != "@");
        }
        plan
    }

    /// Whether system calls fail, so that the program gets NULL and keeps memory.
    fn fails_calls(&self) -> bool {
        match &self.inject {
            Inject::None => false,
            Inject::Strace(rules) => rules.iter().any(|r| r.contains(":error=") && !r.starts_with("clock_gettime")),
            Inject::Filter(rules) => rules.iter().any(|r| r.contains(":-")),
        }
    }

    /// The plan in one line.
    pub fn describe(&self) -> String {
        let mut text = format!("{} [{}]", self.profile, self.actors.join(" "));
        if let Some(bytes) = self.memory {
            let _ = write!(text, " cgroup={}M", bytes >> 20);
        }
        for (name, value) in &self.env {
            let _ = write!(text, " {name}={value}");
        }
        match &self.inject {
            Inject::None => {}
            Inject::Strace(rules) => {
                let _ = write!(text, " strace {}", rules.join(" "));
            }
            Inject::Filter(rules) => {
                let _ = write!(text, " inject {}", rules.join(" "));
            }
        }
        text
    }
}

/// One to three calls, each delayed or refused. strace counts the calls of each thread; the first ones are the
/// loader's, which are left alone.
fn by_strace(draw: &mut Draw) -> Vec<String> {
    let mut rules = Vec::new();
    for _ in 0..=draw.below(3) {
        let (call, errors) = draw.pick(CALLS);
        if rules.iter().any(|r: &String| r.starts_with(&format!("{call}:"))) {
            continue;
        }
        let loader = matches!(call, "mmap" | "mprotect" | "openat" | "munmap" | "prctl");
        let every = 1 + draw.below(8);
        // strace does not distinguish a wait from a wake-up, which cannot fail.
        let rule = if errors.is_empty() || call == "futex" || draw.one_in(2) {
            let place = draw.pick(&["delay_enter", "delay_exit"]);
            let us = draw.pick(&[200, 2000, 20_000]);
            format!("{call}:{place}={us}:when=1+{every}")
        } else {
            let first = if loader { 60 } else { 1 + draw.below(4) };
            format!("{call}:error={}:when={first}+{every}", draw.pick(errors))
        };
        rules.push(rule);
    }
    rules
}

/// Calls that neap does not make in a process that was started under a filter, because the filter may end the process.
const KILLED: &[&str] = &["memfd_create", "close_range", "mincore", "userfaultfd"];

fn by_filter(draw: &mut Draw, needed: &[&str]) -> Vec<String> {
    let mut rules = Vec::new();
    if draw.one_in(2) {
        let killed = KILLED.iter().filter(|call| !needed.contains(call));
        rules.extend(killed.map(|call| format!("{call}:100:kill")));
    }
    for _ in 0..=draw.below(4) {
        let (call, errors) = draw.pick(CALLS);
        // Most calls of the program itself are futexes and readings of the clock: if they were late, little else would
        // happen.
        let busy = matches!(call, "futex" | "clock_gettime" | "rt_sigprocmask" | "close");
        let percent = if busy { 2 } else { draw.pick(&[3, 20, 60, 100]) };
        let what = if errors.is_empty() || draw.one_in(2) {
            // A trim makes a call for each run of free OS pages: with long delays it would take many seconds and look
            // like a hang.
            let late = if percent > 20 { "5000" } else { "50000" };
            draw.pick(&["100", "1000", "5000", late]).to_owned()
        } else {
            format!("-{}", number(draw.pick(errors)))
        };
        rules.push(format!("{call}:{percent}:{what}"));
    }
    rules
}

/// The number of an error, the same on all processors that neap knows.
fn number(error: &str) -> u32 {
    match error {
        "EPERM" => 1,
        "ENOENT" => 2,
        "ESRCH" => 3,
        "EINTR" => 4,
        "EBADF" => 9,
        "EAGAIN" => 11,
        "ENOMEM" => 12,
        "EACCES" => 13,
        "EFAULT" => 14,
        "EBUSY" => 16,
        "EINVAL" => 22,
        "ENFILE" => 23,
        "EMFILE" => 24,
        "ENOTTY" => 25,
        "ENOSPC" => 28,
        "ENOSYS" => 38,
        _ => unreachable!("an error without a number: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Options that are not tried: `foreign=abort` ends programs whose libraries have blocks of the C library,
    /// `sites_interval` and `profile_signal` do nothing alone, and `hugetlb=strict` ends programs without a pool.
    const UNTRIED: &[&str] = &["NEAP_FOREIGN", "NEAP_SITES_INTERVAL", "NEAP_PROFILE_SIGNAL", "NEAP_HUGETLB"];

    /// Catches an option of the table that the torture does not try, and values that options refuse.
    #[test]
    fn options_are_tried() {
        for opt in neap_options::TABLE {
            match OPTIONS.iter().find(|(name, _)| *name == opt.env) {
                Some((_, values)) => assert!(values.iter().all(|v| opt.parse(v.as_bytes()).is_some()), "{}", opt.name),
                None => assert!(UNTRIED.contains(&opt.env), "{} is not tried", opt.name),
            }
        }
        for (name, _) in OPTIONS.iter().filter(|(name, _)| !name.starts_with("NEAP_")) {
            assert!(neap_options::glibc::all().any(|control| control.env == Some(name)), "{name}");
        }
    }
}
