//! A trace as `neap order` writes it in JSON, and how several are merged.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::mem;

use serde::{Deserialize, Serialize};

use crate::binary::LARGEST;

/// The value of `format`, the first member of a trace.
pub const FORMAT: &str = "neap-order 1";

/// What a program touches of a binary. All addresses are link-time.
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
    /// Data that was touched: objects, or parts of at most an OS page.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub data: Vec<TracedData>,
    /// Calls between functions, where the source counts them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<Call>,
}

/// What was traced.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracedBinary {
    /// Without symbolic links.
    pub path: String,
    /// In hexadecimal digits.
    #[serde(default)]
    pub build_id: Option<String>,
    /// Size of the file in bytes.
    pub size: u64,
}

/// A run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// How it was traced: `breakpoints`, `instrumented` or `faults`.
    pub source: String,
    /// Its exit status; 128 plus the signal, if one ended it.
    pub status: i32,
    /// How many functions it entered.
    pub functions: u64,
}

/// The source of a run that was traced by its faults. Such a run may be for data only, and then shows no function.
pub const FAULTS: &str = "faults";

impl Run {
    /// Whether it could record functions, however few it entered.
    pub fn sees_functions(&self) -> bool {
        self.source != FAULTS || self.functions > 0
    }
}

/// A function that was entered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracedFunction {
    /// The linker's name.
    pub name: String,
    /// Its section in the linked file.
    pub section: String,
    /// Address of its first byte.
    pub address: u64,
    /// In bytes.
    pub size: u64,
    /// The source file of a local symbol.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Number of runs in which it was entered.
    pub runs: u64,
    /// These runs, as indexes in [`Trace::runs`]; empty for the first run only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub in_runs: Vec<usize>,
    /// Its rank in the order of first entry: the median over the runs that entered it.
    pub rank: u64,
    /// When it was first entered, in nanoseconds since the exec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_ns: Option<u64>,
}

/// Data that was touched.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracedData {
    /// The linker's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its section in the linked file.
    pub section: String,
    /// Address of its first byte.
    pub address: u64,
    /// In bytes.
    pub size: u64,
    /// Number of runs in which it was touched.
    pub runs: u64,
    /// Whether it was written in any of them.
    #[serde(default)]
    pub write: bool,
}

/// Calls of one function by another; both are indexes in [`Trace::functions`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// The caller.
    pub from: usize,
    /// The callee.
    pub to: usize,
    /// The number of calls in all runs.
    pub count: u64,
}

/// Why a text is no trace, or why traces cannot be merged. Each message names the cause.
#[derive(Debug)]
pub enum TraceError {
    /// It is no JSON, or lacks a member.
    Json(serde_json::Error),
    /// It has another format, or none.
    Format(Option<String>),
    /// Its members contradict each other or are impossible: how.
    Damaged(String),
    /// Two traces are of different builds of a binary: their paths.
    OtherBuild(String, String),
    /// There is no trace to merge.
    Nothing,
}

impl Trace {
    /// A trace without runs.
    pub fn new(binary: TracedBinary) -> Self {
        let (runs, functions, data, calls) = Default::default();
        Self { format: FORMAT.to_owned(), binary, runs, functions, data, calls }
    }

    /// Reads a trace.
    pub fn parse(text: &[u8]) -> Result<Self, TraceError> {
        // The format first: nothing else is known of another format.
        #[derive(Deserialize)]
        struct Head {
            format: Option<String>,
        }
        let head: Head = serde_json::from_slice(text).map_err(TraceError::Json)?;
        if head.format.as_deref() != Some(FORMAT) {
            return Err(TraceError::Format(head.format));
        }
        let trace: Self = serde_json::from_slice(text).map_err(TraceError::Json)?;
        trace.damage().map_or(Ok(trace), |damage| Err(TraceError::Damaged(damage)))
    }

