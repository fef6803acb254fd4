//! `cargo xtask install`: installs the libraries, the command, header, pkg-config file, manual pages and completions in
//! a system's folders.

use crate::object;
use crate::place::root;
use crate::release;
use anyhow::{Context, Result, ensure};
use clap::Args as ClapArgs;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// As `crates/preload/build.rs` sets it.
pub const SONAME: &str = "libneap.so.0";
/// Shells, and where they look for completions below PREFIX/share.
const COMPLETIONS: &[(&str, &str)] = &[
    ("bash", "bash-completion/completions/neap"),
    ("zsh", "zsh/site-functions/_neap"),
    ("fish", "fish/vendor_completions.d/neap.fish"),
];

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
    let built = Built::here(args.order)?;
    let base = built.put_all(&args.prefix, args.destdir.as_deref(), &args.libdir)?;
    println!("installed neap {VERSION} below {}", base.display());
    Ok(())
}

/// A release build.
pub struct Built {
    /// The processor, as `uname -m` names it.
    pub machine: &'static str,
    /// Prefix of the names of binutils.
    pub tools: &'static str,
    folder: PathBuf,
    /// A command that runs here.
    command: PathBuf,
}

impl Built {
    /// Builds for this processor; with `order`, lays out the command.
    pub fn here(order: bool) -> Result<Self> {
        cargo(&["build", "--release"], &[])?;
        if order {
            release::lay_out()?;
        }
        let folder = root().join("target/release");
        Ok(Built { machine: std::env::consts::ARCH, tools: "", command: folder.join("neap"), folder })
    }

    /// Builds for 64-bit Arm. The linker is the one that cargo's variable names, or clang, which must find a C library
    /// for Arm.
    pub fn for_arm() -> Result<Self> {
        const TARGET: &str = "aarch64-unknown-linux-gnu";
        const LINKER: &str = "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER";
        if std::env::consts::ARCH == "aarch64" {
            return Built::here(false);
        }
        let linker = match std::env::var_os(LINKER) {
            Some(linker) => PathBuf::from(linker),
            None => {
                let script = root().join("target/aarch64-linux-gnu-clang");
                put(b"#!/bin/sh\nexec clang --target=aarch64-linux-gnu \"$@\"\n", &script, 0o755)?;
                script
            }
        };
        cargo(&["build", "--release", "--target", TARGET], &[(LINKER, &linker)]).with_context(|| {
            format!("needs `rustup target add {TARGET}`, clang, binutils and libc6-dev-arm64-cross")
        })?;
        // The command prints the same texts on all processors.
        cargo(&["build", "--package", "neap-cli"], &[])?;
        Ok(Built {
            machine: "aarch64",
            tools: "aarch64-linux-gnu-",
            folder: root().join("target").join(TARGET).join("release"),
            command: root().join("target/debug/neap"),
        })
    }

    /// Installs everything below a prefix (for packages below `destdir`), and returns that folder.
    pub fn put_all(&self, prefix: &Path, destdir: Option<&Path>, libdir: &Path) -> Result<PathBuf> {
        let inside = prefix.strip_prefix("/").unwrap_or(prefix);
        let base = destdir.map_or_else(|| prefix.to_owned(), |dir| dir.join(inside));
        let lib = base.join(libdir);
        let versioned = format!("libneap.so.{VERSION}");
        put(&fs::read(self.folder.join("neap"))?, &base.join("bin/neap"), 0o755)?;
        put(&fs::read(self.folder.join("libneap.so"))?, &lib.join(&versioned), 0o755)?;
        link(&versioned, &lib.join(SONAME))?;
        link(SONAME, &lib.join("libneap.so"))?;
        object::make(&self.folder, self.tools)?;
        for name in ["libneap.a", "neap.o"] {
            put(&fs::read(self.folder.join(name))?, &lib.join(name), 0o644)?;
        }
        put(&fs::read(root().join("include/neap.h"))?, &base.join("include/neap.h"), 0o644)?;
        let pc = fs::read_to_string(root().join("include/neap.pc.in"))?
            .replace("@PREFIX@", &prefix.to_string_lossy())
            .replace("@LIBDIR@", &libdir.to_string_lossy())
            .replace("@VERSION@", VERSION);
        put(pc.as_bytes(), &lib.join("pkgconfig/neap.pc"), 0o644)?;
        let pages = base.join("share/man/man1");
        fs::create_dir_all(&pages).with_context(|| format!("cannot make {}", pages.display()))?;
        self.said(&["man", "--dir", &pages.to_string_lossy()])?;
        for (shell, file) in COMPLETIONS {
            put(&self.said(&["completions", shell])?, &base.join("share").join(file), 0o644)?;
        }
        Ok(base)
    }

    /// The output of the command.
    fn said(&self, args: &[&str]) -> Result<Vec<u8>> {
        let done = Command::new(&self.command).args(args).output().context("cannot run neap")?;
        ensure!(done.status.success(), "neap {} failed: {}", args.join(" "), String::from_utf8_lossy(&done.stderr));
        Ok(done.stdout)
    }
}

fn cargo(args: &[&str], environment: &[(&str, &Path)]) -> Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(&cargo).args(args).envs(environment.iter().copied()).current_dir(root()).status();
    ensure!(built.context("cannot start cargo")?.success(), "cargo {} failed", args.join(" "));
    Ok(())
}

/// Writes a file under another name and renames it, so that programs never use a half-written library.
fn put(content: &[u8], to: &Path, mode: u32) -> Result<()> {
    let dir = to.parent().context("a file has a folder")?;
    let partial = to.with_extension("partial");
    let write = || -> std::io::Result<()> {
        fs::create_dir_all(dir)?;
        fs::write(&partial, content)?;
        fs::set_permissions(&partial, fs::Permissions::from_mode(mode))?;
        fs::rename(&partial, to)
    };
    write().with_context(|| format!("cannot write {} (may you write to the prefix?)", to.display()))
}

fn link(target: &str, at: &Path) -> Result<()> {
    let _ = fs::remove_file(at);
    symlink(target, at).with_context(|| format!("cannot make the link {}", at.display()))
}
