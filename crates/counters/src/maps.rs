//! Where a counters page may be in a process: the lines of /proc/PID/maps.
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

/// A shared mapping that may be a counters page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate<'a> {
    /// The range, as `/proc/PID/map_files` names it.
    pub range: &'a str,
    /// Its first address.
    pub start: u64,
    /// How likely it is.
    pub likely: Likely,
}

/// Longest OS page: mappings are no shorter than one.
const LONGEST: u64 = 64 * 1024;

/// The candidate in one line of /proc/PID/maps.
pub fn candidate(line: &str) -> Option<Candidate<'_>> {
    let mut fields = line.split_ascii_whitespace();
    let range = fields.next()?;
    let (access, offset) = (fields.next()?, fields.next()?);
    let (_device, _inode) = (fields.next()?, fields.next()?);
    let path = fields.next().unwrap_or("");
    let (start, end) = range.split_once('-')?;
    let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
    let length = end.checked_sub(start)?;
    let shared = access.starts_with("rw") && access.ends_with('s');
    if !shared || u64::from_str_radix(offset, 16) != Ok(0) || !(FILE_BYTES as u64..=LONGEST).contains(&length) {
        return None;
    }
    let likely = match path.strip_prefix("/memfd:") {
        Some(name) if name.as_bytes() == NAME.to_bytes() => Likely::Named,
        Some(_) => return None,
        None if path.is_empty() || path == "/dev/zero" => Likely::Nameless,
        None if path.starts_with('/') && !path.starts_with("/dev/") => Likely::File,
        None => return None,
    };
    Some(Candidate { range, start, likely })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn likely(line: &str) -> Option<Likely> {
        candidate(line).map(|c| c.likely)
    }

    /// Catches a page that is not found, whatever it is backed by.
    #[test]
    fn pages_are_found() {
        let line = "7f1c0a7ff000-7f1c0a800000 rw-s 00000000 00:01 1037      /memfd:neap-counters (deleted)";
        let c = candidate(line).unwrap();
        assert_eq!((c.range, c.start, c.likely), ("7f1c0a7ff000-7f1c0a800000", 0x7f1c_0a7f_f000, Likely::Named));
        assert_eq!(likely("1000-2000 rw-s 00000000 00:01 7 /dev/zero (deleted)"), Some(Likely::Nameless));
        assert_eq!(likely("1000-2000 rw-s 00000000 00:21 7 /run/neap-counters-x/41.0"), Some(Likely::File));
        assert_eq!(likely("10000-20000 rw-s 00000000 00:01 7 /memfd:neap-counters (deleted)"), Some(Likely::Named));
    }

    /// Catches a reader that looks into memory that cannot be a page, devices above all.
    #[test]
    fn others_are_left_alone() {
        for line in [
            "",
            "x",
            "1000-2000",
            "1000-2000 rw-p 00000000 00:00 0",
            "1000-2000 r--s 00000000 00:01 7 /memfd:neap-counters (deleted)",
            "1000-2000 rw-s 00001000 00:01 7 /memfd:neap-counters (deleted)",
            "1000-2000 rw-s 00000000 00:01 7 /memfd:neap-counters-2 (deleted)",
            "1000-1800 rw-s 00000000 00:01 7 /memfd:neap-counters (deleted)",
            "1000-30000 rw-s 00000000 00:01 7 /memfd:neap-counters (deleted)",
            "2000-1000 rw-s 00000000 00:01 7 /memfd:neap-counters (deleted)",
            "1000-2000 rw-s 00000000 00:06 7 /dev/dri/card0",
            "1000-2000 rw-s 00000000 00:06 7 anon_inode:[io_uring]",
            "1000-20000000000000000 rw-s 00000000 00:01 7 /memfd:neap-counters (deleted)",
        ] {
            assert_eq!(candidate(line), None, "{line:?}");
        }
    }
}
