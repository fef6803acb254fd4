//! From mappings and claims to accounts.
//!
//! **The rule.** The kernel says how much of each mapping is resident. First come the claims on its ranges: heaps that
//! were walked, pools of CPython, thread-local storage on stacks. Each claim gets what its reader found resident there,
//! at most what the mapping has left. The reader found the shares of a claim at another moment, so they are cut in
//! their order to what the claim got; the rest goes to the kind that the claim names for it. Memory without a claim
//! gets the class that follows from the mapping's name and neighbours; of a private mapping of a file, the OS pages that
//! the process has changed are its own. At the end, memory that was given back lazily and OS pages of zeros in huge pages
//! are taken from other parts of their mapping, zeros only from those that are no memory of malloc. In a heap they stay
//! what they are, because a live block may be zeros: only a note says how much of it is.
//!
//! ```text
//! for each mapping:  Rss == sum of its parts
//! ```

use crate::model::{Account, Apart, Cause, HeapFigures, Kind, Report, SCHEMA};
use crate::owner::{self, Class};
use crate::seen::{Claim, HeapPart, Mapping, Piece, Seen};
use crate::{doubt, notes, runtime, verdict};
use std::collections::{BTreeMap, HashMap};

/// A part of a mapping.
#[derive(Clone, Debug, PartialEq)]
struct Part {
    mapping: usize,
    class: Class,
    bytes: u64,
}

/// The account of a process.
pub fn report(seen: &Seen) -> Report {
    let classes = owner::classes(seen);
    let claims = all_claims(seen);
    let (parts, zeros) = parts(seen, &classes, &claims);
    let mut accounts = accounts(seen, &classes, &parts);
    notes::accounts(&mut accounts, seen, &classes, &claims);
    notes::zeros(&mut accounts, &zeros);
    let mut report = Report {
        schema: SCHEMA,
        pid: seen.pid,
        command: seen.command.clone(),
        moment: None,
        rss_bytes: seen.total.rss,
        rss_range: seen.range,
        pss_bytes: seen.total.pss,
        private_bytes: seen.total.private_clean + seen.total.private_dirty,
        swap_bytes: seen.total.swap,
        repeated_bytes: seen.repeated.iter().map(|(_, bytes)| bytes).sum(),
        locked_bytes: seen.mappings.iter().map(|mapping| mapping.figures.locked).sum(),
        threads: seen.threads.len() as u32,
        allocators: allocators(seen),
        accounts,
        apart: apart(seen),
        heaps: heaps(seen),
        cause: Cause::Nothing,
        verdict: String::new(),
        remedies: Vec::new(),
        notes: notes::all(seen),
        doubts: Vec::new(),
    };
    verdict::judge(&mut report, seen, &zeros);
    report.doubts = doubt::all(&report, seen);
    report
}

/// Allocators and runtimes.
fn allocators(seen: &Seen) -> Vec<String> {
    let mut all = seen.allocators.clone();
    all.extend(owner::not_walked(seen).iter().map(|(name, _)| (*name).to_owned()));
    all.extend(runtime::of(seen).iter().map(|runtime| runtime.name.to_owned()));
    all.dedup();
    all
}

/// Claims of heaps, of readers of runtimes, of data of files, and of stacks.
fn all_claims(seen: &Seen) -> Vec<Claim> {
    let mut all: Vec<Claim> = seen.heaps.iter().map(claim_of).collect();
    all.extend(seen.claims.iter().cloned());
    let claim = |owner, piece, shares, rest| Claim { owner, pieces: vec![piece], shares, rest, note: None };
    for of in seen.bss.iter().flatten() {
        all.push(claim(owner::bss_owner(&of.file), of.piece.clone(), Vec::new(), Kind::Anonymous));
    }
    for of in &seen.stacks {
        let piece = Piece { range: of.range.clone(), resident: of.used + of.below + of.local + of.unknown };
        let owner = owner::stack_owner(seen, of.tid, of.is_sure);
        all.push(claim(owner, piece, vec![(Kind::ThreadLocal, of.local)], Kind::Stack));
    }
    all
}

