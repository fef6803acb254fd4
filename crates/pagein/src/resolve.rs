//! Finds the symbols of a trace, each once.

use std::collections::{BTreeSet, HashMap};
use std::io;

use neap_symbols::{What, demangle};
use neap_trace::track::{is_kernel, refine};
use neap_trace::{
    Access, Fault, Line, LineId, MappingId, Mode, Object, ObjectId, Place, PlaceId, Source, Subject, Symbol, SymbolId,
    Tables,
};

use super::code::CodeMappings;
use super::files::Files;
use super::progress::Steps;
use super::store::Store;

/// Limit on the names in a sentence of the footer.
const NAMED: usize = 3;

/// A trace with symbols: faults are read from the store, and their places filled in from what was found before.
pub struct Resolved {
    tables: Tables,
    store: Store,
    found: Found,
    more: HashMap<PlaceId, More>,
}

/// The place of an address, without its process where that does not matter.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Where {
    /// In an object, at the address that it states.
    Object(ObjectId, u64),
    /// In no object: the address in a process.
    Process(u32, u64),
    /// In the kernel.
    Kernel(u64),
}

/// What was found.
#[derive(Default)]
struct Found {
    code: HashMap<Where, (PlaceId, Access)>,
    data: HashMap<Where, PlaceId>,
    /// The difference between the addresses of a mapping and those that its object states.
    biases: HashMap<MappingId, Option<u64>>,
    /// The mappings that can hold code.
    code_mappings: CodeMappings,
}

/// More about a place of code.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct More {
    /// The function that the call instruction names, where it is known. If that function ended in a tail call, the
    /// stack has the called function in its place.
    pub called: Option<String>,
    /// The functions that are inlined there, innermost first: their names and lines.
    pub inlined: Vec<(String, Option<Line>)>,
    /// The line of the function that they are inlined in.
    pub outer: Option<Line>,
}

/// Demangles a linker's name.
fn people_name(name: &str) -> String {
    demangle(name).unwrap_or_else(|| name.to_owned())
}

fn own_line(line: neap_symbols::Line) -> Line {
    Line { file: line.file, line: line.line }
}

/// What to find besides symbols.
#[derive(Clone, Copy)]
struct Wanted {
    lines: bool,
    more: bool,
}

/// Finds symbols.
struct Resolver {
    files: Files,
    tables: Tables,
    found: Found,
    symbols: HashMap<(ObjectId, u64), SymbolId>,
    lines: HashMap<Line, LineId>,
    kernel: Option<ObjectId>,
    jit: Option<ObjectId>,
    with_lines: bool,
    /// More about places of code; `None` where it is not requested.
    more: Option<HashMap<PlaceId, More>>,
    /// Paths of objects with code that ran and could not be read.
    unread: BTreeSet<String>,
}

impl Resolved {
    /// Finds the symbols of all faults; source lines only `with_lines`, because debug information takes time to read.
    pub fn new(
        tables: Tables,
        stack_mappings: &[Option<MappingId>],
        store: Store,
        files: Files,
        with_lines: bool,
    ) -> io::Result<Self> {
        Self::find(tables, stack_mappings, store, files, Wanted { lines: with_lines, more: false })
    }

    /// The same, with more about each place of code, see [`more`](Self::more).
    pub fn with_more(
        tables: Tables,
        stack_mappings: &[Option<MappingId>],
        store: Store,
        files: Files,
    ) -> io::Result<Self> {
        Self::find(tables, stack_mappings, store, files, Wanted { lines: true, more: true })
    }

    /// More about a place of code.
    pub fn more(&self, place: PlaceId) -> Option<&More> {
        self.more.get(&place)
    }

    fn find(
        tables: Tables,
        stack_mappings: &[Option<MappingId>],
        store: Store,
        files: Files,
        wanted: Wanted,
    ) -> io::Result<Self> {
        let mut resolver = Resolver {
            files,
            found: Found { code_mappings: CodeMappings::new(&tables), ..Found::default() },
            tables,
            symbols: HashMap::new(),
            lines: HashMap::new(),
            kernel: None,
            jit: None,
            with_lines: wanted.lines,
            more: wanted.more.then(HashMap::new),
            unread: BTreeSet::new(),
        };
        let mut steps = Steps::new("finding symbols", resolver.tables.summary.faults);
        store.visit(&mut |fault| {
            resolver.fault(fault);
            steps.step();
            Ok(())
        })?;
        resolver.stacks(stack_mappings);
        resolver.tell();
        Ok(Self { tables: resolver.tables, store, found: resolver.found, more: resolver.more.unwrap_or_default() })
    }
}

impl Source for Resolved {
    fn tables(&self) -> &Tables {
        &self.tables
    }

