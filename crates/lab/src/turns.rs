//! The order of allocators and cases within a round.

use crate::allocators::Allocator;
use crate::catalogue::{Case, Who};

/// Cases that share their rounds: one, or all cases of an experiment that compares them.
pub struct Group<'a> {
    /// For progress.
    pub name: String,
    /// Its place in the run.
    place: usize,
    /// The cases, each with the allocators that run it.
    pub cases: Vec<(&'a Case, Vec<&'a Allocator>)>,
}

impl<'a> Group<'a> {
    /// The cases, each with the allocators that run it; `place` is the group's place in the run.
    pub fn new(cases: &'a [Case], allocators: &'a [Allocator], place: usize) -> Group<'a> {
        let with = |case: &'a Case| (case, participants(case, allocators));
        let cases: Vec<_> = cases.iter().map(with).filter(|(_, under)| !under.is_empty()).collect();
        let names: Vec<&str> = cases.iter().map(|(case, _)| case.name.as_str()).collect();
        Group { name: names.join(" / "), place, cases }
    }

    /// The order of a round: place, case, allocator. Each allocator runs all its cases before the next one. Every other
    /// allocator goes from the last case to the first, so that a drift affects both ends.
    pub fn turns(&self, round: u32) -> Vec<(usize, &'a Case, &'a Allocator)> {
        let most = self.cases.iter().map(|(_, under)| under.len()).max().unwrap_or(0);
        let forwards = round.is_multiple_of(2);
        let mut turns = Vec::new();
        for turn in 0..most {
            let of = |(case, under): &(&'a Case, Vec<&'a Allocator>)| {
                let place = if forwards { turn } else { under.len().checked_sub(turn + 1)? };
                let who = (place + self.place + round as usize / 2) % under.len();
                (turn < under.len()).then(|| (turn, *case, under[who]))
            };
            let mut own: Vec<_> = self.cases.iter().filter_map(of).collect();
            // In the other round of the pair the same allocator has the turn `most - 1 - turn`, and the other
            // direction.
            if (if forwards { turn } else { turn + most }) % 2 == 1 {
                own.reverse();
            }
            turns.extend(own);
        }
        turns
    }
}

/// The allocators that run a case.
fn participants<'a>(case: &Case, allocators: &'a [Allocator]) -> Vec<&'a Allocator> {
    match case.who {
        Who::All => allocators.iter().collect(),
        Who::First => allocators.first().into_iter().collect(),
        Who::Only(names) => allocators.iter().filter(|allocator| names.contains(&allocator.name.as_str())).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::chosen;

    // Would catch compared cases that do not run side by side, or always in one order.
    #[test]
    fn compared_cases_take_turns_together() {
        let design = chosen(&["tls-chunks".into()], &[], true).unwrap().remove(0);
        let allocators = ["a", "b", "c"].map(|name| Allocator { name: name.into(), ..Allocator::default() });
        let groups = design.groups();
        assert_eq!(groups.len(), 1);
        let group = Group::new(groups[0], &allocators, 0);
        let turns = |round| -> Vec<String> {
            group.turns(round).iter().map(|(_, case, who)| format!("{} {}", who.name, case.name)).collect()
        };
        assert_eq!(turns(0)[..4], ["a 1 MiB", "a 100 MiB", "a 1 GiB", "b 1 GiB"]);
        assert_eq!(turns(1)[..4], ["c 1 GiB", "c 100 MiB", "c 1 MiB", "b 1 MiB"]);
        let two = Group::new(groups[0], &allocators[..2], 0);
        let first_of_b = |round| two.turns(round).into_iter().find(|(.., who)| who.name == "b").unwrap().1.name.clone();
        assert_ne!(first_of_b(0), first_of_b(1));
        let one = chosen(&["huge".into()], &[], true).unwrap().remove(0);
        assert_eq!(one.groups().len(), one.cases.len());
        assert_eq!(Group::new(one.groups()[0], &allocators, 1).turns(1).len(), 1);
    }

    // Would catch an allocator that is always the first one, or always runs after the same one.
    #[test]
    fn orders_are_balanced() {
        let design = chosen(&["vmas".into()], &[], true).unwrap().remove(0);
        let allocators = ["a", "b", "c"].map(|name| Allocator { name: name.into(), ..Allocator::default() });
        let order = |place, round| -> String {
            let group = Group::new(&design.cases, &allocators, place);
            group.turns(round).iter().map(|(.., who)| who.name.as_str()).collect()
        };
        assert_eq!([0, 1, 2, 3, 4].map(|round| order(0, round)), ["abc", "cba", "bca", "acb", "cab"]);
        assert_eq!([0, 1, 2, 3].map(|place| order(place, 0)), ["abc", "bca", "cab", "abc"]);
        assert_eq!(order(1, 1), "acb");
    }
}
