//! Finds the cause of a fault in the kernel's records. `docs/pagein.md` has the same as a table.

use crate::perf::attr::Counter;
use crate::perf::record::Sample;
use crate::{Access, Fault, Kind, Mapping, MappingKind};

/// The smallest page that counts as huge: 2 MiB on x86-64, 32 MiB or 2 MiB elsewhere.
const HUGE: u64 = 2 << 20;

/// What is known about a fault.
#[derive(Clone, Copy, Debug, Default)]
pub struct Evidence {
    /// The size of the page that was mapped when it began: 0 for none.
    before: Option<u64>,
    /// The size of the page that was mapped when it ended.
    after: Option<u64>,
    /// Its physical address: 0 for the page of zeros.
    physical: Option<u64>,
    /// Whether it ended with a read from disk; `None` if it did not end.
    major: Option<bool>,
}

impl Evidence {
    /// From the record of its beginning.
    pub fn begun(sample: &Sample) -> Self {
        Self { before: sample.page_size, ..Self::default() }
    }

    /// From the record of its end.
    pub fn completed(&mut self, sample: &Sample) {
        self.after = sample.page_size.filter(|&size| size != 0);
        self.physical = sample.physical;
        self.major = Some(sample.counter == Counter::MajorFaults);
    }

    /// For a fault whose end is not recorded, unless it was a major one.
    pub fn assume_minor(&mut self) {
        self.major.get_or_insert(false);
    }

    /// For a fault of which only the end was seen.
    pub fn end_only(sample: &Sample) -> Self {
        let mut evidence = Self::default();
        evidence.completed(sample);
        evidence
    }

    /// Fills in the kind, the size of the page, and the access where it follows. `lost`: events are missing.
    pub fn decide(&self, mapping: Option<&Mapping>, lost: bool, fault: &mut Fault) {
        fault.page_shift = self.after.filter(|size| size.is_power_of_two()).map(|size| size.trailing_zeros() as u8);
        (fault.kind, fault.guessed) = self.kind(mapping, lost);
        if fault.access == Access::Unknown {
            fault.access = match fault.kind {
                Kind::CopyOnWrite => Access::Write,
                Kind::ZeroPage => Access::Read,
                _ => Access::Unknown,
            };
        }
    }

    /// The kind, and whether it is a guess.
    fn kind(&self, mapping: Option<&Mapping>, lost: bool) -> (Kind, bool) {
        let Some(major) = self.major else {
            // A retried fault begins again, so this one ended in a signal; or its end was lost.
            return if lost { (Kind::Unknown, true) } else { (Kind::Refused, mapping.is_some()) };
        };
        let private = mapping.is_none_or(|mapping| !mapping.shared);
        let file = mapping.is_some_and(of_file);
        if self.before.is_some_and(|size| size != 0) {
            // A page was mapped already, so the access was not permitted: that can only be a write.
            return if private { (Kind::CopyOnWrite, false) } else { (Kind::FileMinor, false) };
        }
        if self.after.is_some_and(|size| size >= HUGE) {
            return (Kind::Huge, false);
        }
        let Some(mapping) = mapping else {
            return (if major { Kind::FileMajor } else { Kind::Unknown }, true);
        };
        let writable_copy = private && mapping.protection.write;
        match (file, major) {
            // Memory that was copied and swapped out looks the same.
            (true, true) => (Kind::FileMajor, writable_copy),
            // A write copies at once, without first mapping the file's page.
            (true, false) => (Kind::FileMinor, writable_copy || self.before.is_none()),
            (false, true) => (Kind::SwapIn, false),
            (false, false) if mapping.shared => (Kind::FileMinor, false),
            (false, false) => match (self.physical, self.after) {
                (Some(0), Some(_)) => (Kind::ZeroPage, false),
                (Some(_), Some(_)) => (Kind::Anonymous, self.before.is_none()),
                _ => (Kind::Anonymous, true),
            },
        }
    }
}

/// Whether a mapping's pages come from a file; false for the zeroed memory behind the file's end (`.bss`).
fn of_file(mapping: &Mapping) -> bool {
    match &mapping.kind {
        MappingKind::File => true,
        MappingKind::Anonymous | MappingKind::Heap | MappingKind::Stack => false,
        MappingKind::Named(name) => !name.starts_with("[anon") && !name.starts_with("[stack"),
    }
}

/// Uses what the faulting instruction does to its operand, where that could be found out: guesses that depend on it
/// become certain.
pub fn refine(fault: &mut Fault, access: Access, mapping: Option<&Mapping>) {
    if fault.access != Access::Unknown || access == Access::Unknown {
        return;
    }
    fault.access = access;
    let Some(mapping) = mapping.filter(|_| fault.guessed) else { return };
    match (fault.kind, access) {
        (Kind::Anonymous, Access::Read) => (fault.kind, fault.guessed) = (Kind::ZeroPage, false),
        (Kind::Anonymous, Access::Write) => fault.guessed = false,
        (Kind::FileMinor, Access::Write) if !mapping.shared => {
            (fault.kind, fault.guessed) = (Kind::CopyOnWrite, false);
        }
        (Kind::FileMinor, Access::Read | Access::Write) => fault.guessed = false,
        _ => {}
    }
}
