//! Targets of memory: recycled, retain-large, retain-small, survivors, workers, redis, vmas.

use super::{
    Judged, Target, Verdict, at_most, at_most_best, median_at_most, need, need_other, number, ratio_to_best, target,
};
use crate::allocators::NEAP;
use crate::experiments::catalogue::{WORKERS_CASES, recycled_case, recycled_sizes, size_text};
use crate::experiments::view::{Better, Figure, View};

/// neap with `purge=eager`.
const EAGER: &str = "neap-eager";
/// Growth of 128 MiB of blocks up to this counts as none: the allocator's own tables.
const NO_GROWTH_MIB: f64 = 1.0;
/// A peer uses huge pages where this part of its peak lies in them.
const HUGE_PART: f64 = 0.01;
/// "Far below" `vm.max_map_count`.
const FAR_BELOW: f64 = 0.1;

/// The targets of `recycled`.
pub fn recycled(view: &View) -> Vec<Target> {
    let line = |text: &str| format!("{text}: RSS does not grow (by more than 1 MiB of 128)");
    vec![
        target(line("touched, freed, idle, then calloc"), most_growth(view, "touched")),
        target(line("calloc, free, calloc"), most_growth(view, "untouched")),
    ]
}

/// The size whose growth is the greatest.
fn most_growth(view: &View, form: &str) -> Judged {
    let mut worst: Option<(f64, u64)> = None;
    for size in recycled_sizes(false) {
        let case = recycled_case(form, size);
        if !view.has_case("recycled", &case) {
            continue;
        }
        let growth = need(view, Figure { experiment: "recycled", case: &case, metric: "growth" }, NEAP)?;
        if worst.is_none_or(|(most, _)| growth > most) {
            worst = Some((growth, size));
        }
    }
    let (growth, size) = worst.ok_or_else(|| Verdict::Open("no size was run".into()))?;
    let text = format!("{} MiB with blocks of {}", number(growth), size_text(size));
    Ok(if growth <= NO_GROWTH_MIB { Verdict::Met(text) } else { Verdict::Missed(format!("{text} against none")) })
}

/// The targets of `retain-large`.
pub fn retain_large(view: &View) -> Vec<Target> {
    let figure = |metric| Figure { experiment: "retain-large", case: "rounds", metric };
    let small_pages = |name: &str| {
        let (huge, peak) = (view.median(figure("huge"), name), view.median(figure("peak"), name));
        huge.zip(peak).is_some_and(|(huge, peak)| huge <= peak * HUGE_PART)
    };
    let wall = figure("wall");
    vec![
        target(
            "wall time at most that of the quickest peer without huge pages",
            at_most_best(view, wall, NEAP, 1.0, small_pages),
        ),
        target("wall time against the quickest peer of all", against_all(view, wall)),
        target("RSS 1 s after the last free: at most 8 MiB", median_at_most(view, figure("rss-1s"), NEAP, 8.0, " MiB")),
        target(
            "purge=eager: RSS at once at most 8 MiB",
            median_at_most(view, figure("rss-at-once"), EAGER, 8.0, " MiB"),
        ),
        target("purge=eager: wall time at most a third of jemalloc's", third_of_jemalloc(view, wall)),
    ]
}

fn against_all(view: &View, wall: Figure) -> Judged {
    let (best, ratio) = ratio_to_best(view, wall, NEAP, Better::Less, |_| true)?;
    Ok(Verdict::Told(format!("{} times {best}", number(ratio))))
}

fn third_of_jemalloc(view: &View, wall: Figure) -> Judged {
    need(view, wall, EAGER)?;
    need_other(view, wall, "jemalloc")?;
    let ratio = view.ratio(wall, EAGER, "jemalloc");
    let ratio = ratio.ok_or_else(|| Verdict::Open(format!("no round has {EAGER} and jemalloc")))?;
    Ok(at_most(ratio, 1.0 / 3.0, " times jemalloc"))
}

/// The targets of `retain-small`.
pub fn retain_small(view: &View) -> Vec<Target> {
    let figure = |metric| Figure { experiment: "retain-small", case: "rounds", metric };
    vec![
        target("RSS 1 s after: at most 4 MiB", median_at_most(view, figure("rss-1s"), NEAP, 4.0, " MiB")),
        target(
            "peak (without the program itself): at most 1.02 times the live bytes",
            median_at_most(view, figure("peak-ratio"), NEAP, 1.02, ""),
        ),
    ]
}

/// The target of `survivors`.
pub fn survivors(view: &View) -> Vec<Target> {
    let figure = Figure { experiment: "survivors", case: "blocks", metric: "ratio" };
    let line = "RSS (without the program itself) at most 1.10 times the pages that hold a live byte";
    vec![target(line, median_at_most(view, figure, NEAP, 1.10, ""))]
}

