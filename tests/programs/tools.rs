//! Everyday tools, a browser, and programs that inspect or stress others.

use std::time::Duration;

use neap_tests::{Case, Finished, Outcome, Run, Source, Stop, library, program, suite};

use crate::{Workspace, case, no_leftovers, same_as_plain};

pub fn cases() -> Vec<Case> {
    vec![
        case("start::costs", "a start that touches more pages than it needs", start_costs),
        case("git", "short processes with packed objects and threads", git),
        case("sqlite3", "pages and sorters of a database on malloc", sqlite),
        case("shell", "pipelines of many short processes", shell),
        case("chromium::dom", "a browser with an allocator of its own and many processes", chromium_dom),
        case("chromium::screenshot", "a browser's rendering and its shared memory", chromium_screenshot),
        case("unshare", "a process that is multi-threaded before unshare -U because of neap", unshare),
        case("valgrind::memcheck", "a library that valgrind cannot trace, or reports as wrong", valgrind_memcheck),
        case("valgrind::none", "instructions or system calls that valgrind does not know", valgrind_none),
        case("gdb", "a program or debugger that stops at an unexpected place", gdb),
        case("gdb::call_malloc", "debug information from which gdb infers that malloc returns nothing", gdb_call),
        case("stress-ng::malloc", "the malloc stressor, with verification", stress_malloc),
        case("stress-ng::mmap", "the mmap stressor, with verification", stress_mmap),
    ]
}

const GIT: &str = r#"
set -eu
cd "$(mktemp -d -p .)"
git init -q -b main .
git config user.name Tester; git config user.email tester@example.invalid; git config gc.auto 0
for round in 1 2 3 4 5; do
    i=0
    while [ $i -lt 60 ]; do
        mkdir -p dir$((i % 7))
        seq $((i * round)) $((i * round + 300)) > dir$((i % 7))/file$i
        i=$((i + 1))
    done
    git add -A; git commit -q -m "round $round"
done
git checkout -q -b side HEAD~2; echo side > side; git add side; git commit -q -m side
git checkout -q main; git merge -q -m merged side
git repack -q -a -d -f --depth=20 --window=10 --threads=2
git gc -q --prune=now
git fsck --full --strict
git clone -q . copy; git -C copy log --format=%s
git grep -c 77 HEAD -- | wc -l
git blame dir1/file1 | wc -l
git diff HEAD~3 | tail -1
git count-objects -v | grep count
"#;

fn git() -> Outcome {
    program("git")?;
    let space = Workspace::new()?;
    same_as_plain(|| {
        Run::new("sh")
            .arg("-c")
            .arg(GIT)
            .dir(space.path())
            .env("HOME", space.path())
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_AUTHOR_DATE", "2024-01-01T00:00:00Z")
            .env("GIT_COMMITTER_DATE", "2024-01-01T00:00:00Z")
    })?
    .contains("merged")?;
    Ok(())
}

const SQL: &str = "
create table t(id integer primary key, a text, b blob, c real);
with recursive n(i) as (select 1 union all select i + 1 from n where i < 60000)
insert into t select i, printf('name-%08d', (i * 7919) % 60013), zeroblob(i % 200), i * 0.5 from n;
create index by_a on t(a);
select count(*), sum(length(b)), max(a), min(a) from t;
select substr(a, 1, 8), count(*), group_concat(id % 10, '') from t group by 1 order by 2 desc, 1 limit 5;
update t set a = a || a where id % 3 = 0;
delete from t where id % 7 = 0;
select count(*) from t x join t y on x.a = y.a;
select sum(length(hex(b))) from (select b from t order by c desc);
vacuum;
pragma integrity_check;
";

fn sqlite() -> Outcome {
    let sqlite = program("sqlite3")?;
    same_as_plain(|| Run::new(&sqlite).arg(":memory:").input(SQL))?.contains("ok")?;
    let space = Workspace::new()?;
    let done = Run::new(&sqlite).arg(space.file("data.db")).input(SQL).run()?;
    done.success()?.contains("ok")?.no_complaint()?;
    Ok(())
}

const SHELL: &str = r#"
set -eu
i=0
while [ $i -lt 40 ]; do
    seq 1 2000 | sort -R | sort -n | sed 's/$/ x/' | awk '{ s += $1 } END { print s }' | tr '\n' ' '
    i=$((i + 1))
