//! `neap pagein --sites`: each fault in a block names the function that allocated it.

use std::os::unix::fs::FileExt;

use neap_sites::{Cursor, ENTRY_BYTES, HEADER_BYTES, Head, Header, Ring};
use neap_tests::command::need_events;
use neap_tests::sys::TempDir;
use neap_tests::{Case, Outcome, Run, Source, Stop, library};

use super::trace::{Trace, words};

const SITES: Source = Source::with_flags("pagein/sites.c", &["-O2", "-pthread"]);
const SITES_CXX: Source = Source::with_flags("pagein/sites.cc", &["-O1"]);

pub fn cases() -> Vec<Case> {
    vec![
        Case::new(
            "sites::kinds",
            "a fault in a block that names another function than the one that allocated it",
            || named(&SITES, "kinds", 900),
        ),
        Case::new("sites::cxx", "the same with operator new and containers", || named(&SITES_CXX, "", 250)),
        Case::new("sites::threads", "the same in several threads", || named(&SITES, "threads", 1200)),
        Case::new("sites::forks", "a child with its parent's later blocks, or without the earlier ones", || {
            named(&SITES, "forks", 300)
        }),
        Case::new("sites::signals", "blocks of a handler that are missing, or have the wrong site", || {
            named(&SITES, "signals", 200)
        }),
        Case::new("sites::garbage", "a crash where the frame pointer holds something else", || {
            named(&SITES, "garbage", 12)
        }),
        Case::new("sites::sampled", "a block that is given a site although it was not sampled", sampled),
        Case::new("sites::begin", "sites that are missing where only the beginnings of faults are traced", begin),
        Case::new("sites::overflow", "overwritten entries that are not counted", overflow),
        Case::new("sites::refused", "a program that fails because its sites cannot be written", refused),
        Case::new(
            "sites::static",
            "a program into which neap cannot be preloaded, but which is traced without a message",
            || {
                need_events()?;
                let program = super::trace::KNOWN_STATIC.build()?;
                let run = Run::new(neap_tests::command::neap()?).args(["pagein", "--sites", "-o", "-", "--"]);
                let done = run.arg(program).plain().run()?;
                super::expect(!done.status.success() && done.stderr.contains("static"), &done, "it should be refused")
            },
        ),
    ]
}

/// What a program prints about one of its blocks.
struct Says<'a> {
    pid: u64,
    address: u64,
    size: u64,
    function: &'a str,
}

fn says(line: &str) -> Option<Says<'_>> {
    let mut words = line.strip_prefix("block ")?.split(' ');
    let pid = words.next()?.parse().ok()?;
    let address = hex(words.next()?)?;
    Some(Says { pid, address, size: words.next()?.parse().ok()?, function: words.next()? })
}

fn hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

/// A fault of the table: pid, address, and the function that the block is from.
fn fault(line: &str) -> Option<(u64, u64, Option<&str>)> {
    let fields: Vec<&str> = line.split_whitespace().take(11).collect();
    let site = line.split_once(" bytes at 0x").and_then(|(_, rest)| rest.split_once(" from "));
    let site = site.map(|(_, rest)| rest.split(['+', '(', ' ', ')']).next().unwrap_or_default());
    Some((fields.get(4)?.parse().ok()?, hex(fields.get(10)?)?, site))
}

fn table(source: &Source, options: &[&str], case: &str) -> Result<Trace, Stop> {
    need_events()?;
    let mut all = vec!["--format", "table"];
    all.extend(options);
    Trace::of(&all, &words(&source.build()?, &[case]))
}

/// Checks that each fault in a block that the program printed names its function, and that there are at least `least`.
fn named(source: &Source, case: &str, least: usize) -> Outcome {
    let trace = table(source, &["--sites"], case)?;
    check(&trace, least, true)
}

