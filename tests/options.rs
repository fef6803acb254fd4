//! Options in the environment of whole programs: which values are accepted, which are refused, and which programs must
//! ignore them.

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::ExitCode;

use neap_options::{Kind, Opt, TABLE};
use neap_tests::sys::TempDir;
use neap_tests::{Case, Outcome, Run, Source, Stop, install, library, program};

const SECURE: Source = Source::new("options/secure.c");
const TABLE_OF: Source = Source::new("options/table.c");

fn main() -> ExitCode {
    neap_tests::suite::main(vec![
        Case::new("environment::good", "a value of the table that the library refuses", good),
        Case::new(
            "environment::bad",
            "a bad value that is silently ignored, stops the program, or has a bad message",
            bad,
        ),
        Case::new("environment::several", "a bad value that hides the other options", several),
        Case::new(
            "table::environment",
            "an option of the table that the library does not take from its variable",
            taken,
        ),
        Case::new("table::program", "an option that the program cannot set, or can although only the start may", set),
        Case::new("environment::names", "a variable that only begins like an option's, and is not reported", names),
        Case::new("environment::jemalloc", "jemalloc's settings that are ignored without a message", jemalloc),
        Case::new(
            "secure::ignored",
            "options and controls of glibc's that reach a program which gains rights when it starts",
            secure,
        ),
    ])
}

/// Runs `echo` with these variables; returns its standard error.
fn complaints(variables: &[(&str, &str)]) -> Result<String, Stop> {
    library::require_neap()?;
    let run = Run::new(program("echo")?).arg("ran");
    let done = variables.iter().fold(run, |run, (name, value)| run.env(name, value)).run()?.success()?;
    if done.stdout != "ran\n" {
        return Err(done.fail("the program did not do its work"));
    }
    Ok(done.stderr)
}

fn want(found: &str, wanted: &str) -> Outcome {
    if found == wanted { Ok(()) } else { Err(Stop::Fail(format!("standard error is {found:?}, not {wanted:?}"))) }
}

/// Some values that the option accepts: words, defaults, limits.
fn accepted(opt: &Opt) -> Vec<String> {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    match opt.kind {
        Kind::Choice(choice) => words(choice),
        // `neap run --summary` tests counting; an empty path means none.
        Kind::Directory => vec![String::new()],
        Kind::Size { words: other, max, .. } => [words(other), vec![max.to_string(), "64MiB".into()]].concat(),
        Kind::Prefault { .. } => ["off", "all", "file:lib*", "2MiB"].map(str::to_owned).into(),
        Kind::Report => vec!["off".into(), "/dev/null".into()],
        Kind::Duration { min, max } => vec![min.to_string(), max.to_string(), "2s".into(), "500ms".into()],
    }
}

fn good() -> Outcome {
    for opt in TABLE {
        for value in accepted(opt) {
            let found = complaints(&[(opt.env, &value)])?;
            // The value is good, but the machine's pool may be empty.
            let is_pool = value == "hugetlb" && found.starts_with("neap: huge=hugetlb: the pool has no free page");
            // This one needs another option too.
            let needs = value != "off" && found.contains("profile names no directory") && opt.name == "profile_signal";
            want(if is_pool || needs { "" } else { &found }, "")?;
        }
    }
    Ok(())
}

fn bad() -> Outcome {
    want(
        &complaints(&[("NEAP_PURGE", "sometimes")])?,
        "neap: NEAP_PURGE=sometimes is invalid; use decay, eager, lazy or never; \
         the default is used: decay\n",
    )?;
    want(
        &complaints(&[("NEAP_LIMIT", "512")])?,
        "neap: NEAP_LIMIT=512 is invalid; use a size from 1M to 128T (as 4096, 64K or 2GiB), auto or \
         off; the default is used: auto\n",
    )?;
    let long = "a\nb".repeat(10_000);
    for opt in TABLE {
        for value in ["/nonexistent/directory", "-1", "99999999999999999999999", &long] {
            want(&complaints(&[(opt.env, value)])?, &format!("{}\n", opt.complaint(value.as_bytes())))?;
        }
    }
    Ok(())
}

fn several() -> Outcome {
    let found = complaints(&[("NEAP_LIMIT", "x"), ("NEAP_ZERO", ""), ("NEAP_PURGE", "eager"), ("NEAP_FOREIGN", "y")])?;
    let found_bad: Vec<_> = found.lines().filter_map(|line| line.split(" is invalid").next()).collect();
    let wanted = ["neap: NEAP_FOREIGN=y", "neap: NEAP_ZERO=", "neap: NEAP_LIMIT=x"];
    if found_bad == wanted { Ok(()) } else { Err(Stop::Fail(format!("reported: {found_bad:?}, not {wanted:?}"))) }
}

