//! Patterns for paths, as shells have them: `*` stands for any bytes, `?` for one.

/// Whether a pattern matches a path. A pattern without a slash is compared with the last part of the path; in others
/// `*` and `?` stand for slashes too.
pub fn matches(pattern: &[u8], path: &[u8]) -> bool {
    if pattern.contains(&b'/') {
        return is_like(pattern, path);
    }
    path.rsplit(|&byte| byte == b'/').next().is_some_and(|name| is_like(pattern, name))
}

/// Goes through both; where they differ it goes back to the last star, which then stands for one byte more.
fn is_like(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut star, mut from) = (0, None, 0);
    let mut next = 0;
    while next < text.len() {
        match pattern.get(at) {
            Some(b'*') => {
                (star, from) = (Some(at), next);
                at += 1;
            }
            Some(&byte) if byte == b'?' || byte == text[next] => {
                at += 1;
                next += 1;
            }
            _ => {
                let Some(star) = star else { return false };
                from += 1;
                (at, next) = (star + 1, from);
            }
        }
    }
    pattern[at..].iter().all(|&byte| byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches paths that match wrongly, and stars that stand for too little.
    #[test]
    fn patterns() {
        for (pattern, path, wanted) in [
            ("libc.so.6", "/usr/lib/libc.so.6", true),
            ("libc*", "/usr/lib/libc.so.6", true),
            ("libc", "/usr/lib/libc.so.6", false),
            ("*", "/a", true),
            ("?", "/a", true),
            ("?", "/ab", false),
            ("/usr/*", "/usr/lib/libc.so.6", true),
            ("/usr/*.so", "/usr/lib/libc.so.6", false),
            ("*/lib/*", "/usr/lib/libc.so.6", true),
            ("*a*b*", "/x/aab", true),
            ("*a*b", "/x/aabc", false),
            ("usr/*", "/usr/lib", false),
            ("/a**b", "/ab", true),
        ] {
            assert_eq!(matches(pattern.as_bytes(), path.as_bytes()), wanted, "{pattern} {path}");
        }
    }
}
