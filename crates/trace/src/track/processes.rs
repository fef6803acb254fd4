//! Processes, threads and mappings as records tell of them.

use super::maps::{MapsLine, parse_maps};
use super::space::Space;
use super::{ASK_AGAIN, ProcessState, ThreadState, Tracker, World, next_id, text};
use crate::perf::record::Mmap;
use crate::{Mapping, MappingId, MappingKind, Object, ObjectId, Process, ProcessId, Protection, Thread, ThreadId};

/// How far above the program the area of brk begins at most: the kernel moves it by up to 1 GiB.
const HEAP_DISTANCE: u64 = (1 << 30) + (64 << 20);
/// How far below the known part of the stack an address is still on it: the usual limit, twice.
const STACK_GROWTH: u64 = 16 << 20;

/// A mapping to be made, from either a record or a line of `/proc/PID/maps`.
struct New<'p> {
    start: u64,
    end: u64,
    offset: u64,
    has_file: bool,
    protection: Protection,
    shared: bool,
    path: &'p [u8],
}

impl Tracker {
    /// The process of that pid; it begins now if it was not known.
    pub(super) fn process(&mut self, time: u64, pid: u32) -> ProcessId {
        if let Some(process) = self.processes.get(&pid) {
            return process.id;
        }
        let id = self.tables.processes.push(Process {
            pid,
            image: 0,
            parent: None,
            name: String::new(),
            path: None,
            start: time,
            end: None,
        });
        self.processes.insert(pid, ProcessState::new(id));
        id
    }

    /// The thread; it begins now if it was not known.
    pub(super) fn thread(&mut self, time: u64, pid: u32, tid: u32) -> ThreadId {
        if let Some(thread) = self.threads.get(&tid).filter(|thread| thread.pid == pid) {
            return thread.id;
        }
        let process = self.process(time, pid);
        let name = self.tables.processes[process].name.clone();
        let id = self.tables.threads.push(Thread { tid, process, name, start: time, end: None });
        self.threads.insert(tid, ThreadState { id, pid, pending: None });
        id
    }

    pub(super) fn comm(&mut self, time: u64, pid: u32, tid: u32, exec: bool, name: &[u8]) {
        let thread = self.thread(time, pid, tid);
        let name = text(name);
        if exec {
            self.exec(time, pid, tid, name);
            return;
        }
        self.tables.threads[thread].name.clone_from(&name);
        if pid == tid {
            let process = self.process(time, pid);
            self.tables.processes[process].name = name;
        }
    }

    /// A process executes a program: another image, with one thread and no mappings.
    fn exec(&mut self, time: u64, pid: u32, tid: u32, name: String) {
        self.abandon(tid);
        let before = self.process(time, pid);
        let fresh = self.tables.processes[before].name.is_empty() && self.tables.processes[before].image == 0;
        let id = if fresh {
            before
        } else {
            let image = self.tables.processes[before].image + 1;
            self.tables.processes[before].end = Some(time);
            let row =
                Process { pid, image, parent: Some(before), name: String::new(), path: None, start: time, end: None };
            self.tables.processes.push(row)
        };
        self.tables.processes[id].name.clone_from(&name);
        if let Some(process) = self.processes.get_mut(&pid) {
            process.id = id;
            process.space = Space::default();
            process.program_end = None;
            process.neap = false;
            process.asked = Some(time);
            if let Some(history) = process.history.take() {
                self.sites.end(history);
            }
        }
        if fresh {
            let thread = self.thread(time, pid, tid);
            self.tables.threads[thread].name = name;
            return;
        }
        self.threads.retain(|_, thread| thread.pid != pid);
        self.thread(time, pid, tid);
    }

    pub(super) fn fork(&mut self, time: u64, pid: u32, tid: u32, parent_pid: u32) {
        if pid == parent_pid {
            self.thread(time, pid, tid);
            return;
        }
        let parent = self.process(time, parent_pid);
        let name = self.tables.processes[parent].name.clone();
        let path = self.tables.processes[parent].path.clone();
        let (space, program_end, neap, history) = match self.processes.get(&parent_pid) {
            Some(process) => (process.space.clone(), process.program_end, process.neap, process.history),
            None => Default::default(),
        };
        let history = history.map(|parent| {
            let mut late = Vec::new();
            let history = self.sites.add(self.now, Some(parent), &mut |found| late.push(found));
            self.complete(&late);
            history
        });
        let row = Process { pid, image: 0, parent: Some(parent), name, path, start: time, end: None };
        let id = self.tables.processes.push(row);
        self.processes.insert(
            pid,
            ProcessState { space, program_end, neap, history, parent_pid: Some(parent_pid), ..ProcessState::new(id) },
        );
        self.threads.remove(&tid);
        self.thread(time, pid, tid);
    }

    pub(super) fn exit(&mut self, time: u64, pid: u32, tid: u32) {
        self.abandon(tid);
        if let Some(thread) = self.threads.remove(&tid) {
            self.tables.threads[thread.id].end = Some(time);
        }
        if self.threads.values().any(|thread| thread.pid == pid) {
            return;
        }
        if let Some(process) = self.processes.remove(&pid) {
            self.tables.processes[process.id].end = Some(time);
            if let Some(history) = process.history {
                self.sites.end(history);
            }
            let faults = self.faults_of.remove(&pid).unwrap_or(0);
            if self.orphans.contains(&pid) {
                self.unwaited += faults;
            }
            // Its children are init's now.
            let children = self.processes.iter().filter(|(_, child)| child.parent_pid == Some(pid));
            self.orphans.extend(children.map(|(&child, _)| child).collect::<Vec<_>>());
            self.orphans.retain(|&orphan| orphan != pid);
        }
    }

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
            has_file: mmap.file.is_some(),
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

