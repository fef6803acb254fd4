//! The mappings of a process: the text of `/proc/PID/maps` and `/proc/PID/smaps`. Numbers are in kB there, in bytes
//! here.
//!
//! ```text
//! 55d0c8a00000-55d0c8a21000 rw-p 00000000 00:00 0                          [heap]
//! Size:                132 kB
//! Rss:                  12 kB
//! ...
//! VmFlags: rd wr mr mw me ac
//! ```

use crate::file::Identity;
use std::ops::Range;

/// One line of `maps`: `55cef134c000-55cef1372000 r--p 00000000 fe:00 247493    /usr/bin/ls`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapsLine<'t> {
    /// The first address.
    pub start: u64,
    /// The address behind the last one.
    pub end: u64,
    /// `rwxp`, as printed.
    pub flags: &'t [u8],
    /// Position in the file.
    pub offset: u64,
    /// The device of the file, as (major, minor).
    pub device: (u32, u32),
    /// The inode, 0 without a file.
    pub inode: u64,
    /// The path or name; empty for anonymous memory.
    pub path: &'t [u8],
}

impl MapsLine<'_> {
    /// Its addresses.
    pub fn range(&self) -> Range<u64> {
        self.start..self.end
    }

    /// The file's identity.
    pub fn identity(&self) -> Identity {
        Identity { device: self.device, inode: self.inode }
    }

    /// The path or name as text.
    pub fn name(&self) -> String {
        String::from_utf8_lossy(self.path).into_owned()
    }
}

/// The valid lines; others are skipped.
pub fn parse_maps(text: &[u8]) -> impl Iterator<Item = MapsLine<'_>> {
    text.split(|&byte| byte == b'\n').filter_map(parse_line)
}

fn parse_line(line: &[u8]) -> Option<MapsLine<'_>> {
    let mut rest = line;
    let range = word(&mut rest)?;
    let dash = range.iter().position(|&byte| byte == b'-')?;
    let flags = word(&mut rest).filter(|flags| flags.len() >= 4)?;
    let offset = number(word(&mut rest)?, 16)?;
    let device = word(&mut rest)?;
    let colon = device.iter().position(|&byte| byte == b':')?;
    let half = |digits| number(digits, 16).and_then(|number| u32::try_from(number).ok());
    let device = (half(&device[..colon])?, half(&device[colon + 1..])?);
    let inode = number(word(&mut rest)?, 10)?;
    let start = rest.iter().position(|&byte| byte != b' ').unwrap_or(rest.len());
    let (start_address, end_address) = (number(&range[..dash], 16)?, number(&range[dash + 1..], 16)?);
    (start_address < end_address).then_some(MapsLine {
        start: start_address,
        end: end_address,
        flags,
        offset,
        device,
        inode,
        path: &rest[start..],
    })
}

fn word<'t>(rest: &mut &'t [u8]) -> Option<&'t [u8]> {
    let end = rest.iter().position(|&byte| byte == b' ').unwrap_or(rest.len());
    let (word, after) = rest.split_at(end);
    *rest = after.get(1..).unwrap_or_default();
    (!word.is_empty()).then_some(word)
}

fn number(digits: &[u8], radix: u32) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, radix).ok()
}

/// The kernel's figures of a mapping, or of all of them: those of smaps, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the kernel's, see proc_pid_smaps(5)")]
pub struct Figures {
    pub rss: u64,
    pub pss: u64,
    pub shared_clean: u64,
    pub shared_dirty: u64,
    pub private_clean: u64,
    pub private_dirty: u64,
    pub anonymous: u64,
    pub anon_huge: u64,
    /// `ShmemPmdMapped` and `FilePmdMapped`.
    pub other_huge: u64,
    pub lazy_free: u64,
    /// `Shared_Hugetlb` and `Private_Hugetlb`.
    pub hugetlb: u64,
    pub swap: u64,
    pub locked: u64,
}

impl Figures {
    /// The sum of each figure.
    pub fn plus(mut self, other: &Figures) -> Figures {
        for (to, from) in [
            (&mut self.rss, other.rss),
            (&mut self.pss, other.pss),
            (&mut self.shared_clean, other.shared_clean),
            (&mut self.shared_dirty, other.shared_dirty),
            (&mut self.private_clean, other.private_clean),
            (&mut self.private_dirty, other.private_dirty),
            (&mut self.anonymous, other.anonymous),
            (&mut self.anon_huge, other.anon_huge),
            (&mut self.other_huge, other.other_huge),
            (&mut self.lazy_free, other.lazy_free),
            (&mut self.hugetlb, other.hugetlb),
            (&mut self.swap, other.swap),
            (&mut self.locked, other.locked),
        ] {
            *to = to.saturating_add(from);
        }
        self
    }
}

