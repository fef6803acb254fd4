//! Where the time of allocation goes: samples of the clock, classified by what the allocator (or the kernel on its
//! behalf) was doing, and by the caller.
//!
//! A sample belongs to the profile if a function of an allocator is on its stack, or if the kernel was handling a page
//! fault on memory that is touched for the first time. The stack determines the operation, from the innermost frame
//! outwards: what the kernel does; clearing below calloc, copying below realloc; otherwise the program's call.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io;

use neap_trace::format::frames;
use neap_trace::{Fault, Id, Kind, Line, Mode, Object, ObjectId, PlaceId, Source, StackId, Tables};

use crate::allocator::{Call, call, canonical, is_allocator};
use crate::{
    Builder, Frame, Function, Label, Location, LocationId, Mapping, MappingId, Period, Profile, Unit, ValueType, types,
};

/// The key of the label with the operation.
pub const OPERATION: &str = "operation";

/// The operation on which the time of a sample is spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// Finding a block.
    Malloc,
    /// Finding a block, for calloc.
    Calloc,
    /// Clearing memory, for calloc.
    Clearing,
    /// Resizing a block.
    Realloc,
    /// Copying a block, for realloc.
    Copying,
    /// Freeing a block.
    Free,
    /// The kernel provides memory at the program's first touch.
    Faults,
    /// The same, while calloc clears.
    FaultsClearing,
    /// The same, while realloc copies.
    FaultsCopying,
    /// The kernel takes memory back: munmap, madvise.
    Purging,
    /// The kernel reserves addresses: mmap, brk, mprotect, mremap.
    Mapping,
    /// Other work of the allocator: its own threads, statistics, locks.
    Other,
}

impl Operation {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::Malloc,
        Self::Calloc,
        Self::Clearing,
        Self::Realloc,
        Self::Copying,
        Self::Free,
        Self::Faults,
        Self::FaultsClearing,
        Self::FaultsCopying,
        Self::Purging,
        Self::Mapping,
        Self::Other,
    ];

    /// Its name in every format.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Malloc => "malloc",
            Self::Calloc => "calloc",
            Self::Clearing => "clearing for calloc",
            Self::Realloc => "realloc",
            Self::Copying => "copying for realloc",
            Self::Free => "free",
            Self::Faults => "page faults on fresh memory",
            Self::FaultsClearing => "page faults while clearing for calloc",
            Self::FaultsCopying => "page faults while copying for realloc",
            Self::Purging => "giving memory back (munmap, madvise)",
            Self::Mapping => "reserving memory (mmap, brk)",
            Self::Other => "other work of the allocator",
        }
    }
}

/// Facts about the samples.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// Nanoseconds of a thread's time between two samples.
    pub period: u64,
    /// The time that a counted fault stands for, on a page of 4 KiB; `None` where the clock covers faults.
    pub fault: Option<u64>,
}

/// The classification of a sample.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Class {
    operation: Operation,
    /// The function that the program called but that is not on the stack, because it ended in a tail call: its name,
    /// and the number of frames below it.
    hidden: Option<(String, usize)>,
}

/// A frame, as far as the classification needs it.
#[derive(Clone, Copy, Debug)]
struct Seen<'t> {
    name: &'t str,
    object: &'t str,
    kernel: bool,
    /// The function that its call instruction names.
    called: Option<&'t str>,
}

/// More about a place of code.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Details {
    /// The function that the call instruction names.
    pub called: Option<String>,
    /// The functions that are inlined there, innermost first: their names and lines.
    pub inlined: Vec<(String, Option<Line>)>,
    /// The line of the function that they are inlined in.
    pub outer: Option<Line>,
}

