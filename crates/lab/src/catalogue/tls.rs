//! tls-chunks: a download in Python, read in chunks.

use neap_results::judge::{self, Judged, number};
use neap_results::{Better, ChartKind, Column, Figure, GLIBC, NEAP, Point, Run, Verdict, View};

use super::{
    Case, Design, SLOW_CALLOC, Work, axis, chart, claim, judged, median, metric, quiet, seconds, size_text, table,
};

/// neap with `zero=always`: what macOS 10.12 did.
const ZERO: &str = "neap-zero";

/// The chunks of tls-chunks.
fn chunks(quick: bool) -> Vec<u64> {
    let all = [1 << 20, 10 << 20, 100 << 20, 1 << 30];
    if quick { vec![all[0], all[2], all[3]] } else { all.into() }
}

/// A download over HTTPS, read in chunks.
pub fn tls_chunks(quick: bool) -> Design {
    let seconds_each = if quick { 0.5 } else { 1.5 };
    let case = |&chunk: &u64| {
        let work = Work::Tls { chunk, seconds: seconds_each };
        // Two chunks are held at a time, besides Python and the server.
        Case::new(size_text(chunk), work).number("chunk", chunk as f64).needs((chunk >> 19) + 256)
    };
    let all = chunks(false);
    let points = |metric: &str| all.iter().map(|&c| Point::at(c as f64, size_text(c), metric)).collect::<Vec<_>>();
    let columns = |metric: &'static str| -> Vec<Column> {
        all.iter().map(|&chunk| Column::new(size_text(chunk), size_text(chunk), metric)).collect()
    };
    let axes = |label: &str, unit: &str| (axis("chunk", "B", true), axis(label, unit, true));
    let (rate, cost) = ("throughput", "cpu-per-mib");
    Design {
        name: "tls-chunks",
        title: "A download that gets slower with the size of its buffer",
        question: "Does an HTTPS download in Python slow down when it is read in larger chunks?",
        about: "A local HTTPS server with a certificate made for the run; requests over pyOpenSSL reads from it in \
                chunks of 1 MiB to 1 GiB. Each read of at most 16 KiB takes a fresh zeroed buffer of what is left of \
                the chunk, from cffi's ffi.new(\"char[]\", n). neap-zero clears every block of calloc, as macOS did. \
                After a first download of 16 MiB three chunks are read, or more for some time. A chunk is in one \
                block of its size, and the one before it is still held: so the first two are read into memory that \
                the machine has to find and clear, under any allocator, and the third into the block that the first \
                one had.",
        claims: vec![claim(
            "On macOS 10.12 a download in chunks of 100 MiB took a whole processor for 1 MB/s, in chunks of 1 GiB \
                 it fell below 100 KB/s; chunks of 10 MiB had no effect.",
            SLOW_CALLOC,
            Some(2016),
            &[("100 MiB", "1 MB/s, 100 % CPU"), ("1 GiB", "under 100 KB/s"), ("10 MiB", "no effect")],
        )],
        timeout: seconds(60),
        rounds: if quick { 1 } else { 3 },
        timed: true,
        side_by_side: true,
        variants: &[ZERO],
        cases: chunks(quick).iter().map(case).collect(),
        metrics: vec![
            metric(rate, "throughput", Better::More),
            metric("throughput-first", "throughput of the first chunk", Better::More),
            metric("throughput-later", "throughput of the third chunk", Better::More),
            metric("cpu", "processor time in percent of the wall time", Better::Neither),
            metric(cost, "processor time per MiB", Better::Less),
        ],
        charts: vec![
            chart(
                "throughput",
                "Throughput of the download",
                ChartKind::Line,
                axes(rate, "MiB/s"),
                Better::More,
                points(rate),
            ),
            chart(
                "cpu",
                "Processor time per MiB",
                ChartKind::Line,
                axes("processor time", "ms"),
                Better::Less,
                points(cost),
            ),
        ],
        tables: vec![
            table("MiB/s", columns(rate)),
            table("MiB/s, the first chunk: its memory is fresh", columns("throughput-first")),
            table("MiB/s, from the third chunk on: its memory was used before", columns("throughput-later")),
            table("CPU, ms per MiB", columns(cost)),
            table("CPU, percent", columns("cpu")),
            table("Peak RSS, MiB", columns("peak")),
            table("Page faults", columns("run-faults")),
        ],
        judge: judge_tls,
    }
}

/// The goal: throughput with chunks of 1 GiB as a fraction of that with 1 MiB, within a round.
const NO_SLOWER: f64 = 0.8;

fn judge_tls(view: &View, run: &Run) -> Vec<Verdict> {
    let [small, large, huge] = [1 << 20, 100 << 20, 1 << 30].map(size_text);
    let of = |case, metric| Figure::new("tls-chunks", case, metric);
    let figure = |case| of(case, "throughput");
    let ratio = |who, of, to, low, high| judge::ratio(view, (figure(of), who), (figure(to), who), low, high);
    let (later, steady) = (of(&huge, "throughput-later"), of(&small, "throughput-later"));
    let third = match view.median(figure(&huge), NEAP).is_some() && view.median(later, NEAP).is_none() {
        true => Judged::open("the download was stopped before there was one, as it would have taken too long"),
        false => judge::ratio(view, (later, NEAP), (steady, NEAP), NO_SLOWER, f64::INFINITY),
    };
    vec![
        ratio(NEAP, &huge, &small, NO_SLOWER, f64::INFINITY).about("throughput, chunks of 1 GiB").target(false),
        third.about("the same from the third chunk on, in memory that was used before").target(false),
        judged(no_slower(view, figure(&huge), figure(&small))).about(SOFTENED).target(quiet(run)),
        ratio(ZERO, &large, &small, 0.0, 0.2).about("zero=always, as on macOS: throughput, 100 MiB").finding(true),
        ratio(GLIBC, &huge, &small, NO_SLOWER, f64::INFINITY).about("glibc, chunks of 1 GiB").finding(false),
        judge::rank(view, figure(&large), Better::More).about("chunks of 100 MiB").rank(),
        judge::rank(view, figure(&huge), Better::More).about("chunks of 1 GiB").rank(),
    ]
}

