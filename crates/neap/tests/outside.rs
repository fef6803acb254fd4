//! The crate as others use it: from a package of its own, outside this workspace, with profiles of its own.

use std::fs;
use std::path::Path;
use std::process::Command;

const MANIFEST: &str = r#"[package]
name = "outside"
version = "0.1.0"
edition = "2024"

[dependencies]
neap = { path = "NEAP" }

[workspace]
"#;

const MAIN: &str = r#"#[global_allocator]
static ALLOCATOR: neap::Neap = neap::Neap;

fn main() {
    let threads: Vec<_> = (0..4).map(|n| std::thread::spawn(move || vec![n; 100_000])).collect();
    let sum: usize = threads.into_iter().map(|t| t.join().expect("no panic").len()).sum();
    assert_eq!(sum, 400_000);
    println!("{}", neap::purge() > 0);
    // Unwinding frees what lies on the stack; the default profiles of a package unwind.
    let caught = std::panic::catch_unwind(|| {
        let _block = vec![1; 1000];
        panic!("on purpose");
    });
    assert!(caught.is_err());
}
"#;

/// Catches a crate that builds or links only inside this workspace, or only with the profiles that it sets.
#[test]
fn package_outside() {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("outside");
    let neap = env!("CARGO_MANIFEST_DIR");
    fs::create_dir_all(dir.join("src")).expect("the folder for temporary files can be written");
    fs::write(dir.join("Cargo.toml"), MANIFEST.replace("NEAP", neap)).expect("it can be written");
    fs::write(dir.join("src/main.rs"), MAIN).expect("it can be written");
    // The versions that this workspace was built with are at hand, so that the build needs no network.
    fs::copy(Path::new(neap).join("../../Cargo.lock"), dir.join("Cargo.lock")).expect("the workspace has a lock file");
    for profile in ["dev", "release"] {
        let output = Command::new(env!("CARGO"))
            .args(["run", "--quiet", "--offline", "--profile", profile, "--target-dir"])
            .arg(dir.join("target"))
            .current_dir(&dir)
            .output()
            .expect("cargo starts");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "profile {profile}: {}\n{stderr}", output.status);
        assert_eq!(String::from_utf8_lossy(&output.stdout), "true\n", "profile {profile}: {stderr}");
    }
}