/// The claim of a heap that was walked.
fn claim_of(part: &HeapPart) -> Claim {
    let f = &part.figures;
    let owner = part.owner();
    let known = f.live_bytes + f.free_bytes + f.metadata_bytes + f.kept_bytes > 0;
    if !known {
        return Claim { owner, pieces: part.pieces.clone(), shares: Vec::new(), rest: Kind::Heap, note: None };
    }
    let live =
        f.resident_bytes.saturating_sub(f.kept_bytes + f.fragmentation_bytes + f.metadata_bytes + f.unsure_bytes);
    let shares = vec![
        (Kind::HeapMetadata, f.metadata_bytes),
        (Kind::HeapFree, f.kept_bytes),
        (Kind::HeapFragmentation, f.fragmentation_bytes),
        (Kind::HeapLive, live.min(f.live_bytes)),
    ];
    Claim { owner, pieces: part.pieces.clone(), shares, rest: Kind::Other, note: None }
}

/// The parts of all mappings, for which the equation holds; and the zeros in huge pages, by the class of their memory.
fn parts(seen: &Seen, classes: &[Class], claims: &[Claim]) -> (Vec<Part>, Vec<(Class, u64)>) {
    let mut left: Vec<u64> = seen.mappings.iter().map(|mapping| mapping.figures.rss).collect();
    let mut parts = Vec::new();
    for claim in claims {
        let granted = grant(&seen.mappings, &mut left, claim);
        divide(claim, &granted, &mut parts);
    }
    for (mapping, (class, left)) in classes.iter().zip(left).enumerate() {
        // What no claim got has the mapping's own class, except OS pages of a file that it has changed for itself.
        let of = &seen.mappings[mapping];
        let is_of_file = !of.shared && matches!(class.kind, Kind::File | Kind::Shared);
        let changed = if is_of_file { of.figures.anonymous.min(left) } else { 0 };
        if changed > 0 {
            let class = Class { kind: Kind::Anonymous, owner: owner::changed_owner(&class.owner) };
            parts.push(Part { mapping, class, bytes: changed });
        }
        if left > changed {
            parts.push(Part { mapping, class: class.clone(), bytes: left - changed });
        }
    }
    lazy(seen, &mut parts);
    let zeros = zeros(seen, &mut parts);
    (parts, zeros)
}

/// Takes memory that was given back lazily from the parts of its mapping: first from free memory of heaps, last from
/// live blocks.
fn lazy(seen: &Seen, parts: &mut Vec<Part>) {
    let rank = |kind: Kind| match kind {
        Kind::HeapFree => 0,
        Kind::HeapLive | Kind::HeapMetadata | Kind::HeapFragmentation => 2,
        Kind::Stack | Kind::ThreadLocal => 3,
        _ => 1,
    };
    for (mapping, of) in seen.mappings.iter().enumerate().filter(|(_, of)| of.figures.lazy_free > 0) {
        let mut left = of.figures.lazy_free;
        let mut of: Vec<usize> = (0..parts.len()).filter(|&at| parts[at].mapping == mapping).collect();
        of.sort_by_key(|&at| (rank(parts[at].class.kind), std::cmp::Reverse(parts[at].bytes)));
        for at in of {
            let taken = left.min(parts[at].bytes);
            if taken > 0 {
                left -= taken;
                parts[at].bytes -= taken;
                let class = Class { kind: Kind::LazyFree, owner: parts[at].class.owner.clone() };
                parts.push(Part { mapping, class, bytes: taken });
            }
        }
    }
    parts.retain(|part| part.bytes > 0);
}

/// What a claim gets from each mapping.
fn grant(mappings: &[Mapping], left: &mut [u64], claim: &Claim) -> Vec<(usize, u64)> {
    let mut granted: Vec<(usize, u64)> = Vec::new();
    for piece in &claim.pieces {
        let at = mappings.partition_point(|mapping| mapping.range.end <= piece.range.start);
        let Some(mapping) = mappings.get(at).filter(|mapping| mapping.range.contains(&piece.range.start)) else {
            continue;
        };
        // For a whole mapping the kernel's figure counts, whatever was found at another moment.
        let whole = piece.range.start == mapping.range.start && piece.range.end >= mapping.range.end;
        let bytes = if whole { left[at] } else { piece.resident.min(left[at]) };
        left[at] -= bytes;
        match granted.last_mut().filter(|(last, _)| *last == at) {
            Some((_, sum)) => *sum += bytes,
            None => granted.push((at, bytes)),
        }
    }
    granted
}

