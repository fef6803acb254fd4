//! What the experiments are: their cases, and the tables of the report.

use std::time::Duration;

/// How one case is run.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// A program of lab/experiments with these arguments.
    Program(&'static str, Vec<String>),
    /// The same under `strace -c`, which counts system calls; figures of time mean nothing then.
    Traced(&'static str, Vec<String>),
    /// The program `workers` in a memory cgroup of 1.5 times the peak that one worker had before.
    Workers(Vec<String>),
    /// redis-server under redis-benchmark.
    Redis {
        /// Load before the measured time.
        warm_up: Duration,
        /// The measured time.
        load: Duration,
    },
}

/// One way in which an experiment is run.
#[derive(Clone, Debug)]
pub struct Case {
    /// Its name in the raw data.
    pub name: String,
    /// How it is run.
    pub kind: Kind,
    /// Runs per round.
    pub repeat: u32,
}

/// One column of a table: a figure of a case.
#[derive(Clone, Debug)]
pub struct Column {
    /// Head of the column.
    pub label: String,
    /// Name of the case.
    pub case: String,
    /// Name of the figure.
    pub metric: &'static str,
}

/// One table of the report: allocators down, figures across.
#[derive(Clone, Debug)]
pub struct Table {
    /// What stands above it; the unit is in it where all columns share one.
    pub title: &'static str,
    /// Its columns; those whose case was not run are left out.
    pub columns: Vec<Column>,
}

/// One experiment.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// Its name on the command line and in the raw data.
    pub name: &'static str,
    /// What it shows, in a sentence or two.
    pub about: &'static str,
    /// A run that takes longer counts as failed.
    pub timeout: Duration,
    /// How it is run.
    pub cases: Vec<Case>,
    /// How it is shown.
    pub tables: Vec<Table>,
}

/// The names of all experiments, in the order of the report.
pub fn names() -> Vec<&'static str> {
    all(false).iter().map(|experiment| experiment.name).collect()
}

/// All experiments; with `quick` fewer cases and less work in each.
pub fn all(quick: bool) -> Vec<Experiment> {
    vec![
        calloc(quick),
        recycled(quick),
        retain_large(quick),
        retain_small(),
        ebizzy(quick),
        survivors(),
        workers(quick),
        latency(quick),
        redis(quick),
        vmas(quick),
    ]
}

fn case(name: impl Into<String>, kind: Kind) -> Case {
    Case { name: name.into(), kind, repeat: 1 }
}

fn program(name: &'static str, arguments: &[(&str, &str)]) -> Kind {
    Kind::Program(name, options(arguments))
}

/// `--name value` for each pair.
fn options(arguments: &[(&str, &str)]) -> Vec<String> {
    arguments.iter().flat_map(|(name, value)| [format!("--{name}"), (*value).to_owned()]).collect()
}

