//! Tests of libneap.so for 64-bit Arm, cross-built and run under qemu's user mode: the test programs are compiled for
//! Arm, and the kernel starts them through qemu (binfmt_misc, in a namespace of the test's own). `docs/platforms.md`
//! has more. The tests named `zero` also run the library for x86-64 by qemu.
//!
//! qemu's user mode differs from Linux in some respects. Tests that fail there with or without neap run in a virtual
//! machine with a Linux kernel: [`ON_KERNEL`]. [`LEFT_OUT`] names those that run nowhere.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use neap_tests::sys::TempDir;
use neap_tests::system::{self, tail};
use neap_tests::vm::Machine;
use neap_tests::{Case, Outcome, Run, Source, Stop, judge_case, package_dir, program, suite, target_dir};

const TARGET: &str = "aarch64-unknown-linux-gnu";
/// The variable that names cargo's linker for this target.
const LINKER: &str = "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER";
/// Debian's C library for Arm, for cross compilers.
const SYSROOT: &str = "/usr/aarch64-linux-gnu";

/// Cases that run on a kernel instead of qemu's user mode: the test, the source of its program, and the cases. Where
/// the program's name for a case differs, its arguments stand behind the name.
const ON_KERNEL: &[(&str, &str, &[&str])] = &[
    // qemu ignores limits on address space and data, because they would apply to itself.
    ("surface", "surface/limits.c", &["family", "exhaust_small", "exhaust_medium", "exhaust_large", "from_the_start"]),
    ("surface", "surface/new.cc", &["handler_frees"]),
    (
        "life",
        "life/limits.c",
        &[
            "data_limit",
            "address_limit_lowered",
            "address_limit_later",
            "free_parts_under_limit",
            "address_limit_by_syscall",
            "address_limit_beside_threads",
            "address_limit_from_outside",
            "address_limit_in_vfork",
            "data_limit_lowered",
            "data_limit_below",
            // qemu ends where it cannot map memory for itself.
            "mappings_used_up",
            "mappings_used_up_threads",
            // The namespace in which qemu starts programs has one user.
            "many_mappings_moved",
            // qemu has threads of its own.
            "unshare_user",
            // qemu has no filters of system calls.
            "seccomp_kill",
            "seccomp_kill_after_work",
            "seccomp_kill_populate",
            "seccomp_no_populate",
            "seccomp_eperm",
        ],
    ),
    // Resident memory includes qemu's, which grows with each thread and each library.
    ("life", "life/threads.c", &["key_destructors", "storm", "orphans"]),
    ("life", "life/dl.c", &["load_1000_times", "foreign_under_filter"]),
    // In versions before 8, a lock of qemu's may be held in the child of a fork by a thread that the child does not
    // have.
    (
        "life",
        "life/fork.c",
        &[
            "while_threads_allocate",
            "from_four_threads",
            "handlers_allocate",
            "early_handlers_allocate",
            "early_handlers_lock",
            "while_streams_are_flushed",
        ],
    ),
    ("signals", "signals/storm.c", &["forks 4 2 f", "forks_alternate_stacks 2 2 af", "all_at_once 4 2 tnaf"]),
];
/// Tests that run nowhere: the test program, and the test.
const LEFT_OUT: &[(&str, &str)] = &[
    // Programs of `ON_KERNEL`, linked with libneap.a.
    ("surface", "archive::dynamic_program::threads_storm"),
    ("surface", "archive::dynamic_program::fork_from_four_threads"),
    ("surface", "archive::static_program::threads_storm"),
    ("surface", "archive::static_program::fork_from_four_threads"),
    // 18 KiB for each of 2,000 threads is too little to measure beside qemu's 550 KiB.
    ("life", "threads::idle_2000"),
    // Linux loads programs for Arm above the 47 bits that neap's addresses have.
    ("life", "start::program_lies_first"),
    // Times would be qemu's.
    ("signals", "fork::latency_large"),
    ("signals", "fork::latency_small"),
];

