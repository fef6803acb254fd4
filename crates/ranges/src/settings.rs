//! What the machine and the process allow: transparent huge pages by size, and pools of hugetlb pages.

use crate::kernel::{self, Text};
use neap_sys::lines;
use rustix::io::Errno;

/// What settings say of transparent huge pages of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transparent {
    /// Ranges that are advised get them.
    On,
    /// No range gets them.
    Off,
    /// The kernel has no such size.
    None,
    /// There is no /sys.
    NotKnown,
}

const FOLDER: &str = "/sys/kernel/mm/transparent_hugepage";

/// What the word in brackets means.
enum Word {
    On,
    Off,
    Inherit,
}

fn word(text: &[u8]) -> Word {
    let inside = text.split(|&b| b == b'[').nth(1).and_then(|rest| rest.split(|&b| b == b']').next());
    match inside {
        Some(b"always" | b"madvise" | b"advise" | b"within_size" | b"force") => Word::On,
        Some(b"inherit") => Word::Inherit,
        _ => Word::Off,
    }
}

/// Whether prctl(PR_SET_THP_DISABLE) also applies to ranges that are advised.
fn is_off_for_process() -> bool {
    // With PR_THP_DISABLE_EXCEPT_ADVISED (Linux 6.18) the answer is 3.
    const COMPLETELY: usize = 1;
    // SAFETY: the call takes no pointers.
    unsafe { kernel::syscall(libc::SYS_prctl, [libc::PR_GET_THP_DISABLE as usize, 0, 0, 0, 0, 0]) == Ok(COMPLETELY) }
}

/// What settings say of transparent huge pages of `size` bytes in memory that is `shared` (shmem) or private.
pub fn transparent(size: usize, shared: bool) -> Transparent {
    if is_off_for_process() {
        return Transparent::Off;
    }
    let kib = size >> 10;
    let name = if shared { "shmem_enabled" } else { "enabled" };
    let read = |path: Option<Text<96>>| path.map_or(Err(Errno::NOENT), |path| kernel::with_file(path.as_c(), word));
    let own = read(Text::new(format_args!("{FOLDER}/hugepages-{kib}kB/{name}")));
    let all = || read(Text::new(format_args!("{FOLDER}/{name}")));
    let word = match own {
        Ok(Word::Inherit) => all(),
        // Before Linux 6.8 there is one size, and one file for it.
        Err(_) if size == kernel::pmd_size() => all(),
        own => own,
    };
    match word {
        Ok(Word::On) => Transparent::On,
        Ok(_) => Transparent::Off,
        Err(_) if is_there(c"/sys/kernel/mm") => Transparent::None,
        Err(_) => Transparent::NotKnown,
    }
}

fn is_there(path: &core::ffi::CStr) -> bool {
    rustix::fs::access(path, rustix::fs::Access::EXISTS).is_ok()
}

/// A number of the pool of hugetlb pages of `size` bytes.
fn pool(size: usize, name: &str) -> Option<usize> {
    let path = Text::<96>::new(format_args!("/sys/kernel/mm/hugepages/hugepages-{}kB/{name}", size >> 10))?;
    kernel::with_file(path.as_c(), lines::number).ok()?.and_then(|number| number.try_into().ok())
}

/// Number of pages of `size` bytes that the pool could reserve now; `None` without /sys.
pub fn available(size: usize) -> Option<usize> {
    let free = pool(size, "free_hugepages")?.saturating_sub(pool(size, "resv_hugepages")?);
    let more = pool(size, "nr_overcommit_hugepages")?.saturating_sub(pool(size, "surplus_hugepages")?);
    Some(free + more)
}
