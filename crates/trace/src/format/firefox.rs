//! The processed profile of the Firefox Profiler, as JSON.
//!
//! Each fault is a sample of its thread, with weight 1 and the colour of its kind, so that the call tree and the flame
//! graph count faults. It is also a marker from its begin to its end, named after its kind, with the page and the
//! mapping. Symbols are in the profile: nothing must be looked up. The footer is not written.
//!
//! The profile is built in memory. Therefore only the first [`MARKERS`] faults have markers; after that many,
//! consecutive faults with the same stack are one sample with their sum.

use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::Arc;

use fxprof_processed_profile::debugid::DebugId;
use fxprof_processed_profile::{
    CategoryColor, CategoryHandle, CpuDelta, Frame, FrameFlags, FrameInfo, LibraryHandle, LibraryInfo,
    MarkerFieldFlags, MarkerFieldFormat, MarkerTiming, ProcessHandle, Profile, ReferenceTimestamp, SamplingInterval,
    StackHandle, StaticSchemaMarker, StaticSchemaMarkerField, StringHandle, Symbol, SymbolTable, ThreadHandle,
    Timestamp,
};

use crate::{Fault, Id, Kind, Object, ObjectId, PlaceId, Source, StackId, Tables, ThreadId};

/// Limit on the faults that have markers.
const MARKERS: u64 = 500_000;

/// Writes a trace as a profile for the Firefox Profiler.
pub fn firefox(source: &dyn Source, out: &mut dyn Write) -> io::Result<()> {
    let mut builder = Builder::new(source.tables());
    source.visit(&mut |fault| {
        builder.fault(fault);
        Ok(())
    })?;
    serde_json::to_writer(&mut *out, &builder.profile)?;
    writeln!(out)
}

/// The state needed to add a fault.
struct Builder<'a> {
    tables: &'a Tables,
    profile: Profile,
    /// In the order of their ids.
    threads: Vec<Track>,
    /// In the order of their ids.
    libraries: Vec<Library>,
    /// In the order of [`Kind::ALL`].
    kinds: Vec<(CategoryHandle, StringHandle)>,
    stacks: HashMap<StackKey, Option<StackHandle>>,
    names: HashMap<String, StringHandle>,
    faults: u64,
}

/// A thread of the profile.
struct Track {
    handle: ThreadHandle,
    /// The stack of its last sample; none before the first.
    last: Option<Option<StackHandle>>,
}

/// An object of the trace.
struct Library {
    handle: LibraryHandle,
    symbols: Arc<SymbolTable>,
    /// Whether it is a file.
    is_file: bool,
}

/// Frames are a thread's own, and the innermost has the colour of the kind.
type StackKey = (ThreadId, Kind, u64, Option<PlaceId>, Option<StackId>);

impl<'a> Builder<'a> {
    fn new(tables: &'a Tables) -> Self {
        let summary = &tables.summary;
        let program =
            if summary.command.is_empty() { format!("process {}", summary.pid) } else { summary.command.join(" ") };
        let begin = ReferenceTimestamp::from_millis_since_unix_epoch(tables.clock.wall as f64 / 1e6);
        // There is no interval, but the profiler requires one.
        let mut profile = Profile::new(&format!("page faults of {program}"), begin, SamplingInterval::from_millis(1));
        profile.set_os_name("Linux");
        profile.set_symbolicated(true);
        let kinds = Kind::ALL.map(|kind| {
            let name = profile.intern_string(kind.label());
            (profile.add_category(kind.label(), color(kind)), name)
        });
        let threads = threads(tables, &mut profile);
        let libraries = libraries(tables, &mut profile);
        Self {
            tables,
            profile,
            threads,
            libraries,
            kinds: kinds.to_vec(),
            stacks: HashMap::new(),
            names: HashMap::new(),
            faults: 0,
        }
    }

    fn fault(&mut self, fault: &Fault) {
        self.faults += 1;
        let stack = self.stack(fault);
        let track = &mut self.threads[fault.thread.index()];
        let begin = Timestamp::from_nanos_since_reference(fault.time);
        if self.faults > MARKERS && track.last == Some(stack) {
            self.profile.add_sample_same_stack_zero_cpu(track.handle, begin, 1);
        } else {
            self.profile.add_sample(track.handle, begin, stack, CpuDelta::ZERO, 1);
        }
        track.last = Some(stack);
        if self.faults <= MARKERS {
            self.marker(fault, stack);
        }
    }

