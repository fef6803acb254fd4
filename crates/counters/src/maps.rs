//! Where a counters page may be in a process: the mappings that look like one.
//!
//! ```text
//! 7f1c0a7ff000-7f1c0a800000 rw-s 00000000 00:01 1037      /memfd:neap-counters (deleted)
//! ```

use crate::{FILE_BYTES, NAME};

/// How likely it is that a mapping is a counters page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Likely {
    /// It has the name.
    Named,
    /// It has no name, as where the system refuses memory files.
    Nameless,
    /// It is a file of the right size, as the option `counters` makes them.
    File,
}

/// Longest OS page: mappings are no shorter than one.
const LONGEST: u64 = 64 * 1024;

/// How likely it is that a mapping is a counters page, by its access (`rw-s`), offset, length and name in
/// /proc/PID/maps; `None`: it is none.
pub fn likely(access: &[u8], offset: u64, length: u64, name: &[u8]) -> Option<Likely> {
    let shared = access.starts_with(b"rw") && access.ends_with(b"s");
    if !shared || offset != 0 || !(FILE_BYTES as u64..=LONGEST).contains(&length) {
        return None;
    }
    let name = name.strip_suffix(b" (deleted)").unwrap_or(name);
    match name.strip_prefix(b"/memfd:") {
        Some(name) if name == NAME.to_bytes() => Some(Likely::Named),
        Some(_) => None,
        None if name.is_empty() || name == b"/dev/zero" => Some(Likely::Nameless),
        None if name.starts_with(b"/") && !name.starts_with(b"/dev/") => Some(Likely::File),
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 4096;

    /// Catches a page that is not found, whatever it is backed by.
    #[test]
    fn pages_are_found() {
        let of = |length: u64, name: &str| likely(b"rw-s", 0, length, name.as_bytes());
        assert_eq!(of(PAGE, "/memfd:neap-counters (deleted)"), Some(Likely::Named));
        assert_eq!(of(LONGEST, "/memfd:neap-counters (deleted)"), Some(Likely::Named));
        assert_eq!(of(PAGE, "/dev/zero (deleted)"), Some(Likely::Nameless));
        assert_eq!(of(PAGE, "/run/neap-counters-x/41.0"), Some(Likely::File));
    }

    /// Catches a reader that looks into memory that cannot be a page, devices above all.
    #[test]
    fn others_are_left_alone() {
        let own = "/memfd:neap-counters (deleted)";
        for (access, offset, length, name) in [
            ("rw-p", 0, PAGE, ""),
            ("r--s", 0, PAGE, own),
            ("rw-s", PAGE, PAGE, own),
            ("rw-s", 0, PAGE, "/memfd:neap-counters-2 (deleted)"),
            ("rw-s", 0, PAGE / 2, own),
            ("rw-s", 0, 2 * LONGEST, own),
            ("rw-s", 0, PAGE, "/dev/dri/card0"),
            ("rw-s", 0, PAGE, "anon_inode:[io_uring]"),
        ] {
            assert_eq!(likely(access.as_bytes(), offset, length, name.as_bytes()), None, "{access} {offset} {name}");
        }
    }
}
