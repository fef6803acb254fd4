//! The connections of clients, in one thread that never waits for a single client, so that a client which does not send
//! or read delays no other.
//!
//! For each connection, the thread reads the request, waits for the metrics, writes the answer, and waits until the
//! client closes. (Closing a connection with unread bytes would discard the answer.) Each step has a time limit, after
//! which the connection is closed. If there are too many connections, one is closed that needs it least: first those
//! that wait for the client's end, then those without a request.

use crate::request::{LONGEST, Request, What, head};
use crate::text::Format;
use libc::{POLLIN, POLLOUT, c_short, pollfd};
use neap_launch::error::{system_message, tell};
use neap_launch::sys;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

/// Limit on connections.
const CONNECTIONS: u64 = 64;
/// Time limits of a request's head, of the answer, and of the client's end.
const FOR_HEAD: Duration = Duration::from_secs(5);
const FOR_ANSWER: Duration = Duration::from_secs(10);
const FOR_END: Duration = Duration::from_secs(1);
/// Pause after a connection could not be accepted.
const PAUSE: Duration = Duration::from_millis(100);
/// Limit on the wait of a round, so that signals are noticed.
const ROUND: Duration = Duration::from_millis(250);

/// The state of a connection.
enum State {
    /// Reads the request.
    Head(Vec<u8>),
    /// Waits for the metrics.
    Waits(Request, Format),
    /// Writes the answer: head, body, and how much of both is written.
    Answer(String, Arc<str>, usize),
    /// Waits until the client closes.
    End,
}

struct Connection {
    number: u64,
    stream: TcpStream,
    state: State,
    /// When its time is over.
    until: Instant,
}

impl Connection {
    /// The events that it waits for; poll always reports errors.
    fn events(&self) -> c_short {
        match self.state {
            State::Head(_) | State::End => POLLIN,
            // Only the client's end.
            State::Waits(..) => 0,
            State::Answer(..) => POLLOUT,
        }
    }

    fn goes_to(&mut self, state: State, time: Duration) {
        (self.state, self.until) = (state, Instant::now() + time);
    }

    fn answer(&mut self, request: Request, status: &str, kind: &str, body: Arc<str>) {
        let head = head(status, kind, body.len());
        let body = if request.head_only { Arc::from("") } else { body };
        self.goes_to(State::Answer(head, body, 0), FOR_ANSWER);
    }

    /// Does what is possible without waiting; false if the connection is over.
    fn goes_on(&mut self, asks: &Sender<(u64, Format)>) -> io::Result<bool> {
        let mut bytes = [0; LONGEST];
        match &mut self.state {
            State::Head(read) => {
                let room = LONGEST - read.len();
                let count = self.stream.read(&mut bytes[..room])?;
                read.extend_from_slice(&bytes[..count]);
                let Some(request) = Request::read(read) else { return Ok(count > 0) };
                match request.what {
                    What::Text(status, kind, text) => self.answer(request, status, kind, text.into()),
                    What::Metrics(format) => {
                        self.goes_to(State::Waits(request, format), FOR_ANSWER);
                        return Ok(asks.send((self.number, format)).is_ok());
                    }
                }
            }
            State::Waits(..) => return Ok(false),
            State::Answer(head, body, written) => {
                let (from_head, from_body) = ((*written).min(head.len()), written.saturating_sub(head.len()));
                let parts = [IoSlice::new(&head.as_bytes()[from_head..]), IoSlice::new(&body.as_bytes()[from_body..])];
                *written += self.stream.write_vectored(&parts)?;
                if *written == head.len() + body.len() {
                    self.stream.shutdown(Shutdown::Write)?;
                    self.goes_to(State::End, FOR_END);
                }
            }
            State::End => return Ok(self.stream.read(&mut bytes)? > 0),
        }
        Ok(true)
    }
}

/// The channels to the thread that makes pages; requests and pages have the number of their connection.
pub struct Maker {
    /// Requests.
    pub asks: Sender<(u64, Format)>,
    /// Pages.
    pub pages: Receiver<(u64, Arc<str>)>,
    /// Becomes readable with a page: has a byte for each.
    pub bell: UnixStream,
}