    /// What a complete trace cannot contain.
    fn damage(&self) -> Option<String> {
        let functions = self.functions.iter().map(|function| (function.address, function.size, function.runs));
        let data = self.data.iter().map(|data| (data.address, data.size, data.runs));
        let all = self.runs.len();
        for (address, size, runs) in functions.chain(data) {
            if size > LARGEST || address.checked_add(size).is_none() {
                return Some(format!("{size} bytes at {address:#x}"));
            }
            if runs > all as u64 {
                return Some(format!("what {runs} of {all} runs touched, at {address:#x}"));
            }
        }
        if let Some(run) = self.functions.iter().flat_map(|function| &function.in_runs).find(|run| **run >= all) {
            return Some(format!("a function was entered in run {run}, which is not there"));
        }
        let mut called = self.calls.iter().flat_map(|call| [call.from, call.to]);
        let missing = called.find(|place| *place >= self.functions.len());
        missing.map(|place| format!("a call names function {place}, which is not there"))
    }

    /// The trace as text.
    pub fn to_json(&self) -> Result<Vec<u8>, TraceError> {
        let mut text = serde_json::to_vec(self).map_err(TraceError::Json)?;
        text.push(b'\n');
        Ok(text)
    }

    /// Merges several traces of the same build.
    ///
    /// Functions that all runs entered (of those that can record functions) come first, then those of some runs; both
    /// are sorted by the median of their ranks, where a trace of several runs counts as that many, then by address. Of
    /// an even number of ranks the lower of the two middle ones is the median. Data is sorted by address.
    pub fn merge(traces: Vec<Trace>) -> Result<Trace, TraceError> {
        let binary = traces.first().ok_or(TraceError::Nothing)?.binary.clone();
        if let Some(other) = traces.iter().find(|trace| !trace.binary.is_same_build(&binary)) {
            return Err(TraceError::OtherBuild(binary.path, other.binary.path.clone()));
        }
        let mut merged = Trace::new(binary);
        let mut places: HashMap<(u64, String), usize> = HashMap::new();
        let mut ranks: Vec<Vec<(u64, u64)>> = Vec::new();
        let mut calls: BTreeMap<(usize, usize), u64> = BTreeMap::new();
        let mut data: BTreeMap<(u64, u64), TracedData> = BTreeMap::new();
        for trace in traces {
            let earlier = merged.runs.len();
            let mut moved = Vec::with_capacity(trace.functions.len());
            for mut function in trace.functions {
                let in_runs = mem::take(&mut function.in_runs);
                let in_runs = if in_runs.is_empty() { vec![0] } else { in_runs };
                let in_runs = in_runs.into_iter().map(|run| earlier + run);
                let place = *places.entry((function.address, function.name.clone())).or_insert(ranks.len());
                moved.push(place);
                if place == ranks.len() {
                    ranks.push(vec![(function.rank, function.runs)]);
                    merged.functions.push(TracedFunction { in_runs: in_runs.collect(), ..function });
                    continue;
                }
                ranks[place].push((function.rank, function.runs));
                let known = &mut merged.functions[place];
                known.runs += function.runs;
                known.in_runs.extend(in_runs);
                known.first_ns = known.first_ns.into_iter().chain(function.first_ns).min();
            }
            for call in trace.calls {
                if let (Some(&from), Some(&to)) = (moved.get(call.from), moved.get(call.to)) {
                    let sum: &mut u64 = calls.entry((from, to)).or_default();
                    *sum = sum.saturating_add(call.count);
                }
            }
            for piece in trace.data {
                let key = (piece.address, piece.size);
                let known = data.entry(key).or_insert_with(|| TracedData { runs: 0, ..piece.clone() });
                known.runs += piece.runs;
                known.write |= piece.write;
            }
            merged.runs.extend(trace.runs);
        }
        merged.data = data.into_values().collect();
        let all = merged.runs.iter().filter(|run| run.sees_functions()).count() as u64;
        let mut order: Vec<usize> = (0..ranks.len()).collect();
        let keys: Vec<(bool, u64, u64)> = (merged.functions.iter().zip(&mut ranks))
            .map(|(function, ranks)| (function.runs < all, median(ranks), function.address))
            .collect();
        order.sort_by_key(|&place| keys[place]);
        let mut at = vec![0; order.len()];
        for (new, &old) in order.iter().enumerate() {
            at[old] = new;
            merged.functions[old].rank = keys[old].1;
        }
        merged.functions = order.iter().map(|&old| mem::take(&mut merged.functions[old])).collect();
        merged.calls =
            calls.into_iter().map(|((from, to), count)| Call { from: at[from], to: at[to], count }).collect();
        Ok(merged)
    }
}