done
seq 1 300000 | sort -r | gzip | gunzip | sort -n | md5sum
find /usr/share/doc -maxdepth 1 | xargs -n 50 -P 2 ls -d > /dev/null
tar -cf - /etc/passwd /etc/group 2>/dev/null | tar -tf -
"#;

fn shell() -> Outcome {
    same_as_plain(|| Run::new("sh").arg("-c").arg(SHELL))?;
    Ok(())
}

const PAGE: &str =
    "<!doctype html><title>page</title><body><div id=out>nothing</div><canvas id=c width=400 height=300></canvas>
<script>
const parts = [];
for (let i = 0; i < 20000; i++) { const e = document.createElement('p'); e.textContent = 'line ' + i; parts.push(e); }
const box = document.createElement('div'); parts.forEach(p => box.append(p)); document.body.append(box);
const g = document.getElementById('c').getContext('2d');
for (let i = 0; i < 400; i++) { g.fillStyle = `hsl(${i} 80% 50%)`; g.fillRect(i, i / 2, 30, 30); }
document.getElementById('out').textContent = 'sum ' + parts.reduce((s, p) => s + p.textContent.length, 0);
box.remove();
</script>";

/// Chromium without its sandbox, which containers refuse, on the page above.
fn chromium(space: &Workspace, args: &[&str]) -> Result<Finished, Stop> {
    let browser = program("chromium")?;
    let page = space.write("page.html", PAGE)?;
    let done = Run::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"])
        .args(["--disable-crash-reporter", "--disable-breakpad", "--virtual-time-budget=2000"])
        .arg(format!("--user-data-dir={}", space.file("profile").display()))
        .args(args)
        .arg(format!("file://{}", page.display()))
        .env("HOME", space.path())
        .dir(space.path())
        .timeout(Duration::from_secs(240))
        .run()?
        .success()?
        .no_complaint()?;
    no_leftovers(space.path())?;
    Ok(done)
}

fn chromium_dom() -> Outcome {
    let space = Workspace::new()?;
    chromium(&space, &["--dump-dom"])?.contains("sum 188890")?;
    Ok(())
}

fn chromium_screenshot() -> Outcome {
    let space = Workspace::new()?;
    let picture = space.file("picture.png");
    let done = chromium(&space, &[&format!("--screenshot={}", picture.display()), "--window-size=800,600"])?;
    match std::fs::read(&picture) {
        Ok(bytes) if bytes.starts_with(b"\x89PNG") && bytes.len() > 2000 => Ok(()),
        _ => Err(done.fail("there is no picture")),
    }
}

fn unshare() -> Outcome {
    let unshare = program("unshare")?;
    same_as_plain(|| Run::new(&unshare).args(["-U", "sh", "-c", "id -u"]))?;
    same_as_plain(|| Run::new(&unshare).args(["-U", "-r", "true"]))?;
    Ok(())
}

const REALLOC: Source = Source::new("surface/realloc.c");
const FORK: Source = Source::new("life/fork.c");

fn valgrind_memcheck() -> Outcome {
    let valgrind = program("valgrind")?;
    for (source, case) in [(REALLOC, "grow_by_one"), (FORK, "vfork_exec")] {
        Run::new(&valgrind)
            .args(["--error-exitcode=9", "--child-silent-after-fork=yes"])
            .arg(source.build()?)
            .arg(case)
            .timeout(Duration::from_secs(300))
            .run()?
            .success()?
            .contains("ok")?
            .contains("ERROR SUMMARY: 0 errors")?
            .no_complaint()?;
    }
    Ok(())
}

fn valgrind_none() -> Outcome {
    let valgrind = program("valgrind")?;
    for case in ["null_is_malloc", "shrink"] {
        Run::new(&valgrind)
            .arg("--tool=none")
            .arg(REALLOC.build()?)
            .arg(case)
            .timeout(Duration::from_secs(300))
            .run()?
            .success()?
            .contains("ok")?
            .no_complaint()?;
    }
    Ok(())
}

/// gdb before 14 cannot write the registers of processors with AMX, in any program.
fn can_call(gdb: Finished) -> Result<Finished, Stop> {
    let refusal = "Couldn't write extended state status";
    if gdb.stderr.contains(refusal) {
        Err(Stop::Skip(format!("gdb can call no function here: {refusal}")))
    } else {
        Ok(gdb)
    }
}

