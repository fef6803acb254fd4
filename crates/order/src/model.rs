//! A trace as it is written, in JSON, and how several become one.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

/// The value of `format`.
pub const FORMAT: &str = "neap-order 1";

/// What a program touches of a binary.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trace {
    /// [`FORMAT`].
    pub format: String,
    /// What was traced.
    pub binary: TracedBinary,
    /// The runs.
    pub runs: Vec<Run>,
    /// The functions that were entered, in order.
    pub functions: Vec<TracedFunction>,
    /// Variables, constants and OS pages of other data that were touched, by address.
    #[serde(default)]
    pub data: Vec<TracedDatum>,
}

/// What was traced.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TracedBinary {
    /// Without links.
    pub path: String,
    /// In hexadecimal digits.
    pub build_id: Option<String>,
    /// Of the file, in bytes.
    pub size: u64,
}

/// A run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// How it was traced.
    pub source: String,
    /// Its exit status; 128 and the signal, where one ended it.
    pub status: i32,
    /// How many functions it entered.
    pub functions: u64,
}

/// A function that was entered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TracedFunction {
    /// As the linker knows it.
    pub name: String,
    /// Its section in the linked file.
    pub section: String,
    /// Link-time.
    pub address: u64,
    /// In bytes.
    pub size: u64,
    /// The source file of a local symbol.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// In how many runs it was entered.
    pub runs: u64,
    /// Its place in the order.
    pub rank: u64,
    /// When it was first entered, in nanoseconds since the exec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_ns: Option<u64>,
}

/// A variable or a constant that was the first to be touched of an OS page.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TracedDatum {
    /// As the linker knows it; none where there is no symbol.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its section.
    pub section: String,
    /// Link-time; without a symbol, the start of the OS page.
    pub address: u64,
    /// In bytes; without a symbol, that of an OS page.
    pub size: u64,
    /// In how many runs it was touched.
    pub runs: u64,
    /// It was written.
    pub write: bool,
}

impl Trace {
    /// Adds a trace of the same binary. The functions of this one keep their order; each that only the other has comes
    /// behind the one that the other has before it. So functions that were entered one after the other in a run stay
    /// together.
    pub fn merge(&mut self, other: Trace) {
        let key = |function: &TracedFunction| (function.address, function.name.clone());
        let mut places: HashMap<_, usize> = self.functions.iter().map(key).zip(0..).collect();
        let mut all = std::mem::take(&mut self.functions);
        // A list: what follows each function, and the first one.
        const END: usize = usize::MAX;
        let mut next: Vec<usize> = (1..all.len()).chain([END]).take(all.len()).collect();
        let mut first = if all.is_empty() { END } else { 0 };
        let mut before = None;
        for function in other.functions {
            let place = *places.entry(key(&function)).or_insert_with(|| {
                let place = all.len();
                let link = before.map_or(&mut first, |before: usize| &mut next[before]);
                let after = std::mem::replace(link, place);
                next.push(after);
                all.push(TracedFunction { runs: 0, ..function.clone() });
                place
            });
            all[place].runs += function.runs;
            all[place].first_ns = all[place].first_ns.into_iter().chain(function.first_ns).min();
            before = Some(place);
        }
        let mut all: Vec<Option<TracedFunction>> = all.into_iter().map(Some).collect();
        let (mut at, mut rank) = (first, 0);
        while at != END {
            self.functions.extend(all[at].take().map(|function| TracedFunction { rank, ..function }));
            (at, rank) = (next[at], rank + 1);
        }
        self.runs.extend(other.runs);
        self.add_data(other.data);
    }

    /// Adds data that were touched: each counts once.
    pub fn add_data(&mut self, data: Vec<TracedDatum>) {
        self.data.extend(data);
        self.data.sort_by(|a, b| (a.address, &a.name).cmp(&(b.address, &b.name)));
        self.data.dedup_by(|next, first| {
            let same = (next.address, &next.name) == (first.address, &first.name);
            if same {
                first.runs += next.runs;
                first.write |= next.write;
            }
            same
        });
    }

