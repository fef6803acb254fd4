//! Parses lines of the kernel's text formats. Pure: no file is opened here.
//!
//! The result is `None` for a line of an unknown form: newer kernels and a container's own file systems may write other
//! lines, and these must not end a process.

use crate::system::lines::{number, unescape};

/// Which interface the memory controller has. Not from 0, which then stands for `None`: a static with none is all zero,
/// and takes no room in the library's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    /// The controller has a hierarchy of its own, or shares one with other controllers (`memory.limit_in_bytes`).
    V1 = 1,
    /// The unified hierarchy (`memory.max`).
    V2,
}

/// A line of /proc/self/mountinfo that mounts the wanted hierarchy. Both paths are escaped, as the kernel writes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mount<'a> {
    /// The cgroup that lies at the mount point.
    pub root: &'a [u8],
    /// Where it is mounted.
    pub point: &'a [u8],
}

/// Where a cgroup lies, seen from a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen<'a> {
    /// At this path below the mount point. The path is empty or starts with `/`.
    At(&'a [u8]),
    /// The mount does not show it. The mount point is the best guess: in a container it is the cgroup that the
    /// container was given, and a root of `/..` is a cgroup around this one.
    Unknown,
}

/// The number behind `key` and one or more spaces, in a line of memory.stat, or of /proc/meminfo (with the colon in
/// `key`).
pub(super) fn value(line: &[u8], key: &[u8]) -> Option<u64> {
    let rest = line.strip_prefix(key)?;
    if rest.first() != Some(&b' ') {
        return None;
    }
    number(rest.trim_ascii_start())
}

/// A line of /proc/meminfo, in bytes.
pub(super) fn kilobytes(line: &[u8], key: &[u8]) -> Option<u64> {
    value(line, key)?.checked_mul(1024)
}

/// The cgroup of a line of /proc/self/cgroup, `ID:CONTROLLER,CONTROLLER:PATH`, if the line is the memory controller's
/// (v1) or the unified hierarchy's (`0::PATH`).
///
/// A controller belongs to one hierarchy. So if there is a line of v1, the unified hierarchy has no memory files.
pub(super) fn group(line: &[u8]) -> Option<(Version, &[u8])> {
    let mut fields = line.splitn(3, |&b| b == b':');
    let (id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
    if path.first() != Some(&b'/') {
        return None;
    }
    if id == b"0" && controllers.is_empty() {
        return Some((Version::V2, path));
    }
    listed(controllers, b"memory").then_some((Version::V1, path))
}

/// The mount of a line of /proc/self/mountinfo, if it is of the hierarchy in which `version` has its memory files:
///
/// `35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:12 - cgroup cgroup rw,memory`
pub(super) fn mount(line: &[u8], version: Version) -> Option<Mount<'_>> {
    let mut fields = line.split(|&b| b == b' ');
    // The numbers of the mount, of its parent, and of the device come first.
    let root = fields.nth(3)?;
    let point = fields.next()?;
    // A dash ends the optional fields. The options of the mount come before these and are never a dash alone.
    fields.find(|&f| f == b"-")?;
    let kind = fields.next()?;
    let options = fields.nth(1)?;
    let wanted = match version {
        Version::V1 => kind == b"cgroup" && listed(options, b"memory"),
        Version::V2 => kind == b"cgroup2",
    };
    (wanted && root.first() == Some(&b'/') && point.first() == Some(&b'/')).then_some(Mount { root, point })
}

/// Where the cgroup `path` lies in a mount with the escaped `root`.
pub(super) fn seen<'a>(path: &'a [u8], root: &[u8]) -> Seen<'a> {
    // A path that starts with `/..` leads out of the cgroup namespace.
    let rest = if root == b"/" {
        if path == b"/.." || path.starts_with(b"/../") { None } else { Some(path) }
    } else {
        let mut rest = path.iter();
        unescape(root).all(|b| rest.next() == Some(&b)).then_some(rest.as_slice())
    };
    match rest {
        Some(b"/" | b"") => Seen::At(b""),
        Some(rest) if rest.first() == Some(&b'/') => Seen::At(rest),
        _ => Seen::Unknown,
    }
}

