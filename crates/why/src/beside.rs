//! Memory that a process causes and that is in no mapping of it, so that Rss leaves it out: files in memory without a name
//! that it has open, bytes in pipes, BPF maps, buffers of perf events.

use crate::holders;
use neap_account::container::Member;
use neap_account::model::Apart;
use neap_account::seen::Seen;
use neap_account::units::{bytes, count};
use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;

/// Less of a kind is left out.
const LEAST: u64 = 1 << 20;

/// Adds them.
pub fn read(seen: &mut Seen) {
    seen.beside.extend(open_files(seen));
    let member = Member { pid: seen.pid, command: String::new(), rss_bytes: 0, pss_bytes: 0, anonymous_bytes: 0 };
    for of in holders::in_kernel(&[member]) {
        let kind = if of.words.contains("BPF") { "bpf-maps" } else { "pipes" };
        seen.beside.push(Apart { kind, bytes: of.bytes, text: format!("the kernel's: {}", of.words) });
    }
    // The kernel allocates such a buffer as a whole when it is mapped.
    let buffers = seen.mappings.iter().filter(|mapping| mapping.name == "anon_inode:[perf_event]");
    let size: u64 = buffers.map(|mapping| mapping.bytes().saturating_sub(mapping.figures.rss)).sum();
    if size >= LEAST {
        seen.beside.push(Apart {
            kind: "perf-buffers",
            bytes: size,
            text: "the kernel's buffers of perf events".into(),
        });
    }
}

/// Files in memory that have no name and that it has open: memfd, removed files of tmpfs. What it has mapped of them is
/// in Rss.
fn open_files(seen: &Seen) -> Option<Apart> {
    let (mut known, mut all) = (HashSet::new(), Vec::new());
    let mut mapped: HashMap<u64, u64> = HashMap::new();
    for mapping in seen.mappings.iter().filter(|mapping| mapping.inode != 0) {
        *mapped.entry(mapping.inode).or_default() +=
            mapping.figures.rss - mapping.figures.anonymous.min(mapping.figures.rss);
    }
    // What it has mapped at several addresses is there once.
    for (start, again) in &seen.repeated {
        let inode = seen.mappings.iter().find(|mapping| mapping.range.start == *start).map(|mapping| mapping.inode);
        if let Some(sum) = inode.and_then(|inode| mapped.get_mut(&inode)) {
            *sum = sum.saturating_sub(*again);
        }
    }
    for entry in fs::read_dir(format!("/proc/{}/fd", seen.pid)).into_iter().flatten().flatten() {
        let path = entry.path();
        let Ok(target) = fs::read_link(&path).map(|target| target.display().to_string()) else { continue };
        let Some(name) = target.strip_suffix(" (deleted)") else { continue };
        let Ok(of) = fs::metadata(&path) else { continue };
        let is_new = of.is_file() && of.nlink() == 0 && known.insert((of.dev(), of.ino()));
        if is_new && crate::sys::is_in_memory(&path) {
            let beyond = (of.blocks() * 512).saturating_sub(mapped.get(&of.ino()).copied().unwrap_or(0));
            all.push((beyond, name.strip_prefix("/memfd:").map_or(name.to_owned(), |name| format!("memfd:{name}"))));
        }
    }
    all.sort_by_key(|(size, _)| std::cmp::Reverse(*size));
    let sum: u64 = all.iter().map(|(size, _)| size).sum();
    let (most, name) = all.first().filter(|_| sum >= LEAST)?;
    let text = match all.len() {
        1 => format!("{name}, a file in memory that it has open, as far as it is not mapped"),
        n => format!(
            "{name} ({}) and {} in memory that it has open, as far as they are not mapped",
            bytes(*most),
            count(n as u64 - 1, "other file")
        ),
    };
    Some(Apart { kind: "open-files", bytes: sum, text })
}
