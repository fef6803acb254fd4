//! calloc, recycled: memory that is not touched must cost nothing and not become resident.

use neap_results::judge::{self, Judged, flat, number, points, power};
use neap_results::{Better, ChartKind, Column, Figure, NEAP, Point, Run, Verdict, View};

use super::{
    Case, Design, SLOW_CALLOC, axis, chart, claim, judged, median, metric, program, seconds, size_text, table,
};

/// The size that the published figures are about.
const MEASURE: u64 = 100 << 20;
/// neap with `zero=always`: every block of calloc is cleared, as on macOS 10.12.
const ZERO: &str = "neap-zero";
/// Growth of 128 MiB of blocks up to this counts as none: the allocator's own tables.
const NO_GROWTH_MIB: f64 = 1.0;
/// From this size on glibc maps each block by itself.
const MAPPED: u64 = 256 << 10;

/// The sizes: steps of four from 4 KiB, 100 MiB, 2 GiB.
fn sizes(quick: bool) -> Vec<u64> {
    let mut sizes: Vec<u64> = (12..=30).step_by(2).map(|bits| 1 << bits).collect();
    sizes.extend([MEASURE, 2 << 30]);
    sizes.sort_unstable();
    if quick {
        sizes.retain(|size| [4 << 10, 256 << 10, 1 << 20, 16 << 20, MEASURE, 256 << 20].contains(size));
    }
    sizes
}

fn case_name(mode: &str, size: u64) -> String {
    format!("{mode} {}", size_text(size))
}

/// Mode, title, metric.
const MODES: [(&str, &str, &str); 3] = [
    ("untouched", "calloc + free, untouched", "median"),
    ("touched", "calloc + free, touched each time", "median"),
    ("once", "calloc + free after one touch, mean, with the free of the touched block", "mean"),
];

/// The cost of calloc and free.
pub fn calloc(quick: bool) -> Design {
    let (mut cases, mut tables, mut charts) = (Vec::new(), Vec::new(), Vec::new());
    for (mode, title, metric) in MODES {
        for size in sizes(quick) {
            // Touching costs a page fault for each page, so a quick run has only two sizes of it.
            if quick && mode != "untouched" && ![1 << 20, MEASURE].contains(&size) {
                continue;
            }
            let ms = if quick { "40" } else { "200" };
            // The mean includes the one touched block, so all allocators and passes have the same count.
            let count = ((32u64 << 30) / size).clamp(16, 1000).to_string();
            let arguments = [("size", &*size.to_string()), ("mode", mode), ("ms", ms), ("iterations", &*count)];
            let arguments = if mode == "once" { &arguments[..] } else { &arguments[..3] };
            let case = Case::new(case_name(mode, size), program("calloc", arguments));
            // With each page of 1 GiB or more touched, a round takes minutes. Its figures are times of seconds, so one
            // round is enough.
            let most_rounds = if mode != "untouched" && size >= 1 << 30 { 1 } else { u32::MAX };
            let case = case.number("size", size as f64).word("mode", mode).at_most(most_rounds);
            // An allocator that clears the block makes all of it resident, even if the program does not touch it.
            cases.push(case.needs((size >> 20) + 256));
        }
        let point = |&size: &u64| Point::at(size as f64, case_name(mode, size), metric);
        let axes = (axis("size", "B", true), axis("time", "us", true));
        let points = sizes(false).iter().map(point).collect();
        charts.push(chart(mode, &format!("Time of {title}"), ChartKind::Line, axes, Better::Less, points));
        let columns = |metric: &'static str| {
            let column = move |&size: &u64| Column::new(size_text(size), case_name(mode, size), metric);
            sizes(false).iter().map(column).collect()
        };
        tables.push(table(&format!("µs per {title}"), columns(metric)));
        tables.push(table(&format!("Page faults per calloc and free, {mode}"), columns("faults")));
    }
    Design {
        name: "calloc",
        title: "What calloc costs for memory that is never touched",
        question: "Does calloc of a large block cost time for bytes that the program never touches?",
        about: "calloc and free of one size, 4 KiB to 2 GiB: the block is never written; one byte in each 4 KiB is \
                written each time; only the first block is written.",
        claims: vec![claim(
            "On macOS 10.12 freed blocks between 127 KiB and about 125 MiB were kept in a cache and zeroed whole when \
             they were used again, although they had not been touched. Linux with glibc takes constant time from about \
             127 KiB on.",
            SLOW_CALLOC,
            Some(2016),
            &[
                ("10,000 x 100 MiB, untouched, macOS 10.12", "about 8 minutes"),
                ("the same with 1000 MiB", "instant"),
                ("Linux, glibc", "constant from about 127 KiB"),
            ],
        )],
        timeout: seconds(60),
        rounds: if quick { 1 } else { 3 },
        timed: true,
        side_by_side: false,
        variants: &[ZERO],
        cases,
        metrics: vec![
            metric("median", "median time of calloc + free", Better::Less),
            metric("mean", "mean time after one touch", Better::Less),
            metric("mean-later", "the same without the free of the touched block", Better::Less),
            metric("faults", "page faults per calloc and free", Better::Less),
        ],
        charts,
        tables,
        judge: judge_calloc,
    }
}

