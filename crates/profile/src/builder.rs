//! Builds a profile, with each row once.

use std::collections::HashMap;
use std::hash::Hash;

use neap_trace::{Id, Table};

use crate::{
    Function, FunctionId, Label, Location, LocationId, Mapping, MappingId, Profile, Sample, StackId, StackNode,
    ValueType,
};

/// A profile under construction: equal mappings, functions, locations, stacks and samples become one row.
#[derive(Debug)]
pub struct Builder {
    profile: Profile,
    mappings: HashMap<Mapping, MappingId>,
    functions: HashMap<Function, FunctionId>,
    locations: HashMap<Location, LocationId>,
    stacks: HashMap<StackNode, StackId>,
    samples: HashMap<(Option<StackId>, Vec<Label>), usize>,
}

impl Builder {
    /// A profile without samples, with these value types.
    pub fn new(types: Vec<ValueType>) -> Self {
        Self {
            profile: Profile { types, ..Profile::default() },
            mappings: HashMap::new(),
            functions: HashMap::new(),
            locations: HashMap::new(),
            stacks: HashMap::new(),
            samples: HashMap::new(),
        }
    }

    /// All of the profile but the tables and samples: command, times, notes.
    pub const fn profile_mut(&mut self) -> &mut Profile {
        &mut self.profile
    }

    /// The mapping's row.
    pub fn mapping(&mut self, mapping: Mapping) -> MappingId {
        row(&mut self.profile.mappings, &mut self.mappings, mapping)
    }

    /// The function's row.
    pub fn function(&mut self, function: Function) -> FunctionId {
        row(&mut self.profile.functions, &mut self.functions, function)
    }

    /// The location's row.
    pub fn location(&mut self, location: Location) -> LocationId {
        row(&mut self.profile.locations, &mut self.locations, location)
    }

    /// The row of a frame that `parent` calls.
    pub fn stack_node(&mut self, parent: Option<StackId>, location: LocationId) -> StackId {
        row(&mut self.profile.stacks, &mut self.stacks, StackNode { parent, location })
    }

    /// The row of a whole stack, from the outermost location inwards.
    pub fn stack(&mut self, outermost_first: impl IntoIterator<Item = LocationId>) -> Option<StackId> {
        outermost_first.into_iter().fold(None, |parent, location| Some(self.stack_node(parent, location)))
    }

    /// Adds values to those of a stack with these labels. Missing values are 0.
    pub fn add(&mut self, stack: Option<StackId>, labels: Vec<Label>, values: &[i64]) {
        let width = self.profile.types.len();
        let samples = &mut self.profile.samples;
        let index = *self.samples.entry((stack, labels)).or_insert_with_key(|(stack, labels)| {
            samples.push(Sample { stack: *stack, values: vec![0; width], labels: labels.clone() });
            samples.len() - 1
        });
        for (sum, value) in samples[index].values.iter_mut().zip(values) {
            *sum = sum.saturating_add(*value);
        }
    }

    /// Returns the profile.
    pub fn finish(self) -> Profile {
        self.profile
    }
}

/// The row of a value, which is added if it is new.
fn row<I: Id, T: Clone + Eq + Hash>(table: &mut Table<I, T>, known: &mut HashMap<T, I>, value: T) -> I {
    *known.entry(value).or_insert_with_key(|value| table.push(value.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types;

    /// Catches rows that are made twice, and values that are not summed.
    #[test]
    fn equal_rows_are_one() {
        let mut builder = Builder::new(vec![types::INUSE_OBJECTS, types::INUSE_SPACE]);
        for _ in 0..2 {
            let mapping = builder.mapping(Mapping { file: "/bin/x".into(), ..Mapping::default() });
            let location = |address| Location { address, mapping: Some(mapping), frames: Vec::new() };
            let (outer, inner) = (builder.location(location(1)), builder.location(location(2)));
            let stack = builder.stack([outer, inner]);
            builder.add(stack, Vec::new(), &[1, 100]);
            builder.add(stack, vec![Label::text("thread", "a")], &[1]);
            assert_eq!(builder.profile.locations_of(stack).collect::<Vec<_>>(), [inner, outer]);
        }
        let profile = builder.finish();
        assert!(profile.is_valid());
        assert_eq!((profile.mappings.len(), profile.locations.len(), profile.stacks.len()), (1, 2, 2));
        let values: Vec<&[i64]> = profile.samples.iter().map(|sample| sample.values.as_slice()).collect();
        assert_eq!(values, [[2, 200], [2, 0]]);
        assert_eq!((profile.total(0), profile.total(1)), (4, 200));
    }
}
