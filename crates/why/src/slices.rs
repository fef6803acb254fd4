//! The figures of mappings without a long wait for the process.
//!
//! While the kernel makes the entry of a mapping in `smaps`, or the sums of `smaps_rollup`, it holds the process's lock
//! of mappings (`mmap_lock`), and walks all OS pages of the mapping: 15 to 20 ms for each GiB. A thread of the process
//! that maps or unmaps memory waits for that. Reads of `pagemap` hold the lock for 2 MiB at a time, and PAGEMAP_SCAN
//! for [`neap_process::pagemap::PAGES`], so the same figures come from these.
//!
//! What the page map does not say: which OS pages of files are dirty (they count as clean), what is locked, MADV_FREE.
//! How many processes share an OS page is in `/proc/kpagecount`, for root only; without it Pss is not known.

use crate::memory::{EXCLUSIVE, FILE, PRESENT, Process};
use crate::priority::Priority;
use crate::sys;
use neap_account::parse;
use neap_account::seen::{Figures, Mapping};
use neap_process::kernel_file;
use neap_process::pagemap;
use neap_survey::Fuel;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, LazyLock};

/// A process with more memory to walk than this is read in slices: walking it would take some 3 ms, 5 on a slow machine.
const LARGE: u64 = 128 << 20;
/// A page table of 4 KiB maps 2 MiB. Walking an empty one costs an eighth of a full one.
const OF_TABLES: u64 = 512 / 8;
/// Two OS pages this near to each other are looked up in one read of `kpagecount`.
const NEAR: u64 = 512;
/// Bits of an entry with the number of the page frame.
const FRAME: u64 = (1 << 55) - 1;

/// Whether the kernel has PAGEMAP_SCAN, without which the zero page and huge pages are not known.
static SCANS: LazyLock<bool> =
    LazyLock::new(|| File::open("/proc/self/pagemap").is_ok_and(|pagemap| pagemap::can_scan(&pagemap)));

/// Whether the kernel's own figures of a process would hold it up for long, and slices can replace them.
pub fn is_large(pid: u32) -> io::Result<bool> {
    if !*SCANS {
        return Ok(false);
    }
    let status = kernel_file(format!("/proc/{pid}/status"))?;
    let status = String::from_utf8_lossy(&status);
    let of = |name| parse::value(&status, name).unwrap_or(0);
    let tables = of("VmPTE").saturating_mul(OF_TABLES);
    Ok((of("VmRSS") + of("VmSwap")).max(tables) > LARGE)
}

/// The sums of all mappings, without a long wait for the process; the flag says whether Pss is known.
pub fn total(pid: u32) -> io::Result<(Figures, bool)> {
    if !is_large(pid)? {
        return match kernel_file(format!("/proc/{pid}/smaps_rollup"))? {
            // It has ended.
            text if text.is_empty() => Err(ErrorKind::NotFound.into()),
            text => Ok((parse::rollup(&String::from_utf8_lossy(&text)), true)),
        };
    }
    let fuel = Arc::new(Fuel::of(pid, || false).with_rests());
    let _priority = Priority::raise();
    let (mappings, knows_pss) = mappings(pid, &fuel)?;
    Ok((sum(&mappings), knows_pss))
}

/// The sums of the figures of mappings.
pub fn sum(mappings: &[Mapping]) -> Figures {
    let mut sum = Figures::default();
    for of in mappings.iter().map(|mapping| &mapping.figures) {
        sum.rss += of.rss;
        sum.pss += of.pss;
        sum.shared_clean += of.shared_clean;
        sum.private_clean += of.private_clean;
        sum.private_dirty += of.private_dirty;
        sum.shared_dirty += of.shared_dirty;
        sum.anonymous += of.anonymous;
        sum.anon_huge += of.anon_huge;
        sum.hugetlb += of.hugetlb;
        sum.swap += of.swap;
    }
    sum
}