fn columns(case: &str, figures: &[(&str, &'static str)]) -> Vec<Column> {
    let column = |&(label, metric): &(&str, &'static str)| Column { label: label.into(), case: case.into(), metric };
    figures.iter().map(column).collect()
}

fn seconds(quick: bool, short: u64, full: u64) -> Duration {
    Duration::from_secs(if quick { short } else { full })
}

/// A number of bytes as people write it: `64 KiB`, `2 GiB`.
pub fn size_text(bytes: u64) -> String {
    match bytes {
        b if b % (1 << 30) == 0 => format!("{} GiB", b >> 30),
        b if b % (1 << 20) == 0 => format!("{} MiB", b >> 20),
        b => format!("{} KiB", b >> 10),
    }
}

/// The sizes of the experiment `calloc`: steps of four from 64 KiB, 100 MiB, 2 GiB.
pub fn calloc_sizes(quick: bool) -> Vec<u64> {
    let mut sizes: Vec<u64> = (16..=30).step_by(2).map(|bits| 1 << bits).collect();
    sizes.extend([100 << 20, 2 << 30]);
    sizes.sort_unstable();
    if quick {
        sizes.retain(|size| [64 << 10, 1 << 20, 100 << 20, 256 << 20].contains(size));
    }
    sizes
}

/// The name of a case of `calloc`.
pub fn calloc_case(mode: &str, size: u64) -> String {
    format!("{mode} {}", size_text(size))
}

fn calloc(quick: bool) -> Experiment {
    let modes = [
        ("untouched", "µs per calloc + free, untouched", "median"),
        ("touched", "µs per calloc + free, touched each time", "median"),
        ("once", "µs per calloc + free after one touch, mean, with the free of the touched block", "mean"),
    ];
    let mut cases = Vec::new();
    let mut tables = Vec::new();
    for (mode, title, metric) in modes {
        for size in calloc_sizes(quick) {
            let size_option = size.to_string();
            let ms = if quick { "50" } else { "200" };
            let arguments = [("size", size_option.as_str()), ("mode", mode), ("ms", ms)];
            cases.push(case(calloc_case(mode, size), program("calloc", &arguments)));
        }
        let column = |&size: &u64| Column { label: size_text(size), case: calloc_case(mode, size), metric };
        tables.push(Table { title, columns: calloc_sizes(false).iter().map(column).collect() });
    }
    Experiment {
        name: "calloc",
        about: "calloc and free of one size. What nobody touched must cost nothing.",
        timeout: Duration::from_secs(60),
        cases,
        tables,
    }
}

/// The block sizes of the experiment `recycled`.
pub fn recycled_sizes(quick: bool) -> Vec<u64> {
    let bits: &[u32] = if quick { &[14] } else { &[12, 13, 14, 15, 16, 17, 18, 19, 20] };
    bits.iter().map(|bits| 1 << bits).collect()
}

/// The name of a case of `recycled`.
pub fn recycled_case(form: &str, size: u64) -> String {
    format!("{form} {}", size_text(size))
}

fn recycled(quick: bool) -> Experiment {
    let forms = [
        ("touched", "Growth of RSS in MiB: touched, freed, 1.5 s idle, then 128 MiB of calloc"),
        ("untouched", "Growth of RSS in MiB: calloc, free, and 128 MiB of calloc again, at once"),
    ];
    let mut cases = Vec::new();
    let mut tables = Vec::new();
    for (form, title) in forms {
        for size in recycled_sizes(quick) {
            let kind = program("recycled", &[("size", &size.to_string()), ("form", form)]);
            cases.push(case(recycled_case(form, size), kind));
        }
        let column = |&size: &u64| Column { label: size_text(size), case: recycled_case(form, size), metric: "growth" };
        tables.push(Table { title, columns: recycled_sizes(false).iter().map(column).collect() });
    }
    Experiment {
        name: "recycled",
        about: "calloc of recycled blocks that stay untouched. They must not become resident.",
        timeout: Duration::from_secs(60),
        cases,
        tables,
    }
}

fn retain_large(quick: bool) -> Experiment {
    let (rounds, buffers) = if quick { ("2", "64") } else { ("20", "256") };
    let kind = program("retain-large", &[("rounds", rounds), ("buffers", buffers)]);
    let figures = [
        ("wall, ms", "wall"),
        ("peak RSS, MiB", "peak"),
        ("of it in huge pages", "huge"),
        ("RSS at once", "rss-at-once"),
        ("after 1 s", "rss-1s"),
        ("of it MADV_FREE", "lazy-1s"),
        ("after 2 s", "rss-2s"),
    ];
    Experiment {
        name: "retain-large",
        about: "20 rounds of 256 buffers of 0 to 32 MiB, touched and freed. What stays, and what the rounds cost.",
        timeout: Duration::from_secs(240),
        cases: vec![case("rounds", kind)],
        tables: vec![Table { title: "Wall time and RSS", columns: columns("rounds", &figures) }],
    }
}

fn retain_small() -> Experiment {
    let figures = [
        ("live bytes, MiB", "live"),
        ("peak RSS", "peak"),
        ("peak without the program / live", "peak-ratio"),
        ("RSS at once", "rss-at-once"),
        ("after 1 s", "rss-1s"),
        ("of it MADV_FREE", "lazy-1s"),
    ];
    Experiment {
        name: "retain-small",
        about: "Five rounds of three buffers of some 30 MiB that grow from round to round.",
        timeout: Duration::from_secs(60),
        cases: vec![case("rounds", program("retain-small", &[]))],
        tables: vec![Table { title: "RSS in MiB", columns: columns("rounds", &figures) }],
    }
}

/// The thread counts of the experiment `ebizzy`.
pub fn ebizzy_threads(quick: bool) -> Vec<u32> {
    if quick { vec![1, 2, 8] } else { vec![1, 2, 4, 8, 16, 44] }
}

/// The name of a case of `ebizzy`.
pub fn ebizzy_case(threads: u32, traced: bool) -> String {
    format!("{threads} threads{}", if traced { ", traced" } else { "" })
}

fn ebizzy(quick: bool) -> Experiment {
    let ms = if quick { "300" } else { "1500" };
    let mut cases = Vec::new();
    for threads in ebizzy_threads(quick) {
        let count = threads.to_string();
        cases.push(case(ebizzy_case(threads, false), program("ebizzy", &[("threads", &count), ("ms", ms)])));
        if !quick || threads == 2 {
            let arguments = options(&[("threads", &count), ("ms", "500")]);
            cases.push(case(ebizzy_case(threads, true), Kind::Traced("ebizzy", arguments)));
        }
    }
    let column = |threads, traced, metric| Column {
        label: format!("{threads} threads"),
        case: ebizzy_case(threads, traced),
        metric,
    };
    let rates = ebizzy_threads(false).into_iter().map(|threads| column(threads, false, "rate"));
    let calls = ebizzy_threads(false).into_iter().map(|threads| column(threads, true, "madvise-per-1000-frees"));
    Experiment {
        name: "ebizzy",
        about: "Threads that allocate 64 to 256 KiB, copy into it, search it, free it.",
        timeout: Duration::from_secs(60),
        cases,
        tables: vec![
            Table { title: "Iterations per second", columns: rates.collect() },
            Table { title: "madvise calls per 1,000 frees", columns: calls.collect() },
        ],
    }
}

fn survivors() -> Experiment {
    let figures = [
        ("RSS before, MiB", "rss-base"),
        ("all live", "rss-full"),
        ("freed, at once", "rss-at-once"),
        ("after 2 s", "rss-idle"),
        ("pages with a live byte", "live-pages"),
        ("(after 2 s - before) / pages", "ratio"),
    ];
    Experiment {
        name: "survivors",
        about: "300,000 blocks of 512 B to 2 KiB, all freed but one in twenty, then 2 s idle.",
        timeout: Duration::from_secs(60),
        cases: vec![case("blocks", program("survivors", &[]))],
        tables: vec![Table { title: "RSS in MiB", columns: columns("blocks", &figures) }],
    }
}

/// The cases of `workers`: time between a worker's last free and the next one's peak.
pub const WORKERS_CASES: [&str; 2] = ["1.5 s apart", "back to back"];

fn workers(quick: bool) -> Experiment {
    let [apart, together] = WORKERS_CASES;
    let form = |name: &str, gap: &str, turns: &str| Case {
        name: name.into(),
        kind: Kind::Workers(options(&[("gap-ms", gap), ("turns", turns)])),
        repeat: if quick { 1 } else { 2 },
    };
    let figures = [
        ("workers killed, of 4", "killed"),
        ("a worker's peak, MiB", "peak-alone"),
        ("limit, MiB", "limit"),
        ("most RSS of an idle worker", "idle-rss"),
    ];
    Experiment {
        name: "workers",
        about: "Four processes in one memory cgroup of 1.5 times a worker's peak; each peaks (half in small blocks, \
                half in large ones), frees, and idles while the next one peaks. The peak is that of one worker \
                alone under the same allocator.",
        timeout: Duration::from_secs(60),
        cases: vec![form(apart, "1500", if quick { "1" } else { "2" }), form(together, "0", "3")],
        tables: vec![
            Table { title: "Peaks 1.5 s apart", columns: columns(apart, &figures) },
            Table { title: "Peaks back to back", columns: columns(together, &figures) },
        ],
    }
}

fn latency(quick: bool) -> Experiment {
    let ms = if quick { "2500" } else { "10000" };
    let figures = |kind: [&'static str; 8]| {
        let labels = ["malloc p50", "p99", "p99.99", "max", "free p50", "p99", "p99.99", "max"];
        let pairs: Vec<_> = labels.into_iter().zip(kind).collect();
        columns("load", &pairs)
    };
    /// The names of the figures of one kind of blocks.
    macro_rules! kind {
        ($name:literal) => {
            [
                concat!($name, "-malloc-p50"),
                concat!($name, "-malloc-p99"),
                concat!($name, "-malloc-p99.99"),
                concat!($name, "-malloc-max-undisturbed"),
                concat!($name, "-free-p50"),
                concat!($name, "-free-p99"),
                concat!($name, "-free-p99.99"),
                concat!($name, "-free-max-undisturbed"),
            ]
        };
    }
    let all = [
        ("p50", "steady-all-p50"),
        ("p99", "steady-all-p99"),
        ("p99.99", "steady-all-p99.99"),
        ("max", "steady-all-max-undisturbed"),
        ("bursts included: p99.99", "every-call-p99.99"),
        ("max", "every-call-max-undisturbed"),
    ];
    Experiment {
        name: "latency",
        about: "malloc and free of a steady thread while two others allocate bursts, free them and idle, so that much \
                is purged. First touches are outside the timed part; `max` leaves out calls during which the thread \
                was taken off its processor.",
        timeout: Duration::from_secs(60),
        cases: vec![case("load", program("latency", &[("ms", ms)]))],
        tables: vec![
            Table { title: "µs, all calls of malloc and free of the steady thread", columns: columns("load", &all) },
            Table { title: "µs, steady thread, blocks of 16 B to 2 KiB", columns: figures(kind!("steady-small")) },
            Table { title: "µs, steady thread, blocks of 32 KiB to 1 MiB", columns: figures(kind!("steady-large")) },
            Table { title: "µs, bursts of blocks of 16 B to 2 KiB", columns: figures(kind!("burst-small")) },
            Table { title: "µs, bursts of blocks of 64 KiB to 4 MiB", columns: figures(kind!("burst-large")) },
        ],
    }
}

fn redis(quick: bool) -> Experiment {
    let figures = [
        ("faults per 1,000 requests", "faults-per-1000"),
        ("requests/s", "rate"),
        ("RSS right after, MiB", "rss-after"),
        ("1 s idle", "rss-idle"),
    ];
    let kind = Kind::Redis { warm_up: seconds(quick, 1, 15), load: seconds(quick, 1, 60) };
    Experiment {
        name: "redis",
        about: "redis-server under the steady load of redis-benchmark; page faults after a warm-up.",
        timeout: Duration::from_secs(120),
        cases: vec![case("load", kind)],
        tables: vec![Table { title: "Page faults and RSS", columns: columns("load", &figures) }],
    }
}

fn vmas(quick: bool) -> Experiment {
    let (blocks, replaced) = if quick { ("20000", "40000") } else { ("200000", "800000") };
    let figures = [
        ("mappings, most", "mappings"),
        ("at the end", "mappings-end"),
        ("vm.max_map_count", "max-map-count"),
        ("malloc refused", "refused"),
        ("wall, ms", "wall"),
        ("RSS, MiB", "rss"),
    ];
    Experiment {
        name: "vmas",
        about: "200,000 live blocks of 33 to 256 KiB of which only the first byte is written, replaced at random.",
        timeout: Duration::from_secs(120),
        cases: vec![case("blocks", program("vmas", &[("blocks", blocks), ("replaced", replaced)]))],
        tables: vec![Table { title: "Lines of /proc/self/maps", columns: columns("blocks", &figures) }],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Would catch a table that asks for a case which no run has.
    #[test]
    fn every_column_names_a_case() {
        for experiment in all(false) {
            for column in experiment.tables.iter().flat_map(|table| &table.columns) {
                let found = experiment.cases.iter().any(|case| case.name == column.case);
                assert!(found, "{}: {}", experiment.name, column.case);
            }
        }
    }

    // Would catch a quick pass whose figures land in cases that the report does not know.
    #[test]
    fn quick_cases_are_among_the_full_ones() {
        for (quick, full) in all(true).iter().zip(all(false)) {
            for case in &quick.cases {
                assert!(full.cases.iter().any(|other| other.name == case.name), "{}", case.name);
            }
        }
    }

    // Would catch a size of the brief that is no longer measured.
    #[test]
    fn sizes() {
        let sizes: Vec<String> = calloc_sizes(false).into_iter().map(size_text).collect();
        let wanted = "64 KiB,256 KiB,1 MiB,4 MiB,16 MiB,64 MiB,100 MiB,256 MiB,1 GiB,2 GiB";
        assert_eq!(sizes.join(","), wanted);
        assert_eq!(recycled_sizes(false).len(), 9);
    }
}
