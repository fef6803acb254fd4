//! From snapshots to a profile: what is live, what was allocated, and what has grown since an earlier snapshot.

use crate::ask::{Asked, Look};
use crate::names::{Module, Name, Names};
use crate::pinned::{Attributed, Tally};
use crate::snapshot::Snapshot;
use neap_profile::{
    Builder, Frame, Function, Label, Location, LocationId, Mapping, MappingId, Period, Profile, Unit, ValueType, types,
};
use neap_samples::{MODULE_SHIFT, Mapped, PARTS, Stack, View, Word};
use std::collections::HashMap;

/// Further facts about the process.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    /// The process, while it runs.
    pub process: Option<u32>,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Whether samples began in the middle of the program, so that earlier blocks are missing.
    pub late: bool,
}

impl Scope {
    /// From a process that was asked for samples.
    pub fn of(asked: &Asked) -> Self {
        let pid = asked.pid();
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let command = command.split(|&byte| byte == 0).filter(|word| !word.is_empty());
        let command = command.map(|word| String::from_utf8_lossy(word).into_owned()).collect();
        Scope { process: Some(pid), command, late: !asked.kept_before() }
    }
}

/// A profile of a snapshot, with the value types of pprof's heap profiles: `alloc_objects`, `alloc_space`,
/// `inuse_objects`, `inuse_space`. With an `earlier` snapshot of the same process also `growth_objects` and
/// `growth_space`. Each stack with live blocks has the label `oldest`: the age of its oldest one. No snapshot: no block
/// was sampled.
pub fn profile(snapshot: Option<&Snapshot>, earlier: Option<&Snapshot>, scope: &Scope) -> Profile {
    made(snapshot, earlier, scope, None)
}

/// The same from a look, with `pinned_space` too: the bytes of resident OS pages that the live blocks of each stack
/// keep from going back, without these blocks. Memory that no block keeps, and memory that the samples do not explain,
/// are sites of their own, so the sum is what is resident and not live ([`crate::Tally`]).
pub fn pinned_profile(look: &Look, earlier: Option<&Snapshot>, scope: &Scope) -> Profile {
    made(look.snapshot.as_ref(), earlier, scope, Some(&look.tally))
}

fn made(snapshot: Option<&Snapshot>, earlier: Option<&Snapshot>, scope: &Scope, tally: Option<&Tally>) -> Profile {
    let mut of = vec![types::ALLOC_OBJECTS, types::ALLOC_SPACE, types::INUSE_OBJECTS, types::INUSE_SPACE];
    if earlier.is_some() {
        of.extend([types::GROWTH_OBJECTS, types::GROWTH_SPACE]);
    }
    if tally.is_some() {
        of.push(types::PINNED_SPACE);
    }
    let attributed = tally.map(|tally| tally.attributed(scope.late));
    let mut builder = Builder::new(of);
    let head = builder.profile_mut();
    head.allocator = Some("neap".into());
    head.pid = scope.process.unwrap_or(0);
    head.command = scope.command.clone();
    head.shown = 3;
    match snapshot {
        Some(snapshot) => add_stacks(&mut builder, snapshot, earlier, scope, attributed.as_ref()),
        None => head.notes.push("No block was sampled in this time.".into()),
    }
    if let Some((tally, attributed)) = tally.zip(attributed) {
        add_tally(&mut builder, tally, &attributed, scope);
    }
    builder.finish()
}

