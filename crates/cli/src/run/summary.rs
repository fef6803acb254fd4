//! The summary of `neap run --summary`, as text and as JSON. docs/run.md documents both.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use neap_counters::Syscall;
use serde::Serialize;
use serde_json::{Map, Value};

use super::counters::{Image, Report};
use neap_launch::child::Ended;
use neap_launch::units::{bytes, count, counted, seconds};

/// Name and version of the JSON schema; raised when a field changes its meaning or goes away.
const SCHEMA: &str = "neap.run.summary/1";

/// How the text looks.
#[derive(Clone, Copy)]
pub struct Style {
    /// With escape sequences for a terminal.
    pub colour: bool,
}

/// What a run cost.
#[derive(Serialize)]
pub struct Summary {
    schema: &'static str,
    neap: &'static str,
    command: Vec<String>,
    exit: Exit,
    time: Time,
    memory: Memory,
    faults: Faults,
    context_switches: ContextSwitches,
    allocator: Option<Allocator>,
    own_allocator: Option<&'static str>,
    unreadable_counters: usize,
}

/// One of the two is set.
#[derive(Serialize)]
struct Exit {
    status: Option<i32>,
    signal: Option<i32>,
}

#[derive(Serialize)]
struct Time {
    wall_seconds: f64,
    user_seconds: f64,
    system_seconds: f64,
}

#[derive(Serialize)]
struct Memory {
    peak_resident_bytes: u64,
}

#[derive(Serialize)]
struct Faults {
    minor: u64,
    major: u64,
}

#[derive(Serialize)]
struct ContextSwitches {
    voluntary: u64,
    involuntary: u64,
}

#[derive(Clone, Copy, Serialize)]
struct Amount {
    blocks: u64,
    bytes: u64,
}

/// The counters of all processes together, of the program itself, and of each image.
#[derive(Serialize)]
struct Allocator {
    processes: usize,
    total: Numbers,
    program: Option<Numbers>,
    images: Vec<ImageNumbers>,
}

#[derive(Serialize)]
struct Numbers {
    allocated: Amount,
    /// Live in the parent at a fork: `allocated + inherited == freed + live_at_exit`.
    inherited: Amount,
    freed: Amount,
    live_at_exit: Amount,
    purged: Purged,
    zeroed: Zeroed,
    prefault: Option<Prefault>,
    system_calls: Map<String, Value>,
}

/// Memory given back to the system.
#[derive(Clone, Copy, Serialize)]
struct Purged {
    bytes: u64,
    calls: u64,
}

/// What calloc did to the memory that it handed out.
#[derive(Clone, Copy, Serialize)]
struct Zeroed {
    cleared_bytes: u64,
    skipped_bytes: u64,
}

/// What option `prefault` did at the start.
#[derive(Clone, Copy, Serialize)]
struct Prefault {
    bytes: u64,
    faults: u64,
    seconds: f64,
}

#[derive(Serialize)]
struct ImageNumbers {
    pid: u32,
    image: u32,
    #[serde(flatten)]
    numbers: Numbers,
}

impl From<&Image> for Numbers {
    fn from(image: &Image) -> Self {
        Self {
            allocated: Amount { blocks: image.blocks_allocated, bytes: image.bytes_allocated },
            inherited: Amount {
                blocks: (image.blocks_freed + image.live_blocks).saturating_sub(image.blocks_allocated),
                bytes: (image.bytes_freed + image.live_bytes).saturating_sub(image.bytes_allocated),
            },
            freed: Amount { blocks: image.blocks_freed, bytes: image.bytes_freed },
            live_at_exit: Amount { blocks: image.live_blocks, bytes: image.live_bytes },
            purged: Purged { bytes: image.purged_bytes, calls: image.purge_calls },
            zeroed: Zeroed { cleared_bytes: image.cleared_bytes, skipped_bytes: image.skipped_bytes },
            prefault: (image.prefault_bytes > 0).then(|| Prefault {
                bytes: image.prefault_bytes,
                faults: image.prefault_faults,
                seconds: image.prefault_microseconds as f64 / 1e6,
            }),
            system_calls: Syscall::ALL
                .iter()
                .map(|&kind| (kind.name().to_owned(), image.syscalls[kind as usize].into()))
                .collect(),
        }
    }
}

