//! OS pages that hold only zeros: in transparent huge pages, where ordinary OS pages might not be resident; and in locked
//! memory, which the kernel made resident before the program used it. The program may have written zeros too. A huge
//! page comes with the first write to it, so one that is all zeros is one to which the program has written zeros: it
//! does not count.

use crate::memory::Process;
use neap_account::seen::{Seen, Zeros};
use std::ops::Range;

/// Bytes in one read: a huge page, on systems with OS pages of 4 KiB.
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
            unread += found.unread;
            match is_huge && !lock {
                true => bytes += found.mixed,
                false => locked += found.zero,
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

/// What a range holds, in bytes.
#[derive(Debug, Default, PartialEq, Eq)]
struct Count {
    /// OS pages of zeros.
    zero: u64,
    /// Part of it: in steps that have other contents too.
    mixed: u64,
    /// Not read.
    unread: u64,
}

impl Reader<'_> {
    /// Counts the OS pages of zeros in a range.
    fn count(&mut self, range: Range<u64>) -> Count {
        let (mut count, mut at) = (Count::default(), range.start);
        while at < range.end && self.left > 0 {
            let wanted = (range.end.min((at / STEP + 1) * STEP) - at).min(self.left);
            let part = &mut self.buffer[..wanted as usize];
            if !self.memory.copy(at, part) {
                return count;
            }
            let zero = part.chunks(self.page).filter(|page| is_zero(page)).map(|page| page.len() as u64).sum::<u64>();
            count.zero += zero;
            count.mixed += if zero < wanted { zero } else { 0 };
            at += wanted;
            self.left -= wanted;
        }
        count.unread = range.end - at;
        count
    }
}

fn is_zero(page: &[u8]) -> bool {
    let words = page.as_chunks::<8>().0;
    // Most pages with contents have some in their first words.
    words.iter().take(8).all(|word| *word == [0; 8])
        && words.iter().fold(0, |all, word| all | u64::from_ne_bytes(*word)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use neap_survey::Fuel;
    use std::sync::Arc;
    use std::time::Duration;

    /// Catches huge pages of zeros, which the program has written, that count as never used.
    #[test]
    fn written_zeros_are_told_apart() {
        let fuel = Arc::new(Fuel::new(Duration::from_secs(100), u64::MAX));
        let memory = Process::open(std::process::id(), &fuel).expect("this process");
        let mut block = vec![0u8; 4 * STEP as usize];
        let start = (block.as_ptr() as u64).next_multiple_of(STEP);
        let first = (start - block.as_ptr() as u64) as usize;
        block[first..].fill(0);
        block[first + STEP as usize + 7] = 1;
        let page = crate::sys::page_size();
        let mut reader = Reader { memory: &memory, left: MOST, page: page as usize, buffer: vec![0; STEP as usize] };
        let mixed = STEP - page;
        assert_eq!(reader.count(start..start + 2 * STEP), Count { zero: mixed + STEP, mixed, unread: 0 });
        reader.left = page;
        assert_eq!(reader.count(start..start + STEP), Count { zero: page, mixed: 0, unread: STEP - page });
    }
}