/// Divides what a claim got: in the order of its shares, and in each mapping in proportion.
fn divide(claim: &Claim, granted: &[(usize, u64)], parts: &mut Vec<Part>) {
    let total: u64 = granted.iter().map(|(_, bytes)| bytes).sum();
    let mut shares: Vec<(Kind, u64)> = Vec::new();
    let mut open = total;
    for &(kind, bytes) in &claim.shares {
        let bytes = bytes.min(open);
        open -= bytes;
        shares.push((kind, bytes));
    }
    shares.push((claim.rest, open));
    let mut before = vec![0u64; granted.len()];
    let mut sum = 0u64;
    for (kind, bytes) in shares {
        sum += bytes;
        for ((mapping, got), before) in granted.iter().zip(&mut before) {
            // Rounds the running sum, so that nothing is lost.
            let upto = if total == 0 { 0 } else { (u128::from(*got) * u128::from(sum) / u128::from(total)) as u64 };
            let bytes = upto - *before;
            *before = upto;
            if bytes > 0 {
                let class = Class { kind, owner: claim.owner.clone() };
                parts.push(Part { mapping: *mapping, class, bytes });
            }
        }
    }
}

/// Finds the parts that have the zeros in huge pages: first those of no heap, then live blocks, the largest first. Those
/// of no heap lose them to an account of their own.
fn zeros(seen: &Seen, parts: &mut Vec<Part>) -> Vec<(Class, u64)> {
    let mut found = Vec::new();
    for zeros in &seen.zeros {
        let Some(mapping) = seen.mappings.iter().position(|mapping| mapping.range.start == zeros.start) else {
            continue;
        };
        let mut left = zeros.bytes;
        let mut of: Vec<usize> = (0..parts.len()).filter(|&at| parts[at].mapping == mapping).collect();
        let rank = |kind: Kind| (kind.is_heap(), kind != Kind::HeapLive, kind == Kind::HeapFree);
        of.sort_by_key(|&at| (rank(parts[at].class.kind), std::cmp::Reverse(parts[at].bytes)));
        for at in of {
            let taken = left.min(parts[at].bytes);
            if taken == 0 {
                continue;
            }
            left -= taken;
            let class = parts[at].class.clone();
            if !class.kind.is_heap() {
                parts[at].bytes -= taken;
                let class = Class { kind: Kind::HugeZero, owner: class.owner.clone() };
                parts.push(Part { mapping, class, bytes: taken });
            }
            found.push((class, taken));
        }
    }
    parts.retain(|part| part.bytes > 0);
    found
}

/// Parts of one kind and owner are one account. Figures that the kernel has only for a whole mapping are divided in
/// proportion.
fn accounts(seen: &Seen, classes: &[Class], parts: &[Part]) -> Vec<Account> {
    let mut all: BTreeMap<(Kind, &str), Account> = BTreeMap::new();
    let mut largest: HashMap<usize, (u64, usize)> = HashMap::new();
    for (at, part) in parts.iter().enumerate() {
        let known = largest.entry(part.mapping).or_insert((part.bytes, at));
        // The mapping's own class comes last, and wins among equals.
        if part.bytes >= known.0 {
            *known = (part.bytes, at);
        }
    }
    for (at, part) in parts.iter().enumerate() {
        let mapping = &seen.mappings[part.mapping];
        let f = &mapping.figures;
        let of = |bytes: u64| {
            if f.rss == 0 { 0 } else { (u128::from(bytes) * u128::from(part.bytes) / u128::from(f.rss)) as u64 }
        };
        let account = all.entry((part.class.kind, &part.class.owner)).or_insert_with(|| empty(&part.class));
        account.bytes += part.bytes;
        account.pss_bytes += of(f.pss);
        account.private_bytes += of(f.private_clean + f.private_dirty);
        account.dirty_bytes += of(f.private_dirty + f.shared_dirty);
        account.mappings += 1;
        // Swap and addresses belong to the whole mapping; they count in the account of its largest part.
        if largest.get(&part.mapping).is_some_and(|(_, largest)| *largest == at) {
            account.swap_bytes += f.swap;
            account.reserved_bytes += mapping.bytes();
        }
    }
    // A mapping of which nothing is resident counts only if its account exists or if it is swapped out.
    for (mapping, class) in seen.mappings.iter().zip(classes).filter(|(mapping, _)| mapping.figures.rss == 0) {
        if mapping.figures.swap > 0 {
            all.entry((class.kind, &class.owner)).or_insert_with(|| empty(class)).swap_bytes += mapping.figures.swap;
        }
        if let Some(account) = all.get_mut(&(class.kind, class.owner.as_str())) {
            account.reserved_bytes += mapping.bytes();
        }
    }
    let mut all: Vec<Account> = all.into_values().collect();
    all.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| (a.kind, &a.owner).cmp(&(b.kind, &b.owner))));
    all
}

