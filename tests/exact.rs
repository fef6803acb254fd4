//! Profiles of real programs against exact counts: a library in front of neap counts each block in the same run.
//!
//! The documentation states the error (`docs/profile.md`): where a program, or a call site of it, holds or allocates
//! `B` bytes, the profile's figure is normally distributed around `B` with a standard deviation of at most
//! `sqrt(interval * B)`. Each case allows [`DEVIATIONS`] of these: a correct figure fails it once in 15,000 runs.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use neap_profile::Profile;
use neap_survey::{Scope, in_directory, profile};
use neap_tests::sys::{Signal, TempDir};
use neap_tests::{Case, Outcome, Run, Source, Stop, library, program};

const COUNTER: Source = Source::with_flags("exact/counter.c", &["-shared"]);
/// Limit on the error of a figure, in standard deviations.
const DEVIATIONS: f64 = 4.0;
/// The usual interval.
const USUAL: u64 = 512 << 10;
/// Bytes that the C library allocates before the counter, or neap, begins.
const STRAY: f64 = 100_000.0;

/// A program that ends with megabytes live.
#[derive(Clone, Copy)]
struct Program {
    /// A name to look up in `PATH`, or a path.
    name: &'static str,
    /// Arguments; for `tclsh` its input. Most end themselves by SIGKILL, so that nothing is freed at the end.
    arguments: &'static [&'static str],
    /// An interval at which some 10,000 of its live blocks are samples, so that its totals are known to 1 %.
    fine: u64,
}

const PROGRAMS: &[Program] = &[
    Program {
        name: "/usr/bin/python3",
        arguments: &[
            "-c",
            "import json, os\nrows = [json.loads('{\"id\": %d, \"name\": \"row %d\", \"tags\": [%d, 2.5]}' % (i, i, i)) \
             for i in range(200000)]\nos.kill(os.getpid(), 9)",
        ],
        fine: 8 << 10,
    },
    Program {
        name: "perl",
        arguments: &["-e", "my %h; $h{\"key $_\"} = \"v\" x ($_ % 200) for 1..300000; kill 9, $$"],
        fine: 6 << 10,
    },
    Program {
        name: "sqlite3",
        arguments: &[
            ":memory:",
            "create table t(a integer primary key, b text, c real)",
            "insert into t select value, hex(randomblob(30)), value / 3.0 from generate_series(1, 500000)",
            "create index i on t(b)",
            "select count(*) from t a join t b on a.a = b.a where a.b > b.c",
            ".shell kill -9 $PPID",
        ],
        fine: 6 << 10,
    },
    Program {
        name: "lua5.4",
        arguments: &[
            "-e",
            "local t = {} for i = 1, 300000 do t[i] = {id = i, name = 'row ' .. i, f = function() return t end} end \
             os.execute('kill -9 $PPID')",
        ],
        fine: 6 << 10,
    },
    Program {
        name: "tclsh",
        arguments: &["for {set i 0} {$i < 200000} {incr i} {dict set d $i [list $i [string repeat x [expr {$i % \
                      300}]]]}\nexec kill -9 [pid]\n"],
        fine: 8 << 10,
    },
    Program {
        name: "awk",
        arguments: &[
            "BEGIN { for (i = 0; i < 400000; i++) a[\"key \" i] = i \" \" (i * 7919); system(\"kill -9 $PPID\") }",
        ],
        fine: 4 << 10,
    },
    Program {
        name: "bash",
        arguments: &[
            "-c",
            "for ((i = 0; i < 120000; i++)); do a[i]=\"row $i $((i * 7919))\"; b+=(\"x$i\"); done; kill -9 $$",
        ],
        fine: 1 << 10,
    },
    Program {
        name: "ruby",
        arguments: &[
            "-e",
            "h = {}; 300000.times { |i| h[\"a rather long key #{i}\"] = \"x\" * (i % 300) }; Process.kill(9, $$)",
        ],
        fine: 8 << 10,
    },
    Program { name: "cc1", arguments: &["-quiet", "-O2", "-o", "/dev/null"], fine: 2 << 10 },
    Program { name: "redis-server", arguments: &["--port", "0", "--save", "", "--unixsocket"], fine: 4 << 10 },
];