fn main() -> ExitCode {
    let case = |name: &'static str, catches, test: &'static str, filter: &'static [&'static str]| {
        Case::new(name, catches, move || passes(test, filter)).exclusive()
    };
    let whole = |name: &'static str, catches, test: &'static str| {
        Case::new(name, catches, move || {
            let skips = on_kernel().filter(|row| row.test == test).map(|row| row.name()).chain(left_out(test));
            let skips = skips.flat_map(|name| ["--skip".to_string(), name]);
            passes(test, &["--exact".to_string()].into_iter().chain(skips).collect::<Vec<_>>())
        })
        .exclusive()
    };
    suite::main(vec![
        Case::new(
            "smoke::object",
            "segments for small OS pages only, thread storage through calls, symbols of newer C libraries",
            object,
        ),
        case("smoke::aligned", "a library that does not start on Arm", "surface", &["aligned"]),
        case("smoke::new", "exceptions that cannot pass neap's frame", "surface", &["new::handler_throws"]),
        case("smoke::threads", "thread storage, and the helper's", "life", &["threads::one_way"]),
        case("smoke::handlers", "calls in the middle of calls", "signals", &["storm::one"]),
        case("smoke::misuse", "a double free that is not noticed", "misuse", &["double_free_of"]),
        case("smoke::probes", "probes whose notes name the wrong registers of arguments", "probes", &["notes::"]),
        Case::new("smoke::zero", "calloc that trusts memory which an emulator did not clear", zero).exclusive(),
        whole("whole::surface", "a function that differs on Arm", "surface"),
        whole("whole::life", "start, threads, forks and loaded libraries", "life"),
        whole("whole::misuse", "misuse that is not reported on Arm", "misuse"),
        whole("whole::signals", "handlers that see a call half done", "signals"),
        case("whole::samples", "stacks that end early, or name other code", "samples", &["leak::"]),
        case("whole::guards", "guards that a system accepts and does not set", "guards", &["read_after_free"]),
        Case::new("whole::zero", "the same after some history of several threads", zero_histories).exclusive(),
        Case::new("whole::on_kernel", "limits, filters, threads and forks on Linux for Arm", cases_on_kernel)
            .exclusive(),
        Case::new("whole::programs", "a real program that does not run on neap", programs).exclusive(),
        Case::new("whole::packages_deb", "packages for Arm with wrong paths or processors in them", deb).exclusive(),
        Case::new("whole::packages_rpm", "the same", rpm).exclusive(),
        Case::new("whole::packages_wheel", "the same, and a wheel that pip installs on other platforms", wheel)
            .exclusive(),
        Case::new("whole::packages_tar", "the same, and a script that leaves files out", tar).exclusive(),
        Case::new("whole::pages_of_4_kib", "OS pages that stay, or lose what is on them", || pages(SMALL_PAGES, 4096))
            .exclusive(),
        Case::new("whole::pages_of_16_kib", "the same with larger OS pages", || pages("-arm64-16k", 16384)).exclusive(),
    ])
}

/// A compiler for Arm: clang, as Debian's cross GCC cannot be installed beside what other tests need.
fn compiler(name: &str) -> Result<PathBuf, Stop> {
    let clang = program(name)?;
    if !Path::new(SYSROOT).join("lib/libc.so.6").exists() {
        return Err(Stop::Skip(format!("{SYSROOT} has no C library")));
    }
    let folder = target_dir().join("cross");
    std::fs::create_dir_all(&folder)?;
    let path = folder.join(format!("aarch64-linux-gnu-{name}"));
    let flags = "--target=aarch64-linux-gnu -fsized-deallocation -Wno-unused-command-line-argument";
    let text = format!("#!/bin/sh\nexec '{}' {flags} \"$@\"\n", clang.display());
    // Not rewritten when it is unchanged: another test may be running it.
    if std::fs::read_to_string(&path).ok().as_deref() != Some(&text) {
        std::fs::write(&path, text)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
    }
    Ok(path)
}

