//! Option `huge=hugetlb` with real pools: empty, too small, exactly large enough, and emptied while the program runs.

#[path = "../crates/ranges/tests/common/mod.rs"]
mod machine;

use std::process::ExitCode;

use machine::Machine;
use neap_tests::{Case, Run, Source, Stop, judge_case};

const PROGRAM: Source = Source::new("huge/huge.c");
/// Bytes of a page of the pool.
const PAGE: usize = 2 << 20;
const LINE: &str = "neap: huge=hugetlb: the pool has no free page of 2 MiB; small pages are used from now on; \
                    `neap huge status` tells how to enlarge it";

/// Pages in the pool, option `hugetlb`, case, whether the message must appear, and what the case would catch.
const CASES: &[(usize, &str, &str, bool, &str)] = &[
    (0, "fallback", "pool_blocks", true, "a program that fails, or gets no message, where the pool is empty"),
    (11, "fallback", "pool_blocks", true, "bytes that are lost, or a signal, where memory is partly from the pool"),
    (96, "fallback", "pool_blocks", false, "bytes that are lost where the system cannot purge, move or protect them"),
    (96, "strict", "pool_all", false, "memory that is not from the pool"),
    (0, "strict", "pool_strict", false, "an allocation that takes other memory, or a program that ends"),
    (7, "strict", "pool_strict", false, "a page of the pool that stays unused, or freed memory that is not reused"),
    (7, "strict", "pool_toggle", false, "memory that stays unavailable after the pool was used up"),
    (40, "fallback", "pool_taken", false, "a signal where the pool shrinks after its pages were taken"),
    (
        16,
        "strict",
        "pool_changed",
        false,
        "a page of the pool that is lost because the program changed it, or stays changed",
    ),
    (16, "strict", "pool_advised_away", false, "contents that stay in a part of a page, or a page that is given back"),
    (
        24,
        "fallback",
        "pool_gone_changed",
        false,
        "a signal where small pages replaced the pool's, and the program changed a part of them",
    ),
    (
        24,
        "strict",
        "pool_exec",
        false,
        "a child of a fork that ends by a signal before exec where the pool has no page for it",
    ),
    (128, "fallback", "pool_fork", false, "a child of a fork that loses bytes where the pool has pages for it"),
];

fn run(pages: usize, hugetlb: &str, case: &str, message: bool) -> Result<(), Stop> {
    let Some(machine) = Machine::lock() else { return Err(Stop::Skip("pools cannot be changed".into())) };
    let Some(_pool) = machine.pool(PAGE, pages) else { return Err(Stop::Skip("no such pool".into())) };
    let run = Run::new(PROGRAM.build()?).arg(case).env("NEAP_HUGE", "hugetlb").env("NEAP_HUGETLB", hugetlb);
    let finished = judge_case(run)?;
    let lines: Vec<&str> = finished.stderr.lines().filter(|line| line.starts_with("neap: ")).collect();
    let wanted: &[&str] = if message { &[LINE] } else { &[] };
    if lines == wanted { Ok(()) } else { Err(finished.fail("other lines of neap than expected")) }
}

fn main() -> ExitCode {
    let case = |&(pages, hugetlb, case, message, catches): &(usize, &'static str, &'static str, bool, &'static str)| {
        Case::new(format!("{case}::{hugetlb}_{pages}"), catches, move || run(pages, hugetlb, case, message))
    };
    neap_tests::suite::main(CASES.iter().map(case).collect())
}
