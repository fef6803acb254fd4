//! Numbers and names as text.

use unicode_width::UnicodeWidthChar;

/// `512 B`, `1.5 KiB`, `34.2 MiB`.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if n < 1024 {
        return format!("{n} B");
    }
    let (mut value, mut unit) = (n as f64 / 1024.0, 0);
    // 1023.95 would be printed as 1024.0: take the next unit from there on.
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// A number of things: `1 pipe`, `2 pipes`.
pub fn count(n: u64, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

/// Bytes with a sign.
pub fn signed(n: i64) -> String {
    format!("{}{}", if n < 0 { "-" } else { "+" }, bytes(n.unsigned_abs()))
}

/// A part in percent, without a fraction.
pub fn percent(part: u64, whole: u64) -> u64 {
    (part.saturating_mul(100) + whole / 2).checked_div(whole).unwrap_or(0)
}

/// A text for a terminal: escapes characters that would change its state or that are hidden, which the name of a file
/// or a program may have.
pub fn plain(text: &str) -> String {
    match text.contains(is_hidden) {
        true => text.chars().map(|c| if is_hidden(c) { c.escape_default().to_string() } else { c.into() }).collect(),
        false => text.to_owned(),
    }
}

/// Whether a character is hidden: a control character, one without width, or one that changes the direction of text.
pub fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(c, '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// The columns that a text takes in a terminal at most: East Asian letters take two.
pub fn columns(text: &str) -> usize {
    text.chars().map(width).sum()
}

/// The columns of a character. The selector U+FE0F makes the symbol before it a wider emoji.
fn width(c: char) -> usize {
    if c == '\u{fe0f}' { 1 } else { c.width().unwrap_or(0) }
}

/// At most `most` columns of the end, for paths, which differ at their ends.
pub fn fit(text: &str, most: usize) -> String {
    if columns(text) <= most {
        return text.to_owned();
    }
    let end: String = text.chars().rev().collect();
    let end = &end[..front(&end, most.saturating_sub(1))];
    format!("…{}", end.chars().rev().collect::<String>())
}

/// At most `most` columns of the beginning.
pub fn fit_front(text: &str, most: usize) -> String {
    match columns(text) > most {
        true => format!("{}…", &text[..front(text, most.saturating_sub(1))]),
        false => text.to_owned(),
    }
}

/// The length in bytes of the beginning that takes at most `most` columns.
pub fn front(text: &str, most: usize) -> usize {
    let mut taken = 0;
    let over = text.char_indices().find(|(_, c)| {
        taken += width(*c);
        taken > most
    });
    over.map_or(text.len(), |(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a wrong unit at the boundaries, a part that is rounded down, and texts that are cut at the wrong end.
    #[test]
    fn numbers_and_texts() {
        assert_eq!((bytes(1023), bytes(1 << 20)), ("1023 B".into(), "1.0 MiB".into()));
        assert_eq!(bytes((1 << 20) - 1), "1.0 MiB");
        assert_eq!(signed(-2048), "-2.0 KiB");
        assert_eq!((count(1, "pipe"), count(0, "pipe")), ("1 pipe".into(), "0 pipes".into()));
        assert_eq!((percent(1, 3), percent(2, 3), percent(1, 0)), (33, 67, 0));
        assert_eq!(fit("/usr/lib/libc.so.6", 9), "…ibc.so.6");
        assert_eq!((plain("a\u{1b}[1m"), plain("a\u{202e}b")), ("a\\u{1b}[1m".into(), "a\\u{202e}b".into()));
        assert_eq!((fit("データ.db", 6), fit_front("データ.db", 6)), ("…タ.db".into(), "デー…".into()));
    }
}