/// The mappings with their figures from the page map; the flag says whether Pss is known.
pub fn mappings(pid: u32, fuel: &Arc<Fuel>) -> io::Result<(Vec<Mapping>, bool)> {
    let mut maps = File::open(format!("/proc/{pid}/maps"))?;
    let mut text = Vec::with_capacity(16 << 10);
    maps.read_to_end(&mut text)?;
    let mut mappings = parse::smaps(&String::from_utf8_lossy(&text));
    if mappings.is_empty() {
        return Err(ErrorKind::NotFound.into());
    }
    let memory = Process::open(pid, fuel)?;
    let counts = Counts::open();
    for mapping in &mut mappings {
        mapping.grows_down = mapping.name == "[stack]";
        // Pages of the kernel, which no figure counts.
        if !mapping.name.starts_with("[vvar") && !mapping.name.starts_with("[vsyscall") {
            mapping.figures = figures(&memory, mapping, counts.as_ref(), &maps)?;
        }
    }
    Ok((mappings, counts.is_some()))
}

/// The figures of a mapping.
fn figures(memory: &Process, mapping: &Mapping, counts: Option<&Counts>, maps: &File) -> io::Result<Figures> {
    let (mut figures, page) = (Figures::default(), sys::page_size());
    let regions = memory.regions(mapping.range.clone());
    if regions.iter().any(|region| region.huge) && mapping.inode != 0 && is_hugetlb(mapping, maps) {
        figures.hugetlb = regions.iter().map(|region| region.range.end - region.range.start).sum();
        return Ok(figures);
    }
    let mut shared = Vec::new();
    for region in regions {
        if region.swapped {
            figures.swap += region.range.end - region.range.start;
            continue;
        }
        memory.entries(region.range.clone(), |entry| {
            let (file, own) = (entry & FILE != 0, entry & EXCLUSIVE != 0);
            // Memory of a device, without OS pages that the kernel counts; or it has gone since.
            if entry & PRESENT == 0 || mapping.shared && !file {
                return;
            }
            figures.rss += page;
            figures.anonymous += if file { 0 } else { page };
            figures.anon_huge += if file || !region.huge { 0 } else { page };
            *match (own, file) {
                (true, true) => &mut figures.private_clean,
                (true, false) => &mut figures.private_dirty,
                (false, true) => &mut figures.shared_clean,
                (false, false) => &mut figures.shared_dirty,
            } += page;
            match own {
                true => figures.pss += page,
                false => shared.push(entry & FRAME),
            }
        })?;
    }
    figures.pss += counts.map_or(0, |counts| counts.proportion(shared, page));
    Ok(figures)
}

/// How many times each OS page is mapped: `/proc/kpagecount`.
struct Counts(File);

impl Counts {
    /// `None` without the right to read it, or to see the numbers of page frames.
    fn open() -> Option<Counts> {
        let counts = Counts(File::open("/proc/kpagecount").ok()?);
        let own = File::open("/proc/self/pagemap").ok()?;
        let (mut entry, at) = ([0; 8], &raw const counts as u64 / sys::page_size());
        own.read_exact_at(&mut entry, 8 * at).ok()?;
        (u64::from_ne_bytes(entry) & FRAME != 0).then_some(counts)
    }

    /// The part of these OS pages that counts for one of the processes that map them.
    fn proportion(&self, mut frames: Vec<u64>, page: u64) -> u64 {
        frames.sort_unstable();
        let mut part = 0.0;
        for near in frames.chunk_by(|one, next| next - one < NEAR) {
            // A chunk has one frame at least.
            let (first, last) = (near[0], near[near.len() - 1]);
            let mut bytes = vec![0; 8 * (last - first + 1) as usize];
            // What cannot be read counts as not shared.
            let is_known = self.0.read_exact_at(&mut bytes, 8 * first).is_ok();
            let counts = bytes.as_chunks::<8>().0;
            for frame in near {
                let count = if is_known { u64::from_ne_bytes(counts[(frame - first) as usize]) } else { 1 };
                part += page as f64 / count.max(1) as f64;
            }
        }
        part as u64
    }
}

