//! `neap exporter` on real processes: its text by promtool, a Prometheus server that scrapes it, errors, its end.

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStderr, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use common::{Neap, Running, assert_refused, compile, skip, stderr, stdout};
use serde_json::Value;

const MIB: f64 = 1_048_576.0;
const LONG: Duration = Duration::from_secs(60);

/// A program that keeps 64 MiB of freed blocks below one that is live, called `kept-by-test-N`: no other test's.
fn keeper(neap: &Neap) -> Option<(Running, String)> {
    const SOURCE: &str = "#include <malloc.h>\n#include <stdlib.h>\n#include <string.h>\n#include <unistd.h>\n\
        static void *all[1024]; int main(void) { mallopt(M_MMAP_THRESHOLD, 1 << 30);\n\
        for (int i = 0; i < 1024; i++) memset(all[i] = malloc(65536), 1, 65536);\n\
        void *pin = malloc(64); memset(pin, 1, 64);\n\
        for (int i = 0; i < 1024; i++) free(all[i]);\n\
        if (write(1, \"ready\\n\", 6) != 6) return 1; pause(); return 0; }\n";
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let name = format!("kept-by-test-{}-{}", std::process::id(), NUMBER.fetch_add(1, Relaxed));
    let program = compile(neap.dir.path(), &name, SOURCE, &["-O0", "-w"])?;
    let mut child = Command::new(program).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("it is a pipe")).read_line(&mut line).expect("it says that it is ready");
    Some((Running(child), name))
}

/// The exporter at a port of its own, its address, and what else it says.
fn serve_with(mut command: Command) -> (Running, String, BufReader<ChildStderr>) {
    let mut child = command.args(["--listen", "127.0.0.1:0"]).stderr(Stdio::piped()).spawn().expect("neap starts");
    let mut errors = BufReader::new(child.stderr.take().expect("it is a pipe"));
    let mut line = String::new();
    errors.read_line(&mut line).expect("a line");
    let address = line.trim().strip_prefix("neap: metrics at http://").and_then(|rest| rest.strip_suffix("/metrics"));
    (Running(child), address.unwrap_or_else(|| panic!("no address: {line}")).to_owned(), errors)
}

/// The same, with arguments.
fn serve(neap: &Neap, arguments: &[&str]) -> (Running, String) {
    let mut command = neap.command(["exporter"]);
    command.args(arguments);
    let (exporter, address, _) = serve_with(command);
    (exporter, address)
}

/// Ends the exporter, which has two seconds for that.
fn ends_in_time(exporter: &mut Running) {
    // SAFETY: kill takes numbers; the child was not waited for.
    unsafe { libc::kill(exporter.0.id() as libc::pid_t, libc::SIGTERM) };
    let until = Instant::now() + Duration::from_secs(2);
    let status = loop {
        if let Some(status) = exporter.0.try_wait().expect("it can be waited for") {
            break status;
        }
        assert!(Instant::now() < until, "it does not end");
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(status.code(), Some(0));
}

/// A request; the head and the body of the answer.
fn get(address: &str, path: &str, headers: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(LONG)).expect("a limit");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n{headers}Connection: close\r\n\r\n").expect("it reads");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("it answers");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head");
    (head.to_owned(), body.to_owned())
}

/// The value of the one sample of a metric whose labels have these words.
fn sample(page: &str, metric: &str, words: &str) -> Option<f64> {
    let line = page.lines().find(|line| line.starts_with(&format!("{metric}{{")) && line.contains(words))?;
    line.rsplit(' ').next()?.parse().ok()
}

