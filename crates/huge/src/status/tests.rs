//! The status of copies of systems' files.

use super::read::{SCHEMA, Status};
use super::text;
use crate::testing::Tree;

const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";
const NODE: &str = "/sys/devices/system/node/node";

/// A machine with two nodes, pages of 2 MiB in use, and a kernel with settings by size.
fn machine() -> Tree {
    let node = |node: u32, name: &str| format!("{NODE}{node}/hugepages/hugepages-2048kB/{name}");
    let pool = |name: &str| format!("{POOL}/{name}");
    let mut files = vec![
        (pool("nr_hugepages"), "100"),
        (pool("free_hugepages"), "60"),
        (pool("resv_hugepages"), "20"),
        (pool("surplus_hugepages"), "4"),
        (pool("nr_overcommit_hugepages"), "10"),
    ];
    for (number, total) in [(0, "70"), (1, "30")] {
        files.push((node(number, "nr_hugepages"), total));
        files.push((node(number, "free_hugepages"), "30"));
        files.push((node(number, "surplus_hugepages"), "2"));
    }
    for (path, text) in [
        ("/proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu pse msr\n\nprocessor\t: 1\nflags\t\t: fpu pse msr"),
        ("/proc/sys/kernel/osrelease", "6.12.1-test"),
        ("/proc/self/mountinfo", "36 24 0:30 / /huge ro,relatime - hugetlbfs none rw,pagesize=2M"),
        ("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]"),
        ("/sys/kernel/mm/transparent_hugepage/khugepaged/max_ptes_none", "511"),
        ("/sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled", "always [inherit] madvise never"),
        (
            "/sys/kernel/mm/transparent_hugepage/hugepages-64kB/shmem_enabled",
            "always inherit within_size [advise] never",
        ),
        ("/sys/kernel/mm/transparent_hugepage/hugepages-2048kB/enabled", "always [inherit] madvise never"),
    ] {
        files.push((path.to_owned(), text));
    }
    let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
    Tree::new(&files)
}

/// Catches numbers of one pool, node or setting that are shown for another, and lines without a meaning or a command.
#[test]
fn a_machine_is_shown() {
    let tree = machine();
    let status = Status::read(&tree.root());
    assert_eq!(status.missing, [""; 0]);
    let text = text::text(&status);
    for line in [
        "Linux 6.12.1-test, OS pages of 4 KiB\n",
        "  pse      yes  has pages of 2 MiB\n  pdpe1gb  no   has no pages of 1 GiB\n",
        "  2 MiB      all         100          60          20           4          10\n",
        "               0          70          30                       2            \n",
        "  2 MiB: programs can have 40 pages more, 80.0 MiB; beyond the pool the kernel makes up to 6 on demand\n",
        "neap huge reserve N --size 2M -- CMD\n",
        "  /huge  2 MiB  read-only: programs can map files that are there, and make none\n",
        "      to change: mount -o remount,rw /huge\n",
        "never  programs get 2 MiB pages only by MADV_COLLAPSE\n",
        "      to change: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled\n",
        "511    khugepaged fills up to 511 absent pages of 512",
        "  64 KiB    inherit   advise         private memory: as the setting of all sizes says; shared memory: where programs ask\n",
        "  2 MiB     inherit   -              private memory: as the",
        "  ulimit -l",
    ] {
        assert!(text.contains(line), "no {line:?} in\n{text}");
    }
    let json = serde_json::to_value(&status).expect("JSON");
    assert_eq!(json["schema"], SCHEMA);
    assert_eq!((&json["pools"][0]["free"], &json["pools"][0]["nodes"][1]["total"]), (&60.into(), &30.into()));
    assert_eq!(json["transparent"][0]["value"], "never");
    assert_eq!(json["transparent_sizes"][0]["shmem_enabled"]["value"], "advise");
    assert_eq!(json["mounts"][0]["read_only"], true);
}

/// Catches a status that shows nothing where a part cannot be read, and a missing part without a message.
#[test]
fn what_is_missing_is_one_line_each() {
    let tree = Tree::new(&[("/proc/cpuinfo", "processor : 0\nFeatures : fp asimd")]);
    let status = Status::read(&tree.root());
    let text = text::text(&status);
    let (_, missing) = text.split_once("\nNot known\n").expect("a list");
    let starts = ["  pools: ", "  mounts: ", "  transparent huge pages: ", "  processor: "];
    assert_eq!(missing.lines().count(), starts.len(), "{missing}");
    assert!(missing.lines().zip(starts).all(|(line, start)| line.starts_with(start)), "{missing}");
    assert!(text.contains("  none: programs can have pages of a pool only without a file"), "{text}");
    assert!(text.contains("ulimit -l"), "{text}");
}

/// Catches an older kernel that counts as one without transparent huge pages, and unknown values.
#[test]
fn older_kernels() {
    let tree = Tree::new(&[
        ("/sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never"),
        ("/sys/kernel/mm/transparent_hugepage/defrag", "[sometimes]"),
        ("/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "0"),
        ("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "x"),
    ]);
    let status = Status::read(&tree.root());
    let about: Vec<&str> = status.missing.iter().filter_map(|line| line.split(':').next()).collect();
    assert_eq!(about, ["pool of 2 MiB", "pool of 1 GiB", "mounts", "settings by size", "processor"]);
    assert_eq!(status.transparent[0].value, "always");
    assert_eq!((status.transparent[1].value.as_str(), &status.transparent[1].change), ("sometimes", &None));
}

/// Catches the reservation of a neap that was killed, shown as one that is in use.
#[test]
fn reservations_are_shown() {
    let journal = "less /sys/devices/system/node/node0/hugepages/hugepages-2048kB 5\n\
                   less /sys/devices/system/node/node1/hugepages/hugepages-2048kB 4";
    let tree = Tree::new(&[("/run/neap-huge/7-100-0", journal), ("/run/neap-huge/8-1-0.new", "")]);
    let status = Status::read(&tree.root());
    let held = &status.reservations[0];
    assert_eq!((held.pid, held.alive, held.page_bytes, held.pages), (7, false, 2 << 20, 9));
}
