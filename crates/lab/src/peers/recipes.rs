//! One recipe per peer: the flags follow the project's own build for a shared override library.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, bail};

use super::recipe::{Job, Recipe};
use crate::interrupt::run;
use crate::toolchain::{cc, cxx, need};

/// All peers, in the order of the tables.
pub const RECIPES: [Recipe; 7] = [
    Recipe {
        name: "mimalloc2",
        krate: "libmimalloc-sys",
        build: |job| mimalloc(job, "v2"),
        debian: Some(("/usr/lib/x86_64-linux-gnu/libmimalloc.so.2", "libmimalloc2.0")),
        env: &[],
    },
    Recipe { name: "mimalloc3", krate: "libmimalloc-sys", build: |job| mimalloc(job, "v3"), debian: None, env: &[] },
    Recipe { name: "mimalloc-pprof", krate: "mimalloc-pprof", build: mimalloc_pprof, debian: None, env: &[] },
    Recipe {
        name: "jemalloc",
        krate: "tikv-jemalloc-sys",
        build: jemalloc,
        debian: Some(("/usr/lib/x86_64-linux-gnu/libjemalloc.so.2", "libjemalloc2")),
        env: &[],
    },
    Recipe { name: "snmalloc", krate: "snmalloc-sys", build: snmalloc, debian: None, env: &[] },
    Recipe { name: "rpmalloc", krate: "rpmalloc-sys", build: rpmalloc, debian: None, env: &[] },
    Recipe {
        name: "tcmalloc",
        krate: "libtcmalloc-sys",
        build: tcmalloc,
        debian: Some(("/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4", "libtcmalloc-minimal4")),
        // Its per-CPU caches need the thread's rseq registration, which glibc takes first.
        env: &[("GLIBC_TUNABLES", "glibc.pthread.rseq=0")],
    },
];

/// mimalloc 2 and 3: one translation unit; flags of its CMake release build.
fn mimalloc(job: &mut Job, generation: &str) -> Result<String> {
    let source = job.source.join("c_src/mimalloc").join(generation);
    mimalloc_of(job, &source.join("include"), &source.join("src/static.c"), &[])
}

/// A fork of mimalloc 3 in one file, with the features off that its crate has off.
fn mimalloc_pprof(job: &mut Job) -> Result<String> {
    let include = job.source.join("vendor");
    let source = include.join("mimalloc-pprof-amalgamated.c");
    let off = ["-DMI_PPROF=0", "-DMI_MEMEVT=0", "-DMI_DIAGNOSTICS=0", "-DMI_DHAT=0", "-DMI_OWNER_GATE=0"];
    mimalloc_of(job, &include, &source, &off)
}

fn mimalloc_of(job: &mut Job, include: &Path, source: &Path, defines: &[&str]) -> Result<String> {
    let mut command = Command::new(cc());
    command
        .args(["-std=gnu11", "-O3", "-DNDEBUG", "-DMI_BUILD_RELEASE"])
        .args(["-DMI_MALLOC_OVERRIDE", "-DMI_SHARED_LIB", "-DMI_SHARED_LIB_EXPORT"])
        .args(["-fPIC", "-fvisibility=hidden", "-ftls-model=initial-exec"])
        .args(defines)
        .args(["-fno-builtin-malloc", "-shared", "-I"])
        .arg(include)
        .arg(source)
        .arg("-o")
        .arg(&job.output)
        .args(["-lpthread", "-lrt"]);
    job.run(&mut command)?;
    let header = fs::read_to_string(include.join("mimalloc.h"))?;
    let number = word_after(&header, "#define MI_MALLOC_VERSION")?;
    let number: u32 = number.parse().context("MI_MALLOC_VERSION is no number")?;
    // Newer headers hold two digits each for minor and patch, older ones one.
    Ok(match number {
        10_000.. => format!("{}.{}.{}", number / 10_000, number / 100 % 100, number % 100),
        _ => format!("{}.{}.{}", number / 100, number / 10 % 10, number % 10),
    })
}

/// jemalloc: its configure and make, default options, unprefixed.
fn jemalloc(job: &mut Job) -> Result<String> {
    need("make", "apt install make")?;
    let tree = job.scratch.join("jemalloc");
    copy_tree(&job.source.join("jemalloc"), &tree)?;
    fs::copy(job.source.join("configure/configure"), tree.join("configure"))?;
    let version = job.crate_version.split_once('+').map(|(_, v)| v.to_owned());
    let version = version.context("the crate's version does not name jemalloc's")?;
    let mut configure = Command::new("sh");
    configure
        .current_dir(&tree)
        .arg("configure")
        .arg(format!("--with-version={version}"))
        .args(["--disable-static", "--enable-doc=no"]);
    job.run(&mut configure)?;
    let mut make = Command::new("make");
    make.current_dir(&tree).arg("build_lib_shared").arg(jobs_flag());
    job.run(&mut make)?;
    fs::copy(tree.join("lib/libjemalloc.so.2"), &job.output)?;
    Ok(version.split('-').next().unwrap_or(&version).to_owned())
}

