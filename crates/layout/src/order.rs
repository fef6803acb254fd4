//! The functions and data of a trace that a binary has, in order.

use std::collections::HashSet;

use crate::binary::{Binary, Kind, Symbol};
use crate::cluster::by_runs;
use crate::names::{Counts, Found, Names};
use crate::trace::Trace;

/// The functions and data to place, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Order {
    /// Functions, then data.
    pub items: Vec<Item>,
    /// How the names of functions were found.
    pub functions: Counts,
    /// How the names of data were found.
    pub data: Counts,
    /// Data of the trace without a name, which no linker can place.
    pub nameless: usize,
}

/// A function or an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The linker's name.
    pub name: String,
    /// The other names of its address.
    pub aliases: Vec<String>,
    /// Its kind.
    pub kind: Kind,
}

impl Order {
    /// From a trace, for a binary that may be a later build: functions that the same runs entered are adjacent.
    pub fn of(trace: &Trace, binary: &Binary) -> Self {
        Self::with(trace, &by_runs(trace), binary)
    }

    /// From these functions of the trace, in this order.
    pub fn with(trace: &Trace, functions: &[usize], binary: &Binary) -> Self {
        let names = Names::new(binary);
        let mut order = Self::default();
        let mut placed = HashSet::new();
        for function in functions.iter().map(|&place| &trace.functions[place]) {
            // The linker makes one function of each of these two sections, which it does not move.
            if matches!(function.section.as_str(), ".init" | ".fini") {
                continue;
            }
            let found = names.find(&function.name, function.file.as_deref(), function.address, function.size);
            take(found, binary, &mut order.functions, &mut placed, &mut order.items);
        }
        for data in &trace.data {
            let Some(name) = &data.name else {
                order.nameless += 1;
                continue;
            };
            let found = names.find(name, None, data.address, data.size);
            take(found, binary, &mut order.data, &mut placed, &mut order.items);
        }
        order
    }
}

fn take(found: Found<'_>, binary: &Binary, counts: &mut Counts, placed: &mut HashSet<u64>, items: &mut Vec<Item>) {
    let mut add = |symbol: &Symbol| {
        if placed.insert(symbol.address) {
            let (name, aliases) = (symbol.name.clone(), symbol.aliases.clone());
            items.push(Item { name, aliases, kind: binary.kind(symbol) });
        }
    };
    match found {
        Found::Same(symbol) => {
            counts.same += 1;
            add(symbol);
        }
        Found::Changed(symbols) => {
            counts.changed += 1;
            symbols.into_iter().for_each(add);
        }
        Found::Lost => counts.lost += 1,
    }
}