impl Summary {
    /// Puts the parts together.
    /// `own`: the allocator that the program carries.
    pub fn new(command: &[OsString], ended: &Ended, report: Report, own: Option<&'static str>) -> Self {
        let usage = &ended.usage;
        let time = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
        // The kernel's counts are never negative; its unit of ru_maxrss is KiB.
        let number = |n: libc::c_long| u64::try_from(n).unwrap_or(0);
        Self {
            schema: SCHEMA,
            neap: env!("CARGO_PKG_VERSION"),
            command: command.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
            exit: Exit { status: ended.status.code(), signal: ended.status.signal() },
            time: Time {
                wall_seconds: ended.wall.as_secs_f64(),
                user_seconds: time(usage.ru_utime),
                system_seconds: time(usage.ru_stime),
            },
            memory: Memory { peak_resident_bytes: number(usage.ru_maxrss) * 1024 },
            faults: Faults { minor: number(usage.ru_minflt), major: number(usage.ru_majflt) },
            context_switches: ContextSwitches {
                voluntary: number(usage.ru_nvcsw),
                involuntary: number(usage.ru_nivcsw),
            },
            allocator: (!report.images.is_empty()).then(|| Allocator {
                processes: report.processes(),
                total: (&report.total()).into(),
                program: report.program().map(Numbers::from),
                images: report
                    .images
                    .iter()
                    .map(|image| ImageNumbers { pid: image.pid, image: image.number, numbers: image.into() })
                    .collect(),
            }),
            own_allocator: own,
            unreadable_counters: report.unreadable,
        }
    }

    /// One JSON object and a newline.
    pub fn json(&self) -> String {
        let text = serde_json::to_string_pretty(self);
        // Maps with string keys and finite numbers: there is nothing that serialising could refuse.
        text.map_or_else(|e| format!("{{\"error\": \"{e}\"}}\n"), |text| text + "\n")
    }

    /// Aligned text for people.
    pub fn text(&self, style: Style) -> String {
        let rows = self.rows();
        let width = rows.iter().map(|(label, _)| label.len()).max().unwrap_or(0);
        let (bold, dim, plain) = if style.colour { ("\x1b[1m", "\x1b[2m", "\x1b[0m") } else { ("", "", "") };
        let mut text = format!("{bold}neap: {}{plain}\n", self.command.join(" "));
        for (label, value) in rows {
            text.push_str(&format!("  {dim}{label:width$}{plain}  {value}\n"));
        }
        text
    }

    fn rows(&self) -> Vec<(&'static str, String)> {
        let duration = |s: f64| seconds(Duration::try_from_secs_f64(s).unwrap_or_default());
        let mut rows = vec![
            ("ended", self.exit.text()),
            ("wall time", duration(self.time.wall_seconds)),
            (
                "CPU time",
                format!("{} user, {} system", duration(self.time.user_seconds), duration(self.time.system_seconds)),
            ),
            ("peak resident", bytes(self.memory.peak_resident_bytes)),
            ("faults", format!("{} minor, {} major", count(self.faults.minor), count(self.faults.major))),
            (
                "context switches",
                format!(
                    "{} voluntary, {} involuntary",
                    count(self.context_switches.voluntary),
                    count(self.context_switches.involuntary)
                ),
            ),
        ];
        match &self.allocator {
            Some(allocator) => {
                rows.extend(allocator.rows());
                if self.memory.is_elsewhere(&allocator.total) {
                    rows.push(("", "most memory here is not from malloc: neap why -- CMD shows its owners".to_owned()));
                }
            }
            None => rows.push((
                "allocator",
                "no counters: no process allocated through neap (a statically linked child, an allocator of its own, or another user)"
                    .to_owned(),
            )),
        }
        if let Some(own) = self.own_allocator {
            rows.push((
                "",
                format!(
                    "the program carries {own}: what it allocates there is not neap's, and not in these figures \
                     (neap advise compares)"
                ),
            ));
        }
        if self.unreadable_counters > 0 {
            rows.push((
                "",
                format!(
                    "{} could not be read",
                    counted(self.unreadable_counters as u64, "counters file", "counters files")
                ),
            ));
        }
        rows
    }
}

impl Memory {
    /// Whether most of the peak cannot be malloc's: all that it ever handed out is less than half of it.
    fn is_elsewhere(&self, total: &Numbers) -> bool {
        /// Smaller programs are mostly their files.
        const LARGE: u64 = 32 << 20;
        let handed_out = total.allocated.bytes.saturating_add(total.inherited.bytes);
        self.peak_resident_bytes >= LARGE && handed_out < self.peak_resident_bytes / 2
    }
}

impl Exit {
    fn text(&self) -> String {
        match (self.status, self.signal) {
            (Some(status), _) => format!("with exit status {status}"),
            (_, Some(number)) => format!("by signal {number}{}", signal_name(number)),
            _ => "unknown".to_owned(),
        }
    }
}

