//! To which cgroup the OS pages of a file in memory or of a System V segment are charged: only the kernel knows, and
//! says it to root alone. neap maps the file, finds the frames of the OS pages that the file has already
//! (`/proc/self/pagemap`), and reads the cgroup of each (`/proc/kpagecgroup`: the inode of its folder).
//!
//! Nothing is changed: an OS page that the file does not have yet is not touched, and reading charges nothing to anybody.

use crate::sys::{self, Mapped};
use std::collections::HashSet;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::{Duration, Instant};

/// Bytes that are mapped at a time.
const WINDOW: u64 = 64 << 20;
/// Limit on the time for all files.
const LONGEST: Duration = Duration::from_secs(5);
/// An OS page is in memory, and the number of its frame, in `pagemap`.
const PRESENT: u64 = 1 << 63;
const FRAME: u64 = (1 << 55) - 1;

/// What was found out about a file or segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Bytes in memory.
    pub resident: u64,
    /// Part of it: charged to the cgroup.
    pub charged: u64,
}

/// Finds out what is charged to one cgroup and to those below it.
pub struct Charges {
    pagemap: File,
    groups: File,
    /// The inodes of their folders. What a removed cgroup had counts, for the kernel, to the next one above it.
    own: HashSet<u64>,
    until: Instant,
}

impl Charges {
    /// The charges of the cgroup in `folder`; none where the kernel does not tell this user.
    pub fn of(folder: &Path) -> Option<Self> {
        let mut own = HashSet::new();
        inodes(folder, &mut own);
        let (pagemap, groups) = (File::open("/proc/self/pagemap").ok()?, File::open("/proc/kpagecgroup").ok()?);
        Some(Charges { pagemap, groups, own, until: Instant::now() + LONGEST })
    }

    /// The charges of a file in memory; none if they could not be found out completely.
    pub fn of_file(&self, file: &File) -> Option<Found> {
        let (length, page) = (file.metadata().ok()?.len(), sys::page_size());
        let (mut found, mut at) = (Found::default(), 0);
        // Holes are skipped.
        while let Some(next) = sys::data_from(file, at).filter(|next| *next < length) {
            at = next / page * page;
            if Instant::now() > self.until {
                return None;
            }
            let wanted = (length - at).min(WINDOW);
            self.add(&Mapped::file(file, at, wanted).ok()?, &mut found)?;
            at += wanted;
        }
        Some(found)
    }

    /// The charges of the System V segment `id` of this thread's namespace.
    pub fn of_segment(&self, id: i32, length: u64) -> Option<Found> {
        let mut found = Found::default();
        self.add(&Mapped::segment(id, length).ok()?, &mut found)?;
        Some(found)
    }

    /// Adds the OS pages of a mapping.
    fn add(&self, mapped: &Mapped, found: &mut Found) -> Option<()> {
        let page = sys::page_size();
        let resident = mapped.resident().ok()?;
        let mut at = 0;
        while let Some(first) = resident[at..].iter().position(|is| *is).map(|more| at + more) {
            let count = resident[first..].iter().take_while(|is| **is).count();
            if Instant::now() > self.until {
                return None;
            }
            mapped.populate(first as u64 * page, count as u64 * page).ok()?;
            let mut words = vec![0; 8 * count];
            self.pagemap.read_exact_at(&mut words, 8 * (mapped.address() / page + first as u64)).ok()?;
            self.frames(&words, page, found)?;
            at = first + count;
        }
        Some(())
    }

    /// Adds OS pages by their entries in the page map. Frames in a row are read together.
    fn frames(&self, words: &[u8], page: u64, found: &mut Found) -> Option<()> {
        let entry = |word: &[u8; 8]| u64::from_ne_bytes(*word);
        let frames: Vec<u64> =
            words.as_chunks::<8>().0.iter().map(entry).filter(|of| of & PRESENT != 0).map(|of| of & FRAME).collect();
        for row in frames.chunk_by(|one, next| one + 1 == *next) {
            // Without the right to know it, each frame is 0.
            let first = row.first().copied().filter(|frame| *frame != 0)?;
            let mut groups = vec![0; 8 * row.len()];
            self.groups.read_exact_at(&mut groups, 8 * first).ok()?;
            let own = groups.as_chunks::<8>().0.iter().filter(|group| self.own.contains(&entry(group))).count();
            found.resident += row.len() as u64 * page;
            found.charged += own as u64 * page;
        }
        Some(())
    }
}

/// Adds the inodes of a folder and of all below it.
fn inodes(folder: &Path, into: &mut HashSet<u64>) {
    into.extend(fs::metadata(folder).map(|of| of.ino()));
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            inodes(&entry.path(), into);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::FromRawFd;

    /// Catches holes of a file that are filled by looking at it, and OS pages that are left out.
    #[test]
    fn only_what_is_there_is_looked_at() {
        // SAFETY: the name ends with a zero; the result is a new descriptor, which the file owns.
        let file = unsafe {
            let made = libc::memfd_create(c"sparse".as_ptr(), libc::MFD_CLOEXEC);
            assert!(made >= 0);
            File::from_raw_fd(made)
        };
        file.set_len(300 << 20).expect("a file");
        for at in [0, 5 << 20, 200 << 20] {
            file.write_all_at(&[1; 8192], at).expect("a file");
        }
        let before = file.metadata().expect("a file").blocks() * 512;
        let Some(charges) = Charges::of(Path::new("/no/such")) else {
            println!("SKIPPED: needs root, and a kernel with /proc/kpagecgroup");
            return;
        };
        // A container's root may not know frames.
        if let Some(found) = charges.of_file(&file) {
            assert_eq!(found, Found { resident: before, charged: 0 });
        }
        assert_eq!(file.metadata().expect("a file").blocks() * 512, before);
    }
}
