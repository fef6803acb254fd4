//! OpenTelemetry's protocol for metrics over HTTP: `opentelemetry/proto/metrics/v1/metrics.proto`, with its field
//! numbers.

use crate::family::{Family, Labels, Number, Sink, Type};
use crate::metrics;
use neap_collect::{Background, Shared};
use neap_launch::VERSION;
use neap_launch::error::{Error, system_message, tell};
use neap_launch::signals;
use prost::{Message, Oneof};
use std::time::{Duration, Instant, SystemTime};

/// Time limit of a collector's answer.
const LIMIT: Duration = Duration::from_secs(10);
const CUMULATIVE: i32 = 2;

#[derive(Clone, PartialEq, Message)]
struct Request {
    #[prost(message, repeated, tag = "1")]
    resource_metrics: Vec<ResourceMetrics>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceMetrics {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scope_metrics: Vec<ScopeMetrics>,
}

#[derive(Clone, PartialEq, Message)]
struct Resource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct ScopeMetrics {
    #[prost(message, optional, tag = "1")]
    scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    metrics: Vec<Metric>,
}

#[derive(Clone, PartialEq, Message)]
struct Scope {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    version: String,
}

#[derive(Clone, PartialEq, Message)]
struct Metric {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    description: String,
    #[prost(string, tag = "3")]
    unit: String,
    #[prost(oneof = "Data", tags = "5, 7")]
    data: Option<Data>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Data {
    #[prost(message, tag = "5")]
    Gauge(Gauge),
    #[prost(message, tag = "7")]
    Sum(Sum),
}

#[derive(Clone, PartialEq, Message)]
struct Gauge {
    #[prost(message, repeated, tag = "1")]
    points: Vec<Point>,
}

#[derive(Clone, PartialEq, Message)]
struct Sum {
    #[prost(message, repeated, tag = "1")]
    points: Vec<Point>,
    #[prost(int32, tag = "2")]
    temporality: i32,
    #[prost(bool, tag = "3")]
    is_monotonic: bool,
}

#[derive(Clone, PartialEq, Message)]
struct Point {
    #[prost(fixed64, tag = "3")]
    time_unix_nano: u64,
    #[prost(oneof = "Value", tags = "4, 6")]
    value: Option<Value>,
    #[prost(message, repeated, tag = "7")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, Copy, PartialEq, Oneof)]
enum Value {
    #[prost(double, tag = "4")]
    Double(f64),
    #[prost(sfixed64, tag = "6")]
    Int(i64),
}

#[derive(Clone, PartialEq, Message)]
struct KeyValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct AnyValue {
    #[prost(string, optional, tag = "1")]
    string: Option<String>,
}

fn pair(key: &str, value: &str) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { string: Some(value.to_owned()) }) }
}

/// Gathers metrics for one request.
struct Gathered {
    time: u64,
    metrics: Vec<Metric>,
}

impl Gathered {
    fn new(time: SystemTime) -> Gathered {
        let time = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Gathered { time: u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), metrics: Vec::new() }
    }

    /// The bytes of the request. Metrics without a sample are left out.
    fn encode(self) -> Vec<u8> {
        let has_points = |metric: &Metric| match &metric.data {
            Some(Data::Gauge(gauge)) => !gauge.points.is_empty(),
            Some(Data::Sum(sum)) => !sum.points.is_empty(),
            None => false,
        };
        let metrics = self.metrics.into_iter().filter(has_points).collect();
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let attributes = vec![pair("service.name", "neap-exporter"), pair("host.name", host.trim())];
        let scope = Scope { name: "neap".to_owned(), version: VERSION.to_owned() };
        let request = Request {
            resource_metrics: vec![ResourceMetrics {
                resource: Some(Resource { attributes }),
                scope_metrics: vec![ScopeMetrics { scope: Some(scope), metrics }],
            }],
        };
        request.encode_to_vec()
    }
}

impl Sink for Gathered {
    fn family(&mut self, family: &Family) {
        // UCUM units, which OpenTelemetry uses.
        let unit = match family.unit {
            "bytes" => "By",
            "seconds" => "s",
            _ => "1",
        };
        let data = match family.of {
            Type::Counter => Data::Sum(Sum { points: Vec::new(), temporality: CUMULATIVE, is_monotonic: true }),
            Type::Gauge | Type::Info => Data::Gauge(Gauge { points: Vec::new() }),
        };
        // The same names as for Prometheus, so that one dashboard serves both.
        let name = format!("{}{}", family.name, family.ending());
        let description = family.help.to_owned();
        self.metrics.push(Metric { name, description, unit: unit.to_owned(), data: Some(data) });
    }

