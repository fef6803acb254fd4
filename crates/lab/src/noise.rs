//! How quiet the machine is: the time of a fixed loop between measurements, time stolen by the host, time of other
//! processes.

use std::fs;
use std::hint::black_box;
use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

use neap_results::stats::quantile;
use neap_results::{Noise, NoiseCheck};

use crate::interrupt;

/// Steps of the fixed loop: some 10 ms.
const LOOP_STEPS: u64 = 10_000_000;
/// Limits of a quiet machine: the 90th percentile of the loops as a multiple of the quickest; and, as fractions of all
/// processors' time, time stolen and time of other processes.
const LOOP_LIMIT: f64 = 1.15;
const STOLEN_LIMIT: f64 = 0.02;
const OTHERS_LIMIT: f64 = 0.10;
/// The names of the last two in the record.
const STOLEN: &str = "time taken by the host";
const OTHERS: &str = "time taken by other processes";

/// Processor times at one moment.
#[derive(Clone, Copy, Debug)]
struct Sample {
    at: Instant,
    /// The processors in the next two figures: all of the machine, not only those that this process may use.
    processors: f64,
    /// Seconds of all processors: busy, and taken by the host.
    busy: f64,
    stolen: f64,
    /// Seconds of this process and its children, including those that still run.
    own: f64,
}

/// What happened between two samples.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Disturbance {
    /// The time of the fixed loop as a multiple of the quickest.
    pub slowdown: f64,
    /// Fraction of the processors' time that the host took.
    pub stolen: f64,
    /// Fraction of the processors' time that other processes took.
    pub others: f64,
}

impl Disturbance {
    /// Why measurements in this time are doubtful; none if they are not.
    pub fn complaint(self) -> Option<String> {
        let percent = |part: f64| format!("{:.0} %", part * 100.0);
        if self.others > OTHERS_LIMIT {
            return Some(format!("other processes took {} of the processors' time", percent(self.others)));
        }
        if self.stolen > STOLEN_LIMIT {
            return Some(format!("the host took {} of the processors' time", percent(self.stolen)));
        }
        (self.slowdown > LOOP_LIMIT).then(|| format!("a fixed loop took {:.2} times its least", self.slowdown))
    }
}

/// Watches the machine over a run.
#[derive(Debug)]
pub struct Watch {
    begun: Sample,
    last: Sample,
    loops: Vec<f64>,
}

impl Watch {
    /// Begins.
    pub fn start() -> Watch {
        let loops = (0..3).map(|_| fixed_loop()).collect();
        let now = sample();
        Watch { begun: now, last: now, loops }
    }

    /// What happened since the last look. Runs the fixed loop.
    pub fn look(&mut self) -> Disturbance {
        let now = sample();
        let disturbance = self.between(self.last, now);
        let took = fixed_loop();
        self.loops.push(took);
        // The loop and its time must not count as other work.
        self.last = sample();
        Disturbance { slowdown: took / self.quickest(), ..disturbance }
    }

    /// For the record of the run.
    pub fn record(&self) -> Noise {
        let whole = self.between(self.begun, sample());
        let check = |name: &str, value: f64, unit: &str, limit: f64| NoiseCheck {
            name: name.into(),
            value,
            unit: unit.into(),
            limit,
        };
        let checks = vec![
            check("a fixed loop, slow tenth against the quickest", self.slow_tenth(), "ratio", LOOP_LIMIT),
            check(STOLEN, whole.stolen * 100.0, "%", STOLEN_LIMIT * 100.0),
            check(OTHERS, whole.others * 100.0, "%", OTHERS_LIMIT * 100.0),
        ];
        let quiet = checks.iter().all(|check| check.value <= check.limit);
        Noise { quiet: Some(quiet), checks, ..Noise::default() }
    }

    fn quickest(&self) -> f64 {
        self.loops.iter().copied().fold(f64::INFINITY, f64::min)
    }

    fn slow_tenth(&self) -> f64 {
        quantile(&self.loops, 0.9) / self.quickest()
    }

    fn between(&self, from: Sample, to: Sample) -> Disturbance {
        let time = (to.at - from.at).as_secs_f64().max(1e-3) * to.processors;
        // Times are in clock ticks of 10 ms, so a short difference may be negative.
        let part = |seconds: f64| (seconds / time).clamp(0.0, 1.0);
        Disturbance {
            slowdown: 1.0,
            stolen: part(to.stolen - from.stolen),
            others: part((to.busy - from.busy) - (to.own - from.own)),
        }
    }
}

/// Seconds that a fixed amount of work takes.
fn fixed_loop() -> f64 {
    let begun = Instant::now();
    let mut value = 1u64;
    for step in 0..LOOP_STEPS {
        value = black_box(value.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(step));
    }
    begun.elapsed().as_secs_f64()
}

fn sample() -> Sample {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let (busy, stolen) = processor_times(&text).unwrap_or_default();
    // SAFETY: sysconf takes a number.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1) as f64;
    let own = ended_time() + live_ticks() / ticks;
    Sample { at: Instant::now(), processors: processors(&text), busy: busy / ticks, stolen: stolen / ticks, own }
}

/// Whether no other program was seen at work over the whole run, on this machine or on its host; the lab's own work
/// does not count. True if that was not measured.
pub fn undisturbed(noise: &Noise) -> bool {
    let mut checks = noise.checks.iter().filter(|check| [STOLEN, OTHERS].contains(&check.name.as_str()));
    checks.all(|check| check.value <= check.limit)
}