/// ` (SIGTERM)` and the like for the signals that end programs.
fn signal_name(number: i32) -> String {
    let names = [
        (libc::SIGHUP, "SIGHUP"),
        (libc::SIGINT, "SIGINT"),
        (libc::SIGQUIT, "SIGQUIT"),
        (libc::SIGILL, "SIGILL"),
        (libc::SIGTRAP, "SIGTRAP"),
        (libc::SIGABRT, "SIGABRT"),
        (libc::SIGBUS, "SIGBUS"),
        (libc::SIGFPE, "SIGFPE"),
        (libc::SIGKILL, "SIGKILL"),
        (libc::SIGSEGV, "SIGSEGV"),
        (libc::SIGPIPE, "SIGPIPE"),
        (libc::SIGALRM, "SIGALRM"),
        (libc::SIGTERM, "SIGTERM"),
        (libc::SIGSYS, "SIGSYS"),
        (libc::SIGXCPU, "SIGXCPU"),
    ];
    names.iter().find(|(n, _)| *n == number).map_or(String::new(), |(_, name)| format!(" ({name})"))
}

impl Allocator {
    fn rows(&self) -> Vec<(&'static str, String)> {
        let amount = |a: Amount| format!("{}, {}", counted(a.blocks, "block", "blocks"), bytes(a.bytes));
        let mut live = amount(self.total.live_at_exit);
        if let (Some(program), true) = (&self.program, self.images.len() > 1) {
            live.push_str(&format!(" (in the program itself {})", amount(program.live_at_exit)));
        }
        let mut processes = counted(self.processes as u64, "process", "processes");
        if self.images.len() > self.processes {
            processes.push_str(&format!(", {}", counted(self.images.len() as u64, "program image", "program images")));
        }
        let prefault = self.total.prefault.map(|prefault| ("prefault", prefault.text()));
        let mut rows = vec![("under neap", processes), ("allocated", amount(self.total.allocated))];
        // Without this, children that free what their parent allocated make more frees than allocations.
        if self.total.inherited.blocks > 0 {
            rows.push(("inherited", format!("{} (live in the parent at a fork)", amount(self.total.inherited))));
        }
        rows.extend([
            ("freed", amount(self.total.freed)),
            ("live at exit", live),
            ("given back", self.total.purged.text()),
            ("calloc", self.total.zeroed.text()),
            ("system calls", self.total.system_calls_text()),
        ]);
        rows.extend(prefault);
        rows
    }
}

impl Purged {
    fn text(self) -> String {
        format!("{} in {}", bytes(self.bytes), counted(self.calls, "call", "calls"))
    }
}

impl Zeroed {
    fn text(self) -> String {
        format!("{} cleared, {} known to be zero", bytes(self.cleared_bytes), bytes(self.skipped_bytes))
    }
}

impl Prefault {
    fn text(self) -> String {
        let time = seconds(Duration::try_from_secs_f64(self.seconds).unwrap_or_default());
        format!("{} in {time}, which saves up to {}", bytes(self.bytes), counted(self.faults, "fault", "faults"))
    }
}