/// The library for Arm, built afresh.
fn library() -> Result<PathBuf, Stop> {
    let rustc = Command::new("rustc").args(["--print", "target-libdir", "--target", TARGET]).output()?;
    if !Path::new(String::from_utf8_lossy(&rustc.stdout).trim()).exists() {
        return Err(Stop::Skip(format!("no Rust for Arm here: rustup target add {TARGET}")));
    }
    let target = target_dir();
    let done = cargo()
        .args(["build", "--release", "-p", "neap-preload", "-p", "neap-archive", "--target", TARGET, "--target-dir"])
        .arg(&target)
        .env(LINKER, compiler("clang")?)
        .output()?;
    if !done.status.success() {
        return Err(Stop::Fail(format!("cannot build for Arm: {}", tail(&done))));
    }
    Ok(target.join(TARGET).join("release/libneap.so"))
}

fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(package_dir());
    command
}

/// Registers the qemu `$QEMU` for programs for Arm, and runs the arguments.
const REGISTER: &str = r#"set -e
mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
magic='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
printf '%s' ":qemu-aarch64:M::$magic:$mask:$QEMU:F" >/proc/sys/fs/binfmt_misc/register
exec "$@"
"#;

/// A command in namespaces where programs for Arm run. Its arguments are a program and the program's arguments.
fn with_qemu() -> Result<Command, Stop> {
    let mut command = Command::new(program("unshare")?);
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c"]).env("QEMU", program("qemu-aarch64-static")?);
    let mut trial = Command::new(program("unshare")?);
    trial.args(["--user", "--map-root-user", "--mount", "mount", "-t", "binfmt_misc", "none"]);
    let there = trial.arg("/proc/sys/fs/binfmt_misc").output()?;
    if !there.status.success() {
        return Err(Stop::Skip(format!("no binfmt_misc in namespaces, as before Linux 6.7: {}", tail(&there))));
    }
    Ok(command)
}

/// The tests of the test program `test` that `arguments` choose pass on Arm.
fn passes<S: AsRef<OsStr>>(test: &str, arguments: &[S]) -> Outcome {
    let mut command = with_qemu()?;
    command.args([REGISTER, "sh"]).arg(cargo().get_program());
    command.args(["test", "-p", "neap-tests", "--test", test, "--"]).args(arguments).current_dir(package_dir());
    command.env("NEAP_TEST_LIB", library()?).env("CC", compiler("clang")?).env("CXX", compiler("clang++")?);
    let done = command.env("QEMU_LD_PREFIX", SYSROOT).output()?;
    let text = String::from_utf8_lossy(&done.stdout);
    let result = text.lines().find(|line| line.starts_with("test result")).unwrap_or("no result");
    if !done.status.success() || result.contains(" 0 passed") {
        return Err(Stop::Fail(tail(&done)));
    }
    suite::note(format!("{test}: {result}"));
    Ok(())
}

/// A case of `surface/zero.c` by qemu for Arm and for x86-64, as on a host whose OS pages have `page` bytes (qemu before
/// version 9; later ones ignore it).
fn zero_case(case: &str, page: &str, seeds: &str) -> Outcome {
    let arm = ("qemu-aarch64-static", built("surface/zero.c", &[])?, Some(library()?));
    let x86 = ("qemu-x86_64-static", Source::new("surface/zero.c").build()?, None);
    for (qemu, test, library) in [Some(arm), cfg!(target_arch = "x86_64").then_some(x86)].into_iter().flatten() {
        let run = Run::new(program(qemu)?).arg(test).arg(case).preload(library).timeout(Duration::from_secs(3600));
        let run = run.env("SEEDS", seeds).env("QEMU_PAGESIZE", page);
        judge_case(if qemu.contains("aarch64") { run.env("QEMU_LD_PREFIX", SYSROOT) } else { run })?.no_complaint()?;
    }
    Ok(())
}