/// The processors that are online: the lines `cpu0`, `cpu1` and so on.
fn processors(stat: &str) -> f64 {
    let number =
        |line: &&str| line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    stat.lines().filter(number).count().max(1) as f64
}

/// Busy ticks and stolen ticks, from the line `cpu user nice system idle iowait irq softirq steal ...`.
fn processor_times(stat: &str) -> Option<(f64, f64)> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let times: Vec<f64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
    let [user, nice, system, _idle, _iowait, irq, softirq, steal, ..] = times[..] else {
        return None;
    };
    Some((user + nice + system + irq + softirq, steal))
}

/// Ticks of the children that still run, such as servers, and of their children that were waited for.
fn live_ticks() -> f64 {
    let stat = |pid: u32| fs::read_to_string(format!("/proc/{pid}/stat")).ok();
    interrupt::live().into_iter().filter_map(|pid| ticks_in(&stat(pid)?)).sum()
}

/// The fields utime, stime, cutime and cstime of /proc/PID/stat: from the fourteenth on. The second field is the
/// program's name in brackets and may contain blanks.
fn ticks_in(stat: &str) -> Option<f64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let times: Vec<f64> = rest.split_whitespace().skip(11).take(4).map_while(|word| word.parse().ok()).collect();
    (times.len() == 4).then(|| times.iter().sum())
}

/// Processor time of this process and of its children that have ended.
fn ended_time() -> f64 {
    [libc::RUSAGE_SELF, libc::RUSAGE_CHILDREN]
        .iter()
        .map(|&who| {
            let mut usage = MaybeUninit::<libc::rusage>::zeroed();
            // SAFETY: the buffer has room for the structure, for which all zeros are valid.
            let usage = unsafe {
                libc::getrusage(who, usage.as_mut_ptr());
                usage.assume_init()
            };
            let seconds = |time: libc::timeval| {
                Duration::new(time.tv_sec.unsigned_abs(), 1000 * time.tv_usec.unsigned_abs() as u32).as_secs_f64()
            };
            seconds(usage.ru_utime) + seconds(usage.ru_stime)
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    // Would catch idle time that counts as work, and a column that is off by one.
    #[test]
    fn the_line_of_all_processors_is_read() {
        let text = "cpu  100 20 30 5000 60 7 8 9 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n";
        assert_eq!(processor_times(text), Some((165.0, 9.0)));
        assert_eq!(processor_times("intr 1"), None);
    }

    // Would catch the lab's own children that count as others.
    #[test]
    fn own_children_are_no_others() {
        let before = ended_time();
        let spin = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done";
        Command::new("sh").args(["-c", spin]).status().unwrap();
        assert!(ended_time() - before > 0.01);
        let mut server = interrupt::Guarded::start(Command::new("sh").args(["-c", "while :; do :; done"])).unwrap();
        let begun = Instant::now();
        while live_ticks() < 2.0 {
            assert!(begun.elapsed() < Duration::from_secs(20), "a server that is at work has no time");
            std::thread::sleep(Duration::from_millis(10));
        }
        server.end();
    }

    // Would catch a blank in a program's name that moves all fields.
    #[test]
    fn times_of_a_process_are_read() {
        let stat = "42 (redis server) S 1 42 42 0 -1 4194560 12345 0 6 0 10 20 3 4 20 0 5 0";
        assert_eq!(ticks_in(stat), Some(37.0));
        assert_eq!(ticks_in("42 (x) S 1"), None);
    }

    // Would catch a count of the processors that this process may use, where the kernel's sums are of all.
    #[test]
    fn all_processors_are_counted() {
        let text = "cpu  1 2\ncpu0 1 2\ncpu1 0 0\ncpu63 0 0\nctxt 5\n";
        assert_eq!((processors(text), processors("")), (3.0, 1.0));
    }

    // Would catch verdicts that need not hold on a machine without other work, because its own loop varies.
    #[test]
    fn only_others_disturb() {
        let check = |name: &str, value| NoiseCheck { name: name.into(), value, unit: "%".into(), limit: 2.0 };
        let noise = |checks: &[NoiseCheck]| Noise { quiet: Some(false), checks: checks.into(), ..Noise::default() };
        assert!(undisturbed(&noise(&[check("a fixed loop", 2.2), check(STOLEN, 1.0), check(OTHERS, 1.0)])));
        assert!(!undisturbed(&noise(&[check(STOLEN, 2.1), check(OTHERS, 1.0)])));
        assert!(!undisturbed(&noise(&[check(STOLEN, 1.0), check(OTHERS, 60.0)])));
        assert!(undisturbed(&Noise::default()));
    }

    // Would catch a limit that nothing reaches, or a reason that does not say what was seen.
    #[test]
    fn complaints_name_the_cause() {
        let quiet = Disturbance { slowdown: 1.0, stolen: 0.0, others: 0.01 };
        assert_eq!(quiet.complaint(), None);
        let text = Disturbance { others: 0.4, ..quiet }.complaint().unwrap();
        assert_eq!(text, "other processes took 40 % of the processors' time");
        assert!(Disturbance { stolen: 0.05, ..quiet }.complaint().is_some());
        assert!(Disturbance { slowdown: 1.3, ..quiet }.complaint().is_some());
    }
}
