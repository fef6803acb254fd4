//! `neap run --summary`, and the other commands' output.

mod common;

use std::fs;

use common::{Neap, assert_refused, stderr, stdout};
use serde_json::Value;

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// Catches a summary on the wrong stream, or with escape sequences in a file.
#[test]
fn the_text_goes_to_standard_error() {
    let neap = Neap::new();
    let output = neap.output(["run", "--summary", "--", "sh", "-c", "echo out; exit 3"]);
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(stdout(&output), "out\n");
    let text = stderr(&output);
    for label in ["exit status 3", "wall time", "CPU time", "peak resident", "faults", "context switches"] {
        assert!(text.contains(label), "no {label:?} in {text}");
    }
    assert!(!text.contains('\x1b'), "{text}");
}

/// Catches numbers that are not those of the program, and an invalid document.
#[test]
fn the_json_has_plausible_numbers() {
    let neap = Neap::new();
    let file = neap.path("summary.json");
    let script = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; sleep 0.1; kill -TERM $$";
    let arguments = ["run", "--json", "--summary-file", file.to_str().expect("UTF-8"), "--", "sh", "-c", script];
    let output = neap.output(arguments);
    assert_eq!(stderr(&output), "");
    let summary = json(&fs::read_to_string(&file).expect("written"));
    assert_eq!(summary["schema"], "neap.run.summary/1");
    assert_eq!(summary["command"][0], "sh");
    assert!(summary["exit"]["status"].is_null());
    assert_eq!(summary["exit"]["signal"], 15);
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{value} is no number"));
    let wall = number(&summary["time"]["wall_seconds"]);
    let cpu = number(&summary["time"]["user_seconds"]) + number(&summary["time"]["system_seconds"]);
    assert!((0.1..300.0).contains(&wall), "{wall}");
    assert!(cpu > 0.0 && cpu < wall, "{cpu} of {wall}");
    let peak = number(&summary["memory"]["peak_resident_bytes"]);
    assert!((500e3..100e6).contains(&peak), "{peak}");
    assert!(number(&summary["faults"]["minor"]) > 10.0);
    assert!(summary["allocator"].is_null() || summary["allocator"]["processes"].is_u64());
}

/// Catches a peak that is neap's own: a program's must follow its memory.
#[test]
fn the_peak_is_the_programs() {
    let neap = Neap::new();
    let peak = |script: &str| {
        let output = neap.output(["run", "--json", "--", "sh", "-c", script]);
        json(&stderr(&output))["memory"]["peak_resident_bytes"].as_u64().expect("a number")
    };
    let (small, large) = (peak(":"), peak("head -c 64M /dev/zero | tail -c 64M | wc -c >/dev/null"));
    assert!(small < 8 << 20, "{small}");
    assert!(large > 60 << 20, "{large}");
}

/// Catches a program that runs although its summary has nowhere to go.
#[test]
fn a_summary_file_that_cannot_be_made_is_an_early_error() {
    let neap = Neap::new();
    let marker = neap.path("marker");
    let output =
        neap.output(["run", "--summary-file", "/no/such/dir/file", "--", "touch", marker.to_str().expect("UTF-8")]);
    assert_refused(&output, 125, &["/no/such/dir/file", "No such file"]);
    assert!(!marker.exists());
}

/// Catches a full disk that is reported as success.
#[test]
fn a_summary_that_cannot_be_written_is_an_error() {
    let neap = Neap::new();
    let output = neap.output(["run", "--summary-file", "/dev/full", "--", "true"]);
    assert_refused(&output, 125, &["/dev/full", "No space left"]);
    let output = neap.output(["run", "--summary-file", "/dev/full", "--", "sh", "-c", "exit 4"]);
    assert_eq!(output.status.code(), Some(4), "the program's own failure comes first");
}

/// Catches counters files that are left behind or not handed to the program.
#[test]
fn the_counters_directory_is_private_and_removed() {
    let neap = Neap::new();
    let script = "echo $NEAP_COUNTERS; stat -c %a $NEAP_COUNTERS";
    let output = neap.output(["run", "--summary", "--", "sh", "-c", script]);
    let text = stdout(&output);
    let (dir, mode) = text.trim().split_once('\n').expect("two lines");
    assert!(dir.starts_with('/'), "{text}");
    assert_eq!(mode, "700");
    assert!(!fs::exists(dir).expect("readable"), "{dir} was left behind");
}

/// Catches a summary that ignores the counters: a program writes a file as the library would.
#[test]
fn counters_of_the_program_are_shown() {
    let neap = Neap::new();
    // Magic, version 2.0, a process, a size and "exact", then allocated 5 blocks of 80 bytes and freed 3 of 48.
    let words =
        "\\005\\0\\0\\0\\0\\0\\0\\0\\120\\0\\0\\0\\0\\0\\0\\0\\003\\0\\0\\0\\0\\0\\0\\0\\060\\0\\0\\0\\0\\0\\0\\0";
    let script = format!(
        "rm -f $NEAP_COUNTERS/*; f=$NEAP_COUNTERS/$$.0; printf 'neapcnt\\0\\0\\0\\002\\0\\001\\0\\0\\0\\0\\020\\0\\0\\001\\0\\0\\0{words}' > $f; truncate -s 4096 $f; \
         rm -f $NEAP_COUNTERS/[!$$]*; exec true"
    );
    let output = neap.command(["run", "--json", "--", "sh", "-c", &script]).output().expect("neap starts");
    let summary = json(&stderr(&output));
    let images = summary["allocator"]["images"].as_array().expect("images");
    let ours = images
        .iter()
        .find(|image| image["allocated"]["blocks"] == 5)
        .unwrap_or_else(|| panic!("the fabricated image is missing: {summary}"));
    assert_eq!(ours["allocated"]["bytes"], 80);
    assert_eq!(ours["freed"]["blocks"], 3);
    assert_eq!(ours["live_at_exit"]["blocks"], 2);
    assert_eq!(ours["live_at_exit"]["bytes"], 32);
}