/// Makes a profile of samples of the clock. `details` returns more about a place.
pub fn profile(source: &dyn Source, details: &dyn Fn(PlaceId) -> Details, clock: Clock) -> io::Result<Profile> {
    let tables = source.tables();
    let mut maker = Maker {
        tables,
        details,
        clock,
        builder: Builder::new(vec![types::TIME_SAMPLES, types::TIME]),
        classes: HashMap::new(),
        places: HashMap::new(),
    };
    let period = i64::try_from(clock.period).unwrap_or(i64::MAX);
    let mut samples = 0i64;
    source.visit(&mut |sample| {
        samples += i64::from(sample.address == 0);
        maker.sample(sample, period);
        Ok(())
    })?;
    let profile = maker.builder.profile_mut();
    profile.period = Some(Period { of: ValueType::new("cpu", Unit::Nanoseconds), value: period });
    profile.shown = 1;
    profile.whole = Some(samples.saturating_mul(period));
    let mut profile = maker.builder.finish();
    program_first(&mut profile);
    Ok(profile)
}

/// Makes the program the first mapping, as readers of pprof's format expect: the file that is no library and that is on
/// the stacks of most samples.
fn program_first(profile: &mut Profile) {
    let is_program = |file: &str| file.starts_with('/') && !file.contains(".so");
    let mut counts = vec![0i64; profile.mappings.len()];
    for sample in &profile.samples {
        let mappings = profile.locations_of(sample.stack).filter_map(|id| profile.locations[id].mapping);
        let outermost = mappings.filter(|&id| is_program(&profile.mappings[id].file)).last();
        outermost.into_iter().for_each(|id| counts[id.index()] += sample.values[0]);
    }
    let most = counts.iter().enumerate().filter(|(_, count)| **count > 0).max_by_key(|(_, count)| **count);
    let Some((at, _)) = most else { return };
    let (first, program) = (MappingId::from_index(0), MappingId::from_index(at));
    let row = profile.mappings[first].clone();
    profile.mappings[first] = std::mem::replace(&mut profile.mappings[program], row);
    for (_, location) in profile.locations.iter_mut() {
        location.mapping = match location.mapping {
            Some(id) if id == first => Some(program),
            Some(id) if id == program => Some(first),
            other => other,
        };
    }
}

/// Instruction, place, mode, callers, and the kind of a counted fault: samples with the same key have the same class.
type Key = (u64, Option<PlaceId>, Mode, Option<StackId>, Option<Kind>);

struct Maker<'t> {
    tables: &'t Tables,
    details: &'t dyn Fn(PlaceId) -> Details,
    clock: Clock,
    builder: Builder,
    classes: HashMap<Key, Option<(Option<crate::StackId>, Operation)>>,
    places: HashMap<(u64, Option<PlaceId>), LocationId>,
}

