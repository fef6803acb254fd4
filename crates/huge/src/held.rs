//! Pages of a pool that no process has: those of files of hugetlbfs and of System V segments that programs have left.
//!
//! ```text
//! $ cat /proc/sysvipc/shm
//!  key shmid perms size cpid lpid nattch uid gid cuid cgid atime dtime ctime rss swap
//! ```

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;

use neap_hugetlb::{Root, size};
use neap_launch::mounts::Line;
use neap_launch::units::counted;
use serde::Serialize;

use crate::sys::Segment;

/// Limit on the files that are looked at in each mount, and on the folders within each other.
const FILES: usize = 10_000;
const DEPTH: u32 = 32;

/// What holds pages, and no process has it open or mapped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Left {
    /// The size of its pages.
    pub page_bytes: u64,
    pub pages: u64,
    /// The path of a file; `None` for a segment.
    pub file: Option<PathBuf>,
    /// The number of a System V segment.
    pub segment: Option<i32>,
    /// The command that ends it, if its name can be typed.
    pub change: Option<String>,
}

impl Left {
    /// `20 pages of 2 MiB: file /mnt/huge/a, which no process has`.
    pub fn text(&self) -> String {
        let pages = format!("{} of {}", counted(self.pages, "page", "pages"), size::text(self.page_bytes));
        match (&self.file, self.segment) {
            (Some(path), _) => format!("{pages}: file {}, which no process has", path.display()),
            (None, Some(id)) => format!("{pages}: System V segment {id}, which no process has"),
            (None, None) => pages,
        }
    }
}

/// All of them, the largest first. `segment_of` returns the pages of a segment, if they can be
/// known.
pub fn left(root: &Root, mounts: &[Line], segment_of: impl Fn(i32) -> Option<Segment>) -> Vec<Left> {
    let mut all = files(root, mounts);
    if !all.is_empty() {
        let used = used(root, &mounts.iter().map(|mount| mount.device).collect());
        all.retain(|(of, _)| !used.contains(of));
    }
    let mut all: Vec<Left> = all.into_iter().map(|(_, left)| left).collect();
    let segments = root.read("/proc/sysvipc/shm").unwrap_or_default();
    all.extend(segments.lines().skip(1).filter_map(|line| segment(line, &segment_of)));
    all.sort_by_key(|left| std::cmp::Reverse(left.pages * left.page_bytes));
    all
}

/// Device and inode.
type File = ((u32, u32), u64);

/// The files of hugetlbfs that hold pages.
fn files(root: &Root, mounts: &[Line]) -> Vec<(File, Left)> {
    let mut all: Vec<(File, Left)> = Vec::new();
    for mount in mounts.iter().filter(|mount| mount.kind == "hugetlbfs") {
        let Some(page_bytes) = mount.option("pagesize").and_then(size::parse) else { continue };
        let Some(top) = mount.at.to_str() else { continue };
        let (mut folders, mut looked) = (vec![(root.path(top), 0)], 0);
        while let Some((folder, depth)) = folders.pop() {
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                looked += 1;
                let Ok(of) = entry.metadata() else { continue };
                if of.is_dir() && depth < DEPTH && looked < FILES {
                    folders.push((entry.path(), depth + 1));
                }
                let (pages, file) = (of.blocks() * 512 / page_bytes, (mount.device, of.ino()));
                // A file system may be mounted twice.
                let is_new = all.iter().all(|(known, _)| *known != file);
                if looked >= FILES || !of.is_file() || of.file_type().is_socket() || pages == 0 || !is_new {
                    continue;
                }
                let path = entry.path();
                let change = path.to_str().and_then(word).map(|word| format!("rm {word}"));
                all.push((file, Left { page_bytes, pages, file: Some(path), segment: None, change }));
            }
        }
    }
    all
}

