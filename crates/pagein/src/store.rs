//! Keeps faults in order: in memory, and beyond some tens of millions of bytes in an unnamed file.

use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use neap_trace::Fault;
use neap_trace::compact::{MAX_SIZE, Packer, Unpacker};

use neap_launch::error::{Error, system_message};

/// The size of a chunk, which is unpacked by itself.
const CHUNK: usize = 64 << 10;
/// Limit on the bytes of full chunks in memory: some 4 million faults.
const IN_MEMORY: usize = 64 << 20;

/// Faults, packed.
pub struct Store {
    /// Limit on the bytes of full chunks in memory.
    limit: usize,
    packer: Packer,
    /// The chunk that is being filled.
    current: Vec<u8>,
    /// Full chunks that are in memory; those in the file come first.
    chunks: Vec<Vec<u8>>,
    in_memory: usize,
    file: Option<RefCell<File>>,
    /// The lengths of the chunks in the file.
    lengths: Vec<u32>,
    /// Why a file could not be written: from then on everything stays in memory.
    no_file: Option<io::Error>,
}

impl Default for Store {
    fn default() -> Self {
        Self::with_limit(IN_MEMORY)
    }
}

impl Store {
    /// An empty store that keeps this many bytes in memory.
    fn with_limit(limit: usize) -> Self {
        Self {
            limit,
            packer: Packer::default(),
            current: Vec::new(),
            chunks: Vec::new(),
            in_memory: 0,
            file: None,
            lengths: Vec::new(),
            no_file: None,
        }
    }

    /// Adds a fault.
    pub fn push(&mut self, fault: &Fault) {
        self.packer.pack(fault, &mut self.current);
        if self.current.len() + MAX_SIZE > CHUNK {
            self.packer.restart();
            self.in_memory += self.current.len();
            let full = std::mem::replace(&mut self.current, Vec::with_capacity(CHUNK));
            self.chunks.push(full);
            if self.in_memory > self.limit
                && self.no_file.is_none()
                && let Err(error) = self.spill()
            {
                Error::failed(format!(
                    "cannot write to a temporary file: {}; faults stay in memory, some 14 MiB a million",
                    system_message(&error)
                ))
                .remedy("name a directory on a disk with room: TMPDIR=DIRECTORY")
                .report();
                self.no_file = Some(error);
            }
        }
    }

    /// Moves the chunks in memory into the file.
    fn spill(&mut self) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file.get_mut(),
            empty => empty.insert(RefCell::new(nameless_file()?)).get_mut(),
        };
        file.seek(SeekFrom::Start(self.lengths.iter().map(|&length| u64::from(length)).sum()))?;
        // Chunks that could not be written completely stay in memory; the next write begins where this one did.
        for chunk in &self.chunks {
            file.write_all(chunk)?;
        }
        self.lengths.extend(self.chunks.drain(..).map(|chunk| chunk.len() as u32));
        self.in_memory = 0;
        Ok(())
    }

    /// Passes each fault to `visitor`, in order.
    pub fn visit(&self, visitor: &mut dyn FnMut(&Fault) -> io::Result<()>) -> io::Result<()> {
        if let Some(file) = &self.file {
            let mut position = 0;
            let mut chunk = Vec::new();
            for &length in &self.lengths {
                {
                    // Borrowed only while it is read: the visitor may visit too.
                    let mut file = file.borrow_mut();
                    file.seek(SeekFrom::Start(position))?;
                    chunk.resize(length as usize, 0);
                    file.read_exact(&mut chunk)?;
                }
                position += u64::from(length);
                unpack(&chunk, visitor)?;
            }
        }
        self.chunks.iter().chain([&self.current]).try_for_each(|chunk| unpack(chunk, visitor))
    }
}

fn unpack(mut chunk: &[u8], visitor: &mut dyn FnMut(&Fault) -> io::Result<()>) -> io::Result<()> {
    let mut unpacker = Unpacker::default();
    while let Some(fault) = unpacker.next(&mut chunk) {
        visitor(&fault)?;
    }
    Ok(())
}

/// A file that is gone with the process, on disk where possible: `/tmp` may be memory.
fn nameless_file() -> io::Result<File> {
    let chosen = std::env::var_os("TMPDIR").map(PathBuf::from);
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for directory in chosen.into_iter().chain(["/var/tmp".into(), "/tmp".into()]) {
        let opened =
            OpenOptions::new().read(true).write(true).mode(0o600).custom_flags(libc::O_TMPFILE).open(&directory);
        match opened {
            Ok(file) => return Ok(file),
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use neap_trace::{Id, ThreadId};

    use super::*;

    fn fault(number: u64) -> Fault {
        let thread = ThreadId::from_index((number % 7) as usize);
        Fault {
            time: number * 900,
            ..Fault::new(number, thread, number.wrapping_mul(0x9e37_79b9_7f4a_7c15), 0x40_1000)
        }
    }

    /// Catches a file that cannot be written whose failure is not reported, and faults that are lost with it.
    #[test]
    fn a_full_disk() {
        const COUNT: u64 = 20_000;
        let full = OpenOptions::new().read(true).write(true).open("/dev/full").expect("a device of Linux");
        let mut store = Store { file: Some(RefCell::new(full)), ..Store::with_limit(0) };
        (1..=COUNT).for_each(|number| store.push(&fault(number)));
        assert_eq!(store.no_file.as_ref().and_then(io::Error::raw_os_error), Some(libc::ENOSPC));
        let mut next = 1;
        let visited = store.visit(&mut |seen| {
            assert_eq!(*seen, fault(next));
            next += 1;
            Ok(())
        });
        assert!(visited.is_ok() && next == COUNT + 1);
    }

    /// Catches faults that are lost, doubled or out of order at the border of memory and file, and a nested visit that
    /// disturbs the outer one.
    #[test]
    fn faults_come_back_in_order() {
        const COUNT: u64 = 50_000;
        for limit in [0, 3 * CHUNK, usize::MAX] {
            let mut store = Store::with_limit(limit);
            (1..=COUNT).for_each(|number| store.push(&fault(number)));
            assert_eq!(store.file.is_some(), limit != usize::MAX && store.no_file.is_none(), "{limit}");
            let mut next = 1;
            let visited = store.visit(&mut |seen| {
                assert_eq!(*seen, fault(next));
                if next == COUNT / 2 {
                    let mut inner = 0;
                    store.visit(&mut |_| {
                        inner += 1;
                        Ok(())
                    })?;
                    assert_eq!(inner, COUNT);
                }
                next += 1;
                Ok(())
            });
            assert!(visited.is_ok() && next == COUNT + 1);
        }
    }
}
