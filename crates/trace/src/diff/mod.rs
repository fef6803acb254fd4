//! Two traces compared: by kind, function, mapping, and page of a file.
//!
//! Addresses differ from run to run, so nothing is matched by them. A function is matched by its name and its object's
//! file name; without a symbol, by the address that the object states. A mapping is matched by its file's name, or by
//! its own name (`[heap]`, `[anon]`); a page by that and the position in the file. So the same program may lie in
//! another folder, and another build of it is matched where it has the same functions.

mod read;
mod text;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Serialize, Serializer};

pub use read::{Unreadable, read};
pub use text::text;

use crate::text::file_name;

/// The version of the result's JSON: it changes when a member changes its meaning or is removed.
pub const VERSION: u64 = 1;

/// Number of faults by name.
pub type Counts = BTreeMap<String, u64>;

/// The counts of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// The program and its arguments; empty where the format does not tell.
    pub command: Vec<String>,
    /// All faults; the sum of `kinds`, of `functions`, and of `mappings`.
    pub faults: u64,
    /// By [kind](crate::Kind::name).
    pub kinds: Counts,
    /// By function: `malloc (libc.so.6)`.
    pub functions: Counts,
    /// By mapping.
    pub mappings: Counts,
    /// By page of 4 KiB of a file, for faults in mappings of files: `libc.so.6+0x1000`.
    pub pages: Counts,
}

/// A line of a comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// What was counted.
    pub name: String,
    /// How often in the first trace.
    pub before: u64,
    /// How often in the second trace.
    pub after: u64,
}

impl Change {
    /// The change; negative for a decrease.
    pub fn difference(&self) -> i64 {
        (i128::from(self.after) - i128::from(self.before)).clamp(i64::MIN.into(), i64::MAX.into()) as i64
    }
}

impl Serialize for Change {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Row<'a> {
            name: &'a str,
            before: u64,
            after: u64,
            difference: i64,
        }
        Row { name: &self.name, before: self.before, after: self.after, difference: self.difference() }
            .serialize(serializer)
    }
}

/// A comparison. Lists are sorted by absolute difference, the largest first, then by name; they also contain what did
/// not change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Diff {
    /// [`VERSION`].
    pub neap_diff: u64,
    /// All faults.
    pub faults: Change,
    /// By kind.
    pub kinds: Vec<Change>,
    /// By function.
    pub functions: Vec<Change>,
    /// By mapping.
    pub mappings: Vec<Change>,
    /// By page of a file.
    pub pages: Vec<Change>,
}

impl Diff {
    /// Compares two traces.
    pub fn new(before: &Totals, after: &Totals) -> Self {
        Self {
            neap_diff: VERSION,
            faults: Change { name: "faults".to_owned(), before: before.faults, after: after.faults },
            kinds: changes(&before.kinds, &after.kinds),
            functions: changes(&before.functions, &after.functions),
            mappings: changes(&before.mappings, &after.mappings),
            pages: changes(&before.pages, &after.pages),
        }
    }
}

fn changes(before: &Counts, after: &Counts) -> Vec<Change> {
    let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let count = |counts: &Counts, name: &String| counts.get(name).copied().unwrap_or(0);
    let change = |name: &String| Change { name: name.clone(), before: count(before, name), after: count(after, name) };
    let mut list: Vec<Change> = names.into_iter().map(change).collect();
    // Stable: names stay in their order.
    list.sort_by_key(|change| std::cmp::Reverse(change.difference().unsigned_abs()));
    list
}

/// The place of an instruction as the trace shows it, by which functions are matched.
struct Instruction<'a> {
    symbol: Option<&'a str>,
    object: Option<&'a str>,
    /// As the object states it.
    address: u64,
}

impl Instruction<'_> {
    fn name(&self) -> String {
        match (self.symbol, self.object.map(file_name)) {
            (Some(symbol), Some(object)) => format!("{symbol} ({object})"),
            (Some(symbol), None) => symbol.to_owned(),
            (None, Some(object)) => format!("{object}+{:#x}", self.address),
            (None, None) => "???".to_owned(),
        }
    }
}

/// The name by which mappings are matched.
fn mapping_name(mapping: Option<&str>) -> &str {
    mapping.map_or("[unknown]", file_name)
}

/// The name by which pages are matched.
fn page_name(mapping: &str, file_offset: u64) -> String {
    format!("{}+{:#x}", file_name(mapping), file_offset & !0xfff)
}

fn add(counts: &mut Counts, name: String, faults: u64) {
    *counts.entry(name).or_default() += faults;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(rows: &[(&str, u64)]) -> Counts {
        rows.iter().map(|&(name, count)| (name.to_owned(), count)).collect()
    }

    /// Catches lists in the wrong order, and names that only one trace has and that are missing.
    #[test]
    fn largest_differences_first() {
        let before = counts(&[("same", 5), ("fewer", 9), ("gone", 1), ("a", 2)]);
        let after = counts(&[("same", 5), ("fewer", 2), ("new", 3), ("a", 3)]);
        let list: Vec<(String, i64)> =
            changes(&before, &after).into_iter().map(|change| (change.name.clone(), change.difference())).collect();
        let list: Vec<(&str, i64)> = list.iter().map(|(name, difference)| (name.as_str(), *difference)).collect();
        assert_eq!(list, [("fewer", -7), ("new", 3), ("a", 1), ("gone", -1), ("same", 0)]);
    }

    /// Catches differences that overflow.
    #[test]
    fn extremes() {
        let change = |before, after| Change { name: String::new(), before, after }.difference();
        assert_eq!((change(u64::MAX, 0), change(0, u64::MAX)), (i64::MIN, i64::MAX));
        assert_eq!(change(3, 1), -2);
    }

    /// Catches names that depend on addresses.
    #[test]
    fn names() {
        let name = |symbol, object, address| Instruction { symbol, object, address }.name();
        assert_eq!(name(Some("malloc"), Some("/lib/libc.so.6"), 7), "malloc (libc.so.6)");
        assert_eq!(name(None, Some("/lib/libc.so.6"), 0x17), "libc.so.6+0x17");
        assert_eq!(name(None, None, 0x7f00), "???");
        assert_eq!(mapping_name(Some("[anon:a/b]")), "[anon:a/b]");
        assert_eq!(mapping_name(None), "[unknown]");
        assert_eq!(page_name("/lib/libc.so.6", 0x1fff), "libc.so.6+0x1000");
    }
}
