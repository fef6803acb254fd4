//! The mount table of a process, `/proc/PID/mountinfo`:
//!
//! ```text
//! 36 24 0:30 / /dev/hugepages rw,relatime shared:15 - hugetlbfs hugetlbfs rw,pagesize=2M,mode=1770
//! ```

use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// A line of the mount table.
#[derive(Debug, PartialEq, Eq)]
pub struct Line {
    /// The device, major and minor.
    pub device: (u32, u32),
    /// The mount point.
    pub at: PathBuf,
    /// The part of the file system that is mounted there.
    pub root: PathBuf,
    /// The kind of file system.
    pub kind: String,
    /// Options of the mount and of the file system.
    pub options: Vec<String>,
}

impl Line {
    /// The value of an option `name=value`.
    pub fn option(&self, name: &str) -> Option<&str> {
        self.options.iter().find_map(|option| option.strip_prefix(name)?.strip_prefix('='))
    }

    /// Whether there is a plain option of that name.
    pub fn has(&self, name: &str) -> bool {
        self.options.iter().any(|option| option == name)
    }
}

/// The valid lines.
pub fn parse(text: &str) -> Vec<Line> {
    text.lines().filter_map(parse_line).collect()
}

fn parse_line(line: &str) -> Option<Line> {
    let (mount, system) = line.split_once(" - ")?;
    let mut fields = mount.split(' ').skip(2);
    let (major, minor) = fields.next()?.split_once(':')?;
    let device = (major.parse().ok()?, minor.parse().ok()?);
    let (root, at, own) = (unescape(fields.next()?), unescape(fields.next()?), fields.next()?);
    let mut fields = system.split(' ');
    let (kind, super_options) = (fields.next()?.to_owned(), fields.nth(1).unwrap_or(""));
    let options = own.split(',').chain(super_options.split(',')).map(str::to_owned).collect();
    Some(Line { device, at, root, kind, options })
}

/// Decodes a path of the kernel: blanks, tabs, line ends and backslashes are `\ooo`.
fn unescape(text: &str) -> PathBuf {
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()).filter(|_| first == b'\\') {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    std::ffi::OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// Catches paths that are not decoded, optional fields that shift the kind, and invalid lines that are accepted.
    #[test]
    fn lines_are_read() {
        let table =
            "36 35 0:25 /a\\134b /my\\040files\\011 rw,nosuid shared:1 master:2 - tmpfs none rw,size=9k\nbroken line\n";
        let [line] = &parse(table)[..] else { panic!("{:?}", parse(table)) };
        assert_eq!((line.device, line.kind.as_str(), line.option("size")), ((0, 25), "tmpfs", Some("9k")));
        assert_eq!((line.at.as_path(), line.root.as_path()), (Path::new("/my files\t"), Path::new("/a\\b")));
        assert!(line.has("nosuid") && !line.has("size"));
    }
}
