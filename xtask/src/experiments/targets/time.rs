//! Targets of time: calloc, ebizzy, latency.

use super::{Judged, Target, Verdict, at_most, at_most_best, median_at_most, need, need_other, number, target};
use crate::allocators::NEAP;
use crate::experiments::catalogue::{calloc_case, calloc_sizes, ebizzy_case, ebizzy_threads, size_text};
use crate::experiments::targets::ratio_to_best;
use crate::experiments::view::{Better, Figure, View};

/// The size that the brief's figures are about.
const MEASURE: u64 = 100 << 20;
/// A rate at more threads than processors may be this part of the rate at as many, before it counts as a fall.
const NO_FALL: f64 = 0.95;

/// The figure of one mode and size of `calloc`, with the name of its case.
fn calloc_figure<'a>(case: &'a str, mode: &str) -> Figure<'a> {
    Figure { experiment: "calloc", case, metric: if mode == "once" { "mean" } else { "median" } }
}

/// The sizes that were run.
fn sizes_run(view: &View, mode: &str) -> Vec<u64> {
    calloc_sizes(false).into_iter().filter(|&size| view.has_case("calloc", &calloc_case(mode, size))).collect()
}

/// The targets of `calloc`.
pub fn calloc(view: &View) -> Vec<Target> {
    let case = calloc_case("untouched", MEASURE);
    let untouched = calloc_figure(&case, "untouched");
    let touched_case = calloc_case("touched", MEASURE);
    let touched = calloc_figure(&touched_case, "touched");
    let once_case = calloc_case("once", MEASURE);
    let once = calloc_figure(&once_case, "once");
    let later = Figure { metric: "mean-later", ..once };
    vec![
        target("100 MiB untouched: at most 1.0 µs", median_at_most(view, untouched, NEAP, 1.0, " µs")),
        target("100 MiB untouched: at most 1.1 times jemalloc", to_jemalloc(view, untouched, 1.1)),
        target("untouched, 64 KiB to 2 GiB: no size more than 3 times another", even_sizes(view)),
        target(
            "100 MiB touched each time: at most 1.05 times the best peer",
            at_most_best(view, touched, NEAP, 1.05, |_| true),
        ),
        target("touched each time, the size where neap is worst against the best peer", worst_touched(view)),
        target("100 MiB touched only once: at most 5 µs", median_at_most(view, once, NEAP, 5.0, " µs")),
        target("the same without the free of the touched block", told(view, later, " µs")),
    ]
}

fn told(view: &View, figure: Figure, unit: &str) -> Judged {
    Ok(Verdict::Told(format!("{}{unit}", number(need(view, figure, NEAP)?))))
}

fn to_jemalloc(view: &View, figure: Figure, goal: f64) -> Judged {
    need(view, figure, NEAP)?;
    need_other(view, figure, "jemalloc")?;
    let ratio = view.ratio(figure, NEAP, "jemalloc");
    let ratio = ratio.ok_or_else(|| Verdict::Open("no round has neap and jemalloc".into()))?;
    Ok(at_most(ratio, goal, " times jemalloc"))
}

/// The dearest size against the cheapest.
fn even_sizes(view: &View) -> Judged {
    let mut costs: Vec<(f64, u64)> = Vec::new();
    for size in sizes_run(view, "untouched") {
        let case = calloc_case("untouched", size);
        costs.push((need(view, calloc_figure(&case, "untouched"), NEAP)?, size));
    }
    costs.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (Some(least), Some(most)) = (costs.first(), costs.last()) else {
        return Err(Verdict::Open("no size was run".into()));
    };
    let unit = format!(
        " times ({} µs at {}, {} µs at {})",
        number(most.0),
        size_text(most.1),
        number(least.0),
        size_text(least.1)
    );
    Ok(match at_most(most.0 / least.0, 3.0, "") {
        Verdict::Met(_) => Verdict::Met(format!("{}{unit}", number(most.0 / least.0))),
        _ => Verdict::Missed(format!("{}{unit} against 3", number(most.0 / least.0))),
    })
}

fn worst_touched(view: &View) -> Judged {
    let mut worst: Option<(f64, String)> = None;
    for size in sizes_run(view, "touched") {
        let case = calloc_case("touched", size);
        let (best, ratio) = ratio_to_best(view, calloc_figure(&case, "touched"), NEAP, Better::Less, |_| true)?;
        if worst.as_ref().is_none_or(|(least, _)| ratio > *least) {
            worst = Some((ratio, format!("{} times {best} at {}", number(ratio), size_text(size))));
        }
    }
    let (_, text) = worst.ok_or_else(|| Verdict::Open("no size was run".into()))?;
    Ok(Verdict::Told(text))
}

/// The targets of `ebizzy`.
pub fn ebizzy(view: &View) -> Vec<Target> {
    let run = |traced| move |&threads: &u32| view.has_case("ebizzy", &ebizzy_case(threads, traced));
    let mut targets: Vec<Target> = ebizzy_threads(false)
        .into_iter()
        .filter(run(false))
        .map(|threads| target(format!("{threads} threads: at least the best peer"), at_least_best(view, threads)))
        .collect();
    targets.push(target("no fall beyond the core count", no_fall(view, view.cores)));
    for threads in ebizzy_threads(false).into_iter().filter(run(true)) {
        let case = ebizzy_case(threads, true);
        let figure = Figure { experiment: "ebizzy", case: &case, metric: "madvise-per-1000-frees" };
        let line = format!("{threads} threads: fewer than one madvise per 1,000 frees");
        targets.push(target(line, fewer_than_one(view, figure)));
    }
    targets
}