/// Catches a listing that differs from the table.
#[test]
fn options_are_listed() {
    let neap = Neap::new();
    let text = stdout(&neap.output(["options"]));
    let listed = json(&stdout(&neap.output(["options", "--json"])));
    assert_eq!(listed["schema"], "neap.options/1");
    let options = listed["options"].as_array().expect("a list");
    assert_eq!(options.len(), neap_options::TABLE.len());
    for (option, opt) in options.iter().zip(neap_options::TABLE) {
        assert_eq!(option["env"], opt.env);
        assert!(text.contains(opt.name) && text.contains(opt.env));
    }
    let limit = options.iter().find(|option| option["name"] == "limit").expect("an option");
    assert_eq!(limit["kind"], "size");
    assert_eq!(limit["unit"], "bytes");
    assert_eq!(limit["minimum"], 1 << 20);
    assert_eq!(limit["maximum"], 128u64 << 40);
    assert_eq!(limit["words"], serde_json::json!(["auto", "off"]));
}

/// Catches generated documents that are empty.
#[test]
fn documents_are_generated() {
    let neap = Neap::new();
    assert!(stdout(&neap.output(["--version"])).starts_with(concat!("neap ", env!("CARGO_PKG_VERSION"))));
    assert_eq!(stdout(&neap.output(["help", "run"])), stdout(&neap.output(["run", "--help"])));
    let (help, man) = (stdout(&neap.output(["run", "--help"])), stdout(&neap.output(["man"])));
    assert!(help.contains("Examples:") && man.contains(".TH"));
    // The lines of help are broken at blanks.
    let in_one_line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let help = in_one_line(&help);
    for opt in neap_options::TABLE {
        assert!(help.contains(opt.env) && help.contains(&in_one_line(opt.doc())), "{}: {help}", opt.name);
        // The manual page marks underscores and dashes.
        assert!(man.replace('\\', "").contains(opt.env), "{}: {man}", opt.name);
    }
}

/// Catches neap, or the program, that ends by SIGXFSZ where files may not be as long as what neap writes.
#[test]
fn a_limit_of_file_sizes_is_an_error() {
    let neap = Neap::new();
    let file = neap.path("file");
    let limited = |arguments: &[&str]| {
        let mut command = neap.command(arguments);
        // SAFETY: setrlimit may be called between fork and exec.
        unsafe {
            std::os::unix::process::CommandExt::pre_exec(&mut command, || {
                libc::setrlimit(libc::RLIMIT_FSIZE, &libc::rlimit { rlim_cur: 100, rlim_max: 100 });
                Ok(())
            });
        }
        command.output().expect("neap starts")
    };
    let name = file.to_str().expect("UTF-8");
    // Without a copy of the library in the cache, and then with one.
    assert_refused(&limited(&["run", "--", "true"]), 125, &["File too large"]);
    assert!(neap.run(["true"]).status.success());
    let output = limited(&["run", "--json", "--summary-file", name, "--", "sh", "-c", "kill -XFSZ $$; exit 3"]);
    assert!(stderr(&output).contains("File too large"), "{output:?}");
    let signal = std::os::unix::process::ExitStatusExt::signal(&output.status);
    assert_eq!(signal, Some(libc::SIGXFSZ), "the program has the signal's usual action");
    assert_refused(&limited(&["run", "--summary-file", name, "--", "true"]), 125, &["File too large"]);
    assert_refused(&limited(&["huge", "show", "--json", "-o", name, "--", "sleep", "0.3"]), 125, &["File too large"]);
}

/// Catches a program with an allocator of its own whose figures look as if it allocated nothing, and one that only loads
/// a library and is taken for such a program.
#[test]
fn an_allocator_of_its_own_is_named() {
    let neap = Neap::new();
    let source = "#include <stdlib.h>\nstatic const char *volatile mark = \"<jemalloc>: Error\";\n\
                  int main(void) { free(malloc(100)); return mark == 0; }\n";
    let dir = neap.path("");
    let Some(program) = common::compile(&dir, "carries", source, &[]) else { return };
    let script = neap.path("script");
    fs::write(&script, format!("#!{}\n", program.display())).expect("written");
    fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("executable");
    for path in [&program, &script] {
        let text = stderr(&neap.output(["run", "--summary", "--", path.to_str().expect("UTF-8")]));
        assert_eq!(text.matches("the program carries jemalloc").count(), 1, "{text}");
    }
    let output = neap.output(["run", "--json", "--", program.to_str().expect("UTF-8")]);
    assert_eq!(json(&stderr(&output))["own_allocator"], "jemalloc");
    let plain = neap.output(["run", "--json", "--", "sh", "-c", ":"]);
    assert!(json(&stderr(&plain))["own_allocator"].is_null());
}