/// Programs that do the same in each run, small enough for a sample of each block: for figures by call site.
const REPEATED: &[Program] = &[
    Program { name: "sqlite3", arguments: PROGRAMS[2].arguments, fine: 4 << 10 },
    Program {
        name: "perl",
        arguments: &["-e", "my %h; $h{\"key $_\"} = \"v\" x ($_ % 200) for 1..100000; kill 9, $$"],
        fine: 2 << 10,
    },
    Program {
        name: "lua5.4",
        arguments: &[
            "-e",
            "local t = {} for i = 1, 80000 do t[i] = {id = i, name = 'row ' .. i, f = function() return t end} end \
             os.execute('kill -9 $PPID')",
        ],
        fine: 2 << 10,
    },
    Program {
        name: "awk",
        arguments: &[
            "BEGIN { for (i = 0; i < 100000; i++) a[\"key \" i] = i \" \" (i * 7919); system(\"kill -9 $PPID\") }",
        ],
        fine: 1 << 10,
    },
];

fn main() -> ExitCode {
    let mut cases = Vec::new();
    let short = |name: &'static str| name.rsplit('/').next().unwrap_or(name);
    for &one in PROGRAMS {
        for (word, interval) in [("fine", one.fine), ("usual", USUAL)] {
            cases.push(Case::new(
                format!("totals::{}_{word}", short(one.name)),
                "weights that are too high or too low, blocks that are missed, frees that are missed",
                move || totals(one, interval),
            ));
        }
    }
    for &one in REPEATED {
        cases.push(Case::new(
            format!("sites::{}", short(one.name)),
            "a call site with a larger error than the documentation states",
            move || sites(one),
        ));
    }
    neap_tests::suite::main(cases)
}

/// The result of one run.
struct Seen {
    profile: Profile,
    /// Bytes requested, and those of live blocks.
    allocated: f64,
    live: f64,
}

/// Runs a program with samples at this interval; `counted`: also counts exactly.
fn run(one: Program, interval: u64, counted: bool) -> Result<Seen, Stop> {
    let Program { name, arguments, .. } = one;
    let neap = library::require_neap()?;
    let dir = TempDir::new("neap-exact-")?;
    let figures = dir.join("figures");
    let samples = dir.join("samples");
    std::fs::create_dir(&samples)?;
    let path = if name == "cc1" { cc1()? } else { program(name)? };
    let mut run = Run::new(&path)
        .env("NEAP_PROFILE", &samples)
        .env("NEAP_PROFILE_INTERVAL", interval.to_string())
        .env("COUNTER_FILE", &figures)
        .env("PYTHONMALLOC", "malloc")
        .env("PYTHONHASHSEED", "0")
        .env("PERL_HASH_SEED", "0")
        .env("PERL_PERTURB_KEYS", "0")
        .timeout(Duration::from_secs(120));
    if counted {
        run = run.preload(Some(PathBuf::from(format!("{}:{}", COUNTER.build()?.display(), neap.display()))));
    }
    match name {
        "redis-server" => redis(run.args(arguments), &dir)?,
        "tclsh" => killed(run.input(arguments[0]))?,
        "cc1" => {
            let file = dir.join("big.c");
            std::fs::write(&file, source_for_cc1())?;
            run.args(arguments).arg(&file).run()?.success()?.no_complaint()?;
        }
        _ => killed(run.args(arguments))?,
    }
    // The shells and `kill` write files too.
    let all = in_directory(&samples).map_err(|e| Stop::Fail(e.to_string()))?;
    let profiles = all.iter().map(|snapshot| profile(Some(snapshot), None, &Scope::default()));
    let Some(profile) = profiles.max_by_key(|profile| total(profile, "alloc_space") as u64) else {
        return Err(Stop::Fail("no samples".into()));
    };
    let words = if counted { std::fs::read(&figures)? } else { vec![0; 32] };
    let word = |at: usize| words[at * 8..].first_chunk().map_or(0, |word| u64::from_ne_bytes(*word)) as f64;
    Ok(Seen { profile, allocated: word(1), live: word(1) - word(3) })
}

/// Runs a program that ends itself by SIGKILL.
fn killed(run: Run) -> Outcome {
    let done = run.run()?.no_complaint()?;
    if done.status.signal() == Some(9) { Ok(()) } else { Err(done.fail("it did not come to its end")) }
}

/// A server with 200,000 keys, which ends without freeing them.
fn redis(run: Run, dir: &TempDir) -> Outcome {
    let socket = dir.join("socket");
    let cli = program("redis-cli")?;
    let ask = |words: &[&str]| Run::new(&cli).arg("-s").arg(&socket).args(words).plain().run()?.success();
    let mut daemon = run.arg(&socket).daemon()?;
    daemon.wait_until(Duration::from_secs(30), || ask(&["ping"]).is_ok_and(|done| done.stdout.contains("PONG")))?;
    let fill = "for i = 1, 200000 do redis.call('set', 'key ' .. i, string.rep('v', i % 300)) end";
    ask(&["eval", fill, "0"])?;
    daemon.stop(Signal::KILL, Duration::from_secs(30))?.no_complaint()?;
    Ok(())
}

