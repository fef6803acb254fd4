//! What the faults of a trace refer to.

use std::fmt::{self, Write};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::runtime;
use crate::text;
use crate::{BlockId, Fault};
use crate::{LineId, MappingId, ObjectId, PlaceId, ProcessId, StackId, Summary, SymbolId, Table, ThreadId};

/// Everything of a trace but the faults.
///
/// All strings are UTF-8; other bytes of paths, names and arguments are replaced. All times are nanoseconds since the
/// first fault, as in [`Fault`]; earlier ones are 0.
#[derive(Clone, Debug, Default)]
pub struct Tables {
    /// Images of processes, in the order in which they were seen.
    pub processes: Table<ProcessId, Process>,
    /// Threads.
    pub threads: Table<ThreadId, Thread>,
    /// Mappings.
    pub mappings: Table<MappingId, Mapping>,
    /// Objects, each file once (twice if its path was replaced meanwhile, or names another file for another process).
    pub objects: Table<ObjectId, Object>,
    /// Symbols, each once.
    pub symbols: Table<SymbolId, Symbol>,
    /// Lines of source, each once.
    pub lines: Table<LineId, Line>,
    /// Resolved addresses, each once.
    pub places: Table<PlaceId, Place>,
    /// The tree of callers.
    pub stacks: Table<StackId, StackNode>,
    /// Blocks of neap's allocator.
    pub blocks: Table<BlockId, Block>,
    /// How times were measured.
    pub clock: Clock,
    /// The footer.
    pub summary: Summary,
}

impl Tables {
    /// The process that a fault happened to.
    pub fn process_of(&self, fault: &Fault) -> &Process {
        &self.processes[self.threads[fault.thread].process]
    }

    /// The object of a place, if it lies in one.
    pub fn object_of(&self, place: PlaceId) -> Option<&Object> {
        self.places[place].object.map(|id| &self.objects[id])
    }

    /// A place for people: `symbol+0x12`, or its address in the object where no symbol is known.
    pub fn describe_place(&self, place: PlaceId) -> String {
        let place = &self.places[place];
        match place.symbol {
            Some(symbol) if place.offset == 0 => self.symbols[symbol].name.clone(),
            Some(symbol) => format!("{}+{:#x}", self.symbols[symbol].name, place.offset),
            None => format!("{:#x}", place.address),
        }
    }

    /// The allocation site of a block, if it is known: the first function outside of the C, C++ and Rust libraries,
    /// otherwise the first of all.
    pub fn site(&self, block: BlockId) -> Option<&StackNode> {
        let stack = self.blocks.get(block)?.site?;
        let own = self.frames(stack).find(|node| !node.place.is_some_and(|place| self.is_runtime(place)));
        own.or_else(|| self.frames(stack).next())
    }

    /// [`site`](Self::site) for people.
    pub fn describe_site(&self, block: BlockId) -> Option<String> {
        self.site(block).map(|node| self.describe_frame(node))
    }

    /// A frame for people: `symbol+0x12`, or `file+0x1234` without a symbol.
    pub fn describe_frame(&self, node: &StackNode) -> String {
        let Some(place) = node.place else { return format!("{:#x}", node.address) };
        let text = self.describe_place(place);
        match self.object_of(place).filter(|_| self.places[place].symbol.is_none()) {
            Some(object) => format!("{}+{text}", text::file_name(&object.path)),
            None => text,
        }
    }

    /// Whether a place belongs to a language's libraries, which allocate for others.
    fn is_runtime(&self, place: PlaceId) -> bool {
        let object = self.object_of(place).map_or("", |object| object.path.as_str());
        runtime::is_runtime(object, self.places[place].symbol.map(|symbol| self.symbols[symbol].name.as_str()))
    }

    /// The frames of a stack, from the faulting instruction's function to the outermost caller.
    pub fn frames(&self, stack: StackId) -> impl Iterator<Item = &StackNode> {
        std::iter::successors(Some(&self.stacks[stack]), |node| node.parent.map(|parent| &self.stacks[parent]))
    }
}

/// One image of a process: fork makes one, exec makes another under the same pid.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its number in the pid namespace of neap.
    pub pid: u32,
    /// How many programs the process executed before this one while it was traced.
    pub image: u32,
    /// The process that forked it, or its image before exec; `None` for the program itself, and where it is unknown.
    pub parent: Option<ProcessId>,
    /// The name that the kernel has for it (its last one).
    pub name: String,
    /// The program, if it is known.
    pub path: Option<String>,
    /// When it began.
    pub start: u64,
    /// When it ended or executed another program; none if it outlived the trace.
    pub end: Option<u64>,
}

/// A thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thread {
    /// Its number; the process's own for the first thread.
    pub tid: u32,
    /// The image that it ran.
    pub process: ProcessId,
    /// The name that the kernel has for it (its last one).
    pub name: String,
    /// When it began.
    pub start: u64,
    /// When it ended; none if it outlived the trace.
    pub end: Option<u64>,
}

