//! `neap exporter`: memory of all processes for Prometheus, read from outside, without a change to any program.
//!
//! | file | answers |
//! |---|---|
//! | `args.rs` | the arguments |
//! | `family.rs` | what a metric is, for each format |
//! | `text.rs` | the text formats of OpenMetrics and of Prometheus |
//! | `metrics.rs` | which metrics there are, and their values |
//! | `textfile.rs` | the file for node_exporter |
//! | `otlp.rs` | OpenTelemetry's protocol |
//! | `request.rs` | requests of HTTP, and which answer each gets |
//! | `http.rs` | the connections of clients |
//! | `serve.rs` | the server's start and end, and the thread that makes its pages |
//!
//! May depend on `neap-collect`, `neap-launch`, well-kept libraries, the C library and std.
#![forbid(unsafe_code)]

pub mod args;
mod family;
mod http;
mod metrics;
mod otlp;
mod request;
mod serve;
mod text;
mod textfile;

use self::args::ExporterArgs;
use self::text::Format;
use neap_collect::{Collector, Filter, Pace, Shared, make_up_to};
use neap_launch::error::Error;
use neap_launch::sys;
use std::time::Duration;

/// Age at which a rollup and an account are made again, if the budget allows it.
const ROLLUP: Duration = Duration::from_secs(30);
const ACCOUNT: Duration = Duration::from_secs(300);
/// Processes below this are counted together: more than half of all are smaller (shells, small daemons), with a few
/// percent of all memory together.
const LEAST: u64 = 10 << 20;
/// Time limit of a single page without a server.
const ONCE: Duration = Duration::from_secs(2);

/// Runs `neap exporter`.
pub fn run(args: &ExporterArgs) -> Result<u8, Error> {
    let pace =
        Pace { share: args.budget / 100.0, rollup: ROLLUP, account: ACCOUNT, exact: args.exact, accounts_first: false };
    let collector = Collector::new(Filter::new(args.pattern.as_deref())?, pace);
    // A pattern already chooses processes.
    let least = args.least.unwrap_or(if args.pattern.is_some() { 0 } else { LEAST });
    let shared = Shared::new(collector.from(least));
    if let Some(url) = &args.otlp {
        return otlp::run(url, args.interval, &shared);
    }
    if !args.once && args.textfile.is_none() {
        return serve::run(&args.listen, &shared);
    }
    shared.look()?;
    make_up_to(&shared, ONCE);
    match &args.textfile {
        Some(path) => textfile::replace(path, &metrics::page(&shared.lock(), Format::Prometheus, 0)).map(|()| 0),
        None => sys::print(metrics::page(&shared.lock(), Format::OpenMetrics, 0).as_bytes()),
    }
}