/// Adds the stacks of a snapshot.
fn add_stacks(
    builder: &mut Builder,
    snapshot: &Snapshot,
    earlier: Option<&Snapshot>,
    scope: &Scope,
    attributed: Option<&Attributed>,
) {
    let view = snapshot.view();
    describe(builder.profile_mut(), &view, snapshot, scope);
    let before = earlier.map(|earlier| live_by_stack(&earlier.view()));
    let oldest = oldest_by_stack(&view);
    let mut places = Places::new(&view, snapshot.process(), scope);
    for stack in view.stacks() {
        let locations: Vec<LocationId> = places.of_stack(builder, stack.frames);
        let id = builder.stack(locations.into_iter().rev());
        let (objects, bytes) = live(&stack);
        let mut values = vec![count(stack.objects), number(stack.bytes), count(objects), number(bytes)];
        if let Some(before) = &before {
            let (then_objects, then_bytes) = before.get(&stack.number).copied().unwrap_or((0, 0));
            values.extend([count(objects) - count(then_objects), number(bytes) - number(then_bytes)]);
        }
        if let Some(attributed) = attributed {
            values.push(number(attributed.stacks.get(&stack.number).copied().unwrap_or(0)));
        }
        let end = if snapshot.time == 0 { view.header(Word::Last) } else { snapshot.time };
        let age = oldest.get(&stack.number).map(|&time| number(end.saturating_sub(time)));
        let labels = age.map(|age| Label::number("oldest", age, Unit::Nanoseconds)).into_iter().collect();
        builder.add(id, labels, &values);
    }
    if let Some(path) = places.names.disbelieved() {
        let path = path.display();
        let note =
            format!("Names of compiled code are missing: the owner of {path} is neither you, root nor the program.");
        builder.profile_mut().notes.push(note);
    }
}

/// Adds what no stack keeps, as sites with names of their own, and the notes on it.
fn add_tally(builder: &mut Builder, tally: &Tally, attributed: &Attributed, scope: &Scope) {
    let columns = builder.profile_mut().types.len();
    let unknown =
        if scope.late { "[blocks from before the profile, or without a sample]" } else { "[blocks without a sample]" };
    for (name, bytes) in [
        (unknown, attributed.unknown),
        ("[free memory that waits to go back]", tally.waiting),
        ("[caches of threads]", tally.cached),
        ("[beside sampled blocks]", tally.samples),
        ("[records of the allocator]", tally.records),
    ] {
        let function = builder.function(Function { name: name.to_owned(), ..Function::default() });
        let frames = vec![Frame { function, line: 0 }];
        let location = builder.location(Location { address: 0, mapping: None, frames });
        let stack = builder.stack([location]);
        let mut values = vec![0; columns];
        values[columns - 1] = number(bytes);
        builder.add(stack, Vec::new(), &values);
    }
    let head = builder.profile_mut();
    head.shown = columns - 1;
    head.whole = Some(number(tally.resident));
    let text = |bytes: u64| neap_profile::amount(number(bytes), &Unit::Bytes);
    let (resident, live) = (text(tally.resident), text(tally.live));
    head.notes.push(format!("{resident} of the heap are resident, {live} of them live."));
    if tally.untouched > 0 {
        let untouched = text(tally.untouched);
        head.notes.push(format!("{untouched} more of live blocks are not resident: not touched yet, or swapped out."));
    }
    if tally.moved.0 > 0 {
        let (count, bytes) = (tally.moved.0, text(tally.moved.1));
        head.notes
            .push(format!("{count} sampled blocks have OS pages of their own meanwhile: {bytes}, as live memory."));
    }
}

/// Sets what the profile describes, and what it does not cover.
fn describe(head: &mut Profile, view: &View<'_>, snapshot: &Snapshot, scope: &Scope) {
    head.pid = scope.process.unwrap_or(snapshot.process());
    if head.command.is_empty() {
        head.command.push(String::from_utf8_lossy(view.program().bytes()).into_owned());
    }
    head.time = view.header(Word::Date);
    let end = if snapshot.time == 0 { view.header(Word::Last) } else { snapshot.time };
    head.duration = end.saturating_sub(view.header(Word::Started));
    let interval = view.header(Word::Interval);
    head.period = Some(Period { of: ValueType::new("space", Unit::Bytes), value: number(interval) });
    head.notes.push(if interval <= 1 {
        "Each block is counted.".into()
    } else {
        format!(
            "One block per {} is sampled on average; each stands for those around it.",
            neap_profile::amount(number(interval), &Unit::Bytes)
        )
    });
    if scope.late {
        head.notes.push("Blocks that were allocated before it began are not in it.".into());
    }
    for (word, text) in [
        (Word::LostStacks, "samples are without their stack, as there was no room for more stacks"),
        (Word::LostLive, "samples count as freed, as there was no room for more live ones"),
        (Word::Lost, "samples are missing, as there was no file for them yet"),
    ] {
        match view.header(word) {
            0 => {}
            lost => head.notes.push(format!("{lost} {text}.")),
        }
    }
}

