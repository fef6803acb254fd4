//! What `contrib/` has for users of `neap exporter`: rules, dashboard and unit, against the exporter's own output, a Prometheus
//! server, promtool and systemd.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{Neap, Running, skip, stdout};
use serde_json::Value;

const LONG: Duration = Duration::from_secs(60);

fn contrib(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib").join(name)
}

fn read(name: &str) -> String {
    fs::read_to_string(contrib(name)).expect("it is there")
}

/// The queries of the dashboard, with its variables replaced.
fn queries() -> Vec<String> {
    let dashboard: Value = serde_json::from_str(&read("neap-dashboard.json")).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels").iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().expect("targets"));
    let query = |target: &Value| {
        let text = target["expr"].as_str().expect("a query").replace("$__rate_interval", "1m");
        text.replace("$job", "neap").replace("$instance", ".*").replace("$command", ".*")
    };
    let queries: Vec<String> = targets.map(query).collect();
    assert!(queries.len() >= 10 && queries.iter().all(|query| !query.contains('$')), "{queries:#?}");
    queries
}

/// The names of neap's metrics in a text.
fn names(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let is_metric = |word: &&str| ["neap_process_", "neap_exporter_"].iter().any(|start| word.starts_with(start));
    // The exporter's job and unit have names with a dash.
    words.filter(is_metric).map(str::to_owned).collect()
}

/// Catches metrics and kinds in the rules and the dashboard that the exporter does not have.
#[test]
fn all_metrics_exist() {
    let neap = Neap::new();
    // On neap, as some metrics are of such processes only.
    // It gives memory back, after it has had some.
    let program = "my @a = map {\"x$_\"} 1..200000; @a = (); sleep 60; # contrib";
    let mut command = neap.command(["run", "--", "perl", "-e", program]);
    let _on_neap = Running(command.spawn().expect("it starts"));
    let until = Instant::now() + LONG;
    let page = loop {
        let page = stdout(&neap.output(["exporter", "--once", "--match", "^perl -e my .*# contrib$"]));
        if page.contains("\nneap_process_purge_calls_total{") {
            break page;
        }
        assert!(Instant::now() < until, "{page}");
        std::thread::sleep(Duration::from_millis(100));
    };
    let names_of = |line: &str| line.split(['{', ' ']).next().map(str::to_owned);
    let there: BTreeSet<String> = page.lines().filter(|line| !line.starts_with('#')).filter_map(names_of).collect();
    for file in ["neap-dashboard.json", "neap-alerts.yml"] {
        let wanted = names(&read(file));
        assert!(wanted.len() >= 4, "{file}: {wanted:?}");
        let missing: Vec<&String> = wanted.difference(&there).collect();
        assert!(missing.is_empty(), "{file} has {missing:?}; the exporter has {there:#?}");
    }
    // Each metric in the document is one, and the other way round.
    let documented = names(&fs::read_to_string(contrib("../docs/exporter.md")).expect("it is there"));
    let own: BTreeSet<String> = there.into_iter().filter(|name| name != "neap_build_info").collect();
    assert_eq!(documented, own, "docs/exporter.md, and what the exporter has");
}

/// Catches rules that promtool does not read.
#[test]
fn promtool_reads_the_rules() {
    let checked = Command::new("promtool").args(["check", "rules"]).arg(contrib("neap-alerts.yml")).output();
    let Ok(checked) = checked else {
        return skip("promtool_reads_the_rules", "needs promtool: prometheus (Debian)");
    };
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
}

/// The answer of a server.
fn get(address: &str, path: &str) -> Value {
    let Ok(mut stream) = TcpStream::connect(address) else { return Value::Null };
    stream.set_read_timeout(Some(LONG)).expect("a limit");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("it reads");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("it answers");
    // The answer may come in chunks: then lines with lengths are between.
    let (head, body) = text.split_once("\r\n\r\n").expect("a head");
    let body = match head.to_lowercase().contains("transfer-encoding: chunked") {
        true => body.split("\r\n").skip(1).step_by(2).collect::<String>(),
        false => body.to_owned(),
    };
    serde_json::from_str(&body).unwrap_or(Value::Null)
}

