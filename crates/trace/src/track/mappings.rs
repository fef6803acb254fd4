//! Mappings, from records and `/proc/PID/maps`.

use super::rows::{self, Meaning};
use super::{ASK_AGAIN, MAX_MAPPINGS, MAX_OBJECTS, Sighting, Tracker, World, next_id, text};
use crate::perf::record::Mmap;
use crate::{FileId, Id, Mapping, MappingId, MappingKind, Object, ObjectId, ProcessId, Protection};
use neap_process::maps::{MapsLine, parse_maps};

/// Limit on the distance of the brk area above the program: the kernel moves it by up to 1 GiB.
const HEAP_DISTANCE: u64 = (1 << 30) + (64 << 20);
/// Limit on the distance below the known part of the stack at which an address still belongs to it: twice the usual
/// limit.
const STACK_GROWTH: u64 = 16 << 20;
/// The end of the addresses of 32-bit programs.
const END_OF_32_BITS: u64 = 1 << 32;

/// A mapping to be made, from either a record or a line of `/proc/PID/maps`.
struct New<'p> {
    start: u64,
    end: u64,
    offset: u64,
    file: Option<FileId>,
    protection: Protection,
    shared: bool,
    path: &'p [u8],
}

/// The file of a line, if there is one.
pub fn file_of(line: &MapsLine<'_>) -> Option<FileId> {
    let (major, minor) = line.device;
    (line.inode != 0).then_some(FileId { major, minor, inode: line.inode })
}

impl Tracker {
    pub(super) fn mmap(&mut self, time: u64, mmap: &Mmap) {
        const PROT_READ: u32 = 1;
        const PROT_WRITE: u32 = 2;
        const PROT_EXEC: u32 = 4;
        const MAP_SHARED: u32 = 1;
        let allowed = |bit: u32| mmap.protection & bit != 0;
        let new = New {
            start: mmap.start,
            end: mmap.start.saturating_add(mmap.length),
            offset: mmap.offset,
            file: mmap.file,
            protection: Protection {
                read: allowed(PROT_READ),
                write: allowed(PROT_WRITE),
                execute: allowed(PROT_EXEC),
            },
            shared: mmap.flags & MAP_SHARED != 0,
            path: if mmap.path == b"//anon" { b"" } else { &mmap.path },
        };
        self.map(time, mmap.pid, &new);
    }

    /// Adds the mappings in `/proc/PID/maps` that the records did not report.
    pub(super) fn take_maps(&mut self, time: u64, pid: u32, text: &[u8]) {
        for line in parse_maps(text) {
            let MapsLine { start, end, flags, offset, path, .. } = line;
            let known = self.processes.get(&pid).and_then(|process| process.space.find_range(start));
            if known.is_some_and(|(known_end, _)| known_end >= end) {
                continue;
            }
            let new = New {
                start,
                end,
                offset,
                file: file_of(&line),
                protection: Protection { read: flags[0] == b'r', write: flags[1] == b'w', execute: flags[2] == b'x' },
                shared: flags[3] == b's',
                path,
            };
            self.map(time, pid, &new);
        }
    }

    fn map(&mut self, time: u64, pid: u32, new: &New<'_>) {
        if new.start >= new.end {
            return;
        }
        let process = self.process(time, pid);
        if is_neap(new.path)
            && let Some(process) = self.processes.get_mut(&pid)
        {
            process.neap = true;
        }
        self.sites_mapped(pid, new.path);
        let mut row = Mapping {
            process,
            start: new.start,
            end: new.end,
            offset: if new.file.is_some() { new.offset } else { 0 },
            kind: mapping_kind(new),
            object: None,
            protection: new.protection,
            shared: new.shared,
            from: time,
            until: None,
        };
        match &row.kind {
            MappingKind::File => {
                row.object = self.object(pid, new, new.path);
                self.file_of(pid, process, new);
            }
            MappingKind::Named(name) if name == "[vdso]" => {
                let path: &[u8] = if new.end <= END_OF_32_BITS { b"[vdso32]" } else { b"[vdso]" };
                row.object = self.object(pid, new, path);
            }
            // Anonymous memory that follows a writable part of a file, with the same protection, is its zeroed rest.
            MappingKind::Anonymous => {
                let known = self.processes.get(&pid);
                let before = known.and_then(|process| process.space.ending_at(new.start));
                let before = before.map(|id| &self.tables.mappings[id]);
                if let Some(before) = before.filter(|b| b.kind == MappingKind::File && b.protection.write && !b.shared)
                {
                    row.object = before.object;
                    row.offset = before.offset.saturating_add(new.start - before.start);
                } else if is_heap(known.and_then(|process| process.program_end), new.start) {
                    row.kind = MappingKind::Heap;
                }
            }
            _ => {}
        }
        self.enter(time, pid, row);
    }

    /// Checks whether a mapped file is one in which the process records its allocations.
    fn sites_mapped(&mut self, pid: u32, path: &[u8]) {
        let directory = self.sites_directory.as_deref();
        let name = directory.and_then(|directory| path.strip_prefix(directory)?.strip_prefix(b"/"));
        if let (Some(_), Some(process)) = (name, self.processes.get_mut(&pid)) {
            process.neap = true;
            let history = *process.history.get_or_insert_with(|| self.sites.add(0, None, &mut |_| {}));
            self.site_files.push((history, path.to_owned()));
        }
    }

