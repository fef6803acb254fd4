//! The mounts of hugetlbfs, and where cgroups are, from `/proc/self/mountinfo`:
//!
//! ```text
//! 36 24 0:30 / /dev/hugepages rw,relatime shared:15 - hugetlbfs hugetlbfs rw,pagesize=2M,mode=1770
//! ```

use std::path::PathBuf;

use neap_hugetlb::size;
pub use neap_launch::mounts::{Line, parse};
use serde::Serialize;

/// A mount of hugetlbfs.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Mount {
    /// The mount point.
    pub path: PathBuf,
    /// The size of its pages; `None` on kernels that do not report it.
    pub page_bytes: Option<u64>,
    /// Whether it is read-only.
    pub read_only: bool,
    /// The owner and the mode of the folder, as mounted; `None`: the kernel's default.
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub mode: Option<String>,
    /// Limit on its files together, and the memory set aside for them; as the kernel writes it.
    pub size: Option<String>,
    pub min_size: Option<String>,
    /// Limit on the number of its files.
    pub nr_inodes: Option<String>,
    /// Whether this user may make files there.
    pub writable: bool,
}

/// The mounts of hugetlbfs among the lines; `may_write` says whether this user may write to a folder.
pub fn hugetlbfs(lines: &[Line], may_write: impl Fn(&std::path::Path) -> bool) -> Vec<Mount> {
    let mount = |line: &Line| {
        let text = |name| line.option(name).map(str::to_owned);
        let number = |name| line.option(name).and_then(|text| text.parse().ok());
        let read_only = line.has("ro");
        Mount {
            path: line.at.clone(),
            page_bytes: line.option("pagesize").and_then(size::parse),
            read_only,
            uid: number("uid"),
            gid: number("gid"),
            mode: text("mode"),
            size: text("size"),
            min_size: text("min_size"),
            nr_inodes: text("nr_inodes"),
            writable: !read_only && may_write(&line.at),
        }
    };
    lines.iter().filter(|line| line.kind == "hugetlbfs").map(mount).collect()
}

impl Mount {
    /// Its meaning in words.
    pub fn means(&self) -> String {
        let mut parts = vec![match (self.read_only, self.writable) {
            (true, _) => "read-only: programs can map files that are there, and make none".to_owned(),
            (_, false) => "this user may not make files there".to_owned(),
            (_, true) => "programs of this user can make files there and map them".to_owned(),
        }];
        let mut note = |name: &str, value: Option<String>| {
            parts.extend(value.map(|value| format!("{name} {value}")));
        };
        note("uid", self.uid.map(|uid| uid.to_string()));
        note("gid", self.gid.map(|gid| gid.to_string()));
        note("mode", self.mode.clone());
        note("at most", self.size.clone());
        note("set aside", self.min_size.clone());
        note("files at most", self.nr_inodes.clone());
        parts.join(", ")
    }

    /// The command that would make it usable; `None` if it is.
    pub fn change(&self) -> Option<String> {
        let path = self.path.display();
        match (self.read_only, self.writable) {
            (true, _) => Some(format!("mount -o remount,rw {path}")),
            (_, false) => Some(format!("chmod 1777 {path}")),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
24 1 0:21 / /sys rw,nosuid shared:2 - sysfs sysfs rw
36 24 0:30 / /dev/hugepages rw,relatime shared:15 - hugetlbfs hugetlbfs rw,pagesize=2M
37 24 0:31 / /mnt/with\\040blank ro,relatime - hugetlbfs none rw,uid=7,gid=8,mode=1770,size=4194304K,min_size=2048K,nr_inodes=10,pagesize=1024M
38 24 0:32 / /old rw - hugetlbfs none rw
40 24 0:33 /inner /sys/fs/cgroup/hugetlb rw - cgroup cgroup rw,hugetlb
broken line
";

    /// Catches mounts that are missed, options of another mount, and a read-only one that counts as usable.
    #[test]
    fn mounts_are_read() {
        let lines = parse(TABLE);
        assert_eq!(lines.len(), 5);
        assert!(lines[4].has("hugetlb") && lines[4].root.as_os_str() == "/inner");
        let mounts = hugetlbfs(&lines, |path| path.starts_with("/dev"));
        let [first, second, third] = &mounts[..] else { panic!("{mounts:?}") };
        assert_eq!((first.page_bytes, first.read_only, first.writable), (Some(2 << 20), false, true));
        assert_eq!((second.path.to_str(), second.page_bytes), (Some("/mnt/with blank"), Some(1 << 30)));
        assert_eq!((second.uid, second.gid, second.mode.as_deref()), (Some(7), Some(8), Some("1770")));
        assert!(second.read_only && !second.writable);
        assert!(
            second.means().contains("read-only")
                && second
                    .means()
                    .ends_with("uid 7, gid 8, mode 1770, at most 4194304K, set aside 2048K, files at most 10")
        );
        assert_eq!(second.change().as_deref(), Some("mount -o remount,rw /mnt/with blank"));
        assert_eq!((third.page_bytes, third.writable), (None, false));
        assert_eq!((first.change(), third.change().as_deref()), (None, Some("chmod 1777 /old")));
    }
}
