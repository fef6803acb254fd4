//! OS pages that hold only zeros: in transparent huge pages, where ordinary OS pages would not be resident; and in
//! locked memory, which the kernel made resident before the program used it.

use crate::memory::Process;
use neap_account::seen::{Seen, Zeros};
use std::ops::Range;

/// Bytes in one read.
const STEP: u64 = 2 << 20;
/// Limit on the bytes that are read of one process.
const MOST: u64 = 2 << 30;

/// Counts these bytes.
pub fn read(seen: &mut Seen, memory: &Process) {
    let mut reader =
        Reader { memory, left: MOST, page: crate::sys::page_size() as usize, buffer: vec![0; STEP as usize] };
    let (mut zeros, mut locked) = (Vec::new(), 0);
    let mut unread = 0;
    for mapping in seen.mappings.iter().filter(|mapping| mapping.read && mapping.figures.rss > 0) {
        let (huge, lock) = (mapping.figures.anon_huge > 0, mapping.figures.locked > 0 && mapping.inode == 0);
        if !huge && !lock {
            continue;
        }
        let mut bytes = 0;
        for region in memory.regions(mapping.range.clone()).into_iter().filter(|region| !region.swapped) {
            let is_huge = region.huge && huge;
            if !is_huge && !lock {
                continue;
            }
            let found = reader.count(region.range.clone());
            unread += found.1;
            match is_huge && !lock {
                true => bytes += found.0,
                false => locked += found.0,
            }
        }
        if bytes > 0 {
            zeros.push(Zeros { start: mapping.range.start, bytes });
        }
    }
    if unread > 0 {
        seen.notes
            .push(format!("{} MiB of huge or locked pages were not read for zeros: the limit is 2 GiB", unread >> 20));
    }
    seen.zeros = zeros;
    seen.locked_zeros = locked;
}

struct Reader<'m> {
    memory: &'m Process,
    left: u64,
    page: usize,
    buffer: Vec<u8>,
}

impl Reader<'_> {
    /// Bytes of OS pages of zeros in a range, and bytes that were not read.
    fn count(&mut self, range: Range<u64>) -> (u64, u64) {
        let (mut zero, mut at) = (0, range.start);
        while at < range.end && self.left > 0 {
            let wanted = (range.end - at).min(STEP).min(self.left);
            let part = &mut self.buffer[..wanted as usize];
            if !self.memory.copy(at, part) {
                return (zero, 0);
            }
            zero += part.chunks(self.page).filter(|page| is_zero(page)).map(|page| page.len() as u64).sum::<u64>();
            at += wanted;
            self.left -= wanted;
        }
        (zero, range.end - at)
    }
}

fn is_zero(page: &[u8]) -> bool {
    let words = page.as_chunks::<8>().0;
    // Most pages with contents have some in their first words.
    words.iter().take(8).all(|word| *word == [0; 8])
        && words.iter().fold(0, |all, word| all | u64::from_ne_bytes(*word)) == 0
}
