//! The blocks of a slab, and their OS pages.

use neap_core::{CHUNK, class};

/// A copy of a slab's record and bits.
#[derive(Clone, Debug)]
pub struct Slab {
    size: u64,
    /// Blocks from here on were never handed out.
    carved: u32,
    /// A bit for each block that is free.
    free: Vec<u64>,
}

/// Bytes of a block of `class`; of class 0: one.
pub fn block_size(class: u8) -> u64 {
    class::SIZE.get(usize::from(class)).map_or(1, |&size| u64::from(size).max(1))
}

impl Slab {
    /// A slab of `class`.
    pub fn new(class: u8, carved: u32, free: Vec<u64>) -> Self {
        Slab { size: block_size(class), carved, free }
    }

    fn is_used(&self, block: u32) -> bool {
        let word = self.free.get(block as usize / 64).copied().unwrap_or(u64::MAX);
        block < self.carved && word >> (block % 64) & 1 == 0
    }

    /// Whether the block at `offset` is live, or in a cache.
    pub fn is_live(&self, offset: u64) -> bool {
        self.is_used((offset / self.size) as u32)
    }

    /// For each OS page of `page` bytes: the bytes of live blocks, and whether it has blocks that are in a cache, by
    /// their offset.
    pub fn pages(&self, page: usize, cached: impl Fn(u64) -> bool) -> (Vec<u64>, Vec<bool>) {
        let (mut live, mut kept) = (vec![0; CHUNK / page], vec![false; CHUNK / page]);
        let page = page as u64;
        for (word, free) in (0..).zip(&self.free) {
            let carved = self.carved.saturating_sub(word * 64).min(64);
            let mut used = !free & if carved == 64 { u64::MAX } else { (1 << carved) - 1 };
            while used != 0 {
                let block = word * 64 + used.trailing_zeros();
                used &= used - 1;
                let (mut at, end) = (u64::from(block) * self.size, u64::from(block + 1) * self.size);
                let cached = cached(at);
                while at < end.min(CHUNK as u64) {
                    let (nth, part) = ((at / page) as usize, (end - at).min(page - at % page));
                    if cached {
                        kept[nth] = true;
                    } else {
                        live[nth] += part;
                    }
                    at += part;
                }
            }
        }
        (live, kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches blocks that count on another OS page than theirs, twice, or although they are free, were never handed
    /// out, or are in a cache.
    #[test]
    fn blocks_are_counted_where_they_lie() {
        // 5 blocks of 3072 bytes were handed out; the second is free, the last in a cache.
        let class = class::of(3072) as u8;
        let slab = Slab::new(class, 5, vec![0b10]);
        let (live, kept) = slab.pages(4096, |offset| offset == 4 * 3072);
        assert_eq!(live[..4], [3072, 2048, 4096, 0]);
        assert_eq!(kept[..4], [false, false, false, true]);
        assert!(live[4..].iter().all(|&live| live == 0) && kept[4..].iter().all(|&kept| !kept));
        assert!(slab.is_live(0) && !slab.is_live(3072) && slab.is_live(4 * 3072) && !slab.is_live(5 * 3072));
        // All blocks of 16 bytes, on OS pages of 64 KiB too.
        let slab = Slab::new(1, 4096, vec![0; 64]);
        assert_eq!(slab.pages(4096, |_| false).0, [4096; 16]);
        assert_eq!(slab.pages(65536, |_| false).0, [65536]);
        // Bits that could not be read count as free.
        assert_eq!(Slab::new(1, 4096, Vec::new()).pages(4096, |_| false).0, [0; 16]);
    }
}
