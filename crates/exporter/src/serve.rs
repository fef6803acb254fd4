//! HTTP: `/metrics`, `/-/healthy`, and a page that names them.

use crate::http::{Maker, Server};
use crate::metrics;
use crate::text::Format;
use neap_collect::{Background, Shared};
use neap_launch::error::{Error, system_message, tell};
use neap_launch::{signals, sys};
use std::io::{self, ErrorKind, Write};
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// Least time between two readings of light figures, and between two pages of one format, for any number of requests.
const FRESH: Duration = Duration::from_millis(500);

/// Serves until a signal comes.
pub fn run(address: &str, shared: &Shared) -> Result<u8, Error> {
    let files = sys::raise_open_files();
    let listener = listen(address)?;
    let bound = listener.local_addr().map_or_else(|_| address.to_owned(), |bound| bound.to_string());
    shared.look()?;
    // Before the threads start, because they inherit the mask: only this one gets signals.
    let inherited = signals::block();
    let failed = |what: &str, error: &io::Error| Error::failed(format!("cannot {what}: {}", system_message(error)));
    let no_thread = |error| failed("start a thread", &error).remedy("raise the limit of processes: ulimit -u");
    let background = Background::start(shared).map_err(no_thread)?;
    let maker = start_maker(shared).map_err(no_thread)?;
    let mut server = Server::new(listener, maker, files).map_err(|error| failed("serve", &error))?;
    tell(format_args!("neap: metrics at http://{bound}/metrics"));
    while !signals::asked_to_end(Duration::ZERO) {
        server.round().map_err(|error| failed("serve", &error))?;
    }
    drop(background);
    inherited.release();
    Ok(0)
}

/// Starts the thread that makes pages, because reading processes may take long and must not delay other clients.
fn start_maker(shared: &Shared) -> io::Result<Maker> {
    let (asks, asked) = mpsc::channel();
    let (made, pages) = mpsc::channel();
    let (bell, mut ring) = UnixStream::pair()?;
    let mut maker = Pages { shared: shared.clone(), scrapes: 0, looked: None, made: Vec::new() };
    let work = move || {
        for (number, format) in asked {
            if made.send((number, maker.page(format))).is_err() || ring.write_all(&[1]).is_err() {
                return;
            }
        }
    };
    thread::Builder::new().name("pages".to_owned()).spawn(work)?;
    Ok(Maker { asks, pages, bell })
}

/// Pages of metrics.
struct Pages {
    shared: Shared,
    scrapes: u64,
    /// When light figures were read.
    looked: Option<Instant>,
    /// Pages made since then.
    made: Vec<(Format, Arc<str>)>,
}

impl Pages {
    fn page(&mut self, format: Format) -> Arc<str> {
        self.scrapes += 1;
        if self.looked.is_none_or(|at| at.elapsed() >= FRESH) {
            // If /proc cannot be listed, the page has the last figures.
            if let Err(error) = self.shared.look() {
                error.report();
            }
            self.looked = Some(Instant::now());
            self.made.clear();
        }
        if let Some((_, page)) = self.made.iter().find(|(of, _)| *of == format) {
            return Arc::clone(page);
        }
        let page: Arc<str> = metrics::page(&self.shared.lock(), format, self.scrapes).into();
        self.made.push((format, Arc::clone(&page)));
        page
    }
}

/// The address to listen at.
fn listen(address: &str) -> Result<TcpListener, Error> {
    let full = if address.starts_with(':') { format!("[::]{address}") } else { address.to_owned() };
    let resolved: Vec<SocketAddr> = full.to_socket_addrs().map(Iterator::collect).unwrap_or_default();
    if resolved.is_empty() {
        return Err(Error::failed(format!("`{address}` is not an address to listen at"))
            .remedy("--listen 127.0.0.1:9842, or --listen :9842 for all addresses"));
    }
    let bound = match TcpListener::bind(&resolved[..]) {
        // The system has no IPv6.
        Err(error) if address.starts_with(':') && error.kind() != ErrorKind::AddrInUse => {
            TcpListener::bind(format!("0.0.0.0{address}")).map_err(|_| error)
        }
        other => other,
    };
    bound.map_err(|error| refused(address, &error))
}

fn refused(address: &str, error: &io::Error) -> Error {
    let port = address.rsplit(':').next().unwrap_or_default();
    let cause = Error::failed(format!("cannot listen at {address}: {}", system_message(error)));
    match error.kind() {
        ErrorKind::AddrInUse => cause.remedy(format!(
            "choose another port with --listen; ss -ltnp 'sport = :{port}' shows which process has this one"
        )),
        ErrorKind::PermissionDenied => cause.remedy("choose a port from 1024 on with --listen, or run neap as root"),
        ErrorKind::AddrNotAvailable => cause.remedy("--listen takes an address of this machine: ip addr lists them"),
        _ => cause.remedy("--listen 127.0.0.1:9842, or --listen :9842 for all addresses"),
    }
}
