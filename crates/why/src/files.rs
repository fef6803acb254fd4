//! The contents of the files that a process has mapped, for the walkers.

use neap_account::seen;
use neap_heaps::{Mapping, Unreadable};
use neap_process::file::{self, Identity};
use neap_survey::Fuel;
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Limit on the bytes of a file that are read.
const MOST: u64 = 1 << 30;

/// The files of a process.
pub struct Files {
    pid: u32,
    /// Identity of the file, by the start of the mapping.
    identities: HashMap<u64, Identity>,
    fuel: Arc<Fuel>,
}

impl Files {
    /// The files of process `pid`, which has these mappings.
    pub fn new(pid: u32, mappings: &[seen::Mapping], fuel: &Arc<Fuel>) -> Self {
        let files = mappings.iter().filter(|mapping| mapping.inode != 0);
        let identity = |mapping: &seen::Mapping| Identity { device: mapping.device, inode: mapping.inode };
        let identities = files.map(|mapping| (mapping.range.start, identity(mapping))).collect();
        Files { pid, identities, fuel: Arc::clone(fuel) }
    }

    /// Opens the file behind a mapping.
    fn open(&self, mapping: &Mapping) -> Option<File> {
        let identity = *self.identities.get(&mapping.range.start)?;
        let file = file::open(self.pid, &mapping.range, mapping.file()?, identity).ok()?;
        self.fuel.take(0).then_some(file)
    }
}

impl neap_heaps::Files for Files {
    fn read(&self, mapping: &Mapping, offset: u64, into: &mut [u8]) -> usize {
        let Some(file) = self.open(mapping) else { return 0 };
        let length = into.len().min(usize::try_from(MOST.saturating_sub(offset)).unwrap_or(0));
        let mut done = 0;
        while done < length {
            match file.read_at(&mut into[done..length], offset + done as u64) {
                Ok(0) | Err(_) => break,
                Ok(got) => done += got,
            }
        }
        done
    }

    fn find(&self, mapping: &Mapping, text: &[u8]) -> Result<Option<u64>, Unreadable> {
        // Not in large data files, which contain no allocator.
        let mut front = [0; 4];
        match self.read(mapping, 0, &mut front) {
            0 => return Err(Unreadable),
            _ if &front != b"\x7fELF" => return Ok(None),
            _ => {}
        }
        let found = neap_heaps::find_text(self, mapping, text)?;
        // When the time is over, a part of the file was not read.
        if found.is_none() && self.fuel.is_over() { Err(Unreadable) } else { Ok(found) }
    }
}
