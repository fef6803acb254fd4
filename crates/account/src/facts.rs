//! The figures that the verdict and the remedies rest on.

use crate::model::{HeapFigures, Kind, Report};
use crate::seen::{HeapPart, Mapping, Seen};

/// What the verdict and the remedies rest on.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Rss.
    pub rss: u64,
    /// Kept by allocators.
    pub kept: u64,
    /// Of it: in caches of threads.
    pub cached: u64,
    /// Of it: in arenas of threads.
    pub in_arenas: u64,
    /// Arenas with memory, the main one too.
    pub arenas: usize,
    /// The allocator that keeps most.
    pub keeper: String,
    /// Fragmentation.
    pub fragmentation: u64,
    /// Zeros in huge pages.
    pub zeros: u64,
    /// Stacks: touched once.
    pub below: u64,
    /// Memory without a file that it shares since a fork.
    pub forked: u64,
    /// Zeros in locked memory.
    pub locked_zeros: u64,
    /// What `malloc_trim` would give back.
    pub trimmable: u64,
}

impl Facts {
    /// Those of a process.
    pub fn of(report: &Report, seen: &Seen) -> Self {
        let sum = |of: fn(&HeapFigures) -> u64| report.heaps.iter().map(of).sum::<u64>();
        let arenas: Vec<&HeapPart> = seen.heaps.iter().filter(|part| !part.mapped).collect();
        let glibc = |part: &&&HeapPart| part.figures.allocator.starts_with("glibc");
        let is_own = |mapping: &&Mapping| !mapping.shared && (mapping.inode == 0 || mapping.figures.anonymous > 0);
        let forked = seen.mappings.iter().filter(is_own).map(|mapping| {
            let f = &mapping.figures;
            (f.shared_clean + f.shared_dirty).min(f.anonymous)
        });
        Facts {
            rss: report.rss_bytes,
            kept: report.of(Kind::HeapFree),
            cached: sum(|figures| figures.cached_bytes),
            in_arenas: arenas.iter().filter(glibc).filter(|part| !part.main).map(|part| part.figures.kept_bytes).sum(),
            arenas: arenas.iter().filter(glibc).filter(|part| part.figures.resident_bytes > 0).count(),
            keeper: keeper(&report.heaps),
            fragmentation: report.of(Kind::HeapFragmentation),
            zeros: report.of(Kind::HugeZero),
            below: seen.stacks.iter().map(|stack| stack.below).sum(),
            forked: forked.sum(),
            locked_zeros: seen.locked_zeros,
            trimmable: sum(|figures| figures.trimmable_bytes),
        }
    }
}

/// The allocator that keeps most.
fn keeper(heaps: &[HeapFigures]) -> String {
    let mut all: Vec<(&str, u64)> = Vec::new();
    for figures in heaps {
        match all.iter_mut().find(|(name, _)| *name == figures.allocator) {
            Some((_, sum)) => *sum += figures.kept_bytes,
            None => all.push((&figures.allocator, figures.kept_bytes)),
        }
    }
    let most = all.into_iter().max_by_key(|(_, sum)| *sum);
    most.map_or_else(|| "its allocator".to_owned(), |(name, _)| name.to_owned())
}