fn names() -> Outcome {
    want(&complaints(&[("NEAP_LIMITS", "x")])?, "neap: NEAP_LIMITS is no option; did you mean NEAP_LIMIT?\n")?;
    want(&complaints(&[("NEAP_", "x")])?, "neap: NEAP_ is no option; neap options lists all\n")?;
    want(&complaints(&[("XNEAP_ZERO", "x"), ("NEAP_SET_BY_RUN", "")])?, "")
}

/// Checks that an option takes jemalloc's value, that neap's own variable has priority, and that one line lists what is
/// ignored.
fn jemalloc() -> Outcome {
    library::require_neap()?;
    let conf = "background_thread:true,dirty_decay_ms:2000,narenas:2,thp:never,lg_tcache_max:12";
    let run = Run::new(TABLE_OF.build()?).args(["purge_delay=", "huge=", "purge="]).env("MALLOC_CONF", conf);
    let done = run.env("NEAP_HUGE", "thp").run()?.success()?;
    want(&done.stdout, "purge_delay: 0, 2s by MALLOC_CONF\nhuge: 0, thp by environment\npurge: 0, decay by default\n")?;
    want(&done.stderr, "neap: MALLOC_CONF is jemalloc's; ignored: lg_tcache_max\n")
}

/// A value that is not the default.
fn other(opt: &Opt, dir: &Path) -> String {
    match opt.kind {
        Kind::Choice(words) => words.iter().find(|word| **word != opt.default).expect("a choice").to_string(),
        Kind::Directory => dir.display().to_string(),
        Kind::Size { .. } | Kind::Prefault { .. } => "64M".into(),
        Kind::Report => dir.join("stats").display().to_string(),
        Kind::Duration { .. } => "7s".into(),
    }
}

/// Runs `table.c` with an argument for each option; checks its line for each option.
fn table(env: bool, argument: impl Fn(&Opt) -> String, wanted: impl Fn(&Opt, &str) -> String) -> Outcome {
    library::require_neap()?;
    let dir = TempDir::new("table")?;
    let run = Run::new(TABLE_OF.build()?).args(TABLE.iter().map(|opt| format!("{}={}", opt.name, argument(opt))));
    let values: Vec<_> = TABLE.iter().map(|opt| other(opt, dir.path())).collect();
    let variables = TABLE.iter().zip(&values).filter(|_| env);
    let done = variables.fold(run, |run, (opt, value)| run.env(opt.env, value)).run()?.success()?;
    let lines: Vec<_> =
        TABLE.iter().zip(&values).map(|(opt, value)| format!("{}: {}\n", opt.name, wanted(opt, value))).collect();
    if done.stdout == lines.concat() { Ok(()) } else { Err(done.fail(&format!("wanted:\n{}", lines.concat()))) }
}

fn taken() -> Outcome {
    table(true, |_| String::new(), |_, value| format!("0, {value} by environment"))
}

fn set() -> Outcome {
    table(
        false,
        |opt| other(opt, Path::new("/")),
        |opt, value| match opt.start_only {
            true => format!("3, {} by default", opt.default),
            false => format!("0, {value} by the program"),
        },
    )
}

/// A program with the library linked in, because secure execution ignores a preload; first without, then with raised
/// rights.
fn secure() -> Outcome {
    let archive = library::require_neap()?.with_file_name("libneap.a");
    let built = SECURE.build_with(&[&archive], &[])?;
    let run = |path: &Path| {
        let run = Run::new(path).env("NEAP_PURGE", "sometimes").env("NEAP_COUNTERS", "/nonexistent");
        let run = run.env("MALLOC_PERTURB_", "165").env("GLIBC_TUNABLES", "glibc.malloc.perturb=165");
        run.plain().run()?.success()
    };
    let plain = run(&built)?;
    if plain.stdout != "secure 0\nfilled\n" || plain.stderr.lines().count() != 2 {
        return Err(plain.fail("two complaints were expected: the library is not linked in, or reads no options"));
    }
    if !neap_tests::is_root() {
        return Err(Stop::Skip("needs root to make a set-user-id program".into()));
    }
    let dir = TempDir::new("secure")?;
    let copy = dir.join("secure");
    install(&built, &copy)?;
    // Another owner than the user who runs it: the kernel then requests secure execution.
    chown(&copy, Some(65534), None)?;
    std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o4755))?;
    let done = run(&copy)?;
    if done.stdout.starts_with("secure 0\n") {
        return Err(Stop::Skip("set-user-id has no effect here (nosuid, no-new-privileges)".into()));
    }
    if done.stderr.is_empty() && done.stdout == "secure 1\nas it is\n" {
        Ok(())
    } else {
        Err(done.fail("the options were read"))
    }
}