/// The files of these devices that a process has open or mapped. A process that this user may not read counts as one
/// that has none.
fn used(root: &Root, devices: &BTreeSet<(u32, u32)>) -> BTreeSet<File> {
    let mut used = BTreeSet::new();
    for pid in root.names("/proc", "").unwrap_or_default().iter().filter(|name| name.parse::<u32>().is_ok()) {
        let maps = root.read(&format!("/proc/{pid}/maps")).unwrap_or_default();
        used.extend(maps.lines().filter_map(mapped));
        for entry in fs::read_dir(root.path(&format!("/proc/{pid}/fd"))).into_iter().flatten().flatten() {
            let Ok(of) = fs::metadata(entry.path()) else { continue };
            used.insert(((libc::major(of.dev()), libc::minor(of.dev())), of.ino()));
        }
    }
    used.retain(|(device, _)| devices.contains(device));
    used
}

/// The file of a line of `maps`: `7f00-7f20 rw-s 00000000 00:2f 77   /mnt/huge/a`.
fn mapped(line: &str) -> Option<File> {
    let mut fields = line.split_ascii_whitespace().skip(3);
    let (major, minor) = fields.next()?.split_once(':')?;
    let number = |text: &str| u32::from_str_radix(text, 16).ok();
    Some(((number(major)?, number(minor)?), fields.next()?.parse().ok()?))
}

/// The segment of a line, if it is of huge pages and no process has it.
fn segment(line: &str, segment_of: impl Fn(i32) -> Option<Segment>) -> Option<Left> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    let (id, processes, rss) = (fields.get(1)?.parse().ok()?, number(6)?, number(14)?);
    if processes > 0 || rss == 0 {
        return None;
    }
    let Segment { page_bytes, held } = segment_of(id)?;
    let (is_huge, change) = (page_bytes > neap_launch::sys::page_size() as u64, Some(format!("ipcrm -m {id}")));
    is_huge.then_some(Left { page_bytes, pages: held / page_bytes, file: None, segment: Some(id), change })
}

/// A path as one word of a shell.
fn word(path: &str) -> Option<String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+,:=@%".contains(c);
    match () {
        () if path.chars().any(char::is_control) => None,
        () if path.chars().all(plain) => Some(path.to_owned()),
        () => Some(format!("'{}'", path.replace('\'', "'\\''"))),
    }
}

/// The mounts of this process.
pub fn mounts(root: &Root) -> Vec<Line> {
    neap_launch::mounts::parse(&root.read("/proc/self/mountinfo").unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    /// Catches pages of a file or a segment that no process has and that are not named, and those that one has.
    #[test]
    fn what_was_left_is_named() {
        let shm = "key shmid perms size cpid lpid nattch uid gid cuid cgid atime dtime ctime rss swap\n\
                   0 7 600 62914560 1 1 0 0 0 0 0 0 0 0 62914560 0\n\
                   0 8 600 62914560 1 1 2 0 0 0 0 0 0 0 62914560 0\n\
                   0 9 600 4096 1 1 0 0 0 0 0 0 0 0 4096 0\n\
                   0 10 600 4194304 1 1 0 0 0 0 0 0 0 0 0 0";
        let file = "x".repeat(9000);
        let tree = Tree::new(&[("/proc/sysvipc/shm", shm), ("/huge/a/left b", &file), ("/huge/used", &file)]);
        let root = tree.root();
        let used = fs::metadata(root.path("/huge/used")).expect("a file");
        let maps = format!("7f00-7f20 rw-s 00000000 00:2f {}   /huge/used", used.ino());
        fs::create_dir_all(root.path("/proc/12"))
            .and_then(|()| fs::write(root.path("/proc/12/maps"), maps))
            .expect("it");
        // The tree's files are in OS pages.
        let mounts = neap_launch::mounts::parse("36 24 0:47 / /huge rw - hugetlbfs none rw,pagesize=4K");
        let segment = |id| match id {
            9 => Some(Segment { page_bytes: 4096, held: 4096 }),
            _ => Some(Segment { page_bytes: 2 << 20, held: 60 << 20 }),
        };
        let left = left(&root, &mounts, segment);
        let names: Vec<String> = left.iter().map(Left::text).collect();
        assert_eq!(left.len(), 2, "{names:?}");
        assert_eq!(names[0], "30 pages of 2 MiB: System V segment 7, which no process has");
        assert_eq!(left[0].change.as_deref(), Some("ipcrm -m 7"));
        assert!(
            names[1].contains("left b, which no process has")
                && left[1].change.as_ref().is_some_and(|rm| rm.ends_with("left b'")),
            "{left:?}"
        );
    }
}