/// The untouched cases of the sizes from `least` on.
fn untouched<'a>(names: &'a [(u64, String)], least: u64) -> Vec<(f64, Figure<'a>)> {
    let large = names.iter().filter(|(size, _)| *size >= least);
    large.map(|(size, name)| (*size as f64, Figure::new("calloc", name, "median"))).collect()
}

fn judge_calloc(view: &View, _: &Run) -> Vec<Verdict> {
    let names: Vec<(u64, String)> = sizes(false).into_iter().map(|size| (size, case_name("untouched", size))).collect();
    let [free, each, once] = MODES.map(|(mode, ..)| case_name(mode, MEASURE));
    let figure = |case, metric| Figure::new("calloc", case, metric);
    let shape = |allocator: &str, least: u64| points(view, &untouched(&names, least), allocator);
    let even = |allocator: &str, least: u64, words: &str| {
        judged(shape(allocator, least).map(|points| flat(&format!("{allocator}, {words}"), &points, "us", 3.0)))
    };
    let neap_flat = even(NEAP, 64 << 10, "untouched, 64 KiB and more");
    let glibc_flat = even("glibc", MAPPED, "untouched, 256 KiB and more");
    let linear = "neap zero=always, untouched, 1 MiB and more";
    // Both make the exponent greater than one: small blocks stay in the processor's caches, and only the clearing of
    // large ones is interrupted by other work.
    let linear = judged(shape(ZERO, 1 << 20).map(|points| power(linear, &points, 0.7, 2.0)));
    let rank = |case, metric, words: &str| judge::rank(view, figure(case, metric), Better::Less).about(words);
    vec![
        linear.finding(true),
        glibc_flat.finding(false),
        neap_flat.target(false),
        judge::at_most(view, figure(&free, "median"), NEAP, 1.0).about("100 MiB untouched").target(false),
        judge::at_most(view, figure(&once, "mean"), NEAP, 5.0).about("100 MiB touched only once").target(false),
        rank(&free, "median", "100 MiB untouched").rank(),
        rank(&each, "median", "100 MiB touched each time").rank(),
        rank(&once, "mean", "100 MiB touched only once").rank(),
    ]
}

/// The block sizes of the experiment `recycled`.
fn recycled_sizes(quick: bool) -> Vec<u64> {
    let bits: &[u32] = if quick { &[14] } else { &[12, 14, 16, 18, 20] };
    bits.iter().map(|bits| 1 << bits).collect()
}