    fn marker(&mut self, fault: &Fault, stack: Option<StackHandle>) {
        let begin = Timestamp::from_nanos_since_reference(fault.time);
        let timing = match fault.service {
            Some(service) => {
                let end = Timestamp::from_nanos_since_reference(fault.time.saturating_add(service.into()));
                MarkerTiming::Interval(begin, end)
            }
            None => MarkerTiming::Instant(begin),
        };
        let mapping = fault.mapping.map(|id| self.tables.mappings[id].describe(self.tables));
        let data = super::data_text(self.tables, fault);
        let (category, name) = self.kinds[kind_index(fault.kind)];
        let marker = PageFault {
            category,
            name,
            number: fault.number as f64,
            address: self.profile.intern_string(&format!("{:#x}", fault.address)),
            mapping: self.name(mapping.unwrap_or_default()),
            data: self.name(data.unwrap_or_default()),
        };
        let thread = self.threads[fault.thread.index()].handle;
        let handle = self.profile.add_marker(thread, timing, marker);
        self.profile.set_marker_stack(thread, handle, stack);
    }

    fn name(&mut self, text: String) -> StringHandle {
        let profile = &mut self.profile;
        *self.names.entry(text).or_insert_with_key(|text| profile.intern_string(text))
    }

    fn stack(&mut self, fault: &Fault) -> Option<StackHandle> {
        let key = (fault.thread, fault.kind, fault.ip, fault.code, fault.stack);
        if let Some(&known) = self.stacks.get(&key) {
            return known;
        }
        let mut frames: Vec<(u64, Option<PlaceId>)> =
            super::frames(self.tables, fault.ip, fault.code, fault.stack).collect();
        frames.reverse();
        let innermost = frames.len() - 1;
        let infos: Vec<FrameInfo> = frames
            .into_iter()
            .enumerate()
            .map(|(index, (address, place))| {
                let frame = self.frame(address, place, index == innermost);
                let category =
                    if index == innermost { self.kinds[kind_index(fault.kind)].0 } else { CategoryHandle::OTHER };
                FrameInfo { frame, category_pair: category.into(), flags: FrameFlags::empty() }
            })
            .collect();
        let thread = self.threads[fault.thread.index()].handle;
        let stack = self.profile.intern_stack_frames(thread, infos.into_iter());
        self.stacks.insert(key, stack);
        stack
    }

    /// Running processes whose parent has ended: their faults are not waited for.
    fn frame(&mut self, address: u64, place: Option<PlaceId>, innermost: bool) -> Frame {
        let row = place.map(|id| &self.tables.places[id]);
        let library = row.and_then(|row| row.object).map(|id| &self.libraries[id.index()]);
        if let (Some(row), Some(library)) = (row, library.filter(|library| library.is_file))
            && let Ok(relative) = u32::try_from(row.address)
        {
            let found = library.symbols.lookup(relative).map(|symbol| symbol.name.as_str());
            if found == row.symbol.map(|id| self.tables.symbols[id].name.as_str()) {
                return if innermost {
                    Frame::RelativeAddressFromInstructionPointer(library.handle, relative)
                } else {
                    Frame::RelativeAddressFromAdjustedReturnAddress(library.handle, relative)
                };
            }
        }
        Frame::Label(self.profile.intern_string(&super::function(self.tables, address, place)))
    }
}

/// The processes and threads of the trace, in the order of their ids.
fn threads(tables: &Tables, profile: &mut Profile) -> Vec<Track> {
    let at = Timestamp::from_nanos_since_reference;
    let processes: Vec<ProcessHandle> = tables
        .processes
        .iter()
        .map(|(_, row)| {
            let handle = profile.add_process(&row.name, row.pid, at(row.start));
            row.end.into_iter().for_each(|end| profile.set_process_end_time(handle, at(end)));
            handle
        })
        .collect();
    let threads = tables.threads.iter().map(|(_, row)| {
        let is_main = row.tid == tables.processes[row.process].pid;
        let handle = profile.add_thread(processes[row.process.index()], row.tid, at(row.start), is_main);
        profile.set_thread_name(handle, &row.name);
        profile.set_thread_show_markers_in_timeline(handle, true);
        row.end.into_iter().for_each(|end| profile.set_thread_end_time(handle, at(end)));
        Track { handle, last: None }
    });
    threads.collect()
}