/// Waits until the exporter has accounted for the process.
fn accounted(address: &str, pid: u32) -> String {
    let until = Instant::now() + LONG;
    loop {
        let (_, body) = get(address, "/metrics", "");
        if sample(&body, "neap_process_kept_bytes", &format!("pid=\"{pid}\"")).is_some() {
            return body;
        }
        assert!(Instant::now() < until, "no account: {body}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Catches figures that are not the process's, a page that OpenMetrics or Prometheus does not read, and wrong answers.
#[test]
fn figures_and_formats() {
    let neap = Neap::new();
    let Some((keeper, name)) = keeper(&neap) else { return skip("figures_and_formats", "needs a C compiler") };
    let (_exporter, address) = serve(&neap, &["--budget", "20", "--match", &format!("^{name}$")]);
    let page = accounted(&address, keeper.0.id());
    let of = |metric| sample(&page, metric, &format!("command=\"{name}\",container=\"")).unwrap_or(-1.0) / MIB;
    let kept = of("neap_process_kept_bytes");
    assert!((60.0..70.0).contains(&kept), "{kept}: {page}");
    let (resident, reclaimable) = (of("neap_process_resident_bytes"), of("neap_process_reclaimable_bytes"));
    assert!((kept..80.0).contains(&resident) && reclaimable >= kept, "{page}");
    assert!(page.contains("allocator=\"glibc\"") && page.contains("cause=\"pinned-top\""), "{page}");
    assert!(page.contains("\nneap_exporter_processes 1\n"), "{page}");

    let (head, text) = get(&address, "/metrics", "Accept: application/openmetrics-text;version=1.0.0\r\n");
    assert!(
        head.contains("application/openmetrics-text; version=1.0.0") && text.ends_with("\n# EOF\n"),
        "{head}\n{text}"
    );
    assert!(text.contains("# UNIT neap_process_kept_bytes bytes\n"), "{text}");
    assert!(get(&address, "/-/healthy", "").0.starts_with("HTTP/1.1 200 "));
    assert!(get(&address, "/none", "").0.starts_with("HTTP/1.1 404 "));
    lint(&page);
}

/// promtool's own check of the text.
fn lint(page: &str) {
    let started =
        Command::new("promtool").args(["check", "metrics"]).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let Ok(mut promtool) = started else { return skip("figures_and_formats, promtool", "needs prometheus (Debian)") };
    promtool.stdin.take().expect("it is a pipe").write_all(page.as_bytes()).expect("it reads");
    let output = promtool.wait_with_output().expect("it ends");
    assert!(output.status.success() && output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The answer of a Prometheus server to a query: the values, by `pid`.
fn query(address: &str, query: &str) -> Vec<(String, f64)> {
    let encoded: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
    let (_, body) = get(address, &format!("/api/v1/query?query={encoded}"), "");
    // The answer may come in chunks.
    let json = body.find('{').and_then(|start| Some(&body[start..=body.rfind('}')?])).unwrap_or("null");
    let answer: Value = serde_json::from_str(json).unwrap_or(Value::Null);
    let results = answer["data"]["result"].as_array().cloned().unwrap_or_default();
    let value = |of: &Value| Some((of["metric"]["pid"].as_str()?.to_owned(), of["value"][1].as_str()?.parse().ok()?));
    results.iter().filter_map(value).collect()
}

/// Catches metrics that a real server does not store: refused names, wrong types, labels that do not come through; and
/// alerts that do not fire on what they are for.
#[test]
fn prometheus_scrapes_it() {
    if !Path::new("/usr/bin/prometheus").exists() {
        return skip("prometheus_scrapes_it", "needs prometheus (Debian)");
    }
    let neap = Neap::new();
    let Some((keeper, name)) = keeper(&neap) else { return skip("prometheus_scrapes_it", "needs a C compiler") };
    let (exporter, target) = serve(&neap, &["--budget", "20", "--match", &format!("^{name}$")]);
    accounted(&target, keeper.0.id());
    let configuration = format!(
        "global: {{scrape_interval: 1s}}\nscrape_configs:\n  - job_name: neap\n    static_configs: [{{targets: ['{target}']}}]\n"
    );
    let file = neap.file("prometheus.yml", configuration, 0o600);
    let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port");
    let address = free.to_string();
    let _server = Running(
        Command::new("/usr/bin/prometheus")
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.tsdb.path={}", neap.path("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("prometheus starts"),
    );
    let until = Instant::now() + LONG;
    while TcpStream::connect(&address).is_err() || query(&address, "neap_process_kept_bytes").is_empty() {
        assert!(Instant::now() < until, "nothing is stored");
        std::thread::sleep(Duration::from_millis(200));
    }
    let pid = keeper.0.id().to_string();
    let stored = query(&address, &format!("neap_process_kept_bytes{{job=\"neap\",command=\"{name}\"}}"));
    assert!(stored.len() == 1 && stored[0].0 == pid && stored[0].1 > 60.0 * MIB, "{stored:?}");
    // The alert's own condition, with 1 MiB in place of 256.
    let kept = "neap_process_kept_bytes > 1024 * 1024 and neap_process_kept_bytes > 0.4 * neap_process_resident_bytes";
    assert_eq!(query(&address, kept).len(), 1);
    let live = query(&address, "sum by (pid) (neap_process_account_bytes{kind=~\"heap-.*\"})");
    assert!(live.len() == 1 && live[0].1 > 60.0 * MIB, "{live:?}");
    let faults = query(&address, "neap_process_page_faults_total{type=\"minor\"}");
    assert!(faults.len() == 1 && faults[0].1 > 16000.0, "{faults:?}");
    // A process that ends is gone from the page, and the exporter goes on.
    drop(keeper);
    let (_, page) = get(&target, "/metrics", "");
    std::thread::sleep(Duration::from_millis(600));
    let (_, later) = get(&target, "/metrics", "");
    assert!(later.contains("\nneap_exporter_processes 0\n"), "{page}\n{later}");
    drop(exporter);
}

/// Catches a file that node_exporter reads half-written or does not understand, and one look that has no accounts.
#[test]
fn once_and_for_node_exporter() {
    let neap = Neap::new();
    let Some((_keeper, name)) = keeper(&neap) else { return skip("once_and_for_node_exporter", "needs a C compiler") };
    let output = neap.output(["exporter", "--once", "--match", &name]);
    let page = stdout(&output);
    assert!(output.status.success() && page.ends_with("# EOF\n"), "{page}");
    assert!(sample(&page, "neap_process_kept_bytes", &name).is_some_and(|kept| kept > 60.0 * MIB), "{page}");
    let file = neap.path("neap.prom");
    let output = neap.output(["exporter", "--match", &name, "--textfile", file.to_str().expect("UTF-8")]);
    assert!(output.status.success() && stdout(&output).is_empty());
    let text = fs::read_to_string(&file).expect("it is written");
    assert!(text.contains("# TYPE neap_process_page_faults_total counter\n") && !text.contains("# EOF"), "{text}");
    let refused = neap.output(["exporter", "--textfile", "/no/such/folder/neap.prom"]);
    assert_refused(&refused, 125, &["cannot write /no/such/folder/neap.prom", "hint: name a file in a folder"]);
}

/// Catches a page that only one of both formats' parsers reads, series for each small process, and processes that are in
/// no figure.
#[test]
fn small_processes_are_counted_together() {
    let neap = Neap::new();
    let Some((_keeper, name)) = keeper(&neap) else {
        return skip("small_processes_are_counted_together", "needs a C compiler");
    };
    let once =
        |arguments: &[&str]| stdout(&neap.output([&["exporter", "--once", "--budget", "0"], arguments].concat()));
    let value = |page: &str, metric: &str| -> f64 {
        let line = page.lines().find_map(|line| line.strip_prefix(metric)?.strip_prefix(' '));
        line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {metric}: {page}"))
    };
    let small = once(&["--match", &name, "--least", "1G"]);
    assert!(!small.contains(&format!("command=\"{name}\"")), "{small}");
    assert_eq!((value(&small, "neap_exporter_processes"), value(&small, "neap_exporter_small_processes")), (0.0, 1.0));
    assert!(value(&small, "neap_exporter_small_resident_bytes") > 60.0 * MIB, "{small}");
    let own = once(&["--match", &name]);
    assert_eq!((value(&own, "neap_exporter_processes"), value(&own, "neap_exporter_small_processes")), (1.0, 0.0));
    // Without a pattern: this process's child is above the limit, and a sleep below it.
    let sleeper = Running(Command::new("sleep").arg("1000").spawn().expect("sleep(1)"));
    let all = once(&[]);
    assert!(all.contains(&format!("command=\"{name}\"")), "{all}");
    assert!(!all.contains(&format!("pid=\"{}\"", sleeper.0.id())), "{all}");
    // With the budget 0 no list of the kernel was read that holds a process up.
    assert!(
        !all.contains("\nneap_process_proportional_bytes{") && !all.contains("\nneap_process_cause_info{"),
        "{all}"
    );
    reads_as_openmetrics(&neap, &own);
}

/// The parsers of both formats read the text.
fn reads_as_openmetrics(neap: &Neap, page: &str) {
    let file = neap.file("page", page, 0o600);
    let promtool = Command::new("sh").args(["-c", "promtool check metrics < \"$0\""]).arg(&file).output().expect("sh");
    // It lacks help texts of counters, whose names end in `_total` in its own format only.
    assert!(!stderr(&promtool).contains("parsing error"), "{}", stderr(&promtool));
    let Some(python) = python_with("prometheus-client", "prometheus_client.openmetrics.parser") else {
        return skip("reads_as_openmetrics", "needs python3-venv, and prometheus-client from PyPI");
    };
    let program = "import sys\nfrom prometheus_client.openmetrics import parser\n\
                   print(sum(1 for _ in parser.text_string_to_metric_families(open(sys.argv[1]).read())))";
    let parsed = Command::new(python).args(["-c", program]).arg(&file).output().expect("python3");
    let families: u32 = stdout(&parsed).trim().parse().unwrap_or(0);
    assert!(families > 20, "{}", stderr(&parsed));
}

/// A program with 160 MiB in OS pages of 4 KiB, shared with a child.
const LARGE: &str = "#include <string.h>\n#include <sys/mman.h>\n#include <unistd.h>\n\
    int main(void) { size_t size = 160 << 20;\n\
    char *p = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);\n\
    madvise(p, size, MADV_NOHUGEPAGE); memset(p, 1, size);\n\
    if (write(1, \"ready\\n\", 6) != 6) return 1; pause(); return 0; }\n";

/// Catches a large process whose mappings are locked while the kernel walks all its memory, and figures that are wrong
/// because it is read in another way.
#[test]
fn a_large_process_is_not_held_up() {
    let neap = Neap::new();
    let name = format!("large-by-test-{}", std::process::id());
    let Some(program) = compile(neap.dir.path(), &name, LARGE, &["-O0", "-w"]) else {
        return skip("a_large_process_is_not_held_up", "needs a C compiler");
    };
    let mut child = Command::new(program).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("it is a pipe")).read_line(&mut line).expect("it says that it is ready");
    let child = Running(child);
    let traced = |arguments: &[&str]| {
        let trace = neap.path("trace");
        let mut strace = Command::new("strace");
        strace.args(["-f", "-qq", "-s", "64", "-e", "trace=open,openat", "-o"]).arg(&trace);
        strace.arg(env!("CARGO_BIN_EXE_neap")).args(["exporter", "--once", "--match", &name]).args(arguments);
        let output = strace.output().ok()?;
        assert!(output.status.success(), "{}", stderr(&output));
        let opened = fs::read_to_string(trace).expect("a trace");
        Some((stdout(&output), opened.contains(&format!("/proc/{}/smaps", child.0.id()))))
    };
    let Some((page, has_locked)) = traced(&[]) else { return skip("a_large_process_is_not_held_up", "needs strace") };
    assert!(!has_locked);
    let Some((exact, has_locked)) = traced(&["--exact"]) else { return };
    assert!(has_locked);
    for (metric, unsure) in [
        ("neap_process_private_bytes", 0.0),
        ("neap_process_huge_page_bytes", 0.0),
        // Other processes that map the same libraries begin and end.
        ("neap_process_proportional_bytes", MIB),
    ] {
        let of = |page| sample(page, metric, &name);
        let (sliced, exact) = (of(&page), of(&exact));
        let near = sliced.zip(exact).is_some_and(|(sliced, exact)| (sliced - exact).abs() <= unsure);
        let is_denied = sliced.is_none() && !common::is_root() && metric.contains("proportional");
        assert!(near || is_denied, "{metric}: {sliced:?} {exact:?}");
    }
    let of_kind = |page| sample(page, "neap_process_account_bytes", "kind=\"anonymous\"");
    assert_eq!(of_kind(&page), of_kind(&exact));
    assert!(of_kind(&page).is_some_and(|bytes| bytes >= 160.0 * MIB), "{page}");
}

/// Catches a file of another name that is overwritten through a prepared link, a link or a mode that is lost, what is no
/// ordinary file replaced by one, and remedies that do not help.
#[test]
fn the_text_file_is_replaced_with_care() {
    let neap = Neap::new();
    let victim = neap.file("victim", "precious", 0o600);
    let file = neap.file("neap.prom", "old", 0o640);
    // The name that could be guessed: with the number of the process.
    let script = format!("ln -s {} {}.$$; exec \"$@\"", victim.display(), file.display());
    let of = |file: &Path| {
        let mut command = neap.command(["exporter", "--match", "^no such program$", "--textfile"]);
        command.arg(file);
        command
    };
    let guessed = of(&file);
    let mut shell = Command::new("sh");
    shell.args(["-c", &script, "sh"]).arg(guessed.get_program()).args(guessed.get_args());
    assert!(shell.status().is_ok_and(|status| status.success()));
    let is_written = || fs::read_to_string(&file).expect("it is there").contains("neap_exporter_processes 0\n");
    assert_eq!(fs::read_to_string(&victim).expect("it is there"), "precious");
    let mode = || fs::metadata(&file).expect("it is there").permissions().mode() & 0o777;
    assert!(is_written() && mode() == 0o640, "{:o}", mode());

    fs::write(&file, "old").expect("writable");
    let link = neap.path("link.prom");
    std::os::unix::fs::symlink("neap.prom", &link).expect("a link");
    assert!(of(&link).status().is_ok_and(|status| status.success()));
    assert!(is_written() && link.is_symlink() && mode() == 0o640);

    let pipe = neap.path("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().is_ok_and(|status| status.success()));
    assert_refused(&of(&pipe).output().expect("neap starts"), 125, &["it is not an ordinary file", "--once prints"]);
    let names = || fs::read_dir(neap.dir.path()).expect("a folder").count();
    let before = names();
    let small = of(&file);
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -f 0; exec \"$@\"", "sh"]).arg(small.get_program()).args(small.get_args());
    assert_refused(&shell.output().expect("sh"), 125, &["File too large", "ulimit -f"]);
    assert!(names() == before && is_written(), "the new one is left");
    if common::is_root() {
        let disk = neap.path("disk");
        fs::create_dir(&disk).expect("a folder");
        let fill = "dd if=/dev/zero of=$0/all bs=4k count=1 2>/dev/null";
        let script = format!("mount -t tmpfs -o size=4k none \"$0\" || exit 77; {fill}; exec \"$@\"");
        let full = of(&disk.join("neap.prom"));
        let mut shell = Command::new("unshare");
        shell.args(["-m", "sh", "-c", &script]).arg(&disk).arg(full.get_program()).args(full.get_args());
        let refused = shell.output().expect("unshare");
        if refused.status.code() == Some(77) || stderr(&refused).contains("unshare") {
            return skip("the_text_file_is_replaced_with_care, full disk", "mounts are denied");
        }
        assert_refused(&refused, 125, &["No space left", "make room"]);
    }
}

/// Catches errors without a remedy, and an exporter that cannot be ended.
#[test]
fn errors_and_the_end() {
    let neap = Neap::new();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    assert_refused(&neap.output(["exporter", "--listen", &address]), 125, &["cannot listen at", "choose another port"]);
    assert_refused(
        &neap.output(["exporter", "--listen", "nonsense"]),
        125,
        &["is not an address", "--listen 127.0.0.1:9842"],
    );
    assert_refused(&neap.output(["exporter", "--match", "("]), 125, &["not a regular expression"]);
    let (mut exporter, address) = serve(&neap, &["--match", "^no such program$"]);
    // A client that never asks must not keep it from ending.
    let _idle = TcpStream::connect(&address).expect("it listens");
    ends_in_time(&mut exporter);
}

/// Whether the exporter answers a request for its health within two seconds.
fn is_healthy(address: &str) -> bool {
    let mut text = String::new();
    let asked = TcpStream::connect(address).and_then(|mut stream| {
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        stream.write_all(b"GET /-/healthy HTTP/1.1\r\nHost: x\r\n\r\n")?;
        stream.read_to_string(&mut text)
    });
    asked.is_ok() && text.starts_with("HTTP/1.1 200 ") && text.ends_with("healthy\n")
}

/// A number in `/proc/PID/status`.
fn status(exporter: &Running, name: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{}/status", exporter.0.id())).expect("it runs");
    let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("it is there");
    line.trim_matches(|c: char| !c.is_ascii_digit()).parse().expect("a number")
}

/// Catches clients that keep the exporter from others: with a body that never comes, with answers that they do not read,
/// silent ones, and an endless head; or take its memory. And an answer that is lost as the request had more than was read.
#[test]
fn no_client_holds_up_another() {
    let neap = Neap::new();
    let (mut exporter, address) = serve(&neap, &["--match", "^no such program$"]);
    let threads = status(&exporter, "Threads:");
    let connect = || TcpStream::connect(&address).expect("it listens");
    let send = |bytes: &[u8]| {
        let mut stream = connect();
        // It may have been closed already.
        let _ = stream.write_all(bytes);
        stream
    };
    let mut clients: Vec<TcpStream> =
        (0..8).map(|_| send(b"GET /-/healthy HTTP/1.1\r\nContent-Length: 100000\r\n\r\n")).collect();
    assert!(is_healthy(&address), "bodies that do not come");
    let many = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n".repeat(1000);
    clients.extend((0..8).map(|_| send(&many)));
    assert!(is_healthy(&address), "answers that are not read");
    let mut endless = connect();
    endless.set_write_timeout(Some(Duration::from_millis(200))).expect("a limit");
    let head = [b"GET / HTTP/1.1\r\nX: ".to_vec(), vec![b'a'; 1 << 20]].concat();
    let sent = endless.write_all(&head);
    assert!(is_healthy(&address), "an endless head: {sent:?}");
    clients.extend((0..300).map(|_| connect()));
    assert!(is_healthy(&address), "silent clients");
    assert_eq!(status(&exporter, "Threads:"), threads);
    assert!(status(&exporter, "VmHWM:") < 64 << 10, "{} KiB", status(&exporter, "VmHWM:"));
    let mut first = String::new();
    send(&many).read_to_string(&mut first).expect("an answer, and the end");
    assert!(
        first.matches("HTTP/1.1 200 OK").count() == 1 && first.contains("\nneap_exporter_processes 0\n"),
        "{first}"
    );
    ends_in_time(&mut exporter);
}

/// Catches an exporter that is deaf for ever after a connection could not be accepted, or says so each time.
#[test]
fn accepting_is_tried_again() {
    let neap = Neap::new();
    let (mut exporter, address, mut errors) = serve_with(neap.command(["exporter", "--match", "^no such program$"]));
    let limit = |files| {
        let limit = libc::rlimit { rlim_cur: files, rlim_max: 1024 };
        // SAFETY: the structure is valid, and the last result is not asked for.
        let set =
            unsafe { libc::prlimit(exporter.0.id() as libc::pid_t, libc::RLIMIT_NOFILE, &limit, std::ptr::null_mut()) };
        assert_eq!(set, 0);
    };
    limit(3);
    let mut early = TcpStream::connect(&address).expect("the system accepts it");
    early.set_read_timeout(Some(LONG)).expect("a limit");
    let mut line = String::new();
    errors.read_line(&mut line).expect("it says so");
    assert_eq!(line, "neap: cannot accept a connection: Too many open files; it is tried again\n");
    std::thread::sleep(Duration::from_millis(300));
    limit(1024);
    early.write_all(b"GET /-/healthy HTTP/1.1\r\n\r\n").expect("it is open");
    let mut text = String::new();
    early.read_to_string(&mut text).expect("it answers");
    assert!(text.ends_with("healthy\n") && is_healthy(&address), "{text}");
    ends_in_time(&mut exporter);
    line.clear();
    assert_eq!(errors.read_line(&mut line).ok(), Some(0), "{line}");
}

/// Catches clients that take the descriptors with which processes are read.
#[test]
fn few_descriptors_do() {
    let neap = Neap::new();
    let command = neap.command(["exporter", "--match", "^sh$|neap"]);
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -n 20; exec \"$@\"", "sh"]).arg(command.get_program()).args(command.get_args());
    let (_exporter, address, _errors) = serve_with(limited);
    let _silent: Vec<TcpStream> = (0..30).map(|_| TcpStream::connect(&address).expect("it listens")).collect();
    let (_, page) = get(&address, "/metrics", "");
    assert!(page.contains("neap_process_resident_bytes{") && is_healthy(&address), "{page}");
}

/// Decodes a request of OTLP with OpenTelemetry's own messages.
const DECODE: &str = "import sys\n\
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest as R\n\
    r = R(); r.ParseFromString(open(sys.argv[1], 'rb').read())\n\
    for m in r.resource_metrics[0].scope_metrics[0].metrics:\n\
    \x20   for p in (m.sum if m.HasField('sum') else m.gauge).data_points:\n\
    \x20       print(m.name, m.unit, p.as_int, dict((a.key, a.value.string_value) for a in p.attributes).get('command'))\n";

/// A Python with a package from PyPI that has this module: made once, and kept.
fn python_with(package: &str, module: &str) -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(package);
    let python = folder.join("bin/python");
    let has = || Command::new(&python).args(["-c", &format!("import {module}")]).stderr(Stdio::null()).status();
    if has().is_ok_and(|status| status.success()) {
        return Some(python);
    }
    let run = |command: &mut Command| {
        command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    };
    let made = run(Command::new("python3").args(["-m", "venv"]).arg(&folder))
        && run(Command::new(&python).args(["-m", "pip", "install", "-q", package]));
    made.then_some(python)
}

