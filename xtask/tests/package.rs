//! The packages of `cargo xtask package` can be installed, their programs run, and they are small.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

const VERSION: &str = env!("CARGO_PKG_VERSION");
const ARCH: &str = std::env::consts::ARCH;
/// The ending of Debian packages' names for this processor.
const DEB: &str = if cfg!(target_arch = "aarch64") { "_arm64.deb" } else { "_amd64.deb" };
/// Limits on the bytes of the stripped command and library.
const COMMAND_BYTES: u64 = 8_000_000;
const LIBRARY_BYTES: u64 = 421_000;

/// Prints neap's version, and fails if its malloc is another one.
const PROGRAM: &str = "#include <neap.h>\n#include <stdio.h>\n#include <stdlib.h>\n\
    int main(void) { void *large = malloc(1 << 20); free(large); puts(neap_version()); return neap_purge() == 0; }\n";

fn ran(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|e| panic!("cannot start {command:?}: {e}"));
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {out}{err}");
    output
}

fn said(command: &mut Command) -> String {
    String::from_utf8(ran(command).stdout).expect("text")
}

/// The folder of packages, which are built once.
fn packages() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        ran(Command::new(env!("CARGO_BIN_EXE_xtask")).arg("package"));
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/package")
    })
}

/// The files whose names end in `end`, for this processor.
fn built(end: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(packages()).expect("packages").map(|entry| entry.expect("an entry").path());
    let mut found: Vec<_> = entries.filter(|path| path.to_string_lossy().ends_with(end)).collect();
    found.sort();
    assert!(!found.is_empty(), "no {end}");
    found
}

/// A folder that is removed when this value is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("neap-package-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a folder");
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Whether a program is missing; prints that.
fn lacks(program: &str) -> bool {
    let found = Command::new("sh").args(["-c", "command -v \"$0\"", program]).output().expect("sh");
    if !found.status.success() {
        println!("SKIPPED: {program} is missing (tests/setup.sh installs it)");
    }
    !found.status.success()
}

/// Catches packages that break Debian's rules: names, links, copyright, pages, permissions, unstripped files.
#[test]
fn lintian_is_content() {
    if lacks("lintian") {
        return;
    }
    let mut lintian = Command::new("lintian");
    // The command is static and position-independent, which lintian takes for a library.
    let apart = "shared-library-lacks-prerequisites";
    lintian.args(["--fail-on", "error,warning", "--allow-root", "--suppress-tags", apart]).args(built(DEB));
    ran(&mut lintian);
}

/// Catches packages that cannot be installed, a library that the loader does not find by its bare name, a header
/// without a link, and pages that man does not find.
#[test]
fn debian_installs_and_runs_it() {
    if lacks("debootstrap") {
        return;
    }
    let root = Folder::new("deb");
    let mut debootstrap = Command::new("debootstrap");
    ran(debootstrap.args(["--variant=minbase", "--include=gcc,libc6-dev,musl-tools,pkgconf", "bookworm"]).arg(&root.0));
    for file in built(DEB) {
        fs::copy(&file, root.0.join("tmp").join(file.file_name().expect("a name"))).expect("room");
    }
    fs::write(root.0.join("tmp/p.c"), PROGRAM).expect("room");
    let script = "set -e; dpkg -i /tmp/*.deb > /dev/null; LD_PRELOAD=libneap.so.0 cat /proc/self/maps | grep -c libneap; \
        cc -o /tmp/p /tmp/p.c $(pkg-config --cflags --libs neap); /tmp/p; cc -static -o /tmp/s /tmp/p.c -l:libneap.a; /tmp/s; \
        musl-gcc -static -idirafter /usr/include -o /tmp/m /tmp/p.c $(pkg-config --variable=libdir neap)/neap.o; /tmp/m; \
        neap --version; test -f /usr/share/man/man1/neap-why.1.gz; dpkg -r neap-dbgsym neap libneap-dev libneap0 > /dev/null; \
        ! ls /usr/lib/*/libneap* 2> /dev/null";
    let mut chroot = Command::new("unshare");
    chroot.args(["--mount", "--pid", "--fork", "--mount-proc", "--root"]).arg(&root.0).args(["sh", "-c", script]);
    let text = said(&mut chroot);
    let lines: Vec<_> = text.lines().collect();
    assert!(lines[0].parse::<u32>().is_ok_and(|mappings| mappings > 2), "{text}");
    assert_eq!(lines[1..4], [VERSION; 3], "{text}");
    assert!(lines[4].starts_with(&format!("neap {VERSION} ")), "{text}");
}