/// A range of addresses, for as long as it had the same meaning. Memory that is unmapped and mapped again at one place,
/// with the same meaning, is one row, which spans the addresses of all of them; for code only if no other code was
/// there in between.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mapping {
    /// The process that the addresses belong to.
    pub process: ProcessId,
    /// The first address.
    #[serde(with = "text::hex")]
    pub start: u64,
    /// The address behind the last one.
    #[serde(with = "text::hex")]
    pub end: u64,
    /// The position in the file of the first address; 0 for what has no file.
    #[serde(with = "text::hex")]
    pub offset: u64,
    /// What is mapped.
    pub kind: MappingKind,
    /// The file, or `[vdso]`; none for anonymous memory.
    pub object: Option<ObjectId>,
    /// The permitted kinds of access.
    pub protection: Protection,
    /// Whether other processes see writes (MAP_SHARED).
    pub shared: bool,
    /// When it was first made.
    pub from: u64,
    /// When it was unmapped or replaced; `None` where it stayed, or where that is unknown.
    pub until: Option<u64>,
}

impl Mapping {
    /// A few words for people: the path, `[heap]`, `[anon]`, ...
    pub fn describe(&self, tables: &Tables) -> String {
        match (&self.kind, self.object) {
            (MappingKind::Named(name), _) => name.clone(),
            (_, Some(object)) => tables.objects[object].path.clone(),
            (kind, None) => format!("[{}]", kind.name()),
        }
    }
}

/// What a mapping holds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MappingKind {
    /// A file.
    File,
    /// Memory without a file and without a name.
    #[serde(rename = "anon")]
    Anonymous,
    /// The area that brk moves.
    Heap,
    /// The stack of a process's first thread.
    Stack,
    /// Anything else that has a name in `/proc/PID/maps`: `[vdso]`, `[anon:...]`, `/dev/shm/...`, `/memfd:...`.
    Named(String),
}

impl MappingKind {
    /// One word, lower case; for [`Named`](Self::Named), the name.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Anonymous => "anon",
            Self::Heap => "heap",
            Self::Stack => "stack",
            Self::Named(_) => "named",
        }
    }
}

/// What the program may do in a mapping. Prints as `rw-`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Protection {
    /// Read.
    pub read: bool,
    /// Write.
    pub write: bool,
    /// Execute.
    pub execute: bool,
}

impl fmt::Display for Protection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (allowed, letter) in [(self.read, 'r'), (self.write, 'w'), (self.execute, 'x')] {
            f.write_char(if allowed { letter } else { '-' })?;
        }
        Ok(())
    }
}

/// As it prints.
impl Serialize for Protection {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Protection {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let letters = String::deserialize(deserializer)?;
        let allowed = |letter| letters.contains(letter);
        Ok(Self { read: allowed('r'), write: allowed('w'), execute: allowed('x') })
    }
}

/// A file with symbols, or what stands for one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Object {
    /// Its path as the traced process saw it, or a name in brackets: `[vdso]`, `[vdso32]` (that of 32-bit programs),
    /// `[kernel]`, `[jit]`.
    pub path: String,
    /// The identity of the file, where the kernel reports it: its path may name another file now, or for neap. Not
    /// written.
    #[serde(skip)]
    pub file: Option<FileId>,
    /// Its build id, if it has one and was read.
    #[serde(default, with = "text::hex_bytes")]
    pub build_id: Option<Vec<u8>>,
}

impl Object {
    /// An object of which only the path is known.
    pub fn new(path: impl Into<String>) -> Self {
        Self { path: path.into(), file: None, build_id: None }
    }
}

/// A file, as the kernel reports it for a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileId {
    /// The major number of its device.
    pub major: u32,
    /// The minor number of its device.
    pub minor: u32,
    /// Its inode.
    pub inode: u64,
}

/// A function or a variable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Symbol {
    /// For people: demangled.
    pub name: String,
    /// The linker's name; `None` where it is the same.
    pub linkage_name: Option<String>,
    /// Where it is defined.
    pub object: Option<ObjectId>,
    /// Its address as the object states it.
    #[serde(with = "text::hex")]
    pub address: u64,
    /// Its size in bytes; 0 where it is not known.
    pub size: u64,
}

/// A line of source.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Line {
    /// The file, as the debug information names it.
    pub file: String,
    /// The line, from 1; 0 where only the file is known.
    pub line: u32,
}

/// An address of a process, resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Place {
    /// The address as the object states it (independent of where it was loaded), or the absolute address without an
    /// object.
    #[serde(with = "text::hex")]
    pub address: u64,
    /// The object that it lies in.
    pub object: Option<ObjectId>,
    /// The symbol that it lies in.
    pub symbol: Option<SymbolId>,
    /// The distance from the symbol's address; 0 without a symbol.
    pub offset: u64,
    /// The line of source, where there is debug information and it was requested.
    pub line: Option<LineId>,
}

/// A node in the tree of callers: one frame, and the path to the outermost frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct StackNode {
    /// The caller; none at the outermost frame that is known.
    pub parent: Option<StackId>,
    /// The address: that of the faulting instruction in the innermost frame, otherwise that of the call.
    #[serde(with = "text::hex")]
    pub address: u64,
    /// The same, resolved.
    pub place: Option<PlaceId>,
}

