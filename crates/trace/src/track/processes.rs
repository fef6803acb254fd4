//! Processes and threads, from records.

use super::rows::Rows;
use super::space::Space;
use super::{ProcessState, ThreadState, Tracker, text};
use crate::{Process, ProcessId, Thread, ThreadId};

impl Tracker {
    /// The process with this pid; added now if it was unknown.
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

    /// The thread; added now if it was unknown.
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
            process.code = Space::default();
            process.rows = Rows::default();
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
            // Its children now belong to init.
            let children = self.processes.iter().filter(|(_, child)| child.parent_pid == Some(pid));
            self.orphans.extend(children.map(|(&child, _)| child).collect::<Vec<_>>());
            self.orphans.retain(|&orphan| orphan != pid);
        }
    }
}