/// Catches requests that a collector does not understand, and an exporter that ends with its collector.
#[test]
fn otlp_is_sent() {
    let neap = Neap::new();
    let Some((_keeper, name)) = keeper(&neap) else { return skip("otlp_is_sent", "needs a C compiler") };
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/v1/metrics", listener.local_addr().expect("an address"));
    let mut command = neap.command(["exporter", "--otlp", &url, "--interval", "1s", "--match", &name]);
    let _exporter = Running(command.stderr(Stdio::null()).spawn().expect("neap starts"));
    let receive = || {
        let (mut stream, _) = listener.accept().expect("it connects");
        stream.set_read_timeout(Some(LONG)).expect("a limit");
        let mut all = Vec::new();
        let mut part = [0; 4096];
        loop {
            let head = all.windows(4).position(|bytes| bytes == b"\r\n\r\n");
            if let Some(end) = head {
                let text = String::from_utf8_lossy(&all[..end]).to_lowercase();
                let length = text.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
                let length = length.expect("it says its length");
                if all.len() >= end + 4 + length {
                    assert!(text.starts_with("post /v1/metrics ") && text.contains("application/x-protobuf"), "{text}");
                    return (stream, all.split_off(end + 4));
                }
            }
            let count = stream.read(&mut part).expect("it sends");
            assert!(count > 0, "it ended");
            all.extend_from_slice(&part[..count]);
        }
    };
    let (mut stream, _) = receive();
    // A collector that is out of order.
    stream.write_all(b"HTTP/1.1 503 Out\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").expect("it reads");
    drop(stream);
    let (mut stream, body) = receive();
    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").expect("it reads");
    let has = |words: &str| body.windows(words.len()).any(|bytes| bytes == words.as_bytes());
    assert!(has("neap_process_resident_bytes") && has(&name) && has("service.name"));
    let file = neap.file("request", &body, 0o600);
    let Some(python) = python_with("opentelemetry-proto", "opentelemetry.proto") else {
        return skip("otlp_is_sent, decoded", "needs python3-venv, and opentelemetry-proto from PyPI");
    };
    let decoded = Command::new(python).args(["-c", DECODE]).arg(&file).output().expect("python3");
    let text = stdout(&decoded);
    let line = text.lines().find(|line| line.starts_with("neap_process_resident_bytes By "));
    assert!(line.is_some_and(|line| line.ends_with(&name)), "{text}");
}

/// Catches an address of a collector that cannot work.
#[test]
fn otlp_needs_http() {
    let neap = Neap::new();
    assert_refused(&neap.output(["exporter", "--otlp", "https://x/"]), 125, &["is not an http URL", "TLS"]);
}