/// Catches queries of the dashboard and conditions of alerts that a server refuses: a rate of what is no counter, a
/// variable in the wrong place, two sides that never match.
#[test]
fn a_server_runs_all_queries() {
    if !Path::new("/usr/bin/prometheus").exists() {
        return skip("a_server_runs_all_queries", "needs prometheus (Debian)");
    }
    let neap = Neap::new();
    let mut command = neap.command(["exporter", "--listen", "127.0.0.1:0", "--match", "^sleep 61$"]);
    let mut child = command.stderr(Stdio::piped()).spawn().expect("neap starts");
    let mut line = String::new();
    BufReader::new(child.stderr.take().expect("it is a pipe")).read_line(&mut line).expect("a line");
    let _exporter = Running(child);
    let target = line.trim().strip_prefix("neap: metrics at http://").and_then(|rest| rest.strip_suffix("/metrics"));
    let _sleeper = Running(Command::new("sleep").arg("61").spawn().expect("sleep(1)"));
    let configuration = format!(
        "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: ['{}']\nscrape_configs:\n  - job_name: neap\n    \
         static_configs: [{{targets: ['{}']}}]\n",
        contrib("neap-alerts.yml").display(),
        target.expect("an address")
    );
    let file = neap.file("prometheus.yml", configuration, 0o600);
    let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port");
    let address = free.to_string();
    let server = Command::new("/usr/bin/prometheus")
        .arg(format!("--config.file={}", file.display()))
        .arg(format!("--storage.tsdb.path={}", neap.path("data").display()))
        .arg(format!("--web.listen-address={address}"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let _server = Running(server.expect("prometheus starts"));
    let until = Instant::now() + LONG;
    let ask = |query: &str| {
        let encoded: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
        get(&address, &format!("/api/v1/query?query={encoded}"))
    };
    while ask("neap_process_account_age_seconds")["data"]["result"].as_array().is_none_or(Vec::is_empty) {
        assert!(Instant::now() < until, "nothing is stored");
        std::thread::sleep(Duration::from_millis(200));
    }
    for query in queries() {
        let answer = ask(&query);
        assert_eq!(answer["status"], "success", "{query}: {answer:#}");
        // Nothing is in a container here, or swaps; a rate wants two samples.
        let may_be_empty = ["container!=", "> 0", "rate("].iter().any(|word| query.contains(word));
        let found = answer["data"]["result"].as_array().expect("results").len();
        assert!(found > 0 || may_be_empty, "{query}: {answer:#}");
    }
    let rules = loop {
        let answer = get(&address, "/api/v1/rules");
        let rules = answer["data"]["groups"][0]["rules"].as_array().cloned().unwrap_or_default();
        if !rules.is_empty() && rules.iter().all(|rule| rule["health"] != "unknown") {
            break rules;
        }
        assert!(Instant::now() < until, "{answer:#}");
        std::thread::sleep(Duration::from_millis(200));
    };
    assert!(rules.len() >= 5 && rules.iter().all(|rule| rule["health"] == "ok"), "{rules:#?}");
}

/// Catches a unit that systemd does not read, or reads in part.
#[test]
fn systemd_reads_the_unit() {
    let neap = Neap::new();
    let program = neap.command([""]).get_program().to_owned();
    let program = program.to_str().expect("a path").to_owned();
    // The verification wants the program to be there.
    let unit = read("neap-exporter.service");
    assert!(unit.contains("ExecStart=/usr/local/bin/neap exporter "), "{unit}");
    let file = neap.file("neap-exporter.service", unit.replace("/usr/local/bin/neap", &program), 0o644);
    let verified = Command::new("systemd-analyze").arg("verify").arg(&file).output();
    let Ok(verified) = verified else {
        return skip("systemd_reads_the_unit", "needs systemd-analyze: systemd (Debian)");
    };
    let said = String::from_utf8_lossy(&verified.stderr).into_owned();
    let about_it: Vec<&str> = said.lines().filter(|line| line.contains("neap-exporter")).collect();
    assert!(verified.status.success() && about_it.is_empty(), "{}: {said}", verified.status);
    // That it does notice: a line that it does not know.
    let wrong = fs::read_to_string(&file).expect("it is there").replace("ProtectHome=", "ProtectHouse=");
    let file = neap.file("neap-wrong.service", wrong, 0o644);
    let verified = Command::new("systemd-analyze").arg("verify").arg(&file).output().expect("it ran before");
    assert!(String::from_utf8_lossy(&verified.stderr).contains("ProtectHouse"), "a wrong unit passes");
}