/// The verdict that must hold is weaker than the goal, and says so.
const SOFTENED: &str = "large chunks cost no more than under glibc on this machine (a weaker goal)";

/// Whether large chunks are as quick as small ones under neap, or fall no further than under glibc in the same rounds:
/// the download itself collects what it has read, in memory that the machine must have available.
fn no_slower(view: &View, huge: Figure, small: Figure) -> Result<Judged, Judged> {
    let part = |who| {
        median(view, huge, who)?;
        median(view, small, who)?;
        let ratio = view.ratio_of((huge, who), (small, who)).map(|ratio| ratio.ratio);
        ratio.ok_or_else(|| Judged::open(format!("no round of {who} has both sizes")))
    };
    let own = part(NEAP)?;
    let goal = number(NO_SLOWER);
    let about = "chunks of 1 GiB against 1 MiB";
    let fallen = part(GLIBC).ok().filter(|base| own < NO_SLOWER && *base < NO_SLOWER && *base > 0.0);
    let Some(base) = fallen else {
        let text = format!("{about}: neap has {} the throughput (expected: at least {goal})", judge::times(own));
        return Ok(Judged::new(text, Some(own >= NO_SLOWER)));
    };
    let text = format!(
        "{about}: glibc falls to {} as well, so the cause is the machine's memory and not the allocator; neap has {}, \
         {} of glibc's (expected: at least {goal})",
        number(base),
        number(own),
        number(own / base)
    );
    Ok(Judged::new(text, Some(own / base >= NO_SLOWER)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use neap_results::Row;

    /// Throughputs `(allocator, 1 MiB, 1 GiB)`, two rounds alike.
    fn view(rates: &[(&str, f64, f64)]) -> View {
        let mut rows = Vec::new();
        for (round, &(allocator, one, gib)) in (1..=2).flat_map(|round| rates.iter().map(move |rate| (round, rate))) {
            for (case, value) in [("1 MiB", one), ("1 GiB", gib)] {
                rows.push(Row {
                    experiment: "tls-chunks".into(),
                    case: case.into(),
                    allocator: allocator.into(),
                    round,
                    status: "ok".into(),
                    metric: "throughput".into(),
                    value,
                    ..Row::default()
                });
            }
        }
        View::of(&Run { rows, ..Run::default() })
    }

    /// The weaker verdict on them.
    fn verdict(rates: &[(&str, f64, f64)]) -> Result<Judged, Judged> {
        let [small, huge] = ["1 MiB", "1 GiB"].map(|case| Figure::new("tls-chunks", case, "throughput"));
        no_slower(&view(rates), huge, small)
    }

    // Would catch a weaker verdict in place of the goal, and a missed goal that is not reported.
    #[test]
    fn the_goal_stands_beside_its_gate() {
        let verdicts = judge_tls(&view(&[("neap", 100.0, 40.0), ("glibc", 100.0, 44.0)]), &Run::default());
        let [goal, third, gate] = &verdicts[..3] else { panic!("{verdicts:?}") };
        assert_eq!((goal.holds, goal.must_hold), (Some(false), false), "{goal:?}");
        assert!(third.holds.is_none() && third.text.contains("stopped before there was one"), "{third:?}");
        assert_eq!((gate.holds, gate.must_hold), (Some(true), true), "{gate:?}");
        assert!(gate.text.contains("a weaker goal"), "{gate:?}");
    }

    // Would catch a slow machine that counts as neap's fault, and a fault that a slow machine hides.
    #[test]
    fn a_fall_is_judged_against_glibcs() {
        let holds = |rates: &[(&str, f64, f64)]| verdict(rates).map(|judged| judged.holds);
        assert_eq!(holds(&[("neap", 100.0, 90.0), ("glibc", 100.0, 40.0)]), Ok(Some(true)));
        assert_eq!(holds(&[("neap", 100.0, 40.0), ("glibc", 100.0, 44.0)]), Ok(Some(true)));
        assert_eq!(holds(&[("neap", 100.0, 20.0), ("glibc", 100.0, 44.0)]), Ok(Some(false)));
        assert_eq!(holds(&[("neap", 100.0, 40.0), ("glibc", 100.0, 99.0)]), Ok(Some(false)));
        assert_eq!(holds(&[("neap", 100.0, 40.0)]), Ok(Some(false)));
        assert_eq!(holds(&[("glibc", 100.0, 40.0)]).unwrap_err().holds, None);
        let text = verdict(&[("neap", 100.0, 40.0), ("glibc", 100.0, 50.0)]).unwrap().text;
        assert!(text.contains("glibc falls to 0.500 as well") && text.contains("0.800 of glibc's ("), "{text}");
    }
}
