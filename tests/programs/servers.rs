//! Servers: each is started in the foreground, used by clients, checked, and asked to end.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use neap_tests::sys::{self, Signal};
use neap_tests::{Case, Daemon, Outcome, Run, Stop, is_root, program};

use crate::{Workspace, answers, case, free_port, no_leftovers};

/// Time that a server may take to start or to end.
const PATIENCE: Duration = Duration::from_secs(120);

pub fn cases() -> Vec<Case> {
    vec![
        case("redis", "a single-threaded server with background threads and forked snapshots", redis),
        case("nginx", "workers of a master process, reload, and gzip buffers", nginx),
        case("postgres", "a database with many processes, as another user", postgres),
        case("sshd", "a server with privilege separation and a seccomp filter", sshd),
    ]
}

fn redis() -> Outcome {
    let (server, bench, cli) = (program("redis-server")?, program("redis-benchmark")?, program("redis-cli")?);
    let space = Workspace::new()?;
    let port = free_port()?;
    let ask = |args: &[&str]| Run::new(&cli).args(["-p", &port.to_string()]).args(args).run()?.success();
    let start = || {
        let mut daemon = Run::new(&server)
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--daemonize", "no", "--dir"])
            .arg(space.path())
            .daemon()?;
        // It listens before it has read the snapshot.
        daemon.wait_until(PATIENCE, || answers(port) && ask(&["ping"]).is_ok_and(|d| d.stdout.contains("PONG")))?;
        Ok::<_, Stop>(daemon)
    };
    let daemon = start()?;
    daemon.check_preloaded()?;
    Run::new(bench)
        .args(["-p", &port.to_string(), "-n", "20000", "-c", "20", "-r", "5000", "-d", "300", "-q"])
        .args(["-t", "set,get,incr,lpush,lrange_100,hset,zadd,mset"])
        .run()?
        .success()?
        .contains("MSET")?
        .no_complaint()?;
    let value = "v".repeat(5000);
    ask(&["set", "kept", &value])?.contains("OK")?;
    let keys = ask(&["dbsize"])?.stdout;
    ask(&["save"])?.contains("OK")?; // then once more in a forked child
    ask(&["bgsave"])?.contains("started")?;
    let started = Instant::now();
    loop {
        let state = ask(&["info", "persistence"])?;
        if state.stdout.contains("rdb_bgsave_in_progress:0") {
            state.contains("rdb_last_bgsave_status:ok")?;
            break;
        }
        if started.elapsed() > PATIENCE {
            return Err(state.fail("the snapshot does not end"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    ask(&["flushall", "async"])?.contains("OK")?;
    ask(&["memory", "purge"])?;
    daemon.stop(Signal::TERM, PATIENCE)?.no_complaint()?;
    let daemon = start()?; // the snapshot is whole
    if ask(&["get", "kept"])?.stdout.trim() != value || ask(&["dbsize"])?.stdout != keys {
        return Err(daemon.fail("the snapshot does not hold what was stored"));
    }
    daemon.stop(Signal::TERM, PATIENCE)?.no_complaint()?;
    no_leftovers(space.path())
}

fn nginx() -> Outcome {
    let (server, curl) = (program("/usr/sbin/nginx")?, program("curl")?);
    let space = Workspace::new()?;
    let (port, dir) = (free_port()?, space.path().display().to_string());
    let page: String = (0..20000).map(|i| format!("<p>line {i}</p>\n")).collect();
    space.write("www/page.html", &page)?;
    let user = if is_root() { "user root;" } else { "" };
    let conf = space.write(
        "nginx.conf",
        &format!(
            "{user} daemon off; worker_processes 2; pid {dir}/pid; error_log stderr warn; events {{ }}\n\
             http {{ access_log off; gzip on; gzip_types text/html; gzip_min_length 100;\n\
             client_body_temp_path {dir}/t1; proxy_temp_path {dir}/t2; fastcgi_temp_path {dir}/t3;\n\
             uwsgi_temp_path {dir}/t4; scgi_temp_path {dir}/t5; types {{ text/html html; }}\n\
             server {{ listen 127.0.0.1:{port}; root {dir}/www;\n\
             location /again/ {{ proxy_pass http://127.0.0.1:{port}/; }} }} }}\n"
        ),
    )?;
    let mut daemon = Run::new(server).arg("-p").arg(&dir).arg("-e").arg("stderr").arg("-c").arg(&conf).daemon()?;
    daemon.wait_until(PATIENCE, || answers(port))?;
    daemon.check_preloaded()?;
    let fetch = |path: &str, flag: &str| {
        let url = format!("http://127.0.0.1:{port}/{path}");
        Ok::<_, Stop>(Run::new(&curl).args(["-sS", flag, &url]).run()?.success()?.no_complaint()?.stdout)
    };
    let check = |daemon: &Daemon| {
        for path in ["page.html", "again/page.html"] {
            for flag in ["--fail", "--compressed"] {
                if fetch(path, flag)? != page {
                    return Err(daemon.fail(&format!("{path} with {flag} comes out wrong")));
                }
            }
        }
        Ok(())
    };
    check(&daemon)?;
    if let Ok(ab) = program("ab") {
        let url = format!("http://127.0.0.1:{port}/again/page.html");
        Run::new(ab)
            .args(["-q", "-n", "2000", "-c", "16", "-H", "Accept-Encoding: gzip", &url])
            .run()?
            .success()?
            .contains("Complete requests:      2000")?
            .contains("Failed requests:        0")?;
    }
    // New workers appear once the old ones have ended.
    let workers = |daemon: &Daemon| {
        let list = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", daemon.pid())).unwrap_or_default();
        list.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let old = workers(&daemon);
    sys::kill(daemon.pid(), Signal::HUP)?;
    let started = Instant::now();
    loop {
        let now = workers(&daemon);
        if now.len() == old.len() && !now.iter().any(|worker| old.contains(worker)) {
            break;
        }
        if started.elapsed() > PATIENCE {
            return Err(daemon.fail(&format!("workers {old:?} before the reload, {now:?} after")));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    check(&daemon)?;
    daemon.stop(Signal::QUIT, PATIENCE)?.no_complaint()?;
    no_leftovers(space.path())
}

/// Folder of PostgreSQL's programs, the newest version that Debian installed.
fn postgres_bin() -> Result<PathBuf, Stop> {
    let mut found: Vec<PathBuf> = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path().join("bin"))
        .filter(|bin| bin.join("initdb").exists())
        .collect();
    found.sort();
    let skip = || Stop::Skip("PostgreSQL is not installed (tests/setup.sh installs it)".into());
    found.pop().ok_or_else(skip)
}

/// PostgreSQL refuses to run as root: `program` as its own user then.
fn as_postgres(program: &Path, library: &Option<PathBuf>) -> Run {
    let run = if is_root() {
        Run::new("setpriv").args(["--reuid=postgres", "--regid=postgres", "--clear-groups", "--"]).arg(program)
    } else {
        Run::new(program)
    };
    run.preload(library.clone()).timeout(Duration::from_secs(120))
}

fn postgres() -> Outcome {
    let bin = postgres_bin()?;
    let space = Workspace::new()?;
    let library = space.public_library()?;
    let home = space.file("home");
    std::fs::create_dir(&home)?;
    if is_root() {
        program("setpriv")?;
        Run::new("chown").arg("postgres").arg(&home).plain().run()?.success()?;
    }
    let (data, port) = (home.join("data"), free_port()?.to_string());
    let run = |name: &str, args: &[&str]| {
        let run = as_postgres(&bin.join(name), &library).dir(&home).args(args);
        run.env("PGHOST", &home).env("PGPORT", &port).env("PGUSER", "postgres").env("HOME", &home)
    };
    let finish = |name: &str, args: &[&str]| run(name, args).run()?.success()?.no_complaint();
    let data_text = data.display().to_string();
    finish("initdb", &["-D", &data_text, "--no-sync", "-A", "trust", "-U", "postgres", "--locale=C"])?;
    let sockets = home.display().to_string();
    let mut daemon = run("postgres", &["-D", &data_text, "-p", &port, "-k", &sockets, "-h", "", "-F"]).daemon()?;
    let socket = home.join(format!(".s.PGSQL.{port}"));
    daemon.wait_until(PATIENCE, || {
        socket.exists() && run("psql", &["-c", "select 1", "postgres"]).run().is_ok_and(|d| d.status.success())
    })?;
    daemon.check_preloaded()?;
    finish("pgbench", &["-i", "-q", "-s", "2", "postgres"])?;
    finish("pgbench", &["-c", "6", "-j", "2", "-T", "4", "postgres"])?.contains("number of failed transactions: 0")?;
    let query = "select count(*), (select sum(abalance) from pgbench_accounts) = (select sum(delta) from pgbench_history), \
                 (select sum(bbalance) from pgbench_branches) = (select sum(tbalance) from pgbench_tellers) from pgbench_accounts";
    finish("psql", &["-At", "-c", query, "postgres"])?.contains("200000|t|t")?;
    let big = "select sum(length(s)) from (select string_agg(md5(i::text), ',' order by md5(i::text)) s \
               from generate_series(1, 200000) i group by i % 10) t";
    finish("psql", &["-At", "-c", big, "postgres"])?.contains("6599990")?;
    daemon.stop(Signal::INT, PATIENCE)?.no_complaint()?;
    no_leftovers(&home)
}

fn sshd() -> Outcome {
    let (server, client, keygen) = (program("/usr/sbin/sshd")?, program("ssh")?, program("ssh-keygen")?);
    let space = Workspace::new()?;
    let library = space.public_library()?;
    let port = free_port()?;
    for name in ["host", "user"] {
        Run::new(&keygen)
            .args(["-q", "-t", "ed25519", "-N", "", "-f"])
            .arg(space.file(name))
            .run()?
            .success()?
            .no_complaint()?;
    }
    // The folder for the unprivileged process; the package makes it at boot.
    let separation = Path::new("/run/sshd");
    let made = is_root() && !separation.exists() && std::fs::create_dir(separation).is_ok();
    let dir = space.path().display();
    let conf = space.write(
        "sshd_config",
        &format!(
            "ListenAddress 127.0.0.1:{port}\nHostKey {dir}/host\nAuthorizedKeysFile {dir}/user.pub\nPidFile none\n\
             StrictModes no\nUsePAM no\nPermitRootLogin yes\nPasswordAuthentication no\n"
        ),
    )?;
    let mut daemon = Run::new(server).arg("-D").arg("-e").arg("-f").arg(&conf).preload(library).daemon()?;
    let outcome = daemon.wait_until(PATIENCE, || answers(port)).and_then(|()| {
        daemon.check_preloaded()?;
        for round in 0..4 {
            let done = Run::new(&client)
                .args(["-F", "none", "-i", &format!("{dir}/user"), "-p", &port.to_string()])
                .args(["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"])
                .args(["-o", "BatchMode=yes", "127.0.0.1"])
                .arg(format!("echo from afar $((40 + {round})); head -c 300000 /dev/zero | wc -c"))
                .run()?;
            if !done.status.success() {
                return Err(Stop::Fail(format!("{:?}\n{:?}", done.fail("ssh failed"), daemon.fail("the server said"))));
            }
            done.contains(&format!("from afar {}", 40 + round))?.contains("300000")?.no_complaint()?;
        }
        Ok(())
    });
    if made {
        let _ = std::fs::remove_dir(separation);
    }
    outcome?;
    daemon.stop(Signal::TERM, PATIENCE)?.no_complaint()?;
    no_leftovers(space.path())
}
