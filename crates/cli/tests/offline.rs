//! `neap lab` where something that an experiment needs cannot be had: it is skipped, with the reason.

mod common;

use std::process::Command;

use common::Neap;

/// What a run of tls-chunks says, with the environment changed by `change`. It must end well, also with --check.
fn tls_chunks(neap: &Neap, change: impl FnOnce(&mut Command)) -> String {
    let mut command = neap.command(["lab", "run", "tls-chunks", "--quick", "--check", "--allocators", "glibc", "-o"]);
    command.arg(neap.path("run"));
    change(&mut command);
    let out = command.output().expect("neap starts");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// Catches a machine without a network on which the lab fails, waits for minutes, or leaves the experiment out.
#[test]
fn without_a_network_the_download_is_skipped() {
    if !Command::new("python3").args(["-c", "import ensurepip"]).status().is_ok_and(|status| status.success()) {
        eprintln!("skipped: needs python3 with venv");
        return;
    }
    let neap = Neap::new();
    let text = tls_chunks(&neap, |command| {
        command.env("PIP_NO_INDEX", "1");
    });
    assert!(text.contains("Not run: pip cannot install requests and pyOpenSSL (offline?)"), "{text}");
}

/// Catches a Python without venv whose remedy is not printed.
#[test]
fn without_venv_the_download_is_skipped() {
    let neap = Neap::new();
    let python = neap.file("python3", "#!/bin/sh\necho \"error: no venv\" >&2\nexit 1\n", 0o700);
    let text = tls_chunks(&neap, |command| {
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", python.parent().expect("a folder").display()));
    });
    assert!(
        text.contains("Not run: no virtual environment could be made (Debian: apt install python3-venv)"),
        "{text}"
    );
}
