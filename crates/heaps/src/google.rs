//! Google's tcmalloc: finds its mappings. It reserves regions of 1 GiB, aligned to 1 GiB, and opens each from its end
//! downward. A tag in bits 42 to 44 of the address says what the region is for. Live and free blocks are not
//! distinguished.

use crate::data::data;
use crate::jemalloc::part;
use crate::window::held;
use crate::{Amount, Files, Heap, Mapping, Memory, Split};
use std::collections::BTreeMap;
use std::ops::Range;

/// Bytes and alignment of a region.
const REGION: u64 = 1 << 30;
/// A text in programs and libraries with this allocator: the name of its regions.
const TEXT: &[u8] = b"tcmalloc_region_";
const TAG: u32 = 42;
/// The tag of its own records.
const METADATA: u64 = 3;

/// The heap of the copy in a process: at most one, because regions do not show to which copy they belong.
pub fn find(memory: &dyn Memory, mappings: &[Mapping], files: &dyn Files) -> Vec<Heap> {
    let regions = regions(mappings);
    // Files are searched only if there are regions.
    let has_text = |of: &&Mapping| matches!(files.find(of, TEXT), Ok(Some(_)));
    let mut data = data(mappings).into_iter().map(|(mapping, _)| mapping);
    let Some(owner) = (!regions.is_empty()).then(|| data.find(has_text)).flatten() else { return Vec::new() };
    let mut by_tag: BTreeMap<u64, Vec<Range<u64>>> = BTreeMap::new();
    for range in regions {
        by_tag.entry(range.start >> TAG & 7).or_default().push(range);
    }
    let parts = by_tag.into_iter().map(|(tag, ranges)| match tag {
        METADATA => {
            let bytes = ranges.iter().map(|range| range.end - range.start).sum();
            let resident = ranges.iter().map(|range| held(memory, range.clone()).0).sum();
            let metadata = Amount { blocks: ranges.len() as u64, bytes, resident };
            part(memory, "metadata".to_owned(), ranges, Some(Split { metadata, ..Split::default() }))
        }
        0 => part(memory, "regions of samples".to_owned(), ranges, None),
        2 => part(memory, "regions of cold blocks".to_owned(), ranges, None),
        _ => part(memory, "regions".to_owned(), ranges, None),
    });
    let mut heap = Heap {
        allocator: "tcmalloc (Google's)".to_owned(),
        library: owner.file().map(str::to_owned),
        parts: parts.collect(),
        settings: None,
        doubts: vec!["live and free blocks are not distinguished".to_owned()],
    };
    heap.parts.sort_by_key(|part| std::cmp::Reverse(part.resident_bytes));
    vec![heap]
}

/// The open parts of regions: private memory without a file that begins and ends at multiples of a region, without a
/// gap.
fn regions(mappings: &[Mapping]) -> Vec<Range<u64>> {
    let belongs = |of: &Mapping| of.private && of.file().is_none() && of.name.as_deref() != Some("[heap]");
    let mut all: Vec<Range<u64>> = Vec::new();
    let (mut start, mut end, mut open) = (0, 0, Vec::new());
    for mapping in mappings.iter().filter(|mapping| belongs(mapping)) {
        let range = &mapping.range;
        if range.start != end || range.start.is_multiple_of(REGION) {
            (start, open) = (range.start, Vec::new());
        }
        end = range.end;
        if mapping.readable && mapping.writable {
            open.push(range.clone());
        }
        if start.is_multiple_of(REGION) && end.is_multiple_of(REGION) {
            all.append(&mut open);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches memory at such addresses that is not a region, parts without access, and adjacent regions.
    #[test]
    fn regions_are_whole() {
        let of = |start: u64, end: u64, open: bool| Mapping {
            range: start << 20..end << 20,
            readable: open,
            writable: open,
            private: true,
            ..Mapping::default()
        };
        let found = |all: &[Mapping]| regions(all).iter().map(|of| (of.start >> 20, of.end >> 20)).collect::<Vec<_>>();
        assert_eq!(found(&[of(1024, 1984, false), of(1984, 2048, true)]), [(1984, 2048)]);
        assert_eq!(found(&[of(1024, 1984, false), of(1984, 2047, true)]), []);
        assert_eq!(found(&[of(1024, 1984, false), of(1985, 2048, true)]), []);
        assert_eq!(
            found(&[of(1023, 1024, true), of(1024, 2048, true), of(2048, 3072, true)]),
            [(1024, 2048), (2048, 3072)]
        );
        assert_eq!(found(&[of(64, 128, true), of(2048, 2049, true)]), []);
    }
}
