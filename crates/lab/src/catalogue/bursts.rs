//! bursts: memory that is given back, and soon needed again.

use neap_results::judge;
use neap_results::{Better, ChartKind, Column, Figure, GLIBC, NEAP, Point, Run, Verdict, View};

use super::{Case, Design, Who, Work, axis, chart, metric, options, quiet, seconds, table};

/// The variant that gives nothing back.
const NEVER: &str = "neap-never";
/// The allocators of cases that only the verdicts need, not the comparison with peers.
const OWN: &[&str] = &[GLIBC, NEAP, NEVER];
/// `purge_delay`: shorter pauses give nothing back.
const DELAY_MS: u32 = 500;
/// Limits of a phase's cost as a multiple of `neap-never`'s: after pauses shorter than [`DELAY_MS`], and after longer
/// ones.
const SHORT_PAUSE: f64 = 1.02;
/// See [`SHORT_PAUSE`].
const LONG_PAUSE: f64 = 1.6;
/// MiB that may stay beyond what is live, 1 s after the program went idle.
const KEPT_MIB: f64 = 8.0;

/// Kinds of blocks in a burst.
const BLOCKS: [&str; 3] = ["small", "large", "mixed"];
/// Pauses after 64 MiB of each kind of blocks, in ms.
const PAUSES: [u32; 4] = [20, 100, 400, 1000];
/// Sizes of mixed blocks besides 64 MiB, in MiB.
const SIZES: [u32; 3] = [1, 8, 512];
/// Pauses after which every allocator, other sizes and the programs are measured: one on each side of [`DELAY_MS`].
const BOTH_SIDES: [u32; 2] = [100, 1000];
/// The programs that run besides the bursts of blocks.
const PROGRAMS: [&str; 3] = ["backup", "sqlite", "ebizzy"];
/// Longer pauses, of mixed blocks.
const LONGER: [u32; 2] = [5000, 20_000];

