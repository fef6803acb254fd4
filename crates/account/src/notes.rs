//! Remarks: on the whole report, and on single accounts.

use crate::model::{Account, Kind};
use crate::owner::{self, Class};
use crate::seen::{Claim, Seen, StackUse};
use crate::{runtime, units};
use std::collections::HashMap;

/// The reader's remarks, and the allocators whose heaps were not walked.
pub fn all(seen: &Seen) -> Vec<String> {
    // The reader's own remark on an allocator that is not known says whose the memory without a name is.
    let not_walked =
        owner::not_walked(seen).into_iter().filter(|(_, is_named)| *is_named || seen.other_malloc.is_none());
    let not_walked = not_walked.map(|(name, is_named)| {
        let counts =
            if is_named { "live and free are not distinguished" } else { "its memory counts as memory without a name" };
        format!("{name}: its structures are not known here, or were not found, so {counts}")
    });
    let in_heaps = (seen.stacks_in_heaps > 0)
        .then(|| format!("the stacks of {} threads are blocks of malloc: they count as such", seen.stacks_in_heaps));
    seen.notes.iter().cloned().chain(not_walked).chain(in_heaps).collect()
}

/// Adds remarks to accounts.
pub fn accounts(accounts: &mut [Account], seen: &Seen, classes: &[Class], claims: &[Claim]) {
    // For files: bytes in the page cache that it may have changed.
    let mut files: HashMap<&str, u64> = HashMap::new();
    let again: HashMap<u64, u64> = seen.repeated.iter().copied().collect();
    let mut repeated: HashMap<(Kind, &str), u64> = HashMap::new();
    for (mapping, class) in seen.mappings.iter().zip(classes) {
        let f = &mapping.figures;
        if class.kind == Kind::File {
            // Of a private or read-only mapping it has changed nothing: another process did, or the one that wrote the
            // file.
            let dirty = if mapping.shared && mapping.write { f.private_dirty + f.shared_dirty } else { 0 };
            *files.entry(&class.owner).or_default() += dirty;
        }
        if let Some(bytes) = again.get(&mapping.range.start) {
            *repeated.entry((class.kind, &class.owner)).or_default() += bytes;
        }
    }
    let stacks = stacks_note(seen);
    let mut noted = false;
    for account in accounts {
        let claim = claims.iter().find(|claim| claim.owner == account.owner && claim.note.is_some());
        account.note = match account.kind {
            Kind::RuntimeHeap => {
                let name = account.owner.split([',', ':']).next().unwrap_or("");
                let more = runtime::named(seen, name)
                    .map(|runtime| format!("more: {}", runtime.command.replace("PID", &seen.number())));
                claim.and_then(|claim| claim.note.clone()).into_iter().chain(more).reduce(|a, b| format!("{a}; {b}"))
            }
            Kind::Stack if !noted => {
                noted = true;
                stacks.clone()
            }
            Kind::LazyFree => Some("Rss counts it until the kernel takes it, when memory is short".to_owned()),
            Kind::File => {
                let dirty = files.get(account.owner.as_str()).copied().unwrap_or_default();
                (dirty > 0).then(|| format!("{} of it changed, not yet written to the file", units::bytes(dirty)))
            }
            _ => None,
        };
        if let Some(bytes) = repeated.get(&(account.kind, account.owner.as_str())) {
            let again =
                format!("{} of it counted again, because it is mapped at several addresses", units::bytes(*bytes));
            account.note = Some(account.note.take().map_or(again.clone(), |note| format!("{again}; {note}")));
        }
    }
}

/// Says of live blocks how much of them is zeros in huge pages.
pub fn zeros(accounts: &mut [Account], zeros: &[(Class, u64)]) {
    for account in accounts.iter_mut().filter(|account| account.kind == Kind::HeapLive) {
        let of = zeros.iter().filter(|(class, _)| class.kind == account.kind && class.owner == account.owner);
        let sum: u64 = of.map(|(_, bytes)| bytes).sum();
        if sum >= 1 << 20 {
            let said = format!("up to {} of it zeros in huge pages: written, or never used", units::bytes(sum));
            account.note = Some(account.note.take().map_or(said.clone(), |note| format!("{note}; {said}")));
        }
    }
}

/// What is known about the use of stacks.
fn stacks_note(seen: &Seen) -> Option<String> {
    let live: Vec<&StackUse> = seen.stacks.iter().filter(|of| of.tid != 0).collect();
    let sum = |of: fn(&StackUse) -> u64| live.iter().map(|stack| of(stack)).sum::<u64>();
    let (used, below, unknown) = (sum(|of| of.used), sum(|of| of.below), sum(|of| of.unknown));
    if used + below + unknown == 0 {
        return None;
    }
    let locked: u64 = live.iter().filter(|of| seen.is_locked(of)).map(|of| of.below).sum();
    let known = live.iter().filter(|of| of.unknown == 0).count();
    let of = match seen.threads.len() {
        all if known < all => format!("the stacks of {known} of {all} threads"),
        _ => "all stacks".to_owned(),
    };
    let mut words = vec![format!("{} are in use", units::bytes(used))];
    if below > locked || locked == 0 {
        words.push(format!("{} were touched before", units::bytes(below - locked)));
    }
    if locked > 0 {
        words.push(format!("{} are not in use, but locked in memory (mlock)", units::bytes(locked)));
    }
    let running = if unknown == 0 {
        String::new()
    } else {
        format!("; {} are of threads that run: how much of it is in use is not known", units::bytes(unknown))
    };
    Some(format!("of {of} {}{running}", words.join(", ")))
}
