//! Where `neap run` puts the library.

mod common;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use common::{Neap, assert_refused, copy_program, is_root, skip, stderr, stdout};

const SHOW: [&str; 5] = ["run", "--", "sh", "-c", "echo $LD_PRELOAD"];

/// Whether the dynamic linker complained about the library.
fn preloaded(output: &std::process::Output) -> bool {
    output.status.success() && !stderr(output).contains("ld.so")
}

/// Catches a file with wrong rights, or one for each start.
#[test]
fn the_cache_is_private_and_used_again() {
    let neap = Neap::new();
    let first = neap.output(SHOW);
    assert!(preloaded(&first), "{}", stderr(&first));
    let libraries = neap.libraries();
    assert_eq!(libraries.len(), 1, "{libraries:?}");
    assert_eq!(stdout(&first).trim(), libraries[0].to_str().expect("UTF-8"));
    assert_eq!(fs::metadata(&libraries[0]).expect("it exists").permissions().mode() & 0o7777, 0o555);
    for dir in [".cache/neap", ".cache/neap/lib"] {
        assert_eq!(fs::metadata(neap.path(dir)).expect("it exists").permissions().mode() & 0o7777, 0o700);
    }
    let inode = fs::metadata(&libraries[0]).expect("it exists").ino();
    assert!(preloaded(&neap.output(SHOW)));
    assert_eq!(fs::metadata(&libraries[0]).expect("it exists").ino(), inode);
}

/// Catches starts that meet half a file.
#[test]
fn concurrent_first_starts_are_safe() {
    let neap = Neap::new();
    let children: Vec<_> = (0..16)
        .map(|_| {
            let mut command = neap.command(SHOW);
            command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
            command.spawn().expect("neap starts")
        })
        .collect();
    for child in children {
        let output = child.wait_with_output().expect("neap ends");
        assert!(preloaded(&output), "{}", stderr(&output));
        assert!(stdout(&output).contains(".cache/neap/lib"), "{}", stdout(&output));
    }
    assert_eq!(neap.libraries().len(), 1, "{:?}", neap.libraries());
}

/// Catches a cache behind a symbolic link, where another user may exchange the file.
#[test]
fn a_symlinked_cache_is_not_used() {
    let neap = Neap::new();
    let elsewhere = neap.path("elsewhere");
    fs::create_dir(&elsewhere).expect("a directory");
    fs::create_dir(neap.path(".cache")).expect("a directory");
    symlink(&elsewhere, neap.path(".cache/neap")).expect("a link");
    let output = neap.output(SHOW);
    assert!(preloaded(&output), "{}", stderr(&output));
    assert!(!stdout(&output).contains(".cache"), "{}", stdout(&output));
    assert_eq!(fs::read_dir(elsewhere).expect("readable").count(), 0);
}

/// Catches a cache that others can write.
#[test]
fn an_open_cache_is_not_used() {
    let neap = Neap::new();
    let dir = neap.path(".cache/neap");
    fs::create_dir_all(&dir).expect("a directory");
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).expect("chmod");
    let output = neap.output(SHOW);
    assert!(preloaded(&output) && !stdout(&output).contains(".cache"), "{}", stdout(&output));
}

/// Catches users without a home: services, containers, cron.
#[test]
fn without_a_home_a_temporary_file_is_used_and_removed() {
    let neap = Neap::new();
    let tmp = neap.path("tmp");
    fs::create_dir(&tmp).expect("a directory");
    let output = neap.command(SHOW).env_remove("HOME").env("TMPDIR", &tmp).output().expect("neap starts");
    assert!(preloaded(&output), "{}", stderr(&output));
    assert!(stdout(&output).starts_with(tmp.to_str().expect("UTF-8")), "{}", stdout(&output));
    assert_eq!(fs::read_dir(&tmp).expect("readable").count(), 0, "the file was left behind");
    let output = neap
        .command(["run", "--", "sh", "-c", "kill -TERM $$"])
        .env_remove("HOME")
        .env("TMPDIR", &tmp)
        .status()
        .expect("neap starts");
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&output), Some(15));
    assert_eq!(fs::read_dir(&tmp).expect("readable").count(), 0, "the file was left behind");
}