    fn sample(&mut self, labels: &Labels, more: Option<(&'static str, &str)>, value: Number) {
        let named = labels.pairs.iter().map(|(name, value)| (*name, value.as_str())).chain(more);
        let attributes = named.filter(|(_, value)| !value.is_empty()).map(|(name, value)| pair(name, value)).collect();
        let value = match value {
            Number::Whole(number) => Value::Int(i64::try_from(number).unwrap_or(i64::MAX)),
            Number::Seconds(number) => Value::Double(number),
        };
        let point = Point { time_unix_nano: self.time, value: Some(value), attributes };
        match self.metrics.last_mut().and_then(|metric| metric.data.as_mut()) {
            Some(Data::Gauge(gauge)) => gauge.points.push(point),
            Some(Data::Sum(sum)) => sum.points.push(point),
            None => {}
        }
    }
}

/// Sends metrics until a signal comes.
pub fn run(url: &str, interval: Duration, shared: &Shared) -> Result<u8, Error> {
    if !url.starts_with("http://") {
        return Err(Error::failed(format!("{url:?} is not an http URL")).remedy(
            "--otlp http://localhost:4318/v1/metrics; for TLS use a local collector that forwards the metrics",
        ));
    }
    shared.look()?;
    let inherited = signals::block();
    let background = Background::start(shared)
        .map_err(|error| Error::failed(format!("cannot start a thread: {}", system_message(&error))))?;
    let agent: ureq::Agent = ureq::Agent::config_builder().timeout_global(Some(LIMIT)).build().into();
    let (mut sent, mut failing) = (0, false);
    loop {
        shared.look()?;
        let mut gathered = Gathered::new(SystemTime::now());
        metrics::write(&mut gathered, &shared.lock(), sent);
        let answer = agent.post(url).header("Content-Type", "application/x-protobuf").send(&gathered.encode()[..]);
        match answer {
            Ok(_) => {
                sent += 1;
                if failing || sent == 1 {
                    tell(format_args!("neap: metrics go to {url}"));
                }
                failing = false;
            }
            // A collector may be restarted, so this does not end neap; only the first failure is reported.
            Err(error) if !failing => {
                failing = true;
                Error::failed(format!("cannot send metrics to {url}: {error}"))
                    .remedy(
                        "it is tried again; does a collector take OTLP over HTTP there (port 4318, path /v1/metrics)?",
                    )
                    .report();
            }
            Err(_) => {}
        }
        if ended_within(interval) {
            break;
        }
    }
    drop(background);
    inherited.release();
    Ok(0)
}

/// Waits; true if a signal came that ends neap. Other signals do not shorten the wait.
fn ended_within(time: Duration) -> bool {
    let until = Instant::now() + time;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        if signals::asked_to_end(left) {
            return true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: Family = Family { name: "a_bytes", of: Type::Counter, unit: "bytes", help: "A." };
    const EMPTY: Family = Family { name: "b", of: Type::Gauge, unit: "", help: "B." };

    /// Catches wrong field numbers, with bytes that the protocol's own encoder makes of such a metric.
    #[test]
    fn the_bytes_are_the_protocols() {
        let mut gathered = Gathered::new(SystemTime::UNIX_EPOCH + Duration::from_nanos(1));
        gathered.family(&EMPTY);
        gathered.family(&BYTES);
        gathered.sample(
            &Labels::new(vec![("p", "1".into()), ("c", String::new())]),
            Some(("k", "v")),
            Number::Whole(7),
        );
        let metric = gathered.metrics[1].encode_to_vec();
        let expected: &[u8] = b"\x0a\x0da_bytes_total\x12\x02A.\x1a\x02By\x3a\x2c\x0a\x26\
            \x19\x01\0\0\0\0\0\0\0\x31\x07\0\0\0\0\0\0\0\
            \x3a\x08\x0a\x01p\x12\x03\x0a\x011\x3a\x08\x0a\x01k\x12\x03\x0a\x01v\x10\x02\x18\x01";
        assert_eq!(metric, expected);
        let request = Request::decode(&gathered.encode()[..]).expect("a request");
        assert_eq!(request.resource_metrics[0].scope_metrics[0].metrics.len(), 1);
    }
}
