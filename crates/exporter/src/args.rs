//! The arguments of `neap exporter`.

use clap::Args;
use neap_launch::units::{parse_duration, parse_size};
use std::path::PathBuf;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  neap exporter                    at http://127.0.0.1:9842/metrics
  neap exporter --listen :9842 --match '^(redis|postgres)'
  neap exporter --once | grep reclaimable
  neap exporter --otlp http://localhost:4318/v1/metrics
  neap exporter --textfile /var/lib/prometheus/node-exporter/neap.prom

Processes of this user, or all for root. SIGTERM ends it.";

/// Arguments of `neap exporter`.
#[derive(Clone, Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ExporterArgs {
    /// Where to serve: HOST:PORT; without a host on all addresses
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9842")]
    pub listen: String,

    /// Only processes whose name or command line matches this regular expression
    #[arg(long = "match", value_name = "PATTERN")]
    pub pattern: Option<String>,

    /// Count processes with less memory together, as one figure; 0 for none [default: 10MiB, with --match 0]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub least: Option<u64>,

    /// Read large processes exactly: PSS without root, locked memory; they wait meanwhile, 20 ms for each GiB
    #[arg(long)]
    pub exact: bool,

    /// Limit on processor time for PSS and accounts, in percent of one processor; 0 for none of them. Other figures are
    /// always read
    #[arg(long, value_name = "PERCENT", default_value = "0.5", value_parser = percent)]
    pub budget: f64,

    /// Print the metrics once, and end
    #[arg(long, conflicts_with_all = ["listen", "textfile"])]
    pub once: bool,

    /// Write the metrics to FILE once, for node_exporter, and end
    #[arg(long, value_name = "FILE", conflicts_with = "listen")]
    pub textfile: Option<PathBuf>,

    /// Send the metrics to URL instead, by OpenTelemetry's protocol (OTLP over HTTP)
    #[arg(long, value_name = "URL", conflicts_with_all = ["listen", "once", "textfile"])]
    pub otlp: Option<String>,

    /// With --otlp: time between two sends
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = interval)]
    pub interval: Duration,
}

fn interval(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        short if short < Duration::from_secs(1) => Err("at least 1s".to_owned()),
        time => Ok(time),
    }
}

fn percent(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').parse::<f64>() {
        Ok(number) if number == 0.0 || (0.01..=100.0).contains(&number) => Ok(number),
        _ => Err("0, or a number from 0.01 to 100".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a budget with which accounts are never made although it is not zero.
    #[test]
    fn a_budget_is_none_or_enough() {
        assert_eq!((percent("0.5"), percent("2%"), percent("0")), (Ok(0.5), Ok(2.0), Ok(0.0)));
        for bad in ["0.001", "-1", "101", "x", "NaN", ""] {
            assert!(percent(bad).is_err(), "{bad}");
        }
    }
}