/// The live objects (in parts) and bytes of a stack. Its counts were read one after the other while they changed.
fn live(stack: &Stack<'_>) -> (u64, u64) {
    (stack.objects.saturating_sub(stack.freed_objects), stack.bytes.saturating_sub(stack.freed_bytes))
}

fn live_by_stack(view: &View<'_>) -> HashMap<u32, (u64, u64)> {
    view.stacks().map(|stack| (stack.number, live(&stack))).collect()
}

/// When the oldest live block of each stack was allocated.
fn oldest_by_stack(view: &View<'_>) -> HashMap<u32, u64> {
    let mut oldest = HashMap::new();
    for block in view.live() {
        oldest.entry(block.stack).and_modify(|time: &mut u64| *time = block.time.min(*time)).or_insert(block.time);
    }
    oldest
}

fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Objects from their parts, rounded.
fn count(parts: u64) -> i64 {
    number((parts.saturating_add(PARTS / 2)) / PARTS)
}

/// Locations of return addresses, each found once.
struct Places {
    modules: HashMap<u16, Mapped>,
    program: String,
    names: Names,
    known: HashMap<u64, (LocationId, bool)>,
}

impl Places {
    fn new(view: &View<'_>, own_number: u32, scope: &Scope) -> Self {
        Places {
            modules: view.modules().map(|module| (module.number, module)).collect(),
            program: String::from_utf8_lossy(view.program().bytes()).into_owned(),
            names: Names::new(scope.process, own_number),
            known: HashMap::new(),
        }
    }

    /// The locations of a stack, innermost first, from outside of the allocator on.
    fn of_stack(&mut self, builder: &mut Builder, frames: &[u64]) -> Vec<LocationId> {
        let all: Vec<(LocationId, bool)> = frames.iter().map(|&frame| self.of_frame(builder, frame)).collect();
        let own = all.iter().take_while(|(_, is_own)| *is_own).count();
        all[if own == all.len() { 0 } else { own }..].iter().map(|(id, _)| *id).collect()
    }

    fn of_frame(&mut self, builder: &mut Builder, frame: u64) -> (LocationId, bool) {
        if let Some(known) = self.known.get(&frame) {
            return *known;
        }
        // A return address may belong to the next function.
        let address = (frame & ((1 << MODULE_SHIFT) - 1)).saturating_sub(1);
        let number = (frame >> MODULE_SHIFT).checked_sub(1).and_then(|number| u16::try_from(number).ok());
        let module = number.and_then(|number| self.modules.get(&number).copied());
        let (mut mapping, mut names) = (None, Vec::new());
        if let Some(module) = module {
            let path = String::from_utf8_lossy(module.path.bytes()).into_owned();
            let path = if path.is_empty() { self.program.clone() } else { path };
            let known = Module { path: &path, build: module.build.bytes(), at: address };
            names = self.names.find(known, address.wrapping_sub(module.bias));
            mapping = Some(mapping_of(builder, &module, self.names.path(known)));
        } else {
            names.extend(self.names.compiled(address));
        }
        let is_own = names.last().is_some_and(is_allocators);
        let frames = names.into_iter().map(|name| frame_of(builder, name)).collect();
        let id = builder.location(Location { address, mapping, frames });
        self.known.insert(frame, (id, is_own));
        (id, is_own)
    }
}

fn mapping_of(builder: &mut Builder, module: &Mapped, file: String) -> MappingId {
    let build_id = Some(module.build.bytes().to_vec()).filter(|id| !id.is_empty());
    let [start, end, offset] = module.code;
    let (start, end) = if start == 0 { (module.start, module.end) } else { (start, end) };
    builder.mapping(Mapping { start, end, offset, file, build_id })
}

fn frame_of(builder: &mut Builder, name: Name) -> Frame {
    let Name { name, symbol, file, line } = name;
    Frame { function: builder.function(Function { name, symbol, file, line: 0 }), line }
}

/// Whether a function is the allocator's: those of `libneap.so` are not on stacks, but those of a program with neap
/// inside are, and so are the functions through which Rust's library calls it.
fn is_allocators(name: &Name) -> bool {
    const PARTS: [&str; 8] =
        ["neap::", "neap_sys::", "neap_core::", "<neap::", "<neap_", "__rust_", "__rustc::__rust_", "__rustc["];
    PARTS.iter().any(|part| name.name.starts_with(part))
}
