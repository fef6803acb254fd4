//! libneap.so for 64-bit Arm, cross-built and run by qemu's user mode: the test programs are compiled for Arm, and the
//! kernel starts them by qemu (binfmt_misc, in a namespace of the test's own). `docs/platforms.md` has more.
//!
//! Some tests cannot hold there, with neap or without: [`SURFACE`], [`LIFE`] and [`SIGNALS`] name
//! them.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use neap_tests::system::{self, tail};
use neap_tests::{Case, Outcome, Run, Stop, package_dir, program, suite, target_dir};

const TARGET: &str = "aarch64-unknown-linux-gnu";
/// Debian's C library for Arm, for cross compilers.
const SYSROOT: &str = "/usr/aarch64-linux-gnu";

/// Tests of the surface that are left out. qemu takes limits of address space and does nothing, as they would be its own
/// (glibc's malloc fails `limits::family` there too). The memory of qemu's own grows with each thread, as programs with
/// `libneap.a` start.
const SURFACE: &[&str] = &["new::handler_frees", "limits::", "archive::"];
/// Tests of life that are left out. Memory of qemu's own grows with each thread (glibc's malloc fails `threads::storm`
/// there too) and each library that is loaded. A child
/// of a process with threads may find a lock of qemu's taken by a thread that it does not have, and waits for ever.
const LIFE: &[&str] = &[
    "key_destructors",
    "threads::orphans",
    "threads::storm",
    "dl::load_1000_times",
    "fork::while_",
    "handlers_allocate",
    "fork::early_handlers_lock",
    "fork::from_four_threads",
];
/// Tests of signals that are left out: steps of a processor's trap flag, and times of forks, which are qemu's.
const SIGNALS: &[&str] = &["step::", "table::complete", "fork::latency"];

