//! Names from other programs, in commands that users paste.

use crate::units::is_hidden;

/// The text as one word of a shell; none if it has hidden characters.
pub fn word(text: &str) -> Option<String> {
    if text.is_empty() || text.contains(|c| c == '\u{fffd}' || is_hidden(c)) {
        return None;
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+,:=@%".contains(c);
    // A leading dash would make it an option.
    let text = if text.starts_with('-') { format!("./{text}") } else { text.to_owned() };
    Some(if text.chars().all(plain) { text } else { format!("'{}'", text.replace('\'', "'\\''")) })
}

/// The text as one argument; none if it has hidden characters.
pub fn argument(text: &str) -> Option<String> {
    match text {
        "" => Some("''".into()),
        // Here it is an option.
        _ => match text.strip_prefix('-') {
            Some("") => Some(text.into()),
            Some(rest) => word(&format!("/{rest}")).map(|quoted| quoted.replacen('/', "-", 1)),
            None => word(text),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches names that run other commands when they are pasted, and names that look like others.
    #[test]
    fn names_are_one_word() {
        assert_eq!(word("/usr/bin/python3.11").as_deref(), Some("/usr/bin/python3.11"));
        assert_eq!(word("a b;rm -rf $(x)").as_deref(), Some("'a b;rm -rf $(x)'"));
        assert_eq!(word("it's").as_deref(), Some("'it'\\''s'"));
        assert_eq!(word("-rf").as_deref(), Some("./-rf"));
        let argument = |text| argument(text).unwrap_or_default();
        assert_eq!((argument("-x"), argument("--a=b c"), argument("-")), ("-x".into(), "'--a=b c'".into(), "-".into()));
        assert_eq!((argument(""), argument("a b"), argument("-\n")), ("''".into(), "'a b'".into(), String::new()));
        for hidden in ["", "a\nb", "a\u{202e}b", "a\u{fffd}b", "a\u{1b}[1m"] {
            assert_eq!(word(hidden), None, "{hidden:?}");
        }
    }
}
