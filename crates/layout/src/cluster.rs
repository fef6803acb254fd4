//! Orders of the functions of a trace, and their costs.
//!
//! By default, functions that the same runs entered are adjacent: then no run reads an OS page for functions of another
//! run. C3 (call-chain clustering, Ottoni and Maher, CGO 2017) needs counts of calls: it appends each function, the
//! most called first, to the cluster of its most frequent caller, up to the size of an OS page. Balanced partitioning,
//! which LLVM uses for start-up, is no better than the default (`docs/decisions/functions-by-runs.md`).

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use crate::binary::{PAGE, pages};
use crate::trace::Trace;

/// Indexes in [`Trace::functions`], each once.
pub type Places = Vec<usize>;

/// The order of first entry.
pub fn by_first_entry(trace: &Trace) -> Places {
    let mut order: Places = (0..trace.functions.len()).collect();
    order.sort_by_key(|&place| trace.functions[place].rank);
    order
}

/// Groups functions by the set of runs that entered them: those of all runs first, then those of fewer; each group in
/// the order of first entry. For one run this is the order of first entry.
pub fn by_runs(trace: &Trace) -> Places {
    let mut order = by_first_entry(trace);
    order.sort_by_key(|&place| {
        let function = &trace.functions[place];
        (Reverse(function.runs), &function.in_runs)
    });
    order
}

/// The OS pages that each run touches if the functions are adjacent, from the start of an OS page, aligned to 16 bytes.
pub fn pages_of_runs(trace: &Trace, order: &[usize]) -> Vec<u64> {
    let (mut touched, mut end) = (vec![HashSet::<u64>::new(); trace.runs.len()], 0);
    for function in order.iter().map(|&place| &trace.functions[place]) {
        let in_runs = if function.in_runs.is_empty() { &[0][..] } else { &function.in_runs };
        for (_, touched) in touched.iter_mut().enumerate().filter(|(run, _)| in_runs.contains(run)) {
            touched.extend(pages(end, function.size));
        }
        end += function.size.next_multiple_of(16);
    }
    touched.iter().map(|pages| pages.len() as u64).collect()
}

/// Clusters of callers and callees, by the first entry of each cluster; without counts, the order of first entry.
pub fn c3(trace: &Trace) -> Places {
    let functions = &trace.functions;
    let mut called = vec![0; functions.len()];
    let mut callers: HashMap<usize, (u64, usize)> = HashMap::new();
    for call in trace.calls.iter().filter(|call| call.from != call.to) {
        called[call.to] = call.count.saturating_add(called[call.to]);
        let most = callers.entry(call.to).or_insert((call.count, call.from));
        if call.count > most.0 {
            *most = (call.count, call.from);
        }
    }
    let mut clusters: Vec<Places> = (0..functions.len()).map(|place| vec![place]).collect();
    let mut sizes: Vec<u64> = functions.iter().map(|function| function.size).collect();
    let mut cluster_of: Places = (0..functions.len()).collect();
    let mut order = by_first_entry(trace);
    order.sort_by_key(|&place| Reverse(called[place]));
    for callee in order {
        let Some(&(_, caller)) = callers.get(&callee) else {
            continue;
        };
        let (from, to) = (cluster_of[callee], cluster_of[caller]);
        if from != to && sizes[from] + sizes[to] <= PAGE {
            sizes[to] += sizes[from];
            let moved = std::mem::take(&mut clusters[from]);
            moved.iter().for_each(|&place| cluster_of[place] = to);
            clusters[to].extend(moved);
        }
    }
    clusters.retain(|cluster| !cluster.is_empty());
    clusters.sort_by_key(|cluster| cluster.iter().map(|&place| functions[place].rank).min());
    clusters.concat()
}

/// The costs of an order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// OS pages if the functions are adjacent, from the start of an OS page.
    pub pages: u64,
    /// Calls between functions that begin on different OS pages.
    pub far_calls: u64,
    /// The sum over all functions, in the order of first entry, of the OS pages that the start has touched by then: low
    /// if a start gets far with few OS pages.
    pub page_time: u64,
}

