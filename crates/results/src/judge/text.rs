//! Numbers in sentences.

use crate::{Spread, Value};

/// A number with three significant digits, or all of its integer part, in groups of three from 10,000 on. Below 1 it
/// has three decimals.
pub fn number(value: f64) -> String {
    if !value.is_finite() {
        return format!("{value}");
    }
    let places = match value.abs() {
        m if m >= 99.95 || m == 0.0 => 0,
        m if m >= 9.995 => 1,
        m if m >= 0.9995 => 2,
        _ => 3,
    };
    let text = if value.fract() == 0.0 { format!("{value:.0}") } else { format!("{value:.places$}") };
    let (sign, digits) = text.strip_prefix('-').map_or(("", text.as_str()), |digits| ("-", digits));
    let (whole, rest) = digits.split_once('.').map_or((digits, None), |(whole, rest)| (whole, Some(rest)));
    let mut grouped = String::new();
    for (place, digit) in whole.chars().enumerate() {
        let left = whole.len() - place;
        if place > 0 && left.is_multiple_of(3) && whole.len() > 4 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    let rest = rest.map_or(String::new(), |rest| format!(".{rest}"));
    format!("{sign}{grouped}{rest}")
}

/// A value in a unit of its magnitude: times from ns to s, bytes from B to GiB.
pub fn quantity(value: f64, unit: &str) -> String {
    let seconds = |scale: f64| time(value * scale);
    match unit {
        "ns" => seconds(1e-9),
        "us" | "µs" => seconds(1e-6),
        "ms" => seconds(1e-3),
        "s" => seconds(1.0),
        "B" => size(value),
        "KiB" => size(value * 1024.0),
        "MiB" if value.abs() >= 1024.0 => format!("{} GiB", number(value / 1024.0)),
        "GiB" => format!("{} GiB", number(value)),
        "" | "ratio" | "count" => number(value),
        "%" => format!("{} %", number(value)),
        "1/s" => format!("{}/s", number(value)),
        unit => format!("{} {unit}", number(value)),
    }
}

fn time(seconds: f64) -> String {
    let (scale, unit) = match seconds.abs() {
        0.0 => (1.0, "s"),
        s if s < 0.9995e-6 => (1e9, "ns"),
        s if s < 0.9995e-3 => (1e6, "µs"),
        s if s < 0.9995 => (1e3, "ms"),
        _ => (1.0, "s"),
    };
    format!("{} {unit}", number(seconds * scale))
}

/// A number of bytes as people write it: `64 KiB`, `2 GiB`.
pub fn size(bytes: f64) -> String {
    let (scale, unit) = match bytes.abs() {
        b if b >= (1u64 << 30) as f64 => ((1u64 << 30) as f64, "GiB"),
        b if b >= (1u64 << 20) as f64 => ((1u64 << 20) as f64, "MiB"),
        b if b >= 1024.0 => (1024.0, "KiB"),
        _ => (1.0, "B"),
    };
    format!("{} {unit}", number(bytes / scale))
}

/// A ratio: `0.592 times`.
pub fn times(ratio: f64) -> String {
    format!("{} times", number(ratio))
}

/// A median with the least and greatest value, or why there is none.
pub fn value_text(value: &Value, unit: &str) -> String {
    match value {
        Value::Is(spread) => spread_text(spread, |value| quantity(value, unit)),
        Value::Failed(status) => format!("failed: {}", status_words(status)),
        Value::Skipped(status) => status.clone(),
        Value::Absent => "not run".into(),
    }
}

/// A median with the least and greatest value in brackets; without them if they read the same.
pub fn spread_text(spread: &Spread, text: impl Fn(f64) -> String) -> String {
    let [low, median, high] = [spread.min, spread.median, spread.max].map(text);
    if low == high { median } else { format!("{median} [{low}, {high}]") }
}

/// A status in words.
pub fn status_words(status: &str) -> String {
    match status.split_once(':') {
        Some(("signal", number)) => match number {
            "6" => "aborted (signal 6)".into(),
            "9" => "killed (signal 9)".into(),
            "11" => "crashed (signal 11)".into(),
            number => format!("signal {number}"),
        },
        Some(("exit", number)) => format!("exit status {number}"),
        _ if status == "timeout" => "out of time".into(),
        _ => status.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Would catch figures that lose their magnitude or have more digits than were measured.
    #[test]
    fn numbers() {
        let pairs = [
            (0.0, "0"),
            (0.0921, "0.092"),
            (0.592, "0.592"),
            (1.234, "1.23"),
            (9.999, "10.0"),
            (12.34, "12.3"),
            (99.96, "100"),
            (1338.4, "1338"),
            (52000.5, "52,000"),
            (1085510.0, "1,085,510"),
            (-12345.0, "-12,345"),
        ];
        for (value, text) in pairs {
            assert_eq!(number(value), text);
        }
    }

    // Would catch a failure without its reason.
    #[test]
    fn failures_in_words() {
        let failed = |status: &str| value_text(&Value::Failed(status.into()), "ms");
        assert_eq!(failed("signal:11"), "failed: crashed (signal 11)");
        assert_eq!(failed("exit:3"), "failed: exit status 3");
        assert_eq!(failed("timeout"), "failed: out of time");
        assert_eq!(value_text(&Value::Absent, "ms"), "not run");
        let spread = |values: &[f64]| value_text(&Spread::of(values).map_or(Value::Absent, Value::Is), "MiB");
        assert_eq!(spread(&[801.1, 801.2]), "801 MiB");
        assert_eq!(spread(&[1.0, 2.0, 4.0]), "2 MiB [1 MiB, 4 MiB]");
    }

    // Would catch a unit of the wrong magnitude.
    #[test]
    fn quantities() {
        let pairs = [
            (0.941, "us", "941 ns"),
            (1.57, "us", "1.57 µs"),
            (9.64, "us", "9.64 µs"),
            (51885.0, "us", "51.9 ms"),
            (1085510.0, "us", "1.09 s"),
            (3051.0, "ms", "3.05 s"),
            (0.0, "ms", "0 s"),
            (65536.0, "B", "64 KiB"),
            (104857600.0, "B", "100 MiB"),
            (3328.0, "MiB", "3.25 GiB"),
            (512.0, "MiB", "512 MiB"),
            (1.0, "ratio", "1"),
            (668080.0, "1/s", "668,080/s"),
            (7.0, "faults", "7 faults"),
        ];
        for (value, unit, text) in pairs {
            assert_eq!(quantity(value, unit), text);
        }
    }
}