impl TracedBinary {
    /// Whether another one is the same build: it has the same build id; or, if one of them has none, the same path and
    /// size.
    pub fn is_same_build(&self, other: &TracedBinary) -> bool {
        match (&self.build_id, &other.build_id) {
            (Some(own), Some(others)) => own == others,
            _ => (&self.path, self.size) == (&other.path, other.size),
        }
    }
}

/// The median of weighted values.
fn median(values: &mut [(u64, u64)]) -> u64 {
    values.sort_unstable();
    let all: u64 = values.iter().map(|value| value.1.max(1)).sum();
    let mut before = 0;
    let middle = values.iter().find(|value| {
        before += value.1.max(1);
        before > (all - 1) / 2
    });
    middle.map_or(0, |value| value.0)
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Json(error) => write!(f, "not a trace of neap order: {error}"),
            Self::Format(None) => {
                write!(f, "not a trace of neap order: it has no member \"format\"")
            }
            Self::Format(Some(found)) => write!(f, "the trace has the format {found:?}, this neap reads {FORMAT:?}"),
            Self::Damaged(how) => write!(f, "the trace is damaged: {how}"),
            Self::OtherBuild(one, other) => {
                write!(f, "the traces of {one} and {other} are of different builds")
            }
            Self::Nothing => write!(f, "there is no trace to merge"),
        }
    }
}

