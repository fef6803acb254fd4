//! Readable numbers: bytes in binary units, counts in groups of three digits, seconds; and durations on the command
//! line.

use neap_options::{Kind, Value};
use std::time::Duration;

use neap_options::amount;

/// `512 B`, `1.5 KiB`, `34.2 MiB`.
pub fn bytes(n: u64) -> String {
    amount::Bytes(n).to_string()
}

/// `1,234,567`.
pub fn count(n: u64) -> String {
    amount::Count(n).to_string()
}

/// `1 block`, `2 blocks`, `1,000 blocks`.
pub fn counted(n: u64, singular: &str, plural: &str) -> String {
    format!("{} {}", count(n), if n == 1 { singular } else { plural })
}

/// `0.000812 s`, `1.234 s`: microseconds below a second, milliseconds above.
pub fn seconds(d: Duration) -> String {
    if d < Duration::from_secs(1) { format!("{:.6} s", d.as_secs_f64()) } else { format!("{:.3} s", d.as_secs_f64()) }
}

/// A time on the command line: `10s`, `500ms`, `2min`; seconds without a unit.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let scale = match unit {
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "min" | "m" => 60.0,
        "h" => 3600.0,
        _ => return Err("a time is a number and ms, s, min or h".to_owned()),
    };
    let seconds = number.parse::<f64>().map_err(|_| "a time begins with a number".to_owned())? * scale;
    Duration::try_from_secs_f64(seconds).map_err(|_| "that time is too long".to_owned())
}

/// A size on the command line: `10MiB`, `1g`; bytes without a unit.
pub fn parse_size(text: &str) -> Result<u64, String> {
    match (Kind::Size { words: &[], min: 0, max: u64::MAX }).parse(text.as_bytes()) {
        Some(Value::Bytes(bytes)) => Ok(bytes),
        _ => Err("a size is a number and K, M or G, as 512M".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a plural for one, and a singular for zero.
    #[test]
    fn nouns_follow_their_number() {
        assert_eq!([0, 1, 1000].map(|n| counted(n, "block", "blocks")), ["0 blocks", "1 block", "1,000 blocks"]);
    }

    /// Catches sizes that are read as another unit.
    #[test]
    fn sizes_have_units() {
        assert_eq!(["0", "10MiB", "64k"].map(parse_size), [Ok(0), Ok(10 << 20), Ok(64 << 10)]);
        assert!(["", "x", "-1", "M"].iter().all(|bad| parse_size(bad).is_err()));
    }

    /// Catches short programs shown as 0.000 s.
    #[test]
    fn seconds_keep_short_times() {
        assert_eq!(seconds(Duration::from_micros(812)), "0.000812 s");
        assert_eq!(seconds(Duration::from_millis(1234)), "1.234 s");
    }

    /// Catches durations that are read wrongly.
    #[test]
    fn durations() {
        assert_eq!(parse_duration("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(parse_duration("1.5"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse_duration("2min"), Ok(Duration::from_secs(120)));
        for bad in ["", "s", "-1s", "1 day", "1e400"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }
}