    fn visit(&self, visitor: &mut dyn FnMut(&Fault) -> io::Result<()>) -> io::Result<()> {
        self.store.visit(&mut |fault| {
            let mut fault = *fault;
            fault.block = fault.block.filter(|&block| self.tables.blocks[block].size != 0);
            if let Some(&(place, access)) =
                self.found.code_of(&self.tables, &fault).and_then(|at| self.found.code.get(&at))
            {
                fault.code = Some(place);
                let mapping = fault.mapping.map(|id| &self.tables.mappings[id]);
                refine(&mut fault, access, mapping);
            }
            if fault.subject == Subject::Data {
                let at = fault.mapping.map(|id| self.found.at(&self.tables, id, fault.address));
                fault.data = at.and_then(|at| self.found.data.get(&at)).copied();
            }
            visitor(&fault)
        })
    }
}

impl Found {
    /// The place of the instruction of a fault.
    fn code_of(&self, tables: &Tables, fault: &Fault) -> Option<Where> {
        if fault.mode == Mode::Kernel {
            return Some(Where::Kernel(fault.ip));
        }
        let thread = tables.threads.get(fault.thread)?;
        match self.code_mappings.find(tables, thread.process, fault.ip, fault.time) {
            Some(mapping) => Some(self.at(tables, mapping, fault.ip)),
            None => Some(Where::Process(tables.processes[thread.process].pid, fault.ip)),
        }
    }

    /// The place of an address of a mapping.
    fn at(&self, tables: &Tables, mapping: MappingId, address: u64) -> Where {
        let row = &tables.mappings[mapping];
        match (row.object, self.biases.get(&mapping).copied().flatten()) {
            (Some(object), Some(bias)) => Where::Object(object, address.wrapping_sub(bias)),
            (Some(object), None) => Where::Object(object, address.wrapping_sub(row.start).wrapping_add(row.offset)),
            (None, _) => Where::Process(tables.processes[row.process].pid, address),
        }
    }
}

impl Resolver {
    fn fault(&mut self, fault: &Fault) {
        if fault.mode == Mode::User {
            let process = self.tables.threads[fault.thread].process;
            let mapping = self.found.code_mappings.find(&self.tables, process, fault.ip, fault.time);
            mapping.into_iter().for_each(|mapping| self.bias(mapping));
        }
        if let Some(at) = self.found.code_of(&self.tables, fault)
            && !self.found.code.contains_key(&at)
        {
            let place = self.place(at, What::Code);
            let access = self.access(at);
            let id = self.tables.places.push(place);
            self.found.code.insert(at, (id, access));
        }
        let Some(mapping) = fault.mapping.filter(|_| fault.subject == Subject::Data) else { return };
        if self.tables.mappings[mapping].object.is_none() {
            return;
        }
        self.bias(mapping);
        let at = self.found.at(&self.tables, mapping, fault.address);
        if !self.found.data.contains_key(&at) {
            let place = self.place(at, What::Data);
            if place.symbol.is_some() {
                let id = self.tables.places.push(place);
                self.found.data.insert(at, id);
            }
        }
    }

    fn bias(&mut self, mapping: MappingId) {
        if self.found.biases.contains_key(&mapping) {
            return;
        }
        let row = &self.tables.mappings[mapping];
        let bias = row.object.and_then(|object| {
            let opened = self.files.object(object, &self.tables.objects[object])?;
            let protection = row.protection;
            let stated = opened.image.address(row.offset, protection.write, protection.execute)?;
            Some(row.start.wrapping_sub(stated))
        });
        self.found.biases.insert(mapping, bias);
    }

    /// The place at an address.
    fn place(&mut self, at: Where, what: What) -> Place {
        let (object, address) = match at {
            Where::Object(object, address) => (object, address),
            Where::Process(pid, address) => {
                let known = self.files.jit(pid).find(address).map(|(name, start, size)| (name.to_owned(), start, size));
                return self.listed(address, known, "[jit]");
            }
            Where::Kernel(address) => {
                let known = self.files.kernel().find(address).map(|(name, start, size)| (name.to_owned(), start, size));
                return self.listed(address, known, "[kernel]");
            }
        };
        let mut place = Place { address, object: Some(object), symbol: None, offset: 0, line: None };
        let Some(opened) = self.files.object(object, &self.tables.objects[object]) else {
            let row = &self.tables.objects[object];
            if what == What::Code && self.files.is_unread(row) {
                self.unread.insert(row.path.clone());
            }
            return place;
        };
        if self.tables.objects[object].build_id.is_none() {
            self.tables.objects[object].build_id = opened.image.build_id().map(<[u8]>::to_vec);
        }
        if let Some(symbol) = opened.image.find(address, what) {
            place.offset = address - symbol.address;
            place.symbol = Some(*self.symbols.entry((object, symbol.address)).or_insert_with(|| {
                let demangled = demangle(symbol.name);
                let linkage_name = demangled.is_some().then(|| symbol.name.to_owned());
                let name = demangled.unwrap_or_else(|| symbol.name.to_owned());
                self.tables.symbols.push(Symbol {
                    linkage_name,
                    name: if symbol.stub { name + "@plt" } else { name },
                    object: Some(object),
                    address: symbol.address,
                    size: symbol.size,
                })
            }));
        }
        if self.with_lines
            && what == What::Code
            && let Some(line) = opened.line(address)
        {
            let line = Line { file: line.file, line: line.line };
            let tables = &mut self.tables;
            place.line = Some(*self.lines.entry(line).or_insert_with_key(|line| tables.lines.push(line.clone())));
        }
        place
    }

