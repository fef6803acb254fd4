//! The kernel's text about a process. Numbers are in kB there, in bytes here.
//!
//! ```text
//! 55d0c8a00000-55d0c8a21000 rw-p 00000000 00:00 0                          [heap]
//! Size:                132 kB
//! Rss:                  12 kB
//! ...
//! VmFlags: rd wr mr mw me ac
//! ```

use crate::seen::{Figures, Mapping};

/// The mappings in `/proc/PID/smaps`, or in `/proc/PID/maps` (without figures).
pub fn smaps(text: &str) -> Vec<Mapping> {
    let mut all: Vec<Mapping> = Vec::new();
    for line in text.lines() {
        if let Some(mapping) = header(line) {
            all.push(mapping);
        } else if let Some(mapping) = all.last_mut() {
            match line.strip_prefix("VmFlags:") {
                Some(flags) => mapping.grows_down = flags.split_ascii_whitespace().any(|flag| flag == "gd"),
                None => figure(&mut mapping.figures, line),
            }
        }
    }
    all
}

/// The figures in `/proc/PID/smaps_rollup`.
pub fn rollup(text: &str) -> Figures {
    let mut figures = Figures::default();
    text.lines().skip(1).for_each(|line| figure(&mut figures, line));
    figures
}

/// A value in `/proc/PID/status`, `/proc/meminfo` or a similar file; in bytes if the file has kB.
pub fn value(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let mut words = line.split_ascii_whitespace();
    let number: u64 = words.next()?.parse().ok()?;
    Some(if words.next() == Some("kB") { number.saturating_mul(1024) } else { number })
}

/// The number after a name in a file with a pair on each line, such as `memory.stat` of a cgroup.
pub fn pair(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

/// The line that begins a mapping.
fn header(line: &str) -> Option<Mapping> {
    let mut fields = line.splitn(6, ' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let (access, offset) = (fields.next()?.as_bytes(), fields.next()?);
    let (major, minor) = fields.next()?.split_once(':')?;
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    let range = number(start)?..number(end)?;
    let inode = fields.next()?.parse().ok()?;
    let name = fields.next().unwrap_or("").trim_start();
    (range.start < range.end && access.len() == 4).then(|| Mapping {
        read: access[0] == b'r',
        write: access[1] == b'w',
        execute: access[2] == b'x',
        shared: access[3] == b's',
        offset: number(offset).unwrap_or(0),
        device: (number(major).unwrap_or(0) as u32, number(minor).unwrap_or(0) as u32),
        inode,
        name: name.to_owned(),
        range,
        ..Mapping::default()
    })
}

fn figure(figures: &mut Figures, line: &str) {
    let Some((name, rest)) = line.split_once(':') else { return };
    let Some(number) = rest.split_ascii_whitespace().next().and_then(|text| text.parse::<u64>().ok()) else { return };
    let bytes = number.saturating_mul(1024);
    let field = match name {
        "Rss" => &mut figures.rss,
        "Pss" => &mut figures.pss,
        "Shared_Clean" => &mut figures.shared_clean,
        "Shared_Dirty" => &mut figures.shared_dirty,
        "Private_Clean" => &mut figures.private_clean,
        "Private_Dirty" => &mut figures.private_dirty,
        "Anonymous" => &mut figures.anonymous,
        "AnonHugePages" => &mut figures.anon_huge,
        "LazyFree" => &mut figures.lazy_free,
        "Shared_Hugetlb" | "Private_Hugetlb" => {
            figures.hugetlb += bytes;
            return;
        }
        "Swap" => &mut figures.swap,
        "Locked" => &mut figures.locked,
        _ => return,
    };
    *field = bytes;
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
55d0c8a00000-55d0c8a21000 rw-p 00000000 00:00 0                          [heap]
Size:                132 kB
Rss:                  12 kB
Pss:                  11 kB
Private_Dirty:        12 kB
Anonymous:            12 kB
Private_Hugetlb:       4 kB
Shared_Hugetlb:        2 kB
Swap:                  8 kB
VmFlags: rd wr mr mw me ac sd
7f00-8000 r--p 00001000 08:01 77                         /lib/a b.so (deleted)
Rss:                   4 kB
7ffc0000-7ffd0000 rw-p 00000000 00:00 0                          [stack]
VmFlags: rd wr mr mw me gd ac
";

    /// Catches figures that go to another mapping, names with blanks that are cut, and flags that are not seen.
    #[test]
    fn mappings_have_their_figures() {
        let all = smaps(SMAPS);
        assert_eq!(all.len(), 3);
        let (heap, library) = (&all[0], &all[1]);
        assert_eq!((heap.bytes(), heap.figures.rss, heap.figures.pss), (132 << 10, 12 << 10, 11 << 10));
        assert_eq!((heap.figures.hugetlb, heap.figures.swap, heap.is_nameless()), (6 << 10, 8 << 10, false));
        assert_eq!((library.name.as_str(), library.inode, library.device), ("/lib/a b.so (deleted)", 77, (8, 1)));
        assert_eq!((library.offset, library.write, library.figures.rss), (0x1000, false, 4 << 10));
        assert!(all[2].grows_down && !heap.grows_down);
        for torn in ["", "x", "1-2", "1-2 rw-p", "2-1 rw-p 0 00:00 0", "1-2 rw 0 00:00 0", "Rss: 4 kB"] {
            assert_eq!(smaps(torn), [], "{torn:?}");
        }
    }

    /// Catches numbers with the wrong unit, and a name that is taken for a longer one.
    #[test]
    fn values_are_found() {
        let status = "Name:\tx\nVmPTE:\t     400 kB\nVmPTEx:\t1 kB\nThreads:\t7\n";
        assert_eq!(
            (value(status, "VmPTE"), value(status, "Threads"), value(status, "Vm")),
            (Some(409_600), Some(7), None)
        );
        assert_eq!((pair("file 12\nfile_dirty 3\n", "file"), pair("file_dirty 3\n", "file")), (Some(12), None));
        let text = "55d0-7ff0 ---p 00000000 00:00 0      [rollup]\nRss:      100 kB\nPss:    50 kB\n";
        assert_eq!((rollup(text).rss, rollup(text).pss), (102_400, 51_200));
    }
}
