//! The figures from which the verdict and the remedies follow.

use crate::model::{HeapFigures, Kind, Report};
use crate::owner::Class;
use crate::seen::{HeapPart, Mapping, Seen};

/// Zeros in huge pages that the program may never have used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InHuge {
    /// The owner of their memory.
    pub owner: String,
    /// Bytes.
    pub bytes: u64,
}

/// Figures for the verdict and the remedies.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Rss.
    pub rss: u64,
    /// Kept by allocators.
    pub kept: u64,
    /// Part of it: in caches of threads.
    pub cached: u64,
    /// Part of it: in arenas of threads.
    pub in_arenas: u64,
    /// Arenas with memory, including the main one.
    pub arenas: usize,
    /// The allocator that keeps most, in words.
    pub keeper: String,
    /// Fragmentation.
    pub fragmentation: u64,
    /// Zeros in huge pages, by owner, and all of them. Without those in small live blocks: programs write to these.
    pub in_huge: Vec<InHuge>,
    /// Their sum.
    pub zeros: u64,
    /// Memory of stacks below the stack pointer.
    pub below: u64,
    /// Memory that was given back lazily.
    pub lazy: u64,
    /// Anonymous memory that it has shared since a fork.
    pub forked: u64,
    /// Its own memory that was copied since a fork, as one of the processes wrote to it. If its parent could not be
    /// read, its own memory in mappings that are partly shared.
    pub copied: u64,
    /// Its own memory that is new since a fork.
    pub new: u64,
    /// Zeros in locked memory.
    pub locked_zeros: u64,
    /// What `malloc_trim` would give back.
    pub trimmable: u64,
}

impl Facts {
    /// The figures of a process.
    pub fn of(report: &Report, seen: &Seen, zeros: &[(Class, u64)]) -> Self {
        let sum = |of: fn(&HeapFigures) -> u64| report.heaps.iter().map(of).sum::<u64>();
        let arenas: Vec<&HeapPart> = seen.heaps.iter().filter(|part| !part.mapped).collect();
        let glibc = |part: &&&HeapPart| is_glibc(&part.figures.allocator);
        let is_own = |mapping: &&Mapping| !mapping.shared && (mapping.inode == 0 || mapping.figures.anonymous > 0);
        let own: Vec<&Mapping> = seen.mappings.iter().filter(is_own).collect();
        let in_part = own.iter().filter(|mapping| mapping.forked() > 0);
        let estimate: u64 = in_part.map(|mapping| mapping.figures.anonymous - mapping.forked()).sum();
        let anonymous: u64 = own.iter().map(|mapping| mapping.figures.anonymous - mapping.forked()).sum();
        let (copied, new) = seen.fork.map_or((estimate, anonymous - estimate), |fork| (fork.copied, fork.new));
        let in_huge = in_huge(seen, zeros);
        // To give back what may be no stack would destroy it.
        let idle = seen.stacks.iter().filter(|of| of.is_sure && !seen.is_locked(of));
        let below: u64 = idle.map(|stack| stack.below).sum();
        Facts {
            rss: report.rss_bytes,
            kept: report.of(Kind::HeapFree),
            // Counted later than Rss, while the process went on.
            cached: sum(|figures| figures.cached_bytes).min(report.of(Kind::HeapFree)),
            in_arenas: arenas.iter().filter(glibc).filter(|part| !part.main).map(|part| part.figures.kept_bytes).sum(),
            arenas: arenas.iter().filter(glibc).filter(|part| part.figures.resident_bytes > 0).count(),
            keeper: keeper(&report.heaps),
            fragmentation: report.of(Kind::HeapFragmentation),
            zeros: in_huge.iter().map(|of| of.bytes).sum(),
            in_huge,
            // Of locked stacks everything is resident, touched or not. Of others a huge page may have more than was touched.
            below: below.min(report.of(Kind::Stack)),
            lazy: report.of(Kind::LazyFree),
            forked: own.iter().map(|mapping| mapping.forked()).sum(),
            copied,
            new,
            locked_zeros: seen.locked_zeros.min(report.locked_bytes),
            trimmable: sum(|figures| if is_glibc(&figures.allocator) { figures.trimmable_bytes } else { 0 }),
        }
    }
}

/// Zeros by owner. In a heap only as many count as large live blocks can have: programs write to small ones, and memory
/// of free blocks is kept memory already.
fn in_huge(seen: &Seen, zeros: &[(Class, u64)]) -> Vec<InHuge> {
    let mut all: Vec<InHuge> = Vec::new();
    for (class, bytes) in zeros.iter().filter(|(class, _)| !class.kind.is_heap() || class.kind == Kind::HeapLive) {
        match all.iter_mut().find(|of| of.owner == class.owner) {
            Some(of) => of.bytes += bytes,
            None => all.push(InHuge { owner: class.owner.clone(), bytes: *bytes }),
        }
    }
    for of in &mut all {
        let parts = seen.heaps.iter().filter(|part| part.owner() == of.owner);
        if let Some(large) = parts.map(|part| part.large_bytes).reduce(|one, next| one + next) {
            of.bytes = of.bytes.min(large);
        }
    }
    all.retain(|of| of.bytes > 0);
    all
}

/// Whether an allocator is a version of glibc's.
pub fn is_glibc(allocator: &str) -> bool {
    allocator.starts_with("glibc")
}

/// The allocator that keeps most, with a mention of others if these keep more than a tenth.
fn keeper(heaps: &[HeapFigures]) -> String {
    let mut all: Vec<(&str, u64)> = Vec::new();
    for figures in heaps {
        match all.iter_mut().find(|(name, _)| *name == figures.allocator) {
            Some((_, sum)) => *sum += figures.kept_bytes,
            None => all.push((&figures.allocator, figures.kept_bytes)),
        }
    }
    let kept: u64 = all.iter().map(|(_, sum)| sum).sum();
    match all.into_iter().max_by_key(|(_, sum)| *sum) {
        Some((name, most)) if most >= kept - kept / 10 => name.to_owned(),
        Some((name, _)) => format!("{name} (and others)"),
        None => "its allocator".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(allocator: &str, kept: u64) -> HeapPart {
        let figures = HeapFigures {
            allocator: allocator.into(),
            resident_bytes: kept,
            kept_bytes: kept,
            trimmable_bytes: kept,
            ..HeapFigures::default()
        };
        HeapPart { figures, ..HeapPart::default() }
    }

    /// Catches other allocators' memory that counts as trimmable by glibc, and memory of several allocators that counts
    /// as one's.
    #[test]
    fn allocators_are_told_apart() {
        let of = |others: u64| {
            let seen = Seen { heaps: vec![part("glibc 2.36", 1000), part("jemalloc 5.3", others)], ..Seen::default() };
            Facts::of(&crate::report(&seen), &seen, &[])
        };
        assert_eq!((of(500).trimmable, of(500).keeper.as_str()), (1000, "glibc 2.36 (and others)"));
        assert_eq!(of(50).keeper, "glibc 2.36");
    }
}
