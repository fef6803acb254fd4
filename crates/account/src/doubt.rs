//! What is known to be unsure in a report: owners by place, heaps whose free memory is not known, readings that changed
//! meanwhile, memory that could not be read. What is not listed was found by structures of the memory itself, or is the
//! kernel's word.

use crate::model::{Cause, Doubt, Kind, Report};
use crate::owner;
use crate::seen::Seen;
use crate::units;

/// The doubts about a report, the largest first.
pub fn all(report: &Report, seen: &Seen) -> Vec<Doubt> {
    let mut all = of_accounts(report);
    let unsure: u64 = report.heaps.iter().map(|of| of.unsure_bytes).sum();
    all.push(doubt(unsure, "in heaps: could not be read, or changed faster than it was read; neither live nor free"));
    let shared = report.heaps.iter().filter(|of| of.live_blocks + of.free_bytes > 0);
    let whole: u64 = shared.map(|of| of.resident_bytes).sum();
    if let Some((low, high)) = report.rss_range {
        let text = "the process changed while it was read: its parts are of different moments";
        all.push(doubt(high - low, text));
    }
    all.push(doubt(seen.stacks.iter().map(|of| of.unknown).sum(), "stacks of threads that run: how much is in use"));
    let idle = seen.stacks.iter().filter(|of| seen.is_locked(of));
    all.push(doubt(idle.map(|of| of.below).sum(), "locked stacks: whether it was ever touched"));
    let zeros = report.of(Kind::HugeZero) + seen.locked_zeros;
    all.push(doubt(zeros, "zeros in huge or locked pages: never used, or written by the program"));
    if report.cause == Cause::CopyOnWrite && seen.fork.is_none() {
        let text = "its own memory: whether it was copied since a fork, or is new";
        all.push(doubt(report.private_bytes, text));
    }
    if seen.bss.is_none() {
        all.push(always(whole, "its memory was not read: heaps, stacks and data of libraries are known by place only"));
    }
    if seen.threads.is_empty() {
        all.push(always(report.of(Kind::Stack), "its threads cannot be listed"));
    }
    for of in report.remedies.iter().filter(|of| of.least_bytes < of.bytes) {
        let text = format!("what a remedy gives back, {} at least: {}", units::bytes(of.least_bytes), of.action.name());
        all.push(doubt(of.bytes - of.least_bytes, text));
    }
    let off = report.sum().abs_diff(report.rss_bytes);
    all.push(doubt(off, "the parts and Rss differ, because the kernel gives them at different moments"));
    all.extend(report.notes.iter().map(|note| always(0, note)));
    all.retain(|of| of.bytes > 0 || of.is_kept);
    all.sort_by_key(|of| std::cmp::Reverse(of.bytes));
    all.into_iter().map(|of| Doubt { bytes: of.bytes, text: of.text }).collect()
}

/// A doubt, and whether it is one without bytes too.
struct Candidate {
    bytes: u64,
    text: String,
    is_kept: bool,
}

fn doubt(bytes: u64, text: impl Into<String>) -> Candidate {
    Candidate { bytes, text: text.into(), is_kept: false }
}

fn always(bytes: u64, text: impl Into<String>) -> Candidate {
    Candidate { bytes, text: text.into(), is_kept: true }
}

/// Doubts about single accounts.
fn of_accounts(report: &Report) -> Vec<Candidate> {
    let mut all = Vec::new();
    for account in &report.accounts {
        let owner = &account.owner;
        if owner::is_unsure(owner) {
            all.push(doubt(account.bytes, format!("{owner}: known by size, alignment or neighbours only")));
        }
        match account.kind {
            Kind::Heap => all.push(doubt(account.bytes, format!("{owner}: how much of it is free"))),
            Kind::RuntimeHeap if owner.starts_with("CPython") => {
                all.push(doubt(account.bytes, format!("{owner}: recognised by the shape of their headers")));
            }
            Kind::RuntimeHeap => {
                all.push(doubt(account.bytes, format!("{owner}: how much of it is free, unless a note says it")));
            }
            Kind::Other => all.push(doubt(account.bytes, format!("{owner}: what it is"))),
            Kind::Anonymous if owner.starts_with("private memory") => {
                all.push(doubt(account.bytes, format!("{owner}: which code has mapped it")));
            }
            _ => {}
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seen::{Figures, StackUse};
    use crate::testing::mapping;

    /// Catches owners by place, memory that was not read and readings that changed, without a word on them; and sure
    /// ones that are doubted.
    #[test]
    fn what_is_unsure_is_listed() {
        let mappings = vec![mapping(0x10_0000, 8 << 20, "/usr/bin/node"), mapping(0x4000_0000, 4 << 20, "")];
        let total = Figures { rss: 12 << 20, ..Figures::default() };
        let mut seen = Seen { mappings, total, range: Some((10 << 20, 13 << 20)), ..Seen::default() };
        seen.threads = vec![Default::default()];
        let of = |seen: &Seen| crate::report(seen).doubts;
        let unread = of(&seen);
        let has = |all: &[Doubt], words: &str| all.iter().find(|of| of.text.contains(words)).map(|of| of.bytes);
        assert_eq!(has(&unread, "V8, or private memory: known by size"), Some(4 << 20), "{unread:?}");
        assert_eq!(has(&unread, "while it was read"), Some(3 << 20));
        assert!(has(&unread, "was not read: heaps").is_some());
        assert_eq!(unread[0].bytes, 4 << 20);
        seen.bss = Some(Vec::new());
        (seen.range, seen.mappings[1].name) = (None, "/usr/lib/libx.so".into());
        (seen.mappings[1].inode, seen.mappings[1].write) = (1, false);
        assert_eq!(of(&seen), []);
        seen.stacks = vec![StackUse { range: 0x1000..0x2000, unknown: 4096, tid: 1, ..StackUse::default() }];
        assert_eq!(has(&of(&seen), "threads that run"), Some(4096));
    }
}
