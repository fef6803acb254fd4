//! A server that says where its memory is: `/debug/pprof/heap` and `/debug/pprof/allocs`, as Go programs have them.
//!
//! ```text
//! cargo run --release -p neap --example pprof -- 127.0.0.1:6060
//! go tool pprof -top http://127.0.0.1:6060/debug/pprof/heap
//! neap profile show <(curl -s http://127.0.0.1:6060/debug/pprof/heap)
//! ```
//!
//! Each other path is a request of its work: it keeps what it makes for `/keep`, and drops it for all others.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use neap::profile::{self, Kind};

#[global_allocator]
static ALLOCATOR: neap::Neap = neap::Neap;

/// Longest time that a client may take for a part of its request, or to take a part of the answer.
const PATIENCE: Duration = Duration::from_secs(10);

fn main() -> io::Result<()> {
    // Samples are kept from here on. This costs about a percent of the time of allocation.
    profile::start(0).map_err(io::Error::other)?;
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:6060".into());
    let listener = TcpListener::bind(address)?;
    println!("listening on {}", listener.local_addr()?);
    let mut cache = Vec::new();
    for client in listener.incoming() {
        // A client that goes away, or sends something else, is no reason to end.
        if let Err(error) = client.and_then(|client| answer(client, &mut cache)) {
            eprintln!("a client: {error}");
        }
    }
    Ok(())
}

fn answer(mut client: TcpStream, cache: &mut Vec<Vec<u8>>) -> io::Result<()> {
    client.set_read_timeout(Some(PATIENCE))?;
    client.set_write_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    BufReader::new(&client).read_line(&mut line)?;
    let path = line.split(' ').nth(1).unwrap_or("/");
    match path.split('?').next() {
        Some("/debug/pprof/heap") => serve(&mut client, Kind::Heap),
        Some("/debug/pprof/allocs") => serve(&mut client, Kind::Allocs),
        Some("/keep") => {
            cache.extend(handle_request());
            text(&mut client, "kept\n")
        }
        _ => {
            drop(handle_request());
            text(&mut client, "done\n")
        }
    }
}

/// Answers with a profile, which is sent as it is written: the end of the connection is its end.
fn serve(client: &mut TcpStream, kind: Kind) -> io::Result<()> {
    client.write_all(b"HTTP/1.0 200 OK\r\nContent-Type: application/octet-stream\r\n\r\n")?;
    let mut sent = Ok(());
    let written = profile::write(kind, |piece| {
        sent = client.write_all(piece);
        sent.is_ok()
    });
    sent?;
    written.map_err(io::Error::other)
}

fn text(client: &mut TcpStream, text: &str) -> io::Result<()> {
    write!(client, "HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n{text}", text.len())
}

/// The work of a request: 10 MiB in blocks of 10 KiB.
#[inline(never)]
fn handle_request() -> Vec<Vec<u8>> {
    (0..1024).map(|_| vec![1; 10 << 10]).collect()
}
