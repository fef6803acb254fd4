//! One recipe per peer: the flags follow the project's own build for a shared override library.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Context, Result, bail};

use super::recipe::{Job, Recipe, Upstream, Version};
use crate::interrupt::run;
use crate::toolchain::{cc, cxx, need};

const MIMALLOC: &str = "https://github.com/microsoft/mimalloc";

/// All peers, in the order of the tables.
pub const RECIPES: [Recipe; 7] = [
    Recipe {
        name: "mimalloc2",
        krate: "libmimalloc-sys",
        tree: "c_src/mimalloc/v2",
        build: mimalloc,
        version: mimalloc_version,
        upstream: Some(Upstream { repository: MIMALLOC, series: "2.", known: "" }),
        debian: Some(("/usr/lib/x86_64-linux-gnu/libmimalloc.so.2", "libmimalloc2.0")),
        env: &[],
    },
    Recipe {
        name: "mimalloc3",
        krate: "libmimalloc-sys",
        tree: "c_src/mimalloc/v3",
        build: mimalloc,
        version: mimalloc_version,
        upstream: Some(Upstream { repository: MIMALLOC, series: "3.", known: "3.4.3" }),
        debian: None,
        env: &[],
    },
    Recipe {
        name: "mimalloc-pprof",
        krate: "mimalloc-pprof",
        tree: "vendor",
        build: mimalloc_pprof,
        version: |tree, _| Ok(Version { word: header_version(&tree.join("mimalloc.h"))?, date: None }),
        upstream: None,
        debian: None,
        env: &[],
    },
    Recipe {
        name: "jemalloc",
        krate: "tikv-jemalloc-sys",
        tree: "jemalloc",
        build: jemalloc,
        version: jemalloc_version,
        upstream: Some(Upstream { repository: "https://github.com/jemalloc/jemalloc", series: "", known: "" }),
        debian: Some(("/usr/lib/x86_64-linux-gnu/libjemalloc.so.2", "libjemalloc2")),
        env: &[],
    },
    Recipe {
        name: "snmalloc",
        krate: "snmalloc-sys",
        tree: "upstream",
        build: snmalloc,
        version: |_, version| Ok(Version { word: version.into(), date: None }),
        upstream: Some(Upstream { repository: "https://github.com/microsoft/snmalloc", series: "", known: "" }),
        debian: None,
        env: &[],
    },
    Recipe {
        name: "rpmalloc",
        krate: "rpmalloc-sys",
        tree: "rpmalloc",
        build: rpmalloc,
        version: rpmalloc_version,
        upstream: Some(Upstream { repository: "https://github.com/mjansson/rpmalloc", series: "", known: "2.0.1" }),
        debian: None,
        env: &[],
    },
    Recipe {
        name: "tcmalloc",
        krate: "libtcmalloc-sys",
        tree: "c_src/tcmalloc",
        build: tcmalloc,
        version: tcmalloc_version,
        // Its authors make no releases.
        upstream: None,
        debian: Some(("/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4", "libtcmalloc-minimal4")),
        // Its per-CPU caches need the thread's rseq registration, which glibc takes first.
        env: &[("GLIBC_TUNABLES", "glibc.pthread.rseq=0")],
    },
];

/// mimalloc 2 and 3: one translation unit; flags of its CMake release build.
fn mimalloc(job: &mut Job) -> Result<()> {
    mimalloc_of(job, "include", "src/static.c", &[])
}

/// A fork of mimalloc 3 in one file, with the features off that its crate has off.
fn mimalloc_pprof(job: &mut Job) -> Result<()> {
    let off = ["-DMI_PPROF=0", "-DMI_MEMEVT=0", "-DMI_DIAGNOSTICS=0", "-DMI_DHAT=0", "-DMI_OWNER_GATE=0"];
    mimalloc_of(job, "", "mimalloc-pprof-amalgamated.c", &off)
}

