//! Limits on huge pages: of this process, its group, and its cgroups.

use neap_hugetlb::{Root, size};
use neap_launch::units::bytes;

use super::mounts::Line;
use super::row::Row;
use super::settings::write;
use crate::sys;

/// From this value on a cgroup has no limit: the kernel rounds the maximum down to whole pages.
const NO_LIMIT: u64 = 1 << 60;

/// All limits that can be read.
pub fn rows(root: &Root, mounts: &[Line], sizes: &[u64]) -> Vec<Row> {
    let mut rows = vec![locked()];
    rows.extend(shared_memory_group(root));
    rows.extend(transparent());
    rows.extend(advised(sys::can_restrict()));
    let groups = root.read("/proc/self/cgroup").unwrap_or_default();
    rows.extend(sizes.iter().filter_map(|&bytes| cgroup(root, mounts, &groups, bytes)));
    rows
}

fn locked() -> Row {
    let limit = sys::locked_limit();
    let value = limit.map_or("unlimited".to_owned(), bytes);
    let means = match limit {
        None => "a program may lock all its memory",
        Some(_) => "a program may lock (mlock, MAP_LOCKED) that much; pages of a pool do not count",
    };
    Row { name: "ulimit -l".to_owned(), value, means: means.to_owned(), change: Some("ulimit -l unlimited".to_owned()) }
}

fn shared_memory_group(root: &Root) -> Option<Row> {
    let path = "/proc/sys/vm/hugetlb_shm_group";
    let value = root.read(path).ok()?;
    let means = match value.as_str() {
        "0" => "only root's group may make SysV segments of huge pages (SHM_HUGETLB)".to_owned(),
        group => format!("group {group} may make SysV segments of huge pages (SHM_HUGETLB)"),
    };
    Some(Row { name: "hugetlb_shm_group".to_owned(), value, means, change: write("$(id -g)", path) })
}

/// The setting of transparent huge pages for this process and its children.
fn transparent() -> Option<Row> {
    let (value, means, change) = match sys::transparent_disabled()? {
        0 => ("0", "this process may have transparent huge pages", None),
        flags if flags & 2 != 0 => {
            ("except advised", "this process has transparent huge pages only where it asks (MADV_HUGEPAGE)", Some(()))
        }
        _ => ("1", "this process has no transparent huge pages, whatever the settings say", Some(())),
    };
    let change = change.map(|()| "prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0) in the program that started it".to_owned());
    Some(Row { name: "PR_GET_THP_DISABLE".to_owned(), value: value.to_owned(), means: means.to_owned(), change })
}

/// The effect of option `huge=advised` here.
fn advised(can_restrict: Option<bool>) -> Option<Row> {
    let (value, means) = match can_restrict? {
        true => ("works", "a program on neap gets huge pages only where neap, or the program, asks for them"),
        false => ("as adaptive", "this kernel lacks PR_THP_DISABLE_EXCEPT_ADVISED (Linux 6.18)"),
    };
    Some(Row { name: "huge=advised".to_owned(), value: value.to_owned(), means: means.to_owned(), change: None })
}

/// The tightest limit of the cgroups of this process on pages of one size, v1 or v2.
fn cgroup(root: &Root, mounts: &[Line], groups: &str, page: u64) -> Option<Row> {
    let page_text = cgroup_size(page);
    let mut tightest: Option<(u64, String, u64)> = None;
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(own)) = (parts.next(), parts.next()) else { continue };
        let is_v2 = controllers.is_empty();
        if !is_v2 && controllers.split(',').all(|one| one != "hugetlb") {
            continue;
        }
        let mount = mounts.iter().find(|mount| match is_v2 {
            true => mount.kind == "cgroup2",
            false => mount.kind == "cgroup" && mount.has("hugetlb"),
        });
        let Some(mount) = mount else { continue };
        let (limit, used) = match is_v2 {
            true => ("max", "current"),
            false => ("limit_in_bytes", "usage_in_bytes"),
        };
        // In a container the path is that of the host, and its contents are at the root: the last of the list.
        let own = std::path::Path::new(own);
        let own = own.strip_prefix(&mount.root).unwrap_or(own);
        for group in std::path::Path::new(own.to_str()?.trim_start_matches('/')).ancestors() {
            let file = |what: &str| {
                mount.at.join(group).join(format!("hugetlb.{page_text}.{what}")).to_string_lossy().into_owned()
            };
            let Ok(value) = root.number(&file(limit)) else { continue };
            if value < NO_LIMIT && tightest.as_ref().is_none_or(|(least, ..)| value < *least) {
                tightest = Some((value, file(limit), root.number(&file(used)).unwrap_or(0)));
            }
        }
    }
    let (limit, path, used) = tightest?;
    Some(Row {
        name: format!("cgroup, pages of {}", size::text(page)),
        value: bytes(limit),
        means: format!(
            "programs of this cgroup may have that much of the pool, and have {}; beyond it: SIGBUS",
            bytes(used)
        ),
        change: write("BYTES", &path),
    })
}

/// `2MB`, `1GB`: as in the names of cgroup files.
fn cgroup_size(page: u64) -> String {
    format!("{}B", size::short(page))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::mounts::parse;
    use crate::testing::Tree;

    /// Catches a kernel that is reported to do what it refuses.
    #[test]
    fn what_advised_does() {
        let value = |can| advised(can).map(|row| row.value);
        assert_eq!(value(Some(true)).as_deref(), Some("works"));
        assert_eq!(value(Some(false)).as_deref(), Some("as adaptive"));
        assert_eq!(value(None), None);
        let before = sys::transparent_disabled();
        let _ = sys::can_restrict();
        assert_eq!(sys::transparent_disabled(), before, "put back");
    }

    /// Catches a limit that is missed: of a parent group, of either version, in a container.
    #[test]
    fn the_tightest_cgroup_counts() {
        let tree = Tree::new(&[
            ("/cg/hugetlb/a/b/hugetlb.2MB.limit_in_bytes", "8388608"),
            ("/cg/hugetlb/a/b/hugetlb.2MB.usage_in_bytes", "2097152"),
            ("/cg/hugetlb/a/hugetlb.2MB.limit_in_bytes", "4194304"),
            ("/cg/hugetlb/hugetlb.2MB.limit_in_bytes", "9223372036854771712"),
            ("/cg/v2/c/hugetlb.1GB.max", "max"),
            ("/cg/v2/hugetlb.1GB.max", "1073741824"),
        ]);
        let mounts =
            parse("1 1 0:1 / /cg/hugetlb rw - cgroup cgroup rw,hugetlb\n2 1 0:2 / /cg/v2 rw - cgroup2 cgroup2 rw\n");
        let groups = "5:memory:/x\n4:cpu,hugetlb:/a/b\n0::/c\n";
        let row = |page| cgroup(&tree.root(), &mounts, groups, page);
        let two = row(2 << 20).expect("a limit");
        assert_eq!(two.value, "4.0 MiB");
        assert!(two.change.expect("a command").ends_with("/cg/hugetlb/a/hugetlb.2MB.limit_in_bytes"));
        assert_eq!(row(1 << 30).expect("a limit").value, "1.0 GiB");
        assert_eq!(row(64 << 10), None);
        // A hierarchy that is not mounted here hides no other.
        let row = cgroup(&tree.root(), &mounts[1..], "4:hugetlb:/a/b\n0::/c\n", 1 << 30);
        assert_eq!(row.expect("a limit").value, "1.0 GiB");
    }
}