    /// Records which file is the program, and where it ends: the first mapped file is the program.
    fn file_of(&mut self, pid: u32, process: ProcessId, new: &New<'_>) {
        let path = text(new.path);
        let row = &mut self.tables.processes[process];
        if *row.path.get_or_insert_with(|| path.clone()) != path {
            return;
        }
        if let Some(process) = self.processes.get_mut(&pid) {
            // A program may map its own file again, far away.
            match process.program_end {
                Some(end)
                    if new.start < end.saturating_sub(HEAP_DISTANCE)
                        || new.start > end.saturating_add(HEAP_DISTANCE) => {}
                end => process.program_end = end.max(Some(new.end)),
            }
        }
    }

    /// Adds a mapping to the addresses of a process: under the row that had the same meaning at that place before, if
    /// there is one, otherwise under a new row.
    fn enter(&mut self, time: u64, pid: u32, row: Mapping) {
        let Some(process) = self.processes.get_mut(&pid) else { return };
        let (start, end, execute) = (row.start, row.end, row.protection.execute);
        let meaning = Meaning::of(&row);
        let met = process.rows.take(meaning, start, end).filter(|&(.., id)| {
            // The code at an address at some time is found by the newest row before that time. So code gets its old row
            // back only if there was no other code in between.
            rows::same(&self.tables.mappings[id], &row) && (!execute || process.code.is_only(start, end, id))
        });
        let (low, high, id) = match met {
            Some(met) => met,
            None if self.tables.mappings.len() >= MAX_MAPPINGS => {
                self.unkept += 1;
                process.space.unmap(start, end);
                return;
            }
            None => (start, end, next_id(&self.tables.mappings)),
        };
        process.rows.put(meaning, low, high, id);
        if execute {
            process.code.map(start, end, id);
        }
        if id.index() == self.tables.mappings.len() {
            self.tables.mappings.push(row);
        } else {
            let known = &mut self.tables.mappings[id];
            rows::widen(known, start, end);
            known.until = None;
        }
        self.place(time, pid, start, end, id);
    }

    /// Sets the row of a range of addresses; replaces what was there before.
    fn place(&mut self, time: u64, pid: u32, start: u64, end: u64, id: MappingId) {
        let Some(process) = self.processes.get_mut(&pid) else { return };
        for gone in process.space.map(start, end, id) {
            let row = &mut self.tables.mappings[gone];
            if gone != id && row.process == process.id {
                row.until = Some(time);
            }
        }
    }

    /// The object of this path and file; `None` where there are too many.
    fn object(&mut self, pid: u32, new: &New<'_>, path: &[u8]) -> Option<ObjectId> {
        let key = (path.to_vec(), new.file);
        if let Some(&id) = self.objects.get(&key) {
            return Some(id);
        }
        if self.tables.objects.len() >= MAX_OBJECTS {
            return None;
        }
        let id = self.tables.objects.push(Object { file: new.file, ..Object::new(text(path)) });
        self.objects.insert(key, id);
        self.sightings.push(Sighting { pid, object: id, start: new.start, end: new.end });
        Some(id)
    }

    /// The mapping of an address; asks the process itself if the records did not report it.
    pub(super) fn mapping_at(&mut self, time: u64, pid: u32, address: u64, world: &mut dyn World) -> Option<MappingId> {
        let found = self.processes.get(&pid)?.space.find(address);
        if found.is_some() {
            return found;
        }
        let above = self.processes.get(&pid)?.space.above(address);
        if let Some((start, id)) = above
            && self.tables.mappings[id].kind == MappingKind::Stack
            && start - address <= STACK_GROWTH
        {
            // The stack grew, which no record reports.
            let end = self.tables.mappings[id].end;
            let start = address & !0xfff;
            if self.processes.get(&pid).is_some_and(|process| process.id == self.tables.mappings[id].process) {
                self.tables.mappings[id].start = start;
            }
            self.place(time, pid, start, end, id);
            return Some(id);
        }
        let process = self.processes.get_mut(&pid)?;
        if process.asked.is_none_or(|asked| time >= asked + ASK_AGAIN) {
            process.asked = Some(time);
            if let Some(text) = world.maps(pid) {
                self.take_maps(time, pid, &text);
            }
        }
        self.processes.get(&pid)?.space.find(address)
    }
}

fn mapping_kind(new: &New<'_>) -> MappingKind {
    let has_file = new.file.is_some() && !new.path.starts_with(b"/memfd:") && !new.path.starts_with(b"/dev/zero");
    match new.path {
        b"" => MappingKind::Anonymous,
        b"[heap]" => MappingKind::Heap,
        b"[stack]" => MappingKind::Stack,
        _ if has_file => MappingKind::File,
        path => MappingKind::Named(text(path)),
    }
}

/// Whether only processes on neap have this mapping: the library, or the counters page.
fn is_neap(path: &[u8]) -> bool {
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    name.starts_with(b"libneap.so") || path.starts_with(b"/memfd:neap-counters")
}

/// Whether anonymous memory there is the area of brk, which records do not name: it lies above the program, within the
/// distance by which the kernel moves it.
fn is_heap(program_end: Option<u64>, start: u64) -> bool {
    program_end.is_some_and(|end| start >= end && start - end < HEAP_DISTANCE)
}