fn mimalloc_of(job: &mut Job, include: &str, source: &str, defines: &[&str]) -> Result<()> {
    let mut command = Command::new(cc());
    command
        .args(["-std=gnu11", "-O3", "-DNDEBUG", "-DMI_BUILD_RELEASE"])
        .args(["-DMI_MALLOC_OVERRIDE", "-DMI_SHARED_LIB", "-DMI_SHARED_LIB_EXPORT"])
        .args(["-fPIC", "-fvisibility=hidden", "-ftls-model=initial-exec"])
        .args(defines)
        .args(["-fno-builtin-malloc", "-shared", "-I"])
        .arg(job.tree.join(include))
        .arg(job.tree.join(source))
        .arg("-o")
        .arg(&job.output)
        .args(["-lpthread", "-lrt"]);
    job.run(&mut command)
}

/// The number in mimalloc's header, with the date that its readme gives the release.
fn mimalloc_version(tree: &Path, _: &str) -> Result<Version> {
    let word = header_version(&tree.join("include/mimalloc.h"))?;
    let date = date_after(&tree.join("readme.md"), &format!("`v{word}`"));
    Ok(Version { word, date })
}

/// The version in mimalloc's header.
fn header_version(header: &Path) -> Result<String> {
    let header = fs::read_to_string(header)?;
    let number = word_after(&header, "#define MI_MALLOC_VERSION")?;
    let number: u32 = number.parse().context("MI_MALLOC_VERSION is not a number")?;
    // Newer headers hold two digits each for minor and patch, older ones one.
    Ok(match number {
        10_000.. => format!("{}.{}.{}", number / 10_000, number / 100 % 100, number % 100),
        _ => format!("{}.{}.{}", number / 100, number / 10 % 10, number % 10),
    })
}

/// jemalloc: its configure and make, default options, unprefixed.
fn jemalloc(job: &mut Job) -> Result<()> {
    need("make", "apt install make")?;
    let tree = job.scratch.join("jemalloc");
    copy_tree(&job.tree, &tree)?;
    // The crate carries the generated script beside the tree; the repository has none.
    let made = job.source.join("configure/configure");
    if made.exists() {
        fs::copy(made, tree.join("configure"))?;
    } else {
        need("autoconf", "apt install autoconf")?;
        job.run(Command::new("autoconf").current_dir(&tree))?;
    }
    let mut configure = Command::new("sh");
    configure
        .current_dir(&tree)
        .arg("configure")
        .arg(format!("--with-version={}", job.described))
        .args(["--disable-static", "--enable-doc=no"]);
    job.run(&mut configure)?;
    let mut make = Command::new("make");
    make.current_dir(&tree).arg("build_lib_shared").arg(jobs_flag());
    job.note(crate::toolchain::shell_line(&make));
    let count = |end: &str| {
        let names = fs::read_dir(tree.join("src")).into_iter().flatten().flatten().map(|entry| entry.file_name());
        names.filter(|name| name.to_string_lossy().ends_with(end)).count()
    };
    job.progress.files(count(".c"), || count(".pic.o"), || run(&mut make))?;
    fs::copy(tree.join("lib/libjemalloc.so.2"), &job.output)?;
    Ok(())
}

/// The version after the `+` in the crate's version, with the date from jemalloc's list of changes.
fn jemalloc_version(tree: &Path, version: &str) -> Result<Version> {
    let (_, described) = version.split_once('+').context("the crate's version does not name jemalloc's")?;
    let word = described.split('-').next().unwrap_or(described).to_owned();
    let date = date_after(&tree.join("ChangeLog"), &format!("* {word}"));
    Ok(Version { word, date })
}

