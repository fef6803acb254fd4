//! The files that a process has mapped, for the walkers: versions and symbols.

use neap_heaps::Mapping;
use neap_symbols::Image;
use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::rc::Rc;

/// Largest file whose symbols are read.
const MOST: u64 = 1 << 30;

/// The files of a process.
pub struct Files {
    pid: u32,
    /// Contents of files whose symbols were asked for.
    contents: RefCell<HashMap<String, Option<Rc<Vec<u8>>>>>,
}

impl Files {
    /// Those of process `pid`.
    pub fn new(pid: u32) -> Self {
        Files { pid, contents: RefCell::default() }
    }

    /// Opens the file behind a mapping: the very file where that is allowed, else what has its path for the process now.
    fn open(&self, mapping: &Mapping) -> Option<File> {
        let path = mapping.file()?;
        let (pid, range) = (self.pid, &mapping.range);
        let link = format!("/proc/{pid}/map_files/{:x}-{:x}", range.start, range.end);
        let file = File::open(link).or_else(|_| File::open(format!("/proc/{pid}/root{path}"))).ok()?;
        file.metadata().is_ok_and(|metadata| metadata.is_file()).then_some(file)
    }

    fn contents(&self, mapping: &Mapping) -> Option<Rc<Vec<u8>>> {
        let read = || {
            let file = self.open(mapping)?;
            let length = file.metadata().ok()?.len();
            let mut bytes = vec![0; usize::try_from(length.min(MOST)).ok()?];
            file.read_exact_at(&mut bytes, 0).ok()?;
            Some(Rc::new(bytes))
        };
        self.contents.borrow_mut().entry(mapping.file()?.to_owned()).or_insert_with(read).clone()
    }
}

impl neap_heaps::Files for Files {
    fn read(&self, mapping: &Mapping, offset: u64, into: &mut [u8]) -> usize {
        let Some(file) = self.open(mapping) else { return 0 };
        let mut done = 0;
        while done < into.len() {
            match file.read_at(&mut into[done..], offset + done as u64) {
                Ok(0) | Err(_) => break,
                Ok(got) => done += got,
            }
        }
        done
    }

    fn symbol(&self, mapping: &Mapping, name: &str) -> Option<u64> {
        let contents = self.contents(mapping)?;
        let image = Image::parse(&contents)?;
        let at = image.address(mapping.offset, mapping.writable, mapping.executable)?;
        Some(mapping.range.start.wrapping_sub(at).wrapping_add(image.named(name)?))
    }
}