impl Maker<'_> {
    fn sample(&mut self, sample: &Fault, period: i64) {
        let fault = (sample.address != 0).then_some(sample.kind);
        let key = (sample.ip, sample.code, sample.mode, sample.stack, fault);
        let class = match self.classes.get(&key) {
            Some(&known) => known,
            None => {
                let class = self.classify(sample);
                self.classes.insert(key, class);
                class
            }
        };
        let Some((stack, operation)) = class else { return };
        let time = match self.clock.fault.filter(|_| sample.address != 0) {
            Some(touch) => i64::try_from(touch.saturating_mul(pages(sample))).unwrap_or(i64::MAX),
            None => period,
        };
        self.builder.add(stack, vec![Label::text(OPERATION, operation.name())], &[1, time]);
    }

    /// The class of a sample, and its stack; `None` for samples outside of allocation.
    fn classify(&mut self, sample: &Fault) -> Option<(Option<crate::StackId>, Operation)> {
        let tables = self.tables;
        let places: Vec<(u64, Option<PlaceId>)> = frames(tables, sample.ip, sample.code, sample.stack).collect();
        let called: Vec<Option<String>> = places.iter().map(|(_, place)| (self.details)((*place)?).called).collect();
        let seen: Vec<Seen<'_>> = places
            .iter()
            .zip(&called)
            .map(|(&(address, place), called)| {
                let row = place.map(|place| &tables.places[place]);
                let object = place.and_then(|place| tables.object_of(place)).map_or("", |object| object.path.as_str());
                Seen {
                    name: row.and_then(|row| row.symbol).map_or("", |symbol| tables.symbols[symbol].name.as_str()),
                    object,
                    kernel: object == "[kernel]" || neap_trace::track::is_kernel(address),
                    called: called.as_deref(),
                }
            })
            .collect();
        // Samples of the clock have no address.
        let fault = (sample.address != 0).then_some(match sample.kind {
            Kind::Anonymous | Kind::ZeroPage | Kind::CopyOnWrite | Kind::Huge | Kind::Unknown => Kernel::Fresh,
            Kind::FileMinor | Kind::FileMajor | Kind::SwapIn | Kind::Refused => Kernel::File,
        });
        if fault == Some(Kernel::File) {
            return None;
        }
        let class = class(&seen, fault)?;
        let mut locations: Vec<LocationId> =
            places.iter().map(|&(address, place)| self.location(address, place)).collect();
        if let Some((name, depth)) = &class.hidden {
            let function = self.builder.function(Function { name: name.clone(), ..Function::default() });
            let frame = Frame { function, line: 0 };
            let hidden = self.builder.location(Location { address: 0, mapping: None, frames: vec![frame] });
            locations.insert(*depth, hidden);
        }
        let stack = self.builder.stack(locations.into_iter().rev());
        Some((stack, class.operation))
    }

    fn location(&mut self, address: u64, place: Option<PlaceId>) -> LocationId {
        if let Some(&known) = self.places.get(&(address, place)) {
            return known;
        }
        let tables = self.tables;
        let row = place.map(|place| &tables.places[place]);
        let mapping = row.and_then(|row| row.object).map(|object| self.mapping(object, address));
        let symbol = row.and_then(|row| row.symbol).map(|symbol| &tables.symbols[symbol]);
        let line = row.and_then(|row| row.line).map(|line| &tables.lines[line]);
        let Details { inlined, outer, .. } = place.map(self.details).unwrap_or_default();
        let line = if inlined.is_empty() { line.cloned() } else { outer };
        let mut frames: Vec<Frame> = Vec::with_capacity(inlined.len() + 1);
        for (name, line) in inlined {
            frames.push(self.frame(name, None, line));
        }
        if let Some(symbol) = symbol {
            frames.push(self.frame(canonical(&symbol.name).to_owned(), symbol.linkage_name.clone(), line));
        }
        let location = self.builder.location(Location { address, mapping, frames });
        self.places.insert((address, place), location);
        location
    }

    fn frame(&mut self, name: String, symbol: Option<String>, line: Option<Line>) -> Frame {
        let (file, line) = line.map_or((String::new(), 0), |line| (line.file, line.line));
        Frame { function: self.builder.function(Function { name, symbol, file, line: 0 }), line }
    }

    /// The mapping of an object at an address.
    fn mapping(&mut self, object: ObjectId, address: u64) -> MappingId {
        let tables = self.tables;
        let Object { path, build_id, .. } = &tables.objects[object];
        // The newest one that may hold code: a file is mapped as a whole before its segments are mapped over it.
        let (start, end, offset) = tables
            .mappings
            .iter()
            .map(|(_, row)| row)
            .filter(|row| row.object == Some(object) && (row.start..row.end).contains(&address))
            .max_by_key(|row| (row.protection.execute, row.from, row.start))
            .map_or((0, u64::MAX, 0), |row| (row.start, row.end, row.offset));
        self.builder.mapping(Mapping { start, end, offset, file: path.clone(), build_id: build_id.clone() })
    }
}

/// The pages of 4 KiB that a fault on a page of any size stands for: each part of a large page takes a quarter of the
/// time, because there is one entry of the kernel and one search for memory.
fn pages(fault: &Fault) -> u64 {
    match fault.page_shift.filter(|shift| (13..40).contains(shift)) {
        Some(shift) => (1 << (shift - 12)) / 4,
        None => 1,
    }
    .max(1)
}

/// What the kernel was doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kernel {
    /// A page fault on memory without a file, or one that looks the same.
    Fresh,
    /// Another page fault.
    File,
    /// A system call that takes memory back.
    Purging,
    /// A system call that reserves addresses.
    Mapping,
    /// Something else.
    Other,
}