fn fewer_than_one(view: &View, figure: Figure) -> Judged {
    let calls = need(view, figure, NEAP)?;
    let text = number(calls);
    Ok(if calls < 1.0 { Verdict::Met(text) } else { Verdict::Missed(format!("{text} against 1")) })
}

fn rate_figure(case: &str) -> Figure<'_> {
    Figure { experiment: "ebizzy", case, metric: "rate" }
}

fn at_least_best(view: &View, threads: u32) -> Judged {
    let case = ebizzy_case(threads, false);
    let (best, ratio) = ratio_to_best(view, rate_figure(&case), NEAP, Better::More, |_| true)?;
    let text = format!("{} times {best}", number(ratio));
    Ok(if ratio >= 1.0 { Verdict::Met(text) } else { Verdict::Missed(format!("{text} against 1")) })
}

/// The rates at more threads than `cores` against the rate at the most threads that have a core each.
fn no_fall(view: &View, cores: u32) -> Judged {
    let mut base: Option<(u32, f64)> = None;
    let mut worst: Option<(u32, f64)> = None;
    for threads in ebizzy_threads(false) {
        let case = ebizzy_case(threads, false);
        if !view.has_case("ebizzy", &case) {
            continue;
        }
        let rate = need(view, rate_figure(&case), NEAP)?;
        match base {
            Some((_, full)) if threads > cores => {
                if worst.is_none_or(|(_, least)| rate / full < least) {
                    worst = Some((threads, rate / full));
                }
            }
            _ => base = Some((threads, rate)),
        }
    }
    let (Some((full, _)), Some((threads, part))) = (base, worst) else {
        return Err(Verdict::Open("no thread count above the core count was run".into()));
    };
    let text = format!("{} of the rate at {full} threads, at {threads} threads", number(part));
    Ok(if part >= NO_FALL { Verdict::Met(text) } else { Verdict::Missed(format!("{text} against {NO_FALL}")) })
}

/// The targets of `latency`.
pub fn latency(view: &View) -> Vec<Target> {
    let figure = |metric| Figure { experiment: "latency", case: "load", metric };
    let calls = [
        ("malloc of small blocks", "steady-small-malloc-p99.99"),
        ("free of small blocks", "steady-small-free-p99.99"),
        ("malloc of large blocks", "steady-large-malloc-p99.99"),
        ("free of large blocks", "steady-large-free-p99.99"),
    ];
    let mut targets: Vec<Target> = calls
        .into_iter()
        .map(|(name, metric)| {
            let line = format!("99.99th percentile of {name}: at most that of the best peer");
            target(line, at_most_best(view, figure(metric), NEAP, 1.0, |_| true))
        })
        .collect();
    let worst = median_at_most(view, figure("worst-undisturbed"), NEAP, 1000.0, " µs");
    targets.push(target("no single call over 1 ms (on an idle machine)", worst));
    targets
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::data::Row;
    use crate::experiments::view::tests::row;

    fn rate(threads: u32, allocator: &str, value: f64) -> Row {
        row(rate_figure(&ebizzy_case(threads, false)), allocator, 1, value)
    }

    fn view(rows: &[Row]) -> View {
        View::of(rows, ["neap", "jemalloc"].map(String::from).into(), 2)
    }

    // Would catch a fall that is measured against one thread, or not at all.
    #[test]
    fn a_fall_beyond_the_cores_is_missed() {
        let steady = [(1, 50.0), (2, 100.0), (4, 99.0), (8, 96.0)].map(|(t, v)| rate(t, "neap", v));
        assert!(matches!(no_fall(&view(&steady), 2), Ok(Verdict::Met(_))));
        let falling = [(1, 50.0), (2, 100.0), (4, 99.0), (8, 60.0)].map(|(t, v)| rate(t, "neap", v));
        let judged = no_fall(&view(&falling), 2).unwrap();
        assert_eq!(judged.to_string(), "**missed**: 0.600 of the rate at 2 threads, at 8 threads against 0.95");
        assert!(matches!(no_fall(&view(&falling), 8), Err(Verdict::Open(_))));
    }

    // Would catch rates that are compared as if less were better.
    #[test]
    fn more_iterations_are_better() {
        let rows = [rate(1, "neap", 110.0), rate(1, "jemalloc", 100.0)];
        assert_eq!(at_least_best(&view(&rows), 1), Ok(Verdict::Met("1.10 times jemalloc".into())));
        let rows = [rate(1, "neap", 90.0), rate(1, "jemalloc", 100.0)];
        assert!(matches!(at_least_best(&view(&rows), 1), Ok(Verdict::Missed(_))));
    }

    // Would catch a size that is left out of the comparison of sizes.
    #[test]
    fn sizes_are_compared() {
        let cost = |size, value| {
            let case = calloc_case("untouched", size);
            row(calloc_figure(&case, "untouched"), "neap", 1, value)
        };
        let judged = even_sizes(&view(&[cost(64 << 10, 0.5), cost(MEASURE, 1.0), cost(2 << 30, 2.0)]));
        let text = "**missed**: 4 times (2 µs at 2 GiB, 0.500 µs at 64 KiB) against 3";
        assert_eq!(judged.unwrap().to_string(), text);
    }
}
