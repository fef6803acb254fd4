//! Formats values for people.

use crate::Unit;

/// A value with its unit: `1.5 MiB`, `1,234`, `0.250 s`.
pub fn amount(value: i64, unit: &Unit) -> String {
    let sign = if value < 0 { "-" } else { "" };
    let size = value.unsigned_abs();
    match unit {
        Unit::Bytes => format!("{sign}{}", bytes(size)),
        Unit::Nanoseconds => format!("{sign}{}", duration(size)),
        Unit::Count => format!("{sign}{}", grouped(size)),
        Unit::Other(name) => format!("{sign}{} {name}", grouped(size)),
    }
}

/// The same, always with a sign: for changes.
pub fn change(value: i64, unit: &Unit) -> String {
    let text = amount(value, unit);
    if value > 0 { format!("+{text}") } else { text }
}

/// `12.3 %`
pub fn share(part: i64, whole: i64) -> String {
    if whole == 0 { "-".to_owned() } else { format!("{:.1} %", part as f64 * 100.0 / whole as f64) }
}

fn bytes(value: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if value < 1024 {
        return format!("{value} B");
    }
    let mut scaled = value as f64 / 1024.0;
    let mut unit = 0;
    while scaled >= 1023.95 && unit + 1 < UNITS.len() {
        scaled /= 1024.0;
        unit += 1;
    }
    format!("{scaled:.1} {}", UNITS[unit])
}

/// An age or a time, with three significant digits.
fn duration(nanoseconds: u64) -> String {
    let seconds = nanoseconds as f64 / 1e9;
    match seconds {
        0.0 => "0 s".to_owned(),
        s if s < 1e-3 => format!("{:.1} µs", s * 1e6),
        s if s < 1.0 => format!("{:.1} ms", s * 1e3),
        s if s < 120.0 => format!("{s:.2} s"),
        s if s < 7200.0 => format!("{:.1} min", s / 60.0),
        s if s < 172_800.0 => format!("{:.1} h", s / 3600.0),
        s => format!("{:.1} d", s / 86_400.0),
    }
}

fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches units that are one step off, and signs that are lost.
    #[test]
    fn values_for_people() {
        assert_eq!(amount(1023, &Unit::Bytes), "1023 B");
        assert_eq!(amount(-3 << 20, &Unit::Bytes), "-3.0 MiB");
        assert_eq!(change(1536, &Unit::Bytes), "+1.5 KiB");
        assert_eq!(amount(1_234_567, &Unit::Count), "1,234,567");
        assert_eq!(amount(1_500_000, &Unit::Nanoseconds), "1.5 ms");
        assert_eq!(amount(7_200_000_000_000, &Unit::Nanoseconds), "2.0 h");
        assert_eq!((share(1, 8), share(1, 0)), ("12.5 %".into(), "-".into()));
    }
}
