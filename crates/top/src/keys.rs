//! Keys from the bytes of a terminal.

/// A key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// A character.
    Char(char),
    /// Enter.
    Enter,
    /// Escape alone.
    Escape,
    /// Deletes to the left.
    Backspace,
    /// An arrow.
    Up,
    /// An arrow.
    Down,
    /// An arrow.
    Left,
    /// An arrow.
    Right,
    /// A screen up.
    PageUp,
    /// A screen down.
    PageDown,
    /// To the first line.
    Home,
    /// To the last line.
    End,
}

/// The keys in one read. A sequence begins with ESC; an unknown one gives no key.
pub fn keys(bytes: &[u8]) -> Vec<Key> {
    let mut keys = Vec::new();
    let text = String::from_utf8_lossy(bytes);
    let mut rest = text.as_ref();
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        match c {
            '\u{1b}' => {
                let introduced = rest.strip_prefix('[').or_else(|| rest.strip_prefix('O'));
                let Some(after) = introduced else {
                    keys.push(Key::Escape);
                    continue;
                };
                let end = after.find(|c: char| c.is_ascii_alphabetic() || c == '~').map_or(after.len(), |at| at + 1);
                keys.extend(sequence(&after[..end]));
                rest = &after[end..];
            }
            '\r' | '\n' => keys.push(Key::Enter),
            '\u{7f}' | '\u{8}' => keys.push(Key::Backspace),
            c if c.is_control() => {}
            c => keys.push(Key::Char(c)),
        }
    }
    keys
}

fn sequence(text: &str) -> Option<Key> {
    Some(match text {
        "A" => Key::Up,
        "B" => Key::Down,
        "C" => Key::Right,
        "D" => Key::Left,
        "5~" => Key::PageUp,
        "6~" => Key::PageDown,
        "H" | "1~" | "7~" => Key::Home,
        "F" | "4~" | "8~" => Key::End,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches arrows that become Escape and letters, in both modes of a terminal.
    #[test]
    fn sequences_are_keys() {
        assert_eq!(keys(b"\x1b[A\x1bOBq"), [Key::Up, Key::Down, Key::Char('q')]);
        assert_eq!(keys(b"\x1b[5~\x1b[H\x1b[15~\r\x7f"), [Key::PageUp, Key::Home, Key::Enter, Key::Backspace]);
        assert_eq!((keys(b"\x1b"), keys(b"\x1b[")), (vec![Key::Escape], vec![]));
        assert_eq!(keys("ä".as_bytes()), [Key::Char('ä')]);
    }
}