fn cc1() -> Result<PathBuf, Stop> {
    let done = Run::new(program("gcc")?).arg("-print-prog-name=cc1").plain().run()?.success()?;
    let path = PathBuf::from(done.stdout.trim());
    if path.is_file() { Ok(path) } else { Err(Stop::Skip("gcc has no cc1".into())) }
}

/// C source that takes the compiler half a second.
fn source_for_cc1() -> String {
    let function = |at: usize| {
        format!(
            "struct s{at} {{ int a, b[{size}]; struct s{at} *next; }};\nint f{at}(struct s{at} *s, int n) {{ int sum = 0; \
             for (int i = 0; i < n; i++) {{ for (struct s{at} *p = s; p; p = p->next) sum += p->a * i + p->b[i % {size}]; \
             if (sum & {at}) sum ^= n / (i + 1); else s->b[i % {size}] = sum; }} return sum; }}\n",
            size = 3 + at % 50,
        )
    };
    (0..1500).map(function).collect()
}

fn total(profile: &Profile, name: &str) -> f64 {
    profile.column(name).map_or(0.0, |column| profile.total(column) as f64)
}

/// The standard deviation that the documentation states.
fn deviation(bytes: f64, interval: u64) -> f64 {
    (bytes * interval as f64).sqrt()
}

fn totals(one: Program, interval: u64) -> Outcome {
    let seen = run(one, interval, true)?;
    for (what, exact, column) in [("allocated", seen.allocated, "alloc_space"), ("live", seen.live, "inuse_space")] {
        let value = total(&seen.profile, column);
        let (error, deviation) = (value - exact, deviation(exact, interval));
        let (percent, deviations) = (error * 100.0 / exact, error / deviation);
        println!("{} {what}: {value:.0} of {exact:.0}, {percent:+.2} %, {deviations:+.1} deviations", one.name);
        if exact < 5e6 {
            return Err(Stop::Fail(format!("{what}: only {exact} bytes")));
        }
        let allowed = DEVIATIONS * deviation + STRAY;
        if error.abs() > allowed || (interval == one.fine && percent.abs() > 5.0) {
            return Err(Stop::Fail(format!("{what}: {value:.0} instead of {exact:.0}, {deviations:+.1} deviations")));
        }
    }
    Ok(())
}

/// Bytes allocated and live for each stack, by its function names.
fn by_stack(profile: &Profile) -> Result<BTreeMap<String, [f64; 2]>, Stop> {
    if let Some(note) = profile.notes.iter().find(|note| note.contains("no room")) {
        return Err(Stop::Fail(note.clone()));
    }
    let columns = ["alloc_space", "inuse_space"].map(|name| profile.column(name).unwrap_or(0));
    let mut sums: BTreeMap<String, [f64; 2]> = BTreeMap::new();
    for sample in &profile.samples {
        let names: Vec<String> = profile.frames(sample).map(|frame| format!("{}:{}", frame.name, frame.line)).collect();
        let sum = sums.entry(names.join(";")).or_default();
        (0..2).for_each(|at| sum[at] += sample.values[columns[at]] as f64);
    }
    Ok(sums)
}

/// Compares each site of a program that does the same in each run with a run in which each block is counted.
fn sites(one: Program) -> Outcome {
    let exact = by_stack(&run(one, 1, false)?.profile)?;
    let sampled = by_stack(&run(one, one.fine, false)?.profile)?;
    let (mut squares, mut compared) = (0.0, 0);
    for (at, what) in ["allocated", "live"].into_iter().enumerate() {
        for (stack, values) in &exact {
            let bytes = values[at];
            // With fewer than 25 samples the distribution is not normal.
            if bytes < 25.0 * one.fine as f64 {
                continue;
            }
            let value = sampled.get(stack).map_or(0.0, |values| values[at]);
            let off = (value - bytes) / deviation(bytes, one.fine);
            // The worst of some hundred sites is farther off than a total.
            if off.abs() > DEVIATIONS + 1.0 {
                return Err(Stop::Fail(format!("{what}: {value} instead of {bytes}, {off:.1} deviations: {stack}")));
            }
            squares += off * off;
            compared += 1;
        }
    }
    let mean = squares / f64::from(compared.max(1));
    println!("{}: {compared} figures, mean square {mean:.2}", one.name);
    if compared < 6 || mean > 2.0 {
        return Err(Stop::Fail(format!("{compared} figures with a mean square of {mean:.2}")));
    }
    Ok(())
}
