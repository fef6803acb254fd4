//! What a process has for itself since a fork: OS pages that were copied, because it or its parent wrote to them, and OS
//! pages that are new. Only new ones may be a leak.
//!
//! A process that executes its parent's program has the same addresses. An OS page that only it has was copied if its
//! parent has one at that address too, otherwise it is new.

use crate::memory::Process;
use neap_account::seen::{Fork, Seen};
use neap_process::identity;
use std::ops::Range;

/// Adds it, if the parent can be read. Where the parent goes on as before, it has the OS pages of the fork still.
pub fn read(seen: &mut Seen, parent: u32, memory: &Process) {
    let is_fork = identity::of(parent).zip(identity::of(seen.pid)).is_some_and(|(one, other)| one.is_fork_of(&other));
    if !is_fork {
        return;
    }
    let Ok(parents) = Process::open(parent, &memory.fuel) else { return };
    let mut fork = Fork::default();
    for mapping in seen.mappings.iter().filter(|of| !of.shared && of.figures.anonymous > 0) {
        for region in memory.regions(mapping.range.clone()).into_iter().filter(|region| !region.swapped) {
            count(memory.own(region.range.clone()), parents.regions(region.range), &mut fork);
        }
    }
    seen.fork = Some(fork);
}

/// Adds ranges that the process alone has, by whether the parent has something there.
fn count(own: Vec<Range<u64>>, parents: Vec<neap_process::pagemap::Region>, fork: &mut Fork) {
    for range in own {
        let both = |of: &neap_process::pagemap::Region| {
            of.range.end.min(range.end).saturating_sub(of.range.start.max(range.start))
        };
        let first = parents.partition_point(|of| of.range.end <= range.start);
        let here = parents[first..].iter().take_while(|of| of.range.start < range.end);
        let copied: u64 = here.map(both).sum();
        fork.copied += copied;
        fork.new += (range.end - range.start).saturating_sub(copied);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use neap_process::pagemap::Region;

    /// Catches OS pages that the parent has only in part, or beside them.
    #[test]
    fn copies_have_an_original() {
        let region = |range| Region { range, swapped: false, huge: false, zero: false };
        let mut fork = Fork::default();
        count(vec![10..20, 30..40, 50..60], vec![region(0..12), region(15..18), region(38..70)], &mut fork);
        assert_eq!(fork, Fork { copied: 2 + 3 + 2 + 10, new: 5 + 8 });
    }
}
