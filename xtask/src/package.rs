//! `cargo xtask package`: makes Debian packages, RPMs, a wheel and an archive with an install script, in
//! target/package. All have the files of `cargo xtask install`, stripped, with separate debug information, for this
//! processor or for 64-bit Arm. Their texts are in contrib/packages.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::{Args as ClapArgs, ValueEnum};
use neap_lab::toolchain::run;

use crate::install::{Built, SONAME, VERSION};
use crate::place::root;

/// Options of `cargo xtask package`.
#[derive(ClapArgs)]
pub struct Args {
    /// Kinds to build [default: all]
    kinds: Vec<Kind>,

    /// Processor that they are for, by Debian's name [default: this one]
    #[arg(long)]
    arch: Option<Arch>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Arch {
    /// x86-64, built only there
    Amd64,
    /// 64-bit Arm, built anywhere
    Arm64,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// libneap0, libneap-dev, neap, neap-dbgsym (needs dpkg-deb)
    Deb,
    /// neap, neap-libs, neap-devel, neap-debuginfo (needs rpmbuild)
    Rpm,
    /// For pip: the command, and `python -m neap` (needs python3 with venv)
    Wheel,
    /// Any Linux: files and install.sh
    Tar,
}

/// Runs `cargo xtask package`.
pub fn main(args: Args) -> Result<()> {
    let built = match args.arch {
        Some(Arch::Arm64) => Built::for_arm()?,
        Some(Arch::Amd64) if std::env::consts::ARCH != "x86_64" => {
            bail!("packages for amd64 can be built on x86-64 only: give --arch arm64, or build there")
        }
        _ => Built::here(false)?,
    };
    let out = root().join("target/package");
    fs::create_dir_all(&out).with_context(|| format!("cannot make {}", out.display()))?;
    for kind in Kind::value_variants() {
        if args.kinds.is_empty() || args.kinds.contains(kind) {
            for file in match kind {
                Kind::Deb => deb(&built, &out)?,
                Kind::Rpm => rpm(&built, &out)?,
                Kind::Wheel => wheel(&built, &out)?,
                Kind::Tar => tar(&built, &out)?,
            } {
                println!("{} ({:.1} MB)", file.display(), fs::metadata(&file)?.len() as f64 / 1e6);
            }
        }
    }
    Ok(())
}

/// The files as in a system, stripped; debug information below PREFIX/lib/debug.
fn stage(build: &Built, out: &Path, prefix: &str, libdir: &str) -> Result<PathBuf> {
    let stage = empty(out.join("stage"))?;
    build.put_all(Path::new(prefix), Some(&stage), Path::new(libdir))?;
    let inside = stage.join(prefix.trim_start_matches('/'));
    let lib = inside.join(libdir);
    let tool = |name: &str| Command::new(format!("{}{name}", build.tools));
    for binary in [inside.join("bin/neap"), lib.join(format!("libneap.so.{VERSION}"))] {
        let id = build_id(&binary)?;
        let debug = inside.join("lib/debug/.build-id").join(&id[..2]).join(format!("{}.debug", &id[2..]));
        fs::create_dir_all(debug.parent().expect("it has a folder"))?;
        run(tool("objcopy").arg("--only-keep-debug").args([&binary, &debug]))?;
        fs::set_permissions(&debug, fs::Permissions::from_mode(0o644))?;
        run(tool("strip").args(["--strip-all", "--remove-section=.comment"]).arg(&binary))?;
    }
    run(tool("strip").arg("--strip-debug").arg(lib.join("libneap.a")))?;
    Ok(stage)
}

/// The build id of a binary, by which its debug information is found.
fn build_id(binary: &Path) -> Result<String> {
    let notes = run(Command::new("readelf").arg("-n").arg(binary))?;
    let id = notes.split("Build ID: ").nth(1).and_then(|text| text.split_whitespace().next());
    Ok(id.with_context(|| format!("{} has no build identity", binary.display()))?.to_owned())
}

/// The oldest glibc with which a library works, as `2.17`: the newest version of its symbols.
fn oldest_glibc(library: &Path) -> Result<String> {
    let versions = run(Command::new("readelf").arg("-VW").arg(library))?;
    let numbers = versions.split("GLIBC_").skip(1).filter_map(|text| {
        let number = text.split(|c: char| !(c.is_ascii_digit() || c == '.')).next()?;
        number.split('.').map(str::parse).collect::<Result<Vec<u32>, _>>().ok()
    });
    let newest = numbers.max().context("the library names no version of glibc")?;
    Ok(newest.iter().map(u32::to_string).collect::<Vec<_>>().join("."))
}

fn deb(build: &Built, out: &Path) -> Result<Vec<PathBuf>> {
    let architecture = if build.machine == "aarch64" { "arm64" } else { "amd64" };
    let libdir = format!("lib/{}-linux-gnu", build.machine);
    let stage = stage(build, out, "/usr", &libdir)?;
    for page in files(&stage.join("usr/share/man"))? {
        run(Command::new("gzip").args(["-9n"]).arg(page))?;
    }
    let library = stage.join(format!("usr/{libdir}/libneap.so.{VERSION}"));
    fs::set_permissions(&library, fs::Permissions::from_mode(0o644))?;
    let mut built = Vec::new();
    for control in text("control")?.replace("@GLIBC@", &oldest_glibc(&library)?).split("\n\n") {
        let name = control.split_whitespace().nth(1).context("a package has a name")?;
        let tree = empty(out.join("deb"))?;
        let moved: &[&str] = match name {
            "libneap0" => &[&format!("usr/{libdir}/{SONAME}"), &format!("usr/{libdir}/libneap.so.{VERSION}")],
            "libneap-dev" => &["usr/include", &format!("usr/{libdir}")],
            "neap" => &["usr/bin", "usr/share"],
            _ => &["usr/lib/debug"],
        };
        for path in moved {
            let to = tree.join(path);
            fs::create_dir_all(to.parent().expect("it has a folder"))?;
            fs::rename(stage.join(path), &to).with_context(|| format!("{name} has no {path}"))?;
        }
        documents(&tree.join("usr/share/doc").join(name))?;
        let meta = tree.join("DEBIAN");
        fs::create_dir(&meta)?;
        if name == "libneap0" {
            fs::write(meta.join("shlibs"), format!("libneap 0 libneap0 (>= {VERSION})\n"))?;
            fs::write(meta.join("triggers"), "activate-noawait ldconfig\n")?;
        }
        let mut sums = Command::new("sh");
        sums.current_dir(&tree).args(["-c", "find usr -type f | LC_ALL=C sort | xargs md5sum"]);
        fs::write(meta.join("md5sums"), run(&mut sums)?)?;
        let size: u64 = files(&tree.join("usr"))?.iter().map(|file| file.metadata().map_or(0, |m| m.len())).sum();
        let (head, description) = control.split_once("Description:").context("a package has a description")?;
        let control = format!(
            "{head}Version: {VERSION}\nArchitecture: {architecture}\nInstalled-Size: {}\nPriority: optional\n\
             Maintainer: {MAINTAINER}\nHomepage: https://github.com/neap-alloc/neap\nDescription:{}\n",
            size / 1024,
            description.trim_end()
        );
        fs::write(meta.join("control"), control)?;
        let file = out.join(format!("{name}_{VERSION}_{architecture}.deb"));
        // Files belong to root, not to the user who builds, and only their owner may write.
        run(Command::new("chmod").args(["-R", "u+rwX,go+rX,go-w"]).arg(&tree))?;
        run(Command::new("dpkg-deb").args(["--root-owner-group", "-Zxz", "--build"]).args([&tree, &file]))?;
        built.push(file);
    }
    Ok(built)
}

const MAINTAINER: &str = "the neap developers <maintainers@neap-alloc.example>";

/// Writes copyright and changes, which each Debian package has.
fn documents(dir: &Path) -> Result<()> {
    fs::create_dir_all(dir)?;
    let licence = fs::read_to_string(root().join("LICENSE-MIT"))?;
    // In this format an empty line is a point, and each line begins with a blank.
    let lines: Vec<_> =
        licence.lines().skip(2).map(|l| if l.is_empty() { " .".into() } else { format!(" {l}") }).collect();
    fs::write(dir.join("copyright"), text("copyright")?.replace("@MIT@", &lines.join("\n")))?;
    let date = run(Command::new("git").current_dir(root()).args(["log", "-1", "--format=%aD"]))?;
    let entry = format!(
        "neap ({VERSION}) stable; urgency=medium\n\n  * The changes are in CHANGELOG.md of the sources.\n\n -- {MAINTAINER}  {date}"
    );
    fs::write(dir.join("changelog"), entry)?;
    run(Command::new("gzip").args(["-9n"]).arg(dir.join("changelog")))?;
    Ok(())
}

fn rpm(built: &Built, out: &Path) -> Result<Vec<PathBuf>> {
    let stage = stage(built, out, "/usr", "lib64")?;
    for (from, to) in [("LICENSE-MIT", "licenses"), ("LICENSE-APACHE", "licenses"), ("CHANGELOG.md", "doc")] {
        let dir = stage.join("usr/share").join(to).join("neap");
        fs::create_dir_all(&dir)?;
        fs::copy(root().join(from), dir.join(from))?;
    }
    let top = empty(out.join("rpm"))?;
    let spec = top.join("neap.spec");
    fs::write(&spec, text("neap.spec")?.replace("@STAGE@", &stage.to_string_lossy()))?;
    let mut build = Command::new("rpmbuild");
    build.args(["-bb", "--target", built.machine, "--define"]).arg(format!("_topdir {}", top.display()));
    run(build.arg(&spec))?;
    files(&top.join("RPMS"))?.into_iter().map(|file| kept(out, &file)).collect()
}

fn wheel(build: &Built, out: &Path) -> Result<Vec<PathBuf>> {
    let stage = stage(build, out, "/usr", "lib")?;
    let tree = empty(out.join("wheel"))?;
    let scripts = tree.join(format!("neap-{VERSION}.data/scripts"));
    let meta = tree.join(format!("neap-{VERSION}.dist-info"));
    for dir in [&scripts, &meta, &tree.join("neap")] {
        fs::create_dir_all(dir)?;
    }
    fs::copy(stage.join("usr/bin/neap"), scripts.join("neap"))?;
    for name in ["neap/__init__.py", "neap/__main__.py"] {
        fs::write(tree.join(name), text(&format!("wheel/{name}"))?)?;
    }
    let readme = fs::read_to_string(root().join("README.md"))?;
    fs::write(meta.join("METADATA"), text("wheel/METADATA")?.replace("@README@", &readme))?;
    fs::write(meta.join("WHEEL"), text("wheel/WHEEL")?.replace("@ARCH@", build.machine))?;
    for licence in ["LICENSE-MIT", "LICENSE-APACHE"] {
        fs::copy(root().join(licence), meta.join(licence))?;
    }
    let venv = out.join("venv");
    let python = venv.join("bin/python");
    if !python.exists() {
        run(Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
    }
    run(Command::new(&python).args(["-m", "pip", "install", "--quiet", "wheel==0.45.1"]))?;
    run(Command::new(&python).args(["-m", "wheel", "pack", "--dest-dir"]).args([out, &tree]))?;
    let mut built = files(out)?;
    let ours = format!("{}.whl", build.machine);
    built.retain(|file| file.parent() == Some(out) && file.to_string_lossy().ends_with(&ours));
    Ok(built)
}

fn tar(build: &Built, out: &Path) -> Result<Vec<PathBuf>> {
    let stage = stage(build, out, "/usr", "lib")?;
    let name = format!("neap-{VERSION}-{}-linux", build.machine);
    let tree = empty(out.join(&name))?;
    fs::rename(stage.join("usr"), tree.join("files"))?;
    fs::write(tree.join("install.sh"), text("install.sh")?)?;
    for file in ["README.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE"] {
        fs::copy(root().join(file), tree.join(file))?;
    }
    let file = out.join(format!("{name}.tar.xz"));
    run(Command::new("tar").arg("-C").arg(out).args(["--owner=0", "--group=0", "-cJf"]).arg(&file).arg(&name))?;
    fs::remove_dir_all(&tree)?;
    Ok(vec![file])
}

/// A text of contrib/packages, with the version filled in.
fn text(name: &str) -> Result<String> {
    let path = root().join("contrib/packages").join(name);
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(text.replace("@VERSION@", VERSION))
}

/// The folder, without what an earlier run left in it.
fn empty(dir: PathBuf) -> Result<PathBuf> {
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    Ok(dir)
}

/// Moves a file into the folder of results.
fn kept(out: &Path, file: &Path) -> Result<PathBuf> {
    let to = out.join(file.file_name().expect("a file has a name"));
    fs::rename(file, &to)?;
    Ok(to)
}

/// All files below a folder that are not links.
fn files(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))? {
        let entry = entry?;
        match entry.file_type()? {
            kind if kind.is_dir() => found.extend(files(&entry.path())?),
            kind if kind.is_file() => found.push(entry.path()),
            _ => {}
        }
    }
    found.sort();
    Ok(found)
}