/// Hundredths of a percent of the last ten seconds in which some thread waited for memory, of the line
/// `some avg10=0.12 avg60=0.00 avg300=0.00 total=0`.
pub(super) fn pressure(line: &[u8]) -> Option<u64> {
    let text = line.strip_prefix(b"some avg10=")?;
    let dot = text.iter().position(|&b| b == b'.')?;
    let (whole, rest) = text.split_at_checked(dot)?;
    match *rest {
        [b'.', a @ b'0'..=b'9', b @ b'0'..=b'9', ..] => {
            number(whole)?.checked_mul(100)?.checked_add(u64::from((a - b'0') * 10 + (b - b'0')))
        }
        _ => None,
    }
}

/// Whether `list`, separated by commas, has `word`.
fn listed(list: &[u8], word: &[u8]) -> bool {
    list.split(|&b| b == b',').any(|w| w == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a key that is found as the start or the end of another.
    #[test]
    fn values() {
        assert_eq!(value(b"inactive_file 5492736", b"inactive_file"), Some(5_492_736));
        assert_eq!(value(b"total_inactive_file 7", b"inactive_file"), None);
        assert_eq!(value(b"inactive_files 7", b"inactive_file"), None);
        assert_eq!(value(b"inactive_file", b"inactive_file"), None);
        assert_eq!(value(b"inactive_file ", b"inactive_file"), None);
        assert_eq!(kilobytes(b"MemTotal:       24684092 kB", b"MemTotal:"), Some(24_684_092 * 1024));
        assert_eq!(kilobytes(b"MemTotal:       18446744073709551615 kB", b"MemTotal:"), None);
    }

    /// Catches another controller's line, and a path that is cut at its own colons.
    #[test]
    fn groups() {
        for (line, want) in [
            (&b"0::/"[..], Some((Version::V2, &b"/"[..]))),
            (
                b"0::/user.slice/user-1000.slice/user@1000.service",
                Some((Version::V2, b"/user.slice/user-1000.slice/user@1000.service")),
            ),
            (b"4:memory:/docker/1f3a", Some((Version::V1, b"/docker/1f3a"))),
            (b"3:cpu,memory,pids:/a:b/c d", Some((Version::V1, b"/a:b/c d"))),
            (b"9:name=systemd:/", None),
            (b"9:name=memory:/", None),
            (b"2:memory_recursiveprot:/", None),
            (b"8:pids:/", None),
            (b"0::", None),
            (b"0::relative", None),
            (b"4:memory", None),
            (b"::", None),
            (b"", None),
        ] {
            assert_eq!(group(line), want, "{}", line.escape_ascii());
        }
    }

    /// Catches fields counted from the wrong side of the optional ones.
    #[test]
    fn mounts() {
        let v1 = b"35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory";
        assert_eq!(mount(v1, Version::V1), Some(Mount { root: b"/", point: b"/sys/fs/cgroup/memory" }));
        assert_eq!(mount(v1, Version::V2), None);
        let both = b"30 23 0:26 /docker/ab /sys/fs/cgroup/cpu,memory ro,nosuid shared:9 master:2 - cgroup cgroup rw,cpu,memory";
        assert_eq!(mount(both, Version::V1), Some(Mount { root: b"/docker/ab", point: b"/sys/fs/cgroup/cpu,memory" }));
        let v2 = b"29 23 0:25 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot";
        assert_eq!(mount(v2, Version::V2), Some(Mount { root: b"/", point: b"/sys/fs/cgroup" }));
        assert_eq!(mount(v2, Version::V1), None);
        for line in [
            &b"36 31 0:33 / /sys/fs/cgroup/devices rw - cgroup cgroup rw,devices"[..],
            b"27 1 254:0 / / rw,relatime - ext4 /dev/vda rw",
            b"35 31 0:32 / /sys/fs/cgroup/memory rw,relatime",
            b"35 31 0:32 / /sys/fs/cgroup/memory rw,relatime -",
            b"35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup",
            b"35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup",
            b"35 31 0:32 net:[4026531840] /run/netns rw - cgroup cgroup rw,memory",
            b"35 31",
            b"- - - - - - -",
            b"",
        ] {
            assert_eq!(mount(line, Version::V1), None, "{}", line.escape_ascii());
        }
    }

    /// Catches a root that is compared without regard to the borders of names, to escapes, or to namespaces.
    #[test]
    fn paths_through_the_root() {
        for (path, root, want) in [
            (&b"/"[..], &b"/"[..], Seen::At(b"")),
            (b"/a/b", b"/", Seen::At(b"/a/b")),
            (b"/docker/ab", b"/docker/ab", Seen::At(b"")),
            (b"/docker/ab/inner", b"/docker/ab", Seen::At(b"/inner")),
            (b"/docker/abc", b"/docker/ab", Seen::Unknown),
            (b"/docker", b"/docker/ab", Seen::Unknown),
            (b"/a b/c", b"/a\\040b", Seen::At(b"/c")),
            (b"/a\\b/c", b"/a\\134b", Seen::At(b"/c")),
            (b"/", b"/../..", Seen::Unknown),
            (b"/../other", b"/", Seen::Unknown),
            (b"/..hidden", b"/", Seen::At(b"/..hidden")),
            (b"/../other/x", b"/../other", Seen::At(b"/x")),
        ] {
            assert_eq!(seen(path, root), want, "{} in {}", path.escape_ascii(), root.escape_ascii());
        }
    }

    /// Catches an escape that is cut off or out of range.
    #[test]
    fn escapes() {
        for (text, want) in [
            (&b"/a\\040b\\011c\\134"[..], &b"/a b\tc\\"[..]),
            (b"\\043", b"#"),
            (b"\\377", b"\xff"),
            (b"\\400", b"\\400"),
            (b"\\08", b"\\08"),
            (b"\\04", b"\\04"),
            (b"\\", b"\\"),
            (b"", b""),
        ] {
            assert!(unescape(text).eq(want.iter().copied()), "{}", text.escape_ascii());
        }
    }

    /// Catches the wrong line, the wrong average, or a percentage without its fraction.
    #[test]
    fn pressures() {
        for (line, want) in [
            (&b"some avg10=0.00 avg60=0.00 avg300=0.00 total=0"[..], Some(0)),
            (b"some avg10=10.05 avg60=99.00 avg300=0.00 total=12", Some(1005)),
            (b"some avg10=100.00", Some(10_000)),
            (b"full avg10=50.00 avg60=0.00 avg300=0.00 total=0", None),
            (b"some avg10=5", None),
            (b"some avg10=5.1", None),
            (b"some avg10=.00", None),
            (b"some avg10=", None),
            (b"", None),
        ] {
            assert_eq!(pressure(line), want, "{}", line.escape_ascii());
        }
    }

    /// Catches a panic on lines that are cut anywhere.
    #[test]
    fn cut_lines_do_no_harm() {
        for line in [
            &b"30 23 0:26 /docker/\\040ab /sys/fs/cgroup/cpu,memory ro shared:9 - cgroup cgroup rw,memory"[..],
            b"3:cpu,memory,pids:/a:b/c d",
            b"some avg10=10.05 avg60=99.00",
            b"inactive_file 5492736",
        ] {
            for (from, to) in (0..line.len()).flat_map(|i| (i..=line.len()).map(move |j| (i, j))) {
                let cut = &line[from..to];
                let _ = (group(cut), pressure(cut), number(cut), value(cut, b"inactive_file"), seen(b"/docker", cut));
                let _ = (mount(cut, Version::V1), mount(cut, Version::V2), unescape(cut).count());
            }
        }
    }
}