/// snmalloc: its CMake target `snmallocshim`, release.
fn snmalloc(job: &mut Job) -> Result<()> {
    need("cmake", "apt install cmake")?;
    let build = job.scratch.join("build");
    let mut configure = Command::new("cmake");
    configure
        .arg("-S")
        .arg(&job.tree)
        .arg("-B")
        .arg(&build)
        .args(["-DCMAKE_BUILD_TYPE=Release", "-DSNMALLOC_BUILD_TESTING=OFF"])
        .arg(format!("-DCMAKE_CXX_COMPILER={}", cxx()));
    job.run(&mut configure)?;
    let mut make = Command::new("cmake");
    make.arg("--build").arg(&build).args(["--target", "snmallocshim"]);
    job.run(&mut make)?;
    fs::copy(build.join("libsnmallocshim.so"), &job.output)?;
    Ok(())
}

/// rpmalloc: one translation unit with its override and preload switches.
fn rpmalloc(job: &mut Job) -> Result<()> {
    let mut command = Command::new(cc());
    command
        .args(["-std=gnu11", "-O3", "-DNDEBUG", "-D_GNU_SOURCE=1"])
        .args(["-DENABLE_PRELOAD=1", "-DENABLE_OVERRIDE=1"])
        .args(["-fPIC", "-fomit-frame-pointer", "-ftls-model=initial-exec"])
        .args(["-fno-builtin-malloc", "-shared"])
        .arg(job.tree.join("rpmalloc/rpmalloc.c"))
        .arg("-o")
        .arg(&job.output)
        .args(["-lpthread", "-ldl"]);
    job.run(&mut command)
}

/// The first line of rpmalloc's list of changes.
fn rpmalloc_version(tree: &Path, _: &str) -> Result<Version> {
    let changes = fs::read_to_string(tree.join("CHANGELOG"))?;
    Ok(Version { word: changes.lines().next().unwrap_or_default().trim().into(), date: None })
}

/// tcmalloc: the files that the crate's build script names, but with the public override instead
/// of the crate's bridge, and without interposition between its own files.
fn tcmalloc(job: &mut Job) -> Result<()> {
    let script = fs::read_to_string(job.source.join("build.rs"))?;
    let mut files: Vec<PathBuf> = script
        .split('"')
        .filter(|text| text.starts_with("c_src/") && (text.ends_with(".cc") || text.ends_with(".S")))
        .filter(|text| !text.contains("_bridge.cc"))
        .map(|text| job.source.join(text))
        .collect();
    if files.len() < 50 {
        bail!("the crate's build script no longer lists its sources");
    }
    files.push(job.source.join("c_src/tcmalloc/tcmalloc/tcmalloc.cc"));
    let source = job.source.clone();
    let flags = |command: &mut Command| {
        command
            .args(["-std=c++17", "-O3", "-DNDEBUG", "-DNOMINMAX", "-w"])
            .args(["-DTCMALLOC_INTERNAL_8K_PAGES", "-fPIC", "-fno-omit-frame-pointer"])
            .args(["-fno-semantic-interposition", "-ftls-model=initial-exec"])
            .args(["-fno-builtin-malloc", "-fno-canonical-system-headers", "-I"])
            .arg(source.join("c_src/abseil-cpp"))
            .arg("-I")
            .arg(source.join("c_src/tcmalloc"));
    };
    let mut shown = Command::new(cxx());
    flags(&mut shown);
    job.note(format!("{} -c FILE ({} files)", crate::toolchain::shell_line(&shown), files.len()));
    let (scratch, compiled) = (&job.scratch, AtomicUsize::new(0));
    // Relaxed: the count is only shown.
    let objects = job.progress.files(
        files.len(),
        || compiled.load(Ordering::Relaxed),
        || compile_all(&files, scratch, &compiled, &flags),
    )?;
    let mut link = Command::new(cxx());
    link.args(["-shared", "-Wl,-Bsymbolic-functions", "-Wl,--gc-sections"])
        .args(&objects)
        .arg("-o")
        .arg(&job.output)
        .arg("-lpthread");
    run(&mut link)?;
    job.note("c++ -shared -Wl,-Bsymbolic-functions -Wl,--gc-sections *.o -o $OUT -lpthread");
    Ok(())
}