/// Catches RPMs with other files than their names say, or with requirements that no system meets.
#[test]
fn rpms_have_their_files() {
    if lacks("rpm") {
        return;
    }
    for (name, file) in [
        ("neap", "/usr/share/man/man1/neap-why.1"),
        ("neap-libs", "/usr/lib64/libneap.so.0"),
        ("neap-devel", "/usr/lib64/neap.o"),
        ("neap-debuginfo", "/usr/lib/debug/.build-id"),
    ] {
        let package = packages().join(format!("{name}-{VERSION}-1.{ARCH}.rpm"));
        let list = said(Command::new("rpm").args(["-qlp"]).arg(&package));
        assert!(list.lines().any(|line| line.starts_with(file)), "{name}: {list}");
        let wants = said(Command::new("rpm").args(["-qp", "--requires"]).arg(&package));
        for want in wants.lines() {
            let known = [
                "rpmlib(",
                "libc.so.6(",
                "ld-linux",
                "/sbin/ldconfig",
                "/bin/sh",
                "neap-libs",
                "rtld(",
                "/usr/bin/pkg-config",
            ];
            assert!(known.iter().any(|known| want.starts_with(known)), "{name} wants {want}");
        }
    }
    let root = Folder::new("rpm");
    let package = packages().join(format!("neap-libs-{VERSION}-1.{ARCH}.rpm"));
    let mut rpm = Command::new("rpm");
    rpm.arg("--root").arg(&root.0).args(["--install", "--nodeps", "--noscripts", "--ignorearch"]).arg(package);
    ran(&mut rpm);
    let library = root.0.join("usr/lib64/libneap.so.0");
    let maps = said(Command::new("cat").arg("/proc/self/maps").env("LD_PRELOAD", library));
    assert!(maps.contains("libneap.so.0"), "{maps}");
}

/// Catches a wheel that pip refuses, a command that is not executable, and scripts that another Python runs.
#[test]
fn pip_installs_the_wheel() {
    let venv = Folder::new("wheel");
    ran(Command::new("python3").args(["-m", "venv"]).arg(&venv.0));
    let python = venv.0.join("bin/python");
    let mut pip = Command::new(&python);
    ran(pip
        .args(["-m", "pip", "install", "--quiet", "--no-index", "--disable-pip-version-check"])
        .args(built(&format!("{ARCH}.whl"))));
    assert!(said(Command::new(venv.0.join("bin/neap")).arg("--version")).starts_with(&format!("neap {VERSION} ")));
    let script = venv.0.join("script.py");
    fs::write(&script, "import sys\nprint(sys.prefix, sys.argv[1:], 'libneap' in open('/proc/self/maps').read())\n")
        .expect("room");
    for before in [&["run"][..], &["run", "--set", "purge_delay=1s", "--"]] {
        let mut run = Command::new(&python);
        run.args(["-m", "neap"]).args(before).arg(&script).args(["--", "-x"]).env("XDG_CACHE_HOME", &venv.0);
        assert_eq!(said(&mut run), format!("{} ['--', '-x'] True\n", venv.0.display()));
    }
}

/// Catches a package that finds its command only where the Python that runs it has its scripts.
#[test]
fn the_package_finds_its_command() {
    let place = Folder::new("wheel-apart");
    ran(Command::new("python3").args(["-m", "venv"]).arg(place.0.join("venv")));
    let python = place.0.join("venv/bin/python");
    for (option, packages) in [("--target", "lib"), ("--prefix", "prefix")] {
        let mut pip = Command::new(&python);
        pip.args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-index",
            "--disable-pip-version-check",
            "--ignore-installed",
        ]);
        ran(pip.arg(option).arg(place.0.join(packages)).args(built(&format!("{ARCH}.whl"))));
    }
    let below = "import sysconfig, sys; base = sys.argv[1]; \
        print(sysconfig.get_path('platlib', vars=dict(base=base, platbase=base)))";
    let prefix = said(Command::new(&python).args(["-c", below]).arg(place.0.join("prefix")));
    for packages in [&place.0.join("lib"), Path::new(prefix.trim())] {
        let mut neap = Command::new(&python);
        neap.args(["-m", "neap", "--version"]).env("PYTHONPATH", packages);
        assert!(said(&mut neap).starts_with(&format!("neap {VERSION} ")));
    }
}

/// Checks whether the library is mapped.
const MAPPED: &str = "#include <stdio.h>\n#include <string.h>\nint main(void) { char line[512]; \
    FILE *maps = fopen(\"/proc/self/maps\", \"r\"); \
    while (maps && fgets(line, sizeof line, maps)) if (strstr(line, \"libneap\")) return puts(\"on neap\") < 0; return 1; }\n";

