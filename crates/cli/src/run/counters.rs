//! Reads the counters files that processes under neap leave (layout and protocol: crates/counters).

use std::fs;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use neap_counters::{FILE_BYTES, Snapshot, Syscall};

/// The counters of one process image. Invariant: `live_blocks` is what remains of the blocks it allocated and
/// took over when those it freed are taken away; likewise for bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Image {
    /// The process.
    pub pid: u32,
    /// Which image of the process: exec starts the next.
    pub number: u32,
    /// Blocks handed out.
    pub blocks_allocated: u64,
    /// Bytes handed out.
    pub bytes_allocated: u64,
    /// Blocks freed.
    pub blocks_freed: u64,
    /// Bytes freed.
    pub bytes_freed: u64,
    /// Blocks not freed when the image ended.
    pub live_blocks: u64,
    /// Bytes of those.
    pub live_bytes: u64,
    /// Bytes given back to the system.
    pub purged_bytes: u64,
    /// System calls that gave them back.
    pub purge_calls: u64,
    /// Bytes that calloc cleared.
    pub cleared_bytes: u64,
    /// Bytes that calloc did not have to clear.
    pub skipped_bytes: u64,
    /// Bytes that option `prefault` made resident.
    pub prefault_bytes: u64,
    /// Page faults that it made.
    pub prefault_faults: u64,
    /// The time that it took.
    pub prefault_microseconds: u64,
    /// System calls by kind, in the order of [`Syscall::ALL`].
    pub syscalls: [u64; Syscall::ALL.len()],
}

/// What the processes left.
#[derive(Debug, Default)]
pub struct Report {
    /// Every image that could be read, by process and number.
    pub images: Vec<Image>,
    /// Files that are no counters files of this version, or were not set up yet.
    pub unreadable: usize,
    /// The process that neap started.
    pub program: u32,
}

impl Report {
    /// Sums over all images. Blocks that a fork copied are live in both processes.
    pub fn total(&self) -> Image {
        let mut sum = Image::default();
        for image in &self.images {
            for (to, from) in [
                (&mut sum.blocks_allocated, image.blocks_allocated),
                (&mut sum.bytes_allocated, image.bytes_allocated),
                (&mut sum.blocks_freed, image.blocks_freed),
                (&mut sum.bytes_freed, image.bytes_freed),
                (&mut sum.live_blocks, image.live_blocks),
                (&mut sum.live_bytes, image.live_bytes),
                (&mut sum.purged_bytes, image.purged_bytes),
                (&mut sum.purge_calls, image.purge_calls),
                (&mut sum.cleared_bytes, image.cleared_bytes),
                (&mut sum.skipped_bytes, image.skipped_bytes),
                (&mut sum.prefault_bytes, image.prefault_bytes),
                (&mut sum.prefault_faults, image.prefault_faults),
                (&mut sum.prefault_microseconds, image.prefault_microseconds),
            ] {
                *to = to.saturating_add(from);
            }
            for (to, from) in sum.syscalls.iter_mut().zip(image.syscalls) {
                *to = to.saturating_add(from);
            }
        }
        sum
    }

    /// The last image of the program itself.
    pub fn program(&self) -> Option<&Image> {
        self.images.iter().filter(|image| image.pid == self.program).max_by_key(|image| image.number)
    }

    /// How many processes left counters.
    pub fn processes(&self) -> usize {
        let mut pids: Vec<u32> = self.images.iter().map(|image| image.pid).collect();
        pids.dedup();
        pids.len()
    }
}

/// Reads every counters file in `dir`; `program` is the process that neap started.
pub fn read(dir: &Path, program: u32) -> Report {
    let mut report = Report { program, ..Report::default() };
    let Ok(entries) = fs::read_dir(dir) else { return report };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some((pid, number)) = name.to_str().and_then(parse_name) else { continue };
        match read_page(&entry.path()).and_then(|page| parse(&page, pid, number)) {
            Some(image) => report.images.push(image),
            None => report.unreadable += 1,
        }
    }
    report.images.sort_by_key(|image| (image.pid, image.number));
    report
}

/// `PID.N`.
fn parse_name(name: &str) -> Option<(u32, u32)> {
    let (pid, number) = name.split_once('.')?;
    Some((pid.parse().ok()?, number.parse().ok()?))
}

fn read_page(path: &Path) -> Option<[u8; FILE_BYTES]> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let mut file = fs::OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    let mut page = [0; FILE_BYTES];
    file.read_exact(&mut page).ok()?;
    Some(page)
}