/// tcmalloc has no version. The date of the crate's version, for which its source was fetched.
fn tcmalloc_version(tree: &Path, version: &str) -> Result<Version> {
    let changes = tree.ancestors().nth(2).context("the tree lies in the crate")?.join("CHANGELOG.md");
    let text = fs::read_to_string(changes)?;
    let line = text.lines().find(|line| line.starts_with(&format!("## [{version}]")));
    let date = line.and_then(|line| line.rsplit_once(" - ")).map(|(_, date)| date.trim().to_owned());
    Ok(Version { word: date.clone().unwrap_or_else(|| version.into()), date })
}

/// Compiles each file to an object in `scratch`, on all cores, and counts them in `compiled`.
fn compile_all(
    files: &[PathBuf],
    scratch: &Path,
    compiled: &AtomicUsize,
    flags: &(dyn Fn(&mut Command) + Sync),
) -> Result<Vec<PathBuf>> {
    let object = |index: usize| scratch.join(format!("{index}.o"));
    let workers = thread::available_parallelism().map_or(1, |n| n.get());
    let next = AtomicUsize::new(0);
    let work = || -> Result<()> {
        loop {
            // Relaxed: the counter only hands out indices.
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(file) = files.get(index) else {
                return Ok(());
            };
            let mut command = Command::new(cxx());
            flags(&mut command);
            command.arg("-c").arg(file).arg("-o").arg(object(index));
            run(&mut command)?;
            compiled.fetch_add(1, Ordering::Relaxed);
        }
    };
    thread::scope(|scope| {
        let handles: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        handles.into_iter().try_for_each(|handle| handle.join().expect("a compile thread does not panic"))
    })?;
    Ok((0..files.len()).map(object).collect())
}

/// `-jN` for make.
fn jobs_flag() -> String {
    format!("-j{}", thread::available_parallelism().map_or(1, |n| n.get()))
}

/// The word that follows `key` in `text`.
fn word_after<'a>(text: &'a str, key: &str) -> Result<&'a str> {
    let at = text.find(key).with_context(|| format!("`{key}` is not in the header"))?;
    let rest = &text[at + key.len()..];
    rest.split_whitespace().next().with_context(|| format!("nothing follows `{key}`"))
}

/// The date in brackets after `key` in a file, as `YYYY-MM-DD`. The file has `(2026-04-29)` or `(Apr 13, 2026)`.
fn date_after(file: &Path, key: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let rest = text[text.find(key)? + key.len()..].trim_start();
    iso_date(rest.strip_prefix('(')?.split_once(')')?.0)
}

fn iso_date(text: &str) -> Option<String> {
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let words: Vec<&str> = text.split([' ', ',']).filter(|word| !word.is_empty()).collect();
    match words[..] {
        [month, day, year] => {
            let month = MONTHS.iter().position(|&name| month.starts_with(name))? + 1;
            Some(format!("{year}-{month:02}-{:02}", day.parse::<u8>().ok()?))
        }
        [date] if date.len() == 10 => Some(date.to_owned()),
        _ => None,
    }
}

/// Copies a folder, because the registry's copy must not change.
fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_tree(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    // Would catch a date of another release, and one that is not in the form of the others.
    #[test]
    fn dates_are_those_of_the_release() {
        let scratch = crate::scratch::Scratch::new("dates").unwrap();
        let file = scratch.join("ChangeLog");
        fs::write(&file, "* 5.3.1 (Apr 3, 2026)\n* 5.3.0 (May 6, 2022)\n`v3.3.2`  (2026-04-29) x\n* 1.0\n").unwrap();
        let date = |key| date_after(&file, key);
        assert_eq!(date("* 5.3.1").as_deref(), Some("2026-04-03"));
        assert_eq!(date("* 5.3.0").as_deref(), Some("2022-05-06"));
        assert_eq!(date("`v3.3.2`").as_deref(), Some("2026-04-29"));
        assert_eq!((date("* 1.0"), date("* 9")), (None, None));
    }
}