/// The cases that fail each time where memory is taken for zero wrongly.
fn zero() -> Outcome {
    for page in ["4096", "65536"] {
        zero_case("where_blocks_moved", page, "")?;
        zero_case("where_parts_went_back", page, "")?;
    }
    Ok(())
}

/// 200 random histories.
fn zero_histories() -> Outcome {
    zero_case("histories", "4096", "1-200")
}

/// Checks that the library works with all sizes of OS pages, and needs nothing of glibc that is newer than 2.17.
fn object() -> Outcome {
    let library = library()?;
    let said = Command::new(program("readelf")?).arg("-lrVW").arg(&library).output()?;
    let text = String::from_utf8_lossy(&said.stdout);
    let loads: Vec<&str> = text.lines().filter(|line| line.trim_start().starts_with("LOAD ")).collect();
    if loads.len() < 2 || !loads.iter().all(|line| line.trim_end().ends_with("0x10000")) {
        return Err(Stop::Fail(format!("segments are not aligned to 64 KiB: {loads:#?}")));
    }
    if !text.contains("R_AARCH64_TLS_TPREL64") || text.contains("R_AARCH64_TLSDESC") {
        return Err(Stop::Fail("thread storage is not initial-exec".into()));
    }
    let mut versions = text.lines().filter_map(|line| line.split_once("Name: GLIBC_")?.1.split_whitespace().next());
    // The first version of glibc for Arm.
    if versions.next() != Some("2.17") || versions.next().is_some() {
        return Err(Stop::Fail(format!("it asks for other versions than GLIBC_2.17:\n{text}")));
    }
    Ok(())
}

