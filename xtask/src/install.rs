//! `cargo xtask install`: the library, the command, header, pkg-config file and manual page, where a system wants them.

use crate::place::root;
use crate::release;
use anyhow::{Context, Result, ensure};
use clap::Args as ClapArgs;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// As `crates/preload/build.rs` sets it.
const SONAME: &str = "libneap.so.0";

/// Options of `cargo xtask install`.
#[derive(ClapArgs)]
pub struct Args {
    /// Where it will lie, as written into neap.pc
    #[arg(long, default_value = "/usr/local")]
    prefix: PathBuf,

    /// Folder in front of the prefix, for packages
    #[arg(long)]
    destdir: Option<PathBuf>,

    /// Folder of libraries below the prefix, as lib/x86_64-linux-gnu
    #[arg(long, default_value = "lib")]
    libdir: PathBuf,

    /// With the command as `cargo xtask release` lays it out
    #[arg(long)]
    order: bool,
}

/// Runs `cargo xtask install`.
pub fn main(args: Args) -> Result<()> {
    ensure!(args.prefix.is_absolute(), "--prefix {} is not absolute: give the whole path", args.prefix.display());
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(&cargo).args(["build", "--release"]).current_dir(root()).status();
    ensure!(built.context("cannot start cargo")?.success(), "cargo build --release failed");
    if args.order {
        release::lay_out()?;
    }

    let inside = args.prefix.strip_prefix("/").unwrap_or(&args.prefix);
    let base = args.destdir.as_ref().map_or_else(|| args.prefix.clone(), |dir| dir.join(inside));
    let lib = base.join(&args.libdir);
    let built = root().join("target/release");
    let versioned = format!("libneap.so.{VERSION}");
    put(&fs::read(built.join("neap"))?, &base.join("bin/neap"), 0o755)?;
    put(&fs::read(built.join("libneap.so"))?, &lib.join(&versioned), 0o755)?;
    link(&versioned, &lib.join(SONAME))?;
    link(SONAME, &lib.join("libneap.so"))?;
    put(&fs::read(built.join("libneap.a"))?, &lib.join("libneap.a"), 0o644)?;
    put(&fs::read(root().join("include/neap.h"))?, &base.join("include/neap.h"), 0o644)?;
    let pc = fs::read_to_string(root().join("include/neap.pc.in"))?
        .replace("@PREFIX@", &args.prefix.to_string_lossy())
        .replace("@LIBDIR@", &args.libdir.to_string_lossy())
        .replace("@VERSION@", VERSION);
    put(pc.as_bytes(), &lib.join("pkgconfig/neap.pc"), 0o644)?;
    let page = Command::new(built.join("neap")).arg("man").output().context("cannot run neap man")?;
    ensure!(page.status.success(), "neap man failed");
    put(&page.stdout, &base.join("share/man/man1/neap.1"), 0o644)?;
    println!("installed neap {VERSION} below {}", base.display());
    Ok(())
}

/// Writes a file beside its place and renames it there: a library that programs use meanwhile is never half written.
fn put(content: &[u8], to: &Path, mode: u32) -> Result<()> {
    let dir = to.parent().context("a file has a folder")?;
    let partial = to.with_extension("partial");
    let write = || -> std::io::Result<()> {
        fs::create_dir_all(dir)?;
        fs::write(&partial, content)?;
        fs::set_permissions(&partial, fs::Permissions::from_mode(mode))?;
        fs::rename(&partial, to)
    };
    write().with_context(|| format!("cannot write {} (is the prefix yours to write?)", to.display()))
}

fn link(target: &str, at: &Path) -> Result<()> {
    let _ = fs::remove_file(at);
    symlink(target, at).with_context(|| format!("cannot make the link {}", at.display()))
}