/// The objects of the trace with their symbols, in the order of their ids.
fn libraries(tables: &Tables, profile: &mut Profile) -> Vec<Library> {
    let mut symbols: HashMap<ObjectId, Vec<Symbol>> = HashMap::new();
    for (_, row) in tables.symbols.iter() {
        if let (Some(object), Ok(address)) = (row.object, u32::try_from(row.address)) {
            let size = u32::try_from(row.size).ok().filter(|&size| size != 0);
            symbols.entry(object).or_default().push(Symbol { address, size, name: row.name.clone() });
        }
    }
    let objects = tables.objects.iter().map(|(id, row)| {
        let symbols = Arc::new(SymbolTable::new(symbols.remove(&id).unwrap_or_default()));
        let handle = profile.add_lib(library(row, Arc::clone(&symbols)));
        Library { handle, symbols, is_file: row.path.starts_with('/') }
    });
    objects.collect()
}

fn library(object: &Object, symbols: Arc<SymbolTable>) -> LibraryInfo {
    let name = crate::text::file_name(&object.path).to_owned();
    let build_id = object.build_id.as_deref();
    // The first 16 bytes, as debuggers of all systems name files.
    let guid = build_id.and_then(|id| id.first_chunk::<16>());
    LibraryInfo {
        debug_name: name.clone(),
        name,
        path: object.path.clone(),
        debug_path: object.path.clone(),
        debug_id: guid.and_then(|guid| DebugId::from_guid_age(guid, 0).ok()).unwrap_or_default(),
        code_id: build_id.map(crate::text::hex_bytes::text),
        arch: None,
        symbol_table: Some(symbols),
    }
}

fn kind_index(kind: Kind) -> usize {
    Kind::ALL.iter().position(|&other| other == kind).unwrap_or(Kind::ALL.len() - 1)
}

const fn color(kind: Kind) -> CategoryColor {
    match kind {
        Kind::Anonymous => CategoryColor::LightBlue,
        Kind::ZeroPage => CategoryColor::Yellow,
        Kind::CopyOnWrite => CategoryColor::Orange,
        Kind::FileMinor => CategoryColor::Green,
        Kind::FileMajor => CategoryColor::Red,
        Kind::Huge => CategoryColor::Blue,
        Kind::SwapIn => CategoryColor::Magenta,
        Kind::Refused => CategoryColor::DarkGray,
        Kind::Unknown => CategoryColor::Gray,
    }
}

/// The marker of a fault.
struct PageFault {
    category: CategoryHandle,
    name: StringHandle,
    number: f64,
    address: StringHandle,
    mapping: StringHandle,
    data: StringHandle,
}

const fn field(key: &'static str, label: &'static str, format: MarkerFieldFormat) -> StaticSchemaMarkerField {
    StaticSchemaMarkerField { key, label, format, flags: MarkerFieldFlags::SEARCHABLE }
}

impl StaticSchemaMarker for PageFault {
    const UNIQUE_MARKER_TYPE_NAME: &'static str = "PageFault";
    const DESCRIPTION: Option<&'static str> = Some("A page fault, from its begin to its end.");
    const CHART_LABEL: Option<&'static str> = Some("{marker.data.mapping}");
    const TABLE_LABEL: Option<&'static str> = Some("{marker.data.address} {marker.data.mapping}");
    const FIELDS: &'static [StaticSchemaMarkerField] = &[
        field("number", "Number", MarkerFieldFormat::Integer),
        field("address", "Address", MarkerFieldFormat::String),
        // A path: left out where a profile is shared without paths.
        field("mapping", "Mapping", MarkerFieldFormat::FilePath),
        field("data", "Variable", MarkerFieldFormat::String),
    ];

    fn name(&self, _profile: &mut Profile) -> StringHandle {
        self.name
    }

    fn category(&self, _profile: &mut Profile) -> CategoryHandle {
        self.category
    }

    fn string_field_value(&self, field: u32) -> StringHandle {
        match field {
            1 => self.address,
            2 => self.mapping,
            _ => self.data,
        }
    }

    fn number_field_value(&self, _field: u32) -> f64 {
        self.number
    }
}