fn check(trace: &Trace, least: usize, all: bool) -> Outcome {
    if trace.done.status.code() != Some(0) || !trace.says("allocation sites: ") || !trace.says("lost: 0") {
        return Err(trace.fail("the wrong end, or nothing about sites"));
    }
    let said: Vec<Says<'_>> = trace.done.stdout.lines().filter_map(says).collect();
    let mut right = 0;
    for line in &trace.faults {
        let Some((pid, address, site)) = fault(line) else { continue };
        // The line shows a file that has since been unmapped: blocks may lie there now.
        if line.contains("  -> /") {
            continue;
        }
        // Blocks at the same address, one after the other.
        let mut here = said
            .iter()
            .filter(|block| (block.pid == pid || block.pid == 0) && address.wrapping_sub(block.address) < block.size)
            .peekable();
        if here.peek().is_none() || !all && site.is_none() {
            continue;
        }
        if !here.any(|block| Some(block.function) == site) {
            return Err(trace.fail(&format!("the wrong site, of {} blocks: {line}", said.len())));
        }
        right += 1;
    }
    neap_tests::suite::note(format!("{right} faults in blocks that the program tells of"));
    if right < least { Err(trace.fail(&format!("only {right} faults are in blocks"))) } else { Ok(()) }
}

fn sampled() -> Outcome {
    let trace = table(&SITES, &["--sites=256K"], "kinds")?;
    if !trace.says("one allocation in 262144 bytes was recorded") {
        return Err(trace.fail("the interval is not shown"));
    }
    // Long blocks are nearly always samples.
    check(&trace, 300, false)
}

fn begin() -> Outcome {
    let trace = table(&SITES, &["--sites", "--detail", "begin"], "kinds")?;
    check(&trace, 900, true)
}

struct File(std::fs::File);

impl Ring for File {
    fn head(&mut self) -> Option<Head> {
        let mut bytes = [0; size_of::<Header>()];
        self.0.read_exact_at(&mut bytes, 0).ok()?;
        Head::parse(&bytes).ok()
    }

    fn slots(&mut self, first: u64, bytes: &mut [u8]) -> bool {
        self.0.read_exact_at(bytes, HEADER_BYTES as u64 + first * ENTRY_BYTES as u64).is_ok()
    }
}

/// Without a reader: what does not fit into the ring is overwritten.
fn overflow() -> Outcome {
    library::require_neap()?;
    let directory = TempDir::below(&neap_tests::target_dir(), "sites-test-")?;
    let done = Run::new(SITES.build()?).arg("many").env("NEAP_SITES", directory.path()).run()?.success()?;
    let mut files = std::fs::read_dir(directory.path())?;
    let made = files.next().ok_or_else(|| done.fail("there is no file"))??;
    let mut file = File(std::fs::File::open(made.path())?);
    let head = file.head().ok_or_else(|| done.fail("the header cannot be read"))?;
    let (mut cursor, mut seen, mut stacks) = (Cursor::default(), 0, 0);
    cursor.read(&mut file, true, &mut |entry| {
        seen += 1;
        stacks += u64::from(entry.size == 64 && entry.frames().len() > 2);
    });
    let fits = head.head >= 40_000 && head.lost == 0 && seen + cursor.lost() == head.head;
    super::expect(fits && seen == neap_sites::CAPACITY && stacks > 30_000, &done, "entries are missing")
}

/// Checks that a file that cannot be made costs one line.
fn refused() -> Outcome {
    library::require_neap()?;
    for directory in ["/nonexistent/directory", "/dev/null", "/proc"] {
        let done = Run::new(SITES.build()?).arg("many").env("NEAP_SITES", directory).run()?;
        let lines = done.stderr.lines().filter(|line| line.contains("NEAP_SITES")).count();
        super::expect(done.status.success() && lines == 1, &done, directory)?;
    }
    let done = Run::new(SITES.build()?).arg("many").env("NEAP_SITES", "").run()?;
    super::expect(done.status.success() && done.stderr.is_empty(), &done, "an empty value is none")
}