impl Numbers {
    fn system_calls_text(&self) -> String {
        let calls: Vec<(&str, u64)> =
            self.system_calls.iter().map(|(kind, n)| (kind.as_str(), n.as_u64().unwrap_or(0))).collect();
        let sum = calls.iter().map(|(_, n)| n).sum();
        let parts: Vec<String> =
            calls.iter().filter(|(_, n)| *n > 0).map(|(kind, n)| format!("{kind} {}", count(*n))).collect();
        if parts.is_empty() { count(sum) } else { format!("{} ({})", count(sum), parts.join(", ")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::ExitStatus;

    fn ended() -> Ended {
        // SAFETY: rusage is a plain structure of integers, for which zero is a value.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        usage.ru_maxrss = 2048;
        usage.ru_minflt = 1234;
        usage.ru_utime.tv_usec = 500_000;
        Ended {
            pid: 41,
            status: ExitStatus::from_raw(3 << 8),
            wall: Duration::from_millis(1500),
            usage,
            faults_before_exec: 9,
            argument_pages: 1,
        }
    }

    fn report() -> Report {
        let mut image = Image {
            pid: 41,
            blocks_allocated: 1000,
            bytes_allocated: 1 << 20,
            blocks_freed: 999,
            bytes_freed: (1 << 20) - 64,
            live_blocks: 1,
            live_bytes: 64,
            purged_bytes: 3 << 20,
            purge_calls: 2,
            cleared_bytes: 4096,
            skipped_bytes: 1 << 30,
            ..Image::default()
        };
        image.syscalls[Syscall::Mmap as usize] = 3;
        let other = Image { pid: 42, live_blocks: 2, live_bytes: 128, ..Image::default() };
        Report { images: vec![image, other], unreadable: 0, program: 41 }
    }

    /// Catches units that are wrong by a factor, fields that are swapped, and lost alignment.
    #[test]
    fn the_text_is_complete() {
        let text = Summary::new(&["prog".into(), "x".into()], &ended(), report(), None).text(Style { colour: false });
        let expected = "\
neap: prog x
  ended             with exit status 3
  wall time         1.500 s
  CPU time          0.500000 s user, 0.000000 s system
  peak resident     2.0 MiB
  faults            1,234 minor, 0 major
  context switches  0 voluntary, 0 involuntary
  under neap        2 processes
  allocated         1,000 blocks, 1.0 MiB
  inherited         2 blocks, 128 B (live in the parent at a fork)
  freed             999 blocks, 1023.9 KiB
  live at exit      3 blocks, 192 B (in the program itself 1 block, 64 B)
  given back        3.0 MiB in 2 calls
  calloc            4.0 KiB cleared, 1.0 GiB known to be zero
  system calls      3 (mmap 3)
";
        assert_eq!(text, expected);
    }

    /// Catches a prefault that is shown where there was none, and its figures in each other's places.
    #[test]
    fn a_prefault_is_shown() {
        let mut report = report();
        assert!(
            !Summary::new(&["prog".into()], &ended(), report, None).text(Style { colour: false }).contains("prefault")
        );
        report = self::report();
        let first = &mut report.images[0];
        (first.prefault_bytes, first.prefault_faults, first.prefault_microseconds) = (64 << 20, 16384, 12_500);
        let summary = Summary::new(&["prog".into()], &ended(), report, None);
        let line = "  prefault          64.0 MiB in 0.012500 s, which saves up to 16,384 faults\n";
        let text = summary.text(Style { colour: false });
        assert!(text.ends_with(line), "{text}");
        let json: Value = serde_json::from_str(&summary.json()).expect("JSON");
        assert_eq!(json["allocator"]["program"]["prefault"]["faults"], 16384);
        assert!(json["allocator"]["images"][1]["prefault"].is_null());
    }

    /// Catches a program whose memory is not malloc's and a summary that does not say so, and small ones for which it does.
    #[test]
    fn memory_that_is_not_mallocs_is_named() {
        let says = |kib| {
            let mut ended = ended();
            ended.usage.ru_maxrss = kib;
            Summary::new(&["prog".into()], &ended, report(), None)
                .text(Style { colour: false })
                .contains("not from malloc")
        };
        assert!(says(64 << 10) && !says(2048) && !says(31 << 10));
    }

    /// Catches escape sequences without a terminal.
    #[test]
    fn colour_only_where_wanted() {
        let summary = Summary::new(&["prog".into()], &ended(), report(), None);
        assert!(!summary.text(Style { colour: false }).contains('\x1b'));
        assert!(summary.text(Style { colour: true }).contains('\x1b'));
    }

    /// Catches a summary that shows zeros where nothing is known.
    #[test]
    fn missing_counters_are_said() {
        let summary = Summary::new(&["prog".into()], &ended(), Report::default(), None);
        assert!(summary.text(Style { colour: false }).contains("no counters"));
        let json: Value = serde_json::from_str(&summary.json()).expect("JSON");
        assert!(json["allocator"].is_null());
    }

    /// Catches a change of the documented schema.
    #[test]
    fn the_json_has_the_documented_fields() {
        let json: Value =
            serde_json::from_str(&Summary::new(&["prog".into()], &ended(), report(), None).json()).expect("JSON");
        assert_eq!(json["schema"], SCHEMA);
        assert_eq!(json["command"][0], "prog");
        assert_eq!(json["exit"]["status"], 3);
        assert!(json["exit"]["signal"].is_null());
        assert_eq!(json["time"]["wall_seconds"], 1.5);
        assert_eq!(json["memory"]["peak_resident_bytes"], 2 << 20);
        assert_eq!(json["faults"]["minor"], 1234);
        assert_eq!(json["allocator"]["processes"], 2);
        assert_eq!(json["allocator"]["total"]["live_at_exit"]["blocks"], 3);
        assert_eq!(json["allocator"]["total"]["inherited"]["bytes"], 128);
        assert_eq!(json["allocator"]["program"]["allocated"]["bytes"], 1 << 20);
        assert_eq!(json["allocator"]["total"]["purged"]["bytes"], 3 << 20);
        assert_eq!(json["allocator"]["total"]["purged"]["calls"], 2);
        assert_eq!(json["allocator"]["total"]["zeroed"]["cleared_bytes"], 4096);
        assert_eq!(json["allocator"]["program"]["zeroed"]["skipped_bytes"], 1 << 30);
        assert_eq!(json["allocator"]["images"][1]["pid"], 42);
        assert_eq!(json["allocator"]["images"][0]["system_calls"]["mmap"], 3);
    }
}
