//! The status as text: a section for each part, a line for each value with its meaning, and below it the command that
//! would change it.

use neap_hugetlb::size;
use neap_launch::units::{count, counted};

use super::read::{PoolEntry, Status};
use super::row::Row;
use super::settings::THP;

/// How many files and segments without a process are shown.
const SHOWN: usize = 10;

/// The whole text.
pub fn text(status: &Status) -> String {
    let mut text = match &status.kernel {
        Some(kernel) => format!("Linux {kernel}, OS pages of {}\n", size::text(status.page_bytes)),
        None => format!("OS pages of {}\n", size::text(status.page_bytes)),
    };
    section(&mut text, "Processor", &status.processor);
    pools(&mut text, status);
    mounts(&mut text, status);
    section(&mut text, "Transparent huge pages: by the kernel itself, for ordinary memory", &status.transparent);
    by_size(&mut text, status);
    section(&mut text, "Limits of this process", &status.limits);
    if !status.missing.is_empty() {
        text.push_str("\nNot known\n");
        status.missing.iter().for_each(|why| text.push_str(&format!("  {why}\n")));
    }
    text
}

fn section(text: &mut String, title: &str, rows: &[Row]) {
    if rows.is_empty() {
        return;
    }
    text.push_str(&format!("\n{title}\n"));
    let names = rows.iter().map(|row| row.name.len()).max().unwrap_or(0);
    let values = rows.iter().map(|row| row.value.len()).max().unwrap_or(0);
    for row in rows {
        text.push_str(&format!("  {:names$}  {:values$}  {}\n", row.name, row.value, row.means));
        change(text, row.change.as_deref());
    }
}

fn change(text: &mut String, command: Option<&str>) {
    if let Some(command) = command {
        text.push_str(&format!("      to change: {command}\n"));
    }
}

fn pools(text: &mut String, status: &Status) {
    if status.pools.is_empty() {
        return;
    }
    text.push_str("\nPools: huge pages kept for programs that ask for them (MAP_HUGETLB, hugetlbfs, SHM_HUGETLB)\n");
    let line = |cells: [&str; 7]| {
        let [page, node, rest @ ..] = cells;
        let rest: String = rest.iter().map(|cell| format!("{cell:>12}")).collect();
        format!("  {page:8}{node:>6}{rest}\n")
    };
    text.push_str(&line(["page", "node", "total", "free", "reserved", "surplus", "overcommit"]));
    for pool in &status.pools {
        let page = size::text(pool.bytes);
        let cells = [pool.total, pool.free, pool.reserved, pool.surplus, pool.overcommit].map(count);
        let [total, free, reserved, surplus, overcommit] = &cells;
        text.push_str(&line([&page, "all", total, free, reserved, surplus, overcommit]));
        for node in pool.nodes.iter().filter(|_| pool.nodes.len() > 1) {
            let (number, cells) = (node.node.to_string(), [node.total, node.free, node.surplus].map(count));
            text.push_str(&line(["", &number, &cells[0], &cells[1], "", &cells[2], ""]));
        }
    }
    for PoolEntry { bytes, means, change: command, .. } in &status.pools {
        text.push_str(&format!("  {}: {means}\n", size::text(*bytes)));
        change(text, Some(command));
    }
    for left in status.left.iter().take(SHOWN) {
        text.push_str(&format!("  {}\n", left.text()));
        if let Some(command) = &left.change {
            text.push_str(&format!("      if no program needs its contents: {command}\n"));
        }
    }
    if let Some(more) = status.left.len().checked_sub(SHOWN).filter(|more| *more > 0) {
        text.push_str(&format!("  and {more} more files and segments that no process has: --json shows them\n"));
    }
    for held in &status.reservations {
        let pages = format!("{} of {}", counted(held.pages, "page", "pages"), size::text(held.page_bytes));
        text.push_str(&match held.alive {
            true => format!("  {pages} are there for a neap huge reserve (process {})\n", held.pid),
            false => format!(
                "  {pages} were left by a neap huge reserve that was killed (process {}): the next one takes them away\n",
                held.pid
            ),
        });
    }
}

fn mounts(text: &mut String, status: &Status) {
    text.push_str("\nMounts of hugetlbfs: files in huge pages of a pool\n");
    if status.mounts.is_empty() {
        text.push_str("  none: programs can have pages of a pool only without a file (MAP_HUGETLB, memfd_create)\n");
        change(text, Some("mkdir -p /dev/hugepages; mount -t hugetlbfs -o pagesize=2M none /dev/hugepages"));
    }
    for mount in &status.mounts {
        let page = mount.page_bytes.map_or("?".to_owned(), size::text);
        text.push_str(&format!("  {}  {page}  {}\n", mount.path.display(), mount.means()));
        change(text, mount.change().as_deref());
    }
}

fn by_size(text: &mut String, status: &Status) {
    if status.transparent_sizes.is_empty() {
        return;
    }
    text.push_str("\nTransparent huge pages by size\n");
    text.push_str("  page      enabled   shmem_enabled\n");
    for one in &status.transparent_sizes {
        let value = |row: &Option<Row>| row.as_ref().map_or("-".to_owned(), |row| row.value.clone());
        let means: Vec<&str> =
            [&one.enabled, &one.shmem_enabled].into_iter().flatten().map(|row| row.means.as_str()).collect();
        text.push_str(&format!(
            "  {:8}  {:8}  {:13}  {}\n",
            size::text(one.bytes),
            value(&one.enabled),
            value(&one.shmem_enabled),
            means.join("; ")
        ));
    }
    change(
        text,
        Some(&format!("echo madvise > {THP}/hugepages-64kB/enabled; shared memory: advise, in shmem_enabled")),
    );
}