/// A set of the two-letter flags in `VmFlags`, of those that are in the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(u16);

impl Flags {
    /// The kernel can grow it downward, as it does with `[stack]`.
    pub const GROWS_DOWN: &str = "gd";
    /// Pages of a pool.
    pub const POOL: &str = "ht";
    /// `GROWS_DOWN`, pools, devices, frame numbers, no huge pages, userfaultfd (missing, write, minor).
    const KNOWN: [&str; 8] = [Self::GROWS_DOWN, Self::POOL, "io", "pf", "nh", "um", "uw", "ui"];

    /// The flags in the text after `VmFlags:`.
    fn parse(text: &str) -> Self {
        Flags(text.split_ascii_whitespace().fold(0, |set, flag| set | Self::bit(flag)))
    }

    fn bit(flag: &str) -> u16 {
        Self::KNOWN.iter().position(|known| *known == flag).map_or(0, |at| 1 << at)
    }

    /// Whether one of these is set.
    pub fn any(self, flags: &[&str]) -> bool {
        flags.iter().any(|flag| self.0 & Self::bit(flag) != 0)
    }
}

/// A mapping.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Mapping {
    /// Its addresses.
    pub range: Range<u64>,
    /// May be read.
    pub read: bool,
    /// May be written.
    pub write: bool,
    /// May be executed.
    pub execute: bool,
    /// Shared, not private.
    pub shared: bool,
    /// Offset in the file.
    pub offset: u64,
    /// Device, major and minor.
    pub device: (u32, u32),
    /// Inode; 0 for none.
    pub inode: u64,
    /// The kernel's name for it; empty for none.
    pub name: String,
    /// The kernel's figures.
    pub figures: Figures,
    /// The size of its pages: larger than an OS page for pages of a pool; 0 if unknown.
    pub page: u64,
    /// The kernel can grow it downward, as it does with `[stack]`.
    pub grows_down: bool,
    /// Its flags.
    pub flags: Flags,
}

impl Mapping {
    /// Addresses.
    pub fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Whether it is private memory without a file or a name.
    pub fn is_nameless(&self) -> bool {
        self.name.is_empty() && self.inode == 0 && !self.shared
    }

    /// Bytes of its private memory that another process has too, since a fork.
    pub fn forked(&self) -> u64 {
        let f = &self.figures;
        if self.shared { 0 } else { (f.shared_clean + f.shared_dirty).min(f.anonymous) }
    }

    /// Whether it has no access.
    pub fn is_closed(&self) -> bool {
        !self.read && !self.write && !self.execute
    }

    /// `rwxp`, as the kernel prints it.
    pub fn permissions(&self) -> String {
        let letter = |is: bool, letter: char| if is { letter } else { '-' };
        let kind = if self.shared { 's' } else { 'p' };
        [letter(self.read, 'r'), letter(self.write, 'w'), letter(self.execute, 'x'), kind].into_iter().collect()
    }

    fn of(line: &MapsLine<'_>) -> Self {
        let is = |at: usize, letter: u8| line.flags.get(at) == Some(&letter);
        Mapping {
            range: line.range(),
            read: is(0, b'r'),
            write: is(1, b'w'),
            execute: is(2, b'x'),
            shared: is(3, b's'),
            offset: line.offset,
            device: line.device,
            inode: line.inode,
            name: line.name(),
            ..Mapping::default()
        }
    }
}

/// The mappings in `/proc/PID/smaps`, or in `/proc/PID/maps` (without figures).
pub fn smaps(text: &str) -> Vec<Mapping> {
    let mut all: Vec<Mapping> = Vec::new();
    for line in text.lines() {
        // Figures begin with a capital letter, mappings with a digit of their address.
        if !line.starts_with(|first: char| first.is_ascii_uppercase())
            && let Some(line) = parse_line(line.as_bytes())
        {
            all.push(Mapping::of(&line));
        } else if let Some(mapping) = all.last_mut() {
            match line.split_once(':') {
                Some(("VmFlags", flags)) => {
                    mapping.flags = Flags::parse(flags);
                    mapping.grows_down = mapping.flags.any(&[Flags::GROWS_DOWN]);
                }
                Some(("KernelPageSize", size)) => mapping.page = kilobytes(size).unwrap_or(0),
                Some((name, value)) => figure(&mut mapping.figures, name, value),
                None => {}
            }
        }
    }
    all
}