/// Whether a mapping has explicit huge pages, which Rss does not count.
fn is_hugetlb(mapping: &Mapping, maps: &File) -> bool {
    sys::page_size_of(maps, mapping.range.start)
        .map_or_else(|_| mapping.name.starts_with("/anon_hugepage"), |size| size > sys::page_size())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::time::Duration;

    /// Catches the zero page that counts, and memory that was written and does not.
    #[test]
    fn only_written_memory_counts() {
        let page = sys::page_size();
        let (length, access) = (64 * page as usize, libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: a new mapping, which no other code uses; it stays until this process ends.
        let block = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let at = libc::mmap(std::ptr::null_mut(), length, access, flags, -1, 0);
            assert_ne!(at, libc::MAP_FAILED);
            // No huge page, which would be written as a whole.
            libc::madvise(at, length, libc::MADV_NOHUGEPAGE);
            std::slice::from_raw_parts_mut(at.cast::<u8>(), length)
        };
        let start = block.as_ptr() as u64;
        for at in [3, 4, 9] {
            block[at * page as usize] = 1;
        }
        assert_eq!(std::hint::black_box(&block)[20 * page as usize], 0);
        let fuel = Arc::new(Fuel::new(Duration::from_secs(100), u64::MAX));
        let memory = Process::open(std::process::id(), &fuel).expect("this process");
        let maps = File::open("/proc/self/maps").expect("this process");
        let mapping = Mapping { range: start..start + length as u64, write: true, ..Mapping::default() };
        let found = figures(&memory, &mapping, None, &maps).expect("figures");
        let wanted = Figures {
            rss: 3 * page,
            pss: 3 * page,
            anonymous: 3 * page,
            private_dirty: 3 * page,
            ..Figures::default()
        };
        assert_eq!(found, wanted);
        assert_eq!(sys::page_size_of(&maps, start).unwrap_or(page), page);
    }

    /// Catches figures that differ from the kernel's: pages of the kernel that count, and a library's pages that are
    /// shared.
    #[test]
    fn the_kernel_says_the_same() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().expect("sleep(1)");
        let until = std::time::Instant::now() + Duration::from_secs(20);
        let comm = format!("/proc/{}/comm", child.id());
        // Until it sleeps, it maps its libraries.
        let state = format!("/proc/{}/wchan", child.id());
        while std::time::Instant::now() < until
            && !(fs::read_to_string(&comm).is_ok_and(|name| name.trim() == "sleep")
                && fs::read_to_string(&state).is_ok_and(|at| at.contains("nanosleep")))
        {
            std::thread::sleep(Duration::from_millis(5));
        }
        let fuel = Arc::new(Fuel::new(Duration::from_secs(100), u64::MAX));
        let (sliced, knows_pss) = mappings(child.id(), &fuel).expect("a process");
        let smaps = fs::read(format!("/proc/{}/smaps", child.id())).expect("a process");
        let _ = child.kill().and_then(|()| child.wait());
        let exact = parse::smaps(&String::from_utf8_lossy(&smaps));
        assert_eq!(sliced.len(), exact.len());
        for (sliced, exact) in sliced.iter().zip(&exact) {
            let of = |f: &Figures| (f.rss, f.anonymous, f.swap, f.anon_huge, f.private_clean + f.private_dirty);
            assert_eq!(of(&sliced.figures), of(&exact.figures), "{exact:?}");
            // The kernel rounds to kB; other processes begin and end meanwhile.
            let near = sliced.figures.pss.abs_diff(exact.figures.pss) <= 4096 + exact.figures.pss / 4;
            assert!(!knows_pss || near, "{sliced:?} {exact:?}");
        }
    }
}