fn empty(class: &Class) -> Account {
    Account {
        kind: class.kind,
        owner: class.owner.clone(),
        bytes: 0,
        pss_bytes: 0,
        private_bytes: 0,
        dirty_bytes: 0,
        swap_bytes: 0,
        reserved_bytes: 0,
        mappings: 0,
        note: None,
    }
}

/// Memory that is not in Rss.
fn apart(seen: &Seen) -> Vec<Apart> {
    let hugetlb: u64 = seen.mappings.iter().map(|mapping| mapping.figures.hugetlb).sum();
    let stacks = 16 * 1024 * seen.threads.len() as u64;
    let all = [
        ("page-tables", seen.page_tables, "page tables"),
        ("swap", seen.total.swap, "swapped out"),
        ("hugetlb", hugetlb, "pages of the kernel's pools"),
        ("kernel-stacks", stacks, "the kernel's stacks of its threads"),
    ];
    let apart = |(kind, bytes, text): (_, _, &str)| Apart { kind, bytes, text: text.to_owned() };
    all.into_iter().map(apart).chain(seen.beside.iter().cloned()).filter(|of| of.bytes > 0).collect()
}

fn heaps(seen: &Seen) -> Vec<HeapFigures> {
    let mut all: Vec<HeapFigures> = seen.heaps.iter().map(|part| part.figures.clone()).collect();
    all.sort_by_key(|figures| std::cmp::Reverse(figures.resident_bytes));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seen::{Bss, Figures, Piece, StackUse, Thread, Zeros};
    use crate::testing::mapping;

    fn heap_of(pieces: Vec<Piece>, figures: HeapFigures) -> HeapPart {
        let figures = HeapFigures { allocator: "glibc 2.36".into(), part: "main arena".into(), ..figures };
        HeapPart { figures, pieces, main: true, ..HeapPart::default() }
    }

    fn seen(mappings: Vec<Mapping>) -> Seen {
        let rss = mappings.iter().map(|mapping| mapping.figures.rss).sum();
        Seen { pid: 1, total: Figures { rss, ..Figures::default() }, mappings, ..Seen::default() }
    }

    /// Catches two remarks on one allocator that contradict each other.
    #[test]
    fn an_allocator_is_remarked_on_once() {
        let mut of = seen(vec![mapping(0x1000, 0x1000, "/usr/lib/libjemalloc.so.1")]);
        of.stacks = vec![StackUse::default()];
        assert!(matches!(&notes::all(&of)[..], [note] if note.contains("or were not found")));
        of.other_malloc = Some("malloc of libjemalloc.so.1".into());
        assert_eq!(notes::all(&of), [""; 0]);
    }

    /// Catches accounts that do not add up to Rss if a heap was read at another moment, in parts of mappings.
    #[test]
    fn accounts_add_up() {
        let mut of = seen(vec![
            mapping(0x1000, 0x1000, "/bin/p"),
            mapping(0x10_0000, 0x40_0000, "[heap]"),
            mapping(0x1000_0000, 0x30_0000, ""),
        ]);
        of.mappings[0].figures.anonymous = 0;
        let part = |start, end, resident| Piece { range: start..end, resident };
        let figures = HeapFigures {
            resident_bytes: 0x50_0003,
            live_bytes: 0x20_0001,
            kept_bytes: 0x28_0001,
            free_bytes: 0x30_0000,
            fragmentation_bytes: 0x8_0000,
            metadata_bytes: 0x101,
            ..HeapFigures::default()
        };
        of.heaps = vec![heap_of(
            vec![part(0x10_0000, 0x50_0000, 0x3f_0000), part(0x1010_0000, 0x1020_0000, 0x10_0003)],
            figures,
        )];
        let report = report(&of);
        assert_eq!(report.sum(), report.rss_bytes);
        // Divided among two mappings: rounded down in each.
        assert!(
            report.of(Kind::HeapFree).abs_diff(0x28_0001) <= 1 && report.of(Kind::HeapMetadata).abs_diff(0x101) <= 1
        );
        // Two of its pages are not known to be the heap's.
        assert_eq!(report.of(Kind::Anonymous), 0x30_0000 - 0x10_0003);
        assert_eq!(report.of(Kind::File), 0x1000);
        let pss: u64 = report.accounts.iter().map(|account| account.pss_bytes).sum();
        assert!(report.sum() - pss < 16, "{pss}");
    }

    /// Catches shares that are larger than what the kernel has for the mapping.
    #[test]
    fn shares_are_cut() {
        let mut of = seen(vec![mapping(0x10_0000, 0x1000, "[heap]")]);
        let figures =
            HeapFigures { resident_bytes: 0x9000, live_bytes: 0x8000, kept_bytes: 0x900, ..HeapFigures::default() };
        of.heaps = vec![heap_of(vec![Piece { range: 0x10_0000..0x10_1000, resident: 0x9000 }], figures)];
        let report = report(&of);
        assert_eq!((report.sum(), report.of(Kind::HeapFree), report.of(Kind::HeapLive)), (0x1000, 0x900, 0x700));
    }

    /// Catches zeros in huge pages that are counted twice, or more of them than there is memory.
    #[test]
    fn zeros_are_taken_from_the_largest() {
        let mut of = seen(vec![mapping(0x20_0000, 0x20_0000, "")]);
        of.zeros = vec![Zeros { start: 0x20_0000, bytes: 0x18_0000 }];
        let one = report(&of);
        assert_eq!((one.of(Kind::HugeZero), one.of(Kind::Anonymous)), (0x18_0000, 0x8_0000));
        of.zeros[0].bytes = u64::MAX;
        let all = report(&of);
        assert_eq!((all.of(Kind::HugeZero), all.sum()), (0x20_0000, 0x20_0000));
        // Blocks that the program holds are live, whatever is in them.
        let blocks = |large_bytes| {
            let figures = HeapFigures { resident_bytes: 0x20_0000, live_bytes: 0x20_0000, ..HeapFigures::default() };
            let pieces = vec![Piece { range: 0x20_0000..0x40_0000, resident: 0x20_0000 }];
            let heap = HeapPart { large_bytes, ..heap_of(pieces, figures) };
            let report = report(&Seen { heaps: vec![heap], ..of.clone() });
            assert_eq!((report.of(Kind::HugeZero), report.of(Kind::HeapLive)), (0, 0x20_0000));
            assert!(report.accounts[0].note.as_ref().is_some_and(|note| note.contains("up to 2.0 MiB of it zeros")));
            report
        };
        assert_eq!((blocks(0).cause, blocks(0x20_0000).cause), (Cause::Live, Cause::HugeZero));
    }

    /// Catches a claim on a range that is not mapped, or that two readers have claimed.
    #[test]
    fn claims_do_not_overlap() {
        let mut of = seen(vec![mapping(0x1000, 0x3000, "")]);
        let claim = |start: u64, resident| Claim {
            owner: "CPython".into(),
            pieces: vec![Piece { range: start..start + 0x2000, resident }],
            shares: vec![(Kind::RuntimeHeap, resident)],
            rest: Kind::RuntimeHeap,
            note: None,
        };
        of.claims = vec![claim(0x1000, 0x2000), claim(0x2000, 0x2000), claim(0x9000, 0x2000)];
        let report = report(&of);
        assert_eq!((report.sum(), report.of(Kind::RuntimeHeap)), (0x3000, 0x3000));
    }

    /// Catches a note on all stacks although that of a running thread is not known.
    #[test]
    fn stacks_that_are_known_are_counted() {
        let stack = mapping(0x7fff_0000, 0x2000, "[stack]");
        let mut of = seen(vec![stack]);
        let range = 0x7fff_0000..0x7fff_2000;
        of.stacks = vec![StackUse { range, tid: 1, used: 0x1000, ..StackUse::default() }];
        let note = |threads: u32, of: &mut Seen| {
            of.threads = (1..=threads).map(|tid| Thread { tid, ..Thread::default() }).collect();
            report(of).accounts.remove(0).note.unwrap_or_default()
        };
        assert!(note(1, &mut of).starts_with("of all stacks 4.0 KiB are in use"), "{}", note(1, &mut of));
        assert!(note(3, &mut of).starts_with("of the stacks of 1 of 3 threads 4.0 KiB"), "{}", note(3, &mut of));
        // A running thread, and locked memory, which is resident whether it was touched or not.
        (of.stacks[0].used, of.stacks[0].unknown) = (0, 0x1000);
        assert!(note(1, &mut of).contains("4.0 KiB are of threads that run"), "{}", note(1, &mut of));
        (of.stacks[0].unknown, of.stacks[0].below, of.mappings[0].figures.locked) = (0, 0x2000, 0x2000);
        let locked = note(1, &mut of);
        assert!(locked.contains("8.0 KiB are not in use, but locked") && !locked.contains("touched"), "{locked}");
    }

    /// Catches a stack in a larger mapping that makes all of it a stack, and memory that the kernel has joined with the
    /// data of a library and that counts as that.
    #[test]
    fn parts_of_mappings_have_owners() {
        let mut of = seen(vec![mapping(0x10_0000, 0x10_0000, ""), mapping(0x40_0000, 0x10_0000, "")]);
        let range = 0x14_0000..0x15_0000;
        let stack = StackUse { range, tid: 1, is_sure: true, used: 0x3000, below: 0xc000, local: 0x1000, unknown: 0 };
        of.stacks = vec![stack];
        of.threads = vec![Thread { tid: 1, ..Thread::default() }];
        let piece = Piece { range: 0x40_0000..0x40_2000, resident: 0x2000 };
        of.bss = Some(vec![Bss { file: "/lib/x.so".into(), piece }]);
        let report = report(&of);
        let bytes = |owner: &str| report.accounts.iter().filter(|of| of.owner == owner).map(|of| of.bytes).sum::<u64>();
        assert_eq!((report.of(Kind::Stack), report.of(Kind::ThreadLocal)), (0xf000, 0x1000));
        assert_eq!(bytes("/lib/x.so (.bss)"), 0x2000);
        assert_eq!(bytes("private memory without a name"), 0x1f_0000 - 0x2000);
    }

    /// Catches memory that was given back lazily and counts as the program's, or that is taken from live blocks although
    /// the heap has free ones.
    #[test]
    fn what_was_given_back_lazily_is_apart() {
        let mut of = seen(vec![mapping(0x10_0000, 0x10_0000, "")]);
        of.mappings[0].figures.lazy_free = 0x6_0000;
        let one = report(&of);
        assert_eq!((one.of(Kind::LazyFree), one.of(Kind::Anonymous)), (0x6_0000, 0xa_0000));
        let figures = HeapFigures {
            resident_bytes: 0x10_0000,
            live_bytes: 0xc_0000,
            kept_bytes: 0x4_0000,
            free_bytes: 0x4_0000,
            ..HeapFigures::default()
        };
        of.heaps = vec![heap_of(vec![Piece { range: 0x10_0000..0x20_0000, resident: 0x10_0000 }], figures)];
        let heap = report(&of);
        let found = [Kind::LazyFree, Kind::HeapFree, Kind::HeapLive].map(|kind| heap.of(kind));
        assert_eq!((found, heap.sum()), ([0x6_0000, 0, 0xa_0000], 0x10_0000));
    }

    /// Catches OS pages that the process has changed for itself and that count as the file's or as shared, and changes
    /// of others that count as its own.
    #[test]
    fn changed_pages_of_files_are_its_own() {
        let mut memory = mapping(0x10_0000, 0x3000, "/memfd:cache (deleted)");
        (memory.figures.anonymous, memory.figures.private_dirty) = (0x2000, 0x2000);
        let mut program = mapping(0x20_0000, 0x3000, "/bin/p");
        (program.write, program.figures.anonymous, program.figures.private_dirty) = (false, 0, 0x3000);
        let shared = Mapping { shared: true, write: true, ..program.clone() };
        let report = report(&seen(vec![
            memory,
            program.clone(),
            Mapping { range: 0x30_0000..0x30_3000, name: "/x".into(), ..shared },
        ]));
        let found: Vec<_> = report.accounts.iter().map(|of| (of.kind, of.owner.as_str(), of.bytes)).collect();
        let expected = [
            (Kind::File, "/bin/p", 0x3000),
            (Kind::File, "/x", 0x3000),
            (Kind::Anonymous, "memfd:cache (changed)", 0x2000),
            (Kind::Shared, "memfd:cache", 0x1000),
        ];
        let mut sorted = found.clone();
        sorted.sort_by_key(|of| (std::cmp::Reverse(of.2), of.0));
        assert_eq!(sorted, expected);
        assert_eq!(
            report.accounts.iter().filter(|of| of.note.is_some()).map(|of| of.owner.as_str()).collect::<Vec<_>>(),
            ["/x"]
        );
    }
}