/// The figures in `/proc/PID/smaps_rollup`.
pub fn rollup(text: &str) -> Figures {
    let mut figures = Figures::default();
    for (name, value) in text.lines().skip(1).filter_map(|line| line.split_once(':')) {
        figure(&mut figures, name, value);
    }
    figures
}

fn kilobytes(value: &str) -> Option<u64> {
    let number: u64 = value.split_ascii_whitespace().next()?.parse().ok()?;
    Some(number.saturating_mul(1024))
}

fn figure(figures: &mut Figures, name: &str, value: &str) {
    let field = match name {
        "Rss" => &mut figures.rss,
        "Pss" => &mut figures.pss,
        "Shared_Clean" => &mut figures.shared_clean,
        "Shared_Dirty" => &mut figures.shared_dirty,
        "Private_Clean" => &mut figures.private_clean,
        "Private_Dirty" => &mut figures.private_dirty,
        "Anonymous" => &mut figures.anonymous,
        "AnonHugePages" => &mut figures.anon_huge,
        "ShmemPmdMapped" | "FilePmdMapped" => &mut figures.other_huge,
        "LazyFree" => &mut figures.lazy_free,
        "Shared_Hugetlb" | "Private_Hugetlb" => &mut figures.hugetlb,
        "Swap" => &mut figures.swap,
        "Locked" => &mut figures.locked,
        _ => return,
    };
    *field = field.saturating_add(kilobytes(value).unwrap_or(0));
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
55d0c8a00000-55d0c8a21000 rw-p 00000000 00:00 0                          [heap]
Size:                132 kB
KernelPageSize:        4 kB
Rss:                  12 kB
Pss:                  11 kB
Private_Dirty:        12 kB
Anonymous:            12 kB
ShmemPmdMapped:     2048 kB
FilePmdMapped:      2048 kB
Private_Hugetlb:       4 kB
Shared_Hugetlb:        2 kB
Swap:                  8 kB
VmFlags: rd wr mr mw me ac sd uw
7f00-8000 r--p 00001000 08:01 77                         /lib/a b.so (deleted)
Rss:                   4 kB
7f0001000000-7f0041000000 rw-s 00000000 00:10 77                         /anon_hugepage (deleted)
KernelPageSize:  1048576 kB
VmFlags: rd wr sh mr mw me ms de ht sd
7ffc0000-7ffd0000 rw-p 00000000 00:00 0                          [stack]
VmFlags: rd wr mr mw me gd ac
";

    /// Catches figures that go to another mapping, names with blanks that are cut, and flags that are not seen.
    #[test]
    fn mappings_have_their_figures() {
        let all = smaps(SMAPS);
        let heap = &all[0];
        assert_eq!((all.len(), heap.range.clone()), (4, 0x55d0_c8a0_0000..0x55d0_c8a2_1000));
        let figures = Figures {
            rss: 12 << 10,
            pss: 11 << 10,
            private_dirty: 12 << 10,
            anonymous: 12 << 10,
            other_huge: 4 << 20,
            hugetlb: 6 << 10,
            swap: 8 << 10,
            ..Figures::default()
        };
        assert_eq!((heap.name.as_str(), heap.permissions(), heap.figures), ("[heap]", "rw-p".into(), figures));
        assert!(heap.flags.any(&["um", "uw"]) && !heap.flags.any(&["nh", "gd", "xx"]));
        let library = &all[1];
        assert_eq!((library.name.as_str(), library.offset), ("/lib/a b.so (deleted)", 0x1000));
        assert_eq!((library.device, library.inode, library.figures.rss), ((8, 1), 77, 4 << 10));
        assert!(library.read && !library.write && !library.execute && !library.shared && !library.grows_down);
        assert!(all[2].shared && all[2].flags.any(&[Flags::POOL]) && all[2].page == 1 << 30);
        assert!(all[3].grows_down && all[3].name == "[stack]");
    }

    /// Catches torn and empty texts that are trusted.
    #[test]
    fn torn_texts() {
        for torn in ["", "x", "7f00-8000 r--p", "8000-7f00 r--p 0 08:01 77 /a", "7f00-8000 r-p 0 08:01 77 /a\n"] {
            assert_eq!(smaps(torn), [], "{torn:?}");
        }
    }

    /// Catches a summary whose figures are not read.
    #[test]
    fn sums() {
        let sum = rollup("7f00-8000 ---p 00000000 00:00 0    [rollup]\nRss:   70000 kB\nPss:  9 kB\nSwap: 1 kB\n");
        assert_eq!((sum.rss, sum.pss, sum.swap), (70_000 << 10, 9 << 10, 1 << 10));
        assert_eq!((sum.plus(&sum).rss, Figures::default().plus(&sum)), (140_000 << 10, sum));
    }
}
