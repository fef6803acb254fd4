//! HTTP requests, and the answer to each. No I/O: bytes in, bytes out.
//!
//! Each connection gets one answer. Bodies are not read, because no request here needs one.

use crate::text::Format;
use httparse::{EMPTY_HEADER, Status};

/// The longest head of a request that is read.
pub const LONGEST: usize = 8 << 10;
/// The most headers in it.
const HEADERS: usize = 64;
const PLAIN: &str = "text/plain; charset=utf-8";

/// The answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// The metrics.
    Metrics(Format),
    /// A text, with its status and type.
    Text(&'static str, &'static str, &'static str),
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Its answer.
    pub what: What,
    /// HEAD: the length of the body is sent, but not the body.
    pub head_only: bool,
}

impl Request {
    /// The request that begins with these bytes; none if it is incomplete.
    pub fn read(bytes: &[u8]) -> Option<Request> {
        let text = |status, text| Some(Request { what: What::Text(status, PLAIN, text), head_only: false });
        let mut headers = [EMPTY_HEADER; HEADERS];
        let mut parsed = httparse::Request::new(&mut headers);
        match parsed.parse(bytes) {
            Ok(Status::Complete(_)) => Some(Request::of(&parsed)),
            Ok(Status::Partial) if bytes.len() < LONGEST => None,
            Ok(Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
                text("431 Request Header Fields Too Large", "the head is too long\n")
            }
            Err(_) => text("400 Bad Request", "invalid request\n"),
        }
    }

    fn of(parsed: &httparse::Request<'_, '_>) -> Request {
        let path = parsed.path.unwrap_or_default().split('?').next().unwrap_or_default();
        let method = parsed.method.unwrap_or_default();
        let what = match (method, path) {
            ("GET" | "HEAD", "/metrics") => {
                let accept = parsed.headers.iter().find(|header| header.name.eq_ignore_ascii_case("Accept"));
                let accept = accept.and_then(|header| std::str::from_utf8(header.value).ok());
                What::Metrics(Format::accepted(accept.unwrap_or_default()))
            }
            ("GET" | "HEAD", "/-/healthy") => What::Text("200 OK", PLAIN, "healthy\n"),
            ("GET" | "HEAD", "/") => What::Text(
                "200 OK",
                "text/html; charset=utf-8",
                "<title>neap exporter</title><a href=\"/metrics\">metrics</a>\n",
            ),
            ("GET" | "HEAD", _) => What::Text("404 Not Found", PLAIN, "not found: try /metrics\n"),
            _ => What::Text("405 Method Not Allowed", PLAIN, "only GET\n"),
        };
        Request { what, head_only: method == "HEAD" }
    }
}

/// The head of an answer.
pub fn head(status: &str, kind: &str, length: usize) -> String {
    let allow = if status.starts_with("405") { "Allow: GET, HEAD\r\n" } else { "" };
    format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n{allow}Connection: close\r\n\r\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(bytes: &[u8]) -> Option<&'static str> {
        Request::read(bytes).map(|request| match request.what {
            What::Text(status, _, _) => &status[..3],
            What::Metrics(Format::OpenMetrics) => "open",
            What::Metrics(Format::Prometheus) => "prom",
        })
    }

    /// Catches requests that get a wrong answer, are answered before they are complete, or are never answered.
    #[test]
    fn requests_are_understood() {
        let get =
            |path: &str, headers: &str| status(format!("GET {path} HTTP/1.1\r\nHost: x\r\n{headers}\r\n").as_bytes());
        assert_eq!(get("/metrics?x=1", ""), Some("prom"));
        assert_eq!(get("/metrics", "accept: application/openmetrics-text;version=1.0.0\r\n"), Some("open"));
        assert_eq!(get("/metrics", "Accept: \u{e4}\r\nContent-Length: 100000\r\n"), Some("prom"));
        assert_eq!((get("/", ""), get("/-/healthy", ""), get("/x", "")), (Some("200"), Some("200"), Some("404")));
        assert_eq!(status(b"GET /metrics HTTP/1.0\r\n\r\nGET /metrics HTTP/1.0\r\n\r\n"), Some("prom"));
        assert_eq!(
            (status(b"POST / HTTP/1.1\r\n\r\n"), status(b"\x16\x03\x01\x02\0\x01\0")),
            (Some("405"), Some("400"))
        );
        assert_eq!((status(b""), status(b"GET / HTTP/1.1\r\nHost: x\r\n")), (None, None));
        assert_eq!(get("/", &"a: b\r\n".repeat(HEADERS)), Some("431"));
        assert_eq!(status(format!("GET / HTTP/1.1\r\nX: {}", "x".repeat(LONGEST)).as_bytes()), Some("431"));
        assert!(Request::read(b"HEAD / HTTP/1.1\r\n\r\n").is_some_and(|request| request.head_only));
    }
}