fn main() -> ExitCode {
    let case = |name: &'static str, catches, test: &'static str, filter: &'static [&'static str]| {
        Case::new(name, catches, move || passes(test, filter)).exclusive()
    };
    let whole = |name: &'static str, catches, test: &'static str, left_out: &'static [&'static str]| {
        Case::new(name, catches, move || {
            let skips: Vec<&str> = left_out.iter().flat_map(|&skip| ["--skip", skip]).collect();
            passes(test, &skips)
        })
        .exclusive()
    };
    suite::main(vec![
        Case::new("smoke::object", "segments for small OS pages only, thread storage by calls, newer symbols", object),
        case("smoke::aligned", "a library that does not start on Arm", "surface", &["aligned"]),
        case("smoke::new", "exceptions that cannot pass neap's frame", "surface", &["new::handler_throws"]),
        case("smoke::threads", "thread storage, and the helper's", "life", &["threads::one_way"]),
        case("smoke::handlers", "calls in the middle of calls", "signals", &["storm::one"]),
        case("smoke::misuse", "a double free that is not noticed", "misuse", &["double_free_of"]),
        whole("whole::surface", "a function that differs on Arm", "surface", SURFACE),
        whole("whole::life", "start, threads, forks and loaded libraries", "life", LIFE),
        whole("whole::misuse", "misuse that is not named on Arm", "misuse", &[]),
        whole("whole::signals", "handlers that find a call half done", "signals", SIGNALS),
        Case::new("whole::programs", "a real program that does not run on neap", programs).exclusive(),
        Case::new("whole::pages_of_4_kib", "OS pages that stay, or lose what is on them", || {
            machine("-cloud-arm64", 4096)
        })
        .exclusive(),
        Case::new("whole::pages_of_16_kib", "the same where they are larger", || machine("-arm64-16k", 16384))
            .exclusive(),
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
    // Not written anew, as another test may be running it.
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
        .args(["build", "--release", "-p", "neap-preload", "--target", TARGET, "--target-dir"])
        .arg(&target)
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", compiler("clang")?)
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

/// Has programs for Arm started by the qemu `$QEMU`, and runs the arguments.
const REGISTER: &str = r#"set -e
mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
magic='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
printf '%s' ":qemu-aarch64:M::$magic:$mask:$QEMU:F" >/proc/sys/fs/binfmt_misc/register
exec "$@"
"#;

/// A command in namespaces where programs for Arm run. Its arguments are to be a program and the program's.
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
fn passes(test: &str, arguments: &[&str]) -> Outcome {
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
    suite::note(format!("{test} {}: {result}", arguments.join(" ")));
    Ok(())
}

/// The library is one for all sizes of OS pages, and asks glibc for nothing that came later than 2.17.
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
    // The first version that glibc has on Arm.
    if versions.next() != Some("2.17") || versions.next().is_some() {
        return Err(Stop::Fail(format!("it asks for other versions than GLIBC_2.17:\n{text}")));
    }
    Ok(())
}

/// Real programs of Debian's for Arm: the command, and what it prints last.
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

/// What the virtual machine runs: variables, program, case. `pages` prints figures.
const IN_MACHINE: &[&str] = &[
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

/// Programs end well in a virtual machine whose kernel has OS pages of this size. qemu has no processor of this kind here,
/// so all of it is translated. Its file system is in memory.
fn machine(kernel: &str, page: usize) -> Outcome {
    let qemu = program("qemu-system-aarch64")?;
    let boot = kernels()?.join("boot");
    let is_image = |name: &str| name.starts_with("vmlinuz-") && name.ends_with(kernel);
    let mut images = std::fs::read_dir(&boot)?.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let image =
        images.find(|name| is_image(name)).ok_or_else(|| Stop::Fail(format!("no kernel in {}", boot.display())))?;
    let built = |source: &str, flags: &[&str]| -> Result<Vec<u8>, Stop> {
        let to = target_dir().join("cross/for-machine");
        let mut command = Command::new(compiler("clang")?);
        command.args(["-O1", "-g", "-pthread", "-fno-builtin", "-w", "-D_GNU_SOURCE", "-I"]);
        let source = package_dir().join(source);
        let done = command.arg(package_dir().join("include")).args(flags).arg(source).arg("-o").arg(&to).output()?;
        if done.status.success() { Ok(std::fs::read(to)?) } else { Err(Stop::Fail(tail(&done))) }
    };
    let of_libc = |name: &str| std::fs::read(Path::new(SYSROOT).join("lib").join(name));
    let files = [
        ("init", built("vm/init.c", &["-static"])?),
        ("pages", built("vm/pages.c", &[])?),
        ("idle", built("purge/idle.c", &[])?),
        ("libneap.so", std::fs::read(library()?)?),
        ("lib/libc.so.6", of_libc("libc.so.6")?),
        ("lib/ld-linux-aarch64.so.1", of_libc("ld-linux-aarch64.so.1")?),
        ("tests", IN_MACHINE.join("\n").into_bytes()),
    ];
    let archive = target_dir().join(format!("cross/machine-{page}"));
    std::fs::write(&archive, newc(&["lib"], &files))?;
    let console = "console=ttyAMA0 panic=-1 quiet";
    let done = Run::new(qemu)
        .args(["-M", "virt", "-cpu", "max", "-m", "2048", "-smp", "2", "-nographic", "-no-reboot", "-nic", "none"])
        .arg("-kernel")
        .arg(boot.join(image))
        .arg("-initrd")
        .arg(archive)
        .args(["-append", console])
        .plain()
        .timeout(Duration::from_secs(900))
        .run()?;
    let lines: Vec<&str> = done.stdout.lines().map(str::trim_end).collect();
    let has_page = lines.iter().any(|line| line.ends_with(&format!("OS pages of {page} bytes")));
    let ended = |test: &&&str| lines.iter().any(|line| line.ends_with(&format!("ENDED 0 {test}")));
    if !has_page || IN_MACHINE.iter().filter(ended).count() != IN_MACHINE.len() {
        return Err(done.fail("not all programs ended well"));
    }
    let figures = ["purge:", "calloc:", "holes:", "survivors:", "huge:"];
    for line in lines.iter().filter(|line| figures.iter().any(|figure| line.starts_with(figure))) {
        suite::note(format!("OS pages of {page}: {line}"));
    }
    Ok(())
}

/// An archive of folders and files in the form that the kernel unpacks into its first file system (cpio's `newc`).
fn newc(folders: &[&str], files: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut archive = Vec::new();
    let mut add = |number: usize, name: &str, mode: usize, content: &[u8]| {
        let fields = [number, mode, 0, 0, 1, 0, content.len(), 0, 0, 0, 0, name.len() + 1, 0];
        archive.extend_from_slice(b"070701");
        archive.extend(fields.iter().flat_map(|field| format!("{field:08x}").into_bytes()));
        archive.extend_from_slice(name.as_bytes());
        archive.push(0);
        archive.resize(archive.len().next_multiple_of(4), 0);
        archive.extend_from_slice(content);
        archive.resize(archive.len().next_multiple_of(4), 0);
    };
    let folders = folders.iter().map(|name| (*name, 0o40755, &[][..]));
    let files = files.iter().map(|(name, content)| (*name, 0o100755, &content[..]));
    for (number, (name, mode, content)) in folders.chain(files).chain([("TRAILER!!!", 0, &[][..])]).enumerate() {
        add(number + 1, name, mode, content);
    }
    archive
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

/// The folder with the programs. Their packages are unpacked, and not set up.
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