fn gdb() -> Outcome {
    let gdb = program("gdb")?;
    let target = REALLOC.build()?;
    let done = Run::new(gdb)
        .args(["-q", "-nx", "-batch", "-ex", "break array_overflow", "-ex", "run array_overflow"])
        .args(["-ex", "backtrace", "-ex", "finish", "-ex", "print ((void *(*)(unsigned long)) malloc)(1000) != 0"])
        .args(["-ex", "info proc mappings", "-ex", "continue"])
        .arg(&target)
        .run()?;
    let done = can_call(done)?
        .success()?
        .contains("Breakpoint 1, array_overflow")?
        .contains("in run_cases")?
        .contains("$1 = 1")?
        .contains("exited normally")?
        .no_complaint()?;
    if let Some(name) = library::under_test()?.path().and_then(|path| path.file_name()) {
        return done.contains(&name.to_string_lossy()).map(|_| ());
    }
    Ok(())
}

/// `call (TYPE) malloc(N)` is what people type. It needs either no debug information on malloc, or all of it.
fn gdb_call() -> Outcome {
    let gdb = program("gdb")?;
    let done = Run::new(gdb)
        .args(["-q", "-nx", "-batch", "-ex", "break array_overflow", "-ex", "run array_overflow"])
        .args(["-ex", "print (long) malloc(1000) != 0", "-ex", "print (int) strlen(\"four\")", "-ex", "continue"])
        .arg(REALLOC.build()?)
        .run()?;
    can_call(done)?.success()?.contains("$1 = 1")?.contains("$2 = 4")?.no_complaint()?;
    Ok(())
}

fn stress(args: &[&str]) -> Outcome {
    Run::new(program("stress-ng")?)
        .args(args)
        .args(["--verify", "--timeout", "4s"])
        .run()?
        .success()?
        .contains("successful run completed")?
        .no_complaint()?;
    Ok(())
}

fn stress_malloc() -> Outcome {
    stress(&["--malloc", "2", "--malloc-bytes", "256M", "--malloc-pthreads", "4"])
}

fn stress_mmap() -> Outcome {
    stress(&["--mmap", "2", "--mmap-bytes", "256M"])
}

/// Limits on what neap may add to the anonymous memory of `cat`, and to its page faults: one for each size class that
/// its locale's tables use, and ten for neap itself. Pages of libneap.so count only through the faults: all processes
/// share them, and the kernel maps 16 around each touched page, so their number varies with the address.
const START_KIB: i64 = 120;
const START_FAULTS: i64 = 40;
/// Pairs of runs; the median counts.
const START_RUNS: usize = 15;

fn start_costs() -> Outcome {
    let cat = program("cat")?;
    // What `cat` reads about itself: anonymous and resident memory in KiB, minor faults (fields of proc(5)).
    let figures = |plain: bool| -> Result<[i64; 3], Stop> {
        let run = |file: &str| {
            let run = Run::new(&cat).arg(file);
            if plain { run.plain() } else { run }.run()?.success()
        };
        let (status, stat) = (run("/proc/self/status")?, run("/proc/self/stat")?);
        let field = |text: Option<&str>| text.and_then(|t| t.parse().ok()).ok_or(Stop::Fail("no figure".into()));
        let kib = |name| {
            let line = status.stdout.lines().find_map(|line| line.strip_prefix(name));
            field(line.and_then(|rest| rest.split_whitespace().next()))
        };
        let faults = stat.stdout.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(7));
        Ok([kib("RssAnon:")?, kib("VmRSS:")?, field(faults)?])
    };
    let mut added = [const { Vec::new() }; 3];
    for _ in 0..START_RUNS {
        let (with, without) = (figures(false)?, figures(true)?);
        for (of, (with, without)) in added.iter_mut().zip(with.into_iter().zip(without)) {
            of.push(with - without);
        }
    }
    let [kib, resident, faults] = added.map(|mut of| {
        of.sort_unstable();
        of[START_RUNS / 2]
    });
    let text = format!(
        "cat: {kib} KiB more anonymous memory, {resident} KiB with the library's pages, {faults} more page faults than with glibc"
    );
    suite::note(&text);
    if library::under_test()?.is_neap() && (kib > START_KIB || faults > START_FAULTS) {
        return Err(Stop::Fail(text));
    }
    Ok(())
}