/// Catches a wheel that pip does not accept for musl, and a command that needs more than a system with musl has. There
/// is no Python on musl here: pip is asked which musl version it detects with a program on musl, and installs for such
/// a platform.
#[test]
fn the_wheel_serves_musl() {
    if lacks("musl-gcc") {
        return;
    }
    let place = Folder::new("wheel-musl");
    let root = place.0.join("root");
    let loader = format!("lib/ld-musl-{ARCH}.so.1");
    for folder in ["lib", "proc", "tmp"] {
        fs::create_dir_all(root.join(folder)).expect("a folder");
    }
    fs::copy(Path::new("/").join(&loader), root.join(&loader)).expect("musl");
    let (source, program) = (place.0.join("mapped.c"), root.join("mapped"));
    fs::write(&source, MAPPED).expect("room");
    ran(Command::new("musl-gcc").arg("-o").args([&program, &source]));
    ran(Command::new("python3").args(["-m", "venv"]).arg(place.0.join("venv")));
    let python = place.0.join("venv/bin/python");
    let ask = "import sys; from pip._vendor.packaging._musllinux import _get_musl_version as version; \
        print(*version(sys.argv[1]))";
    let version = said(Command::new(&python).args(["-c", ask]).arg(&program));
    let numbers: Vec<u32> = version.split_whitespace().map(|number| number.parse().expect("a number")).collect();
    // A Python on musl 1.N takes wheels for musllinux_1_0 to musllinux_1_N.
    assert!(numbers[0] == 1 && numbers[1] >= 1, "{version}");
    let installed = place.0.join("installed");
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "install", "--quiet", "--no-index", "--disable-pip-version-check", "--only-binary=:all:"]);
    pip.arg(format!("--platform=musllinux_1_1_{ARCH}")).arg("--target").arg(&installed);
    ran(pip.args(built(&format!("{ARCH}.whl"))));
    fs::copy(installed.join("bin/neap"), root.join("neap")).expect("the command");
    let inside = |arguments: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--pid", "--fork", "--mount-proc", "--root"]).arg(&root).arg("/neap").args(arguments);
        said(command.env("XDG_CACHE_HOME", "/tmp"))
    };
    assert!(inside(&["--version"]).starts_with(&format!("neap {VERSION} ")));
    assert_eq!(inside(&["run", "--", "/mapped"]), "on neap\n");
}

/// Catches an archive whose script leaves files out, an object that cannot be linked into static programs on musl,
/// wrong paths in neap.pc, and binaries that are too large.
#[test]
fn the_archive_installs_itself() {
    let place = Folder::new("tar");
    let archive = built(&format!("{ARCH}-linux.tar.xz")).pop().expect("one");
    ran(Command::new("tar").arg("-C").arg(&place.0).arg("-xf").arg(&archive));
    let inside = place.0.join(archive.file_stem().and_then(|stem| Path::new(stem).file_stem()).expect("a name"));
    let prefix = place.0.join("prefix with space & more");
    // Unusual settings of a shell: a relative prefix, files that others cannot read, a path for cd.
    let script = "umask 077; export CDPATH=$PWD; sh \"$0\"/install.sh \"prefix with space & more\"";
    let name = inside.file_name().expect("a name");
    ran(Command::new("sh").args(["-c", script]).arg(name).current_dir(&place.0));
    let closed = said(Command::new("find").arg(&prefix).args(["!", "-perm", "-a=r"]));
    assert_eq!(closed, "", "others cannot read these");
    let command = prefix.join("bin/neap");
    assert!(said(Command::new(&command).arg("--version")).starts_with(&format!("neap {VERSION} ")));
    let mut cat = Command::new(&command);
    let maps = said(cat.args(["run", "--", "cat", "/proc/self/maps"]).env("XDG_CACHE_HOME", &place.0));
    assert!(maps.contains("libneap.so"), "{maps}");
    let config = fs::read_to_string(prefix.join("lib/pkgconfig/neap.pc")).expect("neap.pc");
    assert!(config.contains(&format!("prefix={}\n", prefix.display())), "{config}");
    if !lacks("pkg-config") {
        let (source, program) = (place.0.join("c.c"), place.0.join("c"));
        fs::write(&source, PROGRAM).expect("room");
        let script = "eval cc -o '\"$0\"' '\"$1\"' \"$(pkg-config --cflags --libs neap)\"";
        let mut compiler = Command::new("sh");
        compiler.args(["-c", script]).args([&program, &source]);
        ran(compiler.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")));
        assert_eq!(said(Command::new(program).env("LD_LIBRARY_PATH", prefix.join("lib"))).trim(), VERSION);
    }
    if !lacks("musl-gcc") {
        let (source, program) = (place.0.join("p.c"), place.0.join("p"));
        fs::write(&source, PROGRAM).expect("room");
        let mut compiler = Command::new("musl-gcc");
        compiler.args(["-static", "-I"]).arg(prefix.join("include")).arg("-o").args([&program, &source]);
        ran(compiler.arg(prefix.join("lib/neap.o")));
        assert_eq!(said(&mut Command::new(program)).trim(), VERSION);
    }
    let library = prefix.join(format!("lib/libneap.so.{VERSION}"));
    for (file, most) in [(command, COMMAND_BYTES), (library, LIBRARY_BYTES)] {
        let length = fs::metadata(&file).expect("a file").len();
        assert!(length <= most, "{} has {length} bytes", file.display());
    }
}

/// Catches a package for crates.io that needs a file of the checkout, or whose command lacks the library.
#[test]
fn crates() {
    ran(Command::new(env!("CARGO_BIN_EXE_xtask")).args(["crates", "--verify"]));
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/crates");
    for name in ["neap", "neap-cli", "neap-launch"] {
        let package = folder.join(format!("packages/{name}-{VERSION}.crate"));
        assert!(package.is_file(), "{}", package.display());
    }
    // What cargo built from the packages, in folders that are not in the checkout's workspace.
    let neap = folder.join("target/debug/neap");
    assert_eq!(said(Command::new(neap).args(["run", "--", "echo", "run"])), "run\n");
}