/// snmalloc: its CMake target `snmallocshim`, release.
fn snmalloc(job: &mut Job) -> Result<String> {
    need("cmake", "apt install cmake")?;
    let build = job.scratch.join("build");
    let mut configure = Command::new("cmake");
    configure
        .arg("-S")
        .arg(job.source.join("upstream"))
        .arg("-B")
        .arg(&build)
        .args(["-DCMAKE_BUILD_TYPE=Release", "-DSNMALLOC_BUILD_TESTING=OFF"])
        .arg(format!("-DCMAKE_CXX_COMPILER={}", cxx()));
    job.run(&mut configure)?;
    let mut make = Command::new("cmake");
    make.arg("--build").arg(&build).args(["--target", "snmallocshim"]);
    job.run(&mut make)?;
    fs::copy(build.join("libsnmallocshim.so"), &job.output)?;
    Ok(job.crate_version.clone())
}

/// rpmalloc: one translation unit with its override and preload switches.
fn rpmalloc(job: &mut Job) -> Result<String> {
    let source = job.source.join("rpmalloc");
    let mut command = Command::new(cc());
    command
        .args(["-std=gnu11", "-O3", "-DNDEBUG", "-D_GNU_SOURCE=1"])
        .args(["-DENABLE_PRELOAD=1", "-DENABLE_OVERRIDE=1"])
        .args(["-fPIC", "-fomit-frame-pointer", "-ftls-model=initial-exec"])
        .args(["-fno-builtin-malloc", "-shared"])
        .arg(source.join("rpmalloc/rpmalloc.c"))
        .arg("-o")
        .arg(&job.output)
        .args(["-lpthread", "-ldl"]);
    job.run(&mut command)?;
    let changes = fs::read_to_string(source.join("CHANGELOG"))?;
    let release = changes.lines().next().unwrap_or_default().trim();
    let commit = job.crate_version.split_once('+').map_or("", |(_, c)| c);
    Ok(format!("{release} ({commit})"))
}

/// tcmalloc: the files that the crate's build script names, but with the public override instead
/// of the crate's bridge, and without interposition between its own files.
fn tcmalloc(job: &mut Job) -> Result<String> {
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
    let flags = |command: &mut Command| {
        command
            .args(["-std=c++17", "-O3", "-DNDEBUG", "-DNOMINMAX", "-w"])
            .args(["-DTCMALLOC_INTERNAL_8K_PAGES", "-fPIC", "-fno-omit-frame-pointer"])
            .args(["-fno-semantic-interposition", "-ftls-model=initial-exec"])
            .args(["-fno-builtin-malloc", "-fno-canonical-system-headers", "-I"])
            .arg(job.source.join("c_src/abseil-cpp"))
            .arg("-I")
            .arg(job.source.join("c_src/tcmalloc"));
    };
    let mut shown = Command::new(cxx());
    flags(&mut shown);
    let shown = crate::toolchain::shell_line(&shown).replace(&*job.source.to_string_lossy(), "$SRC");
    let objects = compile_all(&files, &job.scratch, &flags)?;
    job.note(format!("{shown} -c FILE ({} files)", files.len()));
    let mut link = Command::new(cxx());
    link.args(["-shared", "-Wl,-Bsymbolic-functions", "-Wl,--gc-sections"])
        .args(&objects)
        .arg("-o")
        .arg(&job.output)
        .arg("-lpthread");
    run(&mut link)?;
    job.note("c++ -shared -Wl,-Bsymbolic-functions -Wl,--gc-sections *.o -o $OUT -lpthread");
    Ok(format!("Google, of libtcmalloc-sys {}", job.crate_version))
}

/// Compiles each file to an object in `scratch`, on all cores.
fn compile_all(files: &[PathBuf], scratch: &Path, flags: &(dyn Fn(&mut Command) + Sync)) -> Result<Vec<PathBuf>> {
    let object = |index: usize| scratch.join(format!("{index}.o"));
    let workers = thread::available_parallelism().map_or(1, |n| n.get());
    let next = std::sync::atomic::AtomicUsize::new(0);
    let work = || -> Result<()> {
        loop {
            // Relaxed: the counter hands out indices, nothing else is read through it.
            let index = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let Some(file) = files.get(index) else {
                return Ok(());
            };
            let mut command = Command::new(cxx());
            flags(&mut command);
            command.arg("-c").arg(file).arg("-o").arg(object(index));
            run(&mut command)?;
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

/// Copies a folder; the registry's copy must stay as it is.
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