    /// Takes over the mappings that `/proc/PID/maps` has and the records did not tell of.
    pub(super) fn take_maps(&mut self, time: u64, pid: u32, text: &[u8]) {
        for line in parse_maps(text) {
            let MapsLine { start, end, flags, offset, inode, path } = line;
            let known = self.processes.get(&pid).and_then(|process| process.space.find(start));
            if known.is_some_and(|id| self.tables.mappings[id].end >= end) {
                continue;
            }
            let new = New {
                start,
                end,
                offset,
                has_file: inode != 0,
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
        let Some(space) = self.processes.get(&pid).map(|process| process.space.clone()) else { return };
        let mut kind = mapping_kind(new);
        if is_neap(new.path)
            && let Some(process) = self.processes.get_mut(&pid)
        {
            process.neap = true;
        }
        self.sites_mapped(pid, new.path);
        let mut object = None;
        let mut offset = if new.has_file { new.offset } else { 0 };
        match &kind {
            MappingKind::File => {
                object = Some(self.object(new.path));
                self.file_of(pid, process, new);
            }
            MappingKind::Named(name) if name == "[vdso]" => object = Some(self.object(new.path)),
            // What goes on behind a writable part of a file, in the same protection, is its zeroed rest.
            MappingKind::Anonymous => {
                let before = space.ending_at(new.start).map(|id| &self.tables.mappings[id]);
                if let Some(before) = before.filter(|b| b.kind == MappingKind::File && b.protection.write && !b.shared)
                {
                    object = before.object;
                    offset = before.offset.saturating_add(new.start - before.start);
                } else if is_heap(self.processes.get(&pid).and_then(|process| process.program_end), new.start) {
                    kind = MappingKind::Heap;
                }
            }
            _ => {}
        }
        if object.is_none() && self.extend(&space, pid, new, &kind) {
            return;
        }
        let row = Mapping {
            process,
            start: new.start,
            end: new.end,
            offset,
            kind,
            object,
            protection: new.protection,
            shared: new.shared,
            from: time,
            until: None,
        };
        let id = next_id(&self.tables.mappings);
        self.tables.mappings.push(row);
        self.enter(time, pid, new.start, new.end, id);
    }

    /// Looks whether a mapped file is one in which the process records its allocations.
    fn sites_mapped(&mut self, pid: u32, path: &[u8]) {
        let directory = self.sites_directory.as_deref();
        let name = directory.and_then(|directory| path.strip_prefix(directory)?.strip_prefix(b"/"));
        if let (Some(_), Some(process)) = (name, self.processes.get_mut(&pid)) {
            process.neap = true;
            let history = *process.history.get_or_insert_with(|| self.sites.add(0, None, &mut |_| {}));
            self.site_files.push((history, path.to_owned()));
        }
    }

    /// Remembers which file is the program, and where it ends: the first file that is mapped is the program.
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

    /// Enters a mapping in the addresses of a process.
    fn enter(&mut self, time: u64, pid: u32, start: u64, end: u64, id: MappingId) {
        let Some(process) = self.processes.get_mut(&pid) else { return };
        for gone in process.space.map(start, end, id) {
            let row = &mut self.tables.mappings[gone];
            if gone != id && row.process == process.id {
                row.until = Some(time);
            }
        }
    }

    /// Makes an area that only grew larger, instead of adding a row each time that brk or mmap extend it.
    fn extend(&mut self, space: &Space, pid: u32, new: &New<'_>, kind: &MappingKind) -> bool {
        let old = space.find(new.start).or_else(|| space.find(new.end - 1));
        let Some(id) = old else { return false };
        let row = &mut self.tables.mappings[id];
        let own = self.processes.get(&pid).is_some_and(|process| process.id == row.process);
        let same = row.object.is_none() && row.kind == *kind && row.protection == new.protection;
        if !own || !same || row.shared != new.shared || row.start < new.start || row.end > new.end {
            return false;
        }
        (row.start, row.end) = (new.start, new.end);
        let from = row.from;
        self.enter(from, pid, new.start, new.end, id);
        true
    }

    fn object(&mut self, path: &[u8]) -> ObjectId {
        if let Some(&id) = self.objects.get(path) {
            return id;
        }
        let id = self.tables.objects.push(Object { path: text(path), build_id: None });
        self.objects.insert(path.to_vec(), id);
        id
    }

    /// The mapping of an address, where the process itself is asked if the records did not tell.
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
            // The stack grew: nobody tells.
            let end = self.tables.mappings[id].end;
            let start = address & !0xfff;
            if self.processes.get(&pid).is_some_and(|process| process.id == self.tables.mappings[id].process) {
                self.tables.mappings[id].start = start;
            }
            self.enter(time, pid, start, end, id);
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
    match new.path {
        b"" => MappingKind::Anonymous,
        b"[heap]" => MappingKind::Heap,
        b"[stack]" => MappingKind::Stack,
        path if new.has_file && !path.starts_with(b"/memfd:") && !path.starts_with(b"/dev/zero") => MappingKind::File,
        path => MappingKind::Named(text(path)),
    }
}

/// Whether only processes on neap have that mapping: the library, or the page of counters.
fn is_neap(path: &[u8]) -> bool {
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    name.starts_with(b"libneap.so") || path.starts_with(b"/memfd:neap-counters")
}

/// Whether anonymous memory there is the area of brk, which records do not name: it lies above the program, within the
/// distance that the kernel moves it by.
fn is_heap(program_end: Option<u64>, start: u64) -> bool {
    program_end.is_some_and(|end| start >= end && start - end < HEAP_DISTANCE)
}