/// One case: what works, MiB where that can be chosen, and the pause in ms.
type Burst = (&'static str, Option<u32>, u32);

fn name((what, mib, pause): Burst) -> String {
    let pause = if pause < 1000 { format!("{pause} ms") } else { format!("{} s", pause / 1000) };
    match mib {
        Some(mib) => format!("{what}, {mib} MiB, {pause}"),
        None => format!("{what}, {pause}"),
    }
}

/// All cases of a full run.
fn all() -> Vec<Burst> {
    let pauses = BLOCKS.iter().flat_map(|&blocks| PAUSES.map(|pause| (blocks, Some(64), pause)));
    let sizes = SIZES.iter().flat_map(|&mib| BOTH_SIDES.map(|pause| ("mixed", Some(mib), pause)));
    let programs = PROGRAMS.iter().flat_map(|&program| BOTH_SIDES.map(|pause| (program, None, pause)));
    let longer = LONGER.map(|pause| ("mixed", Some(64), pause));
    pauses.chain(longer).chain(sizes).chain(programs).collect()
}

/// Those that every allocator runs.
fn is_compared((_, mib, pause): Burst) -> bool {
    BOTH_SIDES.contains(&pause) && mib.is_none_or(|mib| mib == 64)
}

/// Those of a quick run.
fn is_quick(burst: Burst) -> bool {
    let (what, mib, pause) = burst;
    is_compared(burst) && (what == "mixed" || mib.is_none() && pause > DELAY_MS)
}

/// How often a phase of work is measured: more often with shorter pauses.
fn rounds(pause: u32, quick: bool) -> u32 {
    match pause {
        0..50 => 20,
        50..200 => 10,
        200..DELAY_MS => 5,
        DELAY_MS..10_000 if !quick => 3,
        DELAY_MS..10_000 => 2,
        _ => 1,
    }
}

fn case(burst: Burst, quick: bool) -> Case {
    let (what, mib, pause) = burst;
    let (rounds, pause_text) = (rounds(pause, quick).to_string(), pause.to_string());
    let work = match what {
        "sqlite" => Work::Python("bursts-sqlite.py", vec!["100000".into(), rounds, pause_text]),
        "ebizzy" => {
            let arguments =
                [("threads", "2"), ("ms", "50"), ("phases", rounds.as_str()), ("pause", pause_text.as_str())];
            Work::Program("ebizzy", options(&arguments))
        }
        _ => {
            let mib = mib.unwrap_or(16).to_string();
            let arguments = [("work", what), ("mib", &mib), ("pause", &pause_text), ("rounds", &rounds)];
            Work::Program("bursts", options(&arguments))
        }
    };
    let case = Case::new(name(burst), work).word("work", what).number("pause-ms", pause);
    let case = if let Some(mib) = mib { case.number("mib", mib) } else { case };
    let case = case.needs(u64::from(2 * mib.unwrap_or(64)) + 256);
    let case = case.under(if is_compared(burst) { Who::All } else { Who::Only(OWN) });
    case.at_most(if pause > 1000 { 1 } else { u32::MAX })
}

/// Phases of work and pauses.
pub fn bursts(quick: bool) -> Design {
    let cases = all().into_iter().filter(|&burst| !quick || is_quick(burst)).map(|burst| case(burst, quick));
    let over_pauses = |blocks: &'static str, metric: &str| -> Vec<Point> {
        let point = |&pause: &u32| Point::at(f64::from(pause), name((blocks, Some(64), pause)), metric);
        let longer: &[u32] = if blocks == "mixed" { &LONGER } else { &[] };
        PAUSES.iter().chain(longer).map(point).collect()
    };
    let both = |metric: &str| -> Vec<Point> {
        let shown = all().into_iter().filter(|&burst| is_compared(burst));
        shown.map(|burst| Point::named(name(burst), name(burst), metric)).collect()
    };
    let columns = |metric: &str| -> Vec<Column> {
        all().into_iter().map(|burst| Column::new(name(burst), name(burst), metric)).collect()
    };
    let pause_axis = || axis("pause", "ms", true);
    let names = || axis("", "", false);
    Design {
        name: "bursts",
        title: "Memory that is soon needed again",
        question: "What does it cost to give memory back that is needed again after a pause?",
        about: "Phases of work with pauses of 20 ms to 20 s between them: 1 to 512 MiB of small blocks (16 B to 4 KiB), \
                large ones (to 256 KiB) or both are written and freed; a backup reads a file through buffers of 1 MiB; \
                SQLite inserts 100,000 small rows into a database in memory; ebizzy with two threads. Time and faults \
                are those of a phase of work (ebizzy: of 1,000 iterations); resident memory is what lies beyond the \
                program's own. `neap-never` gives nothing back.",
        claims: Vec::new(),
        timeout: seconds(120),
        rounds: if quick { 1 } else { 2 },
        timed: true,
        side_by_side: false,
        variants: &[NEVER],
        cases: cases.collect(),
        metrics: vec![
            metric("cpu", "processor time of a phase", Better::Less),
            metric("wall", "wall time of a phase", Better::Less),
            metric("faults", "page faults of a phase", Better::Less),
            metric("rss-pause", "resident at the end of a pause", Better::Less),
            metric("rss-idle", "resident 1 s after the last phase", Better::Less),
        ],
        charts: vec![
            chart(
                "cpu-small",
                "Processor time of a phase, 64 MiB of small blocks",
                ChartKind::Line,
                (pause_axis(), axis("time", "ms", true)),
                Better::Less,
                over_pauses("small", "cpu"),
            ),
            chart(
                "cpu-large",
                "Processor time of a phase, 64 MiB of large blocks",
                ChartKind::Line,
                (pause_axis(), axis("time", "ms", true)),
                Better::Less,
                over_pauses("large", "cpu"),
            ),
            chart(
                "cpu-mixed",
                "Processor time of a phase, 64 MiB of small and large blocks",
                ChartKind::Line,
                (pause_axis(), axis("time", "ms", true)),
                Better::Less,
                over_pauses("mixed", "cpu"),
            ),
            chart(
                "rss-mixed",
                "Resident memory at the end of a pause, 64 MiB of small and large blocks",
                ChartKind::Line,
                (pause_axis(), axis("resident", "MiB", false)),
                Better::Less,
                over_pauses("mixed", "rss-pause"),
            ),
            chart(
                "cpu",
                "Processor time of a phase",
                ChartKind::Dots,
                (names(), axis("time", "ms", true)),
                Better::Less,
                both("cpu"),
            ),
            chart(
                "idle",
                "Resident memory 1 s after the last phase",
                ChartKind::Bar,
                (names(), axis("resident", "MiB", false)),
                Better::Less,
                both("rss-idle"),
            ),
        ],
        tables: vec![
            table("Processor time of a phase, ms", columns("cpu")),
            table("Wall time of a phase, ms", columns("wall")),
            table("Page faults of a phase", columns("faults")),
            table("Resident at the end of a pause, MiB", columns("rss-pause")),
            table("Resident 1 s after the last phase, MiB", columns("rss-idle")),
        ],
        judge,
    }
}