/// The server.
pub struct Server {
    listener: TcpListener,
    maker: Maker,
    connections: Vec<Connection>,
    /// Limit on connections.
    most: usize,
    number: u64,
    /// No connection is accepted before this time.
    pause: Instant,
    /// Errors that were reported, each once.
    reported: Vec<Option<i32>>,
}

impl Server {
    /// A server at a listener. Connections get a quarter of `files`, the limit on open files; the rest is for reading
    /// processes.
    pub fn new(listener: TcpListener, maker: Maker, files: u64) -> io::Result<Server> {
        listener.set_nonblocking(true)?;
        maker.bell.set_nonblocking(true)?;
        let most = (files / 4).clamp(1, CONNECTIONS) as usize;
        let (pause, reported) = (Instant::now(), Vec::new());
        Ok(Server { listener, maker, connections: Vec::new(), most, number: 0, pause, reported })
    }

    /// Waits for events, for a limited time, and handles them.
    pub fn round(&mut self) -> io::Result<()> {
        let wait = |fd: RawFd, events| pollfd { fd, events, revents: 0 };
        let now = Instant::now();
        let accepts = if self.pause <= now { POLLIN } else { 0 };
        let mut waits = vec![wait(self.maker.bell.as_raw_fd(), POLLIN), wait(self.listener.as_raw_fd(), accepts)];
        waits.extend(self.connections.iter().map(|of| wait(of.stream.as_raw_fd(), of.events())));
        let times = self.connections.iter().map(|of| of.until).chain((accepts == 0).then_some(self.pause));
        let next = times.min().map_or(ROUND, |first| first.saturating_duration_since(now).min(ROUND));
        sys::poll(&mut waits, next)?;

        let now = Instant::now();
        let mut ready = waits[2..].iter().map(|of| of.revents != 0);
        self.connections.retain_mut(|of| {
            let goes_on = match ready.next() {
                Some(true) => of.goes_on(&self.maker.asks),
                _ => Ok(true),
            };
            let later = |error: &io::Error| matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted);
            goes_on.unwrap_or_else(|error| later(&error)) && of.until > now
        });
        if waits[0].revents != 0 {
            self.take_pages();
        }
        if waits[1].revents & POLLIN != 0 {
            self.accept();
        }
        Ok(())
    }

    /// Answers with pages that were made. Their connections may be closed by now.
    fn take_pages(&mut self) {
        let _ = self.maker.bell.read(&mut [0; 64]);
        for (number, page) in self.maker.pages.try_iter() {
            let Some(of) = self.connections.iter_mut().find(|of| of.number == number) else { continue };
            if let State::Waits(request, format) = of.state {
                of.answer(request, "200 OK", format.content_type(), page);
            }
        }
    }

    /// Accepts one client; with more of them the next round begins at once.
    fn accept(&mut self) {
        match self.listener.accept().and_then(|(stream, _)| stream.set_nonblocking(true).map(|()| stream)) {
            Ok(stream) => {
                if self.connections.len() >= self.most {
                    self.close_one();
                }
                self.number += 1;
                let (number, until) = (self.number, Instant::now() + FOR_HEAD);
                self.connections.push(Connection { number, stream, state: State::Head(Vec::new()), until });
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => {
                self.pause = Instant::now() + PAUSE;
                if !self.reported.contains(&error.raw_os_error()) {
                    self.reported.push(error.raw_os_error());
                    tell(format_args!(
                        "neap: cannot accept a connection: {}; it is tried again",
                        system_message(&error)
                    ));
                }
            }
        }
    }

    /// Closes the connection that needs it least.
    fn close_one(&mut self) {
        let need = |of: &Connection| match of.state {
            State::End => 0,
            State::Head(_) => 1,
            State::Waits(..) | State::Answer(..) => 2,
        };
        let least = self.connections.iter().enumerate().min_by_key(|(_, of)| (need(of), of.until));
        if let Some((at, _)) = least {
            self.connections.swap_remove(at);
        }
    }
}