/// The costs of an order, with functions aligned to 16 bytes.
pub fn cost(trace: &Trace, order: &[usize]) -> Cost {
    let mut at = vec![0; trace.functions.len()];
    let mut end = 0;
    for &place in order {
        at[place] = end;
        end += trace.functions[place].size.next_multiple_of(16);
    }
    let far = trace.calls.iter().filter(|call| at[call.from] / PAGE != at[call.to] / PAGE);
    let (mut touched, mut page_time) = (HashSet::new(), 0);
    for place in by_first_entry(trace) {
        touched.extend(pages(at[place], trace.functions[place].size));
        page_time += touched.len() as u64;
    }
    Cost { pages: touched.len() as u64, far_calls: far.map(|call| call.count).sum(), page_time }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{Call, Run, TracedBinary, TracedFunction};

    fn trace(sizes: &[u64], calls: &[(usize, usize, u64)]) -> Trace {
        let function = |(rank, &size)| TracedFunction { rank, size, runs: 1, ..TracedFunction::default() };
        Trace {
            functions: (0..).zip(sizes).map(function).collect(),
            calls: calls.iter().map(|&(from, to, count)| Call { from, to, count }).collect(),
            ..Trace::new(TracedBinary::default())
        }
    }

    /// Catches clusters larger than an OS page, callees that lie apart from their callers, and functions that are lost.
    #[test]
    fn callees_follow_their_most_frequent_callers() {
        for (sizes, calls, order) in [
            (&[16; 4][..], &[][..], [0, 1, 2, 3]),
            (&[16; 4], &[(0, 3, 9), (0, 1, 1)], [0, 3, 1, 2]),
            (&[16; 4], &[(0, 3, 9), (1, 3, 10)], [0, 1, 3, 2]),
            (&[16; 4], &[(2, 3, 9), (3, 0, 1), (3, 3, 99)], [2, 3, 0, 1]),
            (&[4000, 16, 16, 4000], &[(0, 3, 9)], [0, 1, 2, 3]),
            (&[16; 4], &[(0, 1, 5), (1, 0, 5)], [1, 0, 2, 3]),
        ] {
            let trace = trace(sizes, calls);
            assert_eq!(c3(&trace), order, "{sizes:?} {calls:?}");
            assert_eq!(by_first_entry(&trace), [0, 1, 2, 3]);
        }
    }

    /// A random trace, the same for each seed.
    fn random(mut seed: u64) -> Trace {
        let mut below = |bound: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % bound
        };
        let (functions, runs) = (below(60) as usize, 1 + below(5) as usize);
        let sizes: Vec<u64> = (0..functions).map(|_| below(5000)).collect();
        let mut calls = Vec::new();
        for _ in 0..below(3) * functions as u64 {
            calls.push((below(functions as u64) as usize, below(functions as u64) as usize, below(9)));
        }
        let mut trace = trace(&sizes, &calls);
        trace.runs = vec![Run::default(); runs];
        for function in &mut trace.functions {
            function.in_runs = (0..runs).filter(|_| below(2) == 0).collect();
            (function.runs, function.rank) = (function.in_runs.len() as u64, below(20));
        }
        trace
    }

    /// Catches functions that an order loses or repeats, and an order that varies.
    #[test]
    fn orders_are_permutations() {
        for seed in 0..300 {
            let trace = random(seed);
            for way in [by_first_entry, c3, by_runs] {
                let mut order = way(&trace);
                assert_eq!(order, way(&trace), "{seed}");
                order.sort_unstable();
                assert!(order.into_iter().eq(0..trace.functions.len()), "{seed}");
            }
            assert!(pages_of_runs(&trace, &by_runs(&trace)).len() == trace.runs.len());
        }
    }

    /// Catches functions of one run between those of another, and an order of one run that is not that of first entry.
    #[test]
    fn functions_of_the_same_runs_lie_together() {
        let mut trace = trace(&[1024; 16], &[]);
        assert_eq!(by_runs(&trace), by_first_entry(&trace));
        trace.runs = vec![Run::default(); 2];
        for (place, function) in trace.functions.iter_mut().enumerate() {
            function.in_runs = if place < 8 { vec![place % 2] } else { vec![0, 1] };
            function.runs = function.in_runs.len() as u64;
        }
        let order = by_runs(&trace);
        assert_eq!(order, [8, 9, 10, 11, 12, 13, 14, 15, 0, 2, 4, 6, 1, 3, 5, 7]);
        assert_eq!(pages_of_runs(&trace, &by_first_entry(&trace)), [4, 4]);
        assert_eq!(pages_of_runs(&trace, &order), [3, 3]);
    }

    /// Catches a cost that does not distinguish a good order from a poor one.
    #[test]
    fn costs() {
        let trace = trace(&[2048; 4], &[(0, 3, 9), (0, 1, 1)]);
        let cost = |order: &[usize]| cost(&trace, order);
        assert_eq!(cost(&by_first_entry(&trace)), Cost { pages: 2, far_calls: 9, page_time: 1 + 1 + 2 + 2 });
        assert_eq!(cost(&c3(&trace)), Cost { pages: 2, far_calls: 1, page_time: 1 + 2 + 2 + 2 });
    }
}