/// Real programs of Debian's for Arm: the command, and the last line of its output.
const PROGRAMS: &[(&str, &str)] = &[
    (
        "python3 -c 'import json; d = json.loads(json.dumps([{str(i): [i] * 20} for i in range(20000)])); \
         print(len(d), \"libneap\" in open(\"/proc/self/maps\").read())'",
        "20000 True",
    ),
    (r#"perl -e '$h{$_} = "x" x ($_ % 500) for 1..50000; print scalar(keys %h), "\n"'"#, "50000"),
    (
        "sqlite3 :memory: 'create table t(a); with recursive n(i) as (select 1 union all select i + 1 from n where i < \
         50000) insert into t select hex(randomblob(50)) from n; create index x on t(a); select count(distinct a) from t'",
        "50000",
    ),
    (
        "git init -q /tmp/r && cd /tmp/r && seq 1 20000 >f && git add f && git -c user.name=a -c user.email=a@b commit -qm 1 \
         && git gc -q && git log --oneline | wc -l",
        "1",
    ),
    (
        "redis-server --port 0 --unixsocket /tmp/s --save '' --enable-debug-command local >/tmp/log & \
         until redis-cli -s /tmp/s ping >/tmp/ping 2>&1; do sleep 0.2; done; redis-cli -s /tmp/s debug populate 20000 key 200 \
         && redis-cli -s /tmp/s dbsize; redis-cli -s /tmp/s shutdown nosave; wait",
        "20000",
    ),
];

/// Runs `$2` in the folder `$1`.
const ENTER: &str = r#"for folder in /dev /proc /sys; do mount --rbind "$folder" "$1$folder"; done
mount -t tmpfs none "$1/tmp"
exec chroot "$1" env -i PATH=/usr/bin:/bin:/usr/sbin HOME=/tmp LD_PRELOAD=/libneap.so sh -c "$2"
"#;

/// Each of [`PROGRAMS`] does its work on neap.
fn programs() -> Outcome {
    let (library, folder) = (library()?, folder()?);
    std::fs::copy(library, folder.join("libneap.so"))?;
    for (line, last) in PROGRAMS {
        let done = with_qemu()?.args([REGISTER, "sh", "sh", "-ec", ENTER, "sh"]).arg(&folder).arg(line).output()?;
        let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        if !done.status.success() || out.lines().last() != Some(last) || err.contains("cannot be preloaded") {
            return Err(Stop::Fail(format!("{line}: {}\n{}", done.status, tail(&done))));
        }
    }
    Ok(())
}

/// Runs `$2` in a copy of the folder `$1`; the files named by further arguments are in `/packages`.
const INSTALL: &str = r#"set -e
mount -t tmpfs none /mnt
mkdir /mnt/upper /mnt/work /mnt/root
# Directories can be renamed with marks that a user may make (dpkg does that).
mount -t overlay -o "userxattr,lowerdir=$1,upperdir=/mnt/upper,workdir=/mnt/work" none /mnt/root
line=$2
shift 2
mkdir /mnt/root/packages
cp "$@" /mnt/root/packages
for folder in /dev /proc /sys; do mount --rbind "$folder" "/mnt/root$folder"; done
exec chroot /mnt/root env -i PATH=/usr/bin:/bin:/usr/sbin:/sbin HOME=/tmp sh -ec "$line"
"#;

/// The packages of a kind for Arm, built afresh. Their names end with `end`.
fn packages(kind: &str, end: &str) -> Result<Vec<PathBuf>, Stop> {
    let mut command = cargo();
    command.args(["run", "-q", "-p", "xtask", "--", "package", kind, "--arch", "arm64"]);
    let built = command.env(LINKER, compiler("clang")?).output()?;
    let said = String::from_utf8_lossy(&built.stdout);
    let files: Vec<PathBuf> = said.lines().filter_map(|line| line.split(" (").next()).map(PathBuf::from).collect();
    let named = files.iter().all(|file| file.to_string_lossy().ends_with(end));
    if built.status.success() && named && !files.is_empty() { Ok(files) } else { Err(Stop::Fail(tail(&built))) }
}

/// The output of a command, which must succeed.
fn said(command: &mut Command) -> Result<String, Stop> {
    let done = command.output()?;
    if done.status.success() {
        return Ok(String::from_utf8_lossy(&done.stdout).into_owned());
    }
    Err(Stop::Fail(format!("{command:?}: {}", tail(&done))))
}

/// Fails with `text` unless `holds`.
fn expect(holds: bool, text: &str) -> Outcome {
    if holds { Ok(()) } else { Err(Stop::Fail(text.into())) }
}

/// How the output of `--version` begins.
const SAID_VERSION: &str = concat!("neap ", env!("CARGO_PKG_VERSION"), " ");

/// Checks that the command of a package prints its version.
fn command_runs(command: &Path) -> Outcome {
    let text = said(with_qemu()?.args([REGISTER, "sh"]).arg(command).arg("--version"))?;
    expect(text.starts_with(SAID_VERSION), &text)
}

/// Prints neap's version, and fails unless its malloc is neap's.
const OF_NEAP: &str = "#include <neap.h>\n#include <stdio.h>\n#include <stdlib.h>\n\
    int main(void) { void *large = malloc(1 << 20); free(large); puts(neap_version()); return neap_purge() == 0; }\n";

/// Checks that programs can be linked with the library and the archive in the folder `lib` below a prefix, and run on
/// them.
fn programs_link(prefix: &Path, lib: &str) -> Outcome {
    let (place, lib) = (TempDir::new("neap-arm-")?, prefix.join(lib));
    let (source, program) = (place.join("p.c"), place.join("p"));
    std::fs::write(&source, OF_NEAP)?;
    let found_at_run_time = format!("-Wl,-rpath,{}", lib.display());
    for flags in [&["-lneap", &found_at_run_time][..], &["-static", "-l:libneap.a"]] {
        let mut clang = Command::new(compiler("clang")?);
        clang.args(["-pthread", "-fno-builtin", "-I"]).arg(prefix.join("include")).arg("-o").args([&program, &source]);
        said(clang.arg("-L").arg(&lib).args(flags))?;
        let mut run = with_qemu()?;
        let text = said(run.args([REGISTER, "sh"]).arg(&program).env("QEMU_LD_PREFIX", SYSROOT))?;
        expect(text.trim() == env!("CARGO_PKG_VERSION"), &text)?;
    }
    Ok(())
}

/// Checks that Debian's own tools install the packages, the loader finds the library, and the command runs.
fn deb() -> Outcome {
    // The packages that libneap0 depends on are unpacked there, but not configured.
    let line = "dpkg --force-depends --install /packages/*.deb >/tmp/log 2>&1 || { cat /tmp/log; exit 1; }
        ls /usr/lib/aarch64-linux-gnu/libneap.so.0
        LD_PRELOAD=libneap.so.0 python3 -c 'print(\"libneap\" in open(\"/proc/self/maps\").read())'
        neap run -- python3 -c 'print(\"libneap\" in open(\"/proc/self/maps\").read())'
        neap --version";
    let files = packages("deb", "_arm64.deb")?;
    let mut install = with_qemu()?;
    install.args([REGISTER, "sh", "sh", "-c", INSTALL, "sh"]).arg(folder()?).arg(line);
    let text = said(install.args(files))?;
    match text.lines().collect::<Vec<_>>()[..] {
        [library, "True", "True", said] if library.ends_with("libneap.so.0") && said.starts_with(SAID_VERSION) => {
            Ok(())
        }
        _ => Err(Stop::Fail(text)),
    }
}

/// Checks that the RPMs are for aarch64, contain their files, and can be installed in an empty folder.
fn rpm() -> Outcome {
    let (place, rpm) = (TempDir::new("neap-arm-")?, program("rpm")?);
    let files = packages("rpm", ".aarch64.rpm")?;
    for (name, inside) in [
        ("neap", "/usr/bin/neap"),
        ("neap-libs", "/usr/lib64/libneap.so.0"),
        ("neap-devel", "/usr/lib64/neap.o"),
        ("neap-debuginfo", "/usr/lib/debug/.build-id"),
    ] {
        let begins = format!("{name}-{}-", env!("CARGO_PKG_VERSION"));
        let of_name =
            |file: &&PathBuf| file.file_name().is_some_and(|file| file.to_string_lossy().starts_with(&begins));
        let file = files.iter().find(of_name).ok_or_else(|| Stop::Fail(format!("no {name} in {files:?}")))?;
        let text = said(Command::new(&rpm).args(["-qlp", "--queryformat", "of %{ARCH}\n"]).arg(file))?;
        let has = |what: &str| text.lines().any(|line| line.starts_with(what));
        expect(has("of aarch64") && has(inside), &format!("{name}: {text}"))?;
    }
    let root = place.join("root");
    std::fs::create_dir(&root)?;
    let mut install = Command::new(&rpm);
    install.arg("--root").arg(&root).args(["--install", "--nodeps", "--noscripts", "--ignorearch"]);
    said(install.args(files))?;
    command_runs(&root.join("usr/bin/neap"))?;
    programs_link(&root.join("usr"), "lib64")
}

/// Checks that pip takes the wheel for Arm with glibc and with musl, and for no other processor.
fn wheel() -> Outcome {
    let place = TempDir::new("neap-arm-")?;
    let files = packages("wheel", "-py3-none-manylinux_2_17_aarch64.musllinux_1_1_aarch64.whl")?;
    let venv = place.join("venv");
    said(Command::new(program("python3")?).args(["-m", "venv"]).arg(&venv))?;
    for (platform, takes) in
        [("manylinux_2_17_aarch64", true), ("musllinux_1_1_aarch64", true), ("manylinux_2_17_x86_64", false)]
    {
        let installed = place.join(platform);
        let mut pip = Command::new(venv.join("bin/python"));
        pip.args(["-m", "pip", "install", "--quiet", "--no-index", "--disable-pip-version-check"]);
        pip.args(["--only-binary=:all:", "--platform", platform, "--target"]).arg(&installed).args(&files);
        let done = pip.output()?;
        expect(done.status.success() == takes, &format!("{platform}: {}", tail(&done)))?;
        if takes {
            command_runs(&installed.join("bin/neap"))?;
        }
    }
    Ok(())
}

/// Checks that the archive's script installs everything below a prefix.
fn tar() -> Outcome {
    let (place, files) = (TempDir::new("neap-arm-")?, packages("tar", "-aarch64-linux.tar.xz")?);
    said(Command::new("tar").arg("-C").arg(place.path()).arg("-xf").args(&files))?;
    let script = place.join(format!("neap-{}-aarch64-linux/install.sh", env!("CARGO_PKG_VERSION")));
    let prefix = place.join("prefix with space");
    said(Command::new("sh").args([&script, &prefix]))?;
    command_runs(&prefix.join("bin/neap"))?;
    programs_link(&prefix, "lib")
}

/// The programs that examine OS pages: variables, program, case. `pages` prints figures.
const OF_PAGES: &[&str] = &[
    "/pages purge",
    "/pages calloc_by_residency",
    "/pages holes",
    "/pages survivors",
    "/pages huge",
    "NEAP_HUGE=off /pages huge",
    "NEAP_HUGE=thp /pages huge",
    "/idle large",
    "/idle small",
];

/// How the name of Debian's kernel with OS pages of 4 KiB ends.
const SMALL_PAGES: &str = "-cloud-arm64";

/// A virtual machine with neap and the kernel whose name ends in `kernel`, translated by qemu.
fn machine(kernel: &str) -> Result<Machine, Stop> {
    let boot = kernels()?.join("boot");
    let is_image = |name: &str| name.starts_with("vmlinuz-") && name.ends_with(kernel);
    let mut images = std::fs::read_dir(&boot)?.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let image =
        images.find(|name| is_image(name)).ok_or_else(|| Stop::Fail(format!("no kernel in {}", boot.display())))?;
    let mut machine = Machine::new(program("qemu-system-aarch64")?, boot.join(image));
    machine.add("init", &built("vm/init.c", &["-static"])?)?;
    machine.add("libneap.so", &library()?)?;
    for name in ["libc.so.6", "libm.so.6", "libgcc_s.so.1", "libstdc++.so.6", "ld-linux-aarch64.so.1"] {
        machine.add(&format!("lib/{name}"), &Path::new(SYSROOT).join("lib").join(name))?;
    }
    Ok(machine)
}

/// A program or library of the tests, built for the virtual machine.
fn built(source: &str, flags: &[&str]) -> Result<PathBuf, Stop> {
    let to = target_dir().join("cross/for-machine");
    let (name, standard) = if source.ends_with(".cc") { ("clang++", "-std=c++17") } else { ("clang", "-std=gnu17") };
    let mut command = Command::new(compiler(name)?);
    command.args([standard, "-O1", "-g", "-pthread", "-fno-builtin", "-w", "-D_GNU_SOURCE", "-I"]);
    command.arg(package_dir().join("include")).args(flags).arg(package_dir().join(source)).arg("-o").arg(&to);
    let done = command.output()?;
    if done.status.success() { Ok(to) } else { Err(Stop::Fail(tail(&done))) }
}

/// Checks that the programs succeed with OS pages of this size.
fn pages(kernel: &str, size: usize) -> Outcome {
    let mut machine = machine(kernel)?;
    machine.add("pages", &built("vm/pages.c", &[])?)?;
    machine.add("idle", &built("purge/idle.c", &[])?)?;
    let done = machine.run(&OF_PAGES.iter().map(ToString::to_string).collect::<Vec<_>>())?;
    let lines = || done.stdout.lines().map(str::trim_end);
    if !lines().any(|line| line.ends_with(&format!("OS pages of {size} bytes"))) {
        return Err(done.fail("the kernel has other OS pages"));
    }
    let figures = ["purge:", "calloc:", "holes:", "survivors:", "huge:"];
    for line in lines().filter(|line| figures.iter().any(|figure| line.starts_with(figure))) {
        suite::note(format!("OS pages of {size}: {line}"));
    }
    Ok(())
}

/// A case of [`ON_KERNEL`].
struct OnKernel {
    test: &'static str,
    source: &'static str,
    case: &'static str,
    arguments: &'static str,
}

impl OnKernel {
    /// The name of the test program's test.
    fn name(&self) -> String {
        let program = Path::new(self.source).file_stem().unwrap_or_default().to_string_lossy();
        format!("{program}::{}", self.case)
    }
}

fn on_kernel() -> impl Iterator<Item = OnKernel> {
    ON_KERNEL.iter().flat_map(|&(test, source, cases)| {
        cases.iter().map(move |text| {
            let (case, arguments) = text.split_once(' ').unwrap_or((text, text));
            OnKernel { test, source, case, arguments }
        })
    })
}

fn left_out(test: &str) -> impl Iterator<Item = String> {
    LEFT_OUT.iter().filter(move |(of, _)| *of == test).map(|(_, name)| name.to_string())
}

/// Checks that the cases of [`ON_KERNEL`] pass there; those that fork run a fifth of their rounds.
fn cases_on_kernel() -> Outcome {
    let mut machine = machine(SMALL_PAGES)?;
    machine.add("dso.so", &built("life/dso.c", &["-shared", "-fPIC"])?)?;
    for (_, source, _) in ON_KERNEL {
        machine.add(&source.replace('/', "-"), &built(source, &[])?)?;
    }
    let line = |row: OnKernel| {
        format!(
            "DSO=/dso.so NEAP_TEST_STRICT=1 NEAP_TEST_PERCENT=20 /{} {}",
            row.source.replace('/', "-"),
            row.arguments
        )
    };
    let lines: Vec<String> = on_kernel().map(line).collect();
    machine.run(&lines)?;
    suite::note(format!("on a kernel: {} tests passed", lines.len()));
    Ok(())
}

/// A folder with kernels of Debian's for Arm, in `boot`.
fn kernels() -> Result<PathBuf, Stop> {
    let include = "--include=linux-image-arm64-16k,linux-image-cloud-arm64";
    system::made("arm64-kernels", &["--foreign", "--arch=arm64", include, "trixie"], |partial| {
        let unpack = "for deb in var/cache/apt/archives/linux-image-*.deb; do \
                      dpkg-deb --fsys-tarfile \"$deb\" | tar -x --wildcards './boot/*'; done; \
                      ls boot/vmlinuz-*";
        let done = Command::new("sh").args(["-c", unpack]).current_dir(partial).output()?;
        if done.status.success() { Ok(()) } else { Err(Stop::Fail(tail(&done))) }
    })
}

/// The folder with the programs, whose packages are unpacked, but not configured.
fn folder() -> Result<PathBuf, Stop> {
    let include = "--include=python3,perl,sqlite3,git,redis-server";
    system::made("arm64", &["--foreign", "--arch=arm64", include, "bookworm"], |partial| {
        for package in std::fs::read_dir(partial.join("var/cache/apt/archives"))? {
            let package = package?.path();
            if package.extension().is_some_and(|extension| extension == "deb") {
                let done = Command::new(program("dpkg-deb")?).arg("-x").arg(&package).arg(partial).output()?;
                if !done.status.success() {
                    return Err(Stop::Fail(format!("{}: {}", package.display(), tail(&done))));
                }
            }
        }
        Ok(())
    })
}
