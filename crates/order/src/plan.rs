//! Which bytes become breakpoints, and the meaning of their hits. No I/O.
//!
//! A *site* is the first byte of a function. Sites within an OS page of each other form one *stretch*, which is read
//! and written at once. OS pages without a site are not written, because each written OS page becomes a private copy of
//! the process.

use std::ops::Range;

/// The instruction that stops a program, on x86-64.
pub const BREAKPOINT: u8 = 0xcc;
const PAGE: u64 = 4096;

/// The sites of a binary.
#[derive(Debug, Default)]
pub struct Plan {
    /// Link-time addresses, ascending.
    sites: Vec<u64>,
}

/// Sites that are read and written at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// The first byte.
    pub address: u64,
    /// Its bytes.
    pub length: usize,
    /// Its sites, by number.
    pub sites: Range<usize>,
}

impl Plan {
    /// With these sites: ascending, each once.
    pub fn new(sites: Vec<u64>) -> Self {
        debug_assert!(sites.is_sorted_by(|a, b| a < b));
        Self { sites }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.sites.len()
    }

    /// The site at an address.
    pub fn site(&self, address: u64) -> Option<usize> {
        self.sites.binary_search(&address).ok()
    }

    /// All sites, grouped in stretches.
    pub fn stretches(&self) -> impl Iterator<Item = Stretch> {
        let mut begin = 0;
        self.sites.chunk_by(|a, b| b - a < PAGE).map(move |sites| {
            let (first, last) = (sites[0], sites[sites.len() - 1]);
            let range = begin..begin + sites.len();
            begin = range.end;
            Stretch { address: first, length: (last - first) as usize + 1, sites: range }
        })
    }

    /// Sets breakpoints in the bytes of a stretch, at the sites that are `wanted`; adds the original bytes of all its
    /// sites to `originals`.
    pub fn plant(&self, stretch: &Stretch, bytes: &mut [u8], wanted: impl Fn(usize) -> bool, originals: &mut Vec<u8>) {
        for site in stretch.sites.clone() {
            let byte = &mut bytes[(self.sites[site] - stretch.address) as usize];
            originals.push(*byte);
            if wanted(site) {
                *byte = BREAKPOINT;
            }
        }
    }

    /// Removes the breakpoints from a stretch; returns whether there were any. Bytes that are no breakpoint now are
    /// left alone: the program may have written them, or have mapped something else there.
    pub fn restore(&self, stretch: &Stretch, bytes: &mut [u8], originals: &[u8]) -> bool {
        let mut any = false;
        for site in stretch.sites.clone() {
            let byte = &mut bytes[(self.sites[site] - stretch.address) as usize];
            if *byte == BREAKPOINT {
                (*byte, any) = (originals[site], true);
            }
        }
        any
    }

    /// The address of a site.
    pub fn address(&self, site: usize) -> u64 {
        self.sites[site]
    }
}

/// The sites that were hit, in order.
#[derive(Debug)]
pub struct Hits {
    seen: Vec<bool>,
    order: Vec<Hit>,
}

/// A site that was hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit {
    /// The site.
    pub site: usize,
    /// Nanoseconds since the exec.
    pub at: u64,
}

impl Hits {
    /// No hits yet, for this many sites.
    pub fn new(sites: usize) -> Self {
        Self { seen: vec![false; sites], order: Vec::new() }
    }

    /// Records a hit. Several threads or processes may hit a site at the same time: the first counts.
    pub fn add(&mut self, site: usize, at: u64) {
        if !std::mem::replace(&mut self.seen[site], true) {
            self.order.push(Hit { site, at });
        }
    }

    /// Whether a site was hit.
    pub fn seen(&self, site: usize) -> bool {
        self.seen[site]
    }

    /// All hits, in order.
    pub fn order(&self) -> &[Hit] {
        &self.order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches OS pages without a site that are written, and sites that are in no stretch or in two.
    #[test]
    fn stretches_touch_only_pages_with_sites() {
        let sites = vec![0x1000, 0x1001, 0x1fff, 0x2ffe, 0x3ffe, 0x9123];
        let plan = Plan::new(sites.clone());
        let stretches: Vec<Stretch> = plan.stretches().collect();
        let covered: Vec<usize> = stretches.iter().flat_map(|stretch| stretch.sites.clone()).collect();
        assert_eq!(covered, (0..sites.len()).collect::<Vec<_>>());
        let pages = |address: u64, length: usize| address / PAGE..=(address + length as u64 - 1) / PAGE;
        for page in stretches.iter().flat_map(|stretch| pages(stretch.address, stretch.length)) {
            assert!(sites.iter().any(|site| site / PAGE == page), "page {page}");
        }
        assert_eq!(stretches.iter().map(|stretch| stretch.length).collect::<Vec<_>>(), [0x1fff, 1, 1]);
        assert_eq!((plan.len(), plan.site(0x2ffe), plan.site(0x2fff)), (6, Some(3), None));
    }

    /// Catches bytes that are not restored, a site that is planted again, a breakpoint of the program's own that later
    /// counts as neap's, and bytes written by the program that are lost.
    #[test]
    fn planted_bytes_are_restored() {
        let plan = Plan::new(vec![10, 12, 13]);
        let stretch = plan.stretches().next().expect("one");
        let text = [0x55, 1, BREAKPOINT, 0xf3];
        let (mut bytes, mut originals) = (text, Vec::new());
        plan.plant(&stretch, &mut bytes, |site| site != 2, &mut originals);
        assert_eq!((bytes, originals.as_slice()), ([BREAKPOINT, 1, BREAKPOINT, 0xf3], &[0x55, BREAKPOINT, 0xf3][..]));
        bytes[1] = 9;
        assert!(plan.restore(&stretch, &mut bytes, &originals));
        assert_eq!(bytes, [0x55, 9, BREAKPOINT, 0xf3]);
        let mut written = [0xe9, 9, 8, 7];
        assert!(!plan.restore(&stretch, &mut written, &originals));
        assert_eq!(written, [0xe9, 9, 8, 7]);
    }

    /// Catches a site that two threads hit and that counts twice, or at the second time.
    #[test]
    fn the_first_hit_counts() {
        let mut hits = Hits::new(3);
        for (site, at) in [(2, 5), (0, 6), (2, 7)] {
            hits.add(site, at);
        }
        assert_eq!(hits.order(), [Hit { site: 2, at: 5 }, Hit { site: 0, at: 6 }]);
        assert!(hits.seen(2) && !hits.seen(1));
    }
}