impl std::error::Error for TraceError {}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run that entered functions with names of one letter.
    fn trace(names: &str) -> Trace {
        let function = |(rank, name): (u64, char)| TracedFunction {
            name: name.to_string(),
            section: ".text".to_owned(),
            address: u64::from(name),
            size: 1,
            file: None,
            runs: 1,
            in_runs: Vec::new(),
            rank,
            first_ns: Some(10 * rank + 1),
        };
        let functions = names.chars().count() as u64;
        let run = Run { command: vec!["x".to_owned()], source: "breakpoints".to_owned(), status: 0, functions };
        Trace {
            runs: vec![run],
            functions: (0..).zip(names.chars()).map(function).collect(),
            ..Trace::new(TracedBinary { path: "/x".to_owned(), build_id: None, size: 1 })
        }
    }

    fn names(trace: &Trace) -> String {
        trace.functions.iter().map(|function| function.name.as_str()).collect()
    }

    /// Catches an order that is not the documented one, and functions that are lost or doubled.
    #[test]
    fn common_functions_come_first_by_median() {
        for (runs, order) in [
            (vec!["abc", "abc"], "abc"),
            (vec!["xab", "ab"], "abx"),
            (vec!["abc", "bca", "bac"], "bac"),
            (vec!["abx", "yab"], "abyx"),
        ] {
            let merged = Trace::merge(runs.iter().map(|run| trace(run)).collect()).expect("one build");
            assert_eq!(names(&merged), order, "{runs:?}");
            assert_eq!(merged.runs.len(), runs.len());
            for function in &merged.functions {
                let entered = runs.iter().filter(|run| run.contains(&function.name)).count();
                assert_eq!(function.runs, entered as u64, "{}", function.name);
                let of = |run: &usize| runs[*run].contains(&function.name);
                assert!(function.in_runs.len() == entered && function.in_runs.iter().all(of), "{function:?}");
            }
        }
        assert!(matches!(Trace::merge(Vec::new()), Err(TraceError::Nothing)));
    }

    /// Catches a merged trace that counts as one run when it is merged again.
    #[test]
    fn merged_traces_keep_their_weight() {
        let two = Trace::merge(vec![trace("abcd"), trace("abcd")]).expect("one build");
        let all = Trace::merge(vec![trace("dcba"), two]).expect("one build");
        assert_eq!((names(&all).as_str(), all.functions[0].runs), ("abcd", 3));
        assert_eq!(all.functions[0].in_runs, [0, 1, 2]);
        assert_eq!(median(&mut [(9, 1), (1, 2)]), 1);
        assert_eq!(median(&mut [(9, 1), (1, 1)]), 1);
    }

    /// Catches a run that records data only, and counts as one that entered no function.
    #[test]
    fn runs_of_data_enter_no_function() {
        let mut with_data = trace("xab");
        with_data.runs.push(Run { source: FAULTS.to_owned(), functions: 0, ..with_data.runs[0].clone() });
        let merged = Trace::merge(vec![with_data, trace("ab")]).expect("one build");
        assert_eq!((names(&merged).as_str(), merged.runs.len()), ("abx", 3));
    }

    /// Catches calls with the indexes from before the merge, and data that is doubled.
    #[test]
    fn calls_and_data_are_added_up() {
        let with = |names: &str, write: bool| {
            let piece = TracedData { address: 64, size: 8, runs: 1, write, ..TracedData::default() };
            Trace { calls: vec![Call { from: 0, to: 1, count: 2 }], data: vec![piece], ..trace(names) }
        };
        let merged = Trace::merge(vec![with("abx", false), with("xab", true)]).expect("one build");
        let mut calls: Vec<_> = (merged.calls.iter())
            .map(|call| {
                let name = |place: usize| merged.functions[place].name.as_str();
                (name(call.from), name(call.to), call.count)
            })
            .collect();
        calls.sort_unstable();
        assert_eq!(calls, [("a", "b", 2), ("x", "a", 2)]);
        assert_eq!((merged.data.len(), merged.data[0].runs, merged.data[0].write), (1, 2, true));
    }

    /// Catches members that are lost, a format that is not first, and foreign files that pass as traces.
    #[test]
    fn text_and_back() {
        let mut whole = trace("ab");
        whole.calls.push(Call { from: 0, to: 1, count: 3 });
        let text = whole.to_json().expect("JSON");
        assert!(text.starts_with(b"{\"format\":\"neap-order 1\","));
        assert_eq!(Trace::parse(&text).expect("a trace"), whole);
        whole.calls[0].to = 2;
        assert!(matches!(Trace::parse(&whole.to_json().expect("JSON")), Err(TraceError::Damaged(_))));
        let message = |text: &str| Trace::parse(text.as_bytes()).expect_err("no trace").to_string();
        assert_eq!(
            message(r#"{"format":"neap-order 2"}"#),
            r#"the trace has the format "neap-order 2", this neap reads "neap-order 1""#
        );
        assert_eq!(message("{}"), "not a trace of neap order: it has no member \"format\"");
        assert!(message("perf").starts_with("not a trace of neap order: "));
    }

    /// Catches damaged traces whose numbers overflow, or whose OS pages are counted for ever.
    #[test]
    fn damaged_traces_are_refused() {
        let damages: [fn(&mut Trace); 6] = [
            |trace| trace.functions[1].size = 1 << 60,
            |trace| trace.functions[1].address = u64::MAX,
            |trace| trace.functions[1].runs = 2,
            |trace| trace.functions[1].in_runs = vec![1],
            |trace| trace.data[0].size = 1 << 50,
            |trace| trace.calls[0].from = 2,
        ];
        let mut whole = trace("ab");
        whole.calls = vec![Call { from: 0, to: 1, count: u64::MAX }; 2];
        whole.data.push(TracedData { size: 1 << 32, runs: 1, ..TracedData::default() });
        let read = |trace: &Trace| Trace::parse(&trace.to_json().expect("JSON"));
        assert_eq!(Trace::merge(vec![read(&whole).expect("a trace")]).expect("one").calls[0].count, u64::MAX);
        assert!(crate::cluster::c3(&whole).len() == 2 && crate::cluster::cost(&whole, &[0, 1]).far_calls == 0);
        for (place, damage) in damages.iter().enumerate() {
            let mut damaged = whole.clone();
            damage(&mut damaged);
            assert!(matches!(read(&damaged), Err(TraceError::Damaged(_))), "{place}");
        }
    }

    /// Catches traces of different builds that are merged.
    #[test]
    fn builds_are_distinguished() {
        let with = |id: Option<&str>, size: u64| {
            let mut trace = trace("a");
            (trace.binary.build_id, trace.binary.size) = (id.map(str::to_owned), size);
            trace
        };
        let same = |one: Trace, other: Trace| Trace::merge(vec![one, other]).is_ok();
        assert!(same(with(Some("1"), 1), with(Some("1"), 1)) && !same(with(Some("1"), 1), with(Some("2"), 1)));
        assert!(same(with(None, 1), with(None, 1)) && !same(with(None, 1), with(None, 2)));
    }
}
