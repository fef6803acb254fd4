//! HTTP: `/metrics`, `/-/healthy`, and a page that names them.

use crate::metrics;
use crate::text::Format;
use neap_collect::{Background, Shared};
use neap_launch::error::{Error, system_message, tell};
use neap_launch::signals;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use tiny_http::{Header, Method, Request, Response, Server};

/// Requests that are answered at one time.
const HANDLERS: usize = 4;
/// Light figures are not read more often than that, however many ask.
const FRESH: Duration = Duration::from_millis(500);

/// What the handlers share.
struct State {
    shared: Shared,
    scrapes: AtomicU64,
    /// When light figures were read.
    looked: Mutex<Option<Instant>>,
}

/// Serves until a signal comes.
pub fn run(address: &str, shared: &Shared) -> Result<u8, Error> {
    let listener = listen(address)?;
    let bound = listener.local_addr().map_or_else(|_| address.to_owned(), |bound| bound.to_string());
    shared.look()?;
    // Before the threads start, which inherit the mask: only this one takes signals.
    let inherited = signals::block();
    let failed = |what: &str, error: &dyn std::fmt::Display| Error::failed(format!("cannot {what}: {error}"));
    let server = Server::from_listener(listener, None).map_err(|error| failed("serve", &error))?;
    let server = Arc::new(server);
    let state = Arc::new(State { shared: shared.clone(), scrapes: AtomicU64::new(0), looked: Mutex::new(None) });
    let background = Background::start(shared).map_err(|error| failed("start a thread", &system_message(&error)))?;
    let mut handlers = Vec::new();
    for _ in 0..HANDLERS {
        let (server, state) = (Arc::clone(&server), Arc::clone(&state));
        let handle = move || {
            while let Ok(request) = server.recv() {
                answer(&state, request);
            }
        };
        let thread = thread::Builder::new().name("http".to_owned()).spawn(handle);
        handlers.push(thread.map_err(|error| failed("start a thread", &system_message(&error)))?);
    }
    tell(format_args!("neap: metrics at http://{bound}/metrics"));
    while !signals::asked_to_end(Duration::from_secs(3600)) {}
    // A client that reads slowly does not keep it from ending: the process ends with its threads.
    drop((background, handlers));
    inherited.release();
    Ok(0)
}

/// The address to listen at.
fn listen(address: &str) -> Result<TcpListener, Error> {
    let full = if address.starts_with(':') { format!("[::]{address}") } else { address.to_owned() };
    let resolved: Vec<SocketAddr> = full.to_socket_addrs().map(Iterator::collect).unwrap_or_default();
    if resolved.is_empty() {
        return Err(Error::failed(format!("{address:?} is no address to listen at"))
            .remedy("--listen 127.0.0.1:9842, or --listen :9842 for all addresses"));
    }
    let bound = match TcpListener::bind(&resolved[..]) {
        // A system without IPv6.
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
        ErrorKind::AddrInUse => cause
            .remedy(format!("choose another port with --listen; ss -ltnp 'sport = :{port}' shows who has this one")),
        ErrorKind::PermissionDenied => cause.remedy("choose a port from 1024 on with --listen, or run neap as root"),
        ErrorKind::AddrNotAvailable => cause.remedy("--listen takes an address of this machine: ip addr lists them"),
        _ => cause.remedy("--listen 127.0.0.1:9842, or --listen :9842 for all addresses"),
    }
}

fn answer(state: &State, request: Request) {
    let path = request.url().split('?').next().unwrap_or_default();
    let (status, kind, text) = match (request.method(), path) {
        (Method::Get | Method::Head, "/metrics") => {
            let accept = request.headers().iter().find(|header| header.field.equiv("Accept"));
            let format = Format::accepted(accept.map_or("", |header| header.value.as_str()));
            (200, format.content_type(), scrape(state, format))
        }
        (Method::Get | Method::Head, "/-/healthy") => (200, "text/plain; charset=utf-8", "healthy\n".to_owned()),
        (Method::Get | Method::Head, "/") => (
            200,
            "text/html; charset=utf-8",
            "<title>neap exporter</title><a href=\"/metrics\">metrics</a>\n".to_owned(),
        ),
        (Method::Get | Method::Head, _) => (404, "text/plain; charset=utf-8", "not found: try /metrics\n".to_owned()),
        _ => (405, "text/plain; charset=utf-8", "only GET\n".to_owned()),
    };
    let mut response = Response::from_string(text).with_status_code(status);
    if let Ok(header) = Header::from_bytes("Content-Type", kind) {
        response.add_header(header);
    }
    // A client that has gone away.
    let _ = request.respond(response);
}

fn scrape(state: &State, format: Format) -> String {
    let mut looked = state.looked.lock().unwrap_or_else(PoisonError::into_inner);
    if looked.is_none_or(|at| at.elapsed() >= FRESH) {
        // Where /proc cannot be listed the last figures are given.
        if let Err(error) = state.shared.look() {
            error.report();
        }
        *looked = Some(Instant::now());
    }
    let scrapes = state.scrapes.fetch_add(1, Ordering::Relaxed) + 1;
    metrics::page(&state.shared.lock(), format, scrapes)
}
