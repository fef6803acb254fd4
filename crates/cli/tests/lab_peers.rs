//! `neap lab peers build --upstream`, on a repository of this test: a small library with the layout of rpmalloc's.

mod common;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use common::{Neap, assert_refused, stderr, stdout};

fn git(folder: &Path, arguments: &[&str]) -> bool {
    let mut git = Command::new("git");
    git.current_dir(folder).args(["-c", "user.name=t", "-c", "user.email=t@example.org"]);
    git.env("GIT_COMMITTER_DATE", "2026-03-04T05:06:07Z").env("GIT_CONFIG_NOSYSTEM", "1");
    git.args(arguments).output().is_ok_and(|out| out.status.success())
}

/// A repository with the releases 1.4.3, 2.0.1 and a candidate; none where there is no git.
fn repository(neap: &Neap) -> Option<String> {
    let folder = neap.path("rpmalloc");
    fs::create_dir_all(folder.join("rpmalloc")).expect("folders");
    if !git(&folder, &["init", "--quiet"]) {
        common::skip("lab_peers", "git is not installed");
        return None;
    }
    release(&folder, "1.4.3");
    release(&folder, "2.0.1");
    release(&folder, "2.1.0-rc1");
    // Of the release's name, which is not the release.
    assert!(git(&folder, &["branch", "2.0.1"]));
    Some(folder.to_string_lossy().into_owned())
}

fn release(folder: &Path, tag: &str) {
    let source = format!("const char *rpmalloc_release = \"release {tag}\";\n");
    fs::write(folder.join("rpmalloc/rpmalloc.c"), source).expect("a source");
    assert!(git(folder, &["add", "."]) && git(folder, &["commit", "--quiet", "-m", tag]) && git(folder, &["tag", tag]));
}

fn build(neap: &Neap, repository: &str, options: &[&str]) -> Output {
    building(neap, repository, options).output().expect("neap starts")
}

/// The build has failed, and its report has these words.
fn failed(output: &Output, words: &[&str]) {
    let text = stderr(output);
    assert_eq!(output.status.code(), Some(125), "{text}");
    for word in words {
        assert!(text.contains(word), "no {word:?} in {text}");
    }
}

fn building(neap: &Neap, repository: &str, options: &[&str]) -> Command {
    let mut command = neap.command(["lab", "peers", "build", "--only", "rpmalloc", "--upstream", "--repository"]);
    command.arg(format!("rpmalloc={repository}")).args(options);
    command
}

/// Catches a candidate that passes for a release, a release that is not found or built each time, and "written" where
/// nothing was.
#[test]
fn the_newest_release_is_built_once() {
    let neap = Neap::new();
    let Some(repository) = repository(&neap) else { return };
    let out = build(&neap, &repository, &[]);
    assert!(out.status.success(), "{}", stderr(&out));
    assert!(stderr(&out).contains("rpmalloc: 2.0.1 (2026-03-04) from "), "{}", stderr(&out));
    assert!(stderr(&out).contains("written: 1 library in "), "{}", stderr(&out));
    let library = neap.path(".cache/neap/lab/peers/rpmalloc.so");
    let has = |text: &str| {
        let bytes = fs::read(&library).expect("a library");
        bytes.windows(text.len()).any(|window| window == text.as_bytes())
    };
    assert!(has("release 2.0.1"));

    // Without the option nothing is fetched, and the release stays.
    for again in [build(&neap, &repository, &[]), neap.output(["lab", "peers", "build", "--only", "rpmalloc"])] {
        let text = stderr(&again);
        assert!(again.status.success() && text.contains("rpmalloc: up to date"), "{text}");
        assert!(text.contains("nothing to build in ") && !text.contains("written"), "{text}");
    }
    let list = stdout(&neap.output(["lab", "peers", "list"]));
    let line = list.lines().find(|line| line.starts_with("rpmalloc ")).expect("a peer");
    let words: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(words[1..3], ["2.0.1", "(2026-03-04),"], "{line}");
    assert!(line.ends_with(&format!("{repository}, tag 2.0.1")), "{line}");

    // A later release that does not compile: the library stays, and is older than upstream.
    release(Path::new(&repository), "v2.0.10");
    let compiler = "#!/bin/sh\ncase \"$*\" in *rpmalloc.c*) echo no >&2; exit 1;; esac\nexec cc \"$@\"\n";
    let compiler = neap.file("compiler", compiler, 0o700);
    let out = building(&neap, &repository, &[]).env("CC", &compiler).output().expect("neap starts");
    failed(&out, &["compiler -std=gnu11", "neap: not built: rpmalloc\n"]);
    let list = stdout(&neap.output(["lab", "peers", "list"]));
    assert!(list.contains("tag 2.0.1 (older than upstream 2.0.10)"), "{list}");
    assert!(build(&neap, &repository, &[]).status.success());
    assert!(has("release v2.0.10"));
}

/// Catches two builds that write the same files at once.
#[test]
fn a_second_build_waits_for_the_first() {
    let neap = Neap::new();
    let Some(repository) = repository(&neap) else { return };
    let log = neap.path("log");
    let compiler = format!(
        "#!/bin/sh\ncase \"$*\" in *rpmalloc.c*) echo begin >> {0}; sleep 1; echo end >> {0};; esac\nexec cc \"$@\"\n",
        log.display()
    );
    let compiler = neap.file("compiler", compiler, 0o700);
    let start =
        || building(&neap, &repository, &["--force"]).env("CC", &compiler).stderr(std::process::Stdio::piped()).spawn();
    let both = [start().expect("neap starts"), start().expect("neap starts")];
    let texts: Vec<String> = both.map(|child| stderr(&child.wait_with_output().expect("an end"))).into();
    assert_eq!(fs::read_to_string(log).expect("a log"), "begin\nend\nbegin\nend\n");
    assert_eq!(texts.iter().filter(|text| text.contains("another build uses ")).count(), 1, "{texts:?}");
    assert!(texts.iter().all(|text| text.contains("written: 1 library")), "{texts:?}");
}

/// Catches errors without a cause or a remedy.
#[test]
fn what_cannot_be_fetched_is_explained() {
    let neap = Neap::new();
    let Some(repository) = repository(&neap) else { return };
    let out = build(&neap, "/no/such/repository", &[]);
    failed(
        &out,
        &["rpmalloc: cannot read /no/such/repository: fatal: ", "--repository NAME=URL", "not built: rpmalloc"],
    );
    let empty = neap.path("empty");
    fs::create_dir(&empty).expect("a folder");
    assert!(git(&empty, &["init", "--quiet"]));
    let out = build(&neap, &empty.to_string_lossy(), &[]);
    failed(&out, &["has no tag that is a release", "neap: not built: rpmalloc\n"]);
    let out = neap.output(["lab", "peers", "build", "--upstream", "--repository", &repository]);
    assert_refused(&out, 125, &["expected NAME=URL"]);
    let help = stdout(&neap.output(["lab", "peers", "build", "--help"]));
    assert!(help.contains("[default: ~/.cache/neap/lab/peers"), "{help}");
}