const FORMS: [(&str, &str); 2] = [
    ("touched", "Growth of RSS in MiB: touched, freed, 1.5 s idle, then 128 MiB of calloc"),
    ("untouched", "Growth of RSS in MiB: calloc, free, and 128 MiB of calloc again, at once"),
];

/// calloc of recycled blocks that stay untouched.
pub fn recycled(quick: bool) -> Design {
    let (mut cases, mut tables, mut charts) = (Vec::new(), Vec::new(), Vec::new());
    for (form, title) in FORMS {
        for size in recycled_sizes(quick) {
            let work = program("recycled", &[("size", &size.to_string()), ("form", form)]);
            cases.push(Case::new(case_name(form, size), work).number("size", size as f64).word("form", form));
        }
        let all = recycled_sizes(false);
        let point = |&size: &u64| Point::at(size as f64, case_name(form, size), "growth");
        let axes = (axis("block size", "B", true), axis("growth of RSS", "MiB", false));
        charts.push(chart(form, title, ChartKind::Line, axes, Better::Less, all.iter().map(point).collect()));
        let column = |&size: &u64| Column::new(size_text(size), case_name(form, size), "growth");
        tables.push(table(title, all.iter().map(column).collect()));
        let column = |&size: &u64| Column::new(size_text(size), case_name(form, size), "calloc");
        tables.push(table(&format!("µs per calloc of recycled blocks, {form}"), all.iter().map(column).collect()));
    }
    Design {
        name: "recycled",
        title: "Recycled blocks that are not touched",
        question: "Does calloc of recycled memory make pages resident that are not touched?",
        about: "128 MiB of blocks of 4 KiB to 1 MiB are freed and taken again by calloc, then left untouched.",
        claims: Vec::new(),
        timeout: seconds(60),
        rounds: 1,
        timed: false,
        side_by_side: false,
        variants: &[],
        cases,
        metrics: vec![metric("growth", "growth of resident memory", Better::Less)],
        charts,
        tables,
        judge: judge_recycled,
    }
}

fn judge_recycled(view: &View, _: &Run) -> Vec<Verdict> {
    let line = |form: &str, words: &str| judged(most_growth(view, form)).about(words).target(false);
    let mut verdicts =
        vec![line("touched", "touched, freed, idle, then calloc"), line("untouched", "calloc, free, calloc")];
    let case = case_name("touched", 16 << 10);
    verdicts.push(judge::rank(view, Figure::new("recycled", &case, "growth"), Better::Less).about("16 KiB").rank());
    verdicts
}

/// The size whose growth is the greatest.
fn most_growth(view: &View, form: &str) -> Result<Judged, Judged> {
    let mut worst: Option<(f64, u64)> = None;
    for size in recycled_sizes(false) {
        let case = case_name(form, size);
        if !view.has_case("recycled", &case) {
            continue;
        }
        let growth = median(view, Figure::new("recycled", &case, "growth"), NEAP)?;
        if worst.is_none_or(|(most, _)| growth > most) {
            worst = Some((growth, size));
        }
    }
    let (growth, size) = worst.ok_or_else(|| Judged::open("no size was run"))?;
    let text = format!(
        "neap grows by at most {} MiB of 128, with blocks of {} (limit: {} MiB)",
        number(growth.max(0.0)),
        size_text(size),
        number(NO_GROWTH_MIB)
    );
    Ok(Judged::new(text, Some(growth <= NO_GROWTH_MIB)))
}

#[cfg(test)]
mod tests {
    use super::*;

    // Would catch a size of the published figures that is no longer measured.
    #[test]
    fn all_sizes_are_measured() {
        let texts: Vec<String> = sizes(false).into_iter().map(size_text).collect();
        let wanted = "4 KiB,16 KiB,64 KiB,256 KiB,1 MiB,4 MiB,16 MiB,64 MiB,100 MiB,256 MiB,1 GiB,2 GiB";
        assert_eq!(texts.join(","), wanted);
        assert!(sizes(true).contains(&MEASURE));
    }
}