    /// A place in code that has a listing instead of a file.
    fn listed(&mut self, address: u64, known: Option<(String, u64, u64)>, object: &str) -> Place {
        let cached = if object == "[kernel]" { &mut self.kernel } else { &mut self.jit };
        let wanted = known.is_some() || object == "[kernel]";
        let objects = &mut self.tables.objects;
        let row = || Object::new(object);
        let object = wanted.then(|| *cached.get_or_insert_with(|| objects.push(row())));
        let Some((name, start, size)) = known else {
            return Place { address, object, symbol: None, offset: 0, line: None };
        };
        let symbol = match object.and_then(|object| self.symbols.get(&(object, start))) {
            Some(&id) if self.tables.symbols[id].name == name => id,
            _ => self.tables.symbols.push(Symbol { name, linkage_name: None, object, address: start, size }),
        };
        if let Some(object) = object {
            self.symbols.insert((object, start), symbol);
        }
        Place { address, object, symbol: Some(symbol), offset: address - start, line: None }
    }

    /// What the instruction at a place does to memory.
    fn access(&mut self, at: Where) -> Access {
        let Where::Object(object, address) = at else { return Access::Unknown };
        let access = self
            .files
            .object(object, &self.tables.objects[object])
            .and_then(|opened| neap_symbols::access(opened.image.bytes(address)?, opened.image.bits()?));
        match access {
            Some(neap_symbols::Access::Read) => Access::Read,
            Some(neap_symbols::Access::Write) => Access::Write,
            None => Access::Unknown,
        }
    }

    /// Resolves the tree of callers.
    fn stacks(&mut self, mappings: &[Option<MappingId>]) {
        let addresses: Vec<u64> = self.tables.stacks.iter().map(|(_, node)| node.address).collect();
        let mut places = Vec::with_capacity(addresses.len());
        for (&address, &mapping) in addresses.iter().zip(mappings) {
            let at = match mapping {
                Some(mapping) => {
                    self.bias(mapping);
                    Some(self.found.at(&self.tables, mapping, address))
                }
                None => is_kernel(address).then_some(Where::Kernel(address)),
            };
            let place = at.map(|at| match self.found.code.get(&at) {
                Some(&(place, _)) => place,
                None => {
                    let place = self.place(at, What::Code);
                    let id = self.tables.places.push(place);
                    self.found.code.insert(at, (id, Access::Unknown));
                    id
                }
            });
            places.push(place);
        }
        for ((_, node), place) in self.tables.stacks.iter_mut().zip(places) {
            node.place = place;
        }
        self.more();
    }

    /// Finds more about places of code.
    fn more(&mut self) {
        let Some(mut all) = self.more.take() else { return };
        let stacks = &self.tables.stacks;
        let callers: BTreeSet<PlaceId> =
            stacks.iter().filter_map(|(_, node)| stacks.get(node.parent?)?.place).collect();
        for (id, place) in self.tables.places.iter() {
            let Place { address, object: Some(object), .. } = *place else { continue };
            let Some(opened) = self.files.object(object, &self.tables.objects[object]) else { continue };
            // The address of a caller is that of the call's last byte.
            let called = callers.contains(&id).then(|| opened.image.called(address.wrapping_add(1))).flatten();
            let called = called.map(people_name);
            let mut frames = opened.functions(address);
            // The outermost frame is the symbol's function.
            let outer = frames.pop().and_then(|(_, line)| line).map(own_line);
            let named = frames.into_iter().filter_map(|(name, line)| Some((name?, line)));
            let inlined: Vec<(String, Option<Line>)> =
                named.map(|(name, line)| (people_name(&name), line.map(own_line))).collect();
            if called.is_some() || !inlined.is_empty() {
                all.insert(id, More { called, inlined, outer });
            }
        }
        self.more = Some(all);
    }

    /// Reports what has no symbols, and why.
    fn tell(&mut self) {
        let missing = &mut self.tables.summary.missing;
        if !self.unread.is_empty() {
            let names = named(self.unread.iter().map(String::as_str));
            missing.push(format!("symbols of {names}: the files that the program had there cannot be read here"));
        }
        let maps: Vec<_> = self.files.disbelieved().map(|path| path.to_string_lossy()).collect();
        if !maps.is_empty() {
            let names = named(maps.iter().map(|name| &**name));
            missing.push(format!("names of compiled code in {names}: its owner is neither you, root nor the program"));
        }
    }
}

/// The first few of some names, and how many others there are.
fn named<'n>(names: impl ExactSizeIterator<Item = &'n str>) -> String {
    let more = names.len().saturating_sub(NAMED);
    let mut text = names.take(NAMED).collect::<Vec<_>>().join(", ");
    if more > 0 {
        text.push_str(&format!(" and {more} more"));
    }
    text
}