/// The targets of `workers`.
pub fn workers(view: &View) -> Vec<Target> {
    WORKERS_CASES
        .iter()
        .map(|case| target(format!("{case}: none killed, in ten runs"), none_killed(view, case)))
        .collect()
}

fn none_killed(view: &View, case: &str) -> Judged {
    let figure = Figure { experiment: "workers", case, metric: "killed" };
    need(view, figure, NEAP)?;
    let killed = view.values(figure, NEAP);
    let text = format!("{} killed in {} runs", number(killed.iter().sum()), killed.len());
    Ok(match killed.iter().all(|&count| count == 0.0) {
        false => Verdict::Missed(format!("{text} against none")),
        true if killed.len() < 10 => Verdict::Open(format!("{text}, ten are wanted")),
        true => Verdict::Met(text),
    })
}

/// The targets of `redis`.
pub fn redis(view: &View) -> Vec<Target> {
    let figure = |metric| Figure { experiment: "redis", case: "load", metric };
    let faults = at_most_best(view, figure("faults-per-1000"), NEAP, 1.0, |_| true);
    let idle = at_most_best(view, figure("rss-idle"), NEAP, 1.0, |_| true);
    vec![
        target("page faults per request: no more than the best peer", faults),
        target("RSS 1 s after the load: the lowest of all", idle),
    ]
}

/// The target of `vmas`.
pub fn vmas(view: &View) -> Vec<Target> {
    let figure = |metric| Figure { experiment: "vmas", case: "blocks", metric };
    let judge = || {
        let mappings = need(view, figure("mappings"), NEAP)?;
        let limit = need(view, figure("max-map-count"), NEAP)?;
        if need(view, figure("refused"), NEAP)? > 0.0 {
            return Ok(Verdict::Missed("malloc returned NULL".into()));
        }
        Ok(at_most(mappings, limit * FAR_BELOW, " mappings"))
    };
    vec![target("far below vm.max_map_count (a tenth of it)", judge())]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::data::Row;
    use crate::experiments::view::tests::row;

    fn view(rows: &[Row]) -> View {
        View::of(rows, ["neap", "neap-eager", "mimalloc3", "mimalloc3-nothp", "jemalloc"].map(String::from).into(), 2)
    }

    // Would catch a peer with huge pages among those without.
    #[test]
    fn huge_pages_are_seen_in_the_data() {
        let figure = |metric| Figure { experiment: "retain-large", case: "rounds", metric };
        let peer = |name, wall, huge| {
            [("wall", wall), ("huge", huge), ("peak", 5000.0)].map(|(metric, v)| row(figure(metric), name, 1, v))
        };
        let rows: Vec<Row> =
            [peer("neap", 40.0, 0.0), peer("mimalloc3", 10.0, 4900.0), peer("mimalloc3-nothp", 50.0, 0.0)]
                .into_iter()
                .flatten()
                .collect();
        let targets = retain_large(&view(&rows));
        let text = "met: 0.800 times mimalloc3-nothp, at most 1 times mimalloc3-nothp";
        assert_eq!(targets[0].verdict.to_string(), text);
        assert_eq!(targets[1].verdict.to_string(), "4 times mimalloc3");
        assert!(matches!(targets[3].verdict, Verdict::Open(_)));
    }

    // Would catch a median that hides the one run in which a worker died, and a claim from too few runs.
    #[test]
    fn one_killed_worker_is_a_miss() {
        let case = WORKERS_CASES[0];
        let figure = Figure { experiment: "workers", case, metric: "killed" };
        let runs = |count: u32, killed: f64| -> Vec<Row> {
            (1..=count).map(|round| row(figure, "neap", round, if round == 3 { killed } else { 0.0 })).collect()
        };
        assert_eq!(none_killed(&view(&runs(10, 0.0)), case), Ok(Verdict::Met("0 killed in 10 runs".into())));
        assert!(matches!(none_killed(&view(&runs(10, 1.0)), case), Ok(Verdict::Missed(_))));
        assert!(matches!(none_killed(&view(&runs(5, 0.0)), case), Ok(Verdict::Open(_))));
    }

    // Would catch a greatest growth that is taken over the wrong form.
    #[test]
    fn growth_is_that_of_the_worst_size() {
        let growth = |form: &str, size, value| {
            let case = recycled_case(form, size);
            row(Figure { experiment: "recycled", case: &case, metric: "growth" }, "neap", 1, value)
        };
        let rows = [growth("touched", 4096, 0.5), growth("touched", 8192, 0.75), growth("untouched", 4096, 129.0)];
        let targets = recycled(&view(&rows));
        assert_eq!(targets[0].verdict, Verdict::Met("0.750 MiB with blocks of 8 KiB".into()));
        assert_eq!(targets[1].verdict, Verdict::Missed("129 MiB with blocks of 4 KiB against none".into()));
    }
}