/// A block of neap's allocator, as it was when the trace was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    /// Its address.
    #[serde(with = "text::hex")]
    pub address: u64,
    /// Its usable size; for a slab, the size of one of its blocks; 0 where there is no block after all.
    pub size: u64,
    /// Where it was allocated, if that was recorded: the call of malloc, and its callers.
    pub site: Option<StackId>,
}

/// How times were measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clock {
    /// How the kernel turns cycles of the time-stamp counter into nanoseconds: `ns = cycles * mult >> shift`. `None`
    /// where it does not publish this, or does not use that counter.
    pub tsc: Option<(u32, u16)>,
    /// Whether that conversion was measured, by reading both clocks at the start and the end of the trace, because the
    /// kernel does not publish its own (as in virtual machines).
    pub measured: bool,
    /// The first fault's time on the kernel's clock for perf events (CLOCK_MONOTONIC where a BPF program reports the
    /// times), in nanoseconds.
    pub origin: u64,
    /// The wall clock (nanoseconds since 1970) at the first fault, or a few milliseconds before; 0 where it is not
    /// known.
    pub wall: u64,
}

impl Clock {
    /// Cycles of the time-stamp counter in `ns` nanoseconds, with the kernel's own conversion.
    pub fn cycles(&self, ns: u64) -> Option<u64> {
        let (mult, shift) = self.tsc.filter(|&(mult, shift)| mult != 0 && shift < 64)?;
        u64::try_from((u128::from(ns) << shift) / u128::from(mult)).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a conversion of times that is upside down, overflows, or divides by zero.
    #[test]
    fn cycles_are_the_inverse_of_the_kernels_conversion() {
        // 3 GHz: ns = cycles / 3.
        let clock = Clock { tsc: Some((0x5555_5555, 32)), ..Clock::default() };
        assert_eq!(clock.cycles(1_000_000), Some(3_000_000));
        assert_eq!(clock.cycles(0), Some(0));
        assert!(clock.cycles(u64::MAX / 4).is_some());
        assert_eq!(clock.cycles(u64::MAX), None);
        assert_eq!(Clock::default().cycles(5), None);
        assert_eq!(Clock { tsc: Some((0, 10)), ..Clock::default() }.cycles(5), None);
        assert_eq!(Clock { tsc: Some((1, 64)), ..Clock::default() }.cycles(5), None);
    }

    /// Catches a site inside a language's own library, and functions of the program that look like one.
    #[test]
    fn sites_are_the_programs_own() {
        let mut tables = Tables::default();
        let own = tables.objects.push(Object::new("/bin/server"));
        let libc = tables.objects.push(Object::new("/usr/lib/libc.so.6"));
        let mut of = |name: &str, object| {
            let symbol = Symbol { name: name.into(), linkage_name: None, object: Some(object), address: 0, size: 0 };
            let symbol = Some(tables.symbols.push(symbol));
            let place = Place { address: 1, object: Some(object), symbol, offset: 0, line: None };
            let place = tables.places.push(place);
            (tables.is_runtime(place), place)
        };
        for name in [
            "operator new(unsigned long)",
            "std::vector<int>::push_back(int)",
            "void std::vector<int, std::allocator<int> >::_M_realloc_insert<int>(int&&)",
            "<alloc::string::String as core::clone::Clone>::clone",
            "alloc::vec::Vec<T>::push",
            "__rustc::__rust_alloc",
            "__rdl_alloc",
        ] {
            assert!(of(name, own).0, "{name}");
        }
        for name in [
            "main",
            "load<int, std::string>(int)",
            "void load(std::string const&)",
            "app::alloc::take",
            "<app::S as core::Clone>::clone",
        ] {
            assert!(!of(name, own).0, "{name}");
        }
        let (runtime, strdup) = of("strdup", libc);
        let (_, load) = of("load", own);
        assert!(runtime);
        let outer = tables.stacks.push(StackNode { parent: None, address: 2, place: Some(load) });
        let inner = tables.stacks.push(StackNode { parent: Some(outer), address: 1, place: Some(strdup) });
        let block = tables.blocks.push(Block { address: 0, size: 8, site: Some(inner) });
        assert_eq!(tables.describe_site(block).as_deref(), Some("load"));
        let only = tables.stacks.push(StackNode { parent: None, address: 1, place: Some(strdup) });
        let block = tables.blocks.push(Block { address: 0, size: 8, site: Some(only) });
        assert_eq!(tables.describe_site(block).as_deref(), Some("strdup"));
        // In a program without names of functions.
        let env = tables.objects.push(Object::new("/usr/bin/env"));
        let bare = Place { address: 0x24cc, object: Some(env), symbol: None, offset: 0, line: None };
        let bare = tables.places.push(bare);
        let only = tables.stacks.push(StackNode { parent: None, address: 1, place: Some(bare) });
        let block = tables.blocks.push(Block { address: 0, size: 8, site: Some(only) });
        assert_eq!(tables.describe_site(block).as_deref(), Some("env+0x24cc"));
    }
}
