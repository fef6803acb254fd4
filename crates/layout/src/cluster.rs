//! Orders of the functions of a trace, and what they cost.
//!
//! The order of first entry is the default: functions that follow each other in a start lie on the same OS page. C3
//! (call-chain clustering, Ottoni and Maher, CGO 2017) needs counts of calls: it appends each function, the most called
//! first, to the cluster of its most frequent caller, up to the size of an OS page.

use std::collections::HashMap;

use crate::binary::{PAGE, pages};
use crate::trace::Trace;

/// Places in [`Trace::functions`], each once.
pub type Places = Vec<usize>;

/// The order of first entry.
pub fn by_first_entry(trace: &Trace) -> Places {
    let mut order: Places = (0..trace.functions.len()).collect();
    order.sort_by_key(|&place| trace.functions[place].rank);
    order
}

/// Clusters of callers and callees, by the first entry of each cluster; without counts the order of first entry.
pub fn c3(trace: &Trace) -> Places {
    let functions = &trace.functions;
    let mut called = vec![0; functions.len()];
    let mut callers: HashMap<usize, (u64, usize)> = HashMap::new();
    for call in trace.calls.iter().filter(|call| call.from != call.to) {
        called[call.to] += call.count;
        let most = callers.entry(call.to).or_insert((call.count, call.from));
        if call.count > most.0 {
            *most = (call.count, call.from);
        }
    }
    let mut clusters: Vec<Places> = (0..functions.len()).map(|place| vec![place]).collect();
    let mut sizes: Vec<u64> = functions.iter().map(|function| function.size).collect();
    let mut cluster_of: Places = (0..functions.len()).collect();
    let mut order = by_first_entry(trace);
    order.sort_by_key(|&place| std::cmp::Reverse(called[place]));
    for callee in order {
        let Some(&(_, caller)) = callers.get(&callee) else { continue };
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

/// What an order costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// OS pages, if the functions lie one behind the other from the start of one.
    pub pages: u64,
    /// Calls between functions that begin on different OS pages.
    pub far_calls: u64,
    /// The sum over all functions, in the order of first entry, of the OS pages that the start has touched by then: low
    /// where a start gets far with few.
    pub page_time: u64,
}

/// What an order costs; functions are aligned to 16 bytes.
pub fn cost(trace: &Trace, order: &[usize]) -> Cost {
    let mut at = vec![0; trace.functions.len()];
    let mut end = 0;
    for &place in order {
        at[place] = end;
        end += trace.functions[place].size.next_multiple_of(16);
    }
    let far = trace.calls.iter().filter(|call| at[call.from] / PAGE != at[call.to] / PAGE);
    let (mut touched, mut page_time) = (std::collections::HashSet::new(), 0);
    for place in by_first_entry(trace) {
        touched.extend(pages(at[place], trace.functions[place].size));
        page_time += touched.len() as u64;
    }
    Cost { pages: touched.len() as u64, far_calls: far.map(|call| call.count).sum(), page_time }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{Call, TracedBinary, TracedFunction};

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

    /// Catches a cost that does not tell a good order from a poor one.
    #[test]
    fn costs() {
        let trace = trace(&[2048; 4], &[(0, 3, 9), (0, 1, 1)]);
        let cost = |order: &[usize]| cost(&trace, order);
        assert_eq!(cost(&by_first_entry(&trace)), Cost { pages: 2, far_calls: 9, page_time: 1 + 1 + 2 + 2 });
        assert_eq!(cost(&c3(&trace)), Cost { pages: 2, far_calls: 1, page_time: 1 + 2 + 2 + 2 });
    }
}
