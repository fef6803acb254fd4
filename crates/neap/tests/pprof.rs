//! The example that serves profiles by HTTP, read by `go tool pprof` as it reads Go programs.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// The example, which runs until it is dropped.
struct Server {
    child: Child,
    address: SocketAddr,
}

/// Builds the example: a test alone does not.
fn example() -> PathBuf {
    // TARGET/PROFILE/deps/TEST
    let own = std::env::current_exe().unwrap();
    let folder = own.ancestors().nth(2).unwrap();
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.args(["build", "-q", "-p", "neap", "--example", "pprof", "--target-dir"]).arg(folder.parent().unwrap());
    // With the names of inlined functions, however the tests are built.
    build.env("CARGO_PROFILE_DEV_DEBUG", "full").env("CARGO_PROFILE_RELEASE_DEBUG", "full");
    if folder.ends_with("release") {
        build.arg("--release");
    }
    assert!(build.current_dir(env!("CARGO_MANIFEST_DIR")).status().unwrap().success());
    folder.join("examples/pprof")
}

impl Server {
    fn start() -> Self {
        let mut command = Command::new(example());
        // It says there which clients went away.
        command.arg("127.0.0.1:0").stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on ").unwrap().parse().unwrap();
        Server { child, address }
    }

    fn ask(&self, path: &str) -> Vec<u8> {
        let mut client = TcpStream::connect(self.address).unwrap();
        write!(client, "GET {path} HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).unwrap();
        answer
    }

    /// What `go tool pprof` says; `None` where there is no Go.
    fn top(&self, path: &str) -> Option<String> {
        let url = format!("http://{}{path}", self.address);
        let home = std::env::temp_dir().join(format!("neap-pprof-{}", std::process::id()));
        let go = Command::new("go")
            .args(["tool", "pprof", "-top", "-nodecount=60", &url])
            .env("PPROF_TMPDIR", &home)
            .output();
        let Ok(done) = go else {
            println!("SKIPPED: there is no Go");
            return None;
        };
        let _ = std::fs::remove_dir_all(&home);
        let text = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(done.status.success(), "{text}{}", String::from_utf8_lossy(&done.stderr));
        Some(text)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Catches profiles that Go's tool cannot read, or that name other code than that which holds or allocated memory; and
/// a server that ends when a client goes away.
#[test]
fn served_profiles() {
    let server = Server::start();
    for _ in 0..10 {
        server.ask("/keep");
        for _ in 0..5 {
            server.ask("/");
        }
    }
    for _ in 0..20 {
        // Clients that do not wait for the answer.
        let mut client = TcpStream::connect(server.address).unwrap();
        client.write_all(b"GET /debug/pprof/heap HTTP/1.0\r\n\r\n").unwrap();
    }
    let answer = server.ask("/debug/pprof/heap");
    let text = String::from_utf8_lossy(&answer);
    assert!(text.starts_with("HTTP/1.0 200 OK\r\n") && text.contains("inuse_space"), "{text}");
    for (path, kind, least, most) in
        [("/debug/pprof/heap", "inuse_space", 70.0, 140.0), ("/debug/pprof/allocs", "alloc_space", 480.0, 720.0)]
    {
        let Some(top) = server.top(path) else { return };
        assert!(top.contains(&format!("Type: {kind}")), "{top}");
        let line = top
            .lines()
            .find(|line| line.ends_with("handle_request") || line.contains("handle_request "))
            .unwrap_or_else(|| panic!("{top}"));
        // Cumulative: the functions of the library that are called from there count.
        let megabytes = line.split_whitespace().nth(3).and_then(|text| text.strip_suffix("MB")).unwrap();
        let megabytes: f64 = megabytes.parse().unwrap();
        assert!((least..most).contains(&megabytes), "{top}");
        assert!(!top.contains("_watched") && !top.contains("__rust_alloc"), "{top}");
    }
}
