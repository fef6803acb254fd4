//! Option `huge` on the real system.

use std::process::ExitCode;

use neap_tests::{Case, Run, Source, judge_case};

const HUGE: Source = Source::new("huge/huge.c");

/// Value of the option, case, and what the case would catch.
const CASES: &[(&str, &str, &str)] = &[
    ("thp", "thp", "large blocks that are not aligned, not advised, or touched; memory that stays"),
    ("thp", "thp_reused", "parts of huge pages that went back and that the system fills again"),
    ("always", "always", "memory that is not advised, or does not go back"),
    ("always", "moved", "huge pages that are divided when realloc moves a block"),
    ("advised", "advised", "a process or its child that gets huge pages without request, or none at all"),
    ("adaptive", "promoted", "dense memory that stays in small pages, bytes that change, sparse memory that grows"),
    ("adaptive", "rests", "promotion that takes longer than the program"),
    ("adaptive", "grown", "growth in small pages, or huge pages that stay"),
    ("adaptive", "sparse", "blocks that become resident although they are hardly touched"),
    ("advised", "without", "a process that gets huge pages although it was started without"),
    ("thp", "without", "a process that asks for huge pages although it was started without"),
    ("always", "without", "a process that asks for huge pages although it was started without"),
    ("adaptive", "filtered", "a process whose own filter ends it for advice about huge pages"),
    ("thp", "filtered", "a process whose own filter ends it for advice about huge pages"),
    ("always", "filtered", "a process whose own filter ends it for advice about huge pages"),
];

fn main() -> ExitCode {
    let case = |&(value, case, catches): &(&'static str, &'static str, &'static str)| {
        Case::new(format!("{value}::{case}"), catches, move || {
            judge_case(Run::new(HUGE.build()?).arg(case).env("NEAP_HUGE", value))?.no_complaint()?;
            Ok(())
        })
    };
    neap_tests::suite::main(CASES.iter().map(case).collect())
}