fn judge(view: &View, run: &Run) -> Vec<Verdict> {
    // A quick run has only a few of them.
    let present: Vec<Burst> =
        all().into_iter().filter(|&burst| is_quick(burst) || view.has_case("bursts", &name(burst))).collect();
    let mut verdicts = Vec::new();
    for &burst in &present {
        let case = name(burst);
        let figure = |metric| Figure::new("bursts", &case, metric);
        let most = if burst.2 < DELAY_MS { SHORT_PAUSE } else { LONG_PAUSE };
        let against = |metric| judge::ratio(view, (figure(metric), NEAP), (figure(metric), NEVER), 0.0, most);
        let costs = against("cpu").about("processor time").and(against("wall").about("wall time"));
        verdicts.push(costs.about(&format!("a phase, {case}")).target(false));
        let kept = judge::at_most(view, figure("rss-idle"), NEAP, KEPT_MIB);
        let must_hold = quiet(run) && is_quick(burst);
        verdicts.push(kept.about(&format!("kept 1 s after the last phase, {case}")).target(must_hold));
    }
    for burst in present.into_iter().filter(|&burst| is_compared(burst)) {
        let case = name(burst);
        let rank = judge::rank(view, Figure::new("bursts", &case, "cpu"), Better::Less);
        verdicts.push(rank.about(&format!("processor time of a phase, {case}")).rank());
    }
    verdicts
}

#[cfg(test)]
mod tests {
    use super::*;
    use neap_results::{Allocator, Row};

    // Would catch a goal of long pauses for short ones, and memory that is kept and not reported.
    #[test]
    fn short_and_long_pauses_have_their_goals() {
        let mut rows = Vec::new();
        let mut add = |case: &str, allocator: &str, metric: &str, value| {
            let (experiment, case, allocator) = ("bursts".into(), case.into(), allocator.into());
            let (metric, status) = (metric.into(), "ok".into());
            rows.push(Row { experiment, case, allocator, metric, status, round: 1, turn: 1, value, ..Row::default() });
        };
        for case in ["mixed, 64 MiB, 100 ms", "mixed, 64 MiB, 1 s"] {
            for metric in ["cpu", "wall"] {
                add(case, NEAP, metric, 13.0);
                add(case, NEVER, metric, 10.0);
            }
            add(case, NEAP, "rss-idle", if case.ends_with("ms") { 7.0 } else { 9.0 });
        }
        let allocators = [NEAP, NEVER].map(|name| Allocator { name: name.into(), ..Allocator::default() }).into();
        let verdicts = judge(&View::of(&Run { rows, allocators, ..Run::default() }), &Run::default());
        let holds = |text: &str| {
            let found = verdicts.iter().find(|verdict| verdict.text.starts_with(text));
            found.unwrap_or_else(|| panic!("{text}")).holds
        };
        assert_eq!(holds("a phase, mixed, 64 MiB, 100 ms"), Some(false));
        assert_eq!(holds("a phase, mixed, 64 MiB, 1 s"), Some(true));
        assert_eq!(holds("kept 1 s after the last phase, mixed, 64 MiB, 100 ms"), Some(true));
        assert_eq!(holds("kept 1 s after the last phase, mixed, 64 MiB, 1 s"), Some(false));
    }
}