    /// Whether a trace is of the same build of a binary: it has the same build id; the same path and size, where one of
    /// both has none.
    pub fn is_of_same_binary(&self, other: &Trace) -> bool {
        match (&self.binary.build_id, &other.binary.build_id) {
            (Some(own), Some(others)) => own == others,
            _ => (&self.binary.path, self.binary.size) == (&other.binary.path, other.binary.size),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(names: &str) -> Trace {
        let function = |(rank, name): (u64, char)| TracedFunction {
            name: name.to_string(),
            section: ".text".to_owned(),
            address: u64::from(name),
            size: 1,
            file: None,
            runs: 1,
            rank,
            first_ns: Some(10 * rank + 1),
        };
        let run = Run { command: Vec::new(), source: "breakpoints".to_owned(), status: 0, functions: 0 };
        Trace {
            format: FORMAT.to_owned(),
            binary: TracedBinary { path: "/x".to_owned(), build_id: None, size: 1 },
            runs: vec![run],
            functions: (0..).zip(names.chars()).map(function).collect(),
            data: Vec::new(),
        }
    }

    /// Catches functions that are lost or doubled, a first run whose order changes, and functions of a later run that are
    /// torn from those that they were entered with.
    #[test]
    fn merging_keeps_what_was_entered_together() {
        for (one, other, both) in [
            ("abc", "abc", "abc"),
            ("abc", "axyc", "axybc"),
            ("abc", "xaybz", "xaybzc"),
            ("abc", "cbax", "axbc"),
            ("", "ab", "ab"),
            ("ab", "", "ab"),
            ("ab", "xy", "xyab"),
        ] {
            let mut merged = trace(one);
            merged.merge(trace(other));
            let names: String = merged.functions.iter().map(|function| function.name.as_str()).collect();
            assert_eq!(names, both, "{one} and {other}");
            assert!(merged.functions.iter().map(|function| function.rank).eq(0..both.len() as u64));
            let count =
                |function: &TracedFunction| [one, other].iter().filter(|run| run.contains(&function.name)).count();
            assert!(merged.functions.iter().all(|function| function.runs == count(function) as u64));
            assert_eq!(merged.runs.len(), 2);
        }
        let mut merged = trace("ab");
        merged.merge(trace("b"));
        assert_eq!(merged.functions.iter().map(|function| function.first_ns).collect::<Vec<_>>(), [Some(1), Some(1)]);
    }

    /// Catches data that are lost or doubled, and writes that are forgotten.
    #[test]
    fn data_count_once() {
        let datum = |name: &str, address, write| TracedDatum {
            name: Some(name.to_owned()),
            section: ".data".to_owned(),
            address,
            size: 8,
            runs: 1,
            write,
        };
        let (mut one, mut other) = (trace("a"), trace("a"));
        one.add_data(vec![datum("y", 16, false), datum("x", 8, false)]);
        other.add_data(vec![datum("y", 16, true), datum("", 0, false)]);
        one.merge(other);
        let data: Vec<_> =
            one.data.iter().map(|datum| (datum.name.as_deref().unwrap_or("none"), datum.runs, datum.write)).collect();
        assert_eq!(data, [("", 1, false), ("x", 1, false), ("y", 2, true)]);
    }

    /// Catches traces of different builds that are taken for one.
    #[test]
    fn builds_are_told_apart() {
        let with = |id: Option<&str>, size: u64| {
            let mut trace = trace("a");
            (trace.binary.build_id, trace.binary.size) = (id.map(str::to_owned), size);
            trace
        };
        assert!(with(Some("1"), 1).is_of_same_binary(&with(Some("1"), 1)));
        assert!(!with(Some("1"), 1).is_of_same_binary(&with(Some("2"), 1)));
        assert!(with(None, 1).is_of_same_binary(&with(None, 1)) && !with(None, 1).is_of_same_binary(&with(None, 2)));
    }
}
