//! What shells get for completions: values that depend on the machine too.

mod common;

use std::process::Command;

use common::{Neap, skip, stderr, stdout};

/// What neap offers for the last of these words.
fn offered(neap: &Neap, words: &[&str]) -> Vec<String> {
    let mut command = neap.command(["--", "neap"]);
    command.args(words).env("_NEAP_COMPLETE", "bash").env("_CLAP_IFS", "\n");
    command.env("_CLAP_COMPLETE_INDEX", words.len().to_string()).env("_CLAP_COMPLETE_COMP_TYPE", "9");
    let output = command.env("_CLAP_COMPLETE_SPACE", "true").output().expect("neap starts");
    assert!(output.status.success(), "{}", stderr(&output));
    stdout(&output).lines().map(|line| line.trim_end().to_owned()).collect()
}

/// Catches a list that is not offered: commands, options, experiments, allocators, peers, formats, settings.
#[test]
fn lists_are_offered() {
    let neap = Neap::new();
    for (words, wanted) in [
        (&["pag"][..], "pagein"),
        (&["run", "--summ"], "--summary"),
        (&["run", "--set", "purge=e"], "purge=eager"),
        (&["lab", "run", "retain-l"], "retain-large"),
        (&["lab", "run", "al"], "all"),
        (&["lab", "run", "all", "--allocators", "mimalloc-p"], "mimalloc-pprof"),
        (&["lab", "run", "all", "--allocators", "glibc,jemalloc-b"], "glibc,jemalloc-background"),
        (&["lab", "peers", "build", "--only", "rpm"], "rpmalloc"),
        (&["pagein", "--format", "fire"], "firefox"),
        (&["profile", "--format", "ppr"], "pprof"),
        (&["top", "--sort", "contai"], "container"),
        (&["man", "ord"], "order"),
        (&["run", "--prefault", "a"], "all"),
        (&["why", "--cgroup", "s"], "self"),
        (&["huge", "reserve", "--size", "1"], "1G"),
    ] {
        assert!(offered(&neap, words).iter().any(|word| word == wanted), "{words:?}: {:?}", offered(&neap, words));
    }
}

/// Catches processes, programs and files that are not offered.
#[test]
fn the_machine_is_looked_at() {
    let neap = Neap::new();
    let pid = std::process::id().to_string();
    for words in
        [&["why"][..], &["stats"], &["pagein", "--pid"], &["profile", "--heap", "--pid"], &["options", "--pid"]]
    {
        let words = [words, &[pid.as_str()]].concat();
        assert!(offered(&neap, &words).contains(&pid), "{words:?}");
    }
    let file = neap.file("neap-test-input", "", 0o600);
    let file = file.to_string_lossy();
    for words in [&["run", "--"][..], &["pagein", "--"], &["why", "--"], &["run", "--", "cat"]] {
        let all = [words, &["printen"]].concat();
        assert!(offered(&neap, &all).iter().any(|word| word == "printenv"), "{words:?}: {:?}", offered(&neap, &all));
        let all = [words, &[&file[..file.len() - 2]]].concat();
        assert!(offered(&neap, &all).iter().any(|word| *word == file), "{words:?}: {:?}", offered(&neap, &all));
    }
}

/// Catches a script that the shell refuses, or that does not call neap.
#[test]
fn a_shell_completes() {
    let neap = Neap::new();
    if !Command::new("bash").arg("--version").output().is_ok_and(|out| out.status.success()) {
        return skip("a_shell_completes", "bash is not installed");
    }
    let command = neap.command([""]);
    let folder = std::path::Path::new(command.get_program()).parent().expect("a folder").display().to_string();
    let script = "export PATH=\"$1:$PATH\"; eval \"$(neap completions bash)\"; \
                  COMP_WORDS=(neap lab run surviv); COMP_CWORD=3; COMP_TYPE=9; \
                  _clap_complete_neap neap surviv run; echo \"${COMPREPLY[@]}\"";
    let output = Command::new("bash").args(["-c", script, "sh", &folder]).output().expect("bash starts");
    assert_eq!(stdout(&output).trim(), "survivors", "{}", stderr(&output));
    for shell in ["zsh", "fish", "elvish", "powershell"] {
        let script = stdout(&neap.output(["completions", shell]));
        assert!(script.contains("_NEAP_COMPLETE") && script.contains("neap"), "{shell}: {script}");
    }
}