/// Catches the runtime directory passed over.
#[test]
fn the_runtime_directory_comes_next() {
    let neap = Neap::new();
    let runtime = neap.path("runtime");
    fs::create_dir(&runtime).expect("a directory");
    fs::set_permissions(&runtime, fs::Permissions::from_mode(0o700)).expect("chmod");
    let output = neap.command(SHOW).env_remove("HOME").env("XDG_RUNTIME_DIR", &runtime).output().expect("neap starts");
    assert!(preloaded(&output), "{}", stderr(&output));
    assert!(stdout(&output).starts_with(runtime.to_str().expect("UTF-8")), "{}", stdout(&output));
}

/// Catches homes that the dynamic linker would read as two.
#[test]
fn a_home_with_spaces_is_passed_over() {
    let neap = Neap::new();
    let home = neap.path("my home");
    fs::create_dir(&home).expect("a directory");
    let output = neap.command(SHOW).env("HOME", &home).output().expect("neap starts");
    assert!(preloaded(&output), "{}", stderr(&output));
    assert!(!stdout(&output).contains("my home"), "{}", stdout(&output));
}

/// Runs a script in a mount namespace of its own, in which file systems can be mounted; none where that is
/// not possible.
fn in_namespace(neap: &Neap, script: &str) -> Option<std::process::Output> {
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-ec", script])
        .env("HOME", neap.dir.path())
        .env("NEAP", env!("CARGO_BIN_EXE_neap"))
        .env_remove("XDG_CACHE_HOME")
        .env_remove("XDG_RUNTIME_DIR")
        .env_remove("TMPDIR")
        .output()
        .ok()?;
    (output.status.code() != Some(99)).then_some(output)
}

/// Catches read-only and noexec homes, and full disks, that end in an error of the dynamic linker.
#[test]
fn unsuitable_file_systems_are_passed_over() {
    if !is_root() {
        return skip("unsuitable_file_systems_are_passed_over", "needs root to mount");
    }
    for (options, full) in [("ro", false), ("noexec", false), ("size=16k", true)] {
        let neap = Neap::new();
        fs::create_dir(neap.path("home")).expect("a directory");
        let fill = if full { "head -c 1M /dev/zero > $HOME/home/fill 2>/dev/null || true;" } else { "" };
        let script = format!(
            "mount -t tmpfs -o {options} none $HOME/home || exit 99; {fill} HOME=$HOME/home $NEAP run -- sh -c 'echo $LD_PRELOAD'"
        );
        let Some(output) = in_namespace(&neap, &script) else {
            return skip("unsuitable_file_systems_are_passed_over", "cannot mount in a namespace");
        };
        assert!(preloaded(&output), "{options}: {}", stderr(&output));
        assert!(!stdout(&output).contains("/home/"), "{options}: {}", stdout(&output));
    }
}

/// Catches an error that leaves the user to guess when there is no place at all.
#[test]
fn no_place_at_all_is_explained() {
    if !is_root() {
        return skip("no_place_at_all_is_explained", "needs root to mount");
    }
    let neap = Neap::new();
    let copy = Path::new("/var/tmp").join(format!("neap-test-{}", std::process::id()));
    copy_program(env!("CARGO_BIN_EXE_neap"), &copy);
    let script =
        format!("mount -t tmpfs -o noexec none /tmp || exit 99; HOME=/tmp exec {} run -- true", copy.display());
    let output = in_namespace(&neap, &script);
    fs::remove_file(&copy).expect("removable");
    match output {
        Some(output) => assert_refused(&output, 125, &["no place for libneap.so", "noexec", "XDG_CACHE_HOME"]),
        None => skip("no_place_at_all_is_explained", "cannot mount in a namespace"),
    }
}
