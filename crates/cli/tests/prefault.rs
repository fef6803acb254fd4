//! `neap run --prefault`: memory of malloc and of files is resident when the program begins, also where the kernel has no
//! call for it.

mod common;

use std::fs;
use std::path::PathBuf;
use std::process::Output;

use common::{Neap, assert_refused, compile, skip, stderr, stdout};
use serde_json::Value;

const MIB: u64 = 1 << 20;

/// Prints the page faults of 32 blocks of 1 MiB that it writes to, and how many OS pages of libc's code are resident, and of
/// how many.
const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
static long faults(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_minflt + usage.ru_majflt;
}
static void libc_code(long *resident, long *all) {
    char line[4200], rights[5];
    unsigned long start, end, size = 0;
    FILE *file = fopen("/proc/self/smaps", "r");
    int in = 0;
    long kib;
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "%lx-%lx %4s", &start, &end, rights) == 3) {
            in = strstr(line, "/libc.so.6") && rights[2] == 'x';
            if (in) size = end - start;
        } else if (in && sscanf(line, "Rss: %ld", &kib) == 1)
            *resident = kib / 4;
    }
    fclose(file);
    *all = size / 4096;
}
int main(void) {
    long resident = 0, all = 0;
    libc_code(&resident, &all);
    long before = faults();
    char *blocks[32];
    for (int i = 0; i < 32; i++) {
        blocks[i] = malloc(1 << 20);
        memset(blocks[i], 1, 1 << 20);
    }
    printf("%ld %ld %ld\n", faults() - before, resident, all);
    return 0;
}
"#;

/// Executes a program as on a kernel without MADV_POPULATE_READ and MADV_POPULATE_WRITE.
const OLD_KERNEL: &str = r#"
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(int argc, char **argv) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 0, 4),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 22, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 23, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) return 9;
    execv(argv[1], argv + 1);
    return 8;
}
"#;

fn programs(test: &str, neap: &Neap) -> Option<(PathBuf, PathBuf)> {
    let program = compile(neap.dir.path(), "program", PROGRAM, &["-Wall"]);
    let programs = program.zip(compile(neap.dir.path(), "old", OLD_KERNEL, &["-Wall"]));
    if programs.is_none() {
        skip(test, "no C compiler");
    }
    programs
}

/// What the program printed: faults, resident pages of libc's code, all of them.
fn numbers(output: &Output) -> [u64; 3] {
    let text = stdout(output);
    let numbers: Vec<u64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    numbers.try_into().unwrap_or_else(|_| panic!("{output:?}"))
}

fn run(neap: &Neap, arguments: &[&str], program: &PathBuf) -> Output {
    neap.command([&["run"], arguments, &["--"]].concat()).arg(program).output().expect("neap starts")
}

/// Catches memory that malloc does not hand out, a cost that is not shown, and a prefault where none is wanted.
#[test]
fn the_heap_is_resident() {
    let neap = Neap::new();
    let Some((program, _)) = programs("the_heap_is_resident", &neap) else { return };
    let [plain, ..] = numbers(&run(&neap, &[], &program));
    let output = run(&neap, &["--prefault", "64M"], &program);
    assert_eq!(stderr(&output), "");
    let [faults, ..] = numbers(&output);
    assert!(plain >= 32 * 256 && faults < 400, "{plain} faults, with a prefault {faults}");

    let file = neap.path("summary.json");
    let output =
        run(&neap, &["--prefault", "64M", "--json", "--summary-file", file.to_str().expect("UTF-8")], &program);
    assert!(output.status.success() && numbers(&output)[0] < 400, "{output:?}");
    let summary: Value = serde_json::from_str(&fs::read_to_string(file).expect("written")).expect("JSON");
    let prefault = &summary["allocator"]["program"]["prefault"];
    assert_eq!(prefault["bytes"], 64 * MIB);
    // Fewer where the kernel uses larger pages.
    assert!(prefault["faults"].as_u64() >= Some(32) && prefault["seconds"].as_f64() > Some(0.0), "{prefault}");
    let text = stderr(&run(&neap, &["--summary"], &program));
    assert!(text.contains("system calls") && !text.contains("prefault"), "{text}");
}

/// Catches a program that does not run where there is less memory than it is to have at its start, or does without a word.
#[test]
fn more_than_there_is() {
    let neap = Neap::new();
    let output = neap.output(["run", "--prefault", "100T", "--", "sh", "-c", "exit 3"]);
    let line = "neap: NEAP_PREFAULT=100T: there is not as much memory left; nothing is prefaulted\n";
    assert_eq!((output.status.code(), stderr(&output)), (Some(3), line.to_owned()));
    let output = neap.output(["run", "--set", "limit=8M", "--prefault", "64M", "--", "sh", "-c", "exit 3"]);
    assert_eq!((output.status.code(), stderr(&output)), (Some(3), line.replace("100T", "64M")));
}

/// Catches files that are not resident, and files that are without having been named.
#[test]
fn files_are_resident() {
    let neap = Neap::new();
    let Some((program, _)) = programs("files_are_resident", &neap) else { return };
    for (what, whole) in [("all", true), ("file:libc.so.*", true), ("file:*/libc.so.6", true), ("file:/none/*", false)]
    {
        let output = run(&neap, &["--prefault", what], &program);
        assert_eq!(stderr(&output), "", "{what}");
        let [_, resident, all] = numbers(&output);
        assert_eq!(resident == all, whole, "{what}: {resident} of {all}");
    }
    let text = stderr(&run(&neap, &["--prefault", "all", "--summary"], &program));
    assert!(text.contains("  prefault          ") && text.contains(", which saves up to "), "{text}");
}

/// Catches a kernel before 5.14 on which nothing is prefaulted, or a program does not run.
#[test]
fn without_populate() {
    let neap = Neap::new();
    let Some((program, old)) = programs("without_populate", &neap) else { return };
    for (what, faults, whole) in [("64M", 0..400, false), ("all", 8000..9000, true)] {
        let mut command = neap.command(["run", "--prefault", what, "--"]);
        let output = command.args([&old, &program]).output().expect("neap starts");
        assert!(output.status.success(), "{what}: {output:?}");
        let [made, resident, all] = numbers(&output);
        assert!(faults.contains(&made) && (resident == all) == whole, "{what}: {made} faults, {resident} of {all}");
    }
}

/// Catches values that are taken for others, and an option that shows no value.
#[test]
fn values_are_checked() {
    let neap = Neap::new();
    for bad in ["0", "1000T", "some", "file:", "64M,all"] {
        let output = neap.output(["run", "--prefault", bad, "--", "true"]);
        assert_eq!(output.status.code(), Some(125), "{bad}");
        assert!(
            stderr(&output).contains("a size up to 128T (as 64M), all, file:PATTERN or off"),
            "{}",
            stderr(&output)
        );
    }
    assert_refused(&neap.output(["run", "--prefault", "64M"]), 125, &["CMD"]);
    let text = stdout(&neap.command(["options"]).env("NEAP_PREFAULT", "all").output().expect("neap starts"));
    assert!(text.contains("value        all (environment: NEAP_PREFAULT)"), "{text}");
}