/// The class of a stack, from the innermost frame outwards; `None` outside of allocation. `fault`: what the kernel did,
/// where that is known without its frames.
fn class(frames: &[Seen<'_>], fault: Option<Kernel>) -> Option<Class> {
    let users = frames.iter().position(|frame| !frame.kernel).unwrap_or(frames.len());
    let kernel = fault.or_else(|| (users > 0).then(|| kernel(&frames[..users], frames.get(users))));
    // The outermost frame of the allocator: the function that the program called, if that is known.
    let outermost = frames.iter().rposition(|frame| !frame.kernel && is_allocator(frame.object, frame.name));
    let hidden = hidden(frames, users, outermost);
    let asked = match (&hidden, outermost) {
        (Some((name, _)), _) => call(name),
        (None, Some(at)) => frames[users..=at].iter().rev().find_map(|frame| call(frame.name)),
        (None, None) => None,
    };
    let inside = hidden.is_some() || outermost.is_some();
    let innermost = frames.get(users).map_or("", |frame| frame.name);
    let operation = match kernel {
        Some(Kernel::Fresh) => match asked {
            Some(Call::Calloc) if clears(innermost) => Operation::FaultsClearing,
            Some(Call::Realloc) if copies(innermost) => Operation::FaultsCopying,
            _ => Operation::Faults,
        },
        _ if !inside => return None,
        Some(Kernel::Purging) => Operation::Purging,
        // brk and mremap also shrink the heap.
        Some(Kernel::Mapping) if matches!(asked, Some(Call::Free | Call::Trim)) => Operation::Purging,
        Some(Kernel::Mapping) => Operation::Mapping,
        // An interrupt, or an unknown call: counts as what the program was doing.
        Some(Kernel::File | Kernel::Other) | None => match asked {
            Some(Call::Calloc) if clears(innermost) => Operation::Clearing,
            Some(Call::Realloc) if copies(innermost) => Operation::Copying,
            Some(Call::Malloc) => Operation::Malloc,
            Some(Call::Calloc) => Operation::Calloc,
            Some(Call::Realloc) => Operation::Realloc,
            Some(Call::Free) => Operation::Free,
            Some(Call::Trim) => Operation::Purging,
            None => Operation::Other,
        },
    };
    Some(Class { operation, hidden })
}

/// The function that the program called, where it is not on the stack: a call instruction names a function of the
/// allocator, but the frame below it is another function that no allocator has called.
fn hidden(frames: &[Seen<'_>], users: usize, outermost: Option<usize>) -> Option<(String, usize)> {
    let at = outermost.map_or(users + 1, |at| at + 1);
    let name = frames.get(at)?.called.filter(|name| call(name).is_some())?;
    // The function that runs instead: one that is not the allocator's, or one of its own that programs do not call.
    let callee = &frames[at - 1];
    (call(callee.name).is_none()).then(|| (name.trim_end_matches("@plt").to_owned(), at))
}

/// What the kernel does, from its functions (innermost first) and the program's function that entered it.
fn kernel(frames: &[Seen<'_>], user: Option<&Seen<'_>>) -> Kernel {
    const FRESH: [&str; 13] = [
        "do_anonymous_page",
        "do_huge_pmd_anonymous_page",
        "__do_huge_pmd_anonymous_page",
        "alloc_anon_folio",
        "clear_page",
        "clear_huge_page",
        "clear_gigantic_page",
        "folio_zero_user",
        "vma_alloc_zeroed",
        "vma_alloc_anon_folio",
        "do_wp_page",
        "wp_page_copy",
        "do_huge_pmd_wp_page",
    ];
    const FAULT: [&str; 5] =
        ["asm_exc_page_fault", "exc_page_fault", "handle_mm_fault", "do_user_addr_fault", "do_page_fault"];
    const FILE: [&str; 7] =
        ["do_fault", "do_read_fault", "do_cow_fault", "filemap_", "do_swap_page", "do_shared_fault", "shmem_fault"];
    const PURGING: [&str; 4] = ["munmap", "madvise", "process_madvise", "malloc_trim"];
    const MAPPING: [&str; 5] = ["mmap", "brk", "mprotect", "mremap", "mmap2"];
    let any = |names: &[&str]| frames.iter().any(|frame| names.iter().any(|name| frame.name.starts_with(name)));
    if any(&FRESH) {
        return Kernel::Fresh;
    }
    if any(&FILE) {
        return Kernel::File;
    }
    let system_call = frames.iter().rev().find_map(|frame| {
        ["__x64_sys_", "__arm64_sys_", "__se_sys_", "__do_sys_", "ksys_"]
            .iter()
            .find_map(|prefix| frame.name.strip_prefix(prefix))
    });
    let by_name = |name: &str| {
        let name = name.trim_start_matches('_');
        match name {
            name if PURGING.contains(&name) => Some(Kernel::Purging),
            name if MAPPING.contains(&name) => Some(Kernel::Mapping),
            _ => None,
        }
    };
    if let Some(name) = system_call {
        return by_name(name).unwrap_or(Kernel::Other);
    }
    // A part of a fault that is neither: taking its locks, entering the kernel.
    if any(&FAULT) {
        return Kernel::Fresh;
    }
    // Without names of the kernel's functions, the program's function decides.
    let user = user.map_or("", |frame| frame.name);
    match by_name(user) {
        Some(what) => what,
        None if clears(user) || copies(user) => Kernel::Fresh,
        None => Kernel::Other,
    }
}

/// Whether a function clears memory.
fn clears(name: &str) -> bool {
    ["memset", "memzero", "memclr", "bzero", "clear", "zero"].iter().any(|word| name.contains(word))
}

/// Whether a function copies memory.
fn copies(name: &str) -> bool {
    ["memcpy", "memmove", "mempcpy", "copy", "move"].iter().any(|word| name.contains(word))
}

/// The library that most of the allocator's time is spent in, by its file name; `None` if no sample has one. C++'s
/// `operator new` is in a library of its own, which calls the allocator: the innermost frame counts.
pub fn allocator(profile: &Profile) -> Option<String> {
    let mut counts: HashMap<&str, i64> = HashMap::new();
    for sample in &profile.samples {
        let of_allocator =
            |frame: &crate::Shown<'_>| is_allocator(frame.object, &frame.name) && !frame.object.is_empty();
        if let Some(frame) = profile.frames(sample).find(of_allocator) {
            *counts.entry(frame.object).or_default() += sample.values[0];
        }
    }
    let (object, _) = counts.into_iter().max_by_key(|&(object, count)| (count, object))?;
    Some(neap_trace::text::file_name(object).to_owned())
}

/// The operation of a sample of such a profile.
pub fn operation(sample: &crate::Sample) -> Option<Cow<'_, str>> {
    match sample.label(OPERATION)? {
        crate::LabelValue::Text(text) => Some(Cow::Borrowed(text)),
        crate::LabelValue::Number(..) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stack, innermost first: `library!function`, `k!function` for the kernel, followed by `>name` for the function
    /// it calls.
    fn seen<'t>(stack: &[&'t str]) -> Vec<Seen<'t>> {
        stack
            .iter()
            .map(|text| {
                let (frame, called) =
                    text.split_once('>').map_or((*text, None), |(frame, called)| (frame, Some(called)));
                let (object, name) = frame.split_once('!').expect("an object");
                Seen { name, object, kernel: object == "k", called }
            })
            .collect()
    }

    fn of(stack: &[&str]) -> Option<Operation> {
        class(&seen(stack), None).map(|class| class.operation)
    }

    /// Catches time under the wrong operation, for each of them, with stacks as Linux and glibc show them.
    #[test]
    fn classes_of_stacks() {
        let main = "app!main";
        let cases: &[(&[&str], Option<Operation>)] = &[
            (&["libc.so.6!_int_malloc", "libc.so.6!malloc", main], Some(Operation::Malloc)),
            (&["libc.so.6!", "libc.so.6!calloc", main], Some(Operation::Calloc)),
            (
                &["libc.so.6!__memset_avx2_erms", "libmimalloc.so!_mi_memzero", "libmimalloc.so!calloc", main],
                Some(Operation::Clearing),
            ),
            (&["libc.so.6!__memmove_avx_unaligned_erms", "libc.so.6!realloc", main], Some(Operation::Copying)),
            (&["libc.so.6!_int_free", "app!main>free@plt"], Some(Operation::Free)),
            (&["k!clear_page_erms", "k!do_anonymous_page", "k!asm_exc_page_fault", main], Some(Operation::Faults)),
            (
                &["k!clear_page_erms", "k!asm_exc_page_fault", "libc.so.6!memset", "libc.so.6!calloc", main],
                Some(Operation::FaultsClearing),
            ),
            (&["k!filemap_map_pages", "k!do_read_fault", "k!asm_exc_page_fault", main], None),
            (
                &["k!zap_pte_range", "k!__x64_sys_munmap", "libc.so.6!__munmap", "libc.so.6!free", main],
                Some(Operation::Purging),
            ),
            (&["k!zap_pte_range", "k!__x64_sys_munmap", "libc.so.6!__munmap", main], None),
            (&["k!do_mmap", "k!__x64_sys_mmap", "libc.so.6!mmap", "libc.so.6!malloc", main], Some(Operation::Mapping)),
            (
                &["k!", "libc.so.6!madvise", "libjemalloc.so.2!pages_purge", "libjemalloc.so.2!background"],
                Some(Operation::Purging),
            ),
            (&["k!asm_sysvec_apic_timer_interrupt", "libc.so.6!malloc", main], Some(Operation::Malloc)),
            (&["libc.so.6!memset", main], None),
            (&[main], None),
            (&["libneap.so!helper"], Some(Operation::Other)),
            (&["app!compare", "libc.so.6!qsort", "app!main"], None),
        ];
        for (stack, expected) in cases {
            assert_eq!(of(stack), *expected, "{stack:?}");
        }
    }

    /// Catches a calloc that ends in a tail call of memset, and is then not on the stack; and callers that call the
    /// allocator elsewhere and count as calling it now.
    #[test]
    fn calls_that_end_in_a_jump() {
        let stack = seen(&["libc.so.6!__memset_avx2_erms", "app!zeroed>calloc@plt", "app!main>zeroed"]);
        let found = class(&stack, None).expect("an allocation");
        assert_eq!(found, Class { operation: Operation::Clearing, hidden: Some(("calloc".into(), 1)) });
        let stack = seen(&["k!clear_page_erms", "k!asm_exc_page_fault", "libc.so.6!memset", "app!zeroed>calloc"]);
        assert_eq!(class(&stack, None).expect("a fault").hidden, Some(("calloc".into(), 3)));
        // The call of malloc comes after the function that runs.
        assert_eq!(class(&seen(&["app!work", "app!main>work", "app!start>malloc"]), None), None);
        let stack = seen(&["libc.so.6!_int_malloc", "libc.so.6!malloc", "app!main>malloc@plt"]);
        assert_eq!(class(&stack, None).expect("an allocation").hidden, None);
        // Faults that were counted, because the kernel's frames are unknown.
        let stack = seen(&["libc.so.6!memset", "libc.so.6!calloc", "app!main"]);
        assert_eq!(class(&stack, Some(Kernel::Fresh)).expect("a fault").operation, Operation::FaultsClearing);
        assert_eq!(class(&seen(&["app!main"]), Some(Kernel::Fresh)).expect("a fault").operation, Operation::Faults);
    }

    /// Catches the library of C++'s `operator new` taken for the allocator that it calls.
    #[test]
    fn the_allocator_is_the_innermost() {
        let mut builder = crate::Builder::new(vec![crate::types::TIME]);
        let mut at = |address, file: &str, name: &str| {
            let mapping = crate::Mapping { start: address, end: address + 1, file: file.into(), ..Default::default() };
            let mapping = Some(builder.mapping(mapping));
            let function = builder.function(crate::Function { name: name.into(), ..Default::default() });
            builder.location(crate::Location { address, mapping, frames: vec![crate::Frame { function, line: 0 }] })
        };
        let stack = [
            at(1, "/bin/server", "main"),
            at(2, "/lib/libstdc++.so.6", "operator new(unsigned long)"),
            at(3, "/lib/libc.so.6", "malloc"),
            at(4, "/lib/libc.so.6", "_int_malloc"),
            at(5, "[kernel]", "clear_page_erms"),
        ];
        let stack = builder.stack(stack);
        builder.add(stack, Vec::new(), &[7]);
        assert_eq!(allocator(&builder.finish()).as_deref(), Some("libc.so.6"));
    }
}
