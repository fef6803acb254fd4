//! Finds the object of the code at an address: the mappings of each image of a process that can hold code.

use neap_trace::{Id, MappingId, ProcessId, Tables};

/// The mappings that can hold code, for each row of the table of processes.
#[derive(Default)]
pub struct CodeMappings(Vec<Vec<Range>>);

/// One of them. Ranges are sorted by `start`, and may overlap, because code may be mapped where other code was.
struct Range {
    start: u64,
    end: u64,
    /// The highest end up to this one, which tells a search when to stop.
    reach: u64,
    mapping: MappingId,
}

impl CodeMappings {
    /// The ranges of a complete trace.
    pub fn new(tables: &Tables) -> Self {
        let mut images: Vec<Vec<Range>> = Vec::new();
        images.resize_with(tables.processes.len(), Vec::new);
        for (id, row) in tables.mappings.iter().filter(|(_, row)| row.protection.execute) {
            images[row.process.index()].push(Range { start: row.start, end: row.end, reach: 0, mapping: id });
        }
        for image in &mut images {
            image.sort_by_key(|range| range.start);
            let mut reach = 0;
            for range in image {
                reach = range.end.max(reach);
                range.reach = reach;
            }
        }
        Self(images)
    }

    /// The mapping of an instruction of a process: the newest of those that its image had at that time. Rows of code
    /// are in the order in which they were mapped over each other, see [`neap_trace::Mapping`].
    pub fn find(&self, tables: &Tables, process: ProcessId, ip: u64, time: u64) -> Option<MappingId> {
        let (mut image, mut time) = (Some(process), time);
        while let Some(current) = image {
            let ranges = &self.0[current.index()];
            let below = ranges.partition_point(|range| range.start <= ip);
            let found =
                ranges[..below].iter().rev().take_while(|range| range.reach > ip).filter(|range| range.end > ip);
            let found = found.map(|range| range.mapping).filter(|&id| tables.mappings[id].from <= time).max();
            if found.is_some() {
                return found;
            }
            // A child of fork has the mappings that its parent had by then.
            let row = &tables.processes[current];
            image = row.parent.filter(|_| row.image == 0);
            time = time.min(row.start);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use neap_trace::{Mapping, MappingKind, Process, Protection};

    use super::*;

    fn process(tables: &mut Tables, parent: Option<ProcessId>, start: u64) -> ProcessId {
        let row = Process { pid: 1, image: 0, parent, name: String::new(), path: None, start, end: None };
        tables.processes.push(row)
    }

    fn code(tables: &mut Tables, process: ProcessId, start: u64, end: u64, from: u64) -> MappingId {
        tables.mappings.push(Mapping {
            process,
            start,
            end,
            offset: 0,
            kind: MappingKind::File,
            object: None,
            protection: Protection { read: true, write: false, execute: true },
            shared: false,
            from,
            until: None,
        })
    }

    /// Catches code that is attributed to a library mapped there before or later, and code that a child inherits from
    /// its parent.
    #[test]
    fn code_at_a_time() {
        let mut tables = Tables::default();
        let parent = process(&mut tables, None, 0);
        let child = process(&mut tables, Some(parent), 50);
        let first = code(&mut tables, parent, 0x1000, 0x9000, 0);
        let second = code(&mut tables, parent, 0x2000, 0x4000, 30);
        let third = code(&mut tables, parent, 0x3000, 0x3800, 60);
        let own = code(&mut tables, child, 0x3000, 0x4000, 70);
        let mappings = CodeMappings::new(&tables);
        let at = |process, ip, time| mappings.find(&tables, process, ip, time);
        assert_eq!([10, 30, 60].map(|time| at(parent, 0x3400, time)), [Some(first), Some(second), Some(third)]);
        assert_eq!(
            [0x1fff, 0x2000, 0x3800, 0x4000, 0x8fff].map(|ip| at(parent, ip, 99)),
            [first, second, second, first, first].map(Some)
        );
        assert_eq!([0xfff, 0x9000].map(|ip| at(parent, ip, 99)), [None, None]);
        assert_eq!([65, 70].map(|time| at(child, 0x3400, time)), [Some(second), Some(own)]);
    }
}