fn parse(page: &[u8; FILE_BYTES], pid: u32, number: u32) -> Option<Image> {
    // No process writes, or only one that outlives the program: then the gauges may be of two updates.
    let s = Snapshot::parse_still(page).ok()?;
    // A process that was killed between two counts can be one block off: never below zero.
    let live = |inherited: u64, allocated: u64, freed: u64| inherited.saturating_add(allocated).saturating_sub(freed);
    Some(Image {
        pid,
        number,
        blocks_allocated: s.blocks_allocated,
        bytes_allocated: s.bytes_allocated,
        blocks_freed: s.blocks_freed,
        bytes_freed: s.bytes_freed,
        live_blocks: live(s.blocks_inherited, s.blocks_allocated, s.blocks_freed),
        live_bytes: live(s.bytes_inherited, s.bytes_allocated, s.bytes_freed),
        purged_bytes: s.gauges.purged_bytes,
        purge_calls: s.gauges.purge_calls,
        cleared_bytes: s.gauges.cleared_bytes,
        skipped_bytes: s.gauges.skipped_bytes,
        prefault_bytes: s.gauges.prefault_bytes,
        prefault_faults: s.gauges.prefault_faults,
        prefault_microseconds: s.gauges.prefault_microseconds,
        syscalls: s.syscalls,
    })
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use neap_counters::{Counters, Gauges, MAGIC, VERSION};
    use neap_launch::private_dir::{PrivateDir, temporary_bases};
    use std::mem::offset_of;
    use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

    /// A counters page as the library would leave it.
    pub fn page(fill: impl FnOnce(&Counters)) -> Vec<u8> {
        let counters = Counters::new();
        counters.magic.store(MAGIC, Relaxed);
        counters.version.store(VERSION, Relaxed);
        counters.size.store(size_of::<Counters>() as u32, Relaxed);
        fill(&counters);
        let mut bytes = vec![0; FILE_BYTES];
        let mut put = |at: usize, word: &[u8]| bytes[at..at + word.len()].copy_from_slice(word);
        let half = |word: &AtomicU32| word.load(Relaxed).to_ne_bytes();
        let whole = |word: &AtomicU64| word.load(Relaxed).to_ne_bytes();
        put(offset_of!(Counters, magic), &whole(&counters.magic));
        put(offset_of!(Counters, version), &half(&counters.version));
        put(offset_of!(Counters, pid), &half(&counters.pid));
        put(offset_of!(Counters, size), &half(&counters.size));
        let counts = [
            &counters.blocks_allocated,
            &counters.bytes_allocated,
            &counters.blocks_freed,
            &counters.bytes_freed,
            &counters.blocks_inherited,
            &counters.bytes_inherited,
        ];
        for (at, words) in [
            (offset_of!(Counters, blocks_allocated), counts.as_slice()),
            (offset_of!(Counters, syscalls), &counters.syscalls.each_ref()),
            (offset_of!(Counters, gauges), &counters.gauges.each_ref()),
        ] {
            for (i, word) in words.iter().enumerate() {
                put(at + 8 * i, &whole(word));
            }
        }
        bytes
    }

    /// Catches a reader that disagrees with the layout, sums wrongly, or takes strangers' files.
    #[test]
    fn files_are_read_and_summed() {
        let dir = PrivateDir::create(&temporary_bases(), "neap-test-counters").expect("a temporary directory");
        let write = |name: &str, bytes: &[u8]| fs::write(dir.path().join(name), bytes).expect("writable");
        let first = page(|c| {
            c.blocks_allocated.store(100, Relaxed);
            c.bytes_allocated.store(6400, Relaxed);
            c.blocks_freed.store(90, Relaxed);
            c.bytes_freed.store(5760, Relaxed);
            c.syscalls[Syscall::Mmap as usize].store(3, Relaxed);
            c.syscalls[Syscall::Other as usize].store(1, Relaxed);
        });
        let forked = page(|c| {
            c.blocks_inherited.store(10, Relaxed);
            c.bytes_inherited.store(640, Relaxed);
            c.blocks_freed.store(4, Relaxed);
            c.bytes_freed.store(256, Relaxed);
            c.syscalls[Syscall::Mmap as usize].store(2, Relaxed);
            c.set_gauges(&Gauges { purged_bytes: 70, purge_calls: 3, skipped_bytes: 9, ..Gauges::default() });
        });
        write("41.0", &page(|_| ()));
        write("41.1", &first);
        write("42.0", &forked);
        write("43.0", &vec![0; FILE_BYTES]);
        write("44.0", b"short");
        write("45.0", &page(|c| c.version.store(VERSION + (1 << 16), Relaxed)));
        write("notes.txt", b"not ours");

        let report = read(dir.path(), 41);
        assert_eq!(report.images.len(), 3);
        assert_eq!(report.unreadable, 3);
        assert_eq!(report.processes(), 2);
        let program = report.program().expect("process 41");
        assert_eq!((program.number, program.live_blocks, program.live_bytes), (1, 10, 640));
        let total = report.total();
        assert_eq!((total.blocks_allocated, total.blocks_freed), (100, 94));
        assert_eq!((total.live_blocks, total.live_bytes), (16, 1024));
        assert_eq!((total.purged_bytes, total.purge_calls), (70, 3));
        assert_eq!((total.cleared_bytes, total.skipped_bytes), (0, 9));
        assert_eq!(total.syscalls[Syscall::Mmap as usize], 5);
        assert_eq!(total.syscalls[Syscall::Other as usize], 1);
    }

    /// Catches a count below zero in a process that was killed between two counts.
    #[test]
    fn live_is_never_negative() {
        let bytes = page(|c| c.blocks_freed.store(1, Relaxed));
        let image = parse(bytes.as_slice().try_into().expect("a page"), 1, 0).expect("a counters page");
        assert_eq!(image.live_blocks, 0);
    }

    /// Catches a missing directory that ends the summary.
    #[test]
    fn a_missing_directory_is_an_empty_report() {
        let report = read(Path::new("/nonexistent/counters"), 1);
        assert!(report.images.is_empty() && report.program().is_none());
    }
}
